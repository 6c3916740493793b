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

#include "paddle/phi/core/memory/allocation/cuda_ipc_driver.h"

namespace paddle {
namespace memory {
namespace allocation {

// The handles of others' memory that this process has opened, each once,
// however many tensors are in it, and closed with the last.
//
// Thread-safe.
class CudaIPCOpenedHandles {
 public:
  // The first address of the allocation in this process.
  char* Open(int device, const CudaIPCHandle& handle);
  void Close(int device, const CudaIPCHandle& handle);
  uint64_t count();

 private:
  struct Opened {
    char* base;
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
