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

#include "paddle/phi/core/memory/allocation/shared_memory/shared_slots.h"

#include <dirent.h>
#include <fcntl.h>

#include <cerrno>
#include <chrono>
#include <memory>
#include <thread>

#include "paddle/phi/core/memory/allocation/shared_memory/file_descriptor.h"
#include "paddle/phi/core/memory/allocation/shared_memory/process_status.h"
#include "paddle/phi/core/memory/allocation/shared_memory/shared_memory_error.h"
#include "paddle/phi/core/memory/allocation/shared_memory/shared_segment_file.h"

namespace paddle {
namespace memory {
namespace allocation {

namespace {

// Returns whether the kernel is in the middle of ending a process. The kernel
// closes files in any order: the lock that shows that the process is alive may
// be gone while a mapping, or its work on a GPU, is still there. If another
// process has the number by now, the result is still correct: that process is
// not ending. Returns true if the state is unknown.
bool IsEnding(uint32_t process) {
  // This check needs no file descriptor; there may be none left.
  if (HasEnded(process)) return false;
  auto is_gone = [] { return errno == ENOENT || errno == ESRCH; };
  std::string folder = "/proc/" + std::to_string(process) + "/task/";
  std::unique_ptr<DIR, int (*)(DIR*)> threads(opendir(folder.c_str()),
                                              closedir);
  if (!threads) return !is_gone();
  while (const dirent* thread = readdir(threads.get())) {
    if (thread->d_name[0] == '.') continue;
    errno = 0;
    std::optional<ProcessStat> stat = ReadProcessStat(folder + thread->d_name);
    if (!stat && is_gone()) continue;
    if (!stat || (stat->IsExiting() && !stat->IsDead())) return true;
  }
  return false;
}

[[noreturn]] void ThrowNoLocks() {
  throw SharedMemoryError(
      SharedMemoryError::Kind::kUnavailable,
      "Cannot put tensors into shared memory: this system has no open file "
      "description locks, which Linux has since version 3.15. Update it, or "
      "send a copy, for example tensor.numpy().");
}

// Returns whether a process has ended and its parent has not collected it.
bool IsZombie(uint32_t process) {
  std::optional<ProcessStat> stat =
      ReadProcessStat("/proc/" + std::to_string(process));
  return stat && stat->IsDead();
}

}  // namespace

bool SharedSlots::TryLock(uint32_t first, uint32_t end) const {
  return first == end || SetLock(fd_, F_WRLCK, first, end - first);
}

void SharedSlots::Unlock(uint32_t first, uint32_t end) const {
  if (first < end) SetLock(fd_, F_UNLCK, first, end - first);
}

std::optional<uint32_t> SharedSlots::TakeSlot(uint32_t first,
                                              uint32_t process,
                                              const std::string& name) const {
  // A process that detaches a segment holds all locks, trims the page with the
  // magic number, and then releases the locks.
  auto was_detached = [this] { return !ReadLedgerStart(fd_).Valid(); };
  // A process that checks whether the segment can be removed holds all locks
  // for a moment; it takes the lock of slot 0 first and releases it last. It
  // may release them between the two checks here, so the segment counts as full
  // only if that is found three times in a row.
  int found_full = 0;
  for (int wait = 0; wait < 5000 && found_full < 3; ++wait) {
    bool soon_free = false;
    for (uint32_t slot = first; slot < SharedLedger::kSlots; ++slot) {
      if (!TryLock(slot, slot + 1)) {
        if (errno == EAGAIN || errno == EACCES) continue;
        if (errno == EINVAL) ThrowNoLocks();
        ThrowErrno("Locking a slot of " + name);
      }
      if (was_detached()) return std::nullopt;
      if (ledger_->slot_state(slot) != SharedLedger::kFree) {
        if (IsEnding(ledger_->slot_pid(slot))) {
          Unlock(slot, slot + 1);
          soon_free = true;
          continue;
        }
        ledger_->ReapSlot(slot);
      }
      ledger_->SetSlot(slot, SharedLedger::kTaken, process);
      return slot;
    }
    if (was_detached()) return std::nullopt;
    bool being_checked = IsLocked(fd_, SharedLedger::kPermanentSlot);
    found_full = being_checked || soon_free ? 0 : found_full + 1;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  throw SharedSlotsInUseError("All " +
                              std::to_string(SharedLedger::kSlots - 2) +
                              " process slots of the shared memory " + name +
                              " are in use. Let fewer processes hold tensors "
                              "of one sender, or have some "
                              "of them receive copies (tensor.clone()).");
}

bool SharedSlots::ReapIfDead(uint32_t slot) const {
  if (ledger_->slot_state(slot) == SharedLedger::kFree ||
      !TryLock(slot, slot + 1)) {
    return false;
  }
  bool ended = !IsEnding(ledger_->slot_pid(slot));
  if (ended) {
    if (slot == SharedLedger::kOwnerSlot) ledger_->SetOrphaned();
    ledger_->ReapSlot(slot);
  }
  Unlock(slot, slot + 1);
  return ended;
}

bool SharedSlots::AllLeaving() const {
  for (uint32_t slot = 0; slot < ledger_->slot_limit(); ++slot) {
    if (ledger_->slot_state(slot) != SharedLedger::kTaken ||
        TryLock(slot, slot + 1)) {
      continue;
    }
    // Read the number only now: until here, another process may have reaped and
    // taken the slot of a dead one.
    uint32_t process = ledger_->slot_pid(slot);
    // A forked child without a slot keeps the lock of its parent's slot, even
    // after the parent has ended.
    if (!HasEnded(process) && !IsZombie(process)) return false;
  }
  return true;
}

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
