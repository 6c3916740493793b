// Copyright (c) 2026 PaddlePaddle Authors. All Rights Reserved.
//
// Licensed under the Apache License, Version 2.0 (the "License");
// you may not use this file except in compliance with the License.
// You may obtain a copy of the License at
//
//     http://www.apache.org/licenses/LICENSE-2.0
//
// Unless required by applicable law or agreed to in writing, software
// distributed under the License is distributed on an "AS IS" BASIS,
// WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
// See the License for the specific language governing permissions and
// limitations under the License.

// One process stops where others may see what it has done so far, anywhere in
// an operation, while another does what could hurt it; or it is killed there.
// The kernel's tracing does the stepping, so nothing in the code under test
// knows of it.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

#include "test/cpp/phi/shared_memory/actors.h"
#include "test/cpp/phi/shared_memory/processes.h"

namespace {

using namespace shared_memory_test;  // NOLINT(build/namespaces)

class SharedHeapStepTest : public shared_memory_test::SharedMemoryTestCase {};

constexpr uint64_t kSize = 4096;

void Make(Scene* scene) {
  scene->block = AllocateFilled(scene->strategy, kSize, 1);
  scene->message = MessageOf(scene->block);
  scene->has_block = true;
}

void Release(Scene* scene) {
  if (scene->has_block) Heap().Release(scene->block);
  scene->has_block = false;
}

void MakeAndRelease(Scene* scene) {
  Make(scene);
  Release(scene);
}

// A message that cannot be received any more is a good answer, too.
void Receive(Scene* scene) {
  try {
    scene->block = Heap().Receive(scene->message).block;
    scene->has_block = true;
  } catch (const SharedMemoryError& error) {
    scene->good = error.kind() == Kind::kGone;
  }
}

void CheckAndRelease(Scene* scene) {
  scene->good = scene->has_block && HasContent(scene->block, 1);
  Release(scene);
}

// Whatever was received is as it was.
void CheckIfAny(Scene* scene) {
  if (scene->has_block) CheckAndRelease(scene);
}

void Forward(Scene* scene) {
  scene->message = MessageOf(scene->block);
  Release(scene);
}

void Send(Scene* scene) { scene->message = MessageOf(scene->block); }

void SendAndReceive(Scene* scene) {
  Send(scene);
  Heap().Release(Heap().Receive(scene->message).block);
}

void FreeWhatNobodyHas(Scene*) { Heap().Stats(); }

void Collect(Scene*) { Heap().Collect({}); }

// Nothing is known of processes that are dead, nor of their memory.
void CollectAndLook(Scene* scene) {
  scene->good = Eventually([] {
    Heap().Collect({});
    return Heap().Stats().attached == 0 && Files().empty();
  });
}

void Overwrite(Scene* scene) {
  SharedBlock blocks[3];
  for (SharedBlock& block : blocks) {
    block = AllocateFilled(scene->strategy, kSize, 2);
  }
  for (const SharedBlock& block : blocks) Heap().Release(block);
}

void ReleaseAndOverwrite(Scene* scene) {
  Release(scene);
  Overwrite(scene);
}

void ReceiveAndRelease(Scene* scene) {
  Receive(scene);
  Release(scene);
}

void CheckThatNothingIsUsed(Scene* scene) {
  scene->good = Heap().Stats().used == 0;
}

// After the death of another.
void CollectUntilNothingIsUsed(Scene* scene) {
  scene->good = Eventually([] {
    Heap().Collect(0.0);
    return Heap().Stats().used == 0;
  });
}

// Prepares an act of an actor and lets it stop somewhere in there, interferes,
// and lets it end; again and again, until it has stopped everywhere.
void StopEverywhere(Actor* actor,
                    Act act,
                    const std::function<SharedMessage()>& prepare,
                    const std::function<void()>& interfere,
                    const std::function<void(const Answer&)>& settle) {
  size_t stops = 0;
  for (Course course; !course.is_whole; ++stops) {
    const bool stopped = actor->Begin(act, prepare(), stops, &course);
    interfere();
    if (stopped) actor->Complete();
    settle(actor->End());
  }
  EXPECT_GT(stops, 3);
}

TEST_BOTH(SharedHeapStepTest, AReceiverStoppedAnywhereGetsWhatWasSent) {
  if (!CanTrace()) return;
  Actor owner(strategy);
  Actor receiver(strategy);
  StopEverywhere(
      &receiver,
      Receive,
      [&] { return owner.Do(MakeAndRelease).message; },
      [&] { owner.Do(Overwrite); },
      [&](const Answer& answer) {
        EXPECT_TRUE(answer.good);
        owner.Do(Overwrite);
        EXPECT_TRUE(receiver.Do(CheckAndRelease).good);
      });
  receiver.Finish();
  owner.Finish();
}

TEST_BOTH(SharedHeapStepTest,
          ASecondReceiverStoppedAnywhereGetsWhatWasSentOrNothing) {
  if (!CanTrace()) return;
  Actor owner(strategy);
  Actor receiver(strategy);
  SharedMessage message;
  StopEverywhere(
      &receiver,
      Receive,
      [&] {
        message = owner.Do(Make).message;
        EXPECT_TRUE(receiver.Do(Receive, message).good);
        EXPECT_TRUE(receiver.Do(CheckAndRelease).good);
        return message;  // has been received, and the owner holds the block
      },
      [&] { owner.Do(ReleaseAndOverwrite); },
      [&](const Answer& answer) {
        EXPECT_TRUE(answer.good);
        owner.Do(ReleaseAndOverwrite);
        EXPECT_TRUE(receiver.Do(CheckIfAny).good);
      });
  receiver.Finish();
  owner.Finish();
}

TEST_BOTH(SharedHeapStepTest, ASenderStoppedAnywhereLosesNoMessage) {
  if (!CanTrace()) return;
  Actor owner(strategy);
  Actor middle(strategy);
  Actor last(strategy);
  StopEverywhere(
      &middle,
      Forward,
      [&] {
        EXPECT_TRUE(middle.Do(Receive, owner.Do(MakeAndRelease).message).good);
        return SharedMessage{};
      },
      [&] { owner.Do(Overwrite); },
      [&](const Answer& answer) {
        owner.Do(Overwrite);
        EXPECT_TRUE(last.Do(Receive, answer.message).good);
        owner.Do(Overwrite);
        EXPECT_TRUE(last.Do(CheckAndRelease).good);
      });
  for (Actor* actor : {&last, &middle, &owner}) actor->Finish();
}

TEST_BOTH(SharedHeapStepTest,
          AnOwnerStoppedAnywhereFreesNothingThatIsReceivedMeanwhile) {
  if (!CanTrace()) return;
  Actor owner(strategy);
  Actor receiver(strategy);
  SharedMessage message;
  StopEverywhere(
      &owner,
      FreeWhatNobodyHas,
      [&] {
        message = owner.Do(MakeAndRelease).message;
        return message;
      },
      [&] { EXPECT_TRUE(receiver.Do(Receive, message).good); },
      [&](const Answer&) {
        owner.Do(Overwrite);
        EXPECT_TRUE(receiver.Do(CheckAndRelease).good);
        EXPECT_TRUE(owner.Do(CheckThatNothingIsUsed).good);
      });
  receiver.Finish();
  owner.Finish();
}

TEST_BOTH(SharedHeapStepTest,
          AnOwnerStoppedAnywhereFreesNothingThatIsReceivedAgainMeanwhile) {
  if (!CanTrace()) return;
  Actor owner(strategy);
  Actor receiver(strategy);
  SharedMessage message;
  StopEverywhere(
      &owner,
      FreeWhatNobodyHas,
      [&] {
        message = owner.Do(Make).message;
        EXPECT_TRUE(receiver.Do(ReceiveAndRelease, message).good);
        owner.Do(Release);
        return message;
      },
      [&] { EXPECT_TRUE(receiver.Do(Receive, message).good); },
      [&](const Answer&) {
        owner.Do(Overwrite);
        EXPECT_TRUE(receiver.Do(CheckIfAny).good);
        EXPECT_TRUE(owner.Do(CheckThatNothingIsUsed).good);
      });
  receiver.Finish();
  owner.Finish();
}

TEST_BOTH(SharedHeapStepTest, WhatAReceiverStoppedAnywhereReleasesIsFree) {
  if (!CanTrace()) return;
  Actor owner(strategy);
  Actor receiver(strategy);
  StopEverywhere(
      &receiver,
      Release,
      [&] {
        EXPECT_TRUE(
            receiver.Do(Receive, owner.Do(MakeAndRelease).message).good);
        return SharedMessage{};
      },
      [&] { owner.Do(FreeWhatNobodyHas); },
      [&](const Answer&) {
        EXPECT_TRUE(owner.Do(CheckThatNothingIsUsed).good);
      });
  receiver.Finish();
  owner.Finish();
}

TEST_BOTH(SharedHeapStepTest, AReceiverKilledAnywhereLeavesNothingInUse) {
  if (!CanTrace()) return;
  Actor owner(strategy);
  size_t kills = 0;
  for (Course course; !course.is_whole; ++kills) {
    Actor receiver(strategy);
    receiver.Do(ReceiveAndRelease, owner.Do(MakeAndRelease).message);
    receiver.Begin(
        ReceiveAndRelease, owner.Do(MakeAndRelease).message, kills, &course);
    receiver.Kill();
    EXPECT_TRUE(owner.Do(CollectUntilNothingIsUsed).good);
  }
  EXPECT_GT(kills, 5);
  owner.Finish();
}

TEST_BOTH(SharedHeapStepTest, AnOwnerKilledAnywhereLeavesOthersWhatTheyHave) {
  if (!CanTrace()) return;
  size_t kills = 0;
  for (Course course; !course.is_whole; ++kills) {
    Actor owner(strategy);
    Actor receiver(strategy);
    EXPECT_TRUE(receiver.Do(Receive, owner.Do(MakeAndRelease).message).good);
    owner.Do(MakeAndRelease);
    owner.Begin(
        [](Scene* scene) {
          FreeWhatNobodyHas(scene);
          Heap().Release(Heap().Allocate(scene->strategy, 3 * kSize));
        },
        {},
        kills,
        &course);
    owner.Kill();
    receiver.Do(Collect);
    EXPECT_TRUE(receiver.Do(CheckAndRelease).good);
    EXPECT_TRUE(receiver.Do(CollectUntilNothingIsUsed).good);
    EXPECT_TRUE(receiver.Do(CollectAndLook).good);
    receiver.Finish();
  }
  EXPECT_GT(kills, 10);
}

// What is left of a dead process is everybody's, but only one gives it back.
TEST_BOTH(SharedHeapStepTest,
          AReceiverOfADeadOwnersBlockStoppedAnywhereTakesItFromNobody) {
  if (!CanTrace()) return;
  size_t stops = 0;
  for (Course course; !course.is_whole; ++stops) {
    Actor owner(strategy);
    Actor first(strategy);
    Actor second(strategy);
    const SharedMessage sent = owner.Do(Make).message;
    const SharedMessage other = owner.Do(Make).message;
    EXPECT_TRUE(first.Do(Receive, sent).good);
    EXPECT_TRUE(second.Do(Receive, other).good);
    owner.Kill();
    SharedMessage message;
    const bool stopped = first.Begin(Forward, {}, stops, &course);
    second.Do(CheckAndRelease);
    second.Do(Collect);
    if (stopped) first.Complete();
    message = first.End().message;
    EXPECT_TRUE(second.Do(Receive, message).good);
    first.Do(Collect);
    EXPECT_TRUE(second.Do(CheckAndRelease).good);
    first.Finish();
    EXPECT_TRUE(second.Do(CollectAndLook).good);
    second.Finish();
  }
  EXPECT_GT(stops, 10);
}

// Its sender is dead, so that only the message keeps the file.
ISOLATED_TEST(SharedHeapStepTest,
              AReceiverStoppedAnywhereWhileItAttachesGetsWhatWasSent) {
  if (!CanTrace()) return;
  size_t stops = 0;
  for (Course course; !course.is_whole; ++stops) {
    Actor sender(SharingStrategy::kFileSystem);
    Actor receiver(SharingStrategy::kFileSystem);
    Actor other(SharingStrategy::kFileSystem);
    other.Do(Collect);  // so that the family lives
    const SharedMessage message = sender.Do(MakeAndRelease).message;
    sender.Kill();
    receiver.Do(Collect);  // so that it has joined the family
    const bool stopped = receiver.Begin(Receive, message, stops, &course);
    other.Do(Collect);
    if (stopped) receiver.Complete();
    EXPECT_TRUE(receiver.End().good);
    other.Do(Collect);
    EXPECT_TRUE(receiver.Do(CheckAndRelease).good);
    receiver.Finish();
    EXPECT_TRUE(other.Do(CollectAndLook).good);
    other.Finish();
  }
  EXPECT_GT(stops, 10);
}

// It looks whether others are dead when it attaches to one more.
// There are some hundreds of steps, so a run takes each so many-th of them,
// from one on that differs from run to run.
constexpr int kStride = 8;

std::unique_ptr<FewDescriptors> few;

// From then on an actor has no descriptor left for the next message: to receive
// it, it takes the segments of dead senders apart.
void Starve(Scene* scene) {
  few = std::make_unique<FewDescriptors>(
      scene->strategy == SharingStrategy::kFileSystem ? 0 : 1);
}

// Nothing is taken apart that another process was faster to attach to.
void ReceiveIfThereIsRoom(Scene* scene) {
  const auto kind =
      KindOf([&] { scene->block = Heap().Receive(scene->message).block; });
  scene->good = !kind || *kind == Kind::kExhausted;
}

void CheckThatOneIsApart(Scene* scene) {
  few.reset();
  scene->good = Heap().Stats().detached == 1;
}

TEST_BOTH(SharedHeapStepTest,
          AProcessKilledAnywhereWhileItTakesASegmentApartLeavesNothing) {
  if (!CanTrace()) return;
  size_t kills = Seed() % kStride;
  for (Course course; !course.is_whole; kills += kStride) {
    Actor dead(strategy);
    Actor living(strategy);
    Actor receiver(strategy);
    EXPECT_TRUE(receiver.Do(Receive, dead.Do(MakeAndRelease).message).good);
    const SharedMessage message = living.Do(MakeAndRelease).message;
    dead.Kill();
    receiver.Do(Starve);
    receiver.Begin(Receive, message, kills, &course);
    receiver.Kill();
    EXPECT_TRUE(living.Do(CollectUntilNothingIsUsed).good);
    living.Finish();
    Heap().Collect(0.0);
    EXPECT_TRUE(Files().empty());
  }
  EXPECT_GT(kills, 30);
}

TEST_BOTH(SharedHeapStepTest,
          AProcessThatAttachesWhileAnotherTakesTheSegmentApartGetsItOrNothing) {
  if (!CanTrace()) return;
  size_t stops = Seed() % kStride;
  int apart = 0;
  for (Course course; !course.is_whole; stops += kStride) {
    Actor dead(strategy);
    Actor living(strategy);
    Actor receiver(strategy);
    Actor late(strategy);
    late.Do(Collect);  // so that it has joined the family
    SharedMessage message = dead.Do(Make).message;
    EXPECT_TRUE(receiver.Do(Receive, message).good);
    const SharedMessage next = living.Do(MakeAndRelease).message;
    // A pickle of the receiver's that was loaded before, by which its own
    // descriptor can be opened.
    message = receiver.Do(SendAndReceive, message).message;
    dead.Kill();
    receiver.Do(Starve);
    const bool stopped =
        receiver.Begin(ReceiveIfThereIsRoom, next, stops, &course);
    late.Ask(Receive, message);
    // It waits for the receiver where that has the locks.
    if (stopped) receiver.Complete();
    EXPECT_TRUE(receiver.End().good);
    EXPECT_TRUE(late.Hear().good);
    EXPECT_TRUE(late.Do(CheckIfAny).good);
    EXPECT_TRUE(receiver.Do(CheckAndRelease).good);
    apart += receiver.Do(CheckThatOneIsApart).good;
    late.Finish();
    receiver.Finish();
    living.Finish();
  }
  EXPECT_GT(stops, 30);
  EXPECT_GT(apart, 0);
}

TEST_BOTH(SharedHeapStepTest, AMessageOfAWarmBlockTakesNoSystemCall) {
  if (!CanTrace()) return;
  Actor owner(strategy);
  Actor receiver(strategy);
  // One to keep, so that the receiver stays in need of the segment; and one
  // that leaves a block to use again.
  EXPECT_TRUE(receiver.Do(Receive, owner.Do(Make).message).good);
  receiver.Do(ReceiveAndRelease, owner.Do(MakeAndRelease).message);
  const auto nothing = [](Scene*) {};
  const int none = owner.CountCalls(nothing);
  // A memfd is opened by the number of its descriptor, so it is looked whether
  // that is there: when a block is taken, and when it is sent.
  const int looks = strategy == SharingStrategy::kFileSystem ? 0 : 1;
  const SharedMessage message = owner.Do(MakeAndRelease).message;
  EXPECT_EQ(receiver.CountCalls(ReceiveAndRelease, message), none);
  EXPECT_EQ(owner.CountCalls(MakeAndRelease), none + 2 * looks);
  owner.Do(Make);
  EXPECT_EQ(owner.CountCalls(Send), none + looks);
  receiver.Finish();
  owner.Finish();
}

TEST_BOTH(SharedHeapStepTest,
          AReceiverThatDropsAllTimeAndAgainSeldomAsksForTheSender) {
  if (!CanTrace()) return;
  static constexpr int kMessages = 200;
  Actor owner(strategy);
  Actor receiver(strategy);
  owner.Do(Make);
  receiver.Do(ReceiveAndRelease, owner.Do(MakeAndRelease).message);
  const auto nothing = [](Scene*) {};
  const int none = receiver.CountCalls(nothing);
  const auto start = std::chrono::steady_clock::now();
  int calls = 0;
  for (int i = 0; i < kMessages; ++i) {
    const SharedMessage message = owner.Do(MakeAndRelease).message;
    calls += receiver.CountCalls(ReceiveAndRelease, message) - none;
  }
  const std::chrono::duration<double> seconds =
      std::chrono::steady_clock::now() - start;
  // At most every 10 ms, with a look at the descriptor and one at the lock.
  EXPECT_LE(calls, 2 * (seconds.count() / 0.01 + 2));
  receiver.Finish();
  owner.Finish();
}

TEST_BOTH(SharedHeapStepTest,
          AProcessKilledAnywhereWhileItBuriesAnotherLeavesTheRestToDo) {
  if (!CanTrace()) return;
  size_t kills = Seed() % kStride;
  for (Course course; !course.is_whole; kills += kStride) {
    Actor owner(strategy);
    Actor stranger(strategy);
    Actor first(strategy);
    Actor second(strategy);
    second.Do(ReceiveAndRelease, owner.Do(MakeAndRelease).message);
    EXPECT_TRUE(first.Do(Receive, owner.Do(MakeAndRelease).message).good);
    first.Kill();
    // With no descriptor left, it looks for dead processes in all segments.
    const SharedMessage message = stranger.Do(MakeAndRelease).message;
    second.Do(Starve);
    second.Begin(ReceiveIfThereIsRoom, message, kills, &course);
    second.Kill();
    EXPECT_TRUE(owner.Do(CollectUntilNothingIsUsed).good);
    EXPECT_TRUE(stranger.Do(CollectUntilNothingIsUsed).good);
    owner.Finish();
    stranger.Finish();
  }
  EXPECT_GT(kills, 10);
}

}  // namespace
