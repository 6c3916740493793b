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

#include "paddle/phi/core/memory/allocation/shared_memory/shared_heap.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <new>
#include <string>
#include <utility>

#include "paddle/phi/core/memory/allocation/shared_memory/default_memory_limit.h"
#include "paddle/phi/core/memory/allocation/shared_memory/random_bits.h"

namespace paddle {
namespace memory {
namespace allocation {

namespace {

using Kind = SharedMemoryError::Kind;

// Bytes of addresses of the first segment; most of them never get memory. Each
// further segment has twice the addresses of all earlier ones, so that there
// are few segments, and a receiver maps few more addresses than bytes in use.
// Only a larger block makes a segment exceed the maximum.
constexpr uint64_t kFirstReserve = uint64_t{16} << 20;
constexpr uint64_t kMaxSegmentGrowth = uint64_t{64} << 30;
// The number of attached segments of others before the first check of all.
constexpr size_t kFewSegments = 16;
// In nanoseconds: the minimum time, per segment, between two checks with the
// kernel whether the owner is alive.
constexpr uint64_t kOwnerCheckInterval = 10000000;

// The clock of tickets. It is the same for all processes, and continues while
// the machine is suspended.
constexpr clockid_t kTicketClock = CLOCK_BOOTTIME;
// A cheaper clock, only for use within this process. Its precision is the
// kernel's tick.
constexpr clockid_t kCoarseClock = CLOCK_MONOTONIC_COARSE;

uint64_t Nanoseconds(clockid_t clock) {
  timespec now = {};
  clock_gettime(clock, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000 + now.tv_nsec;
}

// Unmaps pages that were kept when their segment was detached, and trims them
// unless they are `shared` with a child or parent of a fork.
void ReleasePages(char* start, uint64_t length, bool shared) {
  if (length == 0) return;
  if (!shared) madvise(start, length, MADV_REMOVE);
  munmap(start, length);
}

[[noreturn]] void ThrowNoTensor() {
  throw SharedMemoryError(
      Kind::kGone,
      "The tensor of a received message does not exist any more: it was "
      "received before and has been freed since, or the message has expired "
      "(on demand, or after " +
          std::to_string(static_cast<int>(kMessageLostSeconds)) +
          " seconds when memory runs out). Receive each message once and in "
          "time, or send the tensor again.");
}

[[noreturn]] void ThrowSharedUncounted() {
  throw SharedMemoryError(
      Kind::kUnavailable,
      "Cannot send a tensor whose owner has ended: a forked process, or "
      "another "
      "tensor of this process, also uses its memory and could not share it "
      "with the receiver. Send tensor.clone() instead.");
}

}  // namespace

SharedHeap& SharedHeap::Instance() {
  static SharedHeap& heap =
      *std::unique_ptr<SharedHeap>(new SharedHeap).release();  // NOLINT
  return heap;
}

SharedHeap::SharedHeap()
    : limit_(DefaultMemoryLimit("")), last_nonce_(RandomBits()) {
  // Without these handlers, a child would have references that are not counted.
  if (pthread_atfork([] { Instance().PrepareFork(); },
                     [] { Instance().ParentAfterFork(); },
                     [] { Instance().ChildAfterFork(); }) != 0) {
    throw std::bad_alloc();
  }
}

uint64_t SharedHeap::Join(uint64_t tree) {
  std::lock_guard<std::mutex> guard(mutex_);
  if (!tree_) {
    tree_.emplace(tree);
    tree_->RemoveAbandoned(0);
  }
  return tree_->id();
}

SharedBlock SharedHeap::BlockOf(const Holdings& holdings, uint64_t offset) {
  const Hold& hold = holdings.holds.at(offset);
  return {holdings.id,
          hold.index,
          offset,
          holdings.base + offset,
          hold.capacity,
          hold.generation};
}

SharedHeap::Holdings* SharedHeap::HoldingsOf(const SharedBlock& block) {
  auto attached = segments_.find(block.segment);
  if (attached != segments_.end() &&
      attached->second.holds.count(block.offset) > 0) {
    return &attached->second;
  }
  auto detached = detached_.find(block.segment);
  bool has = detached != detached_.end() &&
             detached->second.holds.count(block.offset) > 0;
  return has ? &detached->second : nullptr;
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

bool SharedHeap::CanAllocateFrom(Attached* owned, SharingStrategy strategy) {
  // Other processes cannot open a segment whose descriptor was closed.
  return owned->segment->strategy() == strategy && owned->segment->Usable();
}

uint64_t SharedHeap::SecondsAgo(double seconds) {
  uint64_t now = Nanoseconds(kTicketClock);
  double age = std::max(0.0, seconds) * 1e9;
  return age >= static_cast<double>(now) ? 0 : now - static_cast<uint64_t>(age);
}

std::optional<SharedBlock> SharedHeap::AllocateWarm(SharingStrategy strategy,
                                                    uint64_t capacity,
                                                    Inheritance inheritance) {
  for (Attached* owned : owned_) {
    if (owned->segment->strategy() != strategy) continue;
    auto block = owned->blocks->TakeWarm(capacity);
    if (!block) continue;
    if (owned->segment->CanBeOpened())
      return AddHold(owned, *block, inheritance);
    owned->blocks->Free(*block);
  }
  return std::nullopt;
}

SharedBlock SharedHeap::Allocate(SharingStrategy strategy,
                                 uint64_t size,
                                 Inheritance inheritance) {
  if (size > SharedLedger::kMaxReserve / 2) {
    throw SharedMemoryError(Kind::kExhausted,
                            "Cannot put a tensor of " + HumanBytes(size) +
                                " into shared memory: the largest tensor is " +
                                HumanBytes(SharedLedger::kMaxReserve / 2) +
                                ". Send the tensor in parts.");
  }
  uint64_t capacity = SharedBlocks::CapacityFor(size);
  Locked locked(this);
  CollectDeferred();
  for (Attached* owned : owned_) owned->blocks->FreeReleased();
  try {
    return AllocateAny(locked.lock(), strategy, capacity, inheritance);
  } catch (const SharedMemoryError& error) {
    if (error.kind() != Kind::kExhausted) throw;
  }
  CollectAll(SecondsAgo(kMessageLostSeconds), DescriptorSaving::kDetach);
  return AllocateAny(locked.lock(), strategy, capacity, inheritance);
}

SharedBlock SharedHeap::AllocateAny(std::unique_lock<std::mutex>* lock,
                                    SharingStrategy strategy,
                                    uint64_t capacity,
                                    Inheritance inheritance) {
  if (auto block = AllocateWarm(strategy, capacity, inheritance)) return *block;
  ReapAndFree();
  if (auto block = AllocateWarm(strategy, capacity, inheritance)) return *block;
  return AllocateCold(lock, strategy, capacity, inheritance);
}

// Keeps the mutex unlocked while this object exists. Meanwhile the bytes count
// as reserved, so that other threads do not exceed the limit.
class SharedHeap::UnlockedReservation {
 public:
  UnlockedReservation(SharedHeap* heap,
                      std::unique_lock<std::mutex>* lock,
                      uint64_t bytes)
      : heap_(heap), lock_(lock), bytes_(bytes) {
    heap_->pending_ += bytes_;
    lock_->unlock();
  }
  UnlockedReservation(const UnlockedReservation&) = delete;
  UnlockedReservation& operator=(const UnlockedReservation&) = delete;
  ~UnlockedReservation() {
    lock_->lock();
    heap_->pending_ -= bytes_;
  }

 private:
  SharedHeap* heap_;
  std::unique_lock<std::mutex>* lock_;
  uint64_t bytes_;
};

SharedBlock SharedHeap::AllocateCold(std::unique_lock<std::mutex>* lock,
                                     SharingStrategy strategy,
                                     uint64_t capacity,
                                     Inheritance inheritance) {
  auto [attached, run] = TakeCold(strategy, capacity);
  uint64_t offset = attached->blocks->RunOffset(run);
  uint64_t length = attached->blocks->RunLength(run);
  try {
    MakeRoom(length);
    int fd = attached->segment->fd();
    // The kernel clears the memory here; other threads need not wait for that.
    UnlockedReservation unlocked(this, lock, length);
    attached->segment->Reserve(fd, offset, length);
    attached->segment->Populate(offset, length);
  } catch (...) {
    attached->blocks->PutCold(run);
    throw;
  }
  return AddHold(attached, attached->blocks->WarmUp(run), inheritance);
}

std::pair<SharedHeap::Attached*, uint32_t> SharedHeap::TakeCold(
    SharingStrategy strategy, uint64_t capacity) {
  for (Attached* owned : owned_) {
    if (!CanAllocateFrom(owned, strategy)) continue;
    if (auto run = owned->blocks->TakeCold(capacity)) return {owned, *run};
  }
  Attached* made = MakeSegment(strategy, capacity);
  return {made, made->blocks->TakeCold(capacity).value()};
}

SharedHeap::Attached* SharedHeap::MakeSegment(SharingStrategy strategy,
                                              uint64_t capacity) {
  // Forked workers do not import Paddle, so this is the only moment at which a
  // tree of them removes files of killed processes.
  if (tree_) tree_->RemoveAbandoned(0);
  uint64_t tree = tree_ ? tree_->id() : RandomBits();
  uint64_t before = 0;
  for (const Attached* owned : owned_) before += owned->segment->reserve();
  uint64_t needed = SharedBlocks::ReserveFor(capacity);
  std::unique_ptr<SharedSegment> segment;
  for (uint64_t wanted =
           std::clamp(2 * before, kFirstReserve, kMaxSegmentGrowth);
       !segment;
       wanted /= 2) {
    uint64_t reserve = RoundUp(std::max(needed, wanted), kSharedPage);
    try {
      segment = SharedSegment::Create(strategy, tree, reserve);
    } catch (const SharedMemoryError& error) {
      // Under a limit on addresses (ulimit -v), smaller segments may do.
      if (error.kind() != Kind::kExhausted || reserve == needed) throw;
    }
  }
  auto blocks = std::make_unique<SharedBlocks>(
      segment.get(), &idle_runs_, &due_callbacks_);
  owned_.reserve(owned_.size() + 1);  // so that nothing fails once it is added
  Attached* made = AddSegment(std::move(segment));
  made->blocks = std::move(blocks);
  owned_.push_back(made);
  return made;
}

SharedHeap::Attached* SharedHeap::AddSegment(
    std::unique_ptr<SharedSegment> segment) {
  auto it = segments_.try_emplace(segment->number()).first;
  Attached& added = it->second;
  added.id = segment->number();
  added.base = segment->base();
  added.segment = std::move(segment);
  try {
    by_address_[added.base] = &added;
  } catch (...) {
    segments_.erase(it);
    throw;
  }
  return &added;
}

uint64_t SharedHeap::Reserved() const {
  uint64_t bytes = pending_;
  for (const Attached* owned : owned_) bytes += owned->blocks->reserved();
  return bytes;
}

void SharedHeap::MakeRoom(uint64_t length) {
  auto fits = [&] { return length <= limit_ && Reserved() <= limit_ - length; };
  if (fits()) return;
  idle_runs_.Trim(0);
  if (fits()) return;
  uint64_t messages = 0;
  for (const Attached* owned : owned_) messages += owned->blocks->messages();
  throw SharedMemoryError(
      Kind::kExhausted,
      "Cannot put " + HumanBytes(length) +
          " more into shared memory: this process uses " +
          HumanBytes(Reserved()) + ", " + std::to_string(messages) +
          " messages were not received yet, and the limit is " +
          HumanBytes(limit_) +
          ". Receive and drop tensors, raise the limit with "
          "paddle.incubate.multiprocessing.set_shared_memory_limit, or expire "
          "lost messages with collect_shared_memory(message_timeout=seconds).");
}

void SharedHeap::ReapAndFree() {
  for (Attached* owned : owned_) {
    owned->segment->ReapDead();
    owned->blocks->FreeReleased();
  }
}

bool SharedHeap::Bind(const SharedBlock& block,
                      std::weak_ptr<void> storage,
                      const std::function<bool()>& take_over,
                      const SharedBlock* moved_from) {
  std::lock_guard<std::mutex> guard(mutex_);
  auto left =
      moved_from ? detached_.find(moved_from->segment) : detached_.end();
  if (left != detached_.end()) {
    auto hold = left->second.holds.find(moved_from->offset);
    bool is_used_again =
        hold != left->second.holds.end() && hold->second.users > 1;
    if (left->second.forked || is_used_again) ThrowSharedUncounted();
  }
  if (!take_over()) return false;
  Hold& hold = HoldingsOf(block)->holds.at(block.offset);
  hold.storage = std::move(storage);
  if (hold.inheritance == Inheritance::kOnceBound) {
    hold.inheritance = Inheritance::kChild;
  }
  return true;
}

std::optional<SharedHeap::Location> SharedHeap::Find(const void* address) {
  const char* byte = static_cast<const char*>(address);
  auto next = by_address_.upper_bound(byte);
  if (next == by_address_.begin()) return std::nullopt;
  Holdings& holdings = *std::prev(next)->second;
  uint64_t offset = byte - holdings.base;
  auto after = holdings.holds.upper_bound(offset);
  if (after == holdings.holds.begin()) return std::nullopt;
  auto& [start, hold] = *std::prev(after);
  if (offset - start >= hold.capacity) return std::nullopt;
  return Location{&holdings, &hold, offset - start};
}

std::optional<SharedMessage> SharedHeap::Send(const void* address,
                                              MessageLife life) {
  std::lock_guard<std::mutex> guard(mutex_);
  std::optional<Location> found = Find(address);
  if (!found) return std::nullopt;
  auto attached = segments_.find(found->holdings->id);
  if (attached == segments_.end() || &attached->second != found->holdings) {
    if (!detached_.at(found->holdings->id).forked) return std::nullopt;
    ThrowSharedUncounted();
  }
  SharedSegment& segment = *attached->second.segment;
  SegmentId id = segment.id();
  if (id.strategy == SharingStrategy::kFileDescriptor) id.fd = segment.fd();
  // This process is the sender, and may outlive the owner.
  if (!attached->second.blocks) life = MessageLife::kUntilExpired;
  SharedTicket ticket = segment.ledger().IssueTicket(
      found->hold->index, ++last_nonce_, Nanoseconds(kTicketClock), life);
  return SharedMessage{
      id, found->hold->index, found->hold->generation, ticket, found->offset};
}

bool SharedHeap::Has(const void* address) {
  std::lock_guard<std::mutex> guard(mutex_);
  return Find(address).has_value();
}

std::optional<SharedLocation> SharedHeap::Locate(const void* address) {
  std::lock_guard<std::mutex> guard(mutex_);
  std::optional<Location> found = Find(address);
  if (!found) return std::nullopt;
  auto attached = segments_.find(found->holdings->id);
  if (attached == segments_.end() || &attached->second != found->holdings ||
      !attached->second.segment->CanBeOpened()) {
    return std::nullopt;
  }
  return SharedLocation{
      attached->second.segment->id(),
      static_cast<uint64_t>(static_cast<const char*>(address) -
                            found->holdings->base),
      found->hold->index,
      found->hold->generation};
}

SharedHeap::Attached* SharedHeap::Attach(const SharedMessage& message) {
  auto known = segments_.find(message.id.segment);
  if (known != segments_.end()) return &known->second;
  if (tree_) tree_->EnsureLocked();
  // Checking all segments each time would take quadratic time.
  size_t others = segments_.size() - owned_.size();
  if (others >= 2 * saved_ + kFewSegments) SaveDescriptors();
  try {
    return AddSegment(SharedSegment::Open(message.id));
  } catch (const SharedSlotsInUseError&) {
    throw;  // nothing that this process can free would help
  } catch (const SharedMemoryError& error) {
    if (error.kind() != Kind::kExhausted) throw;
  }
  CollectOthers(0, DescriptorSaving::kDetach);
  return AddSegment(SharedSegment::Open(message.id));
}

SharedHeap::Received SharedHeap::Receive(const SharedMessage& message,
                                         Inheritance inheritance) {
  std::lock_guard<std::mutex> guard(mutex_);
  return ReceiveBlock(message, inheritance, Ticket::kRedeem);
}

SharedHeap::Received SharedHeap::UseAgain(Holdings* holdings,
                                          uint64_t offset,
                                          Inheritance inheritance) {
  Hold& hold = holdings->holds.at(offset);
  if (inheritance == Inheritance::kChild) hold.inheritance = inheritance;
  std::shared_ptr<void> storage = hold.storage.lock();
  if (!storage) ++hold.users;
  return {BlockOf(*holdings, offset), std::move(storage)};
}

std::optional<SharedHeap::Received> SharedHeap::ReceiveDetached(
    const SharedMessage& message, Inheritance inheritance, Ticket ticket) {
  auto detached = detached_.find(message.id.segment);
  if (detached == detached_.end()) return std::nullopt;
  // In a forked child the segment may be detached only in this process: others
  // may still be attached to it, and send messages of it.
  bool may_be_whole = detached->second.forked;
  for (const auto& [offset, hold] : detached->second.holds) {
    if (hold.index == message.block && hold.generation == message.generation &&
        message.offset < hold.capacity) {
      if (may_be_whole && ticket == Ticket::kRedeem) RedeemTicket(message);
      return UseAgain(&detached->second, offset, inheritance);
    }
  }
  if (may_be_whole) return std::nullopt;
  ThrowNoTensor();
}

void SharedHeap::RedeemTicket(const SharedMessage& message) {
  try {
    SharedLedger& ledger = Attach(message)->segment->ledger();
    if (message.block < ledger.block_count()) {
      ledger.RedeemTicket(message.block, message.ticket);
    }
  } catch (const SharedMemoryError&) {
    // The segment was detached, and its tickets are gone with it.
  }
}

SharedHeap::Received SharedHeap::ReceiveBlock(const SharedMessage& message,
                                              Inheritance inheritance,
                                              Ticket ticket) {
  CollectDeferred();
  if (auto received = ReceiveDetached(message, inheritance, ticket)) {
    return *received;
  }
  Attached* attached = Attach(message);
  SharedSegment& segment = *attached->segment;
  SharedLedger& ledger = segment.ledger();
  uint32_t index = message.block;
  if (index >= ledger.block_count()) {
    throw SharedMemoryError(Kind::kInvalid,
                            "A received tensor is in block " +
                                std::to_string(index) + " of " +
                                segment.name() + ", which has only " +
                                std::to_string(ledger.block_count()) +
                                ". The message was damaged; send it again.");
  }
  uint64_t offset = ledger.offset(index);
  uint64_t capacity = ledger.capacity(index);
  if (offset < SharedLedger::LedgerBytes(segment.reserve()) ||
      offset % SharedBlocks::kAlignment != 0 ||
      !segment.Contains(offset, capacity) || message.offset >= capacity) {
    throw SharedMemoryError(
        Kind::kInvalid,
        "A received tensor starts at byte " + std::to_string(message.offset) +
            " of a block of " + std::to_string(capacity) + " bytes at " +
            std::to_string(offset) + " of " + segment.name() +
            ", which is not a valid position. The message "
            "or the segment was damaged; send it again.");
  }
  auto found = attached->holds.find(offset);
  if (found != attached->holds.end() &&
      found->second.generation == message.generation) {
    // If a pickle is loaded twice, its ticket is already redeemed. A process
    // needs no ticket to use a block that it holds.
    if (ticket == Ticket::kRedeem) ledger.RedeemTicket(index, message.ticket);
    return UseAgain(attached, offset, inheritance);
  }
  // Check before setting the bit: a process in the permanent slot cannot clear
  // it again if the block turns out to have another generation.
  if (found == attached->holds.end() &&
      ledger.generation(index) == message.generation) {
    segment.AddHolder(index);
    // If the ticket is there, it has kept the block until now, and the bit
    // keeps it from here on.
    bool carried = ticket == Ticket::kRedeem
                       ? ledger.RedeemTicket(index, message.ticket)
                       : ledger.HasTicket(index, message.ticket);
    if (carried ? ledger.generation(index) == message.generation
                : ledger.HasGeneration(index, message.generation)) {
      attached->holds[offset] = {
          index, message.generation, capacity, 1, inheritance, {}};
      return {BlockOf(*attached, offset), nullptr};
    }
    segment.ReleaseHolder(index);
  }
  ThrowNoTensor();
}

void SharedHeap::Release(const SharedBlock& block) {
  std::lock_guard<std::mutex> guard(mutex_);
  CollectDeferred();
  Holdings* holdings = HoldingsOf(block);
  // A forked child does not hold all blocks that its parent held.
  if (!holdings) return;
  auto found = holdings->holds.find(block.offset);
  if (--found->second.users > 0) return;
  auto it = segments_.find(block.segment);
  if (it == segments_.end() || &it->second != holdings) {
    ReleaseDetached(&detached_.at(block.segment), block.offset);
    return;
  }
  Attached& attached = it->second;
  attached.holds.erase(found);
  SharedSegment& segment = *attached.segment;
  segment.ReleaseHolder(block.index);
  if (attached.blocks) return;
  if (attached.holds.empty()) {
    CollectIfOwnerDied(it);
  } else if (segment.ledger().orphaned()) {
    segment.CollectOrphaned(block.index, 1, 0);
    if (segment.descriptor_closed()) segment.CloseDescriptor();
  }
}

void SharedHeap::CollectIfOwnerDied(Segments::iterator it) {
  Attached& attached = it->second;
  // Only the kernel knows whether a process was killed, and asking it costs
  // more than everything else here. So a process that constantly receives and
  // releases tensors asks only once per interval.
  uint64_t now = Nanoseconds(kCoarseClock);
  bool check_now = attached.segment->OwnerIsLeaving() ||
                   now - attached.owner_checked >= kOwnerCheckInterval;
  if (!check_now) {
    if (deferred_.empty()) deferred_since_ = now;
    deferred_.insert(attached.id);
    return;
  }
  attached.owner_checked = now;
  if (attached.segment->ledger().orphaned() ||
      attached.segment->ReapOwnerIfDead()) {
    CollectOther(it, 0, DescriptorSaving::kNone);
  }
}

void SharedHeap::CollectDeferred() {
  if (deferred_.empty() ||
      Nanoseconds(kCoarseClock) - deferred_since_ < kOwnerCheckInterval) {
    return;
  }
  for (uint64_t id : std::exchange(deferred_, {})) {
    auto it = segments_.find(id);
    if (it != segments_.end() && it->second.holds.empty()) {
      CollectIfOwnerDied(it);
    }
  }
}

void SharedHeap::ReleaseDetached(Detached* detached, uint64_t offset) {
  auto found = detached->holds.find(offset);
  // The system's pages may be larger than the pages of a segment.
  const uint64_t page = sysconf(_SC_PAGESIZE);
  uint64_t start = offset - offset % page;
  uint64_t end = RoundUp(offset + found->second.capacity, page);
  // Small blocks share pages: keep the pages of the neighbours.
  if (found != detached->holds.begin()) {
    const auto& [before, hold] = *std::prev(found);
    start = std::max(start, RoundUp(before + hold.capacity, page));
  }
  if (std::next(found) != detached->holds.end()) {
    uint64_t after = std::next(found)->first;
    end = std::min(end, after - after % page);
  }
  if (start < end) {
    ReleasePages(detached->base + start, end - start, detached->forked);
  }
  by_address_.erase(detached->base + offset);
  detached->holds.erase(found);
  if (detached->holds.empty()) detached_.erase(detached->id);
}

bool SharedHeap::IsShortOfDescriptors() const {
  // A fork needs one more descriptor per segment for a moment. Half of the
  // limit is left to the rest of the program.
  uint64_t needed = 0;
  for (const auto& [id, attached] : segments_) {
    if (!attached.blocks)
      needed += attached.segment->descriptor_closed() ? 1 : 2;
  }
  rlimit descriptors = {};
  return getrlimit(RLIMIT_NOFILE, &descriptors) == 0 &&
         needed * 2 >= descriptors.rlim_cur;
}

void SharedHeap::SaveDescriptors() {
  CollectOthers(0, DescriptorSaving::kClose);
  if (IsShortOfDescriptors()) CollectOthers(0, DescriptorSaving::kDetach);
  saved_ = segments_.size() - owned_.size();
}

void SharedHeap::CollectOthers(uint64_t deadline, DescriptorSaving saving) {
  for (auto it = segments_.begin(); it != segments_.end();) {
    it = CollectOther(it, deadline, saving);
  }
  saved_ = std::min(saved_, segments_.size() - owned_.size());
}

SharedHeap::Segments::iterator SharedHeap::CollectOther(
    Segments::iterator it, uint64_t deadline, DescriptorSaving saving) {
  Attached& attached = it->second;
  SharedSegment& segment = *attached.segment;
  auto next = std::next(it);
  if (attached.blocks || segment.has_permanent_slot()) return next;
  segment.ReapDead();
  if (!segment.ledger().orphaned()) return next;
  segment.CollectOrphaned(0, segment.ledger().block_count(), deadline);
  if (attached.holds.empty()) {
    // A message that this process has sent refers to this process's descriptor.
    bool needed = segment.strategy() == SharingStrategy::kFileDescriptor &&
                  segment.ledger().HasMessages();
    if (segment.RemoveIfAlone() || !needed) {
      by_address_.erase(attached.base);
      segments_.erase(it);
      return next;
    }
  } else if (saving == DescriptorSaving::kDetach && Detach(it)) {
    return next;
  }
  if (saving != DescriptorSaving::kNone || segment.descriptor_closed())
    segment.CloseDescriptor();
  return next;
}

bool SharedHeap::Detach(Segments::iterator it) {
  Attached& attached = it->second;
  // This forked child detached the segment and then opened it again: the
  // earlier holdings already have the id.
  if (detached_.count(attached.id) > 0) return false;
  // Allocate all private memory first: once the segment is detached, nothing
  // may fail.
  std::map<uint64_t, Detached> detached;
  Detached& left = detached[attached.id];
  std::map<const char*, Holdings*> addresses;
  std::vector<SharedRange> kept;
  for (const auto& [offset, hold] : attached.holds) {
    kept.push_back({offset, hold.capacity});
    addresses[attached.base + offset] = &left;
  }
  if (!attached.segment->Detach(kept)) return false;
  left.forked = attached.segment->shares_slot();
  static_cast<Holdings&>(left) = std::move(static_cast<Holdings&>(attached));
  by_address_.erase(left.base);
  by_address_.merge(addresses);
  detached_.merge(detached);
  segments_.erase(it);
  return true;
}

void SharedHeap::CollectAll(uint64_t deadline, DescriptorSaving saving) {
  for (Attached* owned : owned_) owned->blocks->Expire(deadline);
  ReapAndFree();
  idle_runs_.Trim(0);
  CollectOthers(deadline, saving);
  if (tree_) tree_->RemoveAbandoned(deadline);
}

void SharedHeap::Collect(std::optional<double> message_timeout) {
  // Time 0 expires nothing, since no message was sent then.
  uint64_t deadline = message_timeout ? SecondsAgo(*message_timeout) : 0;
  Locked locked(this);
  CollectAll(deadline, DescriptorSaving::kNone);
}

void SharedHeap::CollectDead() {
  std::lock_guard<std::mutex> guard(mutex_);
  CollectOthers(0, DescriptorSaving::kNone);
  if (tree_) tree_->RemoveAbandoned(0);
}

SharedHeapStats SharedHeap::Stats() {
  Locked locked(this);
  SharedHeapStats stats = {};
  // Free everything first: a block that is freed can cause memory of another
  // segment to be trimmed.
  for (Attached* owned : owned_) owned->blocks->FreeReleased();
  for (Attached* owned : owned_) {
    stats.reserved += owned->blocks->reserved();
    stats.used += owned->blocks->used();
    stats.blocks += owned->blocks->used_blocks();
    stats.messages += owned->blocks->messages();
  }
  stats.segments = owned_.size();
  stats.cached = stats.reserved - stats.used;
  stats.attached = segments_.size() - stats.segments;
  stats.detached = detached_.size();
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
  if (tree_) tree_->Leave();
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
  // A child with a slot needs the whole segment. If children constantly start
  // and end, as in a pool that replaces its workers, the segment could never be
  // detached. So children get no slots while descriptors are short.
  if (IsShortOfDescriptors()) SaveDescriptors();
  if (IsShortOfDescriptors()) {
    for (auto& [id, attached] : segments_) {
      SharedSegment& segment = *attached.segment;
      bool orphaned = !attached.blocks && segment.ledger().orphaned() &&
                      detached_.count(id) == 0;
      if (orphaned && !segment.has_permanent_slot()) segment.ShareSlot();
    }
  }
  for (auto& [id, attached] : segments_) {
    if (attached.segment->shares_slot()) continue;
    attached.segment->PrepareFork(BlocksInherited(attached));
  }
}

void SharedHeap::ParentAfterFork() {
  for (auto& [id, attached] : segments_) {
    if (!attached.segment->shares_slot()) attached.segment->ParentAfterFork();
  }
  for (auto& [id, detached] : detached_) detached.forked = true;
  mutex_.unlock();
}

void SharedHeap::DetachAfterFork(Attached* attached) {
  by_address_.erase(attached->base);
  std::vector<SharedRange> kept;
  for (const auto& [offset, hold] : attached->holds) {
    kept.push_back({offset, hold.capacity});
  }
  attached->segment->UnmapAllBut(kept);
  if (kept.empty()) return;
  Detached& left = detached_[attached->id];
  static_cast<Holdings&>(left) = std::move(static_cast<Holdings&>(*attached));
  for (const auto& [offset, hold] : left.holds) {
    by_address_[left.base + offset] = &left;
  }
}

void SharedHeap::ChildAfterFork() {
  for (auto it = segments_.begin(); it != segments_.end();) {
    if (!it->second.segment->shares_slot()) {
      ++it;
      continue;
    }
    DetachAfterFork(&it->second);
    it = segments_.erase(it);
  }
  for (auto& [id, attached] : segments_) {
    attached.segment->ChildAfterFork(BlocksInherited(attached));
    attached.blocks.reset();
    for (auto it = attached.holds.begin(); it != attached.holds.end();) {
      bool inherited = it->second.inheritance == Inheritance::kChild;
      it = inherited ? std::next(it) : attached.holds.erase(it);
    }
  }
  for (auto it = detached_.begin(); it != detached_.end();) {
    Detached& detached = (it++)->second;
    detached.forked = true;
    std::vector<uint64_t> dropped;
    for (const auto& [offset, hold] : detached.holds) {
      if (hold.inheritance != Inheritance::kChild) dropped.push_back(offset);
    }
    for (uint64_t offset : dropped) ReleaseDetached(&detached, offset);
  }
  owned_.clear();
  due_callbacks_.clear();
  deferred_.clear();
  saved_ = 0;
  pending_ = 0;
  if (tree_) tree_->ChildAfterFork();
  // If both processes continued from the same nonce, they would issue equal
  // tickets.
  last_nonce_ ^= static_cast<uint32_t>(getpid()) * 2654435761u;
  mutex_.unlock();
}

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
