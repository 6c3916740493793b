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

#include "paddle/phi/core/memory/allocation/shared_memory/shared_segment_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <memory>

#include "paddle/phi/core/memory/allocation/shared_memory/process_status.h"
#include "paddle/phi/core/memory/allocation/shared_memory/shared_memory_error.h"

namespace paddle {
namespace memory {
namespace allocation {

namespace {

[[noreturn]] void ThrowNotDumpable(uint32_t pid) {
  std::string process = std::to_string(pid);
  throw SharedMemoryError(
      SharedMemoryError::Kind::kUnavailable,
      "Cannot open the memfd of process " + process +
          ", which sent a tensor: /proc/" + process +
          "/fd is closed to other processes, since the sender is not dumpable, "
          "as after setuid. In the sender, call paddle.incubate."
          "multiprocessing.set_sharing_strategy('file_system'), or "
          "prctl(PR_SET_DUMPABLE, 1) once it has changed its user.");
}

}  // namespace

std::string SegmentName(uint64_t tree, uint64_t segment) {
  char name[80];
  std::snprintf(name,
                sizeof(name),
                "paddle-%u-%016" PRIx64 "-%016" PRIx64,
                geteuid(),
                tree,
                segment);
  return name;
}

std::string SegmentPath(const std::string& name) {
  return std::string(kSharedMemoryFolder) + "/" + name;
}

uint64_t TreeInName(const std::string& name) {
  unsigned user = 0;
  uint64_t tree = 0;
  uint64_t segment = 0;
  if (std::sscanf(name.c_str(),
                  "paddle-%u-%" SCNx64 "-%" SCNx64,
                  &user,
                  &tree,
                  &segment) != 3 ||
      SegmentName(tree, segment) != name) {
    return 0;
  }
  return tree;
}

std::vector<std::string> SegmentFilesOfUser() {
  std::vector<std::string> names;
  std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(kSharedMemoryFolder),
                                             closedir);
  if (!folder) return names;
  while (const dirent* entry = readdir(folder.get())) {
    if (TreeInName(entry->d_name) != 0) names.emplace_back(entry->d_name);
  }
  return names;
}

FileDescriptor MakeMemfd(const std::string& name) {
  // Some systems refuse an executable memfd. Older systems do not know the flag
  // that makes it non-executable.
  constexpr unsigned kNoExecSeal = 8;
  unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  long fd = syscall(  // NOLINT
      SYS_memfd_create,
      name.c_str(),
      flags | kNoExecSeal);
  if (fd == -1 && errno == EINVAL) {
    fd = syscall(SYS_memfd_create, name.c_str(), flags);
  }
  return FileDescriptor(static_cast<int>(fd));
}

bool CanMakeSegments() {
  FileDescriptor file = MakeMemfd("paddle");
  if (!file) return errno != ENOSYS;
  return SetLock(file.get(), F_WRLCK, 0, 1) || errno != EINVAL;
}

FileDescriptor OpenMemfdOf(uint32_t pid, uint32_t fd) {
  std::string path =
      "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd);
  FileDescriptor path_only = OpenFile(path, O_PATH);
  if (!path_only && errno == EACCES) {
    if (EffectiveUserOf(pid) == geteuid()) ThrowNotDumpable(pid);
    errno = EACCES;
  }
  struct stat file = {};
  if (!path_only || fstat(path_only.get(), &file) != 0) return FileDescriptor();
  if (!S_ISREG(file.st_mode) || file.st_uid != geteuid()) {
    errno = ENOENT;
    return FileDescriptor();
  }
  return OpenFile("/proc/self/fd/" + std::to_string(path_only.get()), O_RDWR);
}

std::string WhyUnfit(int fd, SharingStrategy strategy) {
  struct stat file = {};
  if (fstat(fd, &file) != 0) return std::strerror(errno);
  if (!S_ISREG(file.st_mode)) return "it is not a regular file";
  if (file.st_uid != geteuid()) return "it belongs to another user";
  if (file.st_mode & 077) return "other users have access to it";
  if (static_cast<uint64_t>(file.st_size) <
      SharedLedger::HeaderBytes(SharedLedger::kMinReserve)) {
    return "it is too small";
  }
  if (strategy == SharingStrategy::kFileDescriptor) {
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals == -1 || !(seals & F_SEAL_SHRINK)) return "it can be truncated";
  }
  return "";
}

SharedLedger::Start ReadLedgerStart(int fd) {
  SharedLedger::Start start = {};
  if (RetryOnSignal([&] { return pread(fd, &start, sizeof(start), 0); }) !=
      sizeof(start)) {
    return {};
  }
  return start;
}

bool ReserveFile(int fd, uint64_t offset, uint64_t length) {
  // A signal undoes an fallocate call, so a long call might never finish. Small
  // steps make progress.
  constexpr uint64_t kStep = uint64_t{32} << 20;
  for (uint64_t done = 0; done < length; done += kStep) {
    uint64_t step = std::min(length - done, kStep);
    if (RetryOnSignal([&] { return fallocate(fd, 0, offset + done, step); }) !=
        0) {
      int error = errno;
      if (done > 0) TrimFile(fd, offset, done);
      errno = error;
      return false;
    }
  }
  return true;
}

void TrimFile(int fd, uint64_t offset, uint64_t length) {
  RetryOnSignal([&] {
    return fallocate(
        fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, length);
  });
}

Mapping::Mapping(int fd, uint64_t length) : length_(length) {
  void* base = mmap(nullptr,
                    length,
                    PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_NORESERVE,
                    fd,
                    0);
  if (base != MAP_FAILED) base_ = base;
}

Mapping::~Mapping() {
  if (base_) munmap(base_, length_);
}

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
