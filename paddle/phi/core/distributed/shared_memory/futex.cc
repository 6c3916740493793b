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

#include "paddle/phi/core/distributed/shared_memory/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

namespace phi {
namespace distributed {

namespace {

// A futex is 32 bits wide.
const uint32_t* LowerHalf(const std::atomic<uint64_t>& word) {
  static_assert(sizeof(word) == sizeof(uint64_t) &&
                std::atomic<uint64_t>::is_always_lock_free);
  constexpr int kIndex = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? 0 : 1;
  return reinterpret_cast<const uint32_t*>(&word) + kIndex;
}

}  // namespace

void SleepWhileEqual(const std::atomic<uint64_t>& word,
                     uint64_t value,
                     std::chrono::nanoseconds limit) {
  constexpr int64_t kSecond = 1000000000;
  struct timespec time = {};
  time.tv_sec = limit.count() / kSecond;
  time.tv_nsec = limit.count() % kSecond;
  // An error means only that the thread did not sleep.
  syscall(SYS_futex,
          LowerHalf(word),
          FUTEX_WAIT,
          static_cast<uint32_t>(value),
          &time);
}

void WakeSleepers(const std::atomic<uint64_t>& word) {
  syscall(SYS_futex, LowerHalf(word), FUTEX_WAKE, INT_MAX);
}

void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace distributed
}  // namespace phi
