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

#include "paddle/phi/core/memory/allocation/shared_segment.h"

namespace paddle {
namespace memory {
namespace allocation {

// The blocks of one segment that the calling process made.
//
// Invariant: the range of a block is fixed when it is appended; a run (one
// block of a page or more, or pages of small ones, cut off one by one) is warm,
// with memory, or cold, without; a block in use is in a warm run.
class SharedBlocks {
 public:
  // What is to be done at the end of blocks is put into `ended` then.
  SharedBlocks(SharedSegment* segment,
               std::vector<std::function<void()>>* ended);

  // Blocks begin at multiples of this.
  static constexpr uint64_t kAlignment = 64;

  // The addresses of a segment that has room for a block of the capacity.
  static uint64_t ReserveFor(uint64_t capacity);
  // The capacity of the block that a size gets.
  static uint64_t CapacityFor(uint64_t size);

  // A free block that has memory, not much larger than asked for.
  std::optional<uint32_t> TakeWarm(uint64_t capacity);
  // Gives back a block that nobody holds.
  void Free(uint32_t block);
  // A run that has no memory yet, made if need be; none if the segment is full.
  std::optional<uint32_t> TakeCold(uint64_t capacity);
  uint64_t RunOffset(uint32_t run) const { return runs_[run].offset; }
  uint64_t RunLength(uint32_t run) const { return runs_[run].length; }
  void PutCold(uint32_t run);
  uint32_t Warm(uint32_t run);
  void AtEnd(uint32_t block, std::function<void()> act);

  // Frees the blocks that lost a reference since the last time and have none.
  void Recycle();
  // Gives memory of idle runs to the system until at most `keep` bytes are
  // idle; the run that was used last stays unless `keep` is 0.
  void Trim(uint64_t keep);
  void Expire(uint64_t deadline);
  // The same of the blocks alone at whose end there is something to be done.
  void ExpireAwaited(uint64_t deadline);

  uint64_t reserved() const { return reserved_; }
  uint64_t used() const { return used_; }
  uint64_t used_blocks() const { return used_blocks_; }
  uint64_t messages() const;

 private:
  struct Run {
    uint64_t offset;
    uint64_t length;
    uint64_t capacity;  // of each block
    uint32_t count;     // of the blocks that were cut off
    bool warm;
    bool listed;                 // in `available` of its class
    std::vector<uint32_t> free;  // blocks
    std::list<uint32_t>::iterator idle;
  };

  struct SizeClass {
    std::vector<uint32_t> available;  // runs that had a free block when listed
    std::vector<uint32_t> cold;
    bool has_run;
  };

  std::optional<uint32_t> AppendRun(uint64_t capacity);
  // Makes one block more of a run; false if the run or the ledger is full.
  bool Cut(uint32_t run);
  uint32_t Take(uint32_t run);
  void List(uint32_t run);
  void AddIdle(uint32_t run);

  SharedSegment* segment_;
  std::vector<std::function<void()>>* ended_;
  std::map<uint32_t, std::function<void()>> at_end_;
  std::deque<Run> runs_;
  std::vector<uint32_t> run_of_;  // by block
  std::vector<bool> in_use_;      // by block
  std::map<uint64_t, SizeClass> classes_;
  std::list<uint32_t> idle_;  // warm runs with no block in use, oldest first
  uint64_t idle_bytes_{0};
  uint64_t reserved_{0};
  uint64_t used_{0};
  uint64_t used_blocks_{0};
  uint64_t end_;         // of the runs, in the segment
  uint64_t ledger_end_;  // of the ledger that has memory
  uint64_t seen_releases_{0};
};

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
