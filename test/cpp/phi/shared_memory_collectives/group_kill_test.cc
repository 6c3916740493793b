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

// Groups whose ranks run operations of all kinds until one rank is killed at a
// random instant. Every other rank gets correct results until then, and
// afterwards an error that names the killed rank; no resources are leaked.
//
// GROUP_KILLS is the number of killed ranks in all, 100 by default.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "test/cpp/phi/shared_memory_collectives/ranks.h"

namespace {

using namespace shared_memory_test;  // NOLINT(build/namespaces)

class GroupKillTest : public shared_memory_test::SharedMemoryTestCase {};

constexpr int kMostRanks = 4;
constexpr uint64_t kLongestPauseMicroseconds = 3000;

int Kills() {
  const char* const given = std::getenv("GROUP_KILLS");
  return given ? std::atoi(given) : 100;
}

// Returns the data of a rank in a round of an operation. Any rank can compute
// it.
uint8_t ByteOf(int rank, uint64_t number, uint64_t round) {
  return static_cast<uint8_t>(31 * rank + 7 * number + 3 * round + 1);
}

bool HasBytes(const char* data, uint64_t size, uint8_t byte) {
  for (uint64_t i = 0; i < size; ++i) {
    if (static_cast<uint8_t>(data[i]) != byte) return false;
  }
  return true;
}

void ExchangeInline(GroupMemory* group, uint64_t number, uint64_t size) {
  Operation operation(group, OperationInfo::Of("all_gather", size), kNever);
  std::memset(operation.inline_data(group->rank()),
              ByteOf(group->rank(), number, 0),
              size);
  operation.Publish(1);
  for (int rank = 0; rank < group->size(); ++rank) {
    operation.WaitFor(rank, 1);
    ASSERT_TRUE(
        HasBytes(operation.inline_data(rank), size, ByteOf(rank, number, 0)));
  }
  operation.End();
}

// The root waits for no other rank, unless it is too far ahead.
void Broadcast(GroupMemory* group, uint64_t number, uint64_t size, int root) {
  Operation operation(
      group, OperationInfo::Of("broadcast", size, "", "", root), kNever);
  if (group->rank() == root) {
    std::memset(operation.inline_data(root), ByteOf(root, number, 0), size);
    operation.Publish(1);
  } else {
    operation.WaitFor(root, 1);
    ASSERT_TRUE(
        HasBytes(operation.inline_data(root), size, ByteOf(root, number, 0)));
  }
  operation.End();
}

// Alternates between two windows of staging memory. A round writes to the
// window that all ranks have read in the round before the last.
void ExchangeByStaging(GroupMemory* group, uint64_t number, uint64_t size) {
  constexpr uint64_t kRounds = 5;
  Operation operation(group, OperationInfo::Of("all_to_all", size), kNever);
  char* const own = operation.own_staging();
  for (uint64_t round = 0; round < kRounds; ++round) {
    const uint64_t window = round % 2 * size;
    std::memset(own + window, ByteOf(group->rank(), number, round), size);
    operation.Publish(round + 1);
    for (int rank = 0; rank < group->size(); ++rank) {
      operation.WaitFor(rank, round + 1);
      const char* const data =
          rank == group->rank() ? own : operation.staging_of(rank);
      ASSERT_TRUE(HasBytes(data + window, size, ByteOf(rank, number, round)));
    }
  }
  operation.End();
}

void Pass(GroupMemory* group, uint64_t number) {
  if (group->size() == 1) return;
  const int next = (group->rank() + 1) % group->size();
  const int previous = (group->rank() + group->size() - 1) % group->size();
  SendNumber(group, number + group->rank(), next);
  ASSERT_EQ(ReceiveNumber(group, previous), number + previous);
}

// Runs random operations, the same ones on all ranks.
void Run(GroupMemory* group, uint64_t seed) {
  std::mt19937_64 random(seed);
  for (uint64_t number = 0;; ++number) {
    const uint64_t choice = random() % 4;
    const uint64_t size = 1 + random() % 4096;
    const int root = static_cast<int>(random() % group->size());
    if (choice == 0) ExchangeInline(group, number, size);
    if (choice == 1) Broadcast(group, number, size, root);
    if (choice == 2) ExchangeByStaging(group, number, size);
    if (choice == 3) Pass(group, number);
  }
}

ISOLATED_TEST(GroupKillTest, EveryOtherRankDetectsAKilledRank) {
  ASSERT_GT(Kills(), 0);
  const Possessions before = Possessions::Now();
  std::mt19937_64 random(Seed());
  std::vector<double> times;
  for (int kills = 0; kills < Kills(); ++kills) {
    const int size = 2 + random() % (kMostRanks - 1);
    const uint64_t seed = random();
    Ranks ranks(size, [&](GroupMemory* group, const Channel& channel) {
      Meet(group);
      channel.Signal();
      channel.Send(OutcomeOf([&] { Run(group, seed); }));
    });
    const int victim = random() % size;
    for (int rank = 0; rank < size; ++rank) ranks.channel(rank).Await();
    std::this_thread::sleep_for(
        std::chrono::microseconds(random() % kLongestPauseMicroseconds));
    const auto start = std::chrono::steady_clock::now();
    ranks[victim].Kill();
    for (int rank = 0; rank < size; ++rank) {
      if (rank == victim) continue;
      const Outcome outcome = ranks.ReceiveOutcome(rank);
      const std::chrono::duration<double, std::milli> time =
          std::chrono::steady_clock::now() - start;
      times.push_back(time.count());
      ASSERT_TRUE(outcome.Is(CollectiveError::Kind::kDied, victim)) << outcome;
      ranks[rank].Finish();
    }
  }
  std::sort(times.begin(), times.end());
  std::printf(
      "Ranks detected a death in %.1f ms (median), %.1f ms (99th percentile)."
      "\n",
      times[times.size() / 2],
      times[times.size() * 99 / 100]);
  EXPECT_EQ(Possessions::Now(), before);
}

}  // namespace
