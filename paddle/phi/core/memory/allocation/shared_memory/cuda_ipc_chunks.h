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

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "paddle/phi/core/memory/allocation/shared_memory/cuda_ipc_driver.h"
#include "paddle/phi/core/memory/allocation/shared_memory/file_descriptor.h"

namespace paddle {
namespace memory {
namespace allocation {

// Identifies the process that owns chunks: its process number, and a descriptor
// of a file with random bits. The number alone is not enough: it may belong to
// another process by now, or in another container.
struct CudaIPCChunkOwner {
  uint32_t pid;
  int32_t identity_fd;
  uint64_t identity;
};

// The chunks of this process that other processes may map. The driver has no
// handle for memory of the virtual-memory allocator. Instead it has one
// descriptor for each mapped chunk. A tensor is in one chunk or in several
// adjacent ones.
//
// Invariant: a chunk has one descriptor, however many tensors are in it.
//
// Thread-safe.
class CudaIPCChunkExports {
 public:
  struct Exported {
    // The handle identifies the chunks: no other chunks of a living process
    // have the same handle.
    CudaIPCDriver::Exported range;
    std::vector<CudaIPCDriver::Chunk> chunks;
    // Others can map the chunks as long as these exist.
    std::vector<std::shared_ptr<FileDescriptor>> descriptors;
  };

  // Returns none if the driver does not export the memory: it is not in chunks,
  // or its chunks were not created to be exported.
  //
  // Requires: the memory stays allocated as long as the descriptors exist.
  std::optional<Exported> Export(int device, char* address, uint64_t size);

  // Fork handlers, which the caller registers. The child closes all
  // descriptors, since they would keep the memory allocated. This includes
  // descriptors that belong to threads that the child does not have, or to
  // tensors that it cannot use.
  void BeforeFork();
  void ParentAfterFork();
  void ChildAfterFork();

 private:
  CudaIPCChunkOwner Owner();
  std::optional<std::shared_ptr<FileDescriptor>> DescriptorOf(int device,
                                                              char* chunk);

  std::mutex mutex_;
  FileDescriptor identity_file_;
  uint64_t identity_{0};
  std::map<std::pair<int, char*>, std::weak_ptr<FileDescriptor>> descriptors_;
};

// Maps the chunks of a handle at consecutive addresses and returns the first
// address.
//
// Thread-safe. Requires: their owner is alive, or this throws.
char* MapChunks(int device,
                const CudaIPCHandle& handle,
                const std::vector<CudaIPCDriver::Chunk>& chunks);

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
