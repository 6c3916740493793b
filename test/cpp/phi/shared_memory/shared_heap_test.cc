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

// The heap of one process: its blocks, their costs, and sending them.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "test/cpp/phi/shared_memory/processes.h"

namespace {

using namespace shared_memory_test;  // NOLINT(build/namespaces)

class SharedHeapTest : public shared_memory_test::SharedMemoryTestCase {};

TEST_BOTH(SharedHeapTest, ABlockHasTheRequestedSizeOrALittleMore) {
  for (uint64_t size : {0, 1, 63, 64, 65, 4095, 4096, 4097, 1000003}) {
    const SharedBlock block = AllocateFilled(strategy, size, size);
    const uint64_t unit = size < 4096 ? 64 : 4096;
    EXPECT_GE(block.capacity, size);
    EXPECT_LE(block.capacity, size + std::max(size / 4, unit));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block.data) % 64, 0);
    EXPECT_TRUE(HasContent(block, size));
    Heap().Release(block);
  }
}

TEST_BOTH(SharedHeapTest, BlocksDoNotOverlap) {
  std::vector<SharedBlock> blocks;
  for (uint64_t i = 0; i < 600; ++i) {
    blocks.push_back(AllocateFilled(strategy, 1 + i * i * 7 % 20000, i));
  }
  for (uint64_t i = 0; i < blocks.size(); ++i) {
    EXPECT_TRUE(HasContent(blocks[i], i));
  }
}

TEST_BOTH(SharedHeapTest, AReleasedBlockIsReused) {
  for (uint64_t size : {100, 5000, 3000000}) {
    const SharedBlock first = Heap().Allocate(strategy, size);
    Heap().Release(first);
    const SharedBlock second = Heap().Allocate(strategy, size);
    EXPECT_EQ(second.data, first.data);
    Heap().Release(second);
  }
}

TEST_BOTH(SharedHeapTest, EachStrategyHasItsOwnSegments) {
  const SharedBlock block = Heap().Allocate(strategy, 100);
  const SharedBlock other =
      Heap().Allocate(strategy == SharingStrategy::kFileSystem
                          ? SharingStrategy::kFileDescriptor
                          : SharingStrategy::kFileSystem,
                      100);
  EXPECT_NE(block.segment, other.segment);
  EXPECT_EQ(MessageOf(block).id.strategy, strategy);
  EXPECT_NE(MessageOf(other).id.strategy, strategy);
  EXPECT_EQ(Heap().Stats().segments, 2);
}

TEST_BOTH(SharedHeapTest, TheAddressesOfABlockAreKnownAsLongAsItIsHeld) {
  const SharedBlock block = Heap().Allocate(strategy, 4096);
  EXPECT_TRUE(Heap().Has(block.data));
  EXPECT_TRUE(Heap().Has(block.data + 4095));
  EXPECT_FALSE(Heap().Has(block.data + block.capacity));
  EXPECT_FALSE(Heap().Has(&block));
  Heap().Release(block);
  EXPECT_FALSE(Heap().Has(block.data));
}

TEST_BOTH(SharedHeapTest, AnAddressInABlockIsSentWithItsOffset) {
  const SharedBlock before = Heap().Allocate(strategy, 4096);
  const SharedBlock block = Heap().Allocate(strategy, 4096);
  const auto message = Heap().Send(block.data + 4095);
  ASSERT_TRUE(message.has_value());
  EXPECT_EQ(message->offset, 4095);
  EXPECT_EQ(message->block, block.index);
  EXPECT_NE(block.index, before.index);
  EXPECT_EQ(MessageOf(block).offset, 0);
}

TEST_BOTH(SharedHeapTest, AnAddressInNoHeldBlockIsNotSent) {
  const int here = 0;
  EXPECT_FALSE(Heap().Send(&here));
  EXPECT_FALSE(Heap().Send(nullptr));
  const SharedBlock block = Heap().Allocate(strategy, 4096);
  EXPECT_FALSE(Heap().Send(block.data + block.capacity));
  EXPECT_FALSE(Heap().Send(block.data - 1));
  EXPECT_FALSE(Heap().Send(&here));
  Heap().Release(block);
  EXPECT_FALSE(Heap().Send(block.data));
}

TEST_BOTH(SharedHeapTest, AMessageToTheSameProcessFindsTheBoundStorage) {
  const SharedBlock block = Heap().Allocate(strategy, 100);
  const auto storage = std::make_shared<int>(1);
  EXPECT_TRUE(Heap().Bind(block, storage, [] { return true; }));
  const auto received = Heap().Receive(MessageOf(block));
  EXPECT_EQ(received.storage, storage);
  EXPECT_EQ(received.block.data, block.data);
  Heap().Release(block);
  EXPECT_EQ(Heap().Stats().used, 0);
}

TEST_BOTH(SharedHeapTest, AStorageThatRefusesToBeBoundIsNotFound) {
  const SharedBlock block = Heap().Allocate(strategy, 100);
  const auto storage = std::make_shared<int>(1);
  EXPECT_FALSE(Heap().Bind(block, storage, [] { return false; }));
  EXPECT_EQ(Heap().Receive(MessageOf(block)).storage, nullptr);
}

TEST_BOTH(SharedHeapTest, AMessageToTheSameProcessAddsAUserOnceNothingIsBound) {
  const SharedBlock block = AllocateFilled(strategy, 100, 1);
  const auto received = Heap().Receive(MessageOf(block));
  EXPECT_EQ(received.storage, nullptr);
  Heap().Release(block);
  EXPECT_EQ(Heap().Stats().blocks, 1);
  EXPECT_TRUE(HasContent(received.block, 1));
  Heap().Release(received.block);
  EXPECT_EQ(Heap().Stats().blocks, 0);
}

TEST_BOTH(SharedHeapTest, StatsReportUsedAndCachedMemory) {
  const SharedBlock large = Heap().Allocate(strategy, kMiB);
  const SharedBlock small = Heap().Allocate(strategy, 64);
  MessageOf(large);
  MessageOf(large);
  SharedHeapStats stats = Heap().Stats();
  EXPECT_EQ(stats.used, large.capacity + small.capacity);
  EXPECT_EQ(stats.blocks, 2);
  EXPECT_EQ(stats.messages, 2);
  EXPECT_EQ(stats.segments, 1);
  EXPECT_EQ(stats.attached, 0);
  EXPECT_EQ(stats.cached, stats.reserved - stats.used);
  Heap().Release(small);
  stats = Heap().Stats();
  EXPECT_EQ(stats.used, large.capacity);
  EXPECT_EQ(stats.blocks, 1);
  EXPECT_GT(stats.reserved, stats.used);
}

TEST_BOTH(SharedHeapTest, CollectReturnsIdleMemoryToTheSystem) {
  const SharedBlock kept = AllocateFilled(strategy, 100, 1);
  const std::string path = PathOf(MessageOf(kept));
  const uint64_t before = BytesOfFile(path);
  const SharedBlock large = AllocateFilled(strategy, 8 * kMiB, 2);
  EXPECT_GE(BytesOfFile(path), before + 8 * kMiB);
  Heap().Release(large);
  EXPECT_GE(Heap().Stats().cached, 8 * kMiB);
  Heap().Collect({});
  EXPECT_LE(BytesOfFile(path), before);
  EXPECT_LT(Heap().Stats().cached, kMiB);
  EXPECT_TRUE(HasContent(kept, 1));
  const SharedBlock again = AllocateFilled(strategy, 8 * kMiB, 3);
  EXPECT_EQ(again.data, large.data);
  EXPECT_TRUE(HasContent(again, 3));
}

TEST_BOTH(SharedHeapTest, ABlockInFlightIsNotReturnedToTheSystem) {
  const SharedBlock block = AllocateFilled(strategy, kMiB, 1);
  const SharedMessage message = MessageOf(block);
  Heap().Release(block);
  Heap().Collect({});
  Heap().Collect(1000.0);
  EXPECT_EQ(Heap().Stats().used, block.capacity);
  EXPECT_TRUE(HasContent(Heap().Receive(message).block, 1));
}

TEST_BOTH(SharedHeapTest, AnExpiredMessageIsGone) {
  const SharedBlock block = AllocateFilled(strategy, kMiB, 1);
  const SharedMessage message = MessageOf(block);
  Heap().Release(block);
  Heap().Collect(0.0);
  EXPECT_EQ(Heap().Stats().used, 0);
  EXPECT_EQ(Heap().Stats().reserved, 0);
  EXPECT_EQ(Kind::kGone, KindOf([&] { Heap().Receive(message); }));
  EXPECT_EQ(Heap().Stats().used, 0);
}

TEST_BOTH(SharedHeapTest, TheLimitIsEnforcedAndReported) {
  Heap().SetLimit(4 * kMiB);
  const SharedBlock block = Heap().Allocate(strategy, 3 * kMiB);
  MessageOf(block);
  const SharedHeapStats before = Heap().Stats();
  const auto error = ErrorOf([&] { Heap().Allocate(strategy, 2 * kMiB); });
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->kind(), Kind::kExhausted);
  const std::string text = error->what();
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "the limit is 4.0 MiB", text);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "2.0 MiB", text);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "1 messages", text);
  EXPECT_EQ(Heap().Stats().reserved, before.reserved);
  EXPECT_EQ(Heap().Stats().used, before.used);
  Heap().SetLimit(6 * kMiB);
  Heap().Release(Heap().Allocate(strategy, 2 * kMiB));
  EXPECT_EQ(Heap().Stats().limit, 6 * kMiB);
}

TEST_BOTH(SharedHeapTest, IdleMemoryMakesRoomUnderTheLimit) {
  Heap().SetLimit(4 * kMiB);
  for (uint64_t size : {3 * kMiB, kMiB, 2 * kMiB, 4 * kMiB}) {
    Heap().Release(AllocateFilled(strategy, size, size));
  }
  EXPECT_LE(Heap().Stats().reserved, 4 * kMiB);
}

ISOLATED_TEST(SharedHeapTest, IdleMemoryIsLimitedForAllSegmentsTogether) {
  const auto allocate = [](uint64_t size) {
    return Heap().Allocate(SharingStrategy::kFileDescriptor, size);
  };
  const SharedBlock first = allocate(150 * kMiB);
  const SharedBlock second = allocate(170 * kMiB);
  EXPECT_EQ(Heap().Stats().segments, 2);
  Heap().Release(first);
  Heap().Release(second);
  EXPECT_EQ(Heap().Stats().cached, second.capacity);
  // A block that is used again and again stays, however large it is.
  const SharedBlock large = allocate(300 * kMiB);
  Heap().Release(large);
  EXPECT_EQ(Heap().Stats().cached, second.capacity + large.capacity);
  EXPECT_EQ(allocate(300 * kMiB).data, large.data);
}

ISOLATED_TEST(SharedHeapTest, OneLargeIdleBlockIsKeptBesideSmallerOnes) {
  const auto allocate = [](uint64_t size) {
    return Heap().Allocate(SharingStrategy::kFileDescriptor, size);
  };
  const SharedBlock large = allocate(300 * kMiB);
  Heap().Release(large);
  for (int i = 0; i < 3; ++i) {
    Heap().Release(allocate(40));
    const SharedBlock again = allocate(300 * kMiB);
    EXPECT_EQ(again.data, large.data);
    Heap().Release(again);
  }
  const uint64_t small = Heap().Stats().cached - large.capacity;
  EXPECT_GT(small, 0);
  EXPECT_LT(small, kMiB);
  // Only the newest of the large ones is kept.
  const SharedBlock larger = allocate(400 * kMiB);
  Heap().Release(larger);
  EXPECT_EQ(Heap().Stats().cached, small + larger.capacity);
  Heap().Collect({});
  EXPECT_EQ(Heap().Stats().cached, 0);
}

TEST_BOTH(SharedHeapTest, ASizeThatNoMachineHasIsRefused) {
  for (uint64_t size : {uint64_t{1} << 45, uint64_t{1} << 62, UINT64_MAX}) {
    EXPECT_EQ(Kind::kExhausted,
              KindOf([&] { Heap().Allocate(strategy, size); }));
  }
  Heap().Release(AllocateFilled(strategy, 100, 1));
}

TEST_BOTH(SharedHeapTest, ManySmallBlocksFillMoreThanOneSegment) {
  // More blocks than the largest ledger has entries for.
  constexpr uint64_t kCount = (1 << 18) + 1000;
  std::vector<SharedBlock> blocks;
  blocks.reserve(kCount);
  for (uint64_t i = 0; i < kCount; ++i) {
    blocks.push_back(Heap().Allocate(strategy, 64));
  }
  EXPECT_GT(Heap().Stats().segments, 1);
  EXPECT_LT(Heap().Stats().segments, 6);
  EXPECT_EQ(Heap().Stats().blocks, kCount);
  for (const SharedBlock& block : blocks) Heap().Release(block);
  EXPECT_EQ(Heap().Stats().blocks, 0);
  Heap().Collect({});
  EXPECT_EQ(Heap().Stats().reserved, 0);
}

}  // namespace
