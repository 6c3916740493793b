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
#include "paddle/phi/core/memory/allocation/shared_memory/cuda_ipc_storage.h"
#include "paddle/phi/core/memory/allocation/shared_memory/shared_heap.h"

namespace paddle {
namespace memory {
namespace allocation {

// Moves the storage of a tensor into shared memory and returns the tensor's
// handle. Another process rebuilds the same tensor over the same memory from
// the handle.
//
// The storage is moved, not the tensor: the phi::Allocation stays and gets a
// new address. So every tensor over it, base or view, existing or future, uses
// the shared memory. A storage that is already shared is not moved. The old
// memory is freed together with the storage: a thread may still read it.
//
// `tensor` is a copy, which keeps the storage alive whatever other threads do
// with the original meanwhile.
//
// Throws for tensors that would not arrive intact: tensors outside of the CPU
// and pinned memory, in memory that Paddle did not allocate (DLPack), or with
// an opaque layout. Throws if a flag forbids to move the storage, see
// StorageWatcher::EnforceFlagsAllowStart.
//
// Thread-safe, but a thread that reads or writes the tensor during the call may
// use either memory; the caller must prevent that.
std::string ShareDenseTensor(phi::DenseTensor tensor,
                             SharingStrategy strategy,
                             MessageLife life = MessageLife::kUntilExpired);

// Moves a storage in the same way, without creating a handle. A tensor without
// elements stays as it is. With `trim`, the old memory is returned to the
// system immediately if no other tensor uses the storage.
//
// Thread-safe, in the same sense. With `trim`, a thread that reads the tensor
// during the call may read zeros.
void MoveIntoSharedMemory(phi::DenseTensor tensor,
                          SharingStrategy strategy,
                          bool trim);

// All functions below are thread-safe.

// Returns whether the storage of a tensor is in shared host memory.
bool IsInSharedMemory(const phi::DenseTensor& tensor);

// Returns the allocator of shared memory, which is never destroyed.
phi::Allocator* SharedAllocator(SharingStrategy strategy);

// Returns whether memory of a place can be moved into shared host memory.
bool IsOnHost(const phi::Place& place);

// Returns whether a tensor is in its own file, which workers of the legacy
// readers create (MemoryMapWriterAllocation). The pickle of such a tensor is
// the file's name, and its receiver removes the file.
bool IsInOwnFile(const phi::DenseTensor& tensor);

// Returns the tensor of a handle. Handles are untrusted: every field is checked
// before it is used. All tensors over one block share one allocation. A GPU
// tensor is ready for use on the stream that `stream_of` returns.
phi::DenseTensor RebuildDenseTensor(const std::string& handle,
                                    const CudaStreamOf& stream_of);

// A contiguous tensor within the bytes of another tensor.
struct SharedView {
  phi::DataType dtype;
  std::vector<int64_t> dims;
  uint64_t offset;  // bytes
};

// Returns tensors within the bytes of the host tensor that the handle
// describes. They share its storage. The views are untrusted, too.
std::vector<phi::DenseTensor> RebuildViews(
    const std::string& handle, const std::vector<SharedView>& views);

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
