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

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "paddle/phi/core/memory/allocation/file_descriptor.h"
#include "paddle/phi/core/memory/allocation/shared_ledger.h"
#include "paddle/phi/core/memory/allocation/shared_segment_file.h"
#include "paddle/phi/core/memory/allocation/shared_slots.h"

namespace paddle {
namespace memory {
namespace allocation {

// A part of a segment.
struct SharedRange {
  uint64_t offset;
  uint64_t length;
};

// One shared memory object, mapped, with a slot of its ledger taken.
//
// Invariant: as long as the object exists, this process holds the kernel lock
// of its slot, and so nobody takes its holder bits for those of a dead one. The
// lock is an open file description's and the mapping keeps that description,
// so that not even a program that closes all of its descriptors loses it.
//
// A slot whose lock can be taken belongs to a process that is gone: the kernel
// says so, whatever killed it, and a reused process number changes nothing.
//
// Not thread-safe; SharedHeap serializes its use.
class SharedSegment {
 public:
  // Makes a segment of the calling process. It has a name, if it gets one, only
  // when it is complete.
  static std::unique_ptr<SharedSegment> Create(SharingStrategy strategy,
                                               uint64_t family,
                                               uint64_t reserve);
  // Attaches to a segment of another process. Trusts nothing in `id`.
  static std::unique_ptr<SharedSegment> Open(const SegmentId& id);
  ~SharedSegment();

  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  SharedLedger& ledger() { return ledger_; }
  bool pinned() const { return slot_ == SharedLedger::kPinnedSlot; }
  uint64_t reserve() const { return reserve_; }
  char* base() const { return base_; }
  // What to put into a message that the calling process sends.
  SegmentId id() const;
  uint64_t number() const { return segment_; }
  SharingStrategy strategy() const { return strategy_; }
  const std::string& name() const { return name_; }

  // Whether others can open it, as far as this process knows; of a file with a
  // name that takes no system call.
  bool CanBeOpened() const {
    return strategy_ == SharingStrategy::kFileSystem || fd_.IsIntact();
  }
  // Whether the descriptor is still there, or could be opened anew: other code
  // may close all descriptors. Without it nothing can be said of the life of
  // others, and no memory had; what is in use stays so.
  bool Usable();

  // Whether the range is inside the memory that the segment has.
  bool Contains(uint64_t offset, uint64_t length);
  // The descriptor; raises if someone closed it under us.
  int fd() const;
  // Gives the range of the file `fd`, which is this segment's, memory, so that
  // touching it cannot fail. Changes nothing else; needs no lock of the heap.
  void Reserve(int fd, uint64_t offset, uint64_t length) const;
  // Enters the pages of a range that has memory in this process's tables, all
  // at once where the system can: one by one, at first touch, costs more.
  void Populate(uint64_t offset, uint64_t length) const;
  // Takes the memory away from the range.
  void Punch(uint64_t offset, uint64_t length);

  // This process's holder bit. What a process without a slot of its own holds
  // is pinned, and stays so.
  void AddHolder(uint32_t block) { ledger_.AddHolder(block, slot_); }
  // Blocks of a process that shares its slot with a child are not dropped
  // either, as long as one of the two has the lock.
  void DropHolder(uint32_t block) {
    if (!pinned() && !shares_slot_) ledger_.DropHolder(block, slot_);
  }

  // The processes that hold a block, without this one.
  std::vector<uint32_t> OtherHolders(uint32_t block) const;

  // Takes back what dead processes held here.
  void ReapDead();
  // Whether the process that made the segment has not begun to end.
  bool OwnerIsAlive();
  // Whether it has said that it ends; costs no system call.
  bool OwnerIsLeaving() const;
  // Whether it is dead; then the segment is orphaned.
  bool OwnerDied();
  // In an orphaned segment, of `count` blocks: gives up messages sent before
  // `deadline`, and gives memory that nobody references to the system.
  void PunchOrphans(uint32_t first, uint32_t count, uint64_t deadline);
  // Whether nobody but this process is, or can become, attached. If so, the
  // segment has no name any more and no message can open it.
  bool RemoveIfAlone();
  // Takes the segment apart if nobody but this process is, or can become,
  // attached: it has no name, descriptor or ledger then, and neither memory nor
  // addresses but the pages of `kept`, which are sorted and stay the caller's.
  // False, and no change, if not. Afterwards the object can only be destroyed.
  bool Detach(const std::vector<SharedRange>& kept);
  // The same for this process alone, of a segment whose slot it shares.
  void LeaveButFor(const std::vector<SharedRange>& kept);
  // Closes the descriptor if the segment can be opened again by its name. To be
  // called again after a function that may have opened it.
  void Park();
  bool parked() const { return parked_; }
  // Tells others not to count on this process; see RemoveAbandoned.
  void SetLeaving();

  // From now on children of fork get no slot of their own here. They keep the
  // pages of the blocks they hold, guarded by the lock of this process's slot.
  void ShareSlot() { shares_slot_ = true; }
  bool shares_slot() const { return shares_slot_; }

  // Around fork: the child gets a slot, with its lock, before it exists, and a
  // holder bit for each block of `holds`.
  void PrepareFork(const std::vector<uint32_t>& holds);
  void ParentAfterFork();
  void ChildAfterFork(const std::vector<uint32_t>& holds);

 private:
  SharedSegment(SharingStrategy strategy, std::string name);

  void Map(uint64_t reserve);
  // The slots, by the descriptor. Requires: it is usable.
  SharedSlots Slots() { return SharedSlots(fd_.get(), &ledger_); }
  uint32_t TakeSlotForHeir();
  // The descriptor is usable.
  bool ReapIfDead(uint32_t slot);
  // Takes the locks of all other slots, unless somebody has one, or a message
  // or a child without a slot needs the segment.
  bool LockIfAlone();
  void UnlockOthers();
  // Whether it has no name, now.
  bool Unlink();

  SharingStrategy strategy_;
  std::string name_;  // of the file, or of the memfd
  uint64_t family_{0};
  uint64_t segment_{0};
  FileDescriptor fd_;
  char* base_{nullptr};
  uint64_t reserve_{0};
  uint64_t size_{0};
  uint32_t slot_{SharedLedger::kPinnedSlot};
  SharedLedger ledger_;
  std::vector<uint64_t> punched_;  // generation, by block
  uint32_t process_;               // the number of the calling process
  bool parked_{false};
  bool shares_slot_{false};
  bool has_pinned_child_{false};  // that shares this process's locks
  FileDescriptor heir_fd_;
  uint32_t heir_slot_{SharedLedger::kPinnedSlot};
};

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
