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

// One process is stopped, anywhere in an operation, where others may see the
// effect of its work so far. There another process acts in a way that could
// disturb it, or it is killed. Stepping uses the kernel's tracing (ptrace), so
// the code under test does not know of it.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

#include "test/cpp/phi/shared_memory/actors.h"
#include "test/cpp/phi/shared_memory/processes.h"

namespace {

using namespace shared_memory_test;  // NOLINT(build/namespaces)

class SharedHeapStepTest : public shared_memory_test::SharedMemoryTestCase {
 protected:
  void SetUp() override {
    SharedMemoryTestCase::SetUp();
    if (!CanTrace()) GTEST_SKIP() << "Tracing is forbidden here.";
  }
};

// The acts of actors.

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

// An error that the message cannot be received any more is also a good answer.
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

// If a block was received, it still has its content.
void CheckIfAny(Scene* scene) {
  if (scene->has_block) CheckAndRelease(scene);
}

void Forward(Scene* scene) {
  scene->message = MessageOf(scene->block);
  Release(scene);
}

void SendAgain(Scene* scene) { scene->message = MessageOf(scene->block); }

void SendAndReceive(Scene* scene) {
  SendAgain(scene);
  Heap().Release(Heap().Receive(scene->message).block);
}

void FreeWhatNobodyHas(Scene*) { Heap().Stats(); }

void Collect(Scene*) { Heap().Collect({}); }

// Keeps the family alive as long as this process.
constexpr Act JoinFamily = Collect;

// Checks that no dead process, and none of its memory, is left.
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

// Checks this after the death of another process.
bool IsUnusedAfterCollections(std::optional<double> message_timeout) {
  return Eventually([&] {
    Heap().Collect(message_timeout);
    return Heap().Stats().used == 0;
  });
}

void CollectUntilNothingIsUsed(Scene* scene) {
  scene->good = IsUnusedAfterCollections(0.0);
}

// Waits until the blocks that the other process held are free; messages do not
// expire.
void CollectUntilNothingIsHeld(Scene* scene) {
  scene->good = IsUnusedAfterCollections({});
}

std::unique_ptr<FewDescriptors> few;

// From now on an actor has no descriptor left for the next message. To receive
// it, the actor detaches segments of dead senders.
void Starve(Scene* scene) {
  few = std::make_unique<FewDescriptors>(
      scene->strategy == SharingStrategy::kFileSystem ? 0 : 1);
}

// A segment is not detached if another process was faster and attached to it.
void ReceiveIfThereIsRoom(Scene* scene) {
  const auto kind =
      KindOf([&] { scene->block = Heap().Receive(scene->message).block; });
  scene->good = !kind || *kind == Kind::kExhausted;
}

void CheckThatOneIsApart(Scene* scene) {
  few.reset();
  scene->good = Heap().Stats().detached == 1;
}

void AllocateMore(Scene* scene) {
  FreeWhatNobodyHas(scene);
  Heap().Release(Heap().Allocate(scene->strategy, 3 * kSize));
}

void DoNothing(Scene*) {}

// Situations. Each returns the message that carried a block.

SharedMessage Send(Actor* owner) { return owner->Do(MakeAndRelease).message; }

// The owner also holds the block that it sends.
SharedMessage SendAndKeep(Actor* owner) { return owner->Do(Make).message; }

SharedMessage LetHold(Actor* holder, const SharedMessage& message) {
  EXPECT_TRUE(holder->Do(Receive, message).good);
  return message;
}

SharedMessage LetDrop(Actor* receiver, const SharedMessage& message) {
  EXPECT_TRUE(receiver->Do(ReceiveAndRelease, message).good);
  return message;
}

TEST_BOTH(SharedHeapStepTest, AReceiverStoppedAnywhereGetsWhatWasSent) {
  Actor owner(strategy);
  Actor receiver(strategy);
  AtEachStop(3, [&](Stop* stop) {
    stop->Begin(&receiver, Receive, Send(&owner));
    owner.Do(Overwrite);
    EXPECT_TRUE(stop->Complete().good);
    owner.Do(Overwrite);
    EXPECT_TRUE(receiver.Do(CheckAndRelease).good);
  });
}

TEST_BOTH(SharedHeapStepTest,
          ASecondReceiverStoppedAnywhereGetsWhatWasSentOrNothing) {
  Actor owner(strategy);
  Actor receiver(strategy);
  AtEachStop(3, [&](Stop* stop) {
    const SharedMessage received = LetHold(&receiver, SendAndKeep(&owner));
    EXPECT_TRUE(receiver.Do(CheckAndRelease).good);
    stop->Begin(&receiver, Receive, received);
    owner.Do(ReleaseAndOverwrite);
    EXPECT_TRUE(stop->Complete().good);
    owner.Do(ReleaseAndOverwrite);
    EXPECT_TRUE(receiver.Do(CheckIfAny).good);
  });
}

TEST_BOTH(SharedHeapStepTest, ASenderStoppedAnywhereLosesNoMessage) {
  Actor owner(strategy);
  Actor middle(strategy);
  Actor last(strategy);
  AtEachStop(3, [&](Stop* stop) {
    LetHold(&middle, Send(&owner));
    stop->Begin(&middle, Forward);
    owner.Do(Overwrite);
    const SharedMessage forwarded = stop->Complete().message;
    owner.Do(Overwrite);
    LetHold(&last, forwarded);
    owner.Do(Overwrite);
    EXPECT_TRUE(last.Do(CheckAndRelease).good);
  });
}

TEST_BOTH(SharedHeapStepTest,
          AnOwnerStoppedAnywhereFreesNothingThatIsReceivedMeanwhile) {
  Actor owner(strategy);
  Actor receiver(strategy);
  AtEachStop(3, [&](Stop* stop) {
    const SharedMessage sent = Send(&owner);
    stop->Begin(&owner, FreeWhatNobodyHas);
    LetHold(&receiver, sent);
    stop->Complete();
    owner.Do(Overwrite);
    EXPECT_TRUE(receiver.Do(CheckAndRelease).good);
    EXPECT_TRUE(owner.Do(CheckThatNothingIsUsed).good);
  });
}

TEST_BOTH(SharedHeapStepTest,
          AnOwnerStoppedAnywhereFreesNothingThatIsReceivedAgainMeanwhile) {
  Actor owner(strategy);
  Actor receiver(strategy);
  AtEachStop(3, [&](Stop* stop) {
    const SharedMessage received = LetDrop(&receiver, SendAndKeep(&owner));
    owner.Do(Release);
    stop->Begin(&owner, FreeWhatNobodyHas);
    EXPECT_TRUE(receiver.Do(Receive, received).good);  // the block, or nothing
    stop->Complete();
    owner.Do(Overwrite);
    EXPECT_TRUE(receiver.Do(CheckIfAny).good);
    EXPECT_TRUE(owner.Do(CheckThatNothingIsUsed).good);
  });
}

TEST_BOTH(SharedHeapStepTest, ABlockReleasedByAReceiverStoppedAnywhereIsFree) {
  Actor owner(strategy);
  Actor receiver(strategy);
  AtEachStop(3, [&](Stop* stop) {
    LetHold(&receiver, Send(&owner));
    stop->Begin(&receiver, Release);
    owner.Do(FreeWhatNobodyHas);
    stop->Complete();
    EXPECT_TRUE(owner.Do(CheckThatNothingIsUsed).good);
  });
}

TEST_BOTH(SharedHeapStepTest, AReceiverKilledAnywhereLeavesNothingInUse) {
  Actor owner(strategy);
  AtEachStop(5, [&](Stop* stop) {
    Actor receiver(strategy);
    LetDrop(&receiver, Send(&owner));
    stop->Begin(&receiver, ReceiveAndRelease, Send(&owner));
    receiver.Kill();
    EXPECT_TRUE(owner.Do(CollectUntilNothingIsUsed).good);
  });
}

TEST_BOTH(SharedHeapStepTest,
          AReceiverKilledAnywhereWhileItReleasesLeavesNothingHeld) {
  Actor owner(strategy);
  AtEachStop(3, [&](Stop* stop) {
    Actor receiver(strategy);
    LetHold(&receiver, Send(&owner));
    // Now the owner has seen its own release; only the receiver's is left.
    owner.Do(FreeWhatNobodyHas);
    stop->Begin(&receiver, Release);
    receiver.Kill();
    EXPECT_TRUE(owner.Do(CollectUntilNothingIsHeld).good);
  });
}

TEST_BOTH(SharedHeapStepTest, AnOwnerKilledAnywhereLeavesOthersWhatTheyHave) {
  AtEachStop(10, [&](Stop* stop) {
    Actor owner(strategy);
    Actor receiver(strategy);
    LetHold(&receiver, Send(&owner));
    Send(&owner);
    stop->Begin(&owner, AllocateMore);
    owner.Kill();
    receiver.Do(Collect);
    EXPECT_TRUE(receiver.Do(CheckAndRelease).good);
    EXPECT_TRUE(receiver.Do(CollectUntilNothingIsUsed).good);
    EXPECT_TRUE(receiver.Do(CollectAndLook).good);
  });
}

// All processes may reclaim the references of a dead process, but only one
// does.
TEST_BOTH(SharedHeapStepTest,
          AReceiverOfADeadOwnersBlockStoppedAnywhereTakesItFromNobody) {
  AtEachStop(10, [&](Stop* stop) {
    Actor owner(strategy);
    Actor first(strategy);
    Actor second(strategy);
    const SharedMessage sent = SendAndKeep(&owner);
    const SharedMessage other = SendAndKeep(&owner);
    LetHold(&first, sent);
    LetHold(&second, other);
    owner.Kill();
    stop->Begin(&first, Forward);
    second.Do(CheckAndRelease);
    second.Do(Collect);
    LetHold(&second, stop->Complete().message);
    first.Do(Collect);
    EXPECT_TRUE(second.Do(CheckAndRelease).good);
    first.Finish();
    EXPECT_TRUE(second.Do(CollectAndLook).good);
  });
}

// The sender is dead, so only the message keeps the file.
ISOLATED_TEST(SharedHeapStepTest,
              AReceiverStoppedAnywhereWhileItAttachesGetsWhatWasSent) {
  AtEachStop(10, [](Stop* stop) {
    Actor sender(SharingStrategy::kFileSystem);
    Actor receiver(SharingStrategy::kFileSystem);
    Actor other(SharingStrategy::kFileSystem);
    other.Do(JoinFamily);
    const SharedMessage sent = Send(&sender);
    sender.Kill();
    receiver.Do(JoinFamily);
    stop->Begin(&receiver, Receive, sent);
    other.Do(Collect);
    EXPECT_TRUE(stop->Complete().good);
    other.Do(Collect);
    EXPECT_TRUE(receiver.Do(CheckAndRelease).good);
    receiver.Finish();
    EXPECT_TRUE(other.Do(CollectAndLook).good);
  });
}

// A process checks which others are dead when it attaches to one more segment.
// This has some hundreds of stops.

TEST_BOTH(SharedHeapStepTest,
          AProcessKilledAnywhereWhileDetachingASegmentLeavesNothing) {
  AtSomeStops(30, [&](Stop* stop) {
    Actor dead(strategy);
    Actor living(strategy);
    Actor receiver(strategy);
    LetHold(&receiver, Send(&dead));
    const SharedMessage next = Send(&living);
    dead.Kill();
    receiver.Do(Starve);
    stop->Begin(&receiver, Receive, next);
    receiver.Kill();
    EXPECT_TRUE(living.Do(CollectUntilNothingIsUsed).good);
    living.Finish();
    Heap().Collect(0.0);
    EXPECT_TRUE(Files().empty());
  });
}

TEST_BOTH(SharedHeapStepTest,
          AProcessThatAttachesWhileAnotherDetachesTheSegmentGetsItOrNothing) {
  int apart = 0;
  AtSomeStops(30, [&](Stop* stop) {
    Actor dead(strategy);
    Actor living(strategy);
    Actor receiver(strategy);
    Actor late(strategy);
    late.Do(JoinFamily);
    const SharedMessage sent = LetHold(&receiver, SendAndKeep(&dead));
    const SharedMessage next = Send(&living);
    // A pickle of the receiver that was already loaded, through which the
    // receiver's descriptor can be opened.
    const SharedMessage loaded = receiver.Do(SendAndReceive, sent).message;
    dead.Kill();
    receiver.Do(Starve);
    stop->Begin(&receiver, ReceiveIfThereIsRoom, next);
    // The late process waits while the receiver holds the locks.
    late.Ask(Receive, loaded);
    EXPECT_TRUE(stop->Complete().good);
    EXPECT_TRUE(late.Hear().good);
    EXPECT_TRUE(late.Do(CheckIfAny).good);
    EXPECT_TRUE(receiver.Do(CheckAndRelease).good);
    apart += receiver.Do(CheckThatOneIsApart).good;
  });
  EXPECT_GT(apart, 0);
}

TEST_BOTH(SharedHeapStepTest,
          AProcessKilledAnywhereWhileReapingAnotherLeavesTheRestToOthers) {
  AtSomeStops(10, [&](Stop* stop) {
    Actor owner(strategy);
    Actor stranger(strategy);
    Actor first(strategy);
    Actor second(strategy);
    LetDrop(&second, Send(&owner));
    LetHold(&first, Send(&owner));
    first.Kill();
    const SharedMessage next = Send(&stranger);
    // With no descriptor left, it checks all segments for dead processes.
    second.Do(Starve);
    stop->Begin(&second, ReceiveIfThereIsRoom, next);
    second.Kill();
    EXPECT_TRUE(owner.Do(CollectUntilNothingIsUsed).good);
    EXPECT_TRUE(stranger.Do(CollectUntilNothingIsUsed).good);
  });
}

TEST_BOTH(SharedHeapStepTest, AMessageOfAWarmBlockTakesNoSystemCall) {
  Actor owner(strategy);
  Actor receiver(strategy);
  // One block is kept, so that the receiver still needs the segment; another
  // one is released, so that its block can be reused.
  LetHold(&receiver, SendAndKeep(&owner));
  LetDrop(&receiver, Send(&owner));
  const int none = owner.CountCalls(DoNothing);
  // A memfd is opened by its descriptor number, so the sender checks that the
  // descriptor is open: when a block is taken, and when it is sent.
  const int looks = strategy == SharingStrategy::kFileSystem ? 0 : 1;
  const SharedMessage message = Send(&owner);
  EXPECT_EQ(receiver.CountCalls(ReceiveAndRelease, message), none);
  EXPECT_EQ(owner.CountCalls(MakeAndRelease), none + 2 * looks);
  SendAndKeep(&owner);
  EXPECT_EQ(owner.CountCalls(SendAgain), none + looks);
}

TEST_BOTH(SharedHeapStepTest,
          AReceiverThatDropsAllBlocksOftenSeldomChecksTheSender) {
  static constexpr int kMessages = 200;
  Actor owner(strategy);
  Actor receiver(strategy);
  SendAndKeep(&owner);
  LetDrop(&receiver, Send(&owner));
  const int none = receiver.CountCalls(DoNothing);
  const auto start = std::chrono::steady_clock::now();
  int calls = 0;
  for (int i = 0; i < kMessages; ++i) {
    calls += receiver.CountCalls(ReceiveAndRelease, Send(&owner)) - none;
  }
  const std::chrono::duration<double> seconds =
      std::chrono::steady_clock::now() - start;
  // At most every 10 ms, with one check of the descriptor and one of the lock.
  EXPECT_LE(calls, 2 * (seconds.count() / 0.01 + 2));
}

}  // namespace
