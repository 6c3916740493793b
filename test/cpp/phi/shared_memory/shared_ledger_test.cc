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

// Each operation of the reference counts, on memory that is not a segment.

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

#include "paddle/phi/core/memory/allocation/shared_memory/shared_ledger.h"
#include "test/cpp/phi/shared_memory/shared_memory_test_case.h"

namespace {

using paddle::memory::allocation::kSharedPage;
using paddle::memory::allocation::MessageLife;
using paddle::memory::allocation::SharedLedger;
using paddle::memory::allocation::SharedTicket;

class SharedLedgerTest : public shared_memory_test::SharedMemoryTestCase {};

constexpr uint32_t kOwner = SharedLedger::kOwnerSlot;
constexpr uint32_t kOther = 77;  // not in the first word of holders
constexpr uint64_t kAllTime = UINT64_MAX;
constexpr uint64_t kReserve = uint64_t{16} << 20;

struct alignas(64) Line {
  std::array<uint64_t, 8> words;
};

struct Memory {
  explicit Memory(size_t bytes) : lines(bytes / sizeof(Line)) {}
  std::vector<Line> lines;
};

// A ledger with some blocks, in zeroed memory.
class Book : private Memory, public SharedLedger {
 public:
  explicit Book(int blocks)
      : Memory(HeaderBytes(kReserve) + blocks * BlockBytes()),
        SharedLedger(lines.data(), kReserve) {
    Format(1, 2);
    for (int i = 0; i < blocks; ++i) AppendBlock(i * 64, 64);
  }
  Book(const Book&) = delete;
  Book& operator=(const Book&) = delete;

  // Leaves the block like an owner that was killed inside TryFree.
  void AbandonDecision(uint32_t block) {
    Line& line =
        lines[(HeaderBytes(kReserve) + block * BlockBytes()) / sizeof(Line)];
    line.words[0] |= 1;
  }

  SharedLedger::Start Begin() const {
    SharedLedger::Start start;
    std::memcpy(&start, lines.data(), sizeof(start));
    return start;
  }
};

ISOLATED_TEST(SharedLedgerTest, ZeroedMemoryIsNotALedger) {
  EXPECT_FALSE(SharedLedger::Start{}.Valid());
}

ISOLATED_TEST(SharedLedgerTest, ALedgerWithImpossibleNumbersIsInvalid) {
  using Start = SharedLedger::Start;
  const std::function<void(Start*)> damages[] = {
      [](Start* start) { start->magic ^= 1; },
      [](Start* start) { start->reserve = 0; },
      [](Start* start) { start->reserve += 1; },
      [](Start* start) { start->reserve = SharedLedger::kMinReserve / 2; },
      [](Start* start) { start->reserve = SharedLedger::kMaxReserve * 2; },
      [](Start* start) { start->slot_limit = SharedLedger::kSlots + 1; },
      [](Start* start) {
        start->block_count = SharedLedger::MaxBlocks(kReserve) + 1;
      }};
  const Start start = Book(3).Begin();
  EXPECT_TRUE(start.Valid());
  EXPECT_EQ(
      start.UsedBytes(),
      SharedLedger::HeaderBytes(kReserve) + 3 * SharedLedger::BlockBytes());
  for (const auto& damage : damages) {
    Start damaged = start;
    damage(&damaged);
    EXPECT_FALSE(damaged.Valid());
  }
}

ISOLATED_TEST(SharedLedgerTest, TheRoomForBlocksGrowsWithTheSegment) {
  for (uint64_t reserve : {SharedLedger::kMinReserve,
                           kReserve,
                           uint64_t{1} << 36,
                           SharedLedger::kMaxReserve}) {
    const uint64_t blocks = SharedLedger::MaxBlocks(reserve);
    EXPECT_GE(blocks, 1024);
    EXPECT_EQ(blocks % 64, 0);
    EXPECT_LE(blocks, SharedLedger::kMaxBlocks);
    EXPECT_LT(SharedLedger::LedgerBytes(reserve), reserve / 3);
    EXPECT_GE(SharedLedger::LedgerBytes(reserve),
              SharedLedger::HeaderBytes(reserve) +
                  blocks * SharedLedger::BlockBytes());
  }
  // A process with one small tensor needs this memory.
  EXPECT_LE(SharedLedger::HeaderBytes(kReserve), 2 * kSharedPage);
}

ISOLATED_TEST(SharedLedgerTest, ALedgerIdentifiesItsSegment) {
  Book ledger(0);
  EXPECT_TRUE(ledger.Begin().Valid());
  EXPECT_EQ(ledger.Begin().tree, 1);
  EXPECT_EQ(ledger.Begin().segment, 2);
  EXPECT_EQ(ledger.Begin().reserve, kReserve);
}

ISOLATED_TEST(SharedLedgerTest, ASlotKeepsItsStateAndItsProcess) {
  Book ledger(0);
  EXPECT_EQ(ledger.slot_state(kOther), SharedLedger::kFree);
  ledger.SetSlot(kOther, SharedLedger::kTaken, 4711);
  EXPECT_EQ(ledger.slot_state(kOther), SharedLedger::kTaken);
  EXPECT_EQ(ledger.slot_pid(kOther), 4711);
}

ISOLATED_TEST(SharedLedgerTest, TheSlotLimitCoversTheHighestSlotEverTaken) {
  Book ledger(0);
  EXPECT_EQ(ledger.slot_limit(), kOwner + 1);
  ledger.SetSlot(kOther, SharedLedger::kTaken, 1);
  ledger.SetSlot(kOther - 9, SharedLedger::kTaken, 1);
  ledger.SetSlot(kOther, SharedLedger::kFree, 0);
  EXPECT_EQ(ledger.slot_limit(), kOther + 1);
}

ISOLATED_TEST(SharedLedgerTest, SetOrphanedOrphansALedger) {
  Book ledger(0);
  EXPECT_FALSE(ledger.orphaned());
  ledger.SetOrphaned();
  EXPECT_TRUE(ledger.orphaned());
}

ISOLATED_TEST(SharedLedgerTest, ABlockHasTheRangeItWasAppendedWith) {
  Book ledger(3);
  EXPECT_EQ(ledger.block_count(), 3);
  EXPECT_EQ(ledger.offset(2), 128);
  EXPECT_EQ(ledger.capacity(2), 64);
  EXPECT_EQ(ledger.offset(1), 64);
  EXPECT_EQ(ledger.capacity(1), 64);
}

ISOLATED_TEST(SharedLedgerTest, EachHolderKeepsABlock) {
  Book ledger(1);
  for (uint32_t slot : {SharedLedger::kPermanentSlot, kOwner, kOther, 511u}) {
    ledger.AddHolder(0, slot);
    EXPECT_TRUE(ledger.Referenced(0));
    EXPECT_FALSE(ledger.TryFree(0));
    ledger.ReleaseHolder(0, slot);
    EXPECT_FALSE(ledger.Referenced(0));
  }
}

ISOLATED_TEST(SharedLedgerTest, ABlockOutlivesTheFirstOfTwoHolders) {
  Book ledger(1);
  ledger.AddHolder(0, kOwner);
  ledger.AddHolder(0, kOther);
  ledger.ReleaseHolder(0, kOwner);
  EXPECT_FALSE(ledger.TryFree(0));
  ledger.ReleaseHolder(0, kOther);
  EXPECT_TRUE(ledger.TryFree(0));
}

ISOLATED_TEST(SharedLedgerTest, FreeingEndsAGenerationAndNotFreeingKeepsIt) {
  Book ledger(1);
  const uint64_t first = ledger.generation(0);
  ledger.AddHolder(0, kOwner);
  EXPECT_FALSE(ledger.TryFree(0));
  EXPECT_EQ(ledger.generation(0), first);
  EXPECT_TRUE(ledger.HasGeneration(0, first));
  ledger.ReleaseHolder(0, kOwner);
  EXPECT_TRUE(ledger.TryFree(0));
  EXPECT_NE(ledger.generation(0), first);
  EXPECT_FALSE(ledger.HasGeneration(0, first));
}

ISOLATED_TEST(SharedLedgerTest, AMessageKeepsABlockUntilItIsReceived) {
  Book ledger(1);
  ledger.AddHolder(0, kOwner);
  const SharedTicket ticket = ledger.IssueTicket(0, 5, 1);
  ledger.ReleaseHolder(0, kOwner);
  EXPECT_EQ(ledger.TicketCount(0), 1);
  EXPECT_FALSE(ledger.TryFree(0));
  EXPECT_TRUE(ledger.RedeemTicket(0, ticket));
  EXPECT_EQ(ledger.TicketCount(0), 0);
  EXPECT_TRUE(ledger.TryFree(0));
}

ISOLATED_TEST(SharedLedgerTest, ATicketIsRedeemedOnce) {
  Book ledger(1);
  const SharedTicket ticket = ledger.IssueTicket(0, 5, 1);
  EXPECT_TRUE(ledger.RedeemTicket(0, ticket));
  EXPECT_FALSE(ledger.RedeemTicket(0, ticket));
}

ISOLATED_TEST(SharedLedgerTest, ATicketThatWasNotIssuedIsRefused) {
  Book ledger(2);
  const SharedTicket ticket = ledger.IssueTicket(0, 5, 1);
  EXPECT_FALSE(ledger.RedeemTicket(1, ticket));
  EXPECT_FALSE(ledger.RedeemTicket(0, {ticket.index, 6}));
  EXPECT_FALSE(ledger.RedeemTicket(0, {ticket.index, 0}));
  // The index is not reduced modulo the number of tickets either.
  for (uint32_t index = ticket.index + 1; index < 1000; ++index) {
    EXPECT_FALSE(ledger.RedeemTicket(0, {index, 5}));
  }
  EXPECT_FALSE(ledger.RedeemTicket(0, {UINT32_MAX, 5}));
  EXPECT_FALSE(ledger.RedeemTicket(0, {UINT32_MAX, 0}));
  EXPECT_EQ(ledger.TicketCount(0), 1);
}

ISOLATED_TEST(SharedLedgerTest, AnyNumberOfMessagesCarryABlock) {
  Book ledger(1);
  std::vector<SharedTicket> tickets;
  for (uint32_t nonce = 1; nonce <= 100; ++nonce) {
    tickets.push_back(ledger.IssueTicket(0, nonce, 1));
  }
  EXPECT_EQ(ledger.TicketCount(0), 100);
  for (const SharedTicket& ticket : tickets) {
    EXPECT_FALSE(ledger.TryFree(0));
    EXPECT_TRUE(ledger.RedeemTicket(0, ticket));
  }
  EXPECT_EQ(ledger.TicketCount(0), 0);
  EXPECT_TRUE(ledger.TryFree(0));
}

ISOLATED_TEST(SharedLedgerTest, OnlyMessagesSentBeforeADeadlineExpire) {
  Book ledger(1);
  const SharedTicket old = ledger.IssueTicket(0, 5, 100);
  const SharedTicket young = ledger.IssueTicket(0, 6, 101);
  ledger.ExpireTickets(0, 99);
  EXPECT_EQ(ledger.TicketCount(0), 2);
  ledger.ExpireTickets(0, 100);
  EXPECT_FALSE(ledger.RedeemTicket(0, old));
  EXPECT_TRUE(ledger.RedeemTicket(0, young));
}

ISOLATED_TEST(SharedLedgerTest, ASharedTicketIsAsOldAsItsLastMessage) {
  Book ledger(1);
  for (uint32_t nonce = 1; nonce <= 64; ++nonce) {
    ledger.IssueTicket(0, nonce, nonce);
  }
  ledger.ExpireTickets(0, 56);
  EXPECT_EQ(ledger.TicketCount(0), 64);
}

ISOLATED_TEST(SharedLedgerTest, AMessageOfTheOwnerExpiresWithItAndNotEarlier) {
  Book ledger(1);
  const SharedTicket bound =
      ledger.IssueTicket(0, 5, 100, MessageLife::kUntilOwnerEnds);
  const SharedTicket other = ledger.IssueTicket(0, 6, 100);
  ledger.ExpireTickets(0, 99);
  EXPECT_TRUE(ledger.HasTicket(0, bound));
  ledger.ExpireOrphanedTickets(0, 99);
  EXPECT_FALSE(ledger.RedeemTicket(0, bound));
  EXPECT_TRUE(ledger.RedeemTicket(0, other));
}

ISOLATED_TEST(SharedLedgerTest, AMessageOfTheOwnerIsRedeemedLikeAnyOther) {
  Book ledger(1);
  const SharedTicket bound =
      ledger.IssueTicket(0, 0xffffffff, 1, MessageLife::kUntilOwnerEnds);
  EXPECT_TRUE(ledger.Referenced(0));
  EXPECT_TRUE(ledger.RedeemTicket(0, bound));
  EXPECT_FALSE(ledger.RedeemTicket(0, bound));
  EXPECT_TRUE(ledger.TryFree(0));
}

ISOLATED_TEST(SharedLedgerTest,
              ASharedTicketLivesAsLongAsItsLongestLivedMessage) {
  Book ledger(1);
  constexpr uint32_t kPlaces = 8;
  for (uint32_t nonce = 1; nonce <= kPlaces; ++nonce) {
    ledger.IssueTicket(0, nonce, 100, MessageLife::kUntilOwnerEnds);
  }
  const SharedTicket shared = ledger.IssueTicket(0, kPlaces, 100);
  ledger.ExpireOrphanedTickets(0, 99);
  EXPECT_EQ(ledger.TicketCount(0), 2);
  EXPECT_TRUE(ledger.RedeemTicket(0, shared));
  EXPECT_TRUE(ledger.RedeemTicket(0, shared));
}

ISOLATED_TEST(SharedLedgerTest, ReapingASlotDropsItsHoldsAndNoOthers) {
  Book ledger(3);
  ledger.SetSlot(kOther, SharedLedger::kTaken, 1);
  ledger.AddHolder(0, kOther);
  ledger.AddHolder(1, kOther);
  ledger.AddHolder(1, kOther + 1);
  ledger.AddHolder(2, kOther % 64);
  ledger.ReapSlot(kOther);
  EXPECT_EQ(ledger.slot_state(kOther), SharedLedger::kFree);
  EXPECT_FALSE(ledger.Referenced(0));
  EXPECT_TRUE(ledger.Referenced(1));
  EXPECT_TRUE(ledger.Referenced(2));
}

ISOLATED_TEST(SharedLedgerTest, EachReleaseOfABlockIsMarkedOnce) {
  Book ledger(130);
  ledger.AddHolder(129, kOther);
  ledger.IssueTicket(129, 5, 1);
  EXPECT_EQ(ledger.TakeReleased(2), 0);
  uint64_t count = ledger.release_count();
  auto is_news = [&] {
    const bool counted = ledger.release_count() != count;
    count = ledger.release_count();
    return ledger.TakeReleased(2) == 2 && ledger.TakeReleased(2) == 0 &&
           counted;
  };
  ledger.ExpireTickets(129, kAllTime);
  EXPECT_TRUE(is_news());
  ledger.ReleaseHolder(129, kOther);
  EXPECT_TRUE(is_news());
}

// The process may have been killed between clearing its bit and setting the
// mark.
ISOLATED_TEST(SharedLedgerTest, ReapingASlotMarksEveryBlock) {
  Book ledger(130);
  ledger.SetSlot(kOther, SharedLedger::kTaken, 1);
  const uint64_t count = ledger.release_count();
  ledger.ReapSlot(kOther);
  EXPECT_NE(ledger.release_count(), count);
  EXPECT_EQ(ledger.TakeReleased(0), UINT64_MAX);
  EXPECT_EQ((ledger.TakeReleased(2) & 3), 3);
}

ISOLATED_TEST(SharedLedgerTest, AnOwnerKilledInsideTryFreeLeavesAValidBlock) {
  Book ledger(1);
  const uint64_t generation = ledger.generation(0);
  ledger.AddHolder(0, kOther);
  ledger.AbandonDecision(0);
  EXPECT_EQ(ledger.generation(0), generation);
  EXPECT_FALSE(
      ledger.HasGeneration(0, generation));  // nobody answers, but it returns
  EXPECT_FALSE(ledger.TryFree(0));
  EXPECT_TRUE(ledger.HasGeneration(0, generation));
  ledger.ReleaseHolder(0, kOther);
  ledger.AbandonDecision(0);
  EXPECT_TRUE(ledger.TryFree(0));
  EXPECT_FALSE(ledger.HasGeneration(0, generation));
}

}  // namespace
