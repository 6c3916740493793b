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

#include <cstdint>
#include <functional>

#include "actors.h"     // NOLINT(build/include_subdir)
#include "processes.h"  // NOLINT(build/include_subdir)

namespace {

using namespace shared_memory_test;  // NOLINT(build/namespaces)

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
  int stops = 0;
  for (bool stopped = true; stopped; ++stops) {
    stopped = actor->Begin(act, prepare(), stops);
    interfere();
    if (stopped) actor->Complete();
    settle(actor->End());
  }
  CHECK(stops > 3);
}

TEST_BOTH(AReceiverStoppedAnywhereGetsWhatWasSent) {
  if (!CanTrace()) return;
  Actor owner(strategy);
  Actor receiver(strategy);
  StopEverywhere(
      &receiver,
      Receive,
      [&] { return owner.Do(MakeAndRelease).message; },
      [&] { owner.Do(Overwrite); },
      [&](const Answer& answer) {
        CHECK(answer.good);
        owner.Do(Overwrite);
        CHECK(receiver.Do(CheckAndRelease).good);
      });
  receiver.Finish();
  owner.Finish();
}

TEST_BOTH(ASecondReceiverStoppedAnywhereGetsWhatWasSentOrNothing) {
  if (!CanTrace()) return;
  Actor owner(strategy);
  Actor receiver(strategy);
  SharedMessage message;
  StopEverywhere(
      &receiver,
      Receive,
      [&] {
        message = owner.Do(Make).message;
        CHECK(receiver.Do(Receive, message).good);
        CHECK(receiver.Do(CheckAndRelease).good);
        return message;  // has been received, and the owner holds the block
      },
      [&] { owner.Do(ReleaseAndOverwrite); },
      [&](const Answer& answer) {
        CHECK(answer.good);
        owner.Do(ReleaseAndOverwrite);
        CHECK(receiver.Do(CheckIfAny).good);
      });
  receiver.Finish();
  owner.Finish();
}

TEST_BOTH(ASenderStoppedAnywhereLosesNoMessage) {
  if (!CanTrace()) return;
  Actor owner(strategy);
  Actor middle(strategy);
  Actor last(strategy);
  StopEverywhere(
      &middle,
      Forward,
      [&] {
        CHECK(middle.Do(Receive, owner.Do(MakeAndRelease).message).good);
        return SharedMessage{};
      },
      [&] { owner.Do(Overwrite); },
      [&](const Answer& answer) {
        owner.Do(Overwrite);
        CHECK(last.Do(Receive, answer.message).good);
        owner.Do(Overwrite);
        CHECK(last.Do(CheckAndRelease).good);
      });
  for (Actor* actor : {&last, &middle, &owner}) actor->Finish();
}

TEST_BOTH(AnOwnerStoppedAnywhereFreesNothingThatIsReceivedMeanwhile) {
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
      [&] { CHECK(receiver.Do(Receive, message).good); },
      [&](const Answer&) {
        owner.Do(Overwrite);
        CHECK(receiver.Do(CheckAndRelease).good);
        CHECK(owner.Do(CheckThatNothingIsUsed).good);
      });
  receiver.Finish();
  owner.Finish();
}

TEST_BOTH(AnOwnerStoppedAnywhereFreesNothingThatIsReceivedAgainMeanwhile) {
  if (!CanTrace()) return;
  Actor owner(strategy);
  Actor receiver(strategy);
  SharedMessage message;
  StopEverywhere(
      &owner,
      FreeWhatNobodyHas,
      [&] {
        message = owner.Do(Make).message;
        CHECK(receiver.Do(ReceiveAndRelease, message).good);
        owner.Do(Release);
        return message;
      },
      [&] { CHECK(receiver.Do(Receive, message).good); },
      [&](const Answer&) {
        owner.Do(Overwrite);
        CHECK(receiver.Do(CheckIfAny).good);
        CHECK(owner.Do(CheckThatNothingIsUsed).good);
      });
  receiver.Finish();
  owner.Finish();
}

TEST_BOTH(WhatAReceiverStoppedAnywhereReleasesIsFree) {
  if (!CanTrace()) return;
  Actor owner(strategy);
  Actor receiver(strategy);
  StopEverywhere(
      &receiver,
      Release,
      [&] {
        CHECK(receiver.Do(Receive, owner.Do(MakeAndRelease).message).good);
        return SharedMessage{};
      },
      [&] { owner.Do(FreeWhatNobodyHas); },
      [&](const Answer&) { CHECK(owner.Do(CheckThatNothingIsUsed).good); });
  receiver.Finish();
  owner.Finish();
}

TEST_BOTH(AReceiverKilledAnywhereLeavesNothingInUse) {
  if (!CanTrace()) return;
  Actor owner(strategy);
  int kills = 0;
  for (bool stopped = true; stopped; ++kills) {
    Actor receiver(strategy);
    receiver.Do(ReceiveAndRelease, owner.Do(MakeAndRelease).message);
    stopped = receiver.Begin(
        ReceiveAndRelease, owner.Do(MakeAndRelease).message, kills);
    receiver.Kill();
    CHECK(owner.Do(CollectUntilNothingIsUsed).good);
  }
  CHECK(kills > 5);
  owner.Finish();
}

TEST_BOTH(AnOwnerKilledAnywhereLeavesOthersWhatTheyHave) {
  if (!CanTrace()) return;
  int kills = 0;
  for (bool stopped = true; stopped; ++kills) {
    Actor owner(strategy);
    Actor receiver(strategy);
    CHECK(receiver.Do(Receive, owner.Do(MakeAndRelease).message).good);
    owner.Do(MakeAndRelease);
    stopped = owner.Begin(
        [](Scene* scene) {
          FreeWhatNobodyHas(scene);
          Heap().Release(Heap().Allocate(scene->strategy, 3 * kSize));
        },
        {},
        kills);
    owner.Kill();
    receiver.Do(Collect);
    CHECK(receiver.Do(CheckAndRelease).good);
    CHECK(receiver.Do(CollectUntilNothingIsUsed).good);
    CHECK(receiver.Do(CollectAndLook).good);
    receiver.Finish();
  }
  CHECK(kills > 10);
}

// What is left of a dead process is everybody's, but only one gives it back.
TEST_BOTH(AReceiverOfADeadOwnersBlockStoppedAnywhereTakesItFromNobody) {
  if (!CanTrace()) return;
  int stops = 0;
  for (bool stopped = true; stopped; ++stops) {
    Actor owner(strategy);
    Actor first(strategy);
    Actor second(strategy);
    const SharedMessage sent = owner.Do(Make).message;
    const SharedMessage other = owner.Do(Make).message;
    CHECK(first.Do(Receive, sent).good);
    CHECK(second.Do(Receive, other).good);
    owner.Kill();
    SharedMessage message;
    stopped = first.Begin(Forward, {}, stops);
    second.Do(CheckAndRelease);
    second.Do(Collect);
    if (stopped) first.Complete();
    message = first.End().message;
    CHECK(second.Do(Receive, message).good);
    first.Do(Collect);
    CHECK(second.Do(CheckAndRelease).good);
    first.Finish();
    CHECK(second.Do(CollectAndLook).good);
    second.Finish();
  }
  CHECK(stops > 10);
}

// Its sender is dead, so that only the message keeps the file.
TEST(AReceiverStoppedAnywhereWhileItAttachesGetsWhatWasSent) {
  if (!CanTrace()) return;
  int stops = 0;
  for (bool stopped = true; stopped; ++stops) {
    Actor sender(SharingStrategy::kFileSystem);
    Actor receiver(SharingStrategy::kFileSystem);
    Actor other(SharingStrategy::kFileSystem);
    other.Do(Collect);  // so that the family lives
    const SharedMessage message = sender.Do(MakeAndRelease).message;
    sender.Kill();
    receiver.Do(Collect);  // so that it has joined the family
    stopped = receiver.Begin(Receive, message, stops);
    other.Do(Collect);
    if (stopped) receiver.Complete();
    CHECK(receiver.End().good);
    other.Do(Collect);
    CHECK(receiver.Do(CheckAndRelease).good);
    receiver.Finish();
    CHECK(other.Do(CollectAndLook).good);
    other.Finish();
  }
  CHECK(stops > 10);
}

// It looks whether others are dead when it attaches to one more.
TEST_BOTH(AProcessKilledAnywhereWhileItBuriesAnotherLeavesTheRestToDo) {
  if (!CanTrace()) return;
  int kills = 0;
  for (bool stopped = true; stopped; ++kills) {
    Actor owner(strategy);
    Actor stranger(strategy);
    Actor first(strategy);
    Actor second(strategy);
    second.Do(ReceiveAndRelease, owner.Do(MakeAndRelease).message);
    CHECK(first.Do(Receive, owner.Do(MakeAndRelease).message).good);
    first.Kill();
    stopped = second.Begin(Receive, stranger.Do(MakeAndRelease).message, kills);
    second.Kill();
    CHECK(owner.Do(CollectUntilNothingIsUsed).good);
    CHECK(stranger.Do(CollectUntilNothingIsUsed).good);
    owner.Finish();
    stranger.Finish();
  }
  CHECK(kills > 10);
}

}  // namespace
