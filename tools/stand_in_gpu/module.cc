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

// GPU tensors for a Paddle that was built without GPU support. Their storage
// has a GPU place, is allocated by the driver, real or stand-in, and goes
// through Paddle's RetryAllocator, as in a Paddle for GPUs.

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "paddle/phi/core/dense_tensor.h"
#include "paddle/phi/core/memory/allocation/allocator.h"
#include "paddle/phi/core/memory/allocation/allocator_facade.h"
#include "paddle/phi/core/memory/allocation/retry_allocator.h"
#include "paddle/utils/pybind.h"
#include "test/cpp/phi/shared_memory/driver_calls.h"

namespace py = pybind11;

namespace {

using paddle::memory::allocation::Allocation;
using paddle::memory::allocation::Allocator;
using paddle::memory::allocation::AllocatorFacade;
using paddle::memory::allocation::BadAlloc;
using paddle::memory::allocation::RetryAllocator;

constexpr int kMostDevices = 2;

using driver_calls::Call;
using driver_calls::CallFunction;

driver_calls::Context Current(int device) {
  Call("cuInit", 0u);
  return driver_calls::Context(device);
}

class StandInAllocator : public Allocator {
 public:
  explicit StandInAllocator(int device) : device_(device) {}

  bool IsAllocThreadSafe() const override { return true; }
  // Allocates later memory in chunks of one granule. (The virtual-memory
  // allocator uses larger chunks.)
  void UseChunks(bool used, bool exportable) {
    uses_chunks_ = used;
    exportable_ = exportable;
  }
  void SetLimit(size_t limit) { limit_ = limit; }
  size_t used() const { return used_; }

 protected:
  phi::Allocation* AllocateImpl(size_t size) override {
    if (size > limit_ - used_) {
      throw BadAlloc("no memory on the device", __FILE__, __LINE__);
    }
    const auto context = Current(device_);
    void* data = nullptr;
    if (uses_chunks_) {
      data = AllocateChunks(size);
    } else {
      Call("cuMemAlloc_v2", &data, size);
    }
    used_ += size;
    return std::make_unique<Allocation>(data, size, phi::GPUPlace(device_))
        .release();
  }

  void FreeImpl(phi::Allocation* allocation) override {
    std::unique_ptr<Allocation> freed(static_cast<Allocation*>(allocation));
    used_ -= freed->size();
    const auto context = Current(device_);
    std::unique_lock<std::mutex> lock(mutex_);
    auto chunks = chunks_.extract(freed->ptr());
    lock.unlock();
    if (chunks) {
      driver_calls::FreeChunks(static_cast<char*>(freed->ptr()),
                               chunks.mapped());
    } else {
      Call("cuMemFree_v2", freed->ptr());
    }
  }

 private:
  void* AllocateChunks(size_t size) {
    const size_t granule = driver_calls::Granule(device_);
    const std::vector<size_t> sizes((size + granule - 1) / granule, granule);
    void* data = driver_calls::AllocateChunks(device_, sizes, exportable_);
    std::lock_guard<std::mutex> guard(mutex_);
    chunks_[data] = sizes.size() * granule;
    return data;
  }

  int device_;
  std::atomic<bool> uses_chunks_{false};
  std::atomic<bool> exportable_{true};
  std::mutex mutex_;
  std::map<void*, size_t> chunks_;  // the bytes that are mapped at an address
  std::atomic<size_t> used_{0};
  std::atomic<size_t> limit_{SIZE_MAX};
};

struct Device {
  explicit Device(int id)
      : memory(std::make_shared<StandInAllocator>(id)),
        allocator(
            std::make_unique<RetryAllocator>(memory, phi::GPUPlace(id), 0)) {}

  std::shared_ptr<StandInAllocator> memory;
  // Called through the base class: of its inline functions, allocations must
  // have those of Paddle's library, by which it recognizes its own.
  std::unique_ptr<Allocator> allocator;
};

Device& DeviceOf(int id) {
  static Device devices[kMostDevices] = {Device(0), Device(1)};
  return devices[id];
}

const phi::DenseTensor& DenseTensorOf(const paddle::Tensor& tensor) {
  return static_cast<const phi::DenseTensor&>(*tensor.impl());
}

// Returns a tensor with the metadata of `like`, over another storage.
phi::DenseTensor Over(std::shared_ptr<phi::Allocation> storage,
                      const phi::DenseTensor& like) {
  return phi::DenseTensor(std::move(storage), like.meta());
}

py::object ToPython(phi::DenseTensor tensor) {
  paddle::Tensor made(std::make_shared<phi::DenseTensor>(std::move(tensor)));
  return py::reinterpret_steal<py::object>(paddle::pybind::ToPyObject(made));
}

constexpr void* kDefaultStream = nullptr;

// Copies the host's memory to the device, after the device's work so far.
void CopyToDevice(const phi::Allocation& host, const phi::Allocation& device) {
  const auto context = Current(device.place().GetDeviceId());
  Call("cuMemcpyHtoDAsync_v2",
       device.ptr(),
       static_cast<const void*>(host.ptr()),
       host.size(),
       kDefaultStream);
  Call("cuStreamSynchronize", kDefaultStream);
}

void CopyToHost(const phi::Allocation& device, const phi::Allocation& host) {
  const auto context = Current(device.place().GetDeviceId());
  Call("cuMemcpyDtoHAsync_v2",
       host.ptr(),
       device.ptr(),
       device.size(),
       kDefaultStream);
  Call("cuStreamSynchronize", kDefaultStream);
}

}  // namespace

PYBIND11_MODULE(stand_in_gpu, module) {
  module.def("device_count", [] {
    // A driver without a device cannot be initialized.
    int count = 0;
    if (CallFunction<int>("cuInit", 0u) == 0) Call("cuDeviceGetCount", &count);
    return std::min(count, kMostDevices);
  });
  module.def("has_stand_in_driver", &driver_calls::HasStandIn);
  module.def("to_gpu", [](const paddle::Tensor& tensor, int device) {
    const phi::DenseTensor& like = DenseTensorOf(tensor);
    std::shared_ptr<phi::Allocation> copy =
        DeviceOf(device).allocator->Allocate(like.Holder()->size());
    CopyToDevice(*like.Holder(), *copy);
    return ToPython(Over(copy, like));
  });
  module.def("to_cpu", [](const paddle::Tensor& tensor) {
    const phi::DenseTensor& like = DenseTensorOf(tensor);
    std::shared_ptr<phi::Allocation> copy =
        AllocatorFacade::Instance().AllocShared(phi::CPUPlace(),
                                                like.Holder()->size());
    CopyToHost(*like.Holder(), *copy);
    return ToPython(Over(copy, like));
  });
  // Returns a tensor over the memory of `base` with the metadata of `like`,
  // which is a view in other memory.
  module.def("view",
             [](const paddle::Tensor& base, const paddle::Tensor& like) {
               return ToPython(
                   Over(DenseTensorOf(base).Holder(), DenseTensorOf(like)));
             });
  module.def("put_in", [](py::handle tensor, const paddle::Tensor& content) {
    paddle::pybind::CastPyArg2Tensor(tensor.ptr(), 0).set_impl(content.impl());
  });
  module.def("address", [](const paddle::Tensor& tensor) {
    return reinterpret_cast<uintptr_t>(DenseTensorOf(tensor).Holder()->ptr());
  });
  module.def("write", [](const paddle::Tensor& to, const paddle::Tensor& from) {
    CopyToDevice(*DenseTensorOf(from).Holder(), *DenseTensorOf(to).Holder());
  });
  module.def("used",
             [](int device) { return DeviceOf(device).memory->used(); });
  module.def("use_chunks", [](int device, bool used, bool exportable) {
    DeviceOf(device).memory->UseChunks(used, exportable);
  });
  module.def("set_limit", [](int device, size_t bytes) {
    DeviceOf(device).memory->SetLimit(bytes);
  });
}
