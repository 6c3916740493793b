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
// effect of its work so far. There another process actions in a way that could
// disturb it, or it is killed. Stepping uses the kernel's tracing (ptrace), so
// the code under test does not know of it.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>

#include "test/cpp/phi/shared_memory/processes.h"
#include "test/cpp/phi/shared_memory/stepped_process.h"

namespace {

using namespace shared_memory_test;  // NOLINT(build/namespaces)

class SharedHeapStepTest : public shared_memory_test::SharedMemoryTestCase {
 protected:
  void SetUp() override {
    SharedMemoryTestCase::SetUp();
    if (!CanTrace()) GTEST_SKIP() << "Tracing is forbidden here.";
  }
};

// The actions of processes.

constexpr uint64_t kSize = 4096;

void Make(ProcessState* state) {
  state->block = AllocateFilled(state->strategy, kSize, 1);
  state->message = MessageOf(state->block);
  state->has_block = true;
}

void Release(ProcessState* state) {
  if (state->has_block) Heap().Release(state->block);
  state->has_block = false;
}

void MakeAndRelease(ProcessState* state) {
  Make(state);
  Release(state);
}

// An error that the message cannot be received any more is also a good answer.
void Receive(ProcessState* state) {
  try {
    state->block = Heap().Receive(state->message).block;
    state->has_block = true;
  } catch (const SharedMemoryError& error) {
    state->good = error.kind() == Kind::kGone;
  }
}

void CheckAndRelease(ProcessState* state) {
  state->good = state->has_block && HasContent(state->block, 1);
  Release(state);
}

// If a block was received, it still has its content.
void CheckIfAny(ProcessState* state) {
  if (state->has_block) CheckAndRelease(state);
}

void Forward(ProcessState* state) {
  state->message = MessageOf(state->block);
  Release(state);
}

void SendAgain(ProcessState* state) {
  state->message = MessageOf(state->block);
}

void SendAndReceive(ProcessState* state) {
  SendAgain(state);
  Heap().Release(Heap().Receive(state->message).block);
}

void FreeWhatNobodyHas(ProcessState*) { Heap().Stats(); }

void Collect(ProcessState*) { Heap().Collect({}); }

// Keeps the process tree alive as long as this process.
constexpr Action JoinTree = Collect;

// Checks that no dead process, and none of its memory, is left.
void CollectAndLook(ProcessState* state) {
  state->good = Eventually([] {
    Heap().Collect({});
    return Heap().Stats().attached == 0 && Files().empty();
  });
}

void Overwrite(ProcessState* state) {
  SharedBlock blocks[3];
  for (SharedBlock& block : blocks) {
    block = AllocateFilled(state->strategy, kSize, 2);
  }
  for (const SharedBlock& block : blocks) Heap().Release(block);
}

void ReleaseAndOverwrite(ProcessState* state) {
  Release(state);
  Overwrite(state);
}

void ReceiveAndRelease(ProcessState* state) {
  Receive(state);
  Release(state);
}

void CheckThatNothingIsUsed(ProcessState* state) {
  state->good = Heap().Stats().used == 0;
}

// Checks this after the death of another process.
bool IsUnusedAfterCollections(std::optional<double> message_timeout) {
  return Eventually([&] {
    Heap().Collect(message_timeout);
    return Heap().Stats().used == 0;
  });
}

void CollectUntilNothingIsUsed(ProcessState* state) {
  state->good = IsUnusedAfterCollections(0.0);
}

// Waits until the blocks that the other process held are free; messages do not
// expire.
void CollectUntilNothingIsHeld(ProcessState* state) {
  state->good = IsUnusedAfterCollections({});
}

std::unique_ptr<FewDescriptors> few;

// From now on an process has no descriptor left for the next message. To
// receive it, the process detaches segments of dead senders.
void Starve(ProcessState* state) {
  few = std::make_unique<FewDescriptors>(
      state->strategy == SharingStrategy::kFileSystem ? 0 : 1);
}

// A segment is not detached if another process was faster and attached to it.
void ReceiveIfThereIsRoom(ProcessState* state) {
  const auto kind =
      KindOf([&] { state->block = Heap().Receive(state->message).block; });
  state->good = !kind || *kind == Kind::kExhausted;
}

void CheckThatOneIsApart(ProcessState* state) {
  few.reset();
  state->good = Heap().Stats().detached == 1;
}

void AllocateMore(ProcessState* state) {
  FreeWhatNobodyHas(state);
  Heap().Release(Heap().Allocate(state->strategy, 3 * kSize));
}

void DoNothing(ProcessState*) {}

// Situations. Each returns the message that carried a block.

SharedMessage Send(SteppedProcess* owner) {
  return owner->Run(MakeAndRelease).message;
}

// The owner also holds the block that it sends.
SharedMessage SendAndKeep(SteppedProcess* owner) {
  return owner->Run(Make).message;
}

SharedMessage LetHold(SteppedProcess* holder, const SharedMessage& message) {
  EXPECT_TRUE(holder->Run(Receive, message).good);
  return message;
}

SharedMessage LetDrop(SteppedProcess* receiver, const SharedMessage& message) {
  EXPECT_TRUE(receiver->Run(ReceiveAndRelease, message).good);
  return message;
}

TEST_BOTH(SharedHeapStepTest, AReceiverStoppedAnywhereGetsWhatWasSent) {
  SteppedProcess owner(strategy);
  SteppedProcess receiver(strategy);
  AtEachStop(3, [&](Stop* stop) {
    stop->Begin(&receiver, Receive, Send(&owner));
    owner.Run(Overwrite);
    EXPECT_TRUE(stop->Complete().good);
    owner.Run(Overwrite);
    EXPECT_TRUE(receiver.Run(CheckAndRelease).good);
  });
}

TEST_BOTH(SharedHeapStepTest,
          ASecondReceiverStoppedAnywhereGetsWhatWasSentOrNothing) {
  SteppedProcess owner(strategy);
  SteppedProcess receiver(strategy);
  AtEachStop(3, [&](Stop* stop) {
    const SharedMessage received = LetHold(&receiver, SendAndKeep(&owner));
    EXPECT_TRUE(receiver.Run(CheckAndRelease).good);
    stop->Begin(&receiver, Receive, received);
    owner.Run(ReleaseAndOverwrite);
    EXPECT_TRUE(stop->Complete().good);
    owner.Run(ReleaseAndOverwrite);
    EXPECT_TRUE(receiver.Run(CheckIfAny).good);
  });
}

TEST_BOTH(SharedHeapStepTest, ASenderStoppedAnywhereLosesNoMessage) {
  SteppedProcess owner(strategy);
  SteppedProcess middle(strategy);
  SteppedProcess last(strategy);
  AtEachStop(3, [&](Stop* stop) {
    LetHold(&middle, Send(&owner));
    stop->Begin(&middle, Forward);
    owner.Run(Overwrite);
    const SharedMessage forwarded = stop->Complete().message;
    owner.Run(Overwrite);
    LetHold(&last, forwarded);
    owner.Run(Overwrite);
    EXPECT_TRUE(last.Run(CheckAndRelease).good);
  });
}

TEST_BOTH(SharedHeapStepTest,
          AnOwnerStoppedAnywhereFreesNothingThatIsReceivedMeanwhile) {
  SteppedProcess owner(strategy);
  SteppedProcess receiver(strategy);
  AtEachStop(3, [&](Stop* stop) {
    const SharedMessage sent = Send(&owner);
    stop->Begin(&owner, FreeWhatNobodyHas);
    LetHold(&receiver, sent);
    stop->Complete();
    owner.Run(Overwrite);
    EXPECT_TRUE(receiver.Run(CheckAndRelease).good);
    EXPECT_TRUE(owner.Run(CheckThatNothingIsUsed).good);
  });
}

TEST_BOTH(SharedHeapStepTest,
          AnOwnerStoppedAnywhereFreesNothingThatIsReceivedAgainMeanwhile) {
  SteppedProcess owner(strategy);
  SteppedProcess receiver(strategy);
  AtEachStop(3, [&](Stop* stop) {
    const SharedMessage received = LetDrop(&receiver, SendAndKeep(&owner));
    owner.Run(Release);
    stop->Begin(&owner, FreeWhatNobodyHas);
    EXPECT_TRUE(receiver.Run(Receive, received).good);  // the block, or nothing
    stop->Complete();
    owner.Run(Overwrite);
    EXPECT_TRUE(receiver.Run(CheckIfAny).good);
    EXPECT_TRUE(owner.Run(CheckThatNothingIsUsed).good);
  });
}

TEST_BOTH(SharedHeapStepTest, ABlockReleasedByAReceiverStoppedAnywhereIsFree) {
  SteppedProcess owner(strategy);
  SteppedProcess receiver(strategy);
  AtEachStop(3, [&](Stop* stop) {
    LetHold(&receiver, Send(&owner));
    stop->Begin(&receiver, Release);
    owner.Run(FreeWhatNobodyHas);
    stop->Complete();
    EXPECT_TRUE(owner.Run(CheckThatNothingIsUsed).good);
  });
}

TEST_BOTH(SharedHeapStepTest, AReceiverKilledAnywhereLeavesNothingInUse) {
  SteppedProcess owner(strategy);
  AtEachStop(5, [&](Stop* stop) {
    SteppedProcess receiver(strategy);
    LetDrop(&receiver, Send(&owner));
    stop->Begin(&receiver, ReceiveAndRelease, Send(&owner));
    receiver.Kill();
    EXPECT_TRUE(owner.Run(CollectUntilNothingIsUsed).good);
  });
}

TEST_BOTH(SharedHeapStepTest,
          AReceiverKilledAnywhereWhileItReleasesLeavesNothingHeld) {
  SteppedProcess owner(strategy);
  AtEachStop(3, [&](Stop* stop) {
    SteppedProcess receiver(strategy);
    LetHold(&receiver, Send(&owner));
    // Now the owner has seen its own release; only the receiver's is left.
    owner.Run(FreeWhatNobodyHas);
    stop->Begin(&receiver, Release);
    receiver.Kill();
    EXPECT_TRUE(owner.Run(CollectUntilNothingIsHeld).good);
  });
}

TEST_BOTH(SharedHeapStepTest, AnOwnerKilledAnywhereLeavesOthersWhatTheyHave) {
  AtEachStop(10, [&](Stop* stop) {
    SteppedProcess owner(strategy);
    SteppedProcess receiver(strategy);
    LetHold(&receiver, Send(&owner));
    Send(&owner);
    stop->Begin(&owner, AllocateMore);
    owner.Kill();
    receiver.Run(Collect);
    EXPECT_TRUE(receiver.Run(CheckAndRelease).good);
    EXPECT_TRUE(receiver.Run(CollectUntilNothingIsUsed).good);
    EXPECT_TRUE(receiver.Run(CollectAndLook).good);
  });
}

// All processes may reclaim the references of a dead process, but only one
// does.
TEST_BOTH(SharedHeapStepTest,
          AReceiverOfADeadOwnersBlockStoppedAnywhereTakesItFromNobody) {
  AtEachStop(10, [&](Stop* stop) {
    SteppedProcess owner(strategy);
    SteppedProcess first(strategy);
    SteppedProcess second(strategy);
    const SharedMessage sent = SendAndKeep(&owner);
    const SharedMessage other = SendAndKeep(&owner);
    LetHold(&first, sent);
    LetHold(&second, other);
    owner.Kill();
    stop->Begin(&first, Forward);
    second.Run(CheckAndRelease);
    second.Run(Collect);
    LetHold(&second, stop->Complete().message);
    first.Run(Collect);
    EXPECT_TRUE(second.Run(CheckAndRelease).good);
    first.Finish();
    EXPECT_TRUE(second.Run(CollectAndLook).good);
  });
}

// The sender is dead, so only the message keeps the file.
ISOLATED_TEST(SharedHeapStepTest,
              AReceiverStoppedAnywhereWhileItAttachesGetsWhatWasSent) {
  AtEachStop(10, [](Stop* stop) {
    SteppedProcess sender(SharingStrategy::kFileSystem);
    SteppedProcess receiver(SharingStrategy::kFileSystem);
    SteppedProcess other(SharingStrategy::kFileSystem);
    other.Run(JoinTree);
    const SharedMessage sent = Send(&sender);
    sender.Kill();
    receiver.Run(JoinTree);
    stop->Begin(&receiver, Receive, sent);
    other.Run(Collect);
    EXPECT_TRUE(stop->Complete().good);
    other.Run(Collect);
    EXPECT_TRUE(receiver.Run(CheckAndRelease).good);
    receiver.Finish();
    EXPECT_TRUE(other.Run(CollectAndLook).good);
  });
}

// The checking process has every lock for a moment. Meanwhile, a process that
// attaches finds no free slot and has to wait.
ISOLATED_TEST(SharedHeapStepTest,
              AProcessAttachesWhileAnotherChecksWhetherItIsTheLastOne) {
  AtEachStop(10, [](Stop* stop) {
    SteppedProcess dead(SharingStrategy::kFileSystem);
    SteppedProcess checking(SharingStrategy::kFileSystem);
    SteppedProcess late(SharingStrategy::kFileSystem);
    const SharedMessage sent = SendAndKeep(&dead);
    LetDrop(&checking, Send(&dead));
    late.Run(JoinTree);
    dead.Kill();
    stop->Begin(&checking, Collect);
    late.Start(Receive, sent);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    stop->Complete();
    EXPECT_TRUE(late.Wait().good);
    EXPECT_TRUE(late.Run(CheckAndRelease).good);
  });
}

// A process checks which others are dead when it attaches to one more segment.
// This has some hundreds of stops.

TEST_BOTH(SharedHeapStepTest,
          AProcessKilledAnywhereWhileDetachingASegmentLeavesNothing) {
  AtSomeStops(30, [&](Stop* stop) {
    SteppedProcess dead(strategy);
    SteppedProcess living(strategy);
    SteppedProcess receiver(strategy);
    LetHold(&receiver, Send(&dead));
    const SharedMessage next = Send(&living);
    dead.Kill();
    receiver.Run(Starve);
    stop->Begin(&receiver, Receive, next);
    receiver.Kill();
    EXPECT_TRUE(living.Run(CollectUntilNothingIsUsed).good);
    living.Finish();
    Heap().Collect(0.0);
    EXPECT_TRUE(Files().empty());
  });
}

TEST_BOTH(SharedHeapStepTest,
          AProcessThatAttachesWhileAnotherDetachesTheSegmentGetsItOrNothing) {
  int apart = 0;
  AtSomeStops(30, [&](Stop* stop) {
    SteppedProcess dead(strategy);
    SteppedProcess living(strategy);
    SteppedProcess receiver(strategy);
    SteppedProcess late(strategy);
    late.Run(JoinTree);
    const SharedMessage sent = LetHold(&receiver, SendAndKeep(&dead));
    const SharedMessage next = Send(&living);
    // A pickle of the receiver that was already loaded, through which the
    // receiver's descriptor can be opened.
    const SharedMessage loaded = receiver.Run(SendAndReceive, sent).message;
    dead.Kill();
    receiver.Run(Starve);
    stop->Begin(&receiver, ReceiveIfThereIsRoom, next);
    // The late process waits while the receiver holds the locks.
    late.Start(Receive, loaded);
    EXPECT_TRUE(stop->Complete().good);
    EXPECT_TRUE(late.Wait().good);
    EXPECT_TRUE(late.Run(CheckIfAny).good);
    EXPECT_TRUE(receiver.Run(CheckAndRelease).good);
    apart += receiver.Run(CheckThatOneIsApart).good;
  });
  EXPECT_GT(apart, 0);
}

TEST_BOTH(SharedHeapStepTest,
          AProcessKilledAnywhereWhileReapingAnotherLeavesTheRestToOthers) {
  AtSomeStops(10, [&](Stop* stop) {
    SteppedProcess owner(strategy);
    SteppedProcess stranger(strategy);
    SteppedProcess first(strategy);
    SteppedProcess second(strategy);
    LetDrop(&second, Send(&owner));
    LetHold(&first, Send(&owner));
    first.Kill();
    const SharedMessage next = Send(&stranger);
    // With no descriptor left, it checks all segments for dead processes.
    second.Run(Starve);
    stop->Begin(&second, ReceiveIfThereIsRoom, next);
    second.Kill();
    EXPECT_TRUE(owner.Run(CollectUntilNothingIsUsed).good);
    EXPECT_TRUE(stranger.Run(CollectUntilNothingIsUsed).good);
  });
}

TEST_BOTH(SharedHeapStepTest, AMessageOfAWarmBlockTakesNoSystemCall) {
  SteppedProcess owner(strategy);
  SteppedProcess receiver(strategy);
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
  SteppedProcess owner(strategy);
  SteppedProcess receiver(strategy);
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
