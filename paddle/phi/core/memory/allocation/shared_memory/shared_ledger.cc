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

#include "paddle/phi/core/memory/allocation/shared_memory/shared_ledger.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace paddle {
namespace memory {
namespace allocation {

namespace {

// Also identifies the layout: a change of the layout needs another number.
constexpr uint64_t kMagic = 0x32474553444c4450;  // "PDLDSEG2"
// The bytes of addresses per block entry, which makes the ledger a quarter of
// the segment. Smaller blocks are rare enough.
constexpr uint64_t kReservePerBlock = 1024;
constexpr uint64_t kDeciding = 1;

constexpr uint64_t kUntilOwnerEndsBit = uint64_t{1} << 63;
// Set by a process that is about to expire the ticket. Cleared by a process
// that adds a message to the ticket.
constexpr uint64_t kExpiringBit = uint64_t{1} << 31;
constexpr uint64_t kMaxUses = kExpiringBit - 1;

uint64_t NonceOf(uint64_t word) { return (word & ~kUntilOwnerEndsBit) >> 32; }
uint64_t UsesOf(uint64_t word) { return word & kMaxUses; }

}  // namespace

// Memory orders. A reference that moves from one word to another (a ticket that
// becomes a holder bit, for example) must not escape Referenced(), which reads
// the words one by one. This argument needs one total order of accesses to
// several words. So every access that creates or looks for a reference is
// sequentially consistent. Two things need less:
// - Tensor data: ReleaseHolder (release) synchronizes with the load in
//   Referenced (acquire) that sees the bit cleared. So all accesses of a
//   process to a block happen before the block is reused.
// - Released marks: a process that takes a mark must also see that the
//   reference is gone, which was removed before the mark was set. MarkReleased
//   and ReapSlot (release) synchronize with TakeReleased (acquire). Marks are
//   changed only by read-modify-write operations, which continue the release
//   sequences of earlier ones. After a plain store, a process that takes two
//   marks of a word would synchronize with the setter of only one of them.
// A process that takes the kernel lock of a slot sees all writes that the
// lock's previous holder made before it lost the lock.

bool SharedLedger::Start::Valid() const {
  return magic == kMagic && reserve >= kMinReserve && reserve <= kMaxReserve &&
         reserve % kSharedPage == 0 && slot_limit <= kSlots &&
         block_count <= MaxBlocks(reserve);
}

uint64_t SharedLedger::Start::UsedBytes() const {
  return HeaderBytes(reserve) + uint64_t{block_count} * BlockBytes();
}

uint32_t SharedLedger::MaxBlocks(uint64_t reserve) {
  // Only whole words of marks.
  uint64_t blocks = reserve / kReservePerBlock / 64 * 64;
  return static_cast<uint32_t>(std::min<uint64_t>(blocks, kMaxBlocks));
}

size_t SharedLedger::HeaderBytes(uint64_t reserve) {
  return RoundUp(sizeof(Header) + MaxBlocks(reserve) / 8, kSharedPage);
}

size_t SharedLedger::BlockBytes() { return sizeof(Block); }

size_t SharedLedger::LedgerBytes(uint64_t reserve) {
  return HeaderBytes(reserve) +
         RoundUp(sizeof(Block) * MaxBlocks(reserve), kSharedPage);
}

SharedLedger::SharedLedger(void* base, uint64_t reserve)
    : header_(static_cast<Header*>(base)),
      released_(reinterpret_cast<std::atomic<uint64_t>*>(
          static_cast<char*>(base) + sizeof(Header))),
      blocks_(reinterpret_cast<Block*>(static_cast<char*>(base) +
                                       HeaderBytes(reserve))),
      max_blocks_(MaxBlocks(reserve)),
      reserve_(reserve) {}

SharedLedger::Block& SharedLedger::block(uint32_t index) const {
  return blocks_[index];
}

void SharedLedger::Format(uint64_t tree, uint64_t segment) {
  header_->tree = tree;
  header_->segment = segment;
  header_->reserve = reserve_;
  header_->slot_limit.store(kOwnerSlot + 1, std::memory_order_relaxed);
  // Release: a process that sees the magic number also sees the fields above.
  header_->magic.store(kMagic, std::memory_order_release);
}

SharedLedger::SlotState SharedLedger::slot_state(uint32_t slot) const {
  // Acquire: synchronizes with the release in SetSlot, so that the process
  // number belongs to the state.
  return static_cast<SlotState>(
      header_->slots[slot].state.load(std::memory_order_acquire));
}

uint32_t SharedLedger::slot_pid(uint32_t slot) const {
  return header_->slots[slot].pid.load(std::memory_order_relaxed);
}

void SharedLedger::SetSlot(uint32_t slot, SlotState state, uint32_t pid) {
  // The kernel lock orders successive users of a slot, so relaxed is enough for
  // them. The limit is for readers without the lock. They may miss a slot that
  // is just being taken, which holds nothing yet. Release: a reader that sees
  // the limit or the state also sees the earlier writes.
  uint32_t limit = header_->slot_limit.load(std::memory_order_relaxed);
  while (limit <= slot && !header_->slot_limit.compare_exchange_weak(
                              limit, slot + 1, std::memory_order_release)) {
  }
  header_->slots[slot].pid.store(pid, std::memory_order_relaxed);
  header_->slots[slot].state.store(state, std::memory_order_release);
}

uint32_t SharedLedger::slot_limit() const {
  // Acquire: synchronizes with the release in SetSlot. The bound prevents
  // accesses beyond the table if the header is damaged.
  uint32_t limit = header_->slot_limit.load(std::memory_order_acquire);
  return limit < kSlots ? limit : kSlots;
}

bool SharedLedger::orphaned() const {
  return header_->orphaned.load(std::memory_order_acquire) != 0;
}

void SharedLedger::SetOrphaned() {
  header_->orphaned.store(1, std::memory_order_release);
}

uint32_t SharedLedger::block_count() const {
  uint32_t count = header_->block_count.load(std::memory_order_acquire);
  return std::min(count, max_blocks_);
}

void SharedLedger::AppendBlock(uint64_t offset, uint64_t capacity) {
  uint32_t index = header_->block_count.load(std::memory_order_relaxed);
  block(index).offset = offset;
  block(index).capacity = capacity;
  // Release: a process that sees the count also sees the range of the block.
  header_->block_count.store(index + 1, std::memory_order_release);
}

uint64_t SharedLedger::offset(uint32_t index) const {
  return block(index).offset;
}

uint64_t SharedLedger::capacity(uint32_t index) const {
  return block(index).capacity;
}

uint64_t SharedLedger::generation(uint32_t index) const {
  return block(index).generation.load(std::memory_order_seq_cst) & ~kDeciding;
}

void SharedLedger::AddHolder(uint32_t index, uint32_t slot) {
  Block& b = block(index);
  b.holders[slot / 64].fetch_or(uint64_t{1} << (slot % 64),
                                std::memory_order_seq_cst);
  // Increase the epoch after the new reference is created and before its source
  // is released, see Referenced.
  b.epoch.fetch_add(1, std::memory_order_seq_cst);
}

void SharedLedger::ReleaseHolder(uint32_t index, uint32_t slot) {
  block(index).holders[slot / 64].fetch_and(~(uint64_t{1} << (slot % 64)),
                                            std::memory_order_seq_cst);
  MarkReleased(index);
}

void SharedLedger::MarkReleased(uint32_t index) {
  // If a process is killed just before this, only the mark is missing, and
  // ReapSlot sets it.
  // Release: a process that takes the mark (TakeReleased) sees that the
  // reference is gone.
  released_[index / 64].fetch_or(uint64_t{1} << (index % 64),
                                 std::memory_order_release);
  // Release: a process that sees the count also sees the mark.
  header_->release_count.fetch_add(1, std::memory_order_release);
}

uint64_t SharedLedger::release_count() const {
  // Acquire: TakeReleased sees the marks that were counted.
  return header_->release_count.load(std::memory_order_acquire);
}

uint64_t SharedLedger::TakeReleased(uint32_t word) {
  // Relaxed: the marks that the caller knows to be counted are visible, see
  // release_count. Most words have no mark, and an exchange of each would take
  // several times as long.
  if (released_[word].load(std::memory_order_relaxed) == 0) return 0;
  // Acquire: the references whose marks are taken here are gone, see
  // MarkReleased.
  return released_[word].exchange(0, std::memory_order_acquire);
}

SharedTicket SharedLedger::IssueTicket(uint32_t index,
                                       uint32_t nonce,
                                       uint64_t now,
                                       MessageLife life) {
  Block& b = block(index);
  nonce = std::max(nonce & kNonceBits, 1u);
  uint64_t bit = life == MessageLife::kUntilOwnerEnds ? kUntilOwnerEndsBit : 0;
  auto replace = [&](Ticket* ticket, uint64_t expected, uint64_t desired) {
    // Set the time before the ticket exists, so that the ticket never looks
    // old. Never decrease the time: another message may have taken the ticket
    // meanwhile. Relaxed: the exchange of the word, which follows, publishes
    // the time.
    uint64_t sent = ticket->sent.load(std::memory_order_relaxed);
    while (sent < now && !ticket->sent.compare_exchange_weak(
                             sent, now, std::memory_order_relaxed)) {
    }
    if (!ticket->word.compare_exchange_strong(
            expected, desired, std::memory_order_seq_cst)) {
      return false;
    }
    b.epoch.fetch_add(1, std::memory_order_seq_cst);
    return true;
  };
  for (;;) {
    // Relaxed: only a guess, which the exchange in `replace` verifies.
    for (uint32_t i = 0; i < kTickets; ++i) {
      if (b.tickets[i].word.load(std::memory_order_relaxed) == 0 &&
          replace(&b.tickets[i], 0, bit | uint64_t{nonce} << 32 | 1)) {
        return {i, nonce};
      }
    }
    uint32_t i = nonce % kTickets;
    uint64_t word = b.tickets[i].word.load(std::memory_order_relaxed);
    // A ticket shared by several messages lives as long as the longest-lived of
    // them, and has the time of the latest, see Expire.
    uint64_t kept = word & ~kExpiringBit & (bit | ~kUntilOwnerEndsBit);
    if (UsesOf(word) != 0 && UsesOf(word) != kMaxUses &&
        replace(&b.tickets[i], word, kept + 1)) {
      return {i, static_cast<uint32_t>(NonceOf(word))};
    }
  }
}

bool SharedLedger::HasTicket(uint32_t index, SharedTicket ticket) const {
  if (ticket.index >= kTickets || ticket.nonce == 0) return false;
  uint64_t word =
      block(index).tickets[ticket.index].word.load(std::memory_order_seq_cst);
  return NonceOf(word) == ticket.nonce && UsesOf(word) != 0;
}

bool SharedLedger::RedeemTicket(uint32_t index, SharedTicket ticket) {
  if (ticket.index >= kTickets || ticket.nonce == 0) return false;
  std::atomic<uint64_t>& stored = block(index).tickets[ticket.index].word;
  uint64_t word = stored.load(std::memory_order_seq_cst);
  while (NonceOf(word) == ticket.nonce && UsesOf(word) != 0) {
    uint64_t left = UsesOf(word) == 1 ? 0 : word - 1;
    if (stored.compare_exchange_weak(word, left, std::memory_order_seq_cst)) {
      return true;
    }
  }
  return false;
}

bool SharedLedger::HasGeneration(uint32_t index, uint64_t generation) const {
  // TryFree makes the generation odd before it looks for holders. The caller
  // has set its bit before it reads the generation here. All four accesses are
  // in the total order of sequentially consistent operations, so at least one
  // of the two processes sees the other's write. An owner that was killed while
  // it decides never finishes; an owner that is only slow does so within a
  // second.
  for (int i = 0; i < 1100; ++i) {
    uint64_t seen = block(index).generation.load(std::memory_order_seq_cst);
    if (!(seen & kDeciding)) return seen == generation;
    if (i < 100) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  return false;
}

bool SharedLedger::Referenced(uint32_t index) const {
  const Block& b = block(index);
  // The words are not read at one moment. A reference can escape only by moving
  // from a word that was not read yet to a word that was already read. For
  // this, it is created, and its source released, while the words are read, and
  // the epoch is increased in between. So if the epoch is unchanged, all words
  // were zero at the same time.
  uint64_t epoch = b.epoch.load(std::memory_order_seq_cst);
  for (const auto& word : b.holders) {
    if (word.load(std::memory_order_seq_cst) != 0) return true;
  }
  for (const auto& ticket : b.tickets) {
    if (ticket.word.load(std::memory_order_seq_cst) != 0) return true;
  }
  return b.epoch.load(std::memory_order_seq_cst) != epoch;
}

bool SharedLedger::Holds(uint32_t index, uint32_t slot) const {
  return (block(index).holders[slot / 64].load(std::memory_order_seq_cst) &
          (uint64_t{1} << (slot % 64))) != 0;
}

uint64_t SharedLedger::TicketCount(uint32_t index) const {
  uint64_t count = 0;
  // Acquire: a process that sees that a ticket was redeemed also sees the slot
  // that the receiver took before, see ProcessTree::Leave. Other callers need
  // no order: the count is only shown to users, or the caller holds the locks
  // of all slots, or asks about messages that it has sent itself with its
  // heap's mutex held.
  for (const auto& ticket : block(index).tickets) {
    count += UsesOf(ticket.word.load(std::memory_order_acquire));
  }
  return count;
}

bool SharedLedger::HasMessages() const {
  for (uint32_t i = 0, n = block_count(); i < n; ++i) {
    if (TicketCount(i) != 0) return true;
  }
  return false;
}

bool SharedLedger::TryFree(uint32_t index) {
  Block& b = block(index);
  // Relaxed: no other process may change the generation now, see the header
  // file.
  uint64_t old = b.generation.load(std::memory_order_relaxed) & ~kDeciding;
  b.generation.store(old | kDeciding, std::memory_order_seq_cst);
  bool referenced = Referenced(index);
  b.generation.store(referenced ? old : old + 2, std::memory_order_seq_cst);
  return !referenced;
}

void SharedLedger::ReapSlot(uint32_t slot) {
  uint64_t bit = uint64_t{1} << (slot % 64);
  uint32_t count = block_count();
  for (uint32_t i = 0; i < count; ++i) {
    block(i).holders[slot / 64].fetch_and(~bit, std::memory_order_seq_cst);
  }
  // Mark every block, since the dead process, or an earlier process that reaped
  // it, may have been killed between clearing a bit and setting the mark. Do
  // not use a store: it would break the release sequence of a mark that is
  // already set. Release: see MarkReleased.
  for (uint32_t word = 0; word * 64 < count; ++word) {
    released_[word].fetch_or(~uint64_t{0}, std::memory_order_release);
  }
  header_->release_count.fetch_add(1, std::memory_order_release);
  SetSlot(slot, kFree, 0);
}

void SharedLedger::ExpireTickets(uint32_t index, uint64_t deadline) {
  Expire(index, deadline, 0);
}

void SharedLedger::ExpireOrphanedTickets(uint32_t index, uint64_t deadline) {
  Expire(index, deadline, kUntilOwnerEndsBit);
}

void SharedLedger::Expire(uint32_t index, uint64_t deadline, uint64_t bits) {
  for (auto& ticket : block(index).tickets) {
    // Every change of the word is a read-modify-write, so this load
    // synchronizes with all earlier ones. The time that is read next is
    // therefore at least the time of each message that the word counts.
    uint64_t word = ticket.word.load(std::memory_order_seq_cst);
    auto expired = [&] {
      return ticket.sent.load(std::memory_order_relaxed) <= deadline ||
             (word & bits) != 0;
    };
    if (word == 0 || !expired()) continue;
    // Meanwhile one message may be sent with this ticket and another be
    // received, so that the word has its old value again (ABA). So mark the
    // word first, and read the time again. A message that is sent clears the
    // mark. So the time is the latest of all messages that the marked word
    // counts.
    uint64_t marked = word | kExpiringBit;
    if (!ticket.word.compare_exchange_strong(
            word, marked, std::memory_order_seq_cst)) {
      continue;
    }
    uint64_t next = expired() ? 0 : marked & ~kExpiringBit;
    if (ticket.word.compare_exchange_strong(
            marked, next, std::memory_order_seq_cst) &&
        next == 0) {
      MarkReleased(index);
    }
  }
}

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
