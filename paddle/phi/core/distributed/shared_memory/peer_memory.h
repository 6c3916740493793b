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

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

#include "paddle/phi/core/distributed/shared_memory/operation_info.h"

namespace phi {
namespace distributed {

class GroupMemory;
class Operation;

// Locates memory of this process within memory that other processes can map.
// Opaque: only the SharedMemoryResolver interprets it.
using SharedMemoryHandle = std::array<char, sizeof(BufferLocation::handle)>;

// Finds tensors in shared memory.
//
// Thread-safe.
class SharedMemoryResolver {
 public:
  virtual ~SharedMemoryResolver() = default;
  // Returns a handle to memory of this process, or none if other processes
  // cannot map it.
  virtual std::optional<SharedMemoryHandle> Find(const void* address,
                                                 uint64_t bytes) = 0;
  // Maps memory of another rank, which stays mapped as long as the result
  // lives. Returns null if this process cannot map it; the caller then reads
  // the memory directly.
  virtual std::shared_ptr<const void> Map(const SharedMemoryHandle& handle,
                                          uint64_t bytes) = 0;
};

// How ranks read each other's memory that they cannot map.
//
// kStaged is the default. It needs no permission, and is faster although the
// peer copies all data: its windows stay in the cache, whereas process_vm_readv
// looks up each page. For 64 MiB on two ranks, an all_reduce took 14 ms instead
// of 19 ms and a broadcast 8 ms instead of 15 ms; an all_gather took 12 ms with
// both.
enum class PeerAccess : uint8_t {
  kStaged,  // the peer copies it to its staging memory, which all can read
  kDirect,  // with process_vm_readv
};

struct PeerMemoryOptions {
  // With kDirect, all ranks still stage if one of them has to: because the
  // system forbids process_vm_readv, or because its options are kStaged.
  PeerAccess access{PeerAccess::kStaged};
  // Null means that no memory counts as shared. All ranks must have a resolver,
  // or none.
  std::shared_ptr<SharedMemoryResolver> resolver;
};

// Access of one rank to the memory of the other ranks of its group.
//
// Thread-safe.
class PeerMemory {
 public:
  using Milliseconds = std::chrono::milliseconds;

  // Waits for all ranks, which agree on the access. `group` must outlive this
  // object. Throws CollectiveError.
  PeerMemory(GroupMemory* group,
             const PeerMemoryOptions& options,
             Milliseconds timeout);

  GroupMemory* group() const { return group_; }
  PeerAccess access() const { return access_; }
  // Returns where other ranks find memory of this process.
  BufferLocation Locate(const char* data, uint64_t bytes) const;
  // Maps memory whose location another rank published as kShared. Returns null
  // if this process cannot map it.
  std::shared_ptr<const void> Map(const BufferLocation& location) const;

  // Copies memory of another rank's process. Returns the reason of a failure,
  // or an empty text on success: then all bytes come from that rank's process,
  // even if it was killed meanwhile.
  std::string CopyFrom(int rank,
                       uint64_t address,
                       uint64_t bytes,
                       char* to) const;

 private:
  bool CanReadAll() const;

  GroupMemory* group_;
  std::shared_ptr<SharedMemoryResolver> resolver_;
  PeerAccess access_{PeerAccess::kStaged};
};

// Another rank's buffer during one operation, if that rank does not stage it.
//
// Not thread-safe.
class PeerBuffer {
 public:
  // Requires: the operation has waited for the rank. All arguments must outlive
  // this object. All functions throw CollectiveError.
  PeerBuffer(const PeerMemory& memory,
             Operation* operation,
             int rank,
             const BufferLocation& location);

  // Returns `bytes` bytes, starting at `offset`: in place if this process has
  // mapped them, otherwise in `scratch`.
  const char* Read(uint64_t offset, uint64_t bytes, char* scratch) const;

 private:
  const PeerMemory& memory_;
  Operation* operation_;
  int rank_;
  const BufferLocation& location_;
  std::shared_ptr<const void> mapping_;
  const char* mapped_{nullptr};
};

}  // namespace distributed
}  // namespace phi
