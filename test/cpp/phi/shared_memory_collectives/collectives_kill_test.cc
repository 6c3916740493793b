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

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>

#include "gtest/gtest.h"
#include "test/cpp/isolated_test.h"
#include "test/cpp/phi/shared_memory_collectives/collective_cases.h"
#include "test/cpp/phi/shared_memory_collectives/ranks.h"

// Ranks that are killed while all ranks run random operations. Each survivor
// must get the error, and no wrong result before it.
namespace shared_memory_test {

using phi::distributed::PeerMemory;

using CollectivesKillTest = SharedMemoryTestCase;

// SHARED_MEMORY_KILLS sets the number of kills, for longer runs.
int Kills() {
  const char* const given = std::getenv("SHARED_MEMORY_KILLS");
  return given ? std::atoi(given) : 40;
}

void RunUntilItFails(CaseRunner* runner,
                     uint64_t seed,
                     const Channel& channel) {
  channel.Signal();
  channel.Send(OutcomeOf([&] {
    Random random(seed);
    for (;;) runner->Run(RandomCase(&random, runner->size(), 100000));
  }));
}

void KillOneOf(int size, Buffers buffers, bool mappable, Random* random) {
  const uint64_t seed = (*random)();
  SharedArenas arenas(size, mappable);
  GroupOptions options;
  options.staging_bytes = 64 << 10;
  Ranks ranks(
      size,
      [&](GroupMemory* group, const Channel& channel) {
        CaseRunner runner(group, &arenas, buffers);
        RunUntilItFails(&runner, seed, channel);
      },
      options);
  for (int rank = 0; rank < size; ++rank) ranks.channel(rank).Await();
  const int victim = static_cast<int>((*random)() % size);
  usleep((*random)() % 20000);  // for zero or more operations
  ranks[victim].Kill();
  for (int rank = 0; rank < size; ++rank) {
    if (rank == victim) continue;
    const Outcome outcome = ranks.ReceiveOutcome(rank);
    ASSERT_TRUE(outcome.Is(CollectiveError::Kind::kDied, victim))
        << "Rank " << rank << " of " << size << ", seed " << seed << ": "
        << outcome;
    ranks[rank].Finish();
  }
}

void KillMany(Buffers buffers, bool mappable = true) {
  Random random(isolated_test::Seed());
  const int kills = Kills();
  for (int i = 0; i < kills; ++i) {
    KillOneOf(2 + i % 3, buffers, mappable, &random);
  }
}

// Shared buffers that cannot be mapped.
ISOLATED_TEST(CollectivesKillTest, SurvivorsOfDirectReadsGetTheError) {
  KillMany(Buffers::kShared, /*mappable=*/false);
}

ISOLATED_TEST(CollectivesKillTest, SurvivorsOfStagedOperationsGetTheError) {
  KillMany(Buffers::kPrivate);
}

// As the process group does: tensors in shared memory are mapped, and all
// others are staged.
ISOLATED_TEST(CollectivesKillTest, SurvivorsOfMappedAndStagedOperationsGetIt) {
  KillMany(Buffers::kEither);
}

// Checks that rank 0 can read memory of rank 1 before, but not after, `change`
// runs in rank 1.
void ExpectNotReadAfter(const std::function<void(const GroupMemory&)>& change) {
  Ranks ranks(2, [&](GroupMemory* group, const Channel&) {
    Meet(group);
    const PeerMemory memory(group, nullptr);
    uint64_t word = 0;
    const auto read = [&] {
      return memory.CopyFrom(1,
                             reinterpret_cast<uint64_t>(Kills),
                             sizeof(word),
                             reinterpret_cast<char*>(&word));
    };
    Operation barrier(group, OperationInfo::Of("barrier", 0), kNever);
    if (group->rank() == 0) {
      EXPECT_EQ(read(), "");
      barrier.Publish(1);
      barrier.End();
      EXPECT_TRUE(Eventually([&] { return !read().empty(); }));
    } else {
      barrier.WaitForAll(1);
      change(*group);
      pause();
    }
  });
  ranks[0].Finish();
  ranks[1].Kill();
}

ISOLATED_TEST(CollectivesKillTest, AnotherProgramOfAProcessIsNotRead) {
  ExpectNotReadAfter([](const GroupMemory&) {
    execl("/bin/sleep", "sleep", "1000", nullptr);
  });
}

// Simulates a process that reuses the ID of a rank's process, and has different
// memory at the same address.
ISOLATED_TEST(CollectivesKillTest, AProcessWithoutTheGroupIsNotRead) {
  ExpectNotReadAfter([](const GroupMemory& group) {
    void* const base = reinterpret_cast<void*>(group.base_of(1));
    const int protection = PROT_READ | PROT_WRITE;
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    REQUIRE_TRUE(mmap(base, getpagesize(), protection, flags, -1, 0) == base);
  });
}

}  // namespace shared_memory_test
