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

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <vector>

#include "paddle/phi/core/memory/allocation/shared_memory/shared_segment.h"

namespace paddle {
namespace memory {
namespace allocation {

class SharedBlocks;

// The idle runs of all segments that the calling process owns: runs of blocks
// that have memory, and no block in use.
//
// Not thread-safe. Requires, for all functions: the heap's mutex is held.
class SharedIdleRuns {
 public:
  struct IdleRun {
    SharedBlocks* blocks;
    uint32_t run;
  };
  using Position = std::list<IdleRun>::iterator;

  // Idle memory that a process keeps: enough for a few large messages in
  // flight. The newest run that is larger than this is kept, too: a program
  // that sends such a tensor again and again would otherwise wait for cleared
  // memory each time, which takes several times as long as the copy.
  static constexpr uint64_t kMostBytes = uint64_t{256} << 20;

  // Adds a run as the newest.
  Position Add(SharedBlocks* blocks, uint32_t run);
  void Remove(Position run);
  // Trims idle runs, the oldest first, until at most `keep` bytes are idle.
  // The newest run of more than kMostBytes does not count, and stays unless
  // `keep` is 0.
  void Trim(uint64_t keep);

 private:
  static bool IsLarge(uint64_t length) { return length > kMostBytes; }
  void TrimOldest(std::list<IdleRun>* runs);

  // Both lists begin with the oldest run.
  std::list<IdleRun> runs_;   // of at most kMostBytes each
  std::list<IdleRun> large_;  // the others
  uint64_t bytes_{0};         // of runs_
};

// The blocks of one segment that the calling process owns.
//
// Invariant: the range of a block is fixed when it is appended to the ledger.
// Blocks are cut from runs: one block of a page or more, or several pages for
// small blocks. A run is warm (it has memory) or cold (it has only addresses),
// and a block in use is in a warm run. A warm run without a block in use is
// idle, and listed in the heap's SharedIdleRuns.
//
// Not thread-safe. Requires, for all functions: the heap's mutex is held.
class SharedBlocks {
 public:
  // The callback of a freed block, see OnFree, moves to `due_callbacks`, which
  // the caller runs. The arguments outlive this object.
  SharedBlocks(SharedSegment* segment,
               SharedIdleRuns* idle_runs,
               std::vector<std::function<void()>>* due_callbacks);
  ~SharedBlocks();
  SharedBlocks(const SharedBlocks&) = delete;
  SharedBlocks& operator=(const SharedBlocks&) = delete;

  // Blocks begin at multiples of this.
  static constexpr uint64_t kAlignment = 64;

  // Returns how many bytes of addresses a segment needs for a block of the
  // capacity. Thread-safe.
  static uint64_t ReserveFor(uint64_t capacity);
  // Returns the capacity of the block that an allocation of `size` bytes gets.
  // Thread-safe.
  static uint64_t CapacityFor(uint64_t size);

  // Takes a free block of a warm run, at most 1.5 times as large as requested;
  // none if there is none. The caller has to become its holder, or free it.
  std::optional<uint32_t> TakeWarm(uint64_t capacity);
  // Frees a block. Requires: it was taken and has no reference.
  void Free(uint32_t block);
  // Takes a cold run, creating one if needed; none if the segment is full. The
  // caller reserves the run's memory and calls WarmUp, or PutCold on failure.
  std::optional<uint32_t> TakeCold(uint64_t capacity);
  uint64_t RunOffset(uint32_t run) const { return runs_[run].offset; }
  uint64_t RunLength(uint32_t run) const { return runs_[run].length; }
  void PutCold(uint32_t run);
  // Makes a run warm and takes a block of it. Requires: its memory is reserved.
  uint32_t WarmUp(uint32_t run);
  // Registers a callback for when the block is freed.
  void OnFree(uint32_t block, std::function<void()> callback);

  // Frees the blocks that lost a reference since the last call and have none.
  void FreeReleased();
  // Makes an idle run cold: gives its memory to the system. SharedIdleRuns
  // calls this.
  void TrimRun(uint32_t run);
  // Expires messages that were sent before `deadline`.
  void Expire(uint64_t deadline);
  // Like Expire, but only for blocks with a callback, which are the records.
  void ExpireRecords(uint64_t deadline);

  uint64_t reserved() const { return reserved_; }
  uint64_t used() const { return used_; }
  uint64_t used_blocks() const { return used_blocks_; }
  uint64_t messages() const;

 private:
  struct Run {
    uint64_t offset;
    uint64_t length;
    uint64_t capacity;  // of each block
    uint32_t count;     // of blocks cut so far
    bool warm;
    bool listed;                 // in `available` of its size class
    std::vector<uint32_t> free;  // blocks
    SharedIdleRuns::Position idle;

    bool IsIdle() const { return warm && free.size() == count; }
  };

  struct SizeClass {
    std::vector<uint32_t> available;  // runs that had a free block when listed
    std::vector<uint32_t> cold;
    bool has_run;
  };

  std::optional<uint32_t> AppendRun(uint64_t capacity);
  // Cuts one more block from a run; false if the run or the ledger is full.
  bool Cut(uint32_t run);
  uint32_t Take(uint32_t run);
  void AddAvailable(uint32_t run);

  SharedSegment* segment_;
  SharedIdleRuns* idle_runs_;
  std::vector<std::function<void()>>* due_callbacks_;
  std::map<uint32_t, std::function<void()>> on_free_;  // by block
  std::deque<Run> runs_;
  std::vector<uint32_t> run_of_;  // by block
  std::vector<bool> in_use_;      // by block
  std::map<uint64_t, SizeClass> classes_;
  uint64_t reserved_{0};
  uint64_t used_{0};
  uint64_t used_blocks_{0};
  uint64_t end_;         // of the last run, as an offset in the segment
  uint64_t ledger_end_;  // of the part of the ledger that has memory
  uint64_t seen_releases_{0};
};

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
