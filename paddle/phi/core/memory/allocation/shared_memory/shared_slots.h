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

#include "paddle/phi/core/memory/allocation/shared_memory/shared_ledger.h"

namespace paddle {
namespace memory {
namespace allocation {

// The slots of one segment, and which of their processes are alive.
//
// Invariant: a process is alive as long as it holds the kernel lock of its
// slot, which is byte `slot` of the segment's file. The lock belongs to an open
// file description, so the kernel releases it however the process ends, and
// reuse of process numbers does not matter. A process that can take the lock of
// a slot in use is the only one that may reap it, and loses that right when it
// is killed itself.
//
// One more check is needed: while the kernel is still ending a process, it may
// have released the lock but not yet stopped the process's work on a GPU. Such
// a process counts as alive.
//
// Not thread-safe: the caller holds the heap's mutex, or no other thread knows
// the file. Cheap to construct, since it is a view.
class SharedSlots {
 public:
  // Requires: `fd` is an intact descriptor of the file that contains `ledger`.
  // Both outlive the view. TryLock and Unlock need no ledger; for them it may
  // be null.
  SharedSlots(int fd, SharedLedger* ledger) : fd_(fd), ledger_(ledger) {}

  // Takes the locks of the slots in [`first`, `end`). Never waits. If it cannot
  // take all of them, it takes none and returns false, with the reason in
  // errno.
  bool TryLock(uint32_t first, uint32_t end) const;
  void Unlock(uint32_t first, uint32_t end) const;

  // Takes the first slot from `first` on that no living process has, reaps it
  // if needed, and keeps its lock. Returns none if the segment was detached.
  // Throws if all slots are in use; the error refers to the segment as `name`.
  std::optional<uint32_t> TakeSlot(uint32_t first,
                                   uint32_t process,
                                   const std::string& name) const;
  // Reaps a slot if its process is dead, and returns whether it was. A dead
  // owner leaves the segment orphaned.
  //
  // Requires: the open file description of `fd` does not hold the slot's lock:
  // the kernel would grant it the lock again.
  bool ReapIfDead(uint32_t slot) const;
  // Returns whether every process with a slot is dead or has announced its
  // exit. Keeps the locks of dead processes. May overlook a process that is
  // just taking a slot; such a process has not received a message yet.
  bool AllLeaving() const;

 private:
  int fd_;
  SharedLedger* ledger_;
};

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
