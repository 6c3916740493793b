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

#include "paddle/phi/core/distributed/shared_memory/group_layout.h"

#include <algorithm>

#include "paddle/phi/core/memory/allocation/shared_memory/shared_ledger.h"

namespace phi {
namespace distributed {

namespace {

using paddle::memory::allocation::RoundUp;

constexpr uint64_t kPage = 4096;
constexpr uint64_t kAllRanksEntries = 8;
constexpr uint64_t kAllRanksInlineBytes = 16 << 10;
// A group has many pairs, of which few are used.
constexpr uint64_t kPairEntries = 2;
constexpr uint64_t kMaxPairBytes = 128 << 10;
constexpr uint64_t kMinPairBytes = 4 << 10;
constexpr uint64_t kAllPairsBytes = 16 << 20;
// A sender can be ahead of a receiver by two transfers.
constexpr uint64_t kTransfersPerPair = 2;
constexpr uint64_t kMaxTransferBlocks = 16;
constexpr uint64_t kAllTransferBytes = 256 << 20;

uint64_t RoundDown(uint64_t value, uint64_t to) { return value / to * to; }

uint64_t Pairs(int size) {
  return static_cast<uint64_t>(size) * static_cast<uint64_t>(size - 1);
}

uint64_t TransferBlocks(int size) {
  const uint64_t affordable =
      kAllTransferBytes / GroupLayout::kTransferBytes / size;
  return std::min({kTransfersPerPair * (size - 1),
                   kMaxTransferBlocks,
                   std::max(affordable, kTransfersPerPair)});
}

}  // namespace

GroupLayout::ChannelShape::ChannelShape(int members,
                                        int sources,
                                        uint64_t entries)
    : members(members),
      sources(sources),
      entries(entries),
      inline_at(RoundUp(
          members * (sizeof(ChannelMember) + entries * sizeof(OperationEntry)),
          kCacheLine)),
      staging_at(inline_at),
      bytes(inline_at) {}

void GroupLayout::ChannelShape::SetData(uint64_t of_entry,
                                        uint64_t of_staging) {
  inline_bytes = of_entry;
  staging_bytes = of_staging;
  staging_at = inline_at + sources * entries * inline_bytes;
  bytes = staging_at + sources * staging_bytes;
}

GroupLayout::GroupLayout(int size, uint64_t staging_bytes)
    : size_(size),
      all_(size, size, kAllRanksEntries),
      pair_(2, 1, kPairEntries),
      all_at_(RoundUp(sizeof(GroupHeader) + size * sizeof(RankState), kPage)) {
  all_.SetData(kAllRanksInlineBytes, RoundUp(staging_bytes, kPage));
  pairs_at_ = all_at_ + RoundUp(all_.bytes, kPage);
  if (size > 1) {
    // Half of the remaining bytes are staging memory.
    uint64_t data =
        std::clamp(RoundDown(kAllPairsBytes / Pairs(size), kCacheLine),
                   kMinPairBytes,
                   kMaxPairBytes) -
        pair_.bytes;
    pair_.SetData(RoundDown(data / 2 / kPairEntries, kCacheLine),
                  RoundDown(data / 2, kCacheLine));
  }
  transfers_at_ = RoundUp(pairs_at_ + Pairs(size) * pair_.bytes, kPage);
  transfer_blocks_ = TransferBlocks(size);
  total_bytes_ = TransferAt(size, 0);
}

uint32_t GroupLayout::channels() const {
  return 1 + static_cast<uint32_t>(Pairs(size_));
}

uint32_t GroupLayout::PairChannel(int sender, int receiver) const {
  // The receiver's index among the ranks other than the sender.
  int other = receiver > sender ? receiver - 1 : receiver;
  return 1 + sender * (size_ - 1) + other;
}

int GroupLayout::members(uint32_t channel) const {
  return static_cast<int>(ShapeOf(channel).members);
}

int GroupLayout::RankOf(uint32_t channel, int member) const {
  if (channel == kAllRanks) return member;
  int sender = static_cast<int>(channel - 1) / (size_ - 1);
  int other = static_cast<int>(channel - 1) % (size_ - 1);
  if (member == 0) return sender;
  return other >= sender ? other + 1 : other;
}

int GroupLayout::MemberOf(uint32_t channel, int rank) const {
  for (int member = channel == kAllRanks ? rank : 0; member < members(channel);
       ++member) {
    if (RankOf(channel, member) == rank) return member;
  }
  return -1;
}

uint64_t GroupLayout::entries(uint32_t channel) const {
  return ShapeOf(channel).entries;
}

uint64_t GroupLayout::inline_bytes(uint32_t channel) const {
  return ShapeOf(channel).inline_bytes;
}

uint64_t GroupLayout::staging_bytes(uint32_t channel) const {
  return ShapeOf(channel).staging_bytes;
}

uint64_t GroupLayout::RankStateAt(int rank) const {
  return sizeof(GroupHeader) + rank * sizeof(RankState);
}

uint64_t GroupLayout::MemberAt(uint32_t channel, int member) const {
  return ChannelAt(channel) + member * sizeof(ChannelMember);
}

uint64_t GroupLayout::EntryAt(uint32_t channel,
                              int member,
                              uint64_t sequence) const {
  const ChannelShape& shape = ShapeOf(channel);
  uint64_t index = member * shape.entries + sequence % shape.entries;
  return ChannelAt(channel) + shape.members * sizeof(ChannelMember) +
         index * sizeof(OperationEntry);
}

uint64_t GroupLayout::InlineAt(uint32_t channel,
                               int member,
                               uint64_t sequence) const {
  const ChannelShape& shape = ShapeOf(channel);
  uint64_t index = member * shape.entries + sequence % shape.entries;
  return ChannelAt(channel) + shape.inline_at + index * shape.inline_bytes;
}

uint64_t GroupLayout::StagingAt(uint32_t channel, int member) const {
  const ChannelShape& shape = ShapeOf(channel);
  return ChannelAt(channel) + shape.staging_at + member * shape.staging_bytes;
}

uint64_t GroupLayout::TransferAt(int rank, uint64_t block) const {
  return transfers_at_ + (rank * transfer_blocks_ + block) * kTransferBytes;
}

const GroupLayout::ChannelShape& GroupLayout::ShapeOf(uint32_t channel) const {
  return channel == kAllRanks ? all_ : pair_;
}

uint64_t GroupLayout::ChannelAt(uint32_t channel) const {
  return channel == kAllRanks ? all_at_
                              : pairs_at_ + (channel - 1) * pair_.bytes;
}

}  // namespace distributed
}  // namespace phi
