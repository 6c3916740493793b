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
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "paddle/phi/core/memory/allocation/random_bits.h"
#include "paddle/phi/core/memory/allocation/shared_memory_limit.h"

namespace paddle {
namespace memory {
namespace allocation {

namespace {

using Kind = SharedMemoryError::Kind;

// Addresses of the first segment, most of them without memory for most of its
// life. Each further segment has twice the addresses of all before it, so that
// there are few segments, and a receiver needs few more addresses than there
// are bytes in use.
constexpr uint64_t kFirstReserve = uint64_t{16} << 20;
constexpr uint64_t kMostReserve = uint64_t{64} << 30;
// How many segments of others are attached before the first look at them all.
constexpr size_t kFewSegments = 16;
// The kernel is asked at most so often whether the maker of a segment lives.
constexpr uint64_t kAskAgainNanoseconds = 10000000;
// Counts through suspension and is one clock for all processes.
uint64_t NowNanoseconds() {
  timespec now = {};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000 + now.tv_nsec;
}

// As good as the kernel's tick, and cheaper; for this process alone.
uint64_t CoarseNanoseconds() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000 + now.tv_nsec;
}

// Gives the pages at `start` back that a segment kept when it was taken apart.
// Their memory too, unless it is `shared` with a child or parent of a fork.
void DropPages(char* start, uint64_t length, bool shared) {
  if (length == 0) return;
  if (!shared) madvise(start, length, MADV_REMOVE);
  munmap(start, length);
}

[[noreturn]] void ThrowNoTensor() {
  throw SharedMemoryError(
      Kind::kGone,
      "The tensor of this message does not exist any more: the message was "
      "received before and the tensor dropped by all, or it was given up "
      "because nobody received it for long when memory ran out.");
}

[[noreturn]] void ThrowSharedUncounted() {
  throw SharedMemoryError(
      Kind::kUnavailable,
      "A tensor in memory of a process that has ended cannot be sent, since "
      "this process shares that memory with one that was forked meanwhile, or "
      "with another tensor of its own, and the receiver could not share it "
      "too. Send tensor.clone() instead.");
}

}  // namespace

SharedHeap& SharedHeap::Instance() {
  static SharedHeap& heap =
      *std::unique_ptr<SharedHeap>(new SharedHeap).release();  // NOLINT
  return heap;
}

SharedHeap::SharedHeap()
    : limit_(MemoryOfMachineOrContainer("")), last_nonce_(RandomBits()) {
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

bool SharedHeap::Serves(Attached* own, SharingStrategy strategy) {
  // Others could not open a segment whose descriptor is lost.
  return own->segment->strategy() == strategy && own->segment->Usable();
}

uint64_t SharedHeap::Ago(double seconds) {
  uint64_t now = NowNanoseconds();
  double age = std::max(0.0, seconds) * 1e9;
  return age >= static_cast<double>(now) ? 0 : now - static_cast<uint64_t>(age);
}

std::optional<SharedBlock> SharedHeap::AllocateWarm(SharingStrategy strategy,
                                                    uint64_t capacity,
                                                    Inheritance inheritance) {
  for (Attached* own : own_) {
    if (own->segment->strategy() != strategy) continue;
    auto block = own->own->TakeWarm(capacity);
    if (!block) continue;
    if (own->segment->CanBeOpened()) return AddHold(own, *block, inheritance);
    own->own->Free(*block);
  }
  return std::nullopt;
}

SharedBlock SharedHeap::Allocate(SharingStrategy strategy, uint64_t size) {
  return AllocateBlock(strategy, size, Inheritance::kChild);
}

SharedBlock SharedHeap::AllocateBlock(SharingStrategy strategy,
                                      uint64_t size,
                                      Inheritance inheritance) {
  if (size > SharedLedger::kMaxReserve / 2) {
    throw SharedMemoryError(
        Kind::kExhausted,
        "No segment of shared memory has " + HumanBytes(size) + ".");
  }
  uint64_t capacity = SharedBlocks::CapacityFor(size);
  Locked locked(this);
  CollectUnasked();
  for (Attached* own : own_) own->own->Recycle();
  try {
    return AllocateAny(locked.lock(), strategy, capacity, inheritance);
  } catch (const SharedMemoryError& error) {
    if (error.kind() != Kind::kExhausted) throw;
  }
  uint64_t deadline = Ago(kMessageLostSeconds);
  Expire(deadline);
  CollectOwn();
  Trim(0);
  CollectOthers(deadline, Thrift::kDetach);
  if (family_) family_->RemoveAbandoned(deadline);
  return AllocateAny(locked.lock(), strategy, capacity, inheritance);
}

SharedBlock SharedHeap::AllocateAny(std::unique_lock<std::mutex>* lock,
                                    SharingStrategy strategy,
                                    uint64_t capacity,
                                    Inheritance inheritance) {
  if (auto block = AllocateWarm(strategy, capacity, inheritance)) return *block;
  CollectOwn();
  if (auto block = AllocateWarm(strategy, capacity, inheritance)) return *block;
  return AllocateCold(lock, strategy, capacity, inheritance);
}

// While it exists, the mutex is free, and bytes count as given out already.
class SharedHeap::Pending {
 public:
  Pending(SharedHeap* heap, std::unique_lock<std::mutex>* lock, uint64_t bytes)
      : heap_(heap), lock_(lock), bytes_(bytes) {
    heap_->pending_ += bytes_;
    lock_->unlock();
  }
  Pending(const Pending&) = delete;
  Pending& operator=(const Pending&) = delete;
  ~Pending() {
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
  uint64_t offset = attached->own->RunOffset(run);
  uint64_t length = attached->own->RunLength(run);
  try {
    MakeRoom(length);
    int fd = attached->segment->fd();
    // The kernel clears the memory now; other threads need not wait for that.
    Pending pending(this, lock, length);
    attached->segment->Reserve(fd, offset, length);
    attached->segment->Populate(offset, length);
  } catch (...) {
    attached->own->PutCold(run);
    throw;
  }
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
  uint64_t before = 0;
  for (const Attached* own : own_) before += own->segment->reserve();
  uint64_t needed = SharedBlocks::ReserveFor(capacity);
  std::unique_ptr<SharedSegment> segment;
  for (uint64_t wanted = std::clamp(2 * before, kFirstReserve, kMostReserve);
       !segment;
       wanted /= 2) {
    uint64_t reserve = RoundUp(std::max(needed, wanted), kSharedPage);
    try {
      segment = SharedSegment::Create(strategy, family, reserve);
    } catch (const SharedMemoryError& error) {
      // A limit on addresses (ulimit -v) is met with smaller segments.
      if (error.kind() != Kind::kExhausted || reserve == needed) throw;
    }
  }
  auto blocks = std::make_unique<SharedBlocks>(segment.get(), &ended_);
  own_.reserve(own_.size() + 1);  // so that nothing fails once it is added
  Attached* made = AddSegment(std::move(segment));
  made->own = std::move(blocks);
  own_.push_back(made);
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
  HoldingsOf(block)->holds.at(block.offset).storage = std::move(storage);
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
  // The creator may be dead while this process, which sends, lives.
  if (!attached->second.own) life = MessageLife::kUntilGivenUp;
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
  // To look at all at each would cost the square of their number.
  size_t others = segments_.size() - own_.size();
  if (others >= 2 * scanned_ + kFewSegments) SaveDescriptors();
  try {
    return AddSegment(SharedSegment::Open(message.id));
  } catch (const SharedSlotsInUseError&) {
    throw;  // nothing that this process can free would help
  } catch (const SharedMemoryError& error) {
    if (error.kind() != Kind::kExhausted) throw;
  }
  CollectOthers(0, Thrift::kDetach);
  return AddSegment(SharedSegment::Open(message.id));
}

SharedHeap::Received SharedHeap::Receive(const SharedMessage& message) {
  std::lock_guard<std::mutex> guard(mutex_);
  return ReceiveBlock(message, Inheritance::kChild, Ticket::kSpend);
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
  // A child of fork may have got the pages of a segment that others still have
  // whole, and to which messages go.
  bool may_be_whole = detached->second.forked;
  for (const auto& [offset, hold] : detached->second.holds) {
    if (hold.index == message.block && hold.generation == message.generation &&
        message.offset < hold.capacity) {
      if (may_be_whole && ticket == Ticket::kSpend) SpendTicket(message);
      return UseAgain(&detached->second, offset, inheritance);
    }
  }
  if (may_be_whole) return std::nullopt;
  ThrowNoTensor();
}

void SharedHeap::SpendTicket(const SharedMessage& message) {
  try {
    SharedLedger& ledger = Attach(message)->segment->ledger();
    if (message.block < ledger.block_count()) {
      ledger.RedeemTicket(message.block, message.ticket);
    }
  } catch (const SharedMemoryError&) {
    // The segment was taken apart, and its tickets are gone with it.
  }
}

SharedHeap::Received SharedHeap::ReceiveBlock(const SharedMessage& message,
                                              Inheritance inheritance,
                                              Ticket ticket) {
  CollectUnasked();
  if (auto received = ReceiveDetached(message, inheritance, ticket)) {
    return *received;
  }
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
  if (offset < SharedLedger::LedgerBytes(segment.reserve()) ||
      offset % SharedBlocks::kAlignment != 0 ||
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
    return UseAgain(attached, offset, inheritance);
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
  ThrowNoTensor();
}

void SharedHeap::Release(const SharedBlock& block) {
  std::lock_guard<std::mutex> guard(mutex_);
  CollectUnasked();
  Holdings* holdings = HoldingsOf(block);
  // A child of fork does not hold all that its parent held.
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
  segment.DropHolder(block.index);
  if (attached.own) return;
  if (attached.holds.empty()) {
    AskWhetherMakerLives(it);
  } else if (segment.ledger().orphaned()) {
    segment.PunchOrphans(block.index, 1, 0);
    if (segment.parked()) segment.Park();
  }
}

void SharedHeap::AskWhetherMakerLives(Segments::iterator it) {
  Attached& attached = it->second;
  // Only the kernel knows whether a process was killed, and asking it costs
  // more than everything else here. A process that receives and drops tensors
  // all the time asks only now and then.
  uint64_t now = CoarseNanoseconds();
  bool asks = attached.segment->OwnerIsLeaving() ||
              now - attached.asked >= kAskAgainNanoseconds;
  if (!asks) {
    if (unasked_.empty()) unasked_since_ = now;
    unasked_.insert(attached.id);
    return;
  }
  attached.asked = now;
  if (attached.segment->ledger().orphaned() || attached.segment->OwnerDied()) {
    CollectOther(it, 0, Thrift::kNone);
  }
}

void SharedHeap::CollectUnasked() {
  if (unasked_.empty() ||
      CoarseNanoseconds() - unasked_since_ < kAskAgainNanoseconds) {
    return;
  }
  for (uint64_t id : std::exchange(unasked_, {})) {
    auto it = segments_.find(id);
    if (it != segments_.end() && it->second.holds.empty()) {
      AskWhetherMakerLives(it);
    }
  }
}

void SharedHeap::ReleaseDetached(Detached* detached, uint64_t offset) {
  auto found = detached->holds.find(offset);
  uint64_t start = offset - offset % kSharedPage;
  uint64_t end = RoundUp(offset + found->second.capacity, kSharedPage);
  // Small blocks share pages.
  if (found != detached->holds.begin()) {
    const auto& [before, hold] = *std::prev(found);
    start = std::max(start, RoundUp(before + hold.capacity, kSharedPage));
  }
  if (std::next(found) != detached->holds.end()) {
    uint64_t after = std::next(found)->first;
    end = std::min(end, after - after % kSharedPage);
  }
  if (start < end) {
    DropPages(detached->base + start, end - start, detached->forked);
  }
  by_address_.erase(detached->base + offset);
  detached->holds.erase(found);
  if (detached->holds.empty()) detached_.erase(detached->id);
}

bool SharedHeap::IsShortOfDescriptors() const {
  // A fork takes one more per segment for a moment. Half of the limit is left
  // to the rest of the program.
  uint64_t needed = 0;
  for (const auto& [id, attached] : segments_) {
    if (!attached.own) needed += attached.segment->parked() ? 1 : 2;
  }
  rlimit descriptors = {};
  return getrlimit(RLIMIT_NOFILE, &descriptors) == 0 &&
         needed * 2 >= descriptors.rlim_cur;
}

void SharedHeap::SaveDescriptors() {
  CollectOthers(0, Thrift::kPark);
  if (IsShortOfDescriptors()) CollectOthers(0, Thrift::kDetach);
}

void SharedHeap::CollectOthers(uint64_t deadline, Thrift thrift) {
  for (auto it = segments_.begin(); it != segments_.end();) {
    it = CollectOther(it, deadline, thrift);
  }
  scanned_ = segments_.size() - own_.size();
}

SharedHeap::Segments::iterator SharedHeap::CollectOther(Segments::iterator it,
                                                        uint64_t deadline,
                                                        Thrift thrift) {
  Attached& attached = it->second;
  SharedSegment& segment = *attached.segment;
  auto next = std::next(it);
  if (attached.own || segment.pinned()) return next;
  segment.ReapDead();
  if (!segment.ledger().orphaned()) return next;
  segment.PunchOrphans(0, segment.ledger().block_count(), deadline);
  if (attached.holds.empty()) {
    // A message that was sent on from here names this process's descriptor.
    bool needed = segment.strategy() == SharingStrategy::kFileDescriptor &&
                  segment.ledger().HasMessages();
    if (segment.RemoveIfAlone() || !needed) {
      by_address_.erase(attached.base);
      segments_.erase(it);
      return next;
    }
  } else if (thrift == Thrift::kDetach && Detach(it)) {
    return next;
  }
  if (thrift != Thrift::kNone || segment.parked()) segment.Park();
  return next;
}

bool SharedHeap::Detach(Segments::iterator it) {
  Attached& attached = it->second;
  // It was opened again by a child of fork, which has other pages of it.
  if (detached_.count(attached.id) > 0) return false;
  // All private memory is allocated first, so that a failure of that leaves
  // nothing half done.
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

void SharedHeap::Collect(std::optional<double> message_timeout) {
  uint64_t deadline = message_timeout ? Ago(*message_timeout) : 0;
  Locked locked(this);
  if (message_timeout) Expire(deadline);
  CollectOwn();
  Trim(0);
  CollectOthers(deadline, Thrift::kNone);
  if (family_) family_->RemoveAbandoned(deadline);
}

void SharedHeap::CollectDead() {
  std::lock_guard<std::mutex> guard(mutex_);
  CollectOthers(0, Thrift::kNone);
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
  // A child that is given its part of a segment keeps it whole. Where children
  // come and go, as in a pool that replaces its workers, there would never be a
  // moment without one.
  if (IsShortOfDescriptors()) SaveDescriptors();
  if (IsShortOfDescriptors()) {
    for (auto& [id, attached] : segments_) {
      SharedSegment& segment = *attached.segment;
      bool left = !attached.own && segment.ledger().orphaned() &&
                  detached_.count(id) == 0;
      if (left && !segment.pinned()) segment.ShareSlot();
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

void SharedHeap::KeepPagesAlone(Attached* attached) {
  by_address_.erase(attached->base);
  std::vector<SharedRange> kept;
  for (const auto& [offset, hold] : attached->holds) {
    kept.push_back({offset, hold.capacity});
  }
  attached->segment->LeaveButFor(kept);
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
    KeepPagesAlone(&it->second);
    it = segments_.erase(it);
  }
  for (auto& [id, attached] : segments_) {
    attached.segment->ChildAfterFork(BlocksInherited(attached));
    attached.own.reset();
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
  own_.clear();
  ended_.clear();
  unasked_.clear();
  scanned_ = 0;
  pending_ = 0;
  if (family_) family_->ChildAfterFork();
  // Two processes that count on from one number would issue equal tickets.
  last_nonce_ ^= static_cast<uint32_t>(getpid()) * 2654435761u;
  mutex_.unlock();
}

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
