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

// A forked child holds the blocks that its parent held, and either process may
// end first.

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "test/cpp/phi/shared_memory/processes.h"

namespace {

using namespace shared_memory_test;  // NOLINT(build/namespaces)

class SharedHeapForkTest : public shared_memory_test::SharedMemoryTestCase {};

// Overwrites all memory that nobody holds.
void Overwrite(SharingStrategy strategy) {
  for (int i = 0; i < 8; ++i) AllocateFilled(strategy, kMiB, 99);
}

TEST_BOTH(SharedHeapForkTest, AChildKeepsWhatItsParentReleases) {
  const SharedBlock block = AllocateFilled(strategy, kMiB, 1);
  Worker child([&](const Channel& channel) {
    channel.Await();
    EXPECT_TRUE(HasContent(block, 1));
    Heap().Release(block);
    channel.Signal();
    channel.Await();
  });
  Heap().Release(block);
  Heap().Collect(0.0);
  EXPECT_EQ(Heap().Stats().used, block.capacity);
  Overwrite(strategy);
  const uint64_t used = Heap().Stats().used;
  child.channel().Signal();
  child.channel().Await();
  EXPECT_EQ(Heap().Stats().used, used - block.capacity);
  child.channel().Signal();
  child.Finish();
}

// A storage is filled between its allocation and its binding. A child that is
// forked meanwhile has no use for the block, and would never release it.
TEST_BOTH(SharedHeapForkTest, AChildInheritsAStorageOnceItIsBound) {
  const SharedBlock block =
      Heap().Allocate(strategy, kMiB, SharedHeap::Inheritance::kOnceBound);
  Worker early([](const Channel& channel) { channel.Await(); });
  const auto storage = std::make_shared<int>();
  EXPECT_TRUE(Heap().Bind(block, storage, [] { return true; }));
  Worker late([](const Channel& channel) { channel.Await(); });
  Heap().Release(block);
  EXPECT_EQ(Heap().Stats().used, block.capacity);
  late.Kill();
  EXPECT_TRUE(Eventually(UsesNothing));
  early.channel().Signal();
  early.Finish();
}

TEST_BOTH(SharedHeapForkTest, AParentKeepsWhatAChildThatEndsHeld) {
  const SharedBlock block = AllocateFilled(strategy, kMiB, 1);
  Worker released([&](const Channel&) { Heap().Release(block); });
  released.Finish();
  Worker kept([](const Channel&) {});
  kept.Finish();
  Worker killed([](const Channel& channel) { channel.Await(); });
  killed.Kill();
  Heap().Collect(0.0);
  Overwrite(strategy);
  EXPECT_TRUE(HasContent(block, 1));
}

TEST_BOTH(SharedHeapForkTest, WhatAChildHeldIsFreeOnceBothAreDone) {
  const SharedBlock block = AllocateFilled(strategy, kMiB, 1);
  Worker child([](const Channel& channel) { channel.Await(); });
  Heap().Release(block);
  EXPECT_FALSE(UsesNothing());
  child.Kill();
  EXPECT_TRUE(Eventually(UsesNothing));
}

TEST_BOTH(SharedHeapForkTest, AChildKeepsTheBlocksOfADeadParent) {
  Worker parent([&](const Channel& up) {
    const SharedBlock block = AllocateFilled(strategy, kMiB, 1);
    const pid_t self = getpid();
    Worker child([&](const Channel&) {
      prctl(PR_SET_PDEATHSIG, 0);
      up.Signal();
      EXPECT_TRUE(Eventually([&] { return getppid() != self; }));
      Heap().Collect(0.0);
      up.Send(HasContent(block, 1));
      up.Send(MessageOf(block));
      up.Await();
      Heap().Release(block);
      up.Send(Eventually([] {
        Heap().Collect({});
        return Heap().Stats().attached == 0;
      }));
    });
    child.channel().Await();
  });
  parent.channel().Await();
  parent.Kill();
  EXPECT_TRUE(parent.channel().Receive<bool>());
  const auto message = parent.channel().Receive<SharedMessage>();
  const SharedBlock received = Heap().Receive(message).block;
  parent.channel().Signal();
  EXPECT_TRUE(parent.channel().Receive<bool>());
  parent.channel().AwaitEnd();
  Heap().Collect(0.0);
  EXPECT_TRUE(HasContent(received, 1));
}

TEST_BOTH(SharedHeapForkTest, ParentAndChildAllocateSeparately) {
  const SharedBlock before = AllocateFilled(strategy, 4096, 1);
  Worker child([&](const Channel& channel) {
    std::vector<SharedBlock> blocks;
    for (int i = 0; i < 50; ++i) {
      blocks.push_back(AllocateFilled(strategy, 4096, 100 + i));
    }
    EXPECT_EQ(Heap().Stats().segments, 1);
    EXPECT_EQ(Heap().Stats().attached, 1);
    EXPECT_NE(blocks[0].segment, before.segment);
    channel.Signal();
    channel.Await();
    for (int i = 0; i < 50; ++i) EXPECT_TRUE(HasContent(blocks[i], 100 + i));
    EXPECT_TRUE(HasContent(before, 1));
  });
  std::vector<SharedBlock> blocks;
  for (int i = 0; i < 50; ++i) {
    blocks.push_back(AllocateFilled(strategy, 4096, 200 + i));
  }
  child.channel().Await();
  child.channel().Signal();
  child.Finish();
  for (int i = 0; i < 50; ++i) EXPECT_TRUE(HasContent(blocks[i], 200 + i));
}

TEST_BOTH(SharedHeapForkTest, AChildSendsWhatItInherited) {
  Worker stranger([](const Channel& channel) {
    const auto received = Heap().Receive(channel.Receive<SharedMessage>());
    EXPECT_TRUE(HasContent(received.block, 1));
    channel.Signal();
    channel.Await();
    EXPECT_TRUE(HasContent(received.block, 1));
  });
  const SharedBlock block = AllocateFilled(strategy, kMiB, 1);
  Worker child([&](const Channel& channel) {
    channel.Send(MessageOf(block));
    channel.Await();
  });
  Heap().Release(block);
  stranger.channel().Send(child.channel().Receive<SharedMessage>());
  stranger.channel().Await();
  child.channel().Signal();
  child.Finish();
  Overwrite(strategy);
  stranger.channel().Signal();
  stranger.Finish();
}

TEST_BOTH(SharedHeapForkTest, AChildReceivesWhatItsParentWasSent) {
  Worker sender([&](const Channel& channel) {
    channel.Send(MessageOf(AllocateFilled(strategy, kMiB, 1)));
    channel.Await();
  });
  const auto message = sender.channel().Receive<SharedMessage>();
  const SharedBlock received = Heap().Receive(message).block;
  Worker child([&](const Channel& channel) {
    const auto again = Heap().Receive(MessageOf(received));
    Heap().Release(received);
    channel.Await();
    EXPECT_TRUE(HasContent(again.block, 1));
  });
  Heap().Release(received);
  Heap().Collect({});
  child.channel().Signal();
  child.Finish();
  sender.channel().Signal();
  sender.Finish();
}

TEST_BOTH(SharedHeapForkTest, AGrandchildKeepsWhatAllBeforeItReleased) {
  const SharedBlock block = AllocateFilled(strategy, kMiB, 1);
  Worker child([&](const Channel& up) {
    Worker grandchild([&](const Channel& channel) {
      channel.Await();
      EXPECT_TRUE(HasContent(block, 1));
    });
    Heap().Release(block);
    up.Signal();
    up.Await();
    grandchild.channel().Signal();
    grandchild.Finish();
  });
  child.channel().Await();
  Heap().Release(block);
  Overwrite(strategy);
  child.channel().Signal();
  child.Finish();
  Heap().Collect(0.0);
  EXPECT_EQ(Heap().Stats().used, 8 * block.capacity);
}

TEST_BOTH(SharedHeapForkTest, AForkLeavesTheParentWhatItHad) {
  const SharedBlock block = AllocateFilled(strategy, kMiB, 1);
  const Possessions before = Possessions::Now();
  for (int i = 0; i < 3; ++i) {
    Worker child([](const Channel&) {});
    child.Finish();
  }
  EXPECT_EQ(Possessions::Now(), before);
  Heap().Release(block);
  EXPECT_TRUE(UsesNothing());
}

TEST_BOTH(SharedHeapForkTest, ManyForksDoNotUseUpTheSlots) {
  const SharedBlock block = AllocateFilled(strategy, 64, 1);
  for (int i = 0; i < 600; ++i) {
    const pid_t child = fork();
    REQUIRE_TRUE(child >= 0);
    if (child == 0) _exit(0);
    REQUIRE_EQ(waitpid(child, nullptr, 0), child);
  }
  Heap().Release(block);
  EXPECT_TRUE(UsesNothing());
}

// The address sanitizer's own locks do not survive such a fork (GCC 12).
#ifndef __SANITIZE_ADDRESS__
TEST_BOTH(SharedHeapForkTest,
          AForkWhileOtherThreadsShareGivesTheChildAWorkingHeap) {
  const SharedBlock block = AllocateFilled(strategy, kMiB, 1);
  std::atomic<bool> ended{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      while (!ended) {
        const SharedBlock own = AllocateFilled(strategy, kMiB, 2);
        Heap().Release(Heap().Receive(MessageOf(own)).block);
        Heap().Release(own);
        Heap().Collect({});
      }
    });
  }
  for (int i = 0; i < 50; ++i) {
    Worker child([&](const Channel&) {
      EXPECT_TRUE(HasContent(block, 1));
      EXPECT_TRUE(HasContent(AllocateFilled(strategy, kMiB, 3), 3));
      EXPECT_TRUE(HasContent(Heap().Receive(MessageOf(block)).block, 1));
    });
    child.Finish();
  }
  ended = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(HasContent(block, 1));
  Heap().Release(block);
  EXPECT_TRUE(Eventually(UsesNothing));
}
#endif

// Children wait for this before they do anything else.
int gate = -1;

void WaitAtGate() {
  char byte;
  EXPECT_EQ(read(gate, &byte, 1), 1);
}

TEST_BOTH(SharedHeapForkTest,
          AChildThatIsSlowToStartKeepsWhatItsParentReleases) {
  // Handlers run in this order, so this one runs before the heap's.
  ASSERT_EQ(pthread_atfork(nullptr, nullptr, WaitAtGate), 0);
  for (bool starved : {false, true}) {
    const SharedBlock block = AllocateFilled(strategy, kMiB, 1);
    int ends[2];
    REQUIRE_EQ(pipe2(ends, O_CLOEXEC), 0);
    gate = ends[0];
    Worker child([&](const Channel&) { EXPECT_TRUE(HasContent(block, 1)); },
                 starved);
    Heap().Release(block);
    Heap().Collect({});
    Overwrite(strategy);
    REQUIRE_EQ(write(ends[1], "!", 1), 1);
    child.Finish();
  }
}

// Without descriptors, a fork cannot take a slot for the child.

TEST_BOTH(SharedHeapForkTest, AStarvedChildKeepsWhatItsParentReleases) {
  const SharedBlock block = AllocateFilled(strategy, kMiB, 1);
  Worker child(
      [&](const Channel& channel) {
        channel.Await();
        EXPECT_TRUE(HasContent(block, 1));
        Heap().Release(block);
        Heap().Collect(0.0);
        channel.Signal();
        channel.Await();
      },
      true);
  Heap().Release(block);
  const SharedBlock kept = AllocateFilled(strategy, kMiB, 2);
  Overwrite(strategy);
  child.channel().Signal();
  child.channel().Await();
  Heap().Collect(0.0);
  Overwrite(strategy);
  EXPECT_TRUE(HasContent(kept, 2));
  child.channel().Signal();
  child.Finish();
}

TEST_BOTH(SharedHeapForkTest, AStarvedChildSharesAsItsParentDoes) {
  Worker stranger([](const Channel& channel) {
    const auto received = Heap().Receive(channel.Receive<SharedMessage>());
    EXPECT_TRUE(HasContent(received.block, 1));
    channel.Send(MessageOf(AllocateFilled(SharingStrategy::kFileSystem, 9, 2)));
    channel.Await();
  });
  const SharedBlock block = AllocateFilled(strategy, kMiB, 1);
  Worker child(
      [&](const Channel& channel) {
        channel.Send(MessageOf(block));
        const auto message = channel.Receive<SharedMessage>();
        EXPECT_TRUE(HasContent(Heap().Receive(message).block, 2));
        const SharedBlock own = AllocateFilled(strategy, kMiB, 3);
        EXPECT_TRUE(HasContent(own, 3));
      },
      true);
  stranger.channel().Send(child.channel().Receive<SharedMessage>());
  child.channel().Send(stranger.channel().Receive<SharedMessage>());
  child.Finish();
  stranger.channel().Signal();
  stranger.Finish();
}

TEST_BOTH(SharedHeapForkTest, AStaleMessageToAStarvedChildFreesNothing) {
  const SharedBlock old = AllocateFilled(strategy, kMiB, 1);
  const SharedMessage stale = MessageOf(old);
  Heap().Release(Heap().Receive(stale).block);
  Heap().Release(old);
  const SharedBlock block = AllocateFilled(strategy, kMiB, 2);
  ASSERT_EQ(block.data, old.data);
  Worker keeper(
      [&](const Channel& channel) {
        channel.Await();
        EXPECT_TRUE(HasContent(block, 2));
      },
      true);
  Worker receiver(
      [&](const Channel&) {
        Heap().Release(block);
        EXPECT_EQ(Kind::kGone, KindOf([&] { Heap().Receive(stale); }));
      },
      true);
  receiver.Finish();
  Heap().Release(block);
  Overwrite(strategy);
  keeper.channel().Signal();
  keeper.Finish();
}

TEST_BOTH(SharedHeapForkTest,
          AStarvedChildCanSendWhatItsDeadSenderAndItsParentReleased) {
  Worker stranger([](const Channel& channel) {
    const auto received = Heap().Receive(channel.Receive<SharedMessage>());
    EXPECT_TRUE(HasContent(received.block, 1));
  });
  Worker sender([&](const Channel& channel) {
    channel.Send(MessageOf(AllocateFilled(strategy, kMiB, 1)));
    channel.Await();
  });
  const auto message = sender.channel().Receive<SharedMessage>();
  const SharedBlock received = Heap().Receive(message).block;
  Worker child(
      [&](const Channel& channel) {
        channel.Await();
        channel.Send(MessageOf(received));
        channel.Await();
      },
      true);
  sender.Kill();
  Heap().Release(received);
  Heap().Collect({});
  child.channel().Signal();
  stranger.channel().Send(child.channel().Receive<SharedMessage>());
  stranger.Finish();
  child.channel().Signal();
  child.Finish();
}

TEST_BOTH(SharedHeapForkTest, AForkSucceedsEvenIfASegmentHeaderWasOverwritten) {
  Worker worker([&](const Channel&) {
    Worker sender([&](const Channel& channel) {
      channel.Send(MessageOf(AllocateFilled(strategy, kMiB, 1)));
      channel.AwaitEnd();
    });
    const SharedBlock block =
        Heap().Receive(sender.channel().Receive<SharedMessage>()).block;
    auto* header = reinterpret_cast<uint64_t*>(block.data - block.offset);
    const uint64_t before = std::exchange(*header, 1);
    Worker child([&](const Channel&) { EXPECT_TRUE(HasContent(block, 1)); });
    child.Finish();
    *header = before;
    sender.Finish();
  });
  worker.Finish();
}

}  // namespace
