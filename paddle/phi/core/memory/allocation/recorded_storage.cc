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

#include "paddle/phi/core/memory/allocation/recorded_storage.h"

#if defined(PADDLE_WITH_CUDA) || defined(PADDLE_WITH_HIP) || \
    defined(PADDLE_WITH_CUSTOM_DEVICE)

#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "paddle/phi/core/enforce.h"
#include "paddle/phi/core/memory/allocation/allocator_facade.h"
#include "paddle/phi/core/memory/allocation/storage_watcher.h"
#if defined(PADDLE_WITH_CUDA) || defined(PADDLE_WITH_HIP)
#include "paddle/phi/backends/gpu/gpu_info.h"
#include "paddle/phi/core/memory/allocation/stream_safe_cuda_allocator.h"
#else
#include "paddle/phi/core/memory/allocation/stream_safe_custom_device_allocator.h"
#endif
#ifdef PADDLE_WITH_CUDA
#include "paddle/phi/core/memory/allocation/cuda_malloc_async_allocator.h"
#endif

namespace paddle {
namespace memory {
namespace allocation {

namespace {

class RecordedStorage;

// The storages with recorded streams. Leaked on purpose: storages may be freed
// while the process exits.
struct RecordedStorages {
  static RecordedStorages& Instance() {
    static auto& all = *std::make_unique<RecordedStorages>().release();
    return all;
  }

  std::mutex mutex;
  std::unordered_map<phi::Allocation*, RecordedStorage*> by_allocation;
};

// Watches a storage. Owns itself once started, see StorageWatcher.
class RecordedStorage : public StorageWatcher {
 public:
  explicit RecordedStorage(phi::Allocation* allocation)
      : StorageWatcher(allocation) {}

  // Requires: the mutex of RecordedStorages is held.
  void Add(RawStream stream, std::shared_ptr<void> owner) {
    owners_.insert_or_assign(stream, std::move(owner));
  }

 protected:
  void OnFree() override {
    {
      auto& all = RecordedStorages::Instance();
      const std::lock_guard<std::mutex> lock(all.mutex);
      all.by_allocation.erase(allocation());
    }
    // RecordStream takes a shared_ptr but keeps no copy of it.
    const std::shared_ptr<phi::Allocation> freed(allocation(),
                                                 [](phi::Allocation*) {});
    try {
#if defined(PADDLE_WITH_CUDA) || defined(PADDLE_WITH_HIP)
      // The allocator creates its events on the current device.
      const phi::backends::gpu::GPUDeviceGuard guard(
          freed->place().GetDeviceId());
#endif
      for (const auto& [stream, owner] : owners_) {
        AllocatorFacade::Instance().RecordStream(freed, stream);
      }
    } catch (...) {  // NOLINT
      // The device has failed, or the process exits. Leak the memory, since a
      // stream may still use it. This must not throw: destructors call it.
      return;
    }
    AllocationDeleter(allocation());
  }

 private:
  std::map<RawStream, std::shared_ptr<void>> owners_;
};

// Returns whether a storage comes from an allocator that waits for streams.
bool IsStreamSafe(const phi::Allocation* storage) {
#ifdef PADDLE_WITH_CUDA
  if (dynamic_cast<const CUDAMallocAsyncAllocation*>(storage)) return true;
#endif
#if defined(PADDLE_WITH_CUDA) || defined(PADDLE_WITH_HIP)
  return dynamic_cast<const StreamSafeCUDAAllocation*>(storage) != nullptr;
#else
  return dynamic_cast<const StreamSafeCustomDeviceAllocation*>(storage) !=
         nullptr;
#endif
}

}  // namespace

void RecordStream(const std::shared_ptr<phi::Allocation>& storage,
                  RawStream stream,
                  std::shared_ptr<void> stream_owner) {
  PADDLE_ENFORCE_EQ(
      StorageWatcher::CanWatch(storage),
      true,
      common::errors::InvalidArgument(
          "record_stream cannot delay the reuse of memory on %s that Paddle "
          "did not allocate, such as another framework's memory. Keep the "
          "tensor until stream.synchronize() returns.",
          storage->place()));
  PADDLE_ENFORCE_EQ(
      IsStreamSafe(storage.get()),
      true,
      common::errors::PreconditionNotMet(
          "record_stream needs an allocator that waits for streams, but the "
          "flags of this process turn it off for %s. Set "
          "FLAGS_allocator_strategy=auto_growth, FLAGS_use_system_allocator=0 "
          "and FLAGS_use_stream_safe_cuda_allocator=1 before Paddle starts.",
          storage->place()));
#ifdef PADDLE_WITH_CUDA
  StorageWatcher::EnforceFlagsAllowStart("Cannot record a stream for a tensor",
                                         storage->place());
#endif
  auto& all = RecordedStorages::Instance();
  const std::lock_guard<std::mutex> lock(all.mutex);
  auto found = all.by_allocation.find(storage.get());
  if (found == all.by_allocation.end()) {
    auto recorded = std::make_unique<RecordedStorage>(storage.get());
    found = all.by_allocation.emplace(storage.get(), recorded.get()).first;
    StorageWatcher::Start(std::move(recorded));
  }
  found->second->Add(stream, std::move(stream_owner));
}

}  // namespace allocation
}  // namespace memory
}  // namespace paddle

#endif
