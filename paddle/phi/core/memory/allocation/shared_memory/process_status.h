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

// The state of a process or thread in /proc.
struct ProcessStat {
  std::string state;
  uint32_t flags;
  bool has_environment;
  // When it started, in clock ticks since the machine booted, in the time
  // namespace of the reader; 0 if the file does not tell.
  uint64_t start;

  // Returns whether it has ended, even if its parent has not collected its
  // status.
  bool IsDead() const;
  // Returns whether the kernel is ending it, or has ended it.
  bool IsExiting() const;
  bool IsKernelThread() const;
};

// Reads a file of unknown size. Returns none if it cannot be read, with the
// reason in errno.
//
// Thread-safe.
std::optional<std::string> ReadFile(const std::string& path);

// Reads the `stat` file of a process or thread in its folder in /proc. Returns
// none if it cannot be read, with the reason in errno.
//
// Thread-safe.
std::optional<ProcessStat> ReadProcessStat(const std::string& folder);

// Returns whether no process has this ID any more. A process keeps its ID until
// its parent has collected its status. Needs no file descriptor.
//
// Thread-safe.
bool HasEnded(uint32_t process);

// Returns the effective user of a process; none if that is unknown.
//
// Thread-safe.
std::optional<uint32_t> EffectiveUserOf(uint32_t process);

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
