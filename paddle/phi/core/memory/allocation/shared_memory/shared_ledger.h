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

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace paddle {
namespace memory {
namespace allocation {

// Memory of a segment is reserved and trimmed in multiples of this.
constexpr uint64_t kSharedPage = 4096;

constexpr uint64_t RoundUp(uint64_t value, uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

// How long a message that nobody receives keeps its block: until it expires, or
// until the owner of its segment ends, whichever is first.
enum class MessageLife { kUntilExpired, kUntilOwnerEnds };

// The reference of a message to a block, which its receiver redeems.
struct SharedTicket {
  uint32_t index;
  uint32_t nonce;
};

// The reference counts of one segment, kept in the segment itself.
//
// Invariant: a block that a living process holds, or that a message in flight
// carries, has a holder bit or a ticket at every moment, so its memory is not
// used for another tensor. A process that dies can leave a bit or a ticket
// behind; it cannot take away one that is not its own.
//
// References are made only from references: a holder issues a ticket, and a
// receiver sets its holder bit *before* it redeems the ticket. Every operation
// is a sequence of atomic steps on memory that is never locked, and a process
// may be killed between any two steps. Each atomic's order is explained at its
// use in shared_ledger.cc.
//
// The permanent slot is never freed: its bit keeps a block for the life of the
// segment.
//
// Thread-safe, also between processes, except for functions that name who may
// call them.
class SharedLedger {
 public:
  static constexpr uint32_t kSlots = 512;
  static constexpr uint32_t kPermanentSlot = 0;
  static constexpr uint32_t kOwnerSlot = 1;
  static constexpr uint32_t kMaxBlocks = 1u << 18;
  static constexpr uint64_t kMinReserve = uint64_t{1} << 20;
  static constexpr uint64_t kMaxReserve = uint64_t{1} << 46;

  enum SlotState : uint32_t { kFree = 0, kTaken = 1, kLeaving = 2 };

  // The first bytes of a ledger, read from a file that cannot be trusted.
  struct Start {
    uint64_t magic;
    uint64_t tree;
    uint64_t segment;
    uint64_t reserve;
    uint32_t orphaned;
    uint32_t slot_limit;
    uint32_t block_count;

    // Returns whether these bytes are the start of a ledger of this layout,
    // with all numbers in range.
    bool Valid() const;
    // Returns how many bytes of the ledger are in use. Requires: Valid().
    uint64_t UsedBytes() const;
  };

  // For a segment with `reserve` bytes of addresses: the maximum number of
  // blocks, the bytes before the block entries, and the bytes of the ledger
  // with all entries.
  static uint32_t MaxBlocks(uint64_t reserve);
  static size_t HeaderBytes(uint64_t reserve);
  static size_t LedgerBytes(uint64_t reserve);
  // The bytes of one block entry.
  static size_t BlockBytes();

  SharedLedger() = default;
  // A view of the ledger at the start of a mapping, which outlives the view.
  // Its size depends only on `reserve`, which the caller has checked, and not
  // on memory that other processes can write to.
  SharedLedger(void* base, uint64_t reserve);

  // Formats zeroed memory as a ledger. The ledger is complete once it has the
  // magic number. Requires: no other process knows the segment yet.
  void Format(uint64_t tree, uint64_t segment);

  // Slots. SetSlot requires: the caller holds the kernel lock of the slot.
  SlotState slot_state(uint32_t slot) const;
  uint32_t slot_pid(uint32_t slot) const;
  void SetSlot(uint32_t slot, SlotState state, uint32_t pid);
  // Returns one more than the highest slot that was ever taken.
  uint32_t slot_limit() const;
  // Orphaned: the owner is dead, and nobody allocates here any more.
  bool orphaned() const;
  void SetOrphaned();

  // Blocks. The range of a block never changes. AppendBlock requires: the
  // calling process owns the segment, and its heap's mutex is held.
  uint32_t block_count() const;
  void AppendBlock(uint64_t offset, uint64_t capacity);
  uint64_t offset(uint32_t block) const;
  uint64_t capacity(uint32_t block) const;
  uint64_t generation(uint32_t block) const;

  // References. AddHolder requires: the caller has a reference that keeps the
  // block meanwhile, or calls HasGeneration afterwards.
  void AddHolder(uint32_t block, uint32_t slot);
  void ReleaseHolder(uint32_t block, uint32_t slot);
  // Issues a ticket. Never fails: when a block has no free ticket, messages
  // share one. Only the bits kNonceBits of `nonce` are used, and 0 is replaced
  // by 1. Requires: the caller holds the block.
  SharedTicket IssueTicket(uint32_t block,
                           uint32_t nonce,
                           uint64_t now,
                           MessageLife life = MessageLife::kUntilExpired);
  bool HasTicket(uint32_t block, SharedTicket ticket) const;
  // Redeems one use of a ticket; false if it was redeemed or has expired.
  bool RedeemTicket(uint32_t block, SharedTicket ticket);
  // Returns whether a block still has the generation, and keeps it as long as
  // the caller's holder bit is set. Requires: the caller has set that bit.
  bool HasGeneration(uint32_t block, uint64_t generation) const;

  bool Referenced(uint32_t block) const;
  bool Holds(uint32_t block, uint32_t slot) const;
  uint64_t TicketCount(uint32_t block) const;
  // Returns whether any message that was not received yet carries a block. If
  // not, the caller sees the slots of all receivers.
  bool HasMessages() const;
  // Frees a block: ends its generation. Returns false, and changes nothing, if
  // it has a reference. Requires: the caller is the owner with its heap's mutex
  // held, or holds the kernel lock of a dead owner's slot.
  bool TryFree(uint32_t block);

  // Clears all holder bits of a dead process and frees its slot. If the caller
  // is killed, another process can safely repeat this. Requires: the caller
  // holds the slot's kernel lock.
  void ReapSlot(uint32_t slot);
  // Expires the messages of a block that were sent before `deadline`.
  // Requires: the caller may call TryFree.
  void ExpireTickets(uint32_t block, uint64_t deadline);
  // Like ExpireTickets, for an orphaned segment: messages with a life of
  // kUntilOwnerEnds expire whenever they were sent.
  void ExpireOrphanedTickets(uint32_t block, uint64_t deadline);

  // Returns the number of released references. The owner looks for blocks to
  // free only when it has changed.
  uint64_t release_count() const;
  // Returns and clears the released marks of 64 blocks. A mark says that a
  // reference to its block was released.
  uint64_t TakeReleased(uint32_t word);

 private:
  static constexpr uint32_t kHolderWords = kSlots / 64;
  static constexpr uint32_t kTickets = 8;
  static constexpr uint32_t kNonceBits = 0x7fffffff;

  struct Slot {
    std::atomic<uint32_t> state;
    std::atomic<uint32_t> pid;
  };

  struct Ticket {
    // kUntilOwnerEnds << 63 | nonce << 32 | expiring << 31 | uses left; 0 is
    // free
    std::atomic<uint64_t> word;
    std::atomic<uint64_t> sent;  // time of the last message that shares it
  };

  struct Block {
    std::atomic<uint64_t> generation;  // even; odd while TryFree decides
    std::atomic<uint64_t> epoch;       // counts references created
    uint64_t offset;
    uint64_t capacity;
    std::array<std::atomic<uint64_t>, kHolderWords> holders;
    std::array<Ticket, kTickets> tickets;
    std::array<uint64_t, 4> padding;
  };

  struct Header {
    std::atomic<uint64_t> magic;
    uint64_t tree;
    uint64_t segment;
    uint64_t reserve;
    std::atomic<uint32_t> orphaned;
    std::atomic<uint32_t> slot_limit;
    std::atomic<uint32_t> block_count;
    uint32_t padding;
    alignas(64) std::atomic<uint64_t> release_count;
    alignas(64) std::array<Slot, kSlots> slots;
    // The released marks follow, one bit per block.
  };
  static_assert(offsetof(Header, reserve) == offsetof(Start, reserve) &&
                offsetof(Header, block_count) == offsetof(Start, block_count));

  // Atomics that are not lock-free would use a lock of the standard library. It
  // would be private to this process, and a killed process could leave it
  // locked.
  static_assert(std::atomic<uint64_t>::is_always_lock_free);
  static_assert(sizeof(Block) == 256, "four cache lines per block");

  Block& block(uint32_t index) const;
  void MarkReleased(uint32_t block);
  // Expires the tickets of a block that were sent before `deadline`, and those
  // that have one of the `bits`.
  void Expire(uint32_t block, uint64_t deadline, uint64_t bits);

  Header* header_{nullptr};
  std::atomic<uint64_t>* released_{nullptr};
  Block* blocks_{nullptr};
  uint32_t max_blocks_{0};
  uint64_t reserve_{0};
};

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
