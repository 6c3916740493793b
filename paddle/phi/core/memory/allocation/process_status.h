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
#include <optional>
#include <string>

namespace paddle {
namespace memory {
namespace allocation {

// What /proc says of a process or thread.
struct ProcessStat {
  std::string state;
  uint32_t flags;
  bool has_environment;

  // It has ended; its parent may not have taken notice.
  bool IsDead() const;
  // The kernel is in the middle of ending it, or has ended it.
  bool IsExiting() const;
  bool IsOfKernel() const;
};

// All of a file whose size is not known beforehand; none if it cannot be read,
// for the reason in errno.
std::optional<std::string> ReadFile(const std::string& path);

// Reads the `stat` file of a process or thread, whose folder in /proc is given.
// None if it cannot be read, for the reason in errno.
std::optional<ProcessStat> ReadProcessStat(const std::string& folder);

// The user whose rights a process has; none if that cannot be known.
std::optional<uint32_t> UserOf(uint32_t process);

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
