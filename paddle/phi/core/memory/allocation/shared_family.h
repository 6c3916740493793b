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

#include "paddle/phi/core/memory/allocation/file_descriptor.h"

namespace paddle {
namespace memory {
namespace allocation {

// A process tree: all processes that may still get each other's messages.
//
// Invariant: as long as the object exists, the family is seen to be alive, so
// that nobody removes its files. Like a slot, a family is a byte range lock:
// on the folder of the files, which needs no file of its own.
//
// A process that was started with the family in its environment may join later.
// So a file with messages stays while there is one, lock or not.
class SharedFamily {
 public:
  explicit SharedFamily(uint64_t family);

  uint64_t id() const { return family_; }
  // Takes the lock again if someone closed its descriptor.
  void Stay();
  // Removes files that nobody is attached to: those that no message sent after
  // `deadline` needs, and those of families that are dead.
  void RemoveAbandoned(uint64_t deadline);
  // To be called when this process exits: who is the last removes all files but
  // those with messages for a process that has yet to join.
  void Leave();
  void ChildAfterFork();

 private:
  // Takes the lock; false where there is no such folder.
  bool Lock();

  uint64_t family_;
  FileDescriptor folder_;
  FileDescriptor left_;    // the folder again, once this process has left
  bool inherited_{false};  // the lock is the parent's too
};

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
