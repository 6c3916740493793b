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

#include "paddle/phi/core/memory/allocation/shared_memory/random_bits.h"

#include <sys/syscall.h>
#include <unistd.h>

#include "paddle/phi/core/memory/allocation/shared_memory/file_descriptor.h"
#include "paddle/phi/core/memory/allocation/shared_memory/shared_memory_error.h"

namespace paddle {
namespace memory {
namespace allocation {

uint64_t RandomBits() {
  uint64_t bits = 0;
  while (bits == 0) {
    if (RetryOnSignal([&] {
          return syscall(SYS_getrandom, &bits, sizeof(bits), 0);
        }) != sizeof(bits)) {
      ThrowErrno("Reading random bits");
    }
  }
  return bits;
}

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
