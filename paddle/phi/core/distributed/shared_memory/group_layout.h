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

#pragma once

#include <atomic>
#include <cstdint>

#include "paddle/phi/core/distributed/shared_memory/operation_info.h"

namespace phi {
namespace distributed {

// The layout of a group's memory: a header, one RankState per rank, the
// channels, and the transfer memory of each rank.
//
// A channel is a sequence of operations. The first channel has all ranks as
// members. Each ordered pair of ranks has its own channel, with the sender as
// member 0 and the receiver as member 1. A channel consists of its members, the
// operation entries of each member, and, for each source, inline data per entry
// and staging memory. In the first channel all members are sources; in a pair's
// channel only the sender is.
//
// There are too many pairs for each to have much staging memory. Therefore each
// rank has a few blocks of transfer memory, one of which a large transfer to
// any rank uses in place of the pair's staging memory. A block is reserved when
// it is used for the first time; everything else is reserved from the start.

constexpr uint64_t kCacheLine = 64;

// Progress is an operation's number in the channel, from 1, and its phase. Both
// only grow, so a rank has passed a phase if its progress is not smaller.
constexpr int kPhaseBits = 22;
constexpr uint64_t kEndPhase = (uint64_t{1} << kPhaseBits) - 1;

constexpr uint64_t ProgressOf(uint64_t sequence, uint64_t phase) {
  return sequence << kPhaseBits | phase;
}

// The constant fields at the start of the header. They are complete before
// another process can find the file.
struct GroupStart {
  uint64_t magic;
  uint64_t random_number;  // of this group
  uint64_t total_bytes;
  uint64_t staging_bytes;  // of one rank in the first channel
  uint32_t size;
  uint32_t spin_microseconds;
};

struct alignas(kCacheLine) GroupHeader {
  static constexpr int kCoreWords = 16;

  GroupStart start;
  // 0, or 1 + the rank whose report says why the group failed. Set once.
  alignas(kCacheLine) std::atomic<uint64_t> failure;
  // The cores that any rank may run on, one bit each. Excess cores don't count.
  alignas(kCacheLine) std::atomic<uint64_t> cores[kCoreWords];
};

struct alignas(kCacheLine) RankState {
  enum : uint32_t { kAbsent = 0, kAttached = 1, kLeft = 2 };

  // Written only by this rank, and only while the group has not failed.
  struct Report {
    uint32_t kind;
    int32_t rank;
    char text[1016];
  };

  std::atomic<uint32_t> state;
  std::atomic<uint32_t> process;
  // The address of the group's memory in this rank's process.
  std::atomic<uint64_t> base;
  // The last operation that the rank began, see OperationId.
  std::atomic<uint64_t> last_operation;
  Report report;
};

// An operation's channel and number in one word; 0 means no operation.
constexpr int kSequenceBits = 64 - kPhaseBits;

constexpr uint64_t OperationId(uint32_t channel, uint64_t sequence) {
  return uint64_t{channel} << kSequenceBits | sequence;
}
constexpr uint32_t ChannelOf(uint64_t id) {
  return static_cast<uint32_t>(id >> kSequenceBits);
}
constexpr uint64_t SequenceOf(uint64_t id) {
  return id & ((uint64_t{1} << kSequenceBits) - 1);
}

// One member of a channel.
struct alignas(kCacheLine) ChannelMember {
  // ProgressOf the last phase that the member published. Its lower half is a
  // futex.
  std::atomic<uint64_t> progress;
  // How many other members sleep, or are about to sleep, until `progress`
  // grows. A killed process stays counted, which costs its peers only system
  // calls.
  std::atomic<uint32_t> sleepers;
};

// One operation of one member. The member uses its entries cyclically.
struct alignas(kCacheLine) OperationEntry {
  // The number of the operation; 0 while the fields that follow change.
  std::atomic<uint64_t> sequence;
  // The block of the sender's transfer memory that has the staged data, from 1;
  // 0 if the data is in the channel's staging memory.
  uint64_t transfer_block;
  OperationInfo info;
  BufferLocation input;
  BufferLocation output;
};

// The offsets of all parts of a group's memory. A value type.
class GroupLayout {
 public:
  static constexpr int kMaxRanks = 256;
  static constexpr uint32_t kAllRanks = 0;  // the first channel
  // Large enough that the ranks wait for each other rarely, and small enough
  // that a block stays in the cache.
  static constexpr uint64_t kTransferBytes = 512 << 10;  // of one block

  // Requires: 1 <= size <= kMaxRanks.
  GroupLayout(int size, uint64_t staging_bytes);

  int size() const { return size_; }
  uint64_t total_bytes() const { return total_bytes_; }
  // The bytes at the start that are reserved when the group is created.
  uint64_t reserved_bytes() const { return transfers_at_; }
  // The number of blocks of transfer memory of one rank.
  uint64_t transfer_blocks() const { return transfer_blocks_; }

  uint32_t channels() const;
  uint32_t PairChannel(int sender, int receiver) const;
  int members(uint32_t channel) const;
  int RankOf(uint32_t channel, int member) const;
  // Returns the rank's member index in a channel, or -1 if it is not a member.
  int MemberOf(uint32_t channel, int rank) const;

  // The number of operations by which one member can be ahead of another.
  uint64_t entries(uint32_t channel) const;
  uint64_t inline_bytes(uint32_t channel) const;
  uint64_t staging_bytes(uint32_t channel) const;

  // Return the offset from the start of the memory.
  uint64_t RankStateAt(int rank) const;
  uint64_t MemberAt(uint32_t channel, int member) const;
  uint64_t EntryAt(uint32_t channel, int member, uint64_t sequence) const;
  // Require: the member is a source.
  uint64_t InlineAt(uint32_t channel, int member, uint64_t sequence) const;
  uint64_t StagingAt(uint32_t channel, int member) const;
  uint64_t TransferAt(int rank, uint64_t block) const;

 private:
  // The layout of the channels of one kind, which all have the same size.
  struct ChannelShape {
    ChannelShape(int members, int sources, uint64_t entries);

    uint64_t members;
    uint64_t sources;
    uint64_t entries;
    uint64_t inline_bytes = 0;
    uint64_t staging_bytes = 0;
    uint64_t inline_at;  // offsets in the channel
    uint64_t staging_at;
    uint64_t bytes;
    void SetData(uint64_t inline_bytes, uint64_t staging_bytes);
  };

  const ChannelShape& ShapeOf(uint32_t channel) const;
  uint64_t ChannelAt(uint32_t channel) const;

  int size_;
  ChannelShape all_;
  ChannelShape pair_;
  uint64_t all_at_;
  uint64_t pairs_at_;
  uint64_t transfers_at_;
  uint64_t transfer_blocks_;
  uint64_t total_bytes_;
};

}  // namespace distributed
}  // namespace phi
