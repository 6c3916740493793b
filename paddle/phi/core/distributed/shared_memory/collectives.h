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
#include <memory>
#include <string>
#include <vector>

#include "paddle/phi/core/distributed/shared_memory/collective_types.h"
#include "paddle/phi/core/distributed/shared_memory/peer_memory.h"

namespace phi {
namespace distributed {

class Exchange;
struct OfferedBuffer;
class GroupMemory;
class Operation;

// The collective operations of one rank of a group, on contiguous host memory.
//
// Every rank must call the same operations in the same order, with the same
// type, reduction, root and size; otherwise all ranks get an error that states
// which rank called what. Each element is reduced in rank order, whichever rank
// computes it, so the result is bitwise identical on all ranks and in every
// run.
//
// No rank writes to another rank's memory: a rank reads the data that it needs,
// and an operation returns when no other rank reads this rank's memory any
// more. After an operation fails, another rank may still read the caller's
// buffers in shared memory, but its own operation then fails, too. The content
// of the output is undefined.
//
// All functions throw CollectiveError once the group has failed: a rank has
// died or left, has called a different operation, has aborted one, or did not
// arrive before `timeout`. They also throw it for an invalid argument, in which
// case the group does not fail.
//
// Thread-safe. Collective operations are serialized, and so are operations of
// the same ordered pair of ranks; other operations run concurrently. The caller
// must ensure that all ranks call them in the same order.
class Collectives {
 public:
  using Milliseconds = std::chrono::milliseconds;

  // Waits for all ranks. The resolver finds buffers in shared memory, which the
  // other ranks read in place; it may be null, see PeerMemory. `group` must
  // outlive this object.
  Collectives(GroupMemory* group,
              std::shared_ptr<SharedMemoryResolver> resolver,
              Milliseconds timeout);
  Collectives(const Collectives&) = delete;
  Collectives& operator=(const Collectives&) = delete;

  // The buffers of one call must not overlap, except where stated. An empty
  // buffer may be null. `type` is the name of the elements' type: operations
  // that only copy the elements also work on types that are no ElementType.

  // `in` may equal `out`.
  void AllReduce(const void* in,
                 void* out,
                 uint64_t count,
                 ElementType type,
                 Reduction reduction,
                 Milliseconds timeout);
  // Only the root's `out` is written, and may equal its `in`. On other ranks
  // `out` may be null.
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
  void Broadcast(void* data,
                 uint64_t bytes,
                 const std::string& type,
                 int root,
                 Milliseconds timeout);
  // `out` has `bytes_per_rank` for each rank, in one buffer or in one buffer
  // per rank. `in` may be this rank's part of it.
  void AllGather(const void* in,
                 void* out,
                 uint64_t bytes_per_rank,
                 const std::string& type,
                 Milliseconds timeout);
  void AllGather(const void* in,
                 const std::vector<char*>& out,
                 uint64_t bytes_per_rank,
                 const std::string& type,
                 Milliseconds timeout);
  // Only the root's `out` is written, and the root's `in` may be its part of
  // `out`. On other ranks `out` may be null or empty.
  void Gather(const void* in,
              void* out,
              uint64_t bytes_per_rank,
              const std::string& type,
              int root,
              Milliseconds timeout);
  void Gather(const void* in,
              const std::vector<char*>& out,
              uint64_t bytes_per_rank,
              const std::string& type,
              int root,
              Milliseconds timeout);
  // Only the root's `in` is read, from one buffer or from one buffer per rank,
  // and the root's `out` may be its part of `in`. On other ranks `in` may be
  // null or empty.
  void Scatter(const void* in,
               void* out,
               uint64_t bytes_per_rank,
               const std::string& type,
               int root,
               Milliseconds timeout);
  void Scatter(const std::vector<const char*>& in,
               void* out,
               uint64_t bytes_per_rank,
               const std::string& type,
               int root,
               Milliseconds timeout);
  // Sends `in_bytes[k]` bytes to rank k, starting at the sum of the preceding
  // sizes, and receives `out_bytes[k]` bytes from it in the same way.
  void AllToAll(const void* in,
                const std::vector<uint64_t>& in_bytes,
                void* out,
                const std::vector<uint64_t>& out_bytes,
                const std::string& type,
                Milliseconds timeout);
  void Barrier(Milliseconds timeout) { Meet("barrier", timeout); }

  // Only the two ranks take part. Messages from one rank to another are
  // received in the order in which they are sent.
  void Send(const void* data,
            uint64_t bytes,
            const std::string& type,
            int receiver,
            Milliseconds timeout);
  void Recv(void* data,
            uint64_t bytes,
            const std::string& type,
            int sender,
            Milliseconds timeout);

 private:
  // The type and reduction of an operation.
  struct Elements {
    ElementType type;
    Reduction reduction;
  };

  int rank() const;
  int size() const;
  // Waits for all ranks in an operation without data.
  void Meet(const std::string& name, Milliseconds timeout);
  void RequireRank(int rank, const char* role) const;
  static void RequireReducible(ElementType type, Reduction reduction);

  // Scatters pieces of the same size, which only the root has.
  void ScatterPieces(const OfferedBuffer& offered,
                     char* out,
                     uint64_t bytes_per_rank,
                     const std::string& type,
                     int root,
                     Milliseconds timeout);
  // Reads a range of the pieces of all other ranks into the same range of their
  // buffers.
  void CopyPieces(Exchange* exchange,
                  const std::vector<char*>& out,
                  uint64_t begin,
                  uint64_t end);
  // Reduces a range of one piece over all ranks into the same range of `out`.
  // `own` is this rank's piece; `own` and `out` point to the piece's beginning.
  void ReducePieces(Exchange* exchange,
                    const char* own,
                    char* out,
                    uint64_t begin,
                    uint64_t end,
                    const Elements& elements);
  // Every rank reduces all elements.
  void AllReduceWhole(Operation* operation,
                      const char* in,
                      char* out,
                      uint64_t bytes,
                      const Elements& elements);
  // Every rank reduces one part, then reads the other ranks' parts.
  void AllReduceByParts(Operation* operation,
                        const char* in,
                        char* out,
                        uint64_t bytes,
                        const Elements& elements);

  GroupMemory* group_;
  std::vector<int> others_;  // in the order in which this rank reads from them
  PeerMemory memory_;
  std::vector<char> scratch_;  // used by the collective operation in flight
};

}  // namespace distributed
}  // namespace phi
