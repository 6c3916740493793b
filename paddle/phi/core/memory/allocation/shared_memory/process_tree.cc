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

#include "paddle/phi/core/memory/allocation/shared_memory/process_tree.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "paddle/phi/core/memory/allocation/shared_memory/shared_segment_file.h"
#include "paddle/phi/core/memory/allocation/shared_memory/shared_slots.h"
#include "paddle/phi/core/memory/allocation/shared_memory/starting_processes.h"

namespace paddle {
namespace memory {
namespace allocation {

namespace {

// Offsets of locks are signed 64-bit numbers, so the tree does not fit without
// a shift. Two bits also leave room for the end of the locked range.
int64_t LockByteOf(uint64_t tree) { return static_cast<int64_t>(tree >> 2); }

// A file of a segment, opened to find out whether it can be removed.
class TreeFile {
 public:
  explicit TreeFile(const std::string& name)
      : name_(name),
        file_(OpenFile(SegmentPath(name), O_RDWR | O_NOFOLLOW | O_NONBLOCK)) {
    if (file_ && !WhyUnfit(file_.get(), SharingStrategy::kFileSystem).empty()) {
      file_ = FileDescriptor();
    }
  }

  // Takes the locks of all slots, and keeps them as long as this object exists.
  // Returns false, and takes none, if a process is attached.
  bool LockAllSlots() const {
    return file_ &&
           SharedSlots(file_.get(), nullptr).TryLock(0, SharedLedger::kSlots);
  }

  // Returns whether every attached process is dead or has announced its exit.
  bool AllLeaving() const {
    return WithLedger([this](SharedLedger* ledger) {
      return SharedSlots(file_.get(), ledger).AllLeaving();
    });
  }

  // Returns whether no message that was sent after `deadline` needs the file.
  bool NoMessages(uint64_t deadline) const {
    return WithLedger([deadline](SharedLedger* ledger) {
      for (uint32_t i = 0, n = ledger->block_count(); i < n; ++i) {
        ledger->ExpireOrphanedTickets(i, deadline);
      }
      return !ledger->HasMessages();
    });
  }

  void Remove() const { unlink(SegmentPath(name_).c_str()); }

 private:
  // Returns false for a file that is not a segment or has another layout.
  template <typename Question>
  bool WithLedger(const Question& question) const {
    struct stat file = {};
    if (!file_ || fstat(file_.get(), &file) != 0) return false;
    SharedLedger::Start start = ReadLedgerStart(file_.get());
    if (!start.Valid() ||
        start.UsedBytes() > static_cast<uint64_t>(file.st_size)) {
      return false;
    }
    Mapping mapping(file_.get(), SharedLedger::LedgerBytes(start.reserve));
    if (!mapping) return false;
    SharedLedger ledger(mapping.base(), start.reserve);
    return question(&ledger);
  }

  std::string name_;
  FileDescriptor file_;
};

}  // namespace

ProcessTree::ProcessTree(uint64_t tree) : tree_(tree) { Lock(); }

bool ProcessTree::Lock() {
  FileDescriptor folder = OpenFile(kSharedMemoryFolder, O_RDONLY | O_DIRECTORY);
  if (!folder || !SetLock(folder.get(), F_RDLCK, LockByteOf(tree_), 1)) {
    return false;
  }
  folder_ = std::move(folder);
  inherited_ = false;
  return true;
}

void ProcessTree::EnsureLocked() {
  if (!folder_.IsIntact()) Lock();
}

void ProcessTree::RemoveAbandoned(uint64_t deadline) {
  EnsureLocked();
  if (!folder_.IsIntact()) return;
  std::vector<std::string> names = SegmentFilesOfUser();
  names.erase(std::remove_if(names.begin(),
                             names.end(),
                             [this](const std::string& name) {
                               uint64_t tree = TreeInName(name);
                               return tree != tree_ &&
                                      IsLocked(folder_.get(), LockByteOf(tree));
                             }),
              names.end());
  // Look for processes only now: the processes of process trees that were
  // unlocked above had already been started then.
  StartingProcesses starting(folder_.get());
  for (const std::string& name : names) {
    uint64_t tree = TreeInName(name);
    TreeFile file(name);
    // Look at the lock again, after the inspection: a process may have joined
    // meanwhile.
    if (file.LockAllSlots() && (file.NoMessages(deadline) ||
                                (tree != tree_ && !starting.MayJoin(tree) &&
                                 !IsLocked(folder_.get(), LockByteOf(tree))))) {
      file.Remove();
    }
  }
}

void ProcessTree::Leave() {
  if (inherited_ || !folder_.IsIntact()) return;
  // Duplicate the descriptor before the lock is released: a process with
  // neither the lock nor two descriptors counts as one that may still join.
  left_ = FileDescriptor(fcntl(folder_.get(), F_DUPFD_CLOEXEC, 0));
  SetLock(folder_.get(), F_UNLCK, LockByteOf(tree_), 1);
  if (IsLocked(folder_.get(), LockByteOf(tree_))) return;
  StartingProcesses starting(folder_.get());
  for (const std::string& name : SegmentFilesOfUser()) {
    if (TreeInName(name) != tree_) continue;
    TreeFile file(name);
    // As above. This process has released its own lock. Look at the slots
    // first, since NoMessages expires messages of an owner that has ended, and
    // again at the end: a process may have attached meanwhile and received the
    // last message. It took its slot before that.
    if (file.AllLeaving() &&
        (file.NoMessages(0) || (!starting.MayJoin(tree_) &&
                                !IsLocked(folder_.get(), LockByteOf(tree_)))) &&
        file.AllLeaving()) {
      file.Remove();
    }
  }
}

void ProcessTree::ChildAfterFork() {
  // The parent's open file description must not outlive the parent, or its lock
  // would make the process tree look alive.
  FileDescriptor shared = std::move(folder_);
  left_ = FileDescriptor();
  if (Lock()) return;
  folder_ = std::move(shared);
  inherited_ = true;
}

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
