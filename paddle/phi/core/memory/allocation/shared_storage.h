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

#include <memory>
#include <string>
#include <vector>

#include "paddle/phi/core/dense_tensor.h"
#include "paddle/phi/core/memory/allocation/cuda_ipc_storage.h"
#include "paddle/phi/core/memory/allocation/shared_heap.h"

namespace paddle {
namespace memory {
namespace allocation {

// Moves the storage of a tensor into shared memory and returns the tensor's
// handle, by which another process makes the same tensor over the same memory.
//
// The storage is moved, not the tensor: the phi::Allocation stays and gets
// another address. So every tensor over it, view or base, made before or later,
// is over the shared memory too. A storage that is there already stays where it
// is. The memory that the storage leaves is freed with the storage; for a
// `long_lived` one, a parameter's, it is trimmed at once if no other tensor has
// the storage.
//
// `tensor` is a copy, which keeps the storage alive, whatever other threads do
// with the original meanwhile.
//
// Throws for tensors that would not arrive intact: on other places than the CPU
// and pinned memory, in memory that Paddle did not allocate (DLPack), or of an
// opaque layout.
//
// Thread-safe, but a thread that reads or writes the tensor during the call may
// use either memory; the caller has to prevent that.
std::string ShareDenseTensor(phi::DenseTensor tensor,
                             SharingStrategy strategy,
                             bool long_lived,
                             MessageLife life = MessageLife::kUntilExpired);

// Moves a storage in the same way and makes no handle. A tensor without
// elements stays as it is.
//
// Thread-safe, in the same sense.
void MoveIntoSharedMemory(phi::DenseTensor tensor,
                          SharingStrategy strategy,
                          bool long_lived);

// All functions below are thread-safe.

// Returns whether the storage of a tensor is in shared memory of the host.
bool IsInSharedMemory(const phi::DenseTensor& tensor);

// Returns an allocator in shared memory, which is never destroyed.
phi::Allocator* SharedAllocator(SharingStrategy strategy);

// Returns whether memory of a place can be moved into shared memory of the
// host.
bool IsOnHost(const phi::Place& place);

// Returns whether a tensor is in a file of its own, which workers of the legacy
// readers make (MemoryMapWriterAllocation). It is pickled by the file's name,
// and its receiver removes the file.
bool IsInOwnFile(const phi::DenseTensor& tensor);

// Returns the tensor of a handle. A handle may come from anyone, so nothing in
// it is used unchecked. All tensors over one block share one allocation. A
// tensor on a GPU is ready for the stream that `stream_of` returns.
phi::DenseTensor RebuildDenseTensor(const std::string& handle,
                                    const CudaStreamOf& stream_of);

// A contiguous tensor in the bytes of another one.
struct SharedView {
  phi::DataType dtype;
  std::vector<int64_t> dims;
  uint64_t offset;  // bytes
};

// Returns tensors that lie in the bytes of a host tensor, which the handle
// describes. They share its storage. The views may come from anyone, too.
std::vector<phi::DenseTensor> RebuildViews(
    const std::string& handle, const std::vector<SharedView>& views);

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
