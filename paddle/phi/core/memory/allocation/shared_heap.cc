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

#include "paddle/phi/core/memory/allocation/shared_heap.h"

#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

namespace paddle {
namespace memory {
namespace allocation {

namespace {

using Kind = SharedMemoryError::Kind;

constexpr uint64_t kAlignment = 64;
constexpr uint64_t kSmallRun = 4 * kSharedPage;
constexpr uint64_t kLedgerStep = 16 * kSharedPage;
// Addresses of a segment, most of them without memory for most of its life.
constexpr uint64_t kSegmentReserve = uint64_t{64} << 30;
constexpr uint64_t kMinSegmentReserve = uint64_t{256} << 20;
// Enough for a few large messages under way, little for a process to keep.
constexpr uint64_t kIdleBytes = uint64_t{256} << 20;

// Counts through suspension and is one clock for all processes.
uint64_t NowNanoseconds() {
  timespec now = {};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000 + now.tv_nsec;
}

uint64_t Ago(double seconds) {
  uint64_t now = NowNanoseconds();
  double age = std::max(0.0, seconds) * 1e9;
  return age >= static_cast<double>(now) ? 0 : now - static_cast<uint64_t>(age);
}

}  // namespace

SharedBlocks::SharedBlocks(SharedSegment* segment,
                           std::vector<std::function<void()>>* ended)
    : segment_(segment),
      ended_(ended),
      end_(SharedLedger::LedgerBytes()),
      ledger_end_(SharedLedger::HeaderBytes()) {}

uint64_t SharedBlocks::CapacityFor(uint64_t size) {
  // Steps of an eighth to a quarter of the size, so that sizes which differ
  // little use each other's blocks.
  uint64_t step = kAlignment;
  uint64_t parts = size < kSharedPage ? 4 : 8;
  while (step * parts * 2 < size) step *= 2;
  return RoundUp(std::max<uint64_t>(size, 1),
                 size < kSharedPage ? step : std::max(step, kSharedPage));
}

void SharedBlocks::List(uint32_t index) {
  Run& run = runs_[index];
  if (run.listed || !run.warm || run.free.empty()) return;
  run.listed = true;
  classes_[run.capacity].available.push_back(index);
}

std::optional<uint32_t> SharedBlocks::TakeWarm(uint64_t capacity) {
  // A page or more may come from a block up to half as large again: touching
  // fresh memory costs more than the memory is worth.
  uint64_t most = capacity < kSharedPage ? capacity : capacity + capacity / 2;
  for (auto it = classes_.lower_bound(capacity);
       it != classes_.end() && it->first <= most;
       ++it) {
    std::vector<uint32_t>& available = it->second.available;
    while (!available.empty()) {
      uint32_t run = available.back();
      if (runs_[run].warm && !runs_[run].free.empty()) return Take(run);
      runs_[run].listed = false;
      available.pop_back();
    }
  }
  return std::nullopt;
}

uint32_t SharedBlocks::Take(uint32_t index) {
  Run& run = runs_[index];
  if (run.free.size() == run.count) {
    idle_.erase(run.idle);
    idle_bytes_ -= run.length;
  }
  uint32_t block = run.free.back();
  run.free.pop_back();
  in_use_[block] = true;
  used_ += run.capacity;
  ++used_blocks_;
  return block;
}

void SharedBlocks::Free(uint32_t block) {
  uint32_t index = run_of_[block];
  Run& run = runs_[index];
  in_use_[block] = false;
  used_ -= run.capacity;
  --used_blocks_;
  auto act = at_end_.extract(block);
  if (act) ended_->push_back(std::move(act.mapped()));
  run.free.push_back(block);
  List(index);
  if (run.free.size() == run.count) {
    AddIdle(index);
    Trim(kIdleBytes);
  }
}

void SharedBlocks::AddIdle(uint32_t index) {
  Run& run = runs_[index];
  run.idle = idle_.insert(idle_.end(), index);
  idle_bytes_ += run.length;
}

void SharedBlocks::Trim(uint64_t keep) {
  while (idle_bytes_ > keep && (keep == 0 || idle_.size() > 1)) {
    uint32_t index = idle_.front();
    Run& run = runs_[index];
    idle_.pop_front();
    idle_bytes_ -= run.length;
    segment_->Punch(run.offset, run.length);
    reserved_ -= run.length;
    run.warm = false;
    PutCold(index);
  }
}

void SharedBlocks::PutCold(uint32_t run) {
  classes_[runs_[run].capacity].cold.push_back(run);
}

std::optional<uint32_t> SharedBlocks::TakeCold(uint64_t capacity) {
  std::vector<uint32_t>& cold = classes_[capacity].cold;
  if (cold.empty()) return AppendRun(capacity);
  uint32_t run = cold.back();
  cold.pop_back();
  return run;
}

std::optional<uint32_t> SharedBlocks::AppendRun(uint64_t capacity) {
  uint64_t length = capacity < kSharedPage ? kSmallRun : capacity;
  uint32_t count = length / capacity;
  uint32_t first = segment_->ledger().block_count();
  if (length > segment_->reserve() - end_ ||
      count > SharedLedger::kMaxBlocks - first) {
    return std::nullopt;
  }
  uint64_t ledger_needed = SharedLedger::HeaderBytes() +
                           (first + count) * SharedLedger::BlockBytes();
  if (ledger_needed > ledger_end_) {
    uint64_t end = std::min<uint64_t>(RoundUp(ledger_needed, kLedgerStep),
                                      SharedLedger::LedgerBytes());
    segment_->Reserve(segment_->fd(), ledger_end_, end - ledger_end_);
    ledger_end_ = end;
  }
  Run run{end_, length, capacity, first, count, false, false, {}, {}};
  for (uint32_t i = 0; i < count; ++i) {
    segment_->ledger().AppendBlock(end_ + i * capacity, capacity);
    run.free.push_back(first + count - 1 - i);
  }
  run_of_.resize(first + count, runs_.size());
  in_use_.resize(first + count, false);
  end_ += length;
  runs_.push_back(std::move(run));
  return runs_.size() - 1;
}

uint32_t SharedBlocks::Warm(uint32_t index) {
  Run& run = runs_[index];
  run.warm = true;
  reserved_ += run.length;
  AddIdle(index);
  List(index);
  return Take(index);
}

void SharedBlocks::Recycle() {
  SharedLedger& ledger = segment_->ledger();
  uint64_t releases = ledger.release_count();
  if (releases == seen_releases_) return;
  seen_releases_ = releases;
  uint32_t count = run_of_.size();
  for (uint32_t word = 0; word * 64 < count; ++word) {
    uint64_t released = ledger.TakeReleased(word);
    for (; released != 0; released &= released - 1) {
      uint32_t block = word * 64 + __builtin_ctzll(released);
      if (block < count && in_use_[block] && ledger.TryFree(block)) {
        Free(block);
      }
    }
  }
}

void SharedBlocks::Expire(uint64_t deadline) {
  for (uint32_t block = 0; block < in_use_.size(); ++block) {
    if (in_use_[block]) segment_->ledger().ExpireTickets(block, deadline);
  }
}

void SharedBlocks::AtEnd(uint32_t block, std::function<void()> act) {
  at_end_[block] = std::move(act);
}

void SharedBlocks::ExpireAwaited(uint64_t deadline) {
  for (const auto& [block, act] : at_end_) {
    segment_->ledger().ExpireTickets(block, deadline);
  }
}

uint64_t SharedBlocks::messages() const {
  uint64_t count = 0;
  for (uint32_t block = 0; block < in_use_.size(); ++block) {
    if (in_use_[block]) count += segment_->ledger().TicketCount(block);
  }
  return count;
}

class SharedHeap::Locked {
 public:
  explicit Locked(SharedHeap* heap) : heap_(heap), lock_(heap->mutex_) {}
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;
  ~Locked() {
    std::vector<std::function<void()>> ended = std::move(heap_->ended_);
    heap_->ended_.clear();
    lock_.unlock();
    for (const auto& act : ended) act();
  }

  std::unique_lock<std::mutex>* lock() { return &lock_; }

 private:
  SharedHeap* heap_;
  std::unique_lock<std::mutex> lock_;
};

SharedHeap& SharedHeap::Instance() {
  static SharedHeap& heap =
      *std::unique_ptr<SharedHeap>(new SharedHeap).release();  // NOLINT
  return heap;
}

SharedHeap::SharedHeap()
    : limit_(static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) *
             sysconf(_SC_PAGESIZE)),
      last_nonce_(RandomBits()) {
  pthread_atfork([] { Instance().PrepareFork(); },
                 [] { Instance().ParentAfterFork(); },
                 [] { Instance().ChildAfterFork(); });
}

void SharedHeap::Join(uint64_t family) {
  std::lock_guard<std::mutex> guard(mutex_);
  if (family_) return;
  family_.emplace(family);
  family_->RemoveAbandoned(0);
}

SharedBlock SharedHeap::BlockOf(const Attached& attached,
                                uint64_t offset) const {
  const Hold& hold = attached.holds.at(offset);
  return {attached.segment->number(),
          hold.index,
          offset,
          attached.segment->base() + offset,
          hold.capacity,
          hold.generation};
}

SharedBlock SharedHeap::AddHold(Attached* attached,
                                uint32_t index,
                                Inheritance inheritance) {
  SharedLedger& ledger = attached->segment->ledger();
  attached->segment->AddHolder(index);
  uint64_t offset = ledger.offset(index);
  attached->holds[offset] = {index,
                             ledger.generation(index),
                             ledger.capacity(index),
                             1,
                             inheritance,
                             {}};
  return BlockOf(*attached, offset);
}

bool SharedHeap::Serves(Attached* own, SharingStrategy strategy) {
  // Others could not open a segment whose descriptor is lost.
  return own->segment->strategy() == strategy && own->segment->Usable();
}

std::optional<SharedBlock> SharedHeap::AllocateWarm(SharingStrategy strategy,
                                                    uint64_t capacity,
                                                    Inheritance inheritance) {
  for (Attached* own : own_) {
    if (!Serves(own, strategy)) continue;
    if (auto block = own->own->TakeWarm(capacity)) {
      return AddHold(own, *block, inheritance);
    }
  }
  return std::nullopt;
}

SharedBlock SharedHeap::Allocate(SharingStrategy strategy,
                                 uint64_t size,
                                 Inheritance inheritance) {
  if (size > SharedSegment::kMaxReserve / 2) {
    throw SharedMemoryError(
        Kind::kExhausted,
        "No segment of shared memory has " + HumanBytes(size) + ".");
  }
  uint64_t capacity = SharedBlocks::CapacityFor(size);
  Locked locked(this);
  for (Attached* own : own_) own->own->Recycle();
  if (auto block = AllocateWarm(strategy, capacity, inheritance)) return *block;
  CollectOwn();
  if (auto block = AllocateWarm(strategy, capacity, inheritance)) return *block;
  try {
    return AllocateCold(locked.lock(), strategy, capacity, inheritance);
  } catch (const SharedMemoryError& error) {
    if (error.kind() != Kind::kExhausted) throw;
  }
  uint64_t deadline = Ago(kMessageLostSeconds);
  Expire(deadline);
  CollectOwn();
  Trim(0);
  CollectOthers(deadline);
  if (family_) family_->RemoveAbandoned(deadline);
  return AllocateCold(locked.lock(), strategy, capacity, inheritance);
}

SharedBlock SharedHeap::AllocateCold(std::unique_lock<std::mutex>* lock,
                                     SharingStrategy strategy,
                                     uint64_t capacity,
                                     Inheritance inheritance) {
  auto [attached, run] = TakeCold(strategy, capacity);
  uint64_t offset = attached->own->RunOffset(run);
  uint64_t length = attached->own->RunLength(run);
  try {
    MakeRoom(length);
    int fd = attached->segment->fd();
    pending_ += length;
    // The kernel clears the memory now; other threads need not wait for that.
    lock->unlock();
    attached->segment->Reserve(fd, offset, length);
    attached->segment->Populate(offset, length);
  } catch (const SharedMemoryError&) {
    if (!lock->owns_lock()) {
      lock->lock();
      pending_ -= length;
    }
    attached->own->PutCold(run);
    throw;
  }
  lock->lock();
  pending_ -= length;
  return AddHold(attached, attached->own->Warm(run), inheritance);
}

std::pair<SharedHeap::Attached*, uint32_t> SharedHeap::TakeCold(
    SharingStrategy strategy, uint64_t capacity) {
  for (Attached* own : own_) {
    if (!Serves(own, strategy)) continue;
    if (auto run = own->own->TakeCold(capacity)) return {own, *run};
  }
  Attached* made = MakeSegment(strategy, capacity);
  return {made, made->own->TakeCold(capacity).value()};
}

SharedHeap::Attached* SharedHeap::MakeSegment(SharingStrategy strategy,
                                              uint64_t capacity) {
  // A tree whose workers are forked, and killed, has no other start of theirs.
  if (family_) family_->RemoveAbandoned(0);
  uint64_t family = family_ ? family_->id() : RandomBits();
  uint64_t needed = SharedLedger::LedgerBytes() +
                    RoundUp(std::max(capacity, kSmallRun), kSharedPage);
  std::unique_ptr<SharedSegment> segment;
  for (uint64_t reserve = std::max(needed, kSegmentReserve); !segment;
       reserve = std::max(needed, reserve / 2)) {
    try {
      segment = SharedSegment::Create(strategy, family, reserve);
    } catch (const SharedMemoryError& error) {
      // A limit on addresses (ulimit -v) is met with smaller segments.
      bool smaller = reserve > std::max(needed, kMinSegmentReserve);
      if (error.kind() != Kind::kExhausted || !smaller) throw;
    }
  }
  Attached& attached = segments_[segment->number()];
  attached.own = std::make_unique<SharedBlocks>(segment.get(), &ended_);
  attached.segment = std::move(segment);
  by_address_[attached.segment->base()] = &attached;
  own_.push_back(&attached);
  return &attached;
}

uint64_t SharedHeap::Reserved() const {
  uint64_t bytes = pending_;
  for (const Attached* own : own_) bytes += own->own->reserved();
  return bytes;
}

void SharedHeap::MakeRoom(uint64_t length) {
  auto fits = [&] { return length <= limit_ && Reserved() <= limit_ - length; };
  if (fits()) return;
  Trim(0);
  if (fits()) return;
  uint64_t messages = 0;
  for (const Attached* own : own_) messages += own->own->messages();
  throw SharedMemoryError(
      Kind::kExhausted,
      "Cannot put " + HumanBytes(length) +
          " more into shared memory: this process has " +
          HumanBytes(Reserved()) + " there, " + std::to_string(messages) +
          " messages were not received yet, and the limit is " +
          HumanBytes(limit_) +
          ". Receive and drop tensors first, raise the limit with "
          "paddle.incubate.multiprocessing.set_shared_memory_limit, or give up "
          "lost messages with collect_shared_memory(message_timeout=seconds).");
}

void SharedHeap::Trim(uint64_t keep) {
  for (Attached* own : own_) own->own->Trim(keep);
}

void SharedHeap::Expire(uint64_t deadline) {
  for (Attached* own : own_) own->own->Expire(deadline);
}

void SharedHeap::CollectOwn() {
  for (Attached* own : own_) {
    own->segment->ReapDead();
    own->own->Recycle();
  }
}

bool SharedHeap::Bind(const SharedBlock& block,
                      std::weak_ptr<void> storage,
                      const std::function<bool()>& take_over) {
  std::lock_guard<std::mutex> guard(mutex_);
  if (!take_over()) return false;
  segments_.at(block.segment).holds.at(block.offset).storage =
      std::move(storage);
  return true;
}

std::optional<SharedHeap::Location> SharedHeap::Find(const void* address) {
  const char* byte = static_cast<const char*>(address);
  auto next = by_address_.upper_bound(byte);
  if (next == by_address_.begin()) return std::nullopt;
  Attached& attached = *std::prev(next)->second;
  uint64_t offset = byte - attached.segment->base();
  if (offset >= attached.segment->reserve()) return std::nullopt;
  auto after = attached.holds.upper_bound(offset);
  if (after == attached.holds.begin()) return std::nullopt;
  auto& [start, hold] = *std::prev(after);
  if (offset - start >= hold.capacity) return std::nullopt;
  return Location{&attached, &hold, offset - start};
}

std::optional<SharedMessage> SharedHeap::Send(const void* address,
                                              MessageLife life) {
  std::lock_guard<std::mutex> guard(mutex_);
  std::optional<Location> found = Find(address);
  if (!found) return std::nullopt;
  SharedSegment& segment = *found->attached->segment;
  SegmentId id = segment.id();
  if (id.strategy == SharingStrategy::kFileDescriptor) id.fd = segment.fd();
  // The creator may be dead while this process, which sends, lives.
  if (!found->attached->own) life = MessageLife::kUntilGivenUp;
  SharedTicket ticket = segment.ledger().IssueTicket(
      found->hold->index, ++last_nonce_, NowNanoseconds(), life);
  return SharedMessage{
      id, found->hold->index, found->hold->generation, ticket, found->offset};
}

bool SharedHeap::Has(const void* address) {
  std::lock_guard<std::mutex> guard(mutex_);
  return Find(address).has_value();
}

SharedHeap::Attached* SharedHeap::Attach(const SharedMessage& message) {
  auto known = segments_.find(message.id.segment);
  if (known != segments_.end()) return &known->second;
  if (family_) family_->Stay();
  CollectOthers(0);
  std::unique_ptr<SharedSegment> segment = SharedSegment::Open(message.id);
  Attached& attached = segments_[message.id.segment];
  attached.segment = std::move(segment);
  by_address_[attached.segment->base()] = &attached;
  return &attached;
}

SharedHeap::Received SharedHeap::Receive(const SharedMessage& message) {
  std::lock_guard<std::mutex> guard(mutex_);
  return ReceiveBlock(message, Inheritance::kChild, Ticket::kSpend);
}

SharedHeap::Received SharedHeap::ReceiveRecord(const SharedMessage& message) {
  std::lock_guard<std::mutex> guard(mutex_);
  return ReceiveBlock(message, Inheritance::kNone, Ticket::kKeep);
}

void SharedHeap::Redeem(const SharedMessage& message) {
  std::lock_guard<std::mutex> guard(mutex_);
  SharedLedger& ledger = segments_.at(message.id.segment).segment->ledger();
  ledger.RedeemTicket(message.block, message.ticket);
}

SharedHeap::Received SharedHeap::ReceiveBlock(const SharedMessage& message,
                                              Inheritance inheritance,
                                              Ticket ticket) {
  Attached* attached = Attach(message);
  SharedSegment& segment = *attached->segment;
  SharedLedger& ledger = segment.ledger();
  uint32_t index = message.block;
  if (index >= ledger.block_count()) {
    throw SharedMemoryError(Kind::kInvalid,
                            "A received tensor names block " +
                                std::to_string(index) + " of " +
                                segment.name() + ", which has " +
                                std::to_string(ledger.block_count()) + ".");
  }
  uint64_t offset = ledger.offset(index);
  uint64_t capacity = ledger.capacity(index);
  if (offset < SharedLedger::LedgerBytes() || offset % kAlignment != 0 ||
      !segment.Contains(offset, capacity) || message.offset >= capacity) {
    throw SharedMemoryError(Kind::kInvalid,
                            "A received tensor starts at byte " +
                                std::to_string(message.offset) +
                                " of a block of " + std::to_string(capacity) +
                                " bytes at " + std::to_string(offset) + " of " +
                                segment.name() + ", which has no such memory.");
  }
  auto found = attached->holds.find(offset);
  if (found != attached->holds.end() &&
      found->second.generation == message.generation) {
    // A pickle may be loaded twice; then its ticket is spent, and not needed.
    if (ticket == Ticket::kSpend) ledger.RedeemTicket(index, message.ticket);
    Hold& hold = found->second;
    if (inheritance == Inheritance::kChild) hold.inheritance = inheritance;
    std::shared_ptr<void> storage = hold.storage.lock();
    if (!storage) ++hold.users;
    return {BlockOf(*attached, offset), std::move(storage)};
  }
  // A bit that is set for nothing can be for ever: see SharedSegment::pinned.
  if (found == attached->holds.end() &&
      ledger.generation(index) == message.generation) {
    segment.AddHolder(index);
    // A ticket that is there, or was until now, has kept the block; the bit
    // does from now on.
    bool carried = ticket == Ticket::kSpend
                       ? ledger.RedeemTicket(index, message.ticket)
                       : ledger.HasTicket(index, message.ticket);
    if (carried ? ledger.generation(index) == message.generation
                : ledger.StillIs(index, message.generation)) {
      attached->holds[offset] = {
          index, message.generation, capacity, 1, inheritance, {}};
      return {BlockOf(*attached, offset), nullptr};
    }
    segment.DropHolder(index);
  }
  throw SharedMemoryError(
      Kind::kGone,
      "The tensor of this message does not exist any more: the message was "
      "received before and the tensor dropped by all, or it was given up "
      "because nobody received it for long when memory ran out.");
}

void SharedHeap::Release(const SharedBlock& block) {
  std::lock_guard<std::mutex> guard(mutex_);
  Attached& attached = segments_.at(block.segment);
  auto found = attached.holds.find(block.offset);
  // A child of fork does not hold all that its parent held.
  if (found == attached.holds.end() || --found->second.users > 0) return;
  attached.holds.erase(found);
  SharedSegment& segment = *attached.segment;
  segment.DropHolder(block.index);
  if (attached.own) return;
  if (!attached.holds.empty()) {
    if (segment.ledger().orphaned()) segment.PunchOrphans(block.index, 1, 0);
  } else if (segment.ledger().orphaned() || segment.OwnerDied()) {
    CollectOthers(0);
  }
}

void SharedHeap::AtEnd(const SharedBlock& block, std::function<void()> act) {
  std::lock_guard<std::mutex> guard(mutex_);
  segments_.at(block.segment).own->AtEnd(block.index, std::move(act));
}

void SharedHeap::Reclaim(std::optional<double> message_timeout) {
  Locked locked(this);
  if (message_timeout) {
    for (Attached* own : own_) own->own->ExpireAwaited(Ago(*message_timeout));
  }
  CollectOwn();
}

bool SharedHeap::IsInFlight(const SharedMessage& message) {
  std::lock_guard<std::mutex> guard(mutex_);
  auto attached = segments_.find(message.id.segment);
  if (attached == segments_.end()) return false;
  SharedLedger& ledger = attached->second.segment->ledger();
  return ledger.generation(message.block) == message.generation &&
         ledger.HasTicket(message.block, message.ticket);
}

SharedBlockUsers SharedHeap::OtherUsers(const SharedBlock& block) {
  std::lock_guard<std::mutex> guard(mutex_);
  SharedSegment& segment = *segments_.at(block.segment).segment;
  return {segment.OtherHolders(block.index),
          segment.ledger().TicketCount(block.index)};
}

bool SharedHeap::MakerIsAlive(const SharedBlock& block) {
  std::lock_guard<std::mutex> guard(mutex_);
  Attached& attached = segments_.at(block.segment);
  return attached.own || attached.segment->OwnerIsAlive();
}

void SharedHeap::CollectOthers(uint64_t deadline) {
  for (auto it = segments_.begin(); it != segments_.end();) {
    Attached& attached = it->second;
    SharedSegment& segment = *attached.segment;
    bool keep = attached.own || segment.pinned();
    if (!keep) segment.ReapDead();
    if (keep || !segment.ledger().orphaned()) {
      ++it;
      continue;
    }
    segment.PunchOrphans(0, segment.ledger().block_count(), deadline);
    // A message that was sent on from here names this process's descriptor.
    bool needed = segment.strategy() == SharingStrategy::kFileDescriptor &&
                  segment.ledger().HasMessages();
    if (attached.holds.empty() && (segment.RemoveIfAlone() || !needed)) {
      by_address_.erase(segment.base());
      it = segments_.erase(it);
    } else {
      ++it;
    }
  }
}

void SharedHeap::Collect(std::optional<double> message_timeout) {
  uint64_t deadline = message_timeout ? Ago(*message_timeout) : 0;
  Locked locked(this);
  if (message_timeout) Expire(deadline);
  CollectOwn();
  Trim(0);
  CollectOthers(deadline);
  if (family_) family_->RemoveAbandoned(deadline);
}

void SharedHeap::CollectDead() {
  std::lock_guard<std::mutex> guard(mutex_);
  CollectOthers(0);
  if (family_) family_->RemoveAbandoned(0);
}

SharedHeapStats SharedHeap::Stats() {
  Locked locked(this);
  SharedHeapStats stats = {};
  for (Attached* own : own_) {
    own->own->Recycle();
    stats.reserved += own->own->reserved();
    stats.used += own->own->used();
    stats.blocks += own->own->used_blocks();
    stats.messages += own->own->messages();
  }
  stats.segments = own_.size();
  stats.cached = stats.reserved - stats.used;
  stats.attached = segments_.size() - stats.segments;
  stats.limit = limit_;
  return stats;
}

void SharedHeap::SetLimit(uint64_t limit) {
  std::lock_guard<std::mutex> guard(mutex_);
  limit_ = limit;
}

void SharedHeap::Leave() {
  std::lock_guard<std::mutex> guard(mutex_);
  for (auto& [id, attached] : segments_) attached.segment->SetLeaving();
  if (family_) family_->Leave();
}

std::vector<uint32_t> SharedHeap::BlocksInherited(const Attached& attached) {
  std::vector<uint32_t> blocks;
  for (const auto& [offset, hold] : attached.holds) {
    if (hold.inheritance == Inheritance::kChild) blocks.push_back(hold.index);
  }
  return blocks;
}

void SharedHeap::PrepareFork() {
  mutex_.lock();
  for (auto& [id, attached] : segments_) {
    attached.segment->PrepareFork(BlocksInherited(attached));
  }
}

void SharedHeap::ParentAfterFork() {
  for (auto& [id, attached] : segments_) attached.segment->ParentAfterFork();
  mutex_.unlock();
}

void SharedHeap::ChildAfterFork() {
  for (auto& [id, attached] : segments_) {
    attached.segment->ChildAfterFork(BlocksInherited(attached));
    attached.own.reset();
    for (auto it = attached.holds.begin(); it != attached.holds.end();) {
      bool inherited = it->second.inheritance == Inheritance::kChild;
      it = inherited ? std::next(it) : attached.holds.erase(it);
    }
  }
  own_.clear();
  ended_.clear();
  pending_ = 0;
  if (family_) family_->ChildAfterFork();
  // Two processes that count on from one number would issue equal tickets.
  last_nonce_ ^= static_cast<uint32_t>(getpid()) * 2654435761u;
  mutex_.unlock();
}

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
