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

#include "paddle/phi/core/memory/allocation/shared_memory/default_memory_limit.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <sstream>

#include "paddle/phi/core/memory/allocation/shared_memory/process_status.h"

namespace paddle {
namespace memory {
namespace allocation {

namespace {

// Returns the lowest limit in the files `name` of the folder `path` below `top`
// and of its parent folders.
uint64_t LowestLimit(const std::string& top,
                     std::string path,
                     const std::string& name) {
  uint64_t least = UINT64_MAX;
  for (;;) {
    const std::string file = ReadFile(top + path + "/" + name).value_or("");
    uint64_t limit = 0;
    // Without a limit, the file contains "max", which is not a number. No
    // process runs with a limit of 0.
    const auto parsed =
        std::from_chars(file.data(), file.data() + file.size(), limit);
    if (parsed.ec == std::errc() && limit > 0) least = std::min(least, limit);
    size_t last = path.rfind('/');
    if (last == std::string::npos) return least;
    path.erase(last);
  }
}

}  // namespace

uint64_t DefaultMemoryLimit(const std::string& root) {
  uint64_t least =
      static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  const std::string top = root + "/sys/fs/cgroup";
  std::istringstream groups(ReadFile(root + "/proc/self/cgroup").value_or(""));
  // A line is number:controllers:path; version 2 has no controllers.
  for (std::string line; std::getline(groups, line);) {
    size_t first = line.find(':');
    size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    std::string controllers =
        "," + line.substr(first + 1, second - first - 1) + ",";
    std::string path = line.substr(second + 1);
    if (controllers == ",,") {
      least = std::min(least, LowestLimit(top, path, "memory.max"));
    } else if (controllers.find(",memory,") != std::string::npos) {
      least = std::min(
          least, LowestLimit(top + "/memory", path, "memory.limit_in_bytes"));
    }
  }
  return least;
}

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
