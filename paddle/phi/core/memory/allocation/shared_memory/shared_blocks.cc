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

#include "paddle/phi/core/memory/allocation/shared_memory/shared_blocks.h"

#include <algorithm>
#include <utility>

namespace paddle {
namespace memory {
namespace allocation {

namespace {

constexpr uint64_t kSmallRun = 4 * kSharedPage;
// The ledger doubles as it grows, in steps within these bounds.
constexpr uint64_t kMinLedgerStep = kSharedPage;
constexpr uint64_t kMaxLedgerStep = 16 * kSharedPage;

}  // namespace

SharedIdleRuns::Position SharedIdleRuns::Add(SharedBlocks* blocks,
                                             uint32_t run) {
  const uint64_t length = blocks->RunLength(run);
  if (IsLarge(length)) return large_.insert(large_.end(), {blocks, run});
  bytes_ += length;
  return runs_.insert(runs_.end(), {blocks, run});
}

void SharedIdleRuns::Remove(Position run) {
  const uint64_t length = run->blocks->RunLength(run->run);
  if (IsLarge(length)) {
    large_.erase(run);
    return;
  }
  bytes_ -= length;
  runs_.erase(run);
}

void SharedIdleRuns::Trim(uint64_t keep) {
  const size_t large = keep == 0 ? 0 : 1;
  while (bytes_ > keep) TrimOldest(&runs_);
  while (large_.size() > large) TrimOldest(&large_);
}

void SharedIdleRuns::TrimOldest(std::list<IdleRun>* runs) {
  auto [blocks, run] = runs->front();
  Remove(runs->begin());
  blocks->TrimRun(run);
}

SharedBlocks::SharedBlocks(SharedSegment* segment,
                           SharedIdleRuns* idle_runs,
                           std::vector<std::function<void()>>* due_callbacks)
    : segment_(segment),
      idle_runs_(idle_runs),
      due_callbacks_(due_callbacks),
      end_(SharedLedger::LedgerBytes(segment->reserve())),
      ledger_end_(SharedLedger::HeaderBytes(segment->reserve())) {}

SharedBlocks::~SharedBlocks() {
  for (const Run& run : runs_) {
    if (run.IsIdle()) idle_runs_->Remove(run.idle);
  }
}

uint64_t SharedBlocks::ReserveFor(uint64_t capacity) {
  uint64_t block = RoundUp(std::max(capacity, kSmallRun), kSharedPage);
  // The ledger takes a quarter of the addresses, up to its largest size.
  uint64_t ledger = std::min<uint64_t>(
      block / 2, SharedLedger::LedgerBytes(SharedLedger::kMaxReserve));
  return RoundUp(SharedLedger::kMinReserve + block + ledger, kSharedPage);
}

uint64_t SharedBlocks::CapacityFor(uint64_t size) {
  // Steps of an eighth to a quarter of the size, or of half as much from a page
  // on, so that sizes that differ little can use each other's blocks.
  uint64_t step = kAlignment;
  uint64_t parts = size < kSharedPage ? 4 : 8;
  while (step * parts * 2 < size) step *= 2;
  return RoundUp(std::max<uint64_t>(size, 1),
                 size < kSharedPage ? step : std::max(step, kSharedPage));
}

void SharedBlocks::AddAvailable(uint32_t index) {
  Run& run = runs_[index];
  if (run.listed || !run.warm || run.free.empty()) return;
  run.listed = true;
  classes_[run.capacity].available.push_back(index);
}

std::optional<uint32_t> SharedBlocks::TakeWarm(uint64_t capacity) {
  // A block of a page or more may be up to 1.5 times as large as requested:
  // touching fresh memory costs more than the unused part is worth.
  uint64_t most = capacity < kSharedPage ? capacity : capacity + capacity / 2;
  for (auto it = classes_.lower_bound(capacity);
       it != classes_.end() && it->first <= most;
       ++it) {
    std::vector<uint32_t>& available = it->second.available;
    while (!available.empty()) {
      uint32_t run = available.back();
      if (runs_[run].warm && (!runs_[run].free.empty() || Cut(run))) {
        return Take(run);
      }
      runs_[run].listed = false;
      available.pop_back();
    }
  }
  return std::nullopt;
}

uint32_t SharedBlocks::Take(uint32_t index) {
  Run& run = runs_[index];
  if (run.IsIdle()) idle_runs_->Remove(run.idle);
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
  auto callback = on_free_.extract(block);
  if (callback) due_callbacks_->push_back(std::move(callback.mapped()));
  run.free.push_back(block);
  AddAvailable(index);
  if (run.IsIdle()) {
    run.idle = idle_runs_->Add(this, index);
    idle_runs_->Trim(SharedIdleRuns::kMostBytes);
  }
}

void SharedBlocks::TrimRun(uint32_t index) {
  Run& run = runs_[index];
  segment_->Trim(run.offset, run.length);
  reserved_ -= run.length;
  run.warm = false;
  PutCold(index);
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
  // A process may have just one small tensor of a size, so the first run has
  // one page. If a second run is needed, more tensors are likely.
  bool& has_run = classes_[capacity].has_run;
  uint64_t small = has_run ? kSmallRun : kSharedPage;
  uint64_t length = capacity < kSharedPage ? small : capacity;
  if (length > segment_->reserve() - end_) return std::nullopt;
  runs_.push_back({end_, length, capacity, 0, false, false, {}, {}});
  uint32_t index = runs_.size() - 1;
  try {
    if (!Cut(index)) {
      runs_.pop_back();
      return std::nullopt;
    }
  } catch (...) {
    runs_.pop_back();
    throw;
  }
  end_ += length;
  has_run = true;
  return index;
}

bool SharedBlocks::Cut(uint32_t index) {
  Run& run = runs_[index];
  SharedLedger& ledger = segment_->ledger();
  const uint64_t reserve = segment_->reserve();
  uint32_t block = ledger.block_count();
  uint64_t start = run.count * run.capacity;
  if (run.length - start < run.capacity ||
      block == SharedLedger::MaxBlocks(reserve)) {
    return false;
  }
  uint64_t header = SharedLedger::HeaderBytes(reserve);
  if (header + (block + 1) * SharedLedger::BlockBytes() > ledger_end_) {
    if (!segment_->Usable()) return false;
    uint64_t step =
        std::clamp(ledger_end_ - header, kMinLedgerStep, kMaxLedgerStep);
    step = std::min(step, SharedLedger::LedgerBytes(reserve) - ledger_end_);
    segment_->Reserve(segment_->fd(), ledger_end_, step);
    ledger_end_ += step;
  }
  run_of_.resize(block + 1);
  in_use_.resize(block + 1, false);
  run.free.push_back(block);
  run_of_[block] = index;
  ++run.count;
  ledger.AppendBlock(run.offset + start, run.capacity);
  return true;
}

uint32_t SharedBlocks::WarmUp(uint32_t index) {
  Run& run = runs_[index];
  run.warm = true;
  reserved_ += run.length;
  run.idle = idle_runs_->Add(this, index);
  AddAvailable(index);
  return Take(index);
}

void SharedBlocks::FreeReleased() {
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

void SharedBlocks::OnFree(uint32_t block, std::function<void()> callback) {
  on_free_[block] = std::move(callback);
}

void SharedBlocks::ExpireRecords(uint64_t deadline) {
  for (const auto& [block, callback] : on_free_) {
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

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
