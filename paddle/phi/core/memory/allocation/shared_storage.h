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

// Puts the storage of a tensor into shared memory and returns what another
// process needs to have the same tensor over the same memory: its handle.
//
// The storage is moved, not the tensor: the phi::Allocation stays and gets
// another address, so that every tensor over it, view or base, made before or
// later, is over the shared memory too. A storage that is there already stays
// where it is. A thread that reads or writes the tensor during the call may use
// either memory; that is for the caller to prevent.
//
// The tensor is a copy, which keeps the storage whatever others do meanwhile
// with the tensor it is a copy of.
//
// Refuses what would not arrive right: other places than the CPU and pinned
// memory, memory that Paddle did not allocate (DLPack), opaque layouts.
//
// The memory that a storage leaves is freed with the storage. Of a `long_lived`
// one, a parameter's, it is given to the system at once if no other tensor has
// the storage.
std::string ShareDenseTensor(phi::DenseTensor tensor,
                             SharingStrategy strategy,
                             bool long_lived,
                             MessageLife life = MessageLife::kUntilGivenUp);

// Does the same without a handle. Of a tensor without elements nothing is
// moved.
void MoveIntoSharedMemory(phi::DenseTensor tensor,
                          SharingStrategy strategy,
                          bool long_lived);

// Whether the storage of a tensor is in shared memory of the host.
bool IsInSharedMemory(const phi::DenseTensor& tensor);

// Allocates straight in shared memory. Never destroyed, and thread-safe.
phi::Allocator* SharedAllocator(SharingStrategy strategy);

// Whether memory of a place can be moved into shared memory of the host.
bool IsOnHost(const phi::Place& place);

// Whether a tensor is in a file of its own, made by the workers of the legacy
// readers (MemoryMapWriterAllocation). Such a tensor is pickled by the name of
// the file, which who receives it removes.
bool IsInOwnFile(const phi::DenseTensor& tensor);

// The tensor of a handle, which may come from anyone: nothing in it is used
// before it is checked. All tensors over one block share one allocation. What
// is on a GPU may be used by the stream that `stream_of` names.
phi::DenseTensor RebuildDenseTensor(const std::string& handle,
                                    const CudaStreamOf& stream_of);

// A contiguous tensor in the bytes of another one.
struct SharedView {
  phi::DataType dtype;
  std::vector<int64_t> dims;
  uint64_t offset;  // bytes
};

// The tensors that lie in the bytes of a tensor of the host, which is that of a
// handle. They share its storage. The views may come from anyone, too.
std::vector<phi::DenseTensor> RebuildViews(
    const std::string& handle, const std::vector<SharedView>& views);

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
