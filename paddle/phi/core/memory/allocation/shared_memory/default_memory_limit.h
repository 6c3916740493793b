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

#include <cstdint>
#include <string>

namespace paddle {
namespace memory {
namespace allocation {

// Returns the maximum memory of the calling process in bytes: the memory of the
// machine, or the limit of its control groups (versions 1 and 2). `root` is the
// parent of /proc and /sys/fs/cgroup: "" except in tests.
//
// Thread-safe.
uint64_t DefaultMemoryLimit(const std::string& root);

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
