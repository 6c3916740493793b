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

#include "paddle/phi/core/memory/allocation/shared_memory/cuda_ipc_storage.h"

#include <algorithm>
#include <chrono>
#include <iostream>
#include <mutex>
#include <thread>
#include <utility>

#include "paddle/common/flags.h"
#include "paddle/phi/core/enforce.h"
#include "paddle/phi/core/memory/allocation/retry_allocator.h"
#include "paddle/phi/core/memory/allocation/shared_memory/shared_handle.h"
#include "paddle/phi/core/memory/allocation/storage_watcher.h"

COMMON_DECLARE_bool(enable_compact_mem);
COMMON_DECLARE_bool(native_compact);
COMMON_DECLARE_int64(gpu_allocator_retry_time);
COMMON_DECLARE_int64(offload_retry_times);

namespace paddle {
namespace memory {
namespace allocation {

namespace {

// Watches a storage of this process that was sent. Owns itself once it is
// started, see StorageWatcher.
class SentStorage : public StorageWatcher {
 public:
  explicit SentStorage(phi::Allocation* allocation)
      : StorageWatcher(allocation) {}

 protected:
  void OnFree() override {
    phi::Allocation* freed = allocation();
    if (!CudaIPCHeap::Instance().ReleaseOwned(
            freed->ptr(), [freed] { AllocationDeleter(freed); })) {
      AllocationDeleter(freed);
    }
  }
};

// A storage that another process owns.
class ReceivedCudaStorage : public Allocation {
 public:
  explicit ReceivedCudaStorage(std::shared_ptr<CudaIPCData> data)
      : Allocation(data->memory.data,
                   data->memory.size,
                   phi::GPUPlace(data->memory.device)),
        data_(std::move(data)) {}
  ~ReceivedCudaStorage() override { CudaIPCHeap::Instance().Release(data_); }

 private:
  std::shared_ptr<CudaIPCData> data_;
};

// The pause before a failed allocation is retried, while other processes hold
// memory that they may release.
constexpr std::chrono::milliseconds kPause(100);

// Paddle's RetryAllocator calls this when an allocation fails. Returns whether
// to retry it.
size_t CollectOrPause(phi::Place place UNUSED, size_t size UNUSED) {
  CudaIPCHeap& heap = CudaIPCHeap::Instance();
  if (heap.Collect(kMessageLostSeconds) != 0) return true;
  if (heap.Stats().limbo == 0) return false;
  std::this_thread::sleep_for(kPause);
  return true;
}

// Makes failed allocations collect memory and retry, for as long as Paddle
// waits for other threads to free memory. Paddle has a single callback for
// this. If activation offloading is on, the callback stays with it.
//
// The first send of a GPU tensor registers this as a side effect and sets a
// Paddle flag, without which Paddle does not call it. A list of callbacks in
// Paddle, each with its own number of retries, would need neither.
void RegisterOutOfMemoryCollection() {
  static std::mutex mutex;
  std::lock_guard<std::mutex> guard(mutex);
  if (FLAGS_offload_retry_times > 0) return;
  RegisterOOMCallback(CollectOrPause);
  FLAGS_offload_retry_times =
      std::max<int64_t>(1, FLAGS_gpu_allocator_retry_time / kPause.count());
}

void WarnOnStandardError() {
  static std::once_flag once;
  std::call_once(once, [] {
    // A module outside of libpaddle cannot write to Paddle's own log.
    CudaIPCHeap::Instance().SetWarning([](const std::string& text) {
      std::cerr << "paddle: warning: " << text << std::flush;
    });
  });
}

// Adds a record for a storage. Returns false if the driver does not export it.
bool Share(const std::shared_ptr<phi::Allocation>& holder,
           SharingStrategy strategy) {
  // Not PADDLE_ENFORCE, which would print this condition as a hint.
  if (!StorageWatcher::CanWatch(holder)) {
    PADDLE_THROW(common::errors::InvalidArgument(
        "Cannot share the memory of this tensor on %s: it belongs to another "
        "library (the tensor may come from from_dlpack, for example). Send "
        "tensor.clone() instead.",
        holder->place()));
  }
  StorageWatcher::EnforceFlagsAllowStart(
      "Cannot send a tensor for the first time", holder->place());
  PADDLE_ENFORCE_EQ(
      FLAGS_native_compact || FLAGS_enable_compact_mem,
      false,
      common::errors::PreconditionNotMet(
          "Cannot send a tensor on %s for the first time: FLAGS_native_compact "
          "and FLAGS_enable_compact_mem let Paddle move memory that other "
          "processes have mapped. Unset both flags.",
          holder->place()));
  WarnOnStandardError();
  RegisterOutOfMemoryCollection();
  CudaIPCMemory memory = {phi::GPUPlace(holder->place()).GetDeviceId(),
                          static_cast<char*>(holder->ptr()),
                          holder->size()};
  return CudaIPCHeap::Instance().Share(strategy, memory, holder, [&] {
    StorageWatcher::Start(std::make_unique<SentStorage>(holder.get()));
  });
}

}  // namespace

std::optional<std::string> ShareCudaTensor(
    phi::DenseTensor tensor,
    SharingStrategy strategy,
    std::optional<CudaIPCDriver::Stream> stream) {
  EnforceHasHandle(tensor);
  SharedTensorHandle handle{tensor.meta(), {}};
  bool has_handle = RaisingPaddleErrors([&] {
    const std::shared_ptr<phi::Allocation>& holder = tensor.Holder();
    if (tensor.numel() == 0) {
      handle.memory =
          CudaIPCDriver::Instance().Uuid(holder->place().GetDeviceId());
      return true;
    }
    const char* address =
        static_cast<const char*>(holder->ptr()) + tensor.meta().offset;
    CudaIPCHeap& heap = CudaIPCHeap::Instance();
    std::optional<CudaIPCMessage> message = heap.Send(address, stream);
    if (!message) {
      if (!Share(holder, strategy)) return false;
      message = heap.Send(address, stream);
    }
    handle.memory = *message;
    return true;
  });
  if (has_handle) return handle.Encode();
  PADDLE_ENFORCE_EQ(
      tensor.meta().is_contiguous() && tensor.meta().offset == 0,
      true,
      common::errors::Unimplemented(
          "Cannot send a view (shape [%s], strides [%s], offset %d) of memory "
          "from the virtual-memory allocator. Send tensor.clone() instead, or "
          "turn off FLAGS_use_virtual_memory_auto_growth.",
          tensor.dims(),
          tensor.strides(),
          tensor.meta().offset));
  return std::nullopt;
}

std::shared_ptr<phi::Allocation> CudaStorageOf(const CudaIPCMessage& message,
                                               const CudaStreamOf& stream_of) {
  CudaIPCHeap& heap = CudaIPCHeap::Instance();
  CudaIPCHeap::Received received = heap.Receive(message, stream_of);
  if (received.storage) {
    return std::static_pointer_cast<phi::Allocation>(received.storage);
  }
  std::shared_ptr<phi::Allocation> storage =
      std::make_shared<ReceivedCudaStorage>(received.data);
  heap.Bind(*received.data, storage);
  return storage;
}

std::shared_ptr<phi::Allocation> EmptyCudaStorage(const CudaDeviceUuid& uuid) {
  int device = CudaIPCDriver::Instance().DeviceOf(uuid);
  return std::make_shared<Allocation>(nullptr, 0, phi::GPUPlace(device));
}

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
