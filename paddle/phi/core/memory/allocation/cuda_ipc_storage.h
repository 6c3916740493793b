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

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "paddle/phi/core/dense_tensor.h"
#include "paddle/phi/core/memory/allocation/cuda_ipc_heap.h"

namespace paddle {
namespace memory {
namespace allocation {

// The stream that the calling thread uses on a device.
using CudaStreamOf = std::function<CudaIPCDriver::Stream(int device)>;

// The handle of a tensor on a GPU, over memory of which no copy is made.
// The memory is freed when neither this process nor another uses it and no
// message carries it, wherever the tensor is dropped first. Whoever receives
// it may use it when the work is done that `stream` has now; without a stream,
// the work of all streams on the device, which is waited for.
//
// The tensor is a copy, which keeps the storage meanwhile.
//
// None for memory that the driver makes no handles of, of the virtual-memory
// allocator. Refuses memory that Paddle did not allocate.
std::optional<std::string> ShareCudaTensor(
    phi::DenseTensor tensor,
    SharingStrategy strategy,
    std::optional<CudaIPCDriver::Stream> stream);

// The allocation of a message in this process: the one that the process has
// already, if it has one.
std::shared_ptr<phi::Allocation> CudaStorageOf(const CudaIPCMessage& message,
                                               const CudaStreamOf& stream_of);

// An allocation without memory on a device.
std::shared_ptr<phi::Allocation> EmptyCudaStorage(const CudaDeviceUuid& uuid);

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
