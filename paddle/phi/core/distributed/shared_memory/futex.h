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

#include <atomic>
#include <chrono>
#include <cstdint>

namespace phi {
namespace distributed {

// Sleeps while the lower half of a word in shared memory equals that of
// `value`, but no longer than `limit`. May return at any time.
//
// Thread-safe.
void SleepWhileEqual(const std::atomic<uint64_t>& word,
                     uint64_t value,
                     std::chrono::nanoseconds limit);
// Wakes all threads, in all processes, that sleep on a word.
//
// Thread-safe.
void WakeSleepers(const std::atomic<uint64_t>& word);
// Tells the processor that the thread is polling a word.
void Pause();

}  // namespace distributed
}  // namespace phi
