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

// Memory is given to a segment, and taken from it, in multiples of this.
constexpr uint64_t kSharedPage = 4096;

constexpr uint64_t RoundUp(uint64_t value, uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

// How long a message counts that nobody receives: until it is given up, or no
// longer than the process that made its segment lives.
enum class MessageLife { kUntilGivenUp, kOfCreator };

// What a message carries to claim the reference that was counted for it.
struct SharedTicket {
  uint32_t index;
  uint32_t nonce;
};

// The reference counts of one segment, kept in the segment itself.
//
// Invariant: a block that any living process holds, or any message in flight
// carries, has a holder bit or a ticket at every moment; so its memory is not
// given to another tensor. A process that dies can only leave a bit or a ticket
// behind, never take one away that is not its own.
//
// References are only made from references: a holder issues a ticket, and who
// redeems it becomes a holder *before* the ticket is spent. All operations are
// single atomic steps on memory that is never locked, so a process may be
// killed between any two of them.
//
// Slot 0 never dies: its bit pins a block for the life of the segment.
class SharedLedger {
 public:
  static constexpr uint32_t kSlots = 512;
  static constexpr uint32_t kPinnedSlot = 0;
  static constexpr uint32_t kOwnerSlot = 1;
  static constexpr uint32_t kMaxBlocks = 1u << 18;
  static constexpr uint64_t kMinReserve = uint64_t{1} << 20;
  static constexpr uint64_t kMaxReserve = uint64_t{1} << 46;

  enum SlotState : uint32_t { kFree = 0, kTaken = 1, kLeaving = 2 };

  // The first bytes of a ledger, as numbers to check: a file may say anything.
  struct Start {
    uint64_t magic;
    uint64_t family;
    uint64_t segment;
    uint64_t reserve;
    uint32_t orphaned;
    uint32_t slot_limit;
    uint32_t block_count;

    // Whether it is of a ledger of this layout, and its numbers can be.
    bool Valid() const;
    // The bytes of the ledger that are in use. Requires: Valid().
    uint64_t UsedBytes() const;
  };

  // Of a segment with `reserve` bytes of addresses: the most blocks, the bytes
  // before the blocks' entries, and the ledger with all of its entries.
  static uint32_t MaxBlocks(uint64_t reserve);
  static size_t HeaderBytes(uint64_t reserve);
  static size_t LedgerBytes(uint64_t reserve);
  // The bytes of an entry.
  static size_t BlockBytes();

  SharedLedger() = default;
  // A view of the ledger at the start of a mapping, which outlives the view.
  // How large it is follows from `reserve`, which has been checked, and from
  // nothing that others may write to.
  SharedLedger(void* base, uint64_t reserve);

  // Makes zeroed memory a ledger, complete when the magic number is there.
  void Format(uint64_t family, uint64_t segment);

  // Slots. Whoever holds the kernel lock of a slot may change it.
  SlotState slot_state(uint32_t slot) const;
  uint32_t slot_pid(uint32_t slot) const;
  void SetSlot(uint32_t slot, SlotState state, uint32_t pid);
  // One more than the highest slot ever taken.
  uint32_t slot_limit() const;
  // The creator is gone: nobody allocates here any more.
  bool orphaned() const;
  void SetOrphaned();

  // Blocks. Only the creator of the segment appends; the range of a block
  // never changes.
  uint32_t block_count() const;
  void AppendBlock(uint64_t offset, uint64_t capacity);
  uint64_t offset(uint32_t block) const;
  uint64_t capacity(uint32_t block) const;
  uint64_t generation(uint32_t block) const;

  // References.
  void AddHolder(uint32_t block, uint32_t slot);
  void DropHolder(uint32_t block, uint32_t slot);
  // The caller holds the block. Never fails: when all places for tickets are
  // taken, messages share one.
  // Of the nonce, kNonceBits count, and 0 is as 1.
  SharedTicket IssueTicket(uint32_t block,
                           uint32_t nonce,
                           uint64_t now,
                           MessageLife life = MessageLife::kUntilGivenUp);
  bool HasTicket(uint32_t block, SharedTicket ticket) const;
  // Spends one use of a ticket; false if it was spent or given up before.
  bool RedeemTicket(uint32_t block, SharedTicket ticket);
  // The caller has set its holder bit and has no valid ticket. True if the
  // block still is what `generation` says, and will be as long as the bit is.
  bool StillIs(uint32_t block, uint64_t generation) const;

  bool Referenced(uint32_t block) const;
  bool Holds(uint32_t block, uint32_t slot) const;
  uint64_t TicketCount(uint32_t block) const;
  // Whether a message that was not received yet carries one of the blocks.
  bool HasMessages() const;
  // Ends the generation of a block that nobody references. False, and no
  // change, if somebody does. Called by one process at a time: the creator,
  // or whoever holds the lock of the creator's slot after its death.
  bool TryFree(uint32_t block);

  // The caller holds the lock of a dead process's slot: takes back what it
  // held and frees the slot. May be killed and repeated.
  void ReapSlot(uint32_t slot);
  // Gives up the messages of a block that were sent before `deadline`. Called
  // by one process at a time, the one that may call TryFree.
  void ExpireTickets(uint32_t block, uint64_t deadline);
  // The same in a segment whose creator is dead.
  void ExpireOrphanedTickets(uint32_t block, uint64_t deadline);

  // Counts releases, so that the creator looks only when there is news.
  uint64_t release_count() const;
  // Takes the mark that a block had a reference dropped.
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
    // kOfCreator << 63 | nonce << 32 | expiring << 31 | uses left; 0 is free
    std::atomic<uint64_t> word;
    std::atomic<uint64_t> sent;  // when the last message was that uses it
  };

  struct Block {
    std::atomic<uint64_t> generation;  // even; odd while TryFree decides
    std::atomic<uint64_t> epoch;       // counts references made
    uint64_t offset;
    uint64_t capacity;
    std::array<std::atomic<uint64_t>, kHolderWords> holders;
    std::array<Ticket, kTickets> tickets;
    std::array<uint64_t, 4> padding;
  };

  struct Header {
    std::atomic<uint64_t> magic;
    uint64_t family;
    uint64_t segment;
    uint64_t reserve;
    std::atomic<uint32_t> orphaned;
    std::atomic<uint32_t> slot_limit;
    std::atomic<uint32_t> block_count;
    uint32_t padding;
    alignas(64) std::atomic<uint64_t> release_count;
    alignas(64) std::array<Slot, kSlots> slots;
    // The marks of released blocks follow, one bit per block.
  };
  static_assert(offsetof(Header, reserve) == offsetof(Start, reserve) &&
                offsetof(Header, block_count) == offsetof(Start, block_count));

  // Locks between processes live in the hardware or not at all.
  static_assert(std::atomic<uint64_t>::is_always_lock_free);
  static_assert(sizeof(Block) == 256, "four cache lines a block");

  Block& block(uint32_t index) const;
  void MarkReleased(uint32_t block);
  // Gives up the tickets of a block that were sent before `deadline`, and those
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
