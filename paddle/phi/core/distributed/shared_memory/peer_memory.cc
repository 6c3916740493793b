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

#include "paddle/phi/core/distributed/shared_memory/peer_memory.h"

#include <sys/uio.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "paddle/phi/core/distributed/shared_memory/group_memory.h"
#include "paddle/phi/core/distributed/shared_memory/operation.h"

namespace phi {
namespace distributed {
namespace {

SharedMemoryHandle HandleOf(const BufferLocation& location) {
  SharedMemoryHandle handle;
  std::memcpy(handle.data(), location.handle, sizeof(location.handle));
  return handle;
}

}  // namespace

BufferLocation PeerMemory::Locate(const char* data, uint64_t bytes) const {
  BufferLocation location{};
  if (bytes == 0) return location;
  location.bytes = bytes;
  location.address = reinterpret_cast<uint64_t>(data);
  location.where = BufferLocation::Where::kStaging;
  const auto handle = resolver_ ? resolver_->Find(data, bytes) : std::nullopt;
  if (handle) {
    location.where = BufferLocation::Where::kShared;
    std::memcpy(location.handle, handle->data(), sizeof(location.handle));
  }
  return location;
}

std::shared_ptr<const void> PeerMemory::Map(
    const BufferLocation& location) const {
  if (!resolver_) return nullptr;
  return resolver_->Map(HandleOf(location), location.bytes);
}

bool PeerMemory::IsKept(int rank, const BufferLocation& location) const {
  const std::optional<bool> kept =
      resolver_ ? resolver_->IsKept(HandleOf(location), location.bytes)
                : std::nullopt;
  return kept ? *kept : !IsGoneOrExiting(group_->process_of(rank));
}

std::string PeerMemory::CopyFrom(int rank,
                                 uint64_t address,
                                 uint64_t bytes,
                                 char* to) const {
  // The rank's process ID may belong to another process by now, or the process
  // may have called exec. In both cases the group's memory is not mapped at
  // this address. One call reads both parts from the same process and program.
  uint64_t number = 0;
  const iovec local[] = {{to, bytes}, {&number, sizeof(number)}};
  const iovec remote[] = {
      {reinterpret_cast<void*>(address), bytes},
      {reinterpret_cast<void*>(group_->base_of(rank) +
                               GroupMemory::random_number_offset()),
       sizeof(number)}};
  const ssize_t copied = process_vm_readv(
      static_cast<pid_t>(group_->process_of(rank)), local, 2, remote, 2, 0);
  if (copied < 0) {
    return std::string("process_vm_readv: ") + std::strerror(errno);
  }
  if (static_cast<uint64_t>(copied) != bytes + sizeof(number)) {
    return "process_vm_readv: only part of the memory is readable";
  }
  if (number != group_->random_number()) return "the process has ended";
  return "";
}

PeerBuffer::PeerBuffer(const PeerMemory& memory,
                       Operation* operation,
                       int rank,
                       const BufferLocation& location)
    : memory_(memory), operation_(operation), rank_(rank), location_(location) {
  if (location.where == BufferLocation::Where::kInline) {
    mapped_ = operation->inline_data(rank) + location.address;
  } else if (location.where == BufferLocation::Where::kShared) {
    mapping_ = memory.Map(location);
    mapped_ = static_cast<const char*>(mapping_.get());
  }
}

const char* PeerBuffer::Read(uint64_t offset,
                             uint64_t bytes,
                             char* scratch) const {
  if (mapped_) return mapped_ + offset;
  const std::string reason =
      memory_.CopyFrom(rank_, location_.address + offset, bytes, scratch);
  if (reason.empty()) return scratch;
  operation_->ThrowUnreadable(
      rank_,
      "its shared memory segment cannot be mapped; " + reason +
          ". Pass a copy that is not in shared memory (tensor.clone()).");
}

}  // namespace distributed
}  // namespace phi
