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

#include "paddle/phi/core/memory/allocation/shared_ledger.h"

namespace paddle {
namespace memory {
namespace allocation {

// The slots of one segment, and which of their processes are alive.
//
// Invariant: a process is alive as long as it holds the kernel lock of its
// slot, which is byte `slot` of the segment's file. The lock is an open file
// description's, so the kernel gives it back whatever killed the process, and
// a process number that is used again changes nothing. A process that can take
// the lock of a slot in use may reap it, and loses that right if it is killed.
//
// A view, cheap to make. Not thread-safe.
class SharedSlots {
 public:
  // Requires: `fd` is a descriptor of the file that begins with `ledger`. Both
  // outlive the view.
  SharedSlots(int fd, SharedLedger* ledger) : fd_(fd), ledger_(ledger) {}

  // Takes the locks of the slots from `first` up to `end`, without waiting.
  // False, with the reason in errno and no lock taken, if it cannot have all.
  bool TryLock(uint32_t first, uint32_t end) const;
  void Unlock(uint32_t first, uint32_t end) const;
  // Whether another open file description has the lock. True if that cannot be
  // known.
  bool IsLocked(uint32_t slot) const;

  // Takes the first slot from `first` on that no living process has, and keeps
  // its lock. None if the segment was taken apart. Throws if all are in use;
  // `name` is the segment's, for the error.
  std::optional<uint32_t> Take(uint32_t first,
                               uint32_t process,
                               const std::string& name) const;
  // Reaps the slot if its process is dead, and says whether it was. Requires:
  // the calling process, or its parent, does not have the slot's lock by the
  // same open file description.
  bool ReapIfDead(uint32_t slot) const;
  // Whether each process that has a slot is dead or has said that it leaves.
  // Keeps the locks of those that are dead.
  bool AllLeaving() const;

 private:
  int fd_;
  SharedLedger* ledger_;
};

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
