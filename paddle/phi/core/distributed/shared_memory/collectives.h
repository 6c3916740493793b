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

#include <chrono>
#include <cstdint>
#include <vector>

#include "paddle/phi/core/distributed/shared_memory/collective_types.h"
#include "paddle/phi/core/distributed/shared_memory/peer_memory.h"

namespace phi {
namespace distributed {

class Exchange;
class GroupMemory;
class Operation;

// The collective operations of one rank of a group, on host memory that is
// contiguous.
//
// Every rank calls the same operations in the same order, with the same type,
// reduction, root and size; otherwise all ranks get an error that says which
// rank called what. Each element is reduced in the order of ranks, whichever
// rank does it. So the result has the same bits on all ranks and in every run.
//
// No rank writes to the memory of another one: a rank reads what it needs, and
// an operation ends when nobody reads this rank's memory any more. After an
// operation has failed the buffers are the caller's alone, and the content of
// its output is not defined.
//
// All functions throw CollectiveError once the group has failed: a rank has
// died or left, has called another operation, has given up one, or did not come
// before `timeout` had passed. They throw it, and the group does not fail, if
// an argument is wrong.
//
// Thread-safe: operations of all ranks wait for each other, as do those of one
// ordered pair of ranks, and no others. The caller sees to it that all ranks
// call them in the same order.
class Collectives {
 public:
  using Milliseconds = std::chrono::milliseconds;

  // Waits for all ranks, which agree on how they read each other's memory.
  // `group` outlives this object.
  Collectives(GroupMemory* group,
              const PeerMemoryOptions& options,
              Milliseconds timeout);
  Collectives(const Collectives&) = delete;
  Collectives& operator=(const Collectives&) = delete;

  // Returns how memory is read that no rank can map. The same on all ranks.
  PeerAccess access() const { return memory_.access(); }

  // Buffers of one call do not overlap, except where it says so. A buffer of no
  // bytes may be null.

  // `in` may be `out`.
  void AllReduce(const void* in,
                 void* out,
                 uint64_t count,
                 ElementType type,
                 Reduction reduction,
                 Milliseconds timeout);
  // Only the root's `out` is written to, and may be its `in`; that of other
  // ranks may be null.
  void Reduce(const void* in,
              void* out,
              uint64_t count,
              ElementType type,
              Reduction reduction,
              int root,
              Milliseconds timeout);
  // `in` has `count_per_rank` elements for each rank. `out` may be this rank's
  // part of it.
  void ReduceScatter(const void* in,
                     void* out,
                     uint64_t count_per_rank,
                     ElementType type,
                     Reduction reduction,
                     Milliseconds timeout);
  void Broadcast(void* data, uint64_t bytes, int root, Milliseconds timeout);
  // `out` has `bytes_per_rank` for each rank. `in` may be this rank's part of
  // it.
  void AllGather(const void* in,
                 void* out,
                 uint64_t bytes_per_rank,
                 Milliseconds timeout);
  // Only the root's `out` is written to, and its `in` may be its part of it;
  // that of other ranks may be null.
  void Gather(const void* in,
              void* out,
              uint64_t bytes_per_rank,
              int root,
              Milliseconds timeout);
  // Only the root's `in` is read, and its `out` may be its part of it; that of
  // other ranks may be null.
  void Scatter(const void* in,
               void* out,
               uint64_t bytes_per_rank,
               int root,
               Milliseconds timeout);
  // Sends `in_bytes[k]` bytes to rank k, from the sum of the sizes before on,
  // and receives `out_bytes[k]` bytes from it in the same way.
  void AllToAll(const void* in,
                const std::vector<uint64_t>& in_bytes,
                void* out,
                const std::vector<uint64_t>& out_bytes,
                Milliseconds timeout);
  void Barrier(Milliseconds timeout);

  // Only the two ranks meet. Messages of one rank to another one are received
  // in the order in which they are sent.
  void Send(const void* data,
            uint64_t bytes,
            int receiver,
            Milliseconds timeout);
  void Recv(void* data, uint64_t bytes, int sender, Milliseconds timeout);

 private:
  // A reduction that this rank computes a part of.
  struct Elements {
    ElementType type;
    Reduction reduction;
  };

  int rank() const;
  int size() const;
  void RequireRank(int rank, const char* role) const;
  static void RequireReducible(ElementType type, Reduction reduction);

  // Reduces a range of a piece of all ranks, `own` of this rank, to `out`,
  // where the piece begins.
  void ReducePieces(Exchange* exchange,
                    const char* own,
                    char* out,
                    uint64_t begin,
                    uint64_t end,
                    const Elements& elements);
  // Every rank reduces all elements.
  void AllReduceAtOnce(Operation* operation,
                       const char* in,
                       char* out,
                       uint64_t bytes,
                       const Elements& elements);
  // Every rank reduces a part, and then reads the parts of others.
  void AllReduceByParts(Operation* operation,
                        const char* in,
                        char* out,
                        uint64_t bytes,
                        const Elements& elements);

  GroupMemory* group_;
  std::vector<int> others_;  // in the order in which this rank reads from them
  PeerMemory memory_;
  std::vector<char> scratch_;  // used by the operation whose turn it is
};

}  // namespace distributed
}  // namespace phi
