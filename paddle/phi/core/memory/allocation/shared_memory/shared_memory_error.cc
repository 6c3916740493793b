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

#include "paddle/phi/core/memory/allocation/shared_memory/shared_memory_error.h"

#include <sys/resource.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace paddle {
namespace memory {
namespace allocation {

namespace {

std::string LimitText(int resource, uint64_t unit) {
  rlimit limit = {};
  if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return "unlimited";
  }
  return std::to_string(limit.rlim_cur / unit);
}

// Returns how to fix an error, with a space in front; empty if that is unknown.
std::string RemedyFor(int error) {
  if (error == ENOMEM) {
    return " Raise the limit on addresses (ulimit -v, now " +
           LimitText(RLIMIT_AS, 1024) +
           ") if this process has reached it, or keep tensors of fewer senders "
           "at a time.";
  }
  if (error == EOPNOTSUPP) {
    return " The file system of /dev/shm cannot reserve memory: mount a tmpfs "
           "there, or call paddle.incubate.multiprocessing."
           "set_sharing_strategy('file_descriptor').";
  }
  if (error == EMFILE) {
    return " Raise the limit on open files (ulimit -n, now " +
           LimitText(RLIMIT_NOFILE, 1) +
           ") or keep tensors of fewer senders at a time.";
  }
  return "";
}

}  // namespace

void ThrowErrno(const std::string& doing) {
  int error = errno;
  bool exhausted = error == ENOSPC || error == ENOMEM || error == EMFILE ||
                   error == ENFILE || error == EDQUOT || error == EFBIG;
  throw SharedMemoryError(exhausted ? SharedMemoryError::Kind::kExhausted
                                    : SharedMemoryError::Kind::kSystem,
                          doing + " failed: " + std::strerror(error) +
                              " (errno " + std::to_string(error) + ")." +
                              RemedyFor(error));
}

std::string HumanBytes(uint64_t bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  for (; value >= 1024 && unit < 4; ++unit) value /= 1024;
  char text[32];
  std::snprintf(text,
                sizeof(text),
                unit == 0 ? "%.0f %s" : "%.1f %s",
                value,
                units[unit]);
  return text;
}

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
