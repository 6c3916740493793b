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

#include "paddle/phi/core/memory/allocation/shared_memory/cuda_ipc_handles.h"

#include <exception>
#include <string>

#include "paddle/phi/core/memory/allocation/shared_memory/cuda_ipc_chunks.h"
#include "paddle/phi/core/memory/allocation/shared_memory/shared_memory_error.h"

namespace paddle {
namespace memory {
namespace allocation {

char* CudaIPCOpenedHandles::Open(
    int device,
    const CudaIPCHandle& handle,
    const std::vector<CudaIPCDriver::Chunk>& chunks) {
  CudaIPCDriver& driver = CudaIPCDriver::Instance();
  std::unique_lock<std::mutex> lock(mutex_);
  std::pair key(device, handle);
  closed_.wait(lock, [&] {
    auto known = opened_.find(key);
    return known == opened_.end() || !known->second.closing;
  });
  Opened opened = {};
  for (const CudaIPCDriver::Chunk& chunk : chunks) opened.mapped += chunk.size;
  auto known = opened_.find(key);
  if (known == opened_.end()) {
    opened.base = chunks.empty() ? driver.Open(device, handle)
                                 : MapChunks(device, handle, chunks);
    known = opened_.emplace(key, opened).first;
  } else if (known->second.mapped != opened.mapped) {
    throw SharedMemoryError(
        SharedMemoryError::Kind::kInvalid,
        "A received tensor is in " + std::to_string(opened.mapped) +
            " bytes of chunks of GPU memory, but another received tensor with "
            "the same handle is in " +
            std::to_string(known->second.mapped) +
            ". Its record was damaged; send the tensor again.");
  }
  ++known->second.uses;
  return known->second.base;
}

void CudaIPCOpenedHandles::Close(int device, const CudaIPCHandle& handle) {
  CudaIPCDriver& driver = CudaIPCDriver::Instance();
  std::unique_lock<std::mutex> lock(mutex_);
  auto known = opened_.find({device, handle});
  if (known->second.uses > 1) {
    --known->second.uses;
    return;
  }
  // The driver may wait for all work on the device here. Threads that use other
  // handles must not have to wait.
  known->second.closing = true;
  lock.unlock();
  std::exception_ptr failure;
  try {
    const Opened& opened = known->second;
    if (opened.mapped == 0) {
      driver.Close(device, opened.base);
    } else {
      driver.UnmapChunks(device, opened.base, opened.mapped);
    }
  } catch (...) {
    failure = std::current_exception();
  }
  lock.lock();
  known->second.closing = false;
  if (!failure) opened_.erase(known);
  closed_.notify_all();
  if (failure) std::rethrow_exception(failure);
}

uint64_t CudaIPCOpenedHandles::count() {
  std::lock_guard<std::mutex> guard(mutex_);
  return opened_.size();
}

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
