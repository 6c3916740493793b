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

#include "paddle/phi/core/memory/allocation/shared_memory/shared_storage.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <optional>
#include <utility>

#include "paddle/phi/core/enforce.h"
#include "paddle/phi/core/memory/allocation/allocator.h"
#include "paddle/phi/core/memory/allocation/allocator_facade.h"
#include "paddle/phi/core/memory/allocation/mmap_allocator.h"
#include "paddle/phi/core/memory/allocation/shared_memory/shared_handle.h"
#include "paddle/phi/core/memory/allocation/storage_watcher.h"

namespace paddle {
namespace memory {
namespace allocation {

namespace {

// Watches a storage that was moved into a block. Owns itself once it is
// started, see StorageWatcher.
class MovedStorage : public StorageWatcher {
 public:
  MovedStorage(phi::Allocation* allocation, const SharedBlock& block)
      : StorageWatcher(allocation), old_(allocation->ptr()), block_(block) {}

 protected:
  void OnFree() override {
    allocation()->set_ptr(old_);
    SharedHeap::Instance().Release(block_);
    AllocationDeleter(allocation());
  }

 private:
  void* old_;
  SharedBlock block_;
};

// A storage that is in shared memory from the start, because it was received or
// allocated there.
class BlockStorage : public Allocation {
 public:
  explicit BlockStorage(const SharedBlock& block)
      : Allocation(block.data, block.capacity, phi::CPUPlace()),
        block_(block) {}
  ~BlockStorage() override {
    SharedHeap::Instance().Release(block_);
    ReleaseOld();
  }

  // Switches to a block with the same bytes. The old block stays in use, since
  // other threads may be reading it. Requires: the heap's mutex is held, see
  // Bind.
  void MoveTo(const SharedBlock& block) {
    old_.push_back(block_);
    block_ = block;
    set_ptr(block.data);
  }

  // Releases the old blocks. Requires: no thread uses an old address.
  void ReleaseOld() {
    for (const SharedBlock& old : std::exchange(old_, {})) {
      SharedHeap::Instance().Release(old);
    }
  }

  const SharedBlock& block() const { return block_; }

 private:
  SharedBlock block_;
  std::vector<SharedBlock> old_;
};

class BlockAllocator : public phi::Allocator {
 public:
  explicit BlockAllocator(SharingStrategy strategy) : strategy_(strategy) {}

  // Does not bind the storage to the block: if this process receives a message
  // for the block, it gets another storage over the same memory.
  AllocationPtr Allocate(size_t size) override {
    SharedBlock block = RaisingPaddleErrors(
        [&] { return SharedHeap::Instance().Allocate(strategy_, size); });
    return {std::make_unique<BlockStorage>(block).release(), [](auto* storage) {
              std::unique_ptr<phi::Allocation> dropped(storage);
            }};
  }

  bool IsAllocThreadSafe() const override { return true; }

 private:
  const SharingStrategy strategy_;
};

// Returns the whole pages of a range to the system. Their content is lost.
void TrimPages(void* start, size_t size) {
  size_t page = sysconf(_SC_PAGESIZE);
  uintptr_t first = (reinterpret_cast<uintptr_t>(start) + page - 1) / page;
  uintptr_t end = (reinterpret_cast<uintptr_t>(start) + size) / page;
  if (first < end) {
    // Fails for locked memory, which then stays in use.
    madvise(reinterpret_cast<void*>(first * page),
            (end - first) * page,
            MADV_DONTNEED);
  }
}

void EnforceOnHost(const phi::Place& place) {
  PADDLE_ENFORCE_EQ(
      IsOnHost(place),
      true,
      common::errors::Unimplemented(
          "Cannot put a tensor on %s into shared memory, which is in host "
          "memory. Send tensor.cpu() instead.",
          place));
}

// Returns the address of a tensor's first element. `storage` is the address of
// the tensor's storage.
const char* FirstElement(const phi::DenseTensor& tensor, const void* storage) {
  return static_cast<const char*>(storage) + tensor.meta().offset;
}

// Moves a storage whose address was `old` into a new block, unless another
// thread has moved it meanwhile. Returns whether it has moved the storage.
bool MoveStorage(const std::shared_ptr<phi::Allocation>& holder,
                 void* old,
                 SharingStrategy strategy) {
  // The storage may be in a block of a detached segment, see SharedHeap::Send.
  auto* in_block = dynamic_cast<BlockStorage*>(holder.get());
  // Not PADDLE_ENFORCE, which would print this condition as a hint.
  if (!in_block && !StorageWatcher::CanWatch(holder)) {
    PADDLE_THROW(common::errors::InvalidArgument(
        "Cannot move the memory of this tensor on %s into shared memory: it "
        "belongs to NumPy (paddle.Tensor(array, zero_copy=True)) or to another "
        "library (DLPack), or is the file of a DataLoader worker. Send "
        "tensor.clone() instead.",
        holder->place()));
  }
  if (!in_block) {
    StorageWatcher::EnforceFlagsAllowStart(
        "Cannot share a tensor for the first time", holder->place());
  }
  SharedHeap& heap = SharedHeap::Instance();
  // A child that is forked before the storage is bound has no use for the
  // block.
  SharedBlock block = heap.Allocate(
      strategy, holder->size(), SharedHeap::Inheritance::kOnceBound);
  std::memcpy(block.data, old, holder->size());
  auto moved =
      in_block ? nullptr : std::make_unique<MovedStorage>(holder.get(), block);
  const auto take_over = [&] {
    if (holder->ptr() != old) return false;
    if (in_block) {
      in_block->MoveTo(block);
    } else {
      StorageWatcher::Start(std::move(moved));
      holder->set_ptr(block.data);
    }
    return true;
  };
  bool taken_over = false;
  try {
    taken_over = heap.Bind(
        block, holder, take_over, in_block ? &in_block->block() : nullptr);
  } catch (...) {
    heap.Release(block);
    throw;
  }
  if (!taken_over) heap.Release(block);
  return taken_over;
}

std::shared_ptr<phi::Allocation> StorageOf(const SharedMessage& message) {
  SharedHeap& heap = SharedHeap::Instance();
  SharedHeap::Received received =
      heap.Receive(message, SharedHeap::Inheritance::kOnceBound);
  if (received.storage) {
    return std::static_pointer_cast<phi::Allocation>(received.storage);
  }
  std::shared_ptr<phi::Allocation> storage =
      std::make_shared<BlockStorage>(received.block);
  heap.Bind(received.block, storage, [] { return true; });
  return storage;
}

}  // namespace

std::string ShareDenseTensor(phi::DenseTensor tensor,
                             SharingStrategy strategy,
                             MessageLife life) {
  EnforceHasHandle(tensor);
  SharedTensorHandle handle{tensor.meta(), {}};
  if (tensor.numel() > 0) {
    const std::shared_ptr<phi::Allocation>& holder = tensor.Holder();
    EnforceOnHost(holder->place());
    RaisingPaddleErrors([&] {
      SharedHeap& heap = SharedHeap::Instance();
      void* seen = holder->ptr();
      auto message = heap.Send(FirstElement(tensor, seen), life);
      if (!message) {
        MoveStorage(holder, seen, strategy);
        message = heap.Send(FirstElement(tensor, holder->ptr()), life);
      }
      handle.memory = *message;
    });
  }
  return handle.Encode();
}

void MoveIntoSharedMemory(phi::DenseTensor tensor,
                          SharingStrategy strategy,
                          bool trim) {
  EnforceHasHandle(tensor);
  if (tensor.numel() == 0) return;
  const std::shared_ptr<phi::Allocation>& holder = tensor.Holder();
  EnforceOnHost(holder->place());
  void* seen = holder->ptr();
  if (SharedHeap::Instance().Has(FirstElement(tensor, seen))) return;
  RaisingPaddleErrors([&] {
    if (!MoveStorage(holder, seen, strategy) || !trim) return;
    // Other tensors may be read by threads that know nothing of this call.
    if (holder.use_count() > 2) return;
    if (auto* in_block = dynamic_cast<BlockStorage*>(holder.get())) {
      in_block->ReleaseOld();
    } else {
      TrimPages(seen, holder->size());
    }
  });
}

bool IsInSharedMemory(const phi::DenseTensor& tensor) {
  return tensor.Holder() && tensor.numel() > 0 &&
         SharedHeap::Instance().Has(
             FirstElement(tensor, tensor.Holder()->ptr()));
}

phi::Allocator* SharedAllocator(SharingStrategy strategy) {
  // Never destroyed: tensors may be allocated after static destructors ran.
  static auto& file_system =
      *std::make_unique<BlockAllocator>(SharingStrategy::kFileSystem).release();
  static auto& file_descriptor =
      *std::make_unique<BlockAllocator>(SharingStrategy::kFileDescriptor)
           .release();
  return strategy == SharingStrategy::kFileSystem ? &file_system
                                                  : &file_descriptor;
}

bool IsOnHost(const phi::Place& place) {
  return phi::is_cpu_place(place) || phi::is_cuda_pinned_place(place);
}

bool IsInOwnFile(const phi::DenseTensor& tensor) {
  return dynamic_cast<MemoryMapWriterAllocation*>(tensor.Holder().get()) !=
         nullptr;
}

phi::DenseTensor RebuildDenseTensor(const std::string& handle,
                                    const CudaStreamOf& stream_of) {
  SharedTensorHandle decoded = SharedTensorHandle::Decode(handle);
  if (std::holds_alternative<std::monostate>(decoded.memory)) {
    if (decoded.meta.dtype == phi::DataType::UNDEFINED) {
      return phi::DenseTensor();
    }
    return phi::DenseTensor(
        AllocatorFacade::Instance().AllocShared(phi::CPUPlace(), 0),
        decoded.meta);
  }
  std::shared_ptr<phi::Allocation> storage = RaisingPaddleErrors([&] {
    if (const auto* host = std::get_if<SharedMessage>(&decoded.memory)) {
      return StorageOf(*host);
    }
    if (const auto* device = std::get_if<CudaIPCMessage>(&decoded.memory)) {
      return CudaStorageOf(*device, stream_of);
    }
    return EmptyCudaStorage(std::get<CudaDeviceUuid>(decoded.memory));
  });
  return phi::DenseTensor(storage,
                          MetaInStorage(decoded.meta, 0, storage->size()));
}

std::vector<phi::DenseTensor> RebuildViews(
    const std::string& handle, const std::vector<SharedView>& views) {
  SharedTensorHandle decoded = SharedTensorHandle::Decode(handle);
  const auto* message = std::get_if<SharedMessage>(&decoded.memory);
  PADDLE_ENFORCE_NOT_NULL(
      message,
      common::errors::InvalidArgument(
          "Views can only be rebuilt in shared host memory, but the handle "
          "refers to other memory. Pass the handle of a tensor on the CPU."));
  const std::shared_ptr<phi::Allocation> storage =
      RaisingPaddleErrors([&] { return StorageOf(*message); });
  std::vector<phi::DenseTensor> tensors;
  tensors.reserve(views.size());
  for (const SharedView& view : views) {
    phi::DenseTensorMeta meta(view.dtype,
                              common::make_ddim(view.dims),
                              phi::DataLayout::NCHW,
                              view.offset);
    tensors.emplace_back(storage,
                         MetaInStorage(meta, message->offset, storage->size()));
  }
  return tensors;
}

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
