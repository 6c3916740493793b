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

#include <sys/stat.h>

#include <cstdint>
#include <set>
#include <string>

namespace paddle {
namespace memory {
namespace allocation {

// The processes that were started with a process tree in their environment and
// may still join it: until such a process has imported Paddle, it has no lock
// that shows that the process tree is alive.
//
// Invariant: the first call inspects all processes of the user; later calls use
// its result.
//
// Not thread-safe.
class StartingProcesses {
 public:
  // `folder` is a descriptor of the folder whose locks show living process
  // trees.
  explicit StartingProcesses(int folder);

  // Returns whether some process may still join the process tree. Returns true
  // if that is unknown. May return false for a process that was joining during
  // the inspection; it then has its lock, so check the lock after this call.
  bool MayJoin(uint64_t tree);

 private:
  void InspectAll();
  void Inspect(const std::string& process);
  // Returns the environment of a process, empty if it cannot be read. Waits
  // while the process is just starting another program (execve).
  std::string EnvironmentOf(const std::string& process);
  // Returns whether a process has joined a process tree and left it. If so, it
  // has the folder open twice. So has a process that has just joined and lists
  // the folder, but that process has the lock.
  bool HasLeft(const std::string& process) const;

  struct stat folder_ = {};
  bool inspected_{false};
  int waits_left_{1000};    // milliseconds, for all processes together
  bool incomplete_{false};  // some process could not be inspected
  std::set<uint64_t> trees_;
};

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
