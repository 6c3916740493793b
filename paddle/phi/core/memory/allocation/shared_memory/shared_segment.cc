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

#include "paddle/phi/core/memory/allocation/shared_memory/shared_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "paddle/phi/core/memory/allocation/shared_memory/process_status.h"
#include "paddle/phi/core/memory/allocation/shared_memory/random_bits.h"
#include "paddle/phi/core/memory/allocation/shared_memory/shared_memory_error.h"

namespace paddle {
namespace memory {
namespace allocation {

namespace {

using Kind = SharedMemoryError::Kind;

constexpr uint64_t kNoGeneration = UINT64_MAX;

// Calls `act` with the start and length of each run of whole pages before `end`
// that no range touches. The ranges are sorted.
template <typename Act>
void ForEachGap(const std::vector<SharedRange>& ranges,
                uint64_t end,
                const Act& act) {
  uint64_t next = 0;
  for (const SharedRange& range : ranges) {
    uint64_t start = range.offset - range.offset % kSharedPage;
    if (start > next) act(next, start - next);
    next = std::max(next, RoundUp(range.offset + range.length, kSharedPage));
  }
  if (next < end) act(next, end - next);
}

// A core dump would read all addresses, which would allocate memory for the
// unused ones.
void LeaveOutOfCoreDumps(void* base, uint64_t length) {
  madvise(base, length, MADV_DONTDUMP);
}

[[noreturn]] void ThrowGone(const SegmentId& id) {
  std::string name = SegmentName(id.tree, id.segment);
  if (id.strategy == SharingStrategy::kFileSystem) {
    throw SharedMemoryError(
        Kind::kGone,
        "The shared memory of a received tensor, " + SegmentPath(name) +
            ", does not exist any more: the message was received before or has "
            "expired, or the sender's process tree has ended. Receive messages "
            "once, and while the process tree that sent them is alive.");
  }
  throw SharedMemoryError(
      Kind::kGone,
      "Cannot open the memfd " + name + " of process " +
          std::to_string(id.pid) +
          ", which sent a tensor: it has ended or is in another PID namespace. "
          "Keep the sender alive until the message is received, or call "
          "paddle.incubate.multiprocessing.set_sharing_strategy("
          "'file_system') in it.");
}

}  // namespace

SharedSegment::SharedSegment(SharingStrategy strategy, std::string name)
    : strategy_(strategy), name_(std::move(name)), process_(getpid()) {}

SharedSegment::~SharedSegment() {
  if (base_) munmap(base_, reserve_);
}

void SharedSegment::Map(uint64_t reserve) {
  Mapping mapping(fd_.get(), reserve);
  if (!mapping) {
    ThrowErrno("Mapping " + HumanBytes(reserve) + " of addresses for " + name_);
  }
  base_ = static_cast<char*>(mapping.Release());
  reserve_ = reserve;
  LeaveOutOfCoreDumps(base_, reserve_);
  ledger_ = SharedLedger(base_, reserve_);
}

std::unique_ptr<SharedSegment> SharedSegment::Create(SharingStrategy strategy,
                                                     uint64_t tree,
                                                     uint64_t reserve) {
  uint64_t segment = RandomBits();
  std::string name = SegmentName(tree, segment);
  std::unique_ptr<SharedSegment> made(new SharedSegment(strategy, name));
  made->tree_ = tree;
  made->segment_ = segment;
  if (strategy == SharingStrategy::kFileSystem) {
    made->fd_ = OpenFile(kSharedMemoryFolder, O_TMPFILE | O_RDWR);
    if (!made->fd_) {
      ThrowErrno(std::string("Making a file for tensors in ") +
                 kSharedMemoryFolder +
                 " (paddle.incubate.multiprocessing.set_sharing_strategy("
                 "'file_descriptor') needs none)");
    }
  } else {
    made->fd_ = MakeMemfd(name);
    if (!made->fd_ || fchmod(made->fd_.get(), 0600) != 0 ||
        fcntl(made->fd_.get(), F_ADD_SEALS, F_SEAL_SHRINK) != 0) {
      ThrowErrno("Making the memfd " + name + " for tensors");
    }
  }
  made->Map(reserve);
  made->Reserve(made->fd(), 0, SharedLedger::HeaderBytes(reserve));
  made->ledger_.Format(tree, segment);
  made->slot_ = made->Slots()
                    .TakeSlot(SharedLedger::kOwnerSlot, made->process_, name)
                    .value();
  if (strategy == SharingStrategy::kFileSystem) {
    std::string self = "/proc/self/fd/" + std::to_string(made->fd_.get());
    if (linkat(AT_FDCWD,
               self.c_str(),
               AT_FDCWD,
               SegmentPath(name).c_str(),
               AT_SYMLINK_FOLLOW) != 0) {
      ThrowErrno("Naming the file " + SegmentPath(name) +
                 " (which needs /proc)");
    }
  }
  return made;
}

std::unique_ptr<SharedSegment> SharedSegment::Open(const SegmentId& id) {
  std::string name = SegmentName(id.tree, id.segment);
  std::unique_ptr<SharedSegment> opened(new SharedSegment(id.strategy, name));
  opened->tree_ = id.tree;
  opened->segment_ = id.segment;
  opened->fd_ =
      id.strategy == SharingStrategy::kFileSystem
          ? OpenFile(SegmentPath(name), O_RDWR | O_NOFOLLOW | O_NONBLOCK)
          : OpenMemfdOf(id.pid, id.fd);
  int fd = opened->fd_.get();
  if (fd < 0 && errno != ENOENT && errno != ESRCH) {
    ThrowErrno("Opening the shared memory " + name + " of a received tensor");
  }
  if (fd < 0) ThrowGone(id);
  std::string unfit = WhyUnfit(fd, id.strategy);
  if (!unfit.empty() && id.strategy == SharingStrategy::kFileDescriptor) {
    ThrowGone(id);  // the number refers to another file by now
  }
  if (!unfit.empty()) {
    throw SharedMemoryError(
        Kind::kInvalid,
        "Cannot use the shared memory " + name +
            " of a received tensor: " + unfit +
            ". Something else has replaced the file or changed its "
            "access rights; send the tensor again.");
  }
  SharedLedger::Start start = ReadLedgerStart(fd);
  if (!start.Valid() || start.tree != id.tree || start.segment != id.segment) {
    ThrowGone(id);
  }
  opened->Map(start.reserve);
  if (!opened->Contains(0, start.UsedBytes())) {
    throw SharedMemoryError(
        Kind::kInvalid,
        "Cannot use the shared memory " + name +
            " of a received tensor: it is smaller than its "
            "ledger. Another program has truncated the file; send "
            "the tensor again.");
  }
  std::optional<uint32_t> slot = opened->Slots().TakeSlot(
      SharedLedger::kOwnerSlot + 1, opened->process_, name);
  if (!slot) ThrowGone(id);
  opened->slot_ = *slot;
  struct stat file = {};
  if (id.strategy == SharingStrategy::kFileSystem && fstat(fd, &file) == 0 &&
      file.st_nlink == 0) {
    ThrowGone(id);
  }
  return opened;
}

bool SharedSegment::Usable() {
  if (fd_.IsIntact()) return true;
  if (strategy_ == SharingStrategy::kFileDescriptor) return false;
  FileDescriptor again = OpenFile(SegmentPath(name_), O_RDWR | O_NOFOLLOW);
  if (!again.SameFile(fd_)) return false;
  fd_ = std::move(again);
  return true;
}

int SharedSegment::fd() const {
  if (fd_.IsIntact()) return fd_.get();
  throw SharedMemoryError(
      Kind::kSystem,
      "Cannot share through " + name_ +
          ": other code of this process has closed its descriptor. Tensors in "
          "it stay usable; to send one, send tensor.clone().");
}

SegmentId SharedSegment::id() const {
  return {
      strategy_, tree_, segment_, process_, static_cast<uint32_t>(fd_.get())};
}

bool SharedSegment::Contains(uint64_t offset, uint64_t length) {
  if (offset > reserve_ || length > reserve_ - offset) return false;
  if (offset + length > size_) {
    struct stat file = {};
    if (Usable() && fstat(fd_.get(), &file) == 0) size_ = file.st_size;
  }
  return offset + length <= size_;
}

bool SharedSegment::IsHeldBy(uint32_t block, const SharedHolder& holder) {
  // The number of the slot comes from memory that other processes can write to.
  if (!Usable() || holder.slot == SharedLedger::kPermanentSlot ||
      holder.slot >= ledger_.slot_limit()) {
    return true;
  }
  ReapIfDead(holder.slot);
  // Another process may have taken the slot since then.
  return ledger_.slot_pid(holder.slot) == holder.process &&
         ledger_.Holds(block, holder.slot);
}

void SharedSegment::Reserve(int fd, uint64_t offset, uint64_t length) const {
  if (ReserveFile(fd, offset, length)) return;
  int error = errno;
  std::string where = name_;
  struct statvfs disk = {};
  if (error == ENOSPC && strategy_ == SharingStrategy::kFileSystem &&
      statvfs(kSharedMemoryFolder, &disk) == 0) {
    where = std::string(kSharedMemoryFolder) + ", which has " +
            HumanBytes(disk.f_blocks * disk.f_frsize) + " in all and " +
            HumanBytes(disk.f_bavail * disk.f_frsize) +
            " free (enlarge it, in Docker by --shm-size, or call "
            "paddle.incubate.multiprocessing.set_sharing_strategy("
            "'file_descriptor')),";
  }
  if (error == EFBIG) {
    where += " (raise the limit on the size of files, ulimit -f)";
  }
  errno = error;
  ThrowErrno("Reserving " + HumanBytes(length) + " of shared memory in " +
             where);
}

void SharedSegment::Populate(uint64_t offset, uint64_t length) const {
  constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, since Linux 5.14
  madvise(base_ + offset, length, kPopulateWrite);
}

void SharedSegment::Trim(uint64_t offset, uint64_t length) {
  if (fd_.IsIntact()) TrimFile(fd_.get(), offset, length);
}

std::vector<uint32_t> SharedSegment::OtherHolders(uint32_t block) const {
  std::vector<uint32_t> processes;
  for (uint32_t slot = 0; slot < ledger_.slot_limit(); ++slot) {
    if (slot != slot_ && ledger_.Holds(block, slot)) {
      processes.push_back(ledger_.slot_pid(slot));
    }
  }
  return processes;
}

bool SharedSegment::ReapIfDead(uint32_t slot) {
  // A child in the permanent slot shares the open file description of its
  // parent, so the kernel would give it every lock that the parent holds.
  return !has_permanent_slot() && slot != slot_ && Slots().ReapIfDead(slot);
}

void SharedSegment::ReapDead() {
  if (!Usable()) return;
  for (uint32_t slot = SharedLedger::kOwnerSlot; slot < ledger_.slot_limit();
       ++slot) {
    ReapIfDead(slot);
  }
}

bool SharedSegment::OwnerIsAlive() {
  if (ledger_.orphaned()) return false;
  if (!Usable() || IsLocked(fd_.get(), SharedLedger::kOwnerSlot)) return true;
  // A child in the permanent slot shares the lock of an owner that is its
  // parent, so the kernel does not report the lock.
  return has_permanent_slot() &&
         !HasEnded(ledger_.slot_pid(SharedLedger::kOwnerSlot));
}

bool SharedSegment::OwnerIsLeaving() const {
  return ledger_.orphaned() ||
         ledger_.slot_state(SharedLedger::kOwnerSlot) != SharedLedger::kTaken;
}

bool SharedSegment::ReapOwnerIfDead() {
  return Usable() && ReapIfDead(SharedLedger::kOwnerSlot);
}

void SharedSegment::CollectOrphaned(uint32_t first,
                                    uint32_t count,
                                    uint64_t deadline) {
  // The lock of the owner's slot is the right to free blocks.
  constexpr uint32_t kOwner = SharedLedger::kOwnerSlot;
  if (has_permanent_slot() || !Usable() || !Slots().TryLock(kOwner, kOwner + 1))
    return;
  trimmed_.resize(ledger_.block_count(), kNoGeneration);
  for (uint32_t i = first; i < first + count; ++i) {
    ledger_.ExpireOrphanedTickets(i, deadline);
    bool trimmed = trimmed_[i] == ledger_.generation(i);
    if ((trimmed && !ledger_.Referenced(i)) || !ledger_.TryFree(i)) continue;
    trimmed_[i] = ledger_.generation(i);
    // Whole pages only: small blocks share theirs.
    uint64_t start = RoundUp(ledger_.offset(i), kSharedPage);
    uint64_t end = ledger_.offset(i) + ledger_.capacity(i);
    end -= end % kSharedPage;
    if (start < end) Trim(start, end - start);
  }
  Slots().Unlock(kOwner, kOwner + 1);
}

bool SharedSegment::LockIfAlone() {
  if (has_permanent_slot() || has_child_in_permanent_slot_ || !Usable())
    return false;
  // This process has the lock of its own slot, but possibly through another
  // open file description than that of `fd_`, which may have been reopened.
  SharedSlots slots = Slots();
  if (!slots.TryLock(0, slot_)) return false;
  if (!slots.TryLock(slot_ + 1, SharedLedger::kSlots)) {
    slots.Unlock(0, slot_);
    return false;
  }
  // A block that the permanent slot holds is held by a child that shares this
  // process's locks.
  bool needed = ledger_.HasMessages();
  for (uint32_t i = 0, n = ledger_.block_count(); i < n; ++i) {
    needed |= ledger_.Holds(i, SharedLedger::kPermanentSlot);
  }
  if (needed) UnlockOthers();
  return !needed;
}

void SharedSegment::UnlockOthers() {
  // The permanent slot is unlocked last: while it is locked, a process that
  // finds no free slot tries again.
  Slots().Unlock(slot_ + 1, SharedLedger::kSlots);
  Slots().Unlock(0, slot_);
}

bool SharedSegment::Unlink() {
  return strategy_ == SharingStrategy::kFileDescriptor ||
         unlink(SegmentPath(name_).c_str()) == 0 || errno == ENOENT;
}

bool SharedSegment::RemoveIfAlone() {
  if (!LockIfAlone()) return false;
  Unlink();
  return true;
}

bool SharedSegment::Detach(const std::vector<SharedRange>& kept) {
  if (!LockIfAlone()) return false;
  // The segment is whole as long as it has a name. So if this process is killed
  // here, others find a complete segment, or none.
  if (!Unlink()) {
    UnlockOthers();
    return false;
  }
  // Keep the blocks of all set bits: a child that shares the slot needs them.
  std::vector<SharedRange> held;
  for (uint32_t i = 0, n = ledger_.block_count(); i < n; ++i) {
    if (ledger_.Holds(i, slot_)) {
      held.push_back({ledger_.offset(i), ledger_.capacity(i)});
    }
  }
  std::sort(held.begin(), held.end(), [](const auto& a, const auto& b) {
    return a.offset < b.offset;
  });
  // Trim the magic number first, before any lock is released. So a process that
  // opened the file just before sees that the segment was detached.
  ForEachGap(held, reserve_, [&](uint64_t start, uint64_t length) {
    TrimFile(fd_.get(), start, length);
  });
  UnmapAllBut(kept);
  return true;
}

void SharedSegment::UnmapAllBut(const std::vector<SharedRange>& kept) {
  // The system's pages may be larger than the pages of a segment. Those that
  // are partly kept stay mapped.
  const uint64_t page = sysconf(_SC_PAGESIZE);
  ForEachGap(kept, reserve_, [&](uint64_t start, uint64_t length) {
    const uint64_t first = RoundUp(start, page);
    const uint64_t end = start + length;
    // The mapping ends with a whole page.
    const uint64_t last =
        end == reserve_ ? RoundUp(end, page) : end - end % page;
    // This fails if the system allows no more mappings; then the addresses stay
    // mapped.
    if (first < last) munmap(base_ + first, last - first);
  });
  fd_.Close();
  base_ = nullptr;
}

void SharedSegment::CloseDescriptor() {
  descriptor_closed_ = strategy_ == SharingStrategy::kFileSystem;
  if (descriptor_closed_) fd_.Close();
}

void SharedSegment::SetLeaving() {
  if (!has_permanent_slot()) {
    ledger_.SetSlot(slot_, SharedLedger::kLeaving, process_);
  }
}

uint32_t SharedSegment::TakeSlotForChild() {
  try {
    // With a new open file description, the lock belongs only to the child.
    if (!descriptor_closed_ && !Usable()) return SharedLedger::kPermanentSlot;
    child_fd_ =
        descriptor_closed_
            ? OpenFile(SegmentPath(name_), O_RDWR | O_NOFOLLOW)
            : OpenFile("/proc/self/fd/" + std::to_string(fd_.get()), O_RDWR);
    if (!child_fd_.SameFile(fd_)) {
      child_fd_ = FileDescriptor();
      return SharedLedger::kPermanentSlot;
    }
    std::optional<uint32_t> slot =
        SharedSlots(child_fd_.get(), &ledger_)
            .TakeSlot(SharedLedger::kOwnerSlot + 1, process_, name_);
    if (slot) return *slot;
    // No process detaches a segment that this process is attached to, but some
    // program may have overwritten its header.
  } catch (const SharedMemoryError&) {
  }
  // A fork cannot be refused, so the child gets the permanent slot: blocks that
  // it holds stay in use as long as the segment exists, which is safe.
  child_fd_ = FileDescriptor();
  return SharedLedger::kPermanentSlot;
}

void SharedSegment::PrepareFork(const std::vector<uint32_t>& holds) {
  child_slot_ = TakeSlotForChild();
  for (uint32_t block : holds) ledger_.AddHolder(block, child_slot_);
}

void SharedSegment::ParentAfterFork() {
  has_child_in_permanent_slot_ |= child_slot_ == SharedLedger::kPermanentSlot;
  child_fd_ = FileDescriptor();
  if (descriptor_closed_) fd_.Close();
}

void SharedSegment::ChildAfterFork(const std::vector<uint32_t>& holds) {
  process_ = getpid();
  has_child_in_permanent_slot_ = false;
  // The new mapping keeps the child's own lock. It replaces the inherited
  // mapping, which keeps the parent's locks.
  bool has_lock =
      child_fd_.IsIntact() && mmap(base_,
                                   reserve_,
                                   PROT_READ | PROT_WRITE,
                                   MAP_SHARED | MAP_NORESERVE | MAP_FIXED,
                                   child_fd_.get(),
                                   0) != MAP_FAILED;
  if (has_lock) {
    LeaveOutOfCoreDumps(base_, reserve_);
    slot_ = child_slot_;
    std::swap(fd_, child_fd_);
    ledger_.SetSlot(slot_, SharedLedger::kTaken, process_);
  } else {
    slot_ = SharedLedger::kPermanentSlot;
    for (uint32_t block : holds) ledger_.AddHolder(block, slot_);
  }
  child_fd_ = FileDescriptor();
  if (descriptor_closed_) fd_.Close();
}

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
