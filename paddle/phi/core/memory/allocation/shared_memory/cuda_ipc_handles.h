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

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "paddle/phi/core/memory/allocation/shared_memory/cuda_ipc_driver.h"

namespace paddle {
namespace memory {
namespace allocation {

// The handles of other processes' GPU memory that this process has opened.
//
// Invariant: a handle is open only once, however many tensors are in its
// memory, and is closed with the last of them. Drivers refuse to open a handle
// twice.
//
// Thread-safe. The mutex is not held while a handle is being closed, which may
// wait for a device. A thread that opens the same handle meanwhile waits until
// it is closed.
class CudaIPCOpenedHandles {
 public:
  // Opens a handle, or adds a use if it is already open, and returns the first
  // address of its allocation in this process. If the handle stands for chunks,
  // maps them; throws if it is already open with chunks of another total size.
  char* Open(int device,
             const CudaIPCHandle& handle,
             const std::vector<CudaIPCDriver::Chunk>& chunks);
  // Ends one use. If the driver fails to close the handle, throws and leaves it
  // open, so that the caller can retry. Requires: the caller has opened it.
  void Close(int device, const CudaIPCHandle& handle);
  uint64_t count();

 private:
  struct Opened {
    char* base;
    uint64_t mapped;  // bytes of chunks; 0 for a driver handle
    uint64_t uses;
    bool closing;
  };

  std::mutex mutex_;
  std::condition_variable closed_;
  std::map<std::pair<int, CudaIPCHandle>, Opened> opened_;
};

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
