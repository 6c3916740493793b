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

// The data that the ranks of a group exchange in operations.

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "test/cpp/phi/shared_memory_collectives/ranks.h"

namespace {

using namespace shared_memory_test;  // NOLINT(build/namespaces)
using phi::distributed::BufferLocation;
using phi::distributed::GroupLayout;
using CollectiveKind = CollectiveError::Kind;

class OperationTest : public shared_memory_test::SharedMemoryTestCase {};

constexpr int kManyOperations = 2000;

// Each rank has a different number in each operation, so data of an earlier or
// later operation would give a different sum.
uint64_t NumberOf(int rank, int operation) {
  return static_cast<uint64_t>(operation) << 20 | uint64_t{1} << rank;
}

uint64_t SumOf(int size, int operation) {
  uint64_t sum = 0;
  for (int rank = 0; rank < size; ++rank) sum += NumberOf(rank, operation);
  return sum;
}

void MeetOften(GroupMemory* group, uint64_t seed) {
  std::mt19937_64 random(seed + group->rank());
  for (int i = 0; i < kManyOperations; ++i) {
    if (random() % 64 == 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
    }
    ASSERT_EQ(Sum(group, NumberOf(group->rank(), i)), SumOf(group->size(), i));
  }
}

ISOLATED_TEST(OperationTest, EveryRankGetsThePublishedData) {
  for (int size : {1, 2, 3, 7}) {
    Ranks ranks(size, [](GroupMemory* group, const Channel&) {
      MeetOften(group, Seed());
    });
    ranks.Finish();
  }
}

ISOLATED_TEST(OperationTest, RanksThatNeverSpinGetThePublishedData) {
  GroupOptions options;
  options.spin = std::chrono::microseconds(0);
  Ranks ranks(
      3,
      [](GroupMemory* group, const Channel&) { MeetOften(group, Seed()); },
      options);
  ranks.Finish();
}

ISOLATED_TEST(OperationTest, TheLongestTimeoutDoesNotEndAWait) {
  Ranks ranks(2, [](GroupMemory* group, const Channel&) {
    if (group->rank() == 0) std::this_thread::sleep_for(kSoon);
    Meet(group, Milliseconds::max());
  });
  ranks.Finish();
}

ISOLATED_TEST(OperationTest, RanksOnThreadsGetThePublishedData) {
  const auto group = GroupInOneProcess(3);
  std::vector<std::thread> threads;
  for (const auto& rank : group) {
    threads.emplace_back([&] { MeetOften(rank.get(), Seed()); });
  }
  for (std::thread& thread : threads) thread.join();
}

// Runs operations that the other rank has not begun.
void GiveNumbers(GroupMemory* group, int operations, Milliseconds timeout) {
  for (int i = 0; i < operations; ++i) {
    Operation operation(group, SomeOperation(), timeout);
    std::memcpy(operation.inline_data(group->rank()), &i, sizeof(i));
    operation.Publish(1);
    operation.End();
  }
}

ISOLATED_TEST(OperationTest, ARankMayBeAheadByTheNumberOfEntries) {
  const int entries = GroupLayout(2, 0).entries(GroupLayout::kAllRanks);
  const auto group = GroupInOneProcess(2);
  GiveNumbers(group[0].get(), entries, kNever);
  for (int i = 0; i < entries; ++i) {
    Operation operation(group[1].get(), SomeOperation(), kNever);
    operation.WaitFor(0, 1);
    int number;
    std::memcpy(&number, operation.inline_data(0), sizeof(number));
    EXPECT_EQ(number, i);
    operation.End();
  }
}

ISOLATED_TEST(OperationTest, ARankIsNotAheadByMoreThanTheNumberOfEntries) {
  const int entries = GroupLayout(2, 0).entries(GroupLayout::kAllRanks);
  const auto group = GroupInOneProcess(2);
  GiveNumbers(group[0].get(), entries, kNever);
  const Outcome outcome =
      OutcomeOf([&] { GiveNumbers(group[0].get(), 1, kSoon); });
  EXPECT_TRUE(outcome.Is(CollectiveKind::kTimedOut, 1)) << outcome;
}

ISOLATED_TEST(OperationTest, APhaseIsPassedByALaterOneAndByTheEnd) {
  const auto group = GroupInOneProcess(2);
  Operation first(group[0].get(), SomeOperation(), kNever);
  Operation second(group[1].get(), SomeOperation(), kNever);
  second.Publish(7);
  first.WaitFor(1, 3);
  first.WaitForAll(7);
  second.End();
  first.WaitFor(1, phi::distributed::kEndPhase - 1);
  first.End();
}

ISOLATED_TEST(OperationTest, ALaterPhaseIsWaitedFor) {
  const auto group = GroupInOneProcess(2);
  Operation first(group[0].get(), SomeOperation(), kSoon);
  Operation second(group[1].get(), SomeOperation(), kNever);
  second.Publish(7);
  const Outcome outcome = OutcomeOf([&] { first.WaitFor(1, 8); });
  EXPECT_TRUE(outcome.Is(CollectiveKind::kTimedOut, 1)) << outcome;
}

ISOLATED_TEST(OperationTest, APhaseThatWouldCountAsTheEndIsRefused) {
  const auto group = GroupInOneProcess(2);
  Operation operation(group[0].get(), SomeOperation(), kNever);
  constexpr uint64_t kEnd = phi::distributed::kEndPhase;
  for (const uint64_t phase : {uint64_t{0}, kEnd, kEnd + 1}) {
    const Outcome outcome = OutcomeOf([&] { operation.Publish(phase); });
    EXPECT_TRUE(outcome.Is(CollectiveKind::kInvalid, 0)) << outcome;
    EXPECT_TRUE(outcome.Says("phase " + std::to_string(phase))) << outcome;
  }
  operation.Publish(kEnd - 1);
  operation.End();
  Meet(group[1].get());
}

ISOLATED_TEST(OperationTest, ARefusedOperationDoesNotFailTheGroup) {
  const auto group = GroupInOneProcess(2);
  for (const auto& rank : group) {
    Operation operation(rank.get(), SomeOperation(), kNever);
    const Outcome outcome =
        OutcomeOf([&] { operation.Refuse("has a reason."); });
    EXPECT_TRUE(outcome.Is(CollectiveKind::kInvalid, rank->rank())) << outcome;
    EXPECT_TRUE(
        outcome.Says("all_reduce number 1 (4096 bytes, float32, sum): "
                     "it has a reason."))
        << outcome;
  }
  std::thread other([&] { Meet(group[1].get()); });
  Meet(group[0].get());
  other.join();
}

ISOLATED_TEST(OperationTest, BufferLocationsReachTheOthersUnchanged) {
  const auto group = GroupInOneProcess(2);
  Operation first(group[0].get(), SomeOperation(), kNever);
  Operation second(group[1].get(), SomeOperation(), kNever);
  BufferLocation input = {BufferLocation::Where::kShared, 123, 456, "handle"};
  second.set_input(input);
  second.set_output({BufferLocation::Where::kInline, 7, 8, ""});
  second.Publish(1);
  first.WaitFor(1, 1);
  EXPECT_EQ(first.input_of(1).where, BufferLocation::Where::kShared);
  EXPECT_EQ(first.input_of(1).address, 123);
  EXPECT_EQ(first.input_of(1).bytes, 456);
  EXPECT_STREQ(first.input_of(1).handle, "handle");
  EXPECT_EQ(first.output_of(1).where, BufferLocation::Where::kInline);
  EXPECT_EQ(first.output_of(1).address, 7);
  first.End();
  second.End();
}

// Both ranks exchange a chunk per operation through their staging memory.
void ExchangeByStaging(GroupMemory* group, int operations) {
  const int rank = group->rank();
  for (int i = 0; i < operations; ++i) {
    Operation operation(group, SomeOperation(), kNever);
    std::memset(operation.own_staging(), 2 * i + rank, 64);
    operation.Publish(1);
    operation.WaitForAll(1);
    for (int b = 0; b < 64; ++b) {
      ASSERT_EQ(static_cast<uint8_t>(operation.staging_of(1 - rank)[b]),
                static_cast<uint8_t>(2 * i + 1 - rank));
    }
    operation.End();
  }
}

ISOLATED_TEST(OperationTest, StagingMemoryIsKeptUntilAllHaveReadIt) {
  Ranks ranks(2, [](GroupMemory* group, const Channel&) {
    ExchangeByStaging(group, kManyOperations);
  });
  ranks.Finish();
}

ISOLATED_TEST(OperationTest, StagingMemoryIsNotReusedBeforeAllHaveEnded) {
  const auto group = GroupInOneProcess(2);
  Operation reader(group[1].get(), SomeOperation(), kNever);
  Operation first(group[0].get(), SomeOperation(), kNever);
  first.own_staging();
  first.End();
  Operation second(group[0].get(), SomeOperation(), kSoon);
  const Outcome outcome = OutcomeOf([&] { second.own_staging(); });
  EXPECT_TRUE(outcome.Is(CollectiveKind::kTimedOut, 1)) << outcome;
}

// A large transfer from a rank in this process, which has begun.
class LargeTransfer {
 public:
  LargeTransfer(const std::unique_ptr<GroupMemory>& sender, int receiver)
      : operation_(sender.get(),
                   OperationInfo::Of("send", 0),
                   sender->rank(),
                   receiver,
                   kNever) {
    operation_.EnlargeStaging();
    staging_ = operation_.own_staging();
    bytes_ = operation_.staging_bytes();
  }

  const char* staging() const { return staging_; }
  bool has_block() const { return bytes_ == GroupLayout::kTransferBytes; }
  void End() { operation_.End(); }

 private:
  Operation operation_;
  const char* staging_;
  uint64_t bytes_;
};

void Receive(const std::unique_ptr<GroupMemory>& receiver, int sender) {
  Operation(receiver.get(),
            OperationInfo::Of("recv", 0),
            sender,
            receiver->rank(),
            kNever)
      .End();
}

// Returns how much memory the system has given to a group of this process.
uint64_t BytesInUse(const GroupMemory& group) {
  int fd = -1;
  REQUIRE_EQ(std::sscanf(group.id().c_str(), "%*u-%d", &fd), 1);
  struct stat file = {};
  REQUIRE_EQ(fstat(fd, &file), 0);
  constexpr int kBlock = 512;
  return uint64_t{kBlock} * file.st_blocks;
}

ISOLATED_TEST(OperationTest, LargeTransfersHaveAsMuchMemoryInAGroupOfAnySize) {
  for (const int size : {2, 16, 64}) {
    const auto group = GroupMemory::Create(size);
    LargeTransfer transfer(group, size - 1);
    EXPECT_TRUE(transfer.has_block()) << size;
    transfer.End();
  }
}

ISOLATED_TEST(OperationTest, TransferMemoryIsReservedWhenItIsFirstUsed) {
  const auto group = GroupInOneProcess(2);
  const uint64_t before = BytesInUse(*group[0]);
  for (int i = 0; i < 3; ++i) {
    LargeTransfer(group[0], 1).End();
    Receive(group[1], 0);
    EXPECT_EQ(BytesInUse(*group[0]), before + GroupLayout::kTransferBytes);
  }
}

ISOLATED_TEST(OperationTest, ABlockIsUsedAgainWhenItsReceiverHasReadIt) {
  const auto group = GroupInOneProcess(3);
  LargeTransfer first(group[0], 1);
  first.End();
  LargeTransfer second(group[0], 2);
  second.End();
  EXPECT_NE(second.staging(), first.staging());
  Receive(group[1], 0);
  LargeTransfer third(group[0], 2);
  third.End();
  EXPECT_EQ(third.staging(), first.staging());
}

ISOLATED_TEST(OperationTest, ATransferThatGetsNoBlockHasTheMemoryOfItsPair) {
  const int blocks = static_cast<int>(GroupLayout(20, 0).transfer_blocks());
  REQUIRE_TRUE(blocks < 19);
  const auto group = GroupInOneProcess(20);
  for (int receiver = 1; receiver < 20; ++receiver) {
    LargeTransfer transfer(group[0], receiver);
    EXPECT_EQ(transfer.has_block(), receiver <= blocks) << receiver;
    transfer.End();
  }
  Receive(group[5], 0);
  LargeTransfer next(group[0], 19);
  EXPECT_TRUE(next.has_block());
  next.End();
}

ISOLATED_TEST(OperationTest, PairsOfRanksMeetWithoutTheOthers) {
  Ranks ranks(3, [](GroupMemory* group, const Channel&) {
    for (uint64_t i = 0; i < kManyOperations; ++i) {
      if (group->rank() == 0) SendNumber(group, i, 2);
      if (group->rank() == 2) {
        ASSERT_EQ(ReceiveNumber(group, 0), i);
      }
    }
    Meet(group);
  });
  ranks.Finish();
}

ISOLATED_TEST(OperationTest, PairsAndAllRanksMeetConcurrentlyOnThreads) {
  Ranks ranks(3, [](GroupMemory* group, const Channel&) {
    const int next = (group->rank() + 1) % group->size();
    const int previous = (group->rank() + group->size() - 1) % group->size();
    std::thread sender([&] {
      for (int i = 0; i < kManyOperations; ++i) SendNumber(group, i, next);
    });
    std::thread receiver([&] {
      for (uint64_t i = 0; i < kManyOperations; ++i) {
        ASSERT_EQ(ReceiveNumber(group, previous), i);
      }
    });
    MeetOften(group, Seed());
    sender.join();
    receiver.join();
  });
  ranks.Finish();
}

ISOLATED_TEST(OperationTest, ThreadsOfOneRankTakeTurns) {
  constexpr int kThreads = 4;
  Ranks ranks(2, [](GroupMemory* group, const Channel&) {
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&] {
        for (int n = 0; n < kManyOperations / kThreads; ++n) {
          ASSERT_EQ(Sum(group, 1), 2);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
  ranks.Finish();
}

ISOLATED_TEST(OperationTest, GroupsOfOneProcessDoNotMeet) {
  Ranks ranks(2, [](GroupMemory* group, const Channel&) {
    const auto other = GroupInOneProcess(2);
    std::thread second([&] { MeetOften(other[1].get(), 1); });
    std::thread first([&] { MeetOften(other[0].get(), 1); });
    MeetOften(group, Seed());
    first.join();
    second.join();
  });
  ranks.Finish();
}

// Checks all parts of all ranks and channels.
TEST_F(OperationTest, NoPartOfTheMemoryOverlapsAnother) {
  for (int size : {1, 2, 3, 8, 65, GroupLayout::kMaxRanks}) {
    const GroupLayout layout(size, 5000);
    std::vector<std::pair<uint64_t, uint64_t>> parts;
    auto add = [&](uint64_t at, uint64_t bytes) {
      EXPECT_EQ(at % phi::distributed::kCacheLine, 0);
      EXPECT_GT(bytes, 0);
      parts.emplace_back(at, at + bytes);
    };
    add(0, sizeof(phi::distributed::GroupHeader));
    for (int rank = 0; rank < size; ++rank) {
      add(layout.RankStateAt(rank), sizeof(phi::distributed::RankState));
    }
    for (uint32_t channel = 0; channel < layout.channels(); ++channel) {
      for (int i = 0; i < layout.members(channel); ++i) {
        add(layout.MemberAt(channel, i),
            sizeof(phi::distributed::ChannelMember));
        for (uint64_t n = 1; n <= layout.entries(channel); ++n) {
          add(layout.EntryAt(channel, i, n),
              sizeof(phi::distributed::OperationEntry));
          if (channel == 0 || i == 0) {
            add(layout.InlineAt(channel, i, n), layout.inline_bytes(channel));
          }
        }
        if (channel == 0 || i == 0) {
          add(layout.StagingAt(channel, i), layout.staging_bytes(channel));
        }
      }
    }
    std::sort(parts.begin(), parts.end());
    for (size_t i = 1; i < parts.size(); ++i) {
      ASSERT_LE(parts[i - 1].second, parts[i].first) << size;
    }
    EXPECT_LE(parts.back().second, layout.total_bytes());
  }
}

TEST_F(OperationTest, EveryOrderedPairOfRanksHasItsOwnChannel) {
  for (int size : {2, 3, 8}) {
    const GroupLayout layout(size, 0);
    std::vector<bool> taken(layout.channels());
    for (int sender = 0; sender < size; ++sender) {
      for (int receiver = 0; receiver < size; ++receiver) {
        if (sender == receiver) continue;
        const uint32_t channel = layout.PairChannel(sender, receiver);
        ASSERT_LT(channel, layout.channels());
        EXPECT_NE(channel, GroupLayout::kAllRanks);
        EXPECT_FALSE(taken[channel]);
        taken[channel] = true;
        EXPECT_EQ(layout.RankOf(channel, 0), sender);
        EXPECT_EQ(layout.RankOf(channel, 1), receiver);
        EXPECT_EQ(layout.MemberOf(channel, sender), 0);
        EXPECT_EQ(layout.MemberOf(channel, receiver), 1);
      }
    }
  }
}

}  // namespace
