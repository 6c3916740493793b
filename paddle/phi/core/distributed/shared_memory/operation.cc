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

#include "paddle/phi/core/distributed/shared_memory/operation.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "paddle/phi/core/distributed/shared_memory/futex.h"

namespace phi {
namespace distributed {

namespace {

using Kind = CollectiveError::Kind;

// How long a process without memory may take until it counts as dead.
constexpr std::chrono::seconds kExitTime{1};
constexpr int kSender = 0;  // the member of an operation between two ranks
// A later deadline could overflow its type.
constexpr std::chrono::hours kLongestTimeout{24 * 365};

bool IsSame(const OperationInfo& a, const OperationInfo& b, bool with_name) {
  return (!with_name || std::strcmp(a.name, b.name) == 0) &&
         std::strcmp(a.element_type, b.element_type) == 0 &&
         std::strcmp(a.reduction, b.reduction) == 0 && a.root == b.root &&
         a.bytes == b.bytes;
}

uint32_t ChannelBetween(const GroupMemory& group,
                        const GroupLayout& layout,
                        int sender,
                        int receiver) {
  auto is_rank = [&](int rank) { return rank >= 0 && rank < group.size(); };
  if (is_rank(sender) && is_rank(receiver) && sender != receiver &&
      (group.rank() == sender || group.rank() == receiver)) {
    return layout.PairChannel(sender, receiver);
  }
  throw CollectiveError(
      Kind::kInvalid,
      group.rank(),
      "Rank " + std::to_string(group.rank()) + " of " +
          std::to_string(group.size()) +
          " cannot take part in a transfer from rank " +
          std::to_string(sender) + " to rank " + std::to_string(receiver) +
          ". Pass two different ranks, one of them the calling rank.");
}

}  // namespace

Operation::Operation(GroupMemory* group, uint32_t channel, Milliseconds timeout)
    : group_(group),
      channel_(channel),
      state_(group->channel_state(channel)),
      timeout_(timeout),
      own_member_(group->layout_.MemberOf(channel, group->rank())) {}

Operation::Operation(GroupMemory* group,
                     const OperationInfo& info,
                     Milliseconds timeout,
                     Clock::time_point start)
    : Operation(group, GroupLayout::kAllRanks, timeout) {
  Begin(info, start);
}

Operation::Operation(GroupMemory* group,
                     const OperationInfo& info,
                     int sender,
                     int receiver,
                     Milliseconds timeout)
    : Operation(group,
                ChannelBetween(*group, group->layout_, sender, receiver),
                timeout) {
  Begin(info, Clock::now());
}

void Operation::Begin(const OperationInfo& info, Clock::time_point start) {
  // Check before locking: in a child of fork the mutex may be locked forever.
  group_->ThrowIfUnusable();
  turn_ = std::unique_lock<std::mutex>(state_->mutex);
  group_->ThrowIfUnusable();
  info_ = info;
  deadline_ = start + std::min<Milliseconds>(timeout_, kLongestTimeout);
  sequence_ = state_->sequence + 1;
  // The entry belonged to an earlier operation that others may not have ended.
  uint64_t entries = group_->layout_.entries(channel_);
  if (sequence_ > entries) WaitForEnd(sequence_ - entries);
  // A rank that never waits would otherwise not detect a death.
  CheckRanks();
  state_->sequence = sequence_;
  OperationEntry* own = EntryOf(own_member_);
  // GroupMemory::Describe on another rank uses the sequence to detect that the
  // fields change. Acquire and release keep the writes to the fields between
  // the exchange and the store. Members read the fields only after they have
  // seen a phase.
  own->sequence.exchange(0, std::memory_order_acquire);
  own->transfer_block = 0;
  own->info = info;
  own->input = {};
  own->output = {};
  own->sequence.store(sequence_, std::memory_order_release);
  // Release: a rank that sees the number with acquire sees the entry.
  group_->rank_state(group_->rank())
      ->last_operation.store(OperationId(channel_, sequence_),
                             std::memory_order_release);
  begun_ = true;
}

Operation::~Operation() {
  // A child of fork destroys copies of its parent's operations.
  if (!begun_ || ended_ || group_->forked_.load(std::memory_order_relaxed)) {
    return;
  }
  // Acquire, pairs with the release in Leave: this thread knows that the rank's
  // state is kLeft.
  if (!group_->left_.load(std::memory_order_acquire)) {
    group_->Fail(Kind::kAborted,
                 group_->rank(),
                 group_->Describe(group_->rank()) + " aborted " + Text() +
                     " because of its own error. See that rank's output, and "
                     "start all ranks again.");
  }
  // From now on the caller may change the buffers that others read in place:
  // see ConfirmReads.
  group_->header()->failure.fetch_add(0, std::memory_order_acq_rel);
}

void Operation::Publish(uint64_t phase) {
  if (phase < 1 || phase >= kEndPhase) {
    throw CollectiveError(Kind::kInvalid,
                          group_->rank(),
                          "Cannot publish phase " + std::to_string(phase) +
                              " of " + Text() + ". Publish phases from 1 to " +
                              std::to_string(kEndPhase - 1) + ".");
  }
  Store(phase);
}

void Operation::End() {
  Store(kEndPhase);
  ended_ = true;
  turn_.unlock();
}

void Operation::Refuse(const std::string& reason) {
  const std::string text = Text();
  End();
  throw CollectiveError(
      Kind::kInvalid, group_->rank(), "Cannot run " + text + ": it " + reason);
}

void Operation::Store(uint64_t phase) {
  ChannelMember* own = group_->member(channel_, own_member_);
  // Sequentially consistent, together with the count in Sleep: either this
  // thread sees the sleeper, or the sleeper sees the phase. This includes
  // release: a member that sees the phase with acquire sees what this member
  // wrote before.
  own->progress.store(ProgressOf(sequence_, phase), std::memory_order_seq_cst);
  if (own->sleepers.load(std::memory_order_seq_cst) != 0) {
    WakeSleepers(own->progress);
  }
}

void Operation::WaitFor(int rank, uint64_t phase) {
  int member = MemberOf(rank);
  if (member == own_member_) return;
  WaitForMember(member, ProgressOf(sequence_, phase));
  if (state_->compared[member] != sequence_) Compare(member);
}

void Operation::WaitForAll(uint64_t phase) {
  for (int i = 0; i < group_->layout_.members(channel_); ++i) {
    WaitFor(group_->layout_.RankOf(channel_, i), phase);
  }
}

void Operation::WaitForEnd(uint64_t sequence) {
  for (int i = 0; i < group_->layout_.members(channel_); ++i) {
    if (i != own_member_) WaitForMember(i, ProgressOf(sequence, kEndPhase));
  }
}

void Operation::WaitForMember(int member, uint64_t progress) {
  using Clock = GroupMemory::Clock;
  ChannelMember* other = group_->member(channel_, member);
  auto has_arrived = [&] {
    // Acquire, pairs with the release in Store.
    return other->progress.load(std::memory_order_acquire) >= progress;
  };
  if (has_arrived() || SpinUntil(*other, progress)) return;
  Clock::time_point next_check = Clock::now() + GroupMemory::kCheckInterval;
  Clock::time_point next_interrupt =
      Clock::now() + GroupMemory::kInterruptInterval;
  for (;;) {
    Sleep(other, progress);
    if (has_arrived()) return;
    group_->ThrowIfUnusable();
    Clock::time_point now = Clock::now();
    if (now >= next_check) {
      group_->CheckAlive(channel_, sequence_);
      group_->ThrowIfUnusable();
      next_check = now + GroupMemory::kCheckInterval;
    }
    if (now >= next_interrupt && group_->check_interrupt_) {
      group_->check_interrupt_();
      next_interrupt = now + GroupMemory::kInterruptInterval;
    }
    if (now >= deadline_) ThrowTimedOut(member);
  }
}

bool Operation::SpinUntil(const ChannelMember& member, uint64_t progress) {
  // Reading the clock takes as long as several polls.
  constexpr int kPolls = 32;
  // An unsuccessful spin means that there are too many processes, from which
  // spinning takes time, or that the other rank computes for long. So back off.
  constexpr int kMaxSkipped = 16;
  if (state_->spins_to_skip > 0) {
    --state_->spins_to_skip;
    return false;
  }
  if (!group_->MaySpin()) return false;
  auto end = GroupMemory::Clock::now() + group_->spin_;
  do {
    for (int i = 0; i < kPolls; ++i) {
      if (member.progress.load(std::memory_order_acquire) >= progress) {
        state_->failed_spins = 0;
        return true;
      }
      Pause();
    }
  } while (GroupMemory::Clock::now() < end);
  ++state_->failed_spins;
  state_->spins_to_skip = std::min(2 * state_->failed_spins, kMaxSkipped);
  return false;
}

void Operation::Sleep(ChannelMember* member, uint64_t progress) const {
  // Sequentially consistent: see Store and GroupMemory::Fail.
  member->sleepers.fetch_add(1, std::memory_order_seq_cst);
  uint64_t seen = member->progress.load(std::memory_order_seq_cst);
  auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(
      deadline_ - GroupMemory::Clock::now());
  if (seen < progress && left.count() > 0 &&
      group_->header()->failure.load(std::memory_order_seq_cst) == 0) {
    // A failure or Leave() just before this point does not wake this thread,
    // but the thread sees it after the interval.
    SleepWhileEqual(
        member->progress,
        seen,
        std::min<std::chrono::nanoseconds>(left, GroupMemory::kCheckInterval));
  }
  // Relaxed: one sleeper too many in the count costs one system call.
  member->sleepers.fetch_sub(1, std::memory_order_relaxed);
}

void Operation::Compare(int member) {
  state_->compared[member] = sequence_;
  bool is_pair = channel_ != GroupLayout::kAllRanks;
  if (IsSame(info_, EntryOf(member)->info, !is_pair)) return;
  int rank = group_->layout_.RankOf(channel_, member);
  group_->Fail(Kind::kMismatched,
               rank,
               group_->Describe(group_->rank()) + " called " + Text() +
                   ", but " + group_->Describe(rank) + " called " +
                   group_->Describe(channel_, rank, sequence_) +
                   ". All ranks must call the same operations in the same "
                   "order, with the same sizes and types.");
  group_->ThrowIfUnusable();
}

void Operation::ThrowTimedOut(int member) {
  int rank = group_->layout_.RankOf(channel_, member);
  group_->Fail(Kind::kTimedOut,
               rank,
               group_->Describe(group_->rank()) + " waited " +
                   std::to_string(timeout_.count()) + " ms in " + Text() +
                   " for " + group_->Describe(rank) +
                   ", which did not arrive. " + group_->LastOperationOf(rank) +
                   " Check why it is stopped, slow or in other code, or pass a "
                   "longer timeout.");
  group_->ThrowFailure();
}

void Operation::CheckRanks() {
  group_->CheckAliveIfDue(channel_, sequence_);
  group_->ThrowIfUnusable();
}

void Operation::ConfirmReads() {
  // The owner's destructor of the operation changes the word, too, so one of
  // the two is the first. If it is this one, then the owner acquires what this
  // thread releases: the owner's changes come after the reads. If it is the
  // owner, then this thread acquires what the owner knew: that the group has
  // failed, or that the owner has left.
  group_->header()->failure.fetch_add(0, std::memory_order_acq_rel);
  // Not the processes: reading their status takes 15 to 30 us. A rank that is
  // exiting, but still has its lock, does not change its memory. Other
  // processes may, see SharedMemoryResolver::IsKept.
  group_->CheckAlive(channel_, sequence_, /*check_process=*/false);
  group_->ThrowIfUnusable();
}

void Operation::ThrowUnreadable(int rank, const std::string& reason) {
  auto end = std::min(deadline_, GroupMemory::Clock::now() + kExitTime);
  do {
    group_->CheckAlive(channel_, sequence_);
    group_->ThrowIfUnusable();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  } while (GroupMemory::Clock::now() < end);
  group_->Fail(Kind::kAborted,
               rank,
               group_->Describe(group_->rank()) + " cannot read a buffer of " +
                   group_->Describe(rank) + " in " + Text() + ": " + reason);
  group_->ThrowFailure();
}

std::string Operation::Text() const {
  return group_->Describe(channel_, sequence_, info_);
}

void Operation::set_input(const BufferLocation& location) {
  EntryOf(own_member_)->input = location;
}

void Operation::set_output(const BufferLocation& location) {
  EntryOf(own_member_)->output = location;
}

const BufferLocation& Operation::input_of(int rank) const {
  return EntryOf(MemberOf(rank))->input;
}

const BufferLocation& Operation::output_of(int rank) const {
  return EntryOf(MemberOf(rank))->output;
}

char* Operation::inline_data(int rank) const {
  return group_->At(
      group_->layout_.InlineAt(channel_, MemberOf(rank), sequence_));
}

uint64_t Operation::inline_bytes() const {
  return group_->layout_.inline_bytes(channel_);
}

char* Operation::own_staging() {
  if (transfer_block() != 0) return TransferMemoryOf(group_->rank());
  if (state_->staged != sequence_) {
    if (state_->staged != 0) WaitForEnd(state_->staged);
    state_->staged = sequence_;
  }
  return group_->At(group_->layout_.StagingAt(channel_, own_member_));
}

const char* Operation::staging_of(int rank) const {
  if (transfer_block() != 0) return TransferMemoryOf(rank);
  return group_->At(group_->layout_.StagingAt(channel_, MemberOf(rank)));
}

uint64_t Operation::staging_bytes() const {
  return transfer_block() != 0 ? GroupLayout::kTransferBytes
                               : group_->layout_.staging_bytes(channel_);
}

void Operation::EnlargeStaging() {
  if (channel_ == GroupLayout::kAllRanks) return;
  EntryOf(own_member_)->transfer_block =
      group_->TakeTransferBlock(channel_, sequence_);
}

uint64_t Operation::transfer_block() const {
  if (channel_ == GroupLayout::kAllRanks) return 0;
  return EntryOf(kSender)->transfer_block;
}

char* Operation::TransferMemoryOf(int rank) const {
  return group_->At(group_->layout_.TransferAt(rank, transfer_block() - 1));
}

OperationEntry* Operation::EntryOf(int member) const {
  return group_->entry(channel_, member, sequence_);
}

int Operation::MemberOf(int rank) const {
  return group_->layout_.MemberOf(channel_, rank);
}

}  // namespace distributed
}  // namespace phi
