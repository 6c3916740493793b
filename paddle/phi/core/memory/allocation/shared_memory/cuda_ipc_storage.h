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
#include "paddle/phi/core/memory/allocation/shared_memory/cuda_ipc_heap.h"

namespace paddle {
namespace memory {
namespace allocation {

// Returns the stream that the calling thread uses on a device.
using CudaStreamOf = std::function<CudaIPCDriver::Stream(int device)>;

// Returns the handle of a GPU tensor. Its memory is not copied. The memory is
// freed once no process uses it and no message carries it, whichever process
// drops the tensor last. A receiver waits for the work that is on `stream` now.
// Without a stream, this call waits for the work of all streams on the device.
//
// `tensor` is a copy, which keeps the storage alive during the call.
//
// Returns none for memory that the driver does not export, such as a pool's.
// Throws for memory that Paddle did not allocate.
//
// Thread-safe.
std::optional<std::string> ShareCudaTensor(
    phi::DenseTensor tensor,
    SharingStrategy strategy,
    std::optional<CudaIPCDriver::Stream> stream);

// Returns the allocation of a received message. If this process already has
// one, returns the same allocation. Waits for the sender's work; for a message
// of this process, only the stream of `stream_of` waits.
//
// Thread-safe.
std::shared_ptr<phi::Allocation> CudaStorageOf(const CudaIPCMessage& message,
                                               const CudaStreamOf& stream_of);

// Returns an allocation without memory on a device.
//
// Thread-safe.
std::shared_ptr<phi::Allocation> EmptyCudaStorage(const CudaDeviceUuid& uuid);

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
