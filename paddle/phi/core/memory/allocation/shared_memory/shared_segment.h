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

#include "paddle/phi/core/memory/allocation/shared_memory/file_descriptor.h"
#include "paddle/phi/core/memory/allocation/shared_memory/shared_ledger.h"
#include "paddle/phi/core/memory/allocation/shared_memory/shared_segment_file.h"
#include "paddle/phi/core/memory/allocation/shared_memory/shared_slots.h"

namespace paddle {
namespace memory {
namespace allocation {

// A process that holds a block, by its slot in the block's segment. A later
// process could have the same slot and the same number, for example in a
// container that was started again; the two are not distinguished.
struct SharedHolder {
  uint32_t slot;
  uint32_t process;
};

// A range of bytes of a segment.
struct SharedRange {
  uint64_t offset;
  uint64_t length;
};

// One segment that the calling process is attached to: its mapping, a
// descriptor, and a slot of its ledger.
//
// Invariant: as long as this object exists, the process holds the kernel lock
// of its slot, so no other process considers it dead and clears its holder
// bits. The lock belongs to an open file description that the mapping keeps
// open, so even a program that closes all of its descriptors keeps the lock.
//
// A process that could not get its own slot uses kPermanentSlot, whose bits are
// never cleared.
//
// The descriptor is usable if it is intact, or if the file can be opened again
// by the segment's name. Without it the process cannot tell which processes are
// alive, and cannot reserve memory; blocks in use stay in use.
//
// Not thread-safe. Requires, for all functions that say nothing else: the
// heap's mutex is held.
class SharedSegment {
 public:
  // Creates a segment that the calling process owns. If the segment has a name,
  // it gets the name only once it is complete. Thread-safe.
  static std::unique_ptr<SharedSegment> Create(SharingStrategy strategy,
                                               uint64_t tree,
                                               uint64_t reserve);
  // Attaches to a segment of another owner. Trusts neither `id` nor the content
  // of the file. Thread-safe.
  static std::unique_ptr<SharedSegment> Open(const SegmentId& id);
  ~SharedSegment();

  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  SharedLedger& ledger() { return ledger_; }
  bool has_permanent_slot() const {
    return slot_ == SharedLedger::kPermanentSlot;
  }
  uint64_t reserve() const { return reserve_; }
  char* base() const { return base_; }
  // Returns the identity of the segment for a message of this process.
  SegmentId id() const;
  uint64_t number() const { return segment_; }
  SharingStrategy strategy() const { return strategy_; }
  const std::string& name() const { return name_; }

  // Returns whether others can open the segment, as far as this process knows.
  // Costs no system call for a file with a name.
  bool CanBeOpened() const {
    return strategy_ == SharingStrategy::kFileSystem || fd_.IsIntact();
  }
  // Makes the descriptor usable if possible, and returns whether it is.
  bool Usable();

  // Returns whether a range lies inside the file.
  bool Contains(uint64_t offset, uint64_t length);
  // Returns the descriptor. Throws if other code of the process closed it.
  int fd() const;
  // Reserves memory for a range, so that touching it cannot fail. Thread-safe,
  // and needs no mutex. Requires: `fd` is a descriptor of this segment's file.
  void Reserve(int fd, uint64_t offset, uint64_t length) const;
  // Enters all pages of a range into the page tables of this process in one
  // call, if the system supports it. This costs less than one page fault per
  // page. Thread-safe. Requires: the range is reserved.
  void Populate(uint64_t offset, uint64_t length) const;
  // Returns the memory of a range to the system. Has no effect if the
  // descriptor is not intact. Requires: no process uses the range.
  void Trim(uint64_t offset, uint64_t length);

  // Sets this process's holder bit of a block. Requires: a reference keeps the
  // block meanwhile, or the caller checks afterwards, see SharedLedger.
  void AddHolder(uint32_t block) { ledger_.AddHolder(block, slot_); }
  // Clears this process's holder bit of a block. Has no effect if this process
  // is in the permanent slot or shares its slot with a child.
  void ReleaseHolder(uint32_t block) {
    if (has_permanent_slot() || shares_slot_) return;
    ledger_.ReleaseHolder(block, slot_);
  }

  // Returns this process as a holder.
  SharedHolder self() const { return {slot_, process_}; }
  // Returns the other processes that hold a block.
  std::vector<uint32_t> OtherHolders(uint32_t block) const;
  // Returns whether a process still holds a block, after reaping the process if
  // it is dead; true if that is unknown, and as long as a child in the
  // permanent slot shares the locks of a dead process.
  bool IsHeldBy(uint32_t block, const SharedHolder& holder);

  // Reaps all dead processes. Has no effect without a usable descriptor.
  void ReapDead();
  // Returns whether the owner is alive; true if that is unknown.
  bool OwnerIsAlive();
  // Returns whether the owner announced its exit or is known to be dead. Costs
  // no system call.
  bool OwnerIsLeaving() const;
  // Reaps the owner if it is dead, which orphans the segment. Returns whether
  // the owner was reaped.
  bool ReapOwnerIfDead();
  // Expires, frees and trims `count` blocks from `first` on. Has no effect in a
  // process that cannot take the lock of the owner's slot. Requires: the
  // segment is orphaned.
  void CollectOrphaned(uint32_t first, uint32_t count, uint64_t deadline);
  // Removes the segment's name if no other process is, or can become, attached.
  // Returns whether that is the case; then no message can open it any more.
  bool RemoveIfAlone();
  // Reduces the segment to the pages of `kept`, which are sorted, if no other
  // process is, or can become, attached. Releases the name, the descriptor, the
  // ledger and all other memory and addresses; the caller has to unmap the
  // pages of `kept`. Returns false, and changes nothing, if others need the
  // segment. Afterwards the object can only be destroyed.
  bool Detach(const std::vector<SharedRange>& kept);
  // Unmaps all but the pages of `kept`, in this process only, and closes the
  // descriptor. Afterwards the object can only be destroyed.
  void UnmapAllBut(const std::vector<SharedRange>& kept);
  // Closes the descriptor if the segment can be opened again by its name. Call
  // it again after a function that needs a usable descriptor.
  void CloseDescriptor();
  bool descriptor_closed() const { return descriptor_closed_; }
  // Announces the exit of this process, see SharedSlots::AllLeaving.
  void SetLeaving();

  // From now on forked children get no slot here. They keep the pages of the
  // blocks that they hold, and the lock of this process's slot guards them.
  void ShareSlot() { shares_slot_ = true; }
  bool shares_slot() const { return shares_slot_; }

  // Takes a slot, with its lock, for a child that does not exist yet, and sets
  // the child's holder bit of each block of `holds`. If this fails, the child
  // gets the permanent slot, because a fork cannot be refused. Requires: the
  // mutex stays held until one of the two functions below is called.
  void PrepareFork(const std::vector<uint32_t>& holds);
  void ParentAfterFork();
  // Requires: the calling process is the child, and has one thread only.
  void ChildAfterFork(const std::vector<uint32_t>& holds);

 private:
  SharedSegment(SharingStrategy strategy, std::string name);

  void Map(uint64_t reserve);
  // Requires: the descriptor is usable.
  SharedSlots Slots() { return SharedSlots(fd_.get(), &ledger_); }
  uint32_t TakeSlotForChild();
  // Requires: the descriptor is usable.
  bool ReapIfDead(uint32_t slot);
  // Takes the locks of all other slots and returns true, unless another process
  // is attached, or a message or a child in the permanent slot needs the
  // segment.
  bool LockIfAlone();
  void UnlockOthers();
  // Removes the name. Returns whether the segment has no name any more.
  bool Unlink();

  SharingStrategy strategy_;
  std::string name_;  // of the file, or of the memfd
  uint64_t tree_{0};
  uint64_t segment_{0};
  FileDescriptor fd_;
  char* base_{nullptr};
  uint64_t reserve_{0};
  uint64_t size_{0};
  uint32_t slot_{SharedLedger::kPermanentSlot};
  SharedLedger ledger_;
  std::vector<uint64_t> trimmed_;  // by block: the generation that was trimmed
  uint32_t process_;               // the number of the calling process
  bool descriptor_closed_{false};
  bool shares_slot_{false};
  bool has_child_in_permanent_slot_{false};  // it shares this process's locks
  FileDescriptor child_fd_;
  uint32_t child_slot_{SharedLedger::kPermanentSlot};
};

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
