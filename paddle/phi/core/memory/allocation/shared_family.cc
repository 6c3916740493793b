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

#include "paddle/phi/core/memory/allocation/shared_family.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "paddle/phi/core/memory/allocation/shared_segment_file.h"
#include "paddle/phi/core/memory/allocation/shared_slots.h"
#include "paddle/phi/core/memory/allocation/starting_processes.h"

namespace paddle {
namespace memory {
namespace allocation {

namespace {

int64_t ByteOf(uint64_t family) { return static_cast<int64_t>(family >> 2); }

// A file that a process opened to see whether it can go.
class Candidate {
 public:
  explicit Candidate(const std::string& name)
      : name_(name),
        file_(OpenFile(PathOf(name), O_RDWR | O_NOFOLLOW | O_NONBLOCK)) {
    if (file_ && !Unfit(file_.get(), SharingStrategy::kFileSystem).empty()) {
      file_ = FileDescriptor();
    }
  }

  // The locks are held until this goes.
  bool NobodyAttached() const {
    return file_ &&
           SharedSlots(file_.get(), nullptr).TryLock(0, SharedLedger::kSlots);
  }

  // Whether all who are attached have said that they leave.
  bool AllLeaving() const {
    return WithLedger([this](SharedLedger* ledger) {
      return SharedSlots(file_.get(), ledger).AllLeaving();
    });
  }

  // Whether no message that was sent after `deadline` needs the file.
  bool NoMessages(uint64_t deadline) const {
    return WithLedger([deadline](SharedLedger* ledger) {
      for (uint32_t i = 0, n = ledger->block_count(); i < n; ++i) {
        ledger->ExpireOrphanedTickets(i, deadline);
      }
      return !ledger->HasMessages();
    });
  }

  void Remove() const { unlink(PathOf(name_).c_str()); }

 private:
  // False for a file that is none of ours, or has another layout.
  template <typename Question>
  bool WithLedger(const Question& question) const {
    struct stat file = {};
    if (!file_ || fstat(file_.get(), &file) != 0) return false;
    SharedLedger::Start start = StartOf(file_.get());
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

SharedFamily::SharedFamily(uint64_t family) : family_(family) { Lock(); }

bool SharedFamily::Lock() {
  FileDescriptor folder = OpenFile(kSharedMemoryFolder, O_RDONLY | O_DIRECTORY);
  if (!folder || !SetLock(folder.get(), F_RDLCK, ByteOf(family_), 1)) {
    return false;
  }
  folder_ = std::move(folder);
  inherited_ = false;
  return true;
}

void SharedFamily::Stay() {
  if (!folder_.IsIntact()) Lock();
}

void SharedFamily::RemoveAbandoned(uint64_t deadline) {
  Stay();
  if (!folder_.IsIntact()) return;
  std::vector<std::string> names = FilesOfUser();
  names.erase(std::remove_if(names.begin(),
                             names.end(),
                             [this](const std::string& name) {
                               uint64_t family = FamilyInName(name);
                               return family != family_ &&
                                      IsLocked(folder_.get(), ByteOf(family));
                             }),
              names.end());
  // Looks for processes only now: those of families that nobody locked before
  // were started by then.
  StartingProcesses starting(folder_.get());
  for (const std::string& name : names) {
    uint64_t family = FamilyInName(name);
    Candidate file(name);
    if (file.NobodyAttached() &&
        (file.NoMessages(deadline) ||
         (family != family_ && !starting.MayJoin(family)))) {
      file.Remove();
    }
  }
}

void SharedFamily::Leave() {
  if (inherited_ || !folder_.IsIntact()) return;
  // Before the lock goes: a process that has neither may still join.
  left_ = FileDescriptor(fcntl(folder_.get(), F_DUPFD_CLOEXEC, 0));
  SetLock(folder_.get(), F_UNLCK, ByteOf(family_), 1);
  if (IsLocked(folder_.get(), ByteOf(family_))) return;
  StartingProcesses starting(folder_.get());
  for (const std::string& name : FilesOfUser()) {
    if (FamilyInName(name) != family_) continue;
    Candidate file(name);
    if (file.AllLeaving() &&
        (file.NoMessages(0) || !starting.MayJoin(family_))) {
      file.Remove();
    }
  }
}

void SharedFamily::ChildAfterFork() {
  // The parent's description, which the child shares, must not outlive it.
  FileDescriptor shared = std::move(folder_);
  left_ = FileDescriptor();
  if (Lock()) return;
  folder_ = std::move(shared);
  inherited_ = true;
}

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
