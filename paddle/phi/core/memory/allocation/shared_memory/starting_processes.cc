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

#include "paddle/phi/core/memory/allocation/shared_memory/starting_processes.h"

#include <dirent.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <optional>
#include <thread>

#include "paddle/phi/core/memory/allocation/shared_memory/process_status.h"

namespace paddle {
namespace memory {
namespace allocation {

namespace {

// Returns the process tree in an environment, 0 if there is none.
uint64_t TreeIn(const std::string& environment) {
  // The name is from python/paddle/base/shared_storage.py.
  static const std::string variable("PADDLE_SHARED_MEMORY_TREE=");
  for (size_t at = 0; at < environment.size();
       at = environment.find('\0', at) + 1) {
    if (environment.compare(at, variable.size(), variable) == 0) {
      const char* value = environment.c_str() + at + variable.size();
      return std::strtoull(value, nullptr, 16);
    }
    if (environment.find('\0', at) == std::string::npos) break;
  }
  return 0;
}

// Returns whether a process has no environment yet because it is about to run
// another program. Zombies and kernel threads have none either.
bool IsStartingProgram(const std::string& process) {
  std::optional<ProcessStat> stat = ReadProcessStat(process);
  return stat && !stat->IsDead() && !stat->IsExiting() &&
         !stat->IsKernelThread() && !stat->has_environment;
}

}  // namespace

StartingProcesses::StartingProcesses(int folder) { fstat(folder, &folder_); }

bool StartingProcesses::MayJoin(uint64_t tree) {
  if (!inspected_) InspectAll();
  return incomplete_ || trees_.count(tree) != 0;
}

void StartingProcesses::InspectAll() {
  inspected_ = true;
  std::unique_ptr<DIR, int (*)(DIR*)> all(opendir("/proc"), closedir);
  incomplete_ = !all;
  while (const dirent* entry = all ? readdir(all.get()) : nullptr) {
    uint32_t process = std::strtoul(entry->d_name, nullptr, 10);
    if (process == 0 || process == static_cast<uint32_t>(getpid())) continue;
    Inspect("/proc/" + std::string(entry->d_name));
  }
}

void StartingProcesses::Inspect(const std::string& process) {
  struct stat owner = {};
  if (stat(process.c_str(), &owner) != 0 || owner.st_uid != geteuid()) return;
  uint64_t tree = TreeIn(EnvironmentOf(process));
  if (tree != 0 && !HasLeft(process)) trees_.insert(tree);
}

std::string StartingProcesses::EnvironmentOf(const std::string& process) {
  const std::string path = process + "/environ";
  for (; waits_left_ > 0; --waits_left_) {
    std::optional<std::string> environment = ReadFile(path);
    if (!environment) {
      // The process is gone, or this process has no permission to read it.
      // After any other error, it may belong to any process tree.
      incomplete_ |= errno != ENOENT && errno != ESRCH && errno != EACCES;
      return "";
    }
    if (!environment->empty()) return *environment;
    // The environment may have been set just before this check.
    if (!IsStartingProgram(process)) return ReadFile(path).value_or("");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  incomplete_ = true;
  return "";
}

bool StartingProcesses::HasLeft(const std::string& process) const {
  std::string folder = process + "/fd/";
  std::unique_ptr<DIR, int (*)(DIR*)> all(opendir(folder.c_str()), closedir);
  int count = 0;
  while (const dirent* entry = all ? readdir(all.get()) : nullptr) {
    struct stat file = {};
    if (stat((folder + entry->d_name).c_str(), &file) == 0 &&
        file.st_dev == folder_.st_dev && file.st_ino == folder_.st_ino) {
      ++count;
    }
  }
  return count > 1;
}

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
