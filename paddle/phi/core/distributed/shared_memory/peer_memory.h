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

// Says where memory of this process lies in memory that other processes can
// map. Only the resolver that made it knows what it means.
using SharedMemoryHandle = std::array<char, sizeof(BufferLocation::handle)>;

// Finds tensors in shared memory.
//
// Thread-safe.
class SharedMemoryResolver {
 public:
  virtual ~SharedMemoryResolver() = default;
  // Returns the handle of memory of this process, none if other processes
  // cannot map it.
  virtual std::optional<SharedMemoryHandle> Find(const void* address,
                                                 uint64_t bytes) = 0;
  // Returns memory of another rank, which stays mapped as long as the result
  // lives; null if this process cannot map it. Then the memory is read
  // directly.
  virtual std::shared_ptr<const void> Map(const SharedMemoryHandle& handle,
                                          uint64_t bytes) = 0;
};

// How ranks read memory of each other that they cannot map.
//
// kStaged is the default. It needs no permission, and is faster although the
// peer copies all data: its windows stay in the cache, and a system call that
// reads another process looks up each page. Two ranks took 14 ms instead of
// 19 ms for an all_reduce of 64 MiB and 8 ms instead of 15 ms for a broadcast;
// all_gather took 12 ms both ways.
enum class PeerAccess : uint8_t {
  kStaged,  // the peer copies it to its staging memory, which all can read
  kDirect,  // by process_vm_readv
};

struct PeerMemoryOptions {
  // With kDirect the ranks stage all the same if one of them has to, because
  // the system forbids process_vm_readv or its options say so.
  PeerAccess access{PeerAccess::kStaged};
  // May be null: then no memory counts as shared. All ranks have one, or none.
  std::shared_ptr<SharedMemoryResolver> resolver;
};

// How the ranks of a group read each other's memory.
//
// Thread-safe.
class PeerMemory {
 public:
  using Milliseconds = std::chrono::milliseconds;

  // Waits for all ranks, which agree on the access. `group` outlives this
  // object. Throws CollectiveError.
  PeerMemory(GroupMemory* group,
             const PeerMemoryOptions& options,
             Milliseconds timeout);

  GroupMemory* group() const { return group_; }
  PeerAccess access() const { return access_; }
  // Returns where other ranks find memory of this process.
  BufferLocation Locate(const char* data, uint64_t bytes) const;
  // Returns memory that another rank has located as shared; null if this
  // process cannot map it.
  std::shared_ptr<const void> Map(const BufferLocation& location) const;

  // Copies memory of another rank's process. Returns what prevented it, empty
  // if nothing did: then all bytes are of that rank's process, even if it has
  // been killed meanwhile.
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

// A buffer of another rank during one operation, unless that rank stages it.
//
// Not thread-safe.
class PeerBuffer {
 public:
  // Requires: the operation has waited for the rank. All arguments outlive the
  // buffer. Throws CollectiveError, as the other functions do.
  PeerBuffer(const PeerMemory& memory,
             Operation* operation,
             int rank,
             const BufferLocation& location);

  // Returns `bytes` bytes from `offset` on: where they are if this process has
  // mapped them, else in `scratch`.
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
