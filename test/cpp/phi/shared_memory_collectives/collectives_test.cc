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

#include "paddle/phi/core/distributed/shared_memory/collectives.h"

#include <sys/mman.h>
#include <sys/prctl.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "paddle/phi/core/distributed/shared_memory/exchange.h"
#include "paddle/phi/core/distributed/shared_memory/group_layout.h"
#include "paddle/phi/core/distributed/shared_memory/group_memory.h"
#include "paddle/phi/core/distributed/shared_memory/peer_memory.h"
#include "test/cpp/isolated_test.h"
#include "test/cpp/phi/shared_memory_collectives/collective_cases.h"
#include "test/cpp/phi/shared_memory_collectives/ranks.h"

namespace shared_memory_test {

using phi::distributed::Exchange;
using phi::distributed::GroupLayout;
using phi::distributed::PeerMemory;
using phi::distributed::SharedMemoryHandle;
using phi::distributed::SharedMemoryResolver;
using phi::distributed::SizeOf;
using ErrorKind = CollectiveError::Kind;

using CollectivesTest = SharedMemoryTestCase;

constexpr int kMaxRanks = 4;
constexpr char kByte[] = "uint8";

// Returns options with less staging memory than the size of most buffers.
GroupOptions SmallStaging() {
  GroupOptions options;
  options.staging_bytes = 24 << 10;
  return options;
}

void RunOnRanks(int size,
                Buffers buffers,
                const std::function<void(CaseRunner*)>& body) {
  SharedArenas arenas(size);
  Ranks ranks(
      size,
      [&](GroupMemory* group, const Channel&) {
        CaseRunner runner(group, &arenas, buffers);
        body(&runner);
      },
      SmallStaging());
  ranks.Finish();
}

// Runs every operation once, and every reducing operation for all types and
// reductions, with `count` elements.
void RunAllCases(CaseRunner* runner, uint64_t count, int size) {
  Random random(isolated_test::Seed() + count);
  OperationCase operation{};
  operation.count = count;
  const auto run_kinds = [&](int first, int last) {
    for (int kind = first; kind <= last; ++kind) {
      operation.kind = static_cast<OperationCase::Kind>(kind);
      operation.root = static_cast<int>(random() % size);
      operation.in_place = random() % 2 == 0;
      operation.shift = random() % 2 == 0 ? 0 : random() % 16;
      operation.seed = random();
      runner->Run(operation);
    }
  };
  for (const auto& both : AllReductions()) {
    operation.type = both.type;
    operation.reduction = both.reduction;
    run_kinds(OperationCase::kAllReduce, OperationCase::kReduceScatter);
  }
  operation.type = ElementType::kUInt8;
  run_kinds(OperationCase::kBroadcast, OperationCase::kBarrier);
}

void RunAllCasesOnUpToFourRanks(Buffers buffers) {
  for (int size = 1; size <= kMaxRanks; ++size) {
    RunOnRanks(size, buffers, [&](CaseRunner* runner) {
      for (const uint64_t count : {0, 1, 3, 1000, 4097}) {
        RunAllCases(runner, count, size);
      }
    });
  }
}

// Runs sizes around all thresholds: a part's alignment, the inline data, a
// window of staging memory for one piece and for several, all staging memory,
// the same of transfer memory, and the block that is reduced at a time.
void RunSizesAtThresholds(Buffers buffers) {
  const uint64_t staging = SmallStaging().staging_bytes;
  for (const int size : {2, 3}) {
    RunOnRanks(size, buffers, [&](CaseRunner* runner) {
      Random random(isolated_test::Seed());
      for (const uint64_t threshold : {uint64_t{64},
                                       uint64_t{16} << 10,
                                       (uint64_t{16} << 10) / size,
                                       staging / 2,
                                       staging / 2 / (size - 1),
                                       staging,
                                       5 * staging,
                                       GroupLayout::kTransferBytes / 2,
                                       GroupLayout::kTransferBytes,
                                       uint64_t{512} << 10}) {
        for (const int difference : {-1, 0, 1}) {
          OperationCase operation{};
          operation.type = ElementType::kInt8;
          operation.count = threshold + difference;
          for (int kind = 0; kind < OperationCase::kKinds; ++kind) {
            operation.kind = static_cast<OperationCase::Kind>(kind);
            operation.root = static_cast<int>(random() % size);
            operation.in_place = random() % 2 == 0;
            operation.seed = random();
            runner->Run(operation);
          }
        }
      }
    });
  }
}

void RunRandomCases(Buffers buffers, int number) {
  for (int size = 2; size <= kMaxRanks; ++size) {
    RunOnRanks(size, buffers, [&](CaseRunner* runner) {
      Random random(isolated_test::Seed() + size);
      for (int i = 0; i < number; ++i) {
        runner->Run(RandomCase(&random, size, 200000));
      }
    });
  }
}

ISOLATED_TEST(CollectivesTest, AllCasesInMappedBuffers) {
  RunAllCasesOnUpToFourRanks(Buffers::kShared);
}

ISOLATED_TEST(CollectivesTest, AllCasesStaged) {
  RunAllCasesOnUpToFourRanks(Buffers::kPrivate);
}

ISOLATED_TEST(CollectivesTest, SizesAtThresholdsInMappedBuffers) {
  RunSizesAtThresholds(Buffers::kShared);
}

ISOLATED_TEST(CollectivesTest, SizesAtThresholdsStaged) {
  RunSizesAtThresholds(Buffers::kPrivate);
}

ISOLATED_TEST(CollectivesTest, RandomOperationsMappedOrStaged) {
  RunRandomCases(Buffers::kEither, 60);
}

// Gathers more than 4 MiB, after which a copy checks whether the group has
// failed.
void RunLongCopy(Buffers buffers) {
  RunOnRanks(2, buffers, [](CaseRunner* runner) {
    OperationCase operation{};
    operation.kind = OperationCase::kAllGather;
    operation.type = ElementType::kUInt8;
    operation.count = (5 << 20) + 3;
    runner->Run(operation);
  });
}

ISOLATED_TEST(CollectivesTest, ALongCopyOutOfAMappedBuffer) {
  RunLongCopy(Buffers::kShared);
}

// Reduces buffers that do not fit into a cache, and end in a part of a block.
void RunBlocksOfAnAllReduce(Buffers buffers) {
  RunOnRanks(3, buffers, [&](CaseRunner* runner) {
    OperationCase operation{};
    operation.kind = OperationCase::kAllReduce;
    operation.type = ElementType::kInt64;
    operation.in_place = true;
    operation.count = (24 << 20) / sizeof(int64_t) + 1;
    runner->Run(operation);
  });
}

ISOLATED_TEST(CollectivesTest, BlocksOfAnAllReduceInMappedBuffers) {
  RunBlocksOfAnAllReduce(Buffers::kShared);
}

ISOLATED_TEST(CollectivesTest, BlocksOfAnAllReduceStaged) {
  RunBlocksOfAnAllReduce(Buffers::kPrivate);
}

// Finds no memory, and calls a function first.
class ResolverThatCalls : public SharedMemoryResolver {
 public:
  explicit ResolverThatCalls(std::function<void()> call)
      : call_(std::move(call)) {}
  std::optional<SharedMemoryHandle> Find(const void*, uint64_t) override {
    call_();
    return std::nullopt;
  }
  std::shared_ptr<const void> Map(const SharedMemoryHandle&,
                                  uint64_t) override {
    return nullptr;
  }
  std::optional<bool> IsKept(const SharedMemoryHandle&, uint64_t) override {
    return std::nullopt;
  }

 private:
  std::function<void()> call_;
};

ISOLATED_TEST(CollectivesTest, AllBlocksOfAnAllReduceHaveOneTimeout) {
  constexpr Milliseconds kTimeout{2000};
  constexpr Milliseconds kFirstBlock{1500};
  const auto group = GroupInOneProcess(2);
  const auto all_reduce = [&](int rank,
                              const std::function<void(int)>& in_block,
                              Milliseconds timeout) {
    // Each block has an input and an output to find.
    int found = 0;
    Collectives collectives(
        group[rank].get(),
        std::make_shared<ResolverThatCalls>([&found, &in_block] {
          if (found % 2 == 0) in_block(found / 2);
          ++found;
        }),
        kNever);
    std::vector<char> data(40 << 20);
    return OutcomeOf([&] {
      collectives.AllReduce(data.data(),
                            data.data(),
                            data.size(),
                            ElementType::kInt8,
                            Reduction::kSum,
                            timeout);
    });
  };
  std::promise<void> timed_out;
  std::thread late([&] {
    all_reduce(
        1,
        [&](int block) {
          if (block == 1) timed_out.get_future().wait();
        },
        kNever);
  });
  std::chrono::steady_clock::time_point begin;
  const Outcome outcome = all_reduce(
      0,
      [&](int block) {
        if (block > 0) return;
        begin = std::chrono::steady_clock::now();
        std::this_thread::sleep_for(kFirstBlock);
      },
      kTimeout);
  const auto passed = std::chrono::steady_clock::now() - begin;
  timed_out.set_value();
  late.join();
  EXPECT_TRUE(outcome.Is(ErrorKind::kTimedOut, 1)) << outcome;
  EXPECT_TRUE(outcome.Says("waited 2000 ms")) << outcome;
  EXPECT_LT(passed, kFirstBlock + kTimeout);
}

ISOLATED_TEST(CollectivesTest, AnOperationReturnsAfterTheLastReadOfItsBuffer) {
  const auto group = GroupInOneProcess(2);
  const auto arenas = std::make_shared<SharedArenas>(2);
  std::thread other([&] { Collectives(group[1].get(), arenas, kNever); });
  Collectives owner(group[0].get(), arenas, kNever);
  other.join();
  constexpr uint64_t kBytes = 1000000;
  Operation reader(group[1].get(),
                   OperationInfo::Of("broadcast", kBytes, kByte, "", 0),
                   kNever);
  reader.Publish(1);  // It may read until it ends.
  const Outcome outcome = OutcomeOf(
      [&] { owner.Broadcast(arenas->of_rank(0), kBytes, kByte, 0, kSoon); });
  EXPECT_TRUE(outcome.Is(ErrorKind::kTimedOut, 1)) << outcome;
}

// What two ranks' ends of an operation threw.
struct Ends {
  Outcome reader;
  Outcome owner;
};

// Reads a buffer of another rank in place, and calls a function before the read
// ends. The function gets the future end of the owner's operation.
Ends ReadInPlace(
    const std::shared_ptr<SharedArenas>& arenas,
    const std::function<void(GroupMemory* owner,
                             const std::shared_future<Outcome>& end)>& then) {
  constexpr uint64_t kBytes = 1000000;
  const auto group = GroupInOneProcess(2);
  const OperationInfo info =
      OperationInfo::Of("broadcast", kBytes, kByte, "", 0);
  const PeerMemory memory_of_owner(group[0].get(), arenas);
  const PeerMemory memory_of_reader(group[1].get(), arenas);
  const std::shared_future<Outcome> owner =
      std::async(std::launch::async, [&] {
        Operation operation(group[0].get(), info, kNever);
        Exchange exchange(&operation, memory_of_owner, {1});
        exchange.Start({{{arenas->of_rank(0), {kBytes}}, 1, kBytes}});
        exchange.Run([](int) { return 0; }, [](uint64_t, uint64_t) {});
        return OutcomeOf([&] { exchange.Finish(); });
      }).share();
  Operation operation(group[1].get(), info, kNever);
  Exchange exchange(&operation, memory_of_reader, {0});
  exchange.Start({{{}, 1, kBytes}});
  std::vector<char> data(kBytes);
  exchange.Run([](int) { return 0; },
               [&](uint64_t begin, uint64_t end) {
                 exchange.Copy(0, begin, end - begin, data.data());
                 then(group[0].get(), owner);
               });
  const Outcome reader = OutcomeOf([&] { exchange.Finish(); });
  return {reader, owner.get()};
}

// Lets the owner's operation fail through `fail` before the read ends. Its
// caller may then change the buffer. Returns what the end of the reading rank's
// operation threw.
Outcome ReadWhileTheOwnerFails(const std::function<void(GroupMemory*)>& fail,
                               bool mappable) {
  const Ends ends =
      ReadInPlace(std::make_shared<SharedArenas>(2, mappable),
                  [&](GroupMemory* owner, const auto& end_of_owner) {
                    fail(owner);
                    end_of_owner.wait();
                  });
  EXPECT_TRUE(ends.owner.failed) << ends.owner;
  return ends.reader;
}

void AbortGroup(GroupMemory* group) { group->Abort(0, "for a test"); }
void LeaveGroup(GroupMemory* group) { group->Leave(); }

ISOLATED_TEST(CollectivesTest, AReadInPlaceFailsIfTheOwnersOperationFailed) {
  const Outcome outcome = ReadWhileTheOwnerFails(AbortGroup, true);
  EXPECT_TRUE(outcome.Is(ErrorKind::kAborted, 0)) << outcome;
}

ISOLATED_TEST(CollectivesTest, ADirectReadFailsIfTheOwnersOperationFailed) {
  const Outcome outcome = ReadWhileTheOwnerFails(AbortGroup, false);
  EXPECT_TRUE(outcome.Is(ErrorKind::kAborted, 0)) << outcome;
}

ISOLATED_TEST(CollectivesTest, AReadInPlaceFailsIfTheOwnerLeft) {
  const Outcome outcome = ReadWhileTheOwnerFails(LeaveGroup, true);
  EXPECT_TRUE(outcome.Is(ErrorKind::kLeft, 0)) << outcome;
}

// The owner may have been killed, although its lock in the group is still held.
ISOLATED_TEST(CollectivesTest, AReadInPlaceFailsIfTheMemoryWasFreed) {
  const auto arenas = std::make_shared<SharedArenas>(2);
  const Ends ends =
      ReadInPlace(arenas, [&](GroupMemory*, const auto&) { arenas->Free(); });
  EXPECT_TRUE(ends.reader.Is(ErrorKind::kAborted, 0)) << ends.reader;
  EXPECT_TRUE(ends.reader.Says("it was freed")) << ends.reader;
  EXPECT_TRUE(ends.owner.Is(ErrorKind::kAborted, 0)) << ends.owner;
}

ISOLATED_TEST(CollectivesTest, ABufferInSharedMemoryIsReadWhereItIs) {
  SharedArenas arenas(2);
  Ranks ranks(2, [&](GroupMemory* group, const Channel&) {
    CaseRunner runner(group, &arenas, Buffers::kShared);
    OperationCase operation{};
    operation.type = ElementType::kFloat32;
    operation.count = 100000;
    runner.Run(operation);
    EXPECT_EQ(arenas.maps(), 2);  // the input and the output
  });
  ranks.Finish();
}

ISOLATED_TEST(CollectivesTest, BuffersThatCannotBeMappedAreReadDirectly) {
  SharedArenas arenas(2, /*mappable=*/false);
  Ranks ranks(2, [&](GroupMemory* group, const Channel&) {
    CaseRunner runner(group, &arenas, Buffers::kShared);
    RunAllCases(&runner, 20000, 2);  // too many for the inline data
  });
  ranks.Finish();
}

// Gives up privileges. Without them, a process cannot read the memory of one
// that is not dumpable, such as this one.
void ForbidDirectReads() {
  REQUIRE_EQ(setresgid(65534, 65534, 65534), 0);
  REQUIRE_EQ(setresuid(65534, 65534, 65534), 0);
  REQUIRE_EQ(prctl(PR_SET_DUMPABLE, 0), 0);
}

ISOLATED_TEST(CollectivesTest, StagingNeedsNoDirectReads) {
  if (geteuid() != 0) GTEST_SKIP() << "needs to give up privileges of root";
  Ranks ranks(2, [&](GroupMemory* group, const Channel&) {
    ForbidDirectReads();
    Collectives collectives(group, {}, kNever);
    std::vector<float> data(100000, 1.5f);
    collectives.AllReduce(data.data(),
                          data.data(),
                          data.size(),
                          ElementType::kFloat32,
                          Reduction::kSum,
                          kNever);
    EXPECT_EQ(data, std::vector<float>(data.size(), 3.0f));
  });
  ranks.Finish();
}

ISOLATED_TEST(CollectivesTest, ABufferThatCanBeNeitherMappedNorReadIsAnError) {
  if (geteuid() != 0) GTEST_SKIP() << "needs to give up privileges of root";
  const auto arenas = std::make_shared<SharedArenas>(2, /*mappable=*/false);
  Ranks ranks(2, [&](GroupMemory* group, const Channel&) {
    ForbidDirectReads();
    Collectives collectives(group, arenas, kNever);
    std::vector<char> all(2000000);
    const Outcome outcome = OutcomeOf([&] {
      collectives.AllGather(arenas->of_rank(group->rank()),
                            all.data(),
                            all.size() / 2,
                            kByte,
                            kNever);
    });
    EXPECT_TRUE(outcome.failed && outcome.kind == ErrorKind::kAborted)
        << outcome;
    EXPECT_TRUE(outcome.Says("cannot be mapped; process_vm_readv")) << outcome;
  });
  ranks.Finish();
}

ISOLATED_TEST(CollectivesTest, AnInvalidArgumentDoesNotFailTheGroup) {
  Ranks ranks(2, [&](GroupMemory* group, const Channel&) {
    Collectives collectives(group, {}, kNever);
    char data[64] = {};
    const auto expect_invalid = [&](const std::function<void()>& call) {
      const Outcome outcome = OutcomeOf(call);
      EXPECT_TRUE(outcome.failed && outcome.kind == ErrorKind::kInvalid)
          << outcome;
    };
    expect_invalid([&] { collectives.Broadcast(data, 64, kByte, 2, kNever); });
    expect_invalid([&] { collectives.Broadcast(data, 64, kByte, -1, kNever); });
    expect_invalid(
        [&] { collectives.Send(data, 64, kByte, group->rank(), kNever); });
    expect_invalid(
        [&] { collectives.Recv(data, 64, kByte, group->rank(), kNever); });
    expect_invalid([&] {
      collectives.AllReduce(
          data, data, 4, ElementType::kComplex64, Reduction::kMaximum, kNever);
    });
    expect_invalid([&] {
      collectives.AllReduce(
          data, data, 4, ElementType::kInt64, Reduction::kAverage, kNever);
    });
    expect_invalid(
        [&] { collectives.AllToAll(data, {1}, data, {1}, kByte, kNever); });
    collectives.Barrier(kNever);
  });
  ranks.Finish();
}

ISOLATED_TEST(CollectivesTest, SizesOfAllToAllThatDisagreeAreAnError) {
  Ranks ranks(3, [&](GroupMemory* group, const Channel&) {
    Collectives collectives(group, {}, kNever);
    const uint64_t expected = group->rank() == 2 ? 9 : 8;  // from rank 1
    char in[64] = {};
    char out[64];
    const Outcome outcome = OutcomeOf([&] {
      collectives.AllToAll(in, {8, 8, 8}, out, {8, expected, 8}, kByte, kNever);
    });
    EXPECT_TRUE(outcome.Is(ErrorKind::kAborted, 1)) << outcome;
    EXPECT_TRUE(outcome.Says("rank 1 sends 8 bytes to rank 2, which expects 9"))
        << outcome;
  });
  ranks.Finish();
}

ISOLATED_TEST(CollectivesTest, DifferentOperationsAreAnErrorThatNamesBoth) {
  Ranks ranks(2, [&](GroupMemory* group, const Channel&) {
    Collectives collectives(group, {}, kNever);
    std::vector<float> data(4);
    const Outcome outcome = OutcomeOf([&] {
      if (group->rank() == 0) {
        collectives.AllReduce(data.data(),
                              data.data(),
                              4,
                              ElementType::kFloat32,
                              Reduction::kSum,
                              kNever);
      } else {
        collectives.Broadcast(data.data(), 16, "float32", 0, kNever);
      }
    });
    EXPECT_TRUE(outcome.failed && outcome.kind == ErrorKind::kMismatched)
        << outcome;
    EXPECT_TRUE(outcome.Says("all_reduce")) << outcome;
    EXPECT_TRUE(outcome.Says("broadcast")) << outcome;
  });
  ranks.Finish();
}

ISOLATED_TEST(CollectivesTest, AMessageOfAnotherSizeIsAnError) {
  Ranks ranks(2, [&](GroupMemory* group, const Channel&) {
    Collectives collectives(group, {}, kNever);
    char data[64] = {};
    const Outcome outcome = OutcomeOf([&] {
      if (group->rank() == 0) {
        collectives.Send(data, 64, kByte, 1, kNever);
      } else {
        collectives.Recv(data, 32, kByte, 0, kNever);
      }
    });
    EXPECT_TRUE(outcome.failed && outcome.kind == ErrorKind::kMismatched)
        << outcome;
  });
  ranks.Finish();
}

// Without the types, the ranks would reinterpret each other's bytes: the sizes
// are equal.
ISOLATED_TEST(CollectivesTest, DifferentTypesAreAnErrorInEveryOperation) {
  using Call = std::function<void(
      Collectives*, int rank, char* in, char* out, const std::string& type)>;
  const std::vector<std::pair<std::string, Call>> calls = {
      {"broadcast",
       [](auto* group, int, char* in, char*, const auto& type) {
         group->Broadcast(in, 8, type, 0, kNever);
       }},
      {"all_gather",
       [](auto* group, int, char* in, char* out, const auto& type) {
         group->AllGather(in, out, 8, type, kNever);
       }},
      {"gather",
       [](auto* group, int, char* in, char* out, const auto& type) {
         group->Gather(in, out, 8, type, 0, kNever);
       }},
      {"scatter",
       [](auto* group, int, char* in, char* out, const auto& type) {
         group->Scatter(in, out, 8, type, 0, kNever);
       }},
      {"alltoall",
       [](auto* group, int, char* in, char* out, const auto& type) {
         group->AllToAll(in, {8, 8}, out, {8, 8}, type, kNever);
       }},
      {"recv",
       [](auto* group, int rank, char* in, char* out, const auto& type) {
         if (rank == 0) return group->Send(in, 8, type, 1, kNever);
         group->Recv(out, 8, type, 0, kNever);
       }},
  };
  for (const auto& [name, call] : calls) {
    Ranks ranks(
        2, [&, call = call](GroupMemory* group, const Channel& channel) {
          Collectives collectives(group, {}, kNever);
          char in[16] = {};
          char out[16] = {};
          const char* const type =
              group->rank() == 0 ? "float32" : "float8_e4m3fn";
          channel.Send(OutcomeOf(
              [&] { call(&collectives, group->rank(), in, out, type); }));
        });
    for (int rank = 0; rank < 2; ++rank) {
      const Outcome outcome = ranks.ReceiveOutcome(rank);
      EXPECT_TRUE(outcome.failed && outcome.kind == ErrorKind::kMismatched)
          << name << ": " << outcome;
      for (const std::string& part :
           {name, std::string("float32"), std::string("float8_e4m3fn")}) {
        EXPECT_TRUE(outcome.Says(part)) << part << " is not in: " << outcome;
      }
    }
    ranks.Finish();
  }
}

// Returns a buffer of which a rank reads only the first window, so that it
// takes no memory.
void* UntouchedMemory(uint64_t bytes) {
  void* const data = mmap(nullptr,
                          bytes,
                          PROT_READ,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                          -1,
                          0);
  REQUIRE_TRUE(data != MAP_FAILED);
  return data;
}

// An operation that needs more rounds than there are phases. It must not run:
// the phase would overflow, and ranks would read windows before they are ready.
ISOLATED_TEST(CollectivesTest, MoreRoundsThanPhasesAreAnErrorOfTheCall) {
  constexpr uint64_t kWindow = 2048;
  constexpr uint64_t kBytes = kWindow * phi::distributed::kEndPhase;
  void* const data = UntouchedMemory(kBytes);
  GroupOptions options;
  options.staging_bytes = 2 * kWindow;
  Ranks ranks(
      2,
      [&](GroupMemory* group, const Channel&) {
        Collectives collectives(group, {}, kNever);
        const Outcome outcome = OutcomeOf(
            [&] { collectives.Broadcast(data, kBytes, kByte, 0, kNever); });
        EXPECT_TRUE(outcome.failed && outcome.kind == ErrorKind::kInvalid)
            << outcome;
        EXPECT_TRUE(outcome.Says("broadcast number")) << outcome;
        EXPECT_TRUE(outcome.Says(std::to_string(kBytes) +
                                 " bytes from a rank "
                                 "in windows of 2048 bytes"))
            << outcome;
        EXPECT_TRUE(outcome.Says("at least 2 parts")) << outcome;
        // The group is still usable.
        std::vector<char> small(100000, static_cast<char>(1 - group->rank()));
        collectives.Broadcast(small.data(), small.size(), kByte, 0, kNever);
        EXPECT_EQ(small, std::vector<char>(small.size(), 1));
      },
      options);
  ranks.Finish();
}

// As in an asynchronous group: two threads send and receive, concurrently with
// collective operations.
ISOLATED_TEST(CollectivesTest, ThreadsSendReceiveAndReduceConcurrently) {
  Ranks ranks(2, [&](GroupMemory* group, const Channel&) {
    SendReceiveAndReduceOnThreads(group, 100000, 50);
  });
  ranks.Finish();
}

// The error of a message that is too large states the size of the windows.
ISOLATED_TEST(CollectivesTest, WindowsOfALargeMessageDoNotShrinkInALargeGroup) {
  constexpr uint64_t kWindow = GroupLayout::kTransferBytes / 2;
  constexpr uint64_t kBytes = kWindow * phi::distributed::kEndPhase;
  void* const data = UntouchedMemory(kBytes);
  RunOnThreads(64, [&](GroupMemory* group, Collectives* collectives) {
    const Outcome outcome = OutcomeOf([&] {
      if (group->rank() == 0) {
        collectives->Send(data, kBytes, kByte, 1, kNever);
      } else if (group->rank() == 1) {
        collectives->Recv(data, kBytes, kByte, 0, kNever);
      }
    });
    EXPECT_EQ(outcome.Says("in windows of " + std::to_string(kWindow)),
              group->rank() < 2)
        << outcome;
    // The group is still usable.
    collectives->Barrier(kNever);
  });
}

}  // namespace shared_memory_test
