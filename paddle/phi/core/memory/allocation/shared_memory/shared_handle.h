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

#include <string>
#include <variant>

#include "paddle/phi/core/dense_tensor.h"
#include "paddle/phi/core/memory/allocation/shared_memory/cuda_ipc_heap.h"
#include "paddle/phi/core/memory/allocation/shared_memory/shared_heap.h"

namespace paddle {
namespace memory {
namespace allocation {

// The handle of a tensor: the data from which another process rebuilds the same
// tensor over the same memory.
struct SharedTensorHandle {
  phi::DenseTensorMeta meta;
  // A tensor without elements has no memory, but may be on a GPU.
  std::variant<std::monostate, CudaDeviceUuid, SharedMessage, CudaIPCMessage>
      memory;

  // Thread-safe, as are all functions of this file.
  std::string Encode() const;
  // Checks everything that can be checked without the memory, since handles are
  // untrusted. The offset of the meta is the offset in the memory.
  static SharedTensorHandle Decode(const std::string& handle);
};

// Encodes and decodes the handle of an event. Handles are untrusted.
std::string EncodeEvent(const SharedMessage& message);
SharedMessage DecodeEvent(const std::string& handle);

// Throws if no handle can describe the tensor.
void EnforceHasHandle(const phi::DenseTensor& tensor);
// Throws if the shape and data type do not give a size in bytes.
void EnforceHasSize(const phi::DenseTensorMeta& meta);
// Returns the meta of a tensor in a storage of `size` bytes. The offset of the
// given meta counts from byte `start` of the storage. Both are untrusted.
// Throws if the tensor extends beyond the storage.
phi::DenseTensorMeta MetaInStorage(phi::DenseTensorMeta meta,
                                   uint64_t start,
                                   uint64_t size);

[[noreturn]] void RaiseAsPaddleError(const SharedMemoryError& error);

// Runs a call and turns its SharedMemoryError into a Paddle error.
template <typename Call>
auto RaisingPaddleErrors(const Call& call) -> decltype(call()) {
  try {
    return call();
  } catch (const SharedMemoryError& error) {
    RaiseAsPaddleError(error);
  }
}

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
