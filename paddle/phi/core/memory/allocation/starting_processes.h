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

// A process that was started with a family in its environment, and that may
// still join it: until it has imported Paddle it has no lock that says so.
//
// Looks at all processes of the user once, when it is asked for the first time.
//
// Not thread-safe.
class StartingProcesses {
 public:
  // `folder` is the one whose locks tell which families are alive.
  explicit StartingProcesses(int folder);

  // Whether there may be one of the family.
  bool MayJoin(uint64_t family);

 private:
  void Look();
  void LookAt(const std::string& process);
  // Empty if it cannot be read. Of a process that is about to run a program, it
  // is that of the program, which is there in a moment.
  std::string EnvironmentOf(const std::string& process);
  // Whether a process has joined and left: it then has the folder open twice.
  bool HasLeft(const std::string& process) const;

  struct stat folder_ = {};
  bool looked_{false};
  int waits_left_{1000};  // of a millisecond, for all processes together
  bool some_cannot_be_known_{false};
  std::set<uint64_t> families_;
};

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
