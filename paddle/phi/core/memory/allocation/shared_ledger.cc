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

#include "paddle/phi/core/memory/allocation/shared_ledger.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace paddle {
namespace memory {
namespace allocation {

namespace {

// Names the layout too: another layout takes another number.
constexpr uint64_t kMagic = 0x32474553444c4450;  // "PDLDSEG2"
// Addresses for each block that there is a place for: smaller ones are rare
// enough, and a ledger of a quarter of the addresses is large enough.
constexpr uint64_t kReservePerBlock = 1024;
constexpr uint64_t kDeciding = 1;

constexpr uint64_t kOfCreatorBit = uint64_t{1} << 63;
// Set by a process that is about to expire the ticket, cleared by a process
// that adds a message to it.
constexpr uint64_t kExpiringBit = uint64_t{1} << 31;
constexpr uint64_t kMaxUses = kExpiringBit - 1;

uint64_t NonceOf(uint64_t word) { return (word & ~kOfCreatorBit) >> 32; }
uint64_t UsesOf(uint64_t word) { return word & kMaxUses; }

}  // namespace

// On memory order. A reference that moves from one word to another (a ticket
// that becomes a holder bit, say) must not slip past Referenced(), which reads
// the words one by one. That is an argument over several words, so everything
// that makes or looks for a reference is sequentially consistent. Two things
// need less:
// - Data of the tensor: the release in DropHolder pairs with the acquire in
//   Referenced, so that what a process read or wrote in a block is over before
//   the block is used anew.
// - News of releases: whoever takes a mark must also see the reference gone
//   that was dropped before the mark was set. The release in MarkReleased and
//   ReapSlot pairs with the acquire in TakeReleased. A mark is only ever
//   changed by operations that read it too: one of two marks that are taken
//   together would otherwise bring its taker the word of the other alone.
// A process that takes the kernel lock of a slot sees all that the process that
// had it before did.

bool SharedLedger::Start::Valid() const {
  return magic == kMagic && reserve >= kMinReserve && reserve <= kMaxReserve &&
         reserve % kSharedPage == 0 && slot_limit <= kSlots &&
         block_count <= MaxBlocks(reserve);
}

uint64_t SharedLedger::Start::UsedBytes() const {
  return HeaderBytes(reserve) + uint64_t{block_count} * BlockBytes();
}

uint32_t SharedLedger::MaxBlocks(uint64_t reserve) {
  // Whole words of marks.
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

void SharedLedger::Format(uint64_t family, uint64_t segment) {
  header_->family = family;
  header_->segment = segment;
  header_->reserve = reserve_;
  header_->slot_limit.store(kOwnerSlot + 1, std::memory_order_relaxed);
  // Release: who sees the number sees the fields above.
  header_->magic.store(kMagic, std::memory_order_release);
}

SharedLedger::SlotState SharedLedger::slot_state(uint32_t slot) const {
  // Acquire: with the state comes the process that set it, see SetSlot.
  return static_cast<SlotState>(
      header_->slots[slot].state.load(std::memory_order_acquire));
}

uint32_t SharedLedger::slot_pid(uint32_t slot) const {
  return header_->slots[slot].pid.load(std::memory_order_relaxed);
}

void SharedLedger::SetSlot(uint32_t slot, SlotState state, uint32_t pid) {
  // The kernel lock orders two owners of a slot; the limit is for readers
  // without it, who may miss a slot that is just being taken: it holds nothing.
  uint32_t limit = header_->slot_limit.load(std::memory_order_relaxed);
  while (limit <= slot && !header_->slot_limit.compare_exchange_weak(
                              limit, slot + 1, std::memory_order_release)) {
  }
  header_->slots[slot].pid.store(pid, std::memory_order_relaxed);
  header_->slots[slot].state.store(state, std::memory_order_release);
}

uint32_t SharedLedger::slot_limit() const {
  // The bound keeps a scribbled header from leading out of the table.
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
  // Release: who sees the count sees the range.
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
  // After the new reference and before its source goes: see Referenced.
  b.epoch.fetch_add(1, std::memory_order_seq_cst);
}

void SharedLedger::DropHolder(uint32_t index, uint32_t slot) {
  block(index).holders[slot / 64].fetch_and(~(uint64_t{1} << (slot % 64)),
                                            std::memory_order_seq_cst);
  MarkReleased(index);
}

void SharedLedger::MarkReleased(uint32_t index) {
  // A process killed before this loses only the news; ReapSlot makes up for it.
  // Release: a process that takes the mark sees the reference gone, see
  // TakeReleased.
  released_[index / 64].fetch_or(uint64_t{1} << (index % 64),
                                 std::memory_order_release);
  // Release: a process that sees the count finds the mark.
  header_->release_count.fetch_add(1, std::memory_order_release);
}

uint64_t SharedLedger::release_count() const {
  // Acquire: the marks that were counted are there for TakeReleased.
  return header_->release_count.load(std::memory_order_acquire);
}

uint64_t SharedLedger::TakeReleased(uint32_t word) {
  // Acquire: the references are gone whose marks are taken, see MarkReleased.
  return released_[word].exchange(0, std::memory_order_acquire);
}

SharedTicket SharedLedger::IssueTicket(uint32_t index,
                                       uint32_t nonce,
                                       uint64_t now,
                                       MessageLife life) {
  Block& b = block(index);
  nonce = std::max(nonce & kNonceBits, 1u);
  uint64_t bit = life == MessageLife::kOfCreator ? kOfCreatorBit : 0;
  auto replace = [&](Ticket* ticket, uint64_t word, uint64_t by) {
    // Before the ticket exists, so that it is never taken for an old one; and
    // never back, if another took the place while this one was held up.
    // Relaxed: the word, which is changed next, publishes it to readers of
    // both.
    uint64_t sent = ticket->sent.load(std::memory_order_relaxed);
    while (sent < now && !ticket->sent.compare_exchange_weak(
                             sent, now, std::memory_order_relaxed)) {
    }
    if (!ticket->word.compare_exchange_strong(
            word, by, std::memory_order_seq_cst)) {
      return false;
    }
    b.epoch.fetch_add(1, std::memory_order_seq_cst);
    return true;
  };
  for (;;) {
    // Relaxed: guesses, which the exchange in `replace` tries.
    for (uint32_t i = 0; i < kTickets; ++i) {
      if (b.tickets[i].word.load(std::memory_order_relaxed) == 0 &&
          replace(&b.tickets[i], 0, bit | uint64_t{nonce} << 32 | 1)) {
        return {i, nonce};
      }
    }
    uint32_t i = nonce % kTickets;
    uint64_t word = b.tickets[i].word.load(std::memory_order_relaxed);
    // What messages share lives as long as the one that lives longest, and is
    // as young as the youngest: see Expire.
    uint64_t kept = word & ~kExpiringBit & (bit | ~kOfCreatorBit);
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
  std::atomic<uint64_t>& place = block(index).tickets[ticket.index].word;
  uint64_t word = place.load(std::memory_order_seq_cst);
  while (NonceOf(word) == ticket.nonce && UsesOf(word) != 0) {
    uint64_t left = UsesOf(word) == 1 ? 0 : word - 1;
    if (place.compare_exchange_weak(word, left, std::memory_order_seq_cst)) {
      return true;
    }
  }
  return false;
}

bool SharedLedger::StillIs(uint32_t index, uint64_t generation) const {
  // TryFree announces itself in the generation before it looks for holders;
  // the caller set its bit before it reads the generation. One of the two sees
  // the other. A creator that is killed while deciding never answers; one that
  // is only slow does within a second.
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
  // The words are not read at one moment. A reference can escape only by
  // moving from a word not yet read into one already read; then it was made
  // and its source dropped during the reading, with the epoch counted up in
  // between. An epoch that stood still says that there was none.
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
  // Relaxed: a figure; or asked with the locks of all slots, after whoever had
  // one of them, or after all have said that they leave; or asked of what this
  // process has sent itself, under the mutex of its heap.
  for (const auto& ticket : block(index).tickets) {
    count += UsesOf(ticket.word.load(std::memory_order_relaxed));
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
  // Relaxed: nobody else may change it now.
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
  // News of every block, since the dead one, or an earlier reaper of it, may
  // have dropped a bit and been killed before it said so.
  // Not by a store, which would break the release sequence of a mark that is
  // set already.
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
  Expire(index, deadline, kOfCreatorBit);
}

void SharedLedger::Expire(uint32_t index, uint64_t deadline, uint64_t bits) {
  for (auto& ticket : block(index).tickets) {
    // Acquire, with every change of the word: the time of each message that the
    // word counts is seen, or a later one.
    uint64_t word = ticket.word.load(std::memory_order_seq_cst);
    auto expired = [&] {
      return ticket.sent.load(std::memory_order_relaxed) <= deadline ||
             (word & bits) != 0;
    };
    if (word == 0 || !expired()) continue;
    // A message may be sent by this ticket now and another be received, after
    // which the word is as it was. So it is marked first, which a message that
    // is sent undoes, and the time is read again: it is of all messages that
    // the marked word counts.
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
