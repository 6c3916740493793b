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

#include "paddle/phi/core/memory/allocation/shared_memory/process_status.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <sstream>
#include <vector>

#include "paddle/phi/core/memory/allocation/shared_memory/file_descriptor.h"

namespace paddle {
namespace memory {
namespace allocation {

namespace {

// Indices of the fields of a `stat` file that follow the name.
constexpr size_t kState = 0;
constexpr size_t kFlags = 6;
constexpr size_t kStart = 19;
constexpr size_t kEndOfEnvironment = 48;
// In the flags: PF_EXITING and PF_KTHREAD.
constexpr uint32_t kExiting = 0x4;
constexpr uint32_t kKernelThread = 0x200000;

}  // namespace

bool ProcessStat::IsDead() const { return state == "Z" || state == "X"; }

bool ProcessStat::IsExiting() const { return (flags & kExiting) != 0; }

bool ProcessStat::IsKernelThread() const {
  return (flags & kKernelThread) != 0;
}

std::optional<std::string> ReadFile(const std::string& path) {
  FileDescriptor file = OpenFile(path, O_RDONLY);
  if (!file) return std::nullopt;
  std::string content;
  for (char part[4096];;) {
    ssize_t size =
        RetryOnSignal([&] { return read(file.get(), part, sizeof(part)); });
    if (size < 0) return std::nullopt;
    if (size == 0) return content;
    content.append(part, size);
  }
}

std::optional<ProcessStat> ReadProcessStat(const std::string& folder) {
  std::string text = ReadFile(folder + "/stat").value_or("");
  // The name in parentheses may contain any characters, so search for the last
  // parenthesis.
  size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream rest(text.substr(name_end + 1));
  std::vector<std::string> fields{std::istream_iterator<std::string>(rest), {}};
  if (fields.size() <= kFlags) return std::nullopt;
  uint32_t flags = std::strtoul(fields[kFlags].c_str(), nullptr, 10);
  bool has_environment =
      fields.size() <= kEndOfEnvironment || fields[kEndOfEnvironment] != "0";
  uint64_t start = fields.size() <= kStart
                       ? 0
                       : std::strtoull(fields[kStart].c_str(), nullptr, 10);
  return ProcessStat{fields[kState], flags, has_environment, start};
}

bool HasEnded(uint32_t process) {
  return kill(static_cast<pid_t>(process), 0) != 0 && errno == ESRCH;
}

std::optional<uint32_t> EffectiveUserOf(uint32_t process) {
  std::string status =
      ReadFile("/proc/" + std::to_string(process) + "/status").value_or("");
  size_t line = status.find("\nUid:");
  uint32_t real = 0;
  uint32_t effective = 0;
  if (line == std::string::npos ||
      std::sscanf(status.c_str() + line, "\nUid: %u %u", &real, &effective) !=
          2) {
    return std::nullopt;
  }
  return effective;
}

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
