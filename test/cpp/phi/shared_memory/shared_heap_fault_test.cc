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

// In each operation, each system call is made to fail, one at a time. The
// operation then either succeeds anyway or reports clearly what failed. Nothing
// is left half done, and the next attempt succeeds.

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "paddle/phi/core/memory/allocation/shared_memory/shared_segment_file.h"
#include "test/cpp/phi/shared_memory/intercepted_calls.h"
#include "test/cpp/phi/shared_memory/processes.h"

namespace {

using namespace shared_memory_test;  // NOLINT(build/namespaces)
using paddle::memory::allocation::CanMakeSegments;

class SharedHeapFaultTest : public shared_memory_test::SharedMemoryTestCase {};

// More calls than any operation makes of one function.
constexpr int kMostCalls = 200;

struct Fault {
  std::string function;
  int n;
  int error;
  Calls calls;

  std::unique_ptr<Interception> Start() const {
    return std::make_unique<Interception>(
        function, n, calls, [error = error] { return error; });
  }
};

// Runs an attempt for each fault in its own process, until the attempt reports
// that the fault did not happen any more. Returns how many faults happened.
int ForEachFault(const std::function<bool(const Fault&)>& attempt) {
  int faults = 0;
  for (const std::string& function : InterceptedFunctions()) {
    // The first call that no attempt makes. It is the same for every error.
    int end = kMostCalls;
    for (int error : {ENOSPC, EMFILE, ENOMEM, EPERM, EINTR}) {
      for (Calls calls : {Calls::kOne, Calls::kAllFromThenOn}) {
        // Failures that no kernel produces.
        if (error == EINTR && calls == Calls::kAllFromThenOn) continue;
        if (error == EINTR && function != "open" && function != "fallocate") {
          continue;
        }
        for (int n = 1; n < end; ++n) {
          const Fault fault = {function, n, error, calls};
          bool happened = false;
          Worker worker([&](const Channel& channel) {
            channel.Send(attempt(fault));
            channel.Await();
            if (!isolated_test::HasFailureHere()) return;
            std::printf("  when call %d of %s%s failed: %s\n",
                        fault.n,
                        fault.function.c_str(),
                        calls == Calls::kOne ? "" : ", and all later,",
                        std::strerror(fault.error));
          });
          try {
            happened = worker.channel().Receive<bool>();
            worker.channel().Signal();
            worker.Finish();
          } catch (const isolated_test::AssertionFailed&) {
            // The failure has already been reported.
          }
          if (happened) {
            ++faults;
          } else {
            end = n;
          }
        }
      }
    }
  }
  return faults;
}

// Returns whether the error names what failed and the object.
bool IsClear(const SharedMemoryError& error, const Fault& fault) {
  const std::string text = error.what();
  // As for fstat: a file that cannot be inspected is not accepted as a segment.
  if (fault.function == "fcntl") return true;
  return text.find(std::strerror(fault.error)) != std::string::npos &&
         (text.find("/dev/shm") != std::string::npos ||
          text.find("paddle-") != std::string::npos ||
          text.find("random bits") != std::string::npos);
}

struct State {
  Possessions possessions;
  SharedHeapStats stats;

  static State Now() { return {Possessions::Now(), Heap().Stats()}; }
  bool operator==(const State& other) const {
    return possessions == other.possessions &&
           std::memcmp(&stats, &other.stats, sizeof(stats)) == 0;
  }
};

// Runs one operation, which may fail and then must leave no trace.
bool Attempt(const Fault& fault,
             const std::function<void()>& operation,
             const std::function<void()>& undo,
             bool changes_nothing = true) {
  const State before = State::Now();
  auto interception = fault.Start();
  const auto error = ErrorOf(operation);
  const bool happened = interception->Happened();
  interception.reset();
  EXPECT_TRUE(happened || !error);
  if (error) {
    EXPECT_TRUE(IsClear(*error, fault));
    EXPECT_NE(fault.error, EINTR);
    EXPECT_TRUE(!changes_nothing || State::Now() == before);
  } else {
    undo();
  }
  REQUIRE_TRUE(!ErrorOf(operation));
  undo();
  EXPECT_TRUE(!changes_nothing || State::Now() == before);
  return happened;
}

TEST_BOTH(SharedHeapFaultTest, AFaultInTheFirstAllocationLeavesNothing) {
  const int faults = ForEachFault([&](const Fault& fault) {
    Heap();
    const Possessions before = Possessions::Now();
    SharedBlock block;
    const bool happened = Attempt(
        fault,
        [&] { block = AllocateFilled(strategy, 100, 1); },
        [&] { Heap().Release(block); },
        false);
    // There is one segment, whichever attempt created it.
    const Possessions now = Possessions::Now();
    EXPECT_EQ(Heap().Stats().segments, 1);
    EXPECT_EQ(Heap().Stats().used, 0);
    EXPECT_EQ(now.descriptors, before.descriptors + 1);
    EXPECT_EQ(now.mappings.size(), before.mappings.size() + 1);
    return happened;
  });
  EXPECT_GT(faults, 20);
}

// Large enough to get its memory in more than one step.
TEST_BOTH(SharedHeapFaultTest, AFaultInALargeAllocationLeavesNothing) {
  const int faults = ForEachFault([&](const Fault& fault) {
    const SharedBlock kept = AllocateFilled(strategy, 100, 1);
    // Leaves a segment with enough addresses.
    Heap().Release(Heap().Allocate(strategy, 33 * kMiB));
    Heap().Collect({});
    // Memory that could not be reserved must not count.
    Heap().SetLimit(40 * kMiB);
    SharedBlock block;
    const bool happened = Attempt(
        fault,
        [&] { block = Heap().Allocate(strategy, 33 * kMiB); },
        [&] {
          // If a page had no memory, this would end the process.
          block.data[0] = block.data[block.capacity - 1] = 1;
          Heap().Release(block);
          Heap().Collect({});
        });
    EXPECT_TRUE(HasContent(kept, 1));
    return happened;
  });
  EXPECT_GT(faults, 5);
}

// 64 bytes: the ledger grows by many blocks.
TEST_BOTH(SharedHeapFaultTest, AFaultWhileTheLedgerGrowsLeavesNothing) {
  const int faults = ForEachFault([&](const Fault& fault) {
    const SharedBlock kept = AllocateFilled(strategy, 4096, 1);
    // A page of the ledger holds 16 entries.
    for (int i = 1; i < 16; ++i) AllocateFilled(strategy, 4096, 1);
    SharedBlock block;
    const bool happened = Attempt(
        fault,
        [&] { block = AllocateFilled(strategy, 64, 2); },
        [&] {
          EXPECT_TRUE(HasContent(block, 2));
          Heap().Release(block);
          Heap().Collect({});
        });
    EXPECT_TRUE(HasContent(kept, 1));
    return happened;
  });
  EXPECT_GT(faults, 5);
}

TEST_BOTH(SharedHeapFaultTest, AFaultWhileAttachingLeavesNothing) {
  Worker sender([&](const Channel& channel) {
    channel.Send(MessageOf(AllocateFilled(strategy, kMiB, 1)));
    channel.Await();
  });
  const auto message = sender.channel().Receive<SharedMessage>();
  const int faults = ForEachFault([&](const Fault& fault) {
    Heap();
    const State before = State::Now();
    SharedBlock block;
    const bool happened = Attempt(
        fault,
        [&] { block = Heap().Receive(message).block; },
        [&] {
          EXPECT_TRUE(HasContent(block, 1));
          Heap().Release(block);
        },
        false);
    EXPECT_EQ(Heap().Stats().attached, 1);
    EXPECT_EQ(Possessions::Now().descriptors,
              before.possessions.descriptors + 1);
    EXPECT_EQ(Possessions::Now().mappings.size(),
              before.possessions.mappings.size() + 1);
    return happened;
  });
  EXPECT_GT(faults, 20);
  sender.channel().Signal();
  sender.Finish();
}

TEST_BOTH(SharedHeapFaultTest, NoFaultInReleasingOrCollectingIsAnError) {
  Worker sender([&](const Channel& channel) {
    channel.Send(MessageOf(AllocateFilled(strategy, kMiB, 1)));
    channel.Await();
  });
  const auto message = sender.channel().Receive<SharedMessage>();
  ForEachFault([&](const Fault& fault) {
    const SharedBlock own = AllocateFilled(strategy, 2 * kMiB, 2);
    const SharedBlock kept = AllocateFilled(strategy, 2 * kMiB, 3);
    const SharedBlock received = Heap().Receive(message).block;
    const SharedMessage given_up = MessageOf(own);
    bool happened = false;
    {
      const auto interception = fault.Start();
      EXPECT_FALSE(ErrorOf([&] {
        Heap().Release(own);
        Heap().Release(received);
        Heap().Collect(0.0);
        Heap().Stats();
      }));
      happened = interception->Happened();
    }
    Heap().Collect(0.0);
    EXPECT_EQ(Heap().Stats().used, kept.capacity);
    EXPECT_TRUE(HasContent(kept, 3));
    EXPECT_EQ(Kind::kGone, KindOf([&] { Heap().Receive(given_up); }));
    Heap().Release(AllocateFilled(strategy, 2 * kMiB, 4));
    EXPECT_TRUE(HasContent(kept, 3));
    return happened;
  });
  sender.channel().Signal();
  sender.Finish();
}

// The fault may happen in the parent or in the child. Both have to continue.
TEST_BOTH(SharedHeapFaultTest, NoFaultInAForkIsAnError) {
  const int faults = ForEachFault([&](const Fault& fault) {
    const SharedBlock block = AllocateFilled(strategy, kMiB, 1);
    const SharedBlock second = AllocateFilled(strategy, kMiB, 2);
    int status = -1;
    bool happened = false;
    {
      const auto interception = fault.Start();
      const pid_t child = fork();
      if (child == 0) {
        bool good = HasContent(block, 1);
        Heap().Release(block);
        good &= HasContent(second, 2);
        // The parent does not see a fault that happens only in the child.
        _exit(good ? (interception->Happened() ? 2 : 0) : 1);
      }
      waitpid(child, &status, 0);
      happened = interception->Happened() ||
                 (WIFEXITED(status) && WEXITSTATUS(status) == 2);
    }
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_NE(WEXITSTATUS(status), 1);
    Heap().Collect(0.0);
    EXPECT_TRUE(HasContent(block, 1));
    EXPECT_TRUE(HasContent(second, 2));
    Heap().Release(AllocateFilled(strategy, kMiB, 3));
    EXPECT_TRUE(HasContent(block, 1));
    EXPECT_TRUE(HasContent(second, 2));
    return happened;
  });
  EXPECT_GT(faults, 3);
}

// Its slot then depends on a descriptor, which may be closed.
TEST_BOTH(SharedHeapFaultTest, AChildThatCannotMapAgainKeepsItsBlocks) {
  const SharedBlock block = AllocateFilled(strategy, kMiB, 1);
  auto interception = Fault{"mmap", 1, ENOMEM, Calls::kOne}.Start();
  Worker child([&](const Channel& channel) {
    EXPECT_TRUE(interception->Happened());
    CloseAllBut(channel.fd());
    channel.Signal();
    channel.Await();
    EXPECT_TRUE(HasContent(block, 1));
  });
  interception.reset();
  child.channel().Await();
  Heap().Release(block);
  Heap().Collect({});
  for (int i = 0; i < 8; ++i) AllocateFilled(strategy, kMiB, 2);
  child.channel().Signal();
  child.Finish();
}

TEST_BOTH(SharedHeapFaultTest, RunningOutOfPrivateMemoryLeavesAWorkingHeap) {
  const SharedBlock kept = AllocateFilled(strategy, 100, 1);
  const State before = State::Now();
  bool thrown = false;
  {
    // The first call is for the block; during it, the mutex is unlocked.
    const Interception interception(
        "fallocate", 1, Calls::kOne, []() -> int { throw std::bad_alloc(); });
    try {
      Heap().Allocate(strategy, 9 * kMiB);
    } catch (const std::bad_alloc&) {
      thrown = true;
    }
  }
  EXPECT_TRUE(thrown);
  // Another thread finds the mutex unlocked, and no memory counted that does
  // not exist.
  std::thread([&] {
    Heap().Release(AllocateFilled(strategy, 9 * kMiB, 2));
    Heap().Collect({});
  }).join();
  EXPECT_EQ(State::Now(), before);
  EXPECT_TRUE(HasContent(kept, 1));
}

TEST_BOTH(SharedHeapFaultTest, NoFaultInDetachingASegmentLosesABlock) {
  const auto send = [&](const Channel& channel) {
    channel.Send(MessageOf(AllocateFilled(strategy, kMiB, 1)));
    channel.Await();
  };
  const int faults = ForEachFault([&](const Fault& fault) {
    Worker dead(send);
    Worker living(send);
    const SharedBlock held =
        Heap().Receive(dead.channel().Receive<SharedMessage>()).block;
    dead.Kill();
    const auto message = living.channel().Receive<SharedMessage>();
    bool happened = false;
    {
      // Now the descriptor of the dead owner's segment is needed.
      const FewDescriptors few(strategy == SharingStrategy::kFileSystem ? 0
                                                                        : 1);
      const auto interception = fault.Start();
      const auto error =
          ErrorOf([&] { Heap().Release(Heap().Receive(message).block); });
      happened = interception->Happened();
      // The descriptor of a segment that cannot be detached is closed.
      EXPECT_TRUE(error || Heap().Stats().detached == 1 ||
                  strategy == SharingStrategy::kFileSystem);
    }
    EXPECT_TRUE(HasContent(held, 1));
    const SharedBlock received = Heap().Receive(message).block;
    EXPECT_TRUE(HasContent(received, 1));
    EXPECT_TRUE(HasContent(held, 1));
    Heap().Release(received);
    Heap().Release(held);
    living.Kill();
    // The kernel may need a moment to end a process.
    EXPECT_TRUE(Eventually([] {
      Heap().Collect(0.0);
      return Heap().Stats().attached == 0;
    }));
    EXPECT_EQ(Heap().Stats().detached, 0);
    EXPECT_TRUE(Possessions::Now().mappings.empty());
    return happened;
  });
  EXPECT_GT(faults, 10);
}

TEST_BOTH(SharedHeapFaultTest, AnAllocationThatFailsHalfwayReleasesItsMemory) {
  const SharedBlock large = Heap().Allocate(strategy, 100 * kMiB);
  const std::string path = PathOf(MessageOf(large));
  Heap().Release(large);
  Heap().Collect(0.0);
  const uint64_t before = BytesOfFile(path);
  {
    const auto interception =
        Fault{"fallocate", 2, ENOSPC, Calls::kAllFromThenOn}.Start();
    EXPECT_EQ(Kind::kExhausted,
              KindOf([&] { Heap().Allocate(strategy, 100 * kMiB); }));
  }
  EXPECT_EQ(BytesOfFile(path), before);
  EXPECT_EQ(Heap().Allocate(strategy, 100 * kMiB).data, large.data);
}

ISOLATED_TEST(SharedHeapFaultTest, WithoutHandlersOfForkThereIsNoHeap) {
  {
    const Interception failing(
        "pthread_atfork", 1, Calls::kOne, [] { return ENOMEM; });
    EXPECT_THROW(SharedHeap::Instance(), std::bad_alloc);
    EXPECT_TRUE(failing.Happened());
  }
  Heap().Release(AllocateFilled(SharingStrategy::kFileSystem, 100, 1));
}

ISOLATED_TEST(SharedHeapFaultTest, ASystemWithoutDescriptionLocksIsExplained) {
  const Interception failing(
      "fcntl", 1, Calls::kAllFromThenOn, [] { return EINVAL; });
  const auto error =
      ErrorOf([] { Heap().Allocate(SharingStrategy::kFileSystem, 100); });
  ASSERT_EQ(KindOf(error), Kind::kUnavailable);
  EXPECT_NE(std::strstr(error->what(), "tensor.numpy()"), nullptr);
  EXPECT_FALSE(CanMakeSegments());
}

ISOLATED_TEST(SharedHeapFaultTest,
              AFailureIsNotTakenForASystemWithoutSegments) {
  EXPECT_TRUE(CanMakeSegments());
  const Interception failing(
      "fcntl", 1, Calls::kAllFromThenOn, [] { return ENOLCK; });
  EXPECT_TRUE(CanMakeSegments());
  EXPECT_TRUE(failing.Happened());
}

ISOLATED_TEST(SharedHeapFaultTest, AFullFolderIsExplained) {
  Heap().Release(AllocateFilled(SharingStrategy::kFileSystem, 100, 1));
  const auto interception =
      Fault{"fallocate", 1, ENOSPC, Calls::kAllFromThenOn}.Start();
  const auto error =
      ErrorOf([] { Heap().Allocate(SharingStrategy::kFileSystem, 3 * kMiB); });
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->kind(), Kind::kExhausted);
  const std::string text = error->what();
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "3.0 MiB", text);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "/dev/shm", text);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "--shm-size", text);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "file_descriptor", text);
}

}  // namespace
