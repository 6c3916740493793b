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

#include "paddle/phi/core/memory/allocation/shared_memory/file_descriptor.h"

namespace paddle {
namespace memory {
namespace allocation {

// A process tree: the processes that may still receive each other's messages.
//
// Invariant: while this object exists, other processes see that the process
// tree is alive and do not remove its files. Like a slot, a process tree is a
// byte-range lock. The lock is on the folder of the files, so it needs no file
// of its own.
//
// A process that was started with the process tree in its environment may join
// later. So a file with messages stays while such a process exists, even if no
// process holds the lock.
//
// Not thread-safe. Requires, for all functions: the heap's mutex is held.
class ProcessTree {
 public:
  explicit ProcessTree(uint64_t tree);

  uint64_t id() const { return tree_; }
  // Takes the lock again if other code of the process closed its descriptor.
  void EnsureLocked();
  // Removes files that no process is attached to: those of this process tree
  // that no message sent after `deadline` needs, and all of dead process trees.
  void RemoveAbandoned(uint64_t deadline);
  // Announces that this process exits. The last process of a process tree
  // removes all of its files, except those with messages for a process that may
  // yet join.
  void Leave();
  // Takes the child's own lock. Requires: the calling process is a forked child
  // that still has only one thread.
  void ChildAfterFork();

 private:
  // Takes the lock. Returns false if it cannot, for example because the folder
  // does not exist.
  bool Lock();

  uint64_t tree_;
  FileDescriptor folder_;
  FileDescriptor left_;    // the folder again, once this process has left
  bool inherited_{false};  // the lock is shared with the parent
};

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
