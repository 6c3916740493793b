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

// Blocks of one segment: which ones are taken, freed and reused.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "paddle/phi/core/memory/allocation/shared_memory/shared_blocks.h"
#include "test/cpp/phi/shared_memory/workers.h"

namespace {

using namespace shared_memory_test;  // NOLINT(build/namespaces)
using paddle::memory::allocation::kSharedPage;
using paddle::memory::allocation::SharedBlocks;
using paddle::memory::allocation::SharedIdleRuns;
using paddle::memory::allocation::SharedLedger;
using paddle::memory::allocation::SharedSegment;
using paddle::memory::allocation::SharingStrategy;

class SharedBlocksTest : public SharedMemoryTestCase {};

// A segment that has room for a block of the size, and its blocks.
struct Owner {
  explicit Owner(uint64_t room)
      : segment(SharedSegment::Create(SharingStrategy::kFileDescriptor,
                                      TreeId(),
                                      SharedBlocks::ReserveFor(room))),
        blocks(segment.get(), &idle_runs, &due_callbacks) {}

  // Takes a block as the heap does, and holds it.
  uint32_t Take(uint64_t capacity) {
    std::optional<uint32_t> block = blocks.TakeWarm(capacity);
    if (!block) {
      const std::optional<uint32_t> run = blocks.TakeCold(capacity);
      REQUIRE_TRUE(run.has_value());
      segment->Reserve(
          segment->fd(), blocks.RunOffset(*run), blocks.RunLength(*run));
      block = blocks.WarmUp(*run);
    }
    segment->AddHolder(*block);
    return *block;
  }
  // Releases a block and frees it.
  void Drop(uint32_t block) {
    segment->ReleaseHolder(block);
    blocks.FreeReleased();
  }

  std::vector<std::function<void()>> due_callbacks;
  SharedIdleRuns idle_runs;
  std::unique_ptr<SharedSegment> segment;
  SharedBlocks blocks;
};

ISOLATED_TEST(SharedBlocksTest, ACapacityIsALittleMoreThanTheSize) {
  for (uint64_t size = 1; size < 100 * kMiB; size += size / 7 + 1) {
    const uint64_t capacity = SharedBlocks::CapacityFor(size);
    const uint64_t unit =
        size < kSharedPage ? SharedBlocks::kAlignment : kSharedPage;
    EXPECT_GE(capacity, size);
    EXPECT_LE(capacity - size, std::max(size / 4, unit)) << size;
    EXPECT_EQ(capacity % unit, 0);
    EXPECT_EQ(SharedBlocks::CapacityFor(capacity), capacity);
  }
}

ISOLATED_TEST(SharedBlocksTest, ASegmentHasRoomForTheBlockItIsMadeFor) {
  for (uint64_t capacity : {uint64_t{64}, kSharedPage, uint64_t{40} << 20}) {
    Owner owner(capacity);
    const uint32_t block = owner.Take(capacity);
    EXPECT_EQ(owner.segment->ledger().capacity(block), capacity);
  }
}

ISOLATED_TEST(SharedBlocksTest, BlocksDoNotOverlap) {
  Owner owner(kMiB);
  uint64_t end = SharedLedger::LedgerBytes(owner.segment->reserve());
  for (uint64_t capacity : {kSharedPage, 2 * kSharedPage, 7 * kSharedPage}) {
    const uint32_t block = owner.Take(capacity);
    EXPECT_GE(owner.segment->ledger().offset(block), end);
    end = owner.segment->ledger().offset(block) + capacity;
  }
}

ISOLATED_TEST(SharedBlocksTest, SmallBlocksShareAPage) {
  Owner owner(kMiB);
  for (int i = 0; i < 64; ++i) owner.Take(64);
  EXPECT_EQ(owner.blocks.reserved(), kSharedPage);
  EXPECT_EQ(owner.blocks.used(), kSharedPage);
  EXPECT_EQ(owner.blocks.used_blocks(), 64);
  owner.Take(64);
  EXPECT_GT(owner.blocks.reserved(), kSharedPage);
}

ISOLATED_TEST(SharedBlocksTest, ABlockIsReusedOnceNobodyHoldsIt) {
  Owner owner(kMiB);
  const uint32_t block = owner.Take(kSharedPage);
  owner.blocks.FreeReleased();
  EXPECT_NE(owner.Take(kSharedPage), block);
  owner.Drop(block);
  EXPECT_EQ(owner.blocks.used(), kSharedPage);
  EXPECT_EQ(owner.Take(kSharedPage), block);
}

ISOLATED_TEST(SharedBlocksTest, ABlockThatAMessageCarriesIsNotFreed) {
  Owner owner(kMiB);
  const uint32_t block = owner.Take(kSharedPage);
  owner.segment->ledger().IssueTicket(block, 5, 100);
  EXPECT_EQ(owner.blocks.messages(), 1);
  owner.Drop(block);
  EXPECT_EQ(owner.blocks.used_blocks(), 1);
  owner.blocks.Expire(99);
  EXPECT_EQ(owner.blocks.messages(), 1);
  owner.blocks.Expire(100);
  EXPECT_EQ(owner.blocks.messages(), 0);
  owner.blocks.FreeReleased();
  EXPECT_EQ(owner.blocks.used_blocks(), 0);
}

ISOLATED_TEST(SharedBlocksTest, ALargeBlockServesUpToAThirdLess) {
  Owner owner(kMiB);
  owner.Drop(owner.Take(12 * kSharedPage));
  EXPECT_FALSE(owner.blocks.TakeWarm(7 * kSharedPage).has_value());
  EXPECT_TRUE(owner.blocks.TakeWarm(8 * kSharedPage).has_value());
}

ISOLATED_TEST(SharedBlocksTest, TrimmedMemoryIsTakenAgainAtTheSameAddresses) {
  Owner owner(kMiB);
  const uint32_t block = owner.Take(8 * kSharedPage);
  owner.Drop(block);
  EXPECT_EQ(owner.blocks.reserved(), 8 * kSharedPage);
  owner.idle_runs.Trim(0);
  EXPECT_EQ(owner.blocks.reserved(), 0);
  EXPECT_FALSE(owner.blocks.TakeWarm(8 * kSharedPage).has_value());
  EXPECT_EQ(owner.Take(8 * kSharedPage), block);
}

ISOLATED_TEST(SharedBlocksTest, TheMostRecentlyUsedRunIsKept) {
  Owner owner(kMiB);
  const uint32_t first = owner.Take(8 * kSharedPage);
  const uint32_t last = owner.Take(4 * kSharedPage);
  owner.Drop(first);
  owner.Drop(last);
  owner.idle_runs.Trim(4 * kSharedPage);
  EXPECT_EQ(owner.blocks.reserved(), 4 * kSharedPage);
}

ISOLATED_TEST(SharedBlocksTest, AFullSegmentGivesNoBlock) {
  Owner owner(kSharedPage);
  while (auto run = owner.blocks.TakeCold(64 * kSharedPage)) {
    owner.blocks.WarmUp(*run);
  }
  EXPECT_FALSE(owner.blocks.TakeCold(64 * kSharedPage).has_value());
  EXPECT_TRUE(owner.blocks.TakeCold(kSharedPage).has_value());
}

ISOLATED_TEST(SharedBlocksTest, TheCallbackOfAFreedBlockBecomesDueOnce) {
  Owner owner(kMiB);
  const uint32_t block = owner.Take(64);
  owner.blocks.OnFree(block, [] {});
  EXPECT_TRUE(owner.due_callbacks.empty());
  owner.Drop(block);
  EXPECT_EQ(owner.due_callbacks.size(), 1);
  owner.Drop(owner.Take(64));
  EXPECT_EQ(owner.due_callbacks.size(), 1);
}

ISOLATED_TEST(SharedBlocksTest, ExpireRecordsExpiresOnlyMessagesOfRecords) {
  Owner owner(kMiB);
  const uint32_t tensor = owner.Take(64);
  const uint32_t record = owner.Take(64);
  owner.blocks.OnFree(record, [] {});
  for (uint32_t block : {tensor, record}) {
    owner.segment->ledger().IssueTicket(block, 5, 100);
  }
  owner.blocks.ExpireRecords(101);
  EXPECT_EQ(owner.segment->ledger().TicketCount(tensor), 1);
  EXPECT_EQ(owner.segment->ledger().TicketCount(record), 0);
}

}  // namespace
