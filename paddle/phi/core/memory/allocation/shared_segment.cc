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

#include "paddle/phi/core/memory/allocation/shared_segment.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <optional>
#include <set>
#include <sstream>
#include <thread>
#include <vector>

namespace paddle {
namespace memory {
namespace allocation {

namespace {

using Kind = SharedMemoryError::Kind;

constexpr char kFolder[] = "/dev/shm";
constexpr uint64_t kNoGeneration = UINT64_MAX;
// A signal undoes what one call of fallocate had got; small calls get on.
constexpr uint64_t kReserveStep = uint64_t{32} << 20;

std::string LimitText(int resource, uint64_t unit) {
  rlimit limit = {};
  if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return "unlimited";
  }
  return std::to_string(limit.rlim_cur / unit);
}

// How to fix the error, with a space in front; empty if that is not known.
std::string RemedyFor(int error) {
  if (error == ENOMEM) {
    return " If the addresses of this process are at their limit (ulimit -v, "
           "now " +
           LimitText(RLIMIT_AS, 1024) +
           "), raise it or keep tensors of fewer senders at a time.";
  }
  if (error == EOPNOTSUPP) {
    return std::string(" The file system of ") + kFolder +
           " cannot reserve memory. Mount a tmpfs there, or use "
           "paddle.incubate.multiprocessing.set_sharing_strategy("
           "'file_descriptor').";
  }
  if (error == EMFILE) {
    return " Raise the limit on open files (ulimit -n, now " +
           LimitText(RLIMIT_NOFILE, 1) +
           ") or keep tensors of fewer senders at a time.";
  }
  return "";
}

[[noreturn]] void ThrowErrno(const std::string& doing) {
  int error = errno;
  bool exhausted = error == ENOSPC || error == ENOMEM || error == EMFILE ||
                   error == ENFILE || error == EDQUOT || error == EFBIG;
  throw SharedMemoryError(exhausted ? Kind::kExhausted : Kind::kSystem,
                          doing + " failed: " + std::strerror(error) +
                              " (errno " + std::to_string(error) + ")." +
                              RemedyFor(error));
}

template <typename Call>
auto RetryOnSignal(const Call& call) {
  auto result = call();
  while (result == -1 && errno == EINTR) result = call();
  return result;
}

FileDescriptor OpenFile(const std::string& path, int flags) {
  return FileDescriptor(RetryOnSignal(
      [&] { return open(path.c_str(), flags | O_CLOEXEC, 0600); }));
}

// Memory that cannot be given back stays usable, so a failure is no matter.
void PunchRange(int fd, uint64_t offset, uint64_t length) {
  RetryOnSignal([&] {
    return fallocate(
        fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, length);
  });
}

FileDescriptor MakeMemfd(const std::string& name) {
  // Some systems refuse a memfd that could be executed; older ones do not know
  // the flag that says it cannot.
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

struct flock ByteRange(int16_t type, int64_t first, int64_t count) {
  struct flock range = {};
  range.l_type = type;
  range.l_whence = SEEK_SET;
  range.l_start = first;
  range.l_len = count;
  return range;
}

// Takes or gives back (F_UNLCK) a lock that belongs to the open file
// description.
bool SetLock(int fd, int16_t type, int64_t first, int64_t count) {
  struct flock lock = ByteRange(type, first, count);
  return RetryOnSignal([&] { return fcntl(fd, F_OFD_SETLK, &lock); }) == 0;
}

// Whether somebody else has the lock. What cannot be known is taken for locked.
bool IsLocked(int fd, int64_t byte) {
  struct flock lock = ByteRange(F_WRLCK, byte, 1);
  return fcntl(fd, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

bool TryLockSlot(int fd, uint32_t slot) {
  return SetLock(fd, F_WRLCK, slot, 1);
}

void UnlockSlots(int fd, uint32_t first, uint32_t end) {
  if (first < end) SetLock(fd, F_UNLCK, first, end - first);
}

bool TryLockSlots(int fd, uint32_t first, uint32_t end) {
  return first == end || SetLock(fd, F_WRLCK, first, end - first);
}

// The first bytes of the file. They are read, not mapped: touching a page of a
// mapping gives it memory, or ends the process where there is none.
SharedLedger::Start StartOf(int fd) {
  SharedLedger::Start start = {};
  if (RetryOnSignal([&] { return pread(fd, &start, sizeof(start), 0); }) !=
      sizeof(start)) {
    return {};
  }
  return start;
}

// All of a file whose size is not known beforehand; none if it cannot be read.
std::optional<std::string> ContentOf(const std::string& path) {
  FileDescriptor file = OpenFile(path, O_RDONLY);
  if (!file) return std::nullopt;
  std::string content;
  for (char part[4096];;) {
    ssize_t size =
        RetryOnSignal([&] { return read(file.get(), part, sizeof(part)); });
    if (size < 0) return std::nullopt;
    if (size == 0) return content;
    content.append(part, size);
  }
}

// The fields of the `stat` file of a process or thread, whose folder in /proc
// is given, from the third field on, which is its state. Empty if the file
// cannot be read, for the reason in errno.
std::vector<std::string> FieldsOfStat(const std::string& folder) {
  std::string text = ContentOf(folder + "/stat").value_or("");
  // After the name, which may have anything in it.
  size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return {};
  std::istringstream fields(text.substr(name_end + 1));
  return {std::istream_iterator<std::string>(fields), {}};
}

// Indices into FieldsOfStat.
constexpr size_t kState = 0;
constexpr size_t kFlags = 6;
constexpr size_t kEndOfEnvironment = 48;
// In the flags: PF_EXITING and PF_KTHREAD.
constexpr uint32_t kExiting = 0x4;
constexpr uint32_t kOfKernel = 0x200000;

bool IsDead(const std::string& state) { return state == "Z" || state == "X"; }

uint32_t FlagsOf(const std::vector<std::string>& fields) {
  return std::strtoul(fields[kFlags].c_str(), nullptr, 10);
}

bool HasEnded(uint32_t process) {
  return kill(static_cast<pid_t>(process), 0) != 0 && errno == ESRCH;
}

// Whether a process is in the middle of its end. The kernel gives files back
// then in an order of its own: the lock that says that the process lives may be
// gone while work that it gave to a GPU, or a mapping, still is there. A number
// that was given to another process since is no matter: that one is not ending.
// What cannot be known is taken for an end that is under way.
bool IsEnding(uint32_t process) {
  // To know that it is gone takes no descriptor, of which there may be none.
  if (HasEnded(process)) return false;
  auto is_gone = [] { return errno == ENOENT || errno == ESRCH; };
  std::string folder = "/proc/" + std::to_string(process) + "/task/";
  std::unique_ptr<DIR, int (*)(DIR*)> threads(opendir(folder.c_str()),
                                              closedir);
  if (!threads) return !is_gone();
  while (const dirent* thread = readdir(threads.get())) {
    if (thread->d_name[0] == '.') continue;
    errno = 0;
    std::vector<std::string> fields = FieldsOfStat(folder + thread->d_name);
    if (fields.empty() && is_gone()) continue;
    if (fields.size() <= kFlags) return true;
    if ((FlagsOf(fields) & kExiting) != 0 && !IsDead(fields[kState])) {
      return true;
    }
  }
  return false;
}

// Whether a process has ended and its parent has not taken notice.
bool IsZombie(uint32_t process) {
  std::vector<std::string> fields =
      FieldsOfStat("/proc/" + std::to_string(process));
  return !fields.empty() && IsDead(fields[kState]);
}

// The user whose rights a process has; none if that cannot be known.
std::optional<uint32_t> UserOf(uint32_t process) {
  std::string status =
      ContentOf("/proc/" + std::to_string(process) + "/status").value_or("");
  size_t line = status.find("\nUid:");
  uint32_t real = 0;
  uint32_t effective = 0;
  if (line == std::string::npos ||
      std::sscanf(status.c_str() + line, "\nUid: %u %u", &real, &effective) !=
          2) {
    return std::nullopt;
  }
  return effective;
}

// Calls `act` with the start and length of all whole pages before `end` that
// have no part of the ranges, which are sorted.
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

std::string NameOf(uint64_t family, uint64_t segment) {
  char name[80];
  std::snprintf(name,
                sizeof(name),
                "paddle-%u-%016" PRIx64 "-%016" PRIx64,
                geteuid(),
                family,
                segment);
  return name;
}

std::string PathOf(const std::string& name) {
  return std::string(kFolder) + "/" + name;
}

// The family in the name of a file, 0 if it is not one of this user's.
uint64_t FamilyInName(const std::string& name) {
  unsigned user = 0;
  uint64_t family = 0;
  uint64_t segment = 0;
  if (std::sscanf(name.c_str(),
                  "paddle-%u-%" SCNx64 "-%" SCNx64,
                  &user,
                  &family,
                  &segment) != 3 ||
      NameOf(family, segment) != name) {
    return 0;
  }
  return family;
}

std::vector<std::string> FilesOfUser() {
  std::vector<std::string> names;
  std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(kFolder), closedir);
  if (!folder) return names;
  while (const dirent* entry = readdir(folder.get())) {
    if (FamilyInName(entry->d_name) != 0) names.emplace_back(entry->d_name);
  }
  return names;
}

// Why a file is not what a segment must be, empty if it is.
std::string Unfit(int fd, SharingStrategy strategy) {
  struct stat file = {};
  if (fstat(fd, &file) != 0) return std::strerror(errno);
  if (!S_ISREG(file.st_mode)) return "it is no regular file";
  if (file.st_uid != geteuid()) return "it belongs to another user";
  if (file.st_mode & 077) return "others than its user have access to it";
  if (static_cast<uint64_t>(file.st_size) <
      SharedLedger::HeaderBytes(SharedLedger::kMinReserve)) {
    return "it is too small";
  }
  if (strategy == SharingStrategy::kFileDescriptor) {
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals == -1 || !(seals & F_SEAL_SHRINK)) return "it can be cut short";
  }
  return "";
}

// A part of a file in memory, unmapped when it goes.
class Mapping {
 public:
  Mapping(int fd, uint64_t length)
      : length_(length),
        base_(mmap(nullptr,
                   length,
                   PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_NORESERVE,
                   fd,
                   0)) {}
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    if (*this) munmap(base_, length_);
  }

  explicit operator bool() const { return base_ != MAP_FAILED; }
  void* base() const { return base_; }
  void* Release() { return std::exchange(base_, MAP_FAILED); }

 private:
  uint64_t length_;
  void* base_;
};

// A dump would walk through all the addresses, and give memory to those that
// have none.
void LeaveOutOfCoreDumps(void* base, uint64_t length) {
  madvise(base, length, MADV_DONTDUMP);
}

[[noreturn]] void ThrowNotDumpable(uint32_t pid) {
  std::string process = std::to_string(pid);
  throw SharedMemoryError(
      Kind::kUnavailable,
      "Cannot open the memfd of process " + process +
          ", which sent a tensor: the system closes /proc/" + process +
          "/fd to other processes of the same user. It does so when a process "
          "is not dumpable, as after setuid. Use paddle.incubate."
          "multiprocessing.set_sharing_strategy('file_system') in the sender, "
          "or call prctl(PR_SET_DUMPABLE, 1) there once it has changed its "
          "user.");
}

// Opens what is at /proc/<pid>/fd/<fd> if it is a file of this user's, and
// nothing else: to open a device or a pipe can have effects.
FileDescriptor OpenOfProcess(uint32_t pid, uint32_t fd) {
  std::string path =
      "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd);
  FileDescriptor place = OpenFile(path, O_PATH);
  if (!place && errno == EACCES) {
    if (UserOf(pid) == geteuid()) ThrowNotDumpable(pid);
    errno = EACCES;
  }
  struct stat file = {};
  if (!place || fstat(place.get(), &file) != 0) return FileDescriptor();
  if (!S_ISREG(file.st_mode) || file.st_uid != geteuid()) {
    errno = ENOENT;
    return FileDescriptor();
  }
  return OpenFile("/proc/self/fd/" + std::to_string(place.get()), O_RDWR);
}

[[noreturn]] void ThrowGone(const SegmentId& id) {
  std::string name = NameOf(id.family, id.segment);
  if (id.strategy == SharingStrategy::kFileSystem) {
    throw SharedMemoryError(
        Kind::kGone,
        "The shared memory of a received tensor, " + PathOf(name) +
            ", does not exist any more. It is removed when the message was "
            "received and dropped before, was given up as too old, or when the "
            "process tree of the sender has ended.");
  }
  throw SharedMemoryError(
      Kind::kGone,
      "The shared memory of a received tensor, memfd " + name +
          ", cannot be had from process " + std::to_string(id.pid) +
          ", which sent it and has ended or is in another PID namespace. "
          "Keep the sender alive until the message is received, or use "
          "paddle.incubate.multiprocessing.set_sharing_strategy("
          "'file_system') in it.");
}

}  // namespace

std::string HumanBytes(uint64_t bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  for (; value >= 1024 && unit < 4; ++unit) value /= 1024;
  char text[32];
  std::snprintf(text,
                sizeof(text),
                unit == 0 ? "%.0f %s" : "%.1f %s",
                value,
                units[unit]);
  return text;
}

uint64_t RandomBits() {
  uint64_t bits = 0;
  while (bits == 0) {
    if (RetryOnSignal([&] {
          return syscall(SYS_getrandom, &bits, sizeof(bits), 0);
        }) != sizeof(bits)) {
      ThrowErrno("Reading random bits");
    }
  }
  return bits;
}

FileDescriptor::FileDescriptor(int fd) : fd_(fd) {
  struct stat file = {};
  if (fd >= 0 && fstat(fd, &file) == 0) {
    device_ = file.st_dev;
    inode_ = file.st_ino;
  }
}

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(device_, other.device_);
  std::swap(inode_, other.inode_);
  return *this;
}

FileDescriptor::~FileDescriptor() {
  if (IsIntact()) close(fd_);
}

bool FileDescriptor::IsIntact() const {
  struct stat file = {};
  return fd_ >= 0 && fstat(fd_, &file) == 0 && file.st_dev == device_ &&
         file.st_ino == inode_;
}

void FileDescriptor::Close() {
  if (IsIntact()) close(fd_);
  fd_ = -1;
}

bool FileDescriptor::IsOfFileOf(const FileDescriptor& other) const {
  return fd_ >= 0 && device_ == other.device_ && inode_ == other.inode_;
}

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
                                                     uint64_t family,
                                                     uint64_t reserve) {
  uint64_t segment = RandomBits();
  std::string name = NameOf(family, segment);
  std::unique_ptr<SharedSegment> made(new SharedSegment(strategy, name));
  made->family_ = family;
  made->segment_ = segment;
  if (strategy == SharingStrategy::kFileSystem) {
    made->fd_ = OpenFile(kFolder, O_TMPFILE | O_RDWR);
    if (!made->fd_) {
      ThrowErrno(std::string("Making a file in ") + kFolder +
                 " for tensors to share (paddle.incubate.multiprocessing."
                 "set_sharing_strategy('file_descriptor') does without)");
    }
  } else {
    made->fd_ = MakeMemfd(name);
    if (!made->fd_ || fchmod(made->fd_.get(), 0600) != 0 ||
        fcntl(made->fd_.get(), F_ADD_SEALS, F_SEAL_SHRINK) != 0) {
      ThrowErrno("Making the memfd " + name + " for tensors to share");
    }
  }
  made->Map(reserve);
  made->Reserve(made->fd(), 0, SharedLedger::HeaderBytes(reserve));
  made->ledger_.Format(family, segment);
  made->slot_ =
      made->TakeSlot(made->fd_.get(), SharedLedger::kOwnerSlot).value();
  if (strategy == SharingStrategy::kFileSystem) {
    std::string self = "/proc/self/fd/" + std::to_string(made->fd_.get());
    if (linkat(AT_FDCWD,
               self.c_str(),
               AT_FDCWD,
               PathOf(name).c_str(),
               AT_SYMLINK_FOLLOW) != 0) {
      ThrowErrno("Naming the file " + PathOf(name) + " (which needs /proc)");
    }
  }
  return made;
}

std::unique_ptr<SharedSegment> SharedSegment::Open(const SegmentId& id) {
  std::string name = NameOf(id.family, id.segment);
  std::unique_ptr<SharedSegment> opened(new SharedSegment(id.strategy, name));
  opened->family_ = id.family;
  opened->segment_ = id.segment;
  opened->fd_ = id.strategy == SharingStrategy::kFileSystem
                    ? OpenFile(PathOf(name), O_RDWR | O_NOFOLLOW | O_NONBLOCK)
                    : OpenOfProcess(id.pid, id.fd);
  int fd = opened->fd_.get();
  if (fd < 0 && errno != ENOENT && errno != ESRCH) {
    ThrowErrno("Opening the shared memory " + name + " of a received tensor");
  }
  if (fd < 0) ThrowGone(id);
  std::string unfit = Unfit(fd, id.strategy);
  if (!unfit.empty() && id.strategy == SharingStrategy::kFileDescriptor) {
    ThrowGone(id);  // the number is another file's by now
  }
  if (!unfit.empty()) {
    throw SharedMemoryError(
        Kind::kInvalid, "Refusing the shared memory " + name + ": " + unfit);
  }
  SharedLedger::Start start = StartOf(fd);
  if (!start.Valid() || start.family != id.family ||
      start.segment != id.segment) {
    ThrowGone(id);
  }
  opened->Map(start.reserve);
  if (!opened->Contains(0, start.UsedBytes())) {
    throw SharedMemoryError(Kind::kInvalid,
                            "Refusing the shared memory " + name +
                                ": it is smaller than its ledger.");
  }
  std::optional<uint32_t> slot =
      opened->TakeSlot(fd, SharedLedger::kOwnerSlot + 1);
  if (!slot) ThrowGone(id);
  opened->slot_ = *slot;
  struct stat file = {};
  if (id.strategy == SharingStrategy::kFileSystem && fstat(fd, &file) == 0 &&
      file.st_nlink == 0) {
    ThrowGone(id);
  }
  return opened;
}

std::optional<uint32_t> SharedSegment::TakeSlot(int fd, uint32_t first) {
  // A process that takes a segment apart holds all locks, punches the magic
  // number out, and then gives the locks back.
  auto was_taken_apart = [&] { return !StartOf(fd).Valid(); };
  // Who looks whether the segment can go has all locks for a moment, that of
  // the slot that never dies too. It may let go between the two questions here,
  // so full is only what was found so three times in a row.
  int found_full = 0;
  for (int wait = 0; wait < 5000 && found_full < 3; ++wait) {
    bool soon_free = false;
    for (uint32_t slot = first; slot < SharedLedger::kSlots; ++slot) {
      if (!TryLockSlot(fd, slot)) {
        if (errno == EAGAIN || errno == EACCES) continue;
        ThrowErrno("Locking a slot of " + name_);
      }
      if (was_taken_apart()) return std::nullopt;
      if (ledger_.slot_state(slot) != SharedLedger::kFree) {
        if (IsEnding(ledger_.slot_pid(slot))) {
          UnlockSlots(fd, slot, slot + 1);
          soon_free = true;
          continue;
        }
        ledger_.ReapSlot(slot);
      }
      ledger_.SetSlot(slot, SharedLedger::kTaken, process_);
      return slot;
    }
    if (was_taken_apart()) return std::nullopt;
    bool looking = IsLocked(fd, SharedLedger::kPinnedSlot);
    found_full = looking || soon_free ? 0 : found_full + 1;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  throw SharedSlotsInUseError(
      "All " + std::to_string(SharedLedger::kSlots - 2) +
      " process slots of the shared memory " + name_ +
      " are in use. Let fewer processes keep tensors of one sender, or have a "
      "process in between send copies (tensor.clone()).");
}

bool SharedSegment::Usable() {
  if (fd_.IsIntact()) return true;
  if (strategy_ == SharingStrategy::kFileDescriptor) return false;
  FileDescriptor again = OpenFile(PathOf(name_), O_RDWR | O_NOFOLLOW);
  if (!again.IsOfFileOf(fd_)) return false;
  fd_ = std::move(again);
  return true;
}

int SharedSegment::fd() const {
  if (fd_.IsIntact()) return fd_.get();
  throw SharedMemoryError(
      Kind::kSystem,
      "The descriptor of the shared memory " + name_ +
          " was closed by other code of this process. Tensors in it can be "
          "used on, but no more can be shared through it.");
}

SegmentId SharedSegment::id() const {
  return {
      strategy_, family_, segment_, process_, static_cast<uint32_t>(fd_.get())};
}

bool SharedSegment::Contains(uint64_t offset, uint64_t length) {
  if (offset > reserve_ || length > reserve_ - offset) return false;
  if (offset + length > size_) {
    struct stat file = {};
    if (Usable() && fstat(fd_.get(), &file) == 0) size_ = file.st_size;
  }
  return offset + length <= size_;
}

void SharedSegment::Reserve(int fd, uint64_t offset, uint64_t length) const {
  for (uint64_t done = 0; done < length;) {
    uint64_t step = std::min(length - done, kReserveStep);
    if (RetryOnSignal([&] { return fallocate(fd, 0, offset + done, step); }) ==
        0) {
      done += step;
      continue;
    }
    int error = errno;
    if (done > 0) PunchRange(fd, offset, done);
    std::string where = name_;
    struct statvfs disk = {};
    if (error == ENOSPC && strategy_ == SharingStrategy::kFileSystem &&
        statvfs(kFolder, &disk) == 0) {
      where = std::string(kFolder) + ", which has " +
              HumanBytes(disk.f_blocks * disk.f_frsize) + " in all and " +
              HumanBytes(disk.f_bavail * disk.f_frsize) +
              " free (make it larger, in Docker by --shm-size, or use "
              "paddle.incubate.multiprocessing.set_sharing_strategy("
              "'file_descriptor')),";
    }
    if (error == EFBIG) {
      where += " (the limit on the size of files, ulimit -f, is in the way)";
    }
    errno = error;
    ThrowErrno("Reserving " + HumanBytes(length) + " of shared memory in " +
               where);
  }
}

void SharedSegment::Populate(uint64_t offset, uint64_t length) const {
  constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, since Linux 5.14
  madvise(base_ + offset, length, kPopulateWrite);
}

void SharedSegment::Punch(uint64_t offset, uint64_t length) {
  if (fd_.IsIntact()) PunchRange(fd_.get(), offset, length);
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
  // A child that could get no slot shares the description of its parent, to
  // whom the kernel would give every lock the parent has.
  if (pinned() || slot == slot_ ||
      ledger_.slot_state(slot) == SharedLedger::kFree ||
      !TryLockSlot(fd_.get(), slot)) {
    return false;
  }
  bool ended = !IsEnding(ledger_.slot_pid(slot));
  if (ended) {
    if (slot == SharedLedger::kOwnerSlot) ledger_.SetOrphaned();
    ledger_.ReapSlot(slot);
  }
  UnlockSlots(fd_.get(), slot, slot + 1);
  return ended;
}

void SharedSegment::ReapDead() {
  if (!Usable()) return;
  for (uint32_t slot = SharedLedger::kOwnerSlot; slot < ledger_.slot_limit();
       ++slot) {
    ReapIfDead(slot);
  }
}

bool SharedSegment::OwnerIsAlive() {
  return !ledger_.orphaned() &&
         (!Usable() || IsLocked(fd_.get(), SharedLedger::kOwnerSlot));
}

bool SharedSegment::OwnerIsLeaving() const {
  return ledger_.orphaned() ||
         ledger_.slot_state(SharedLedger::kOwnerSlot) != SharedLedger::kTaken;
}

bool SharedSegment::OwnerDied() {
  return Usable() && ReapIfDead(SharedLedger::kOwnerSlot);
}

void SharedSegment::PunchOrphans(uint32_t first,
                                 uint32_t count,
                                 uint64_t deadline) {
  // The lock of the creator's slot is the right to end generations.
  if (pinned() || !Usable() ||
      !TryLockSlot(fd_.get(), SharedLedger::kOwnerSlot)) {
    return;
  }
  punched_.resize(ledger_.block_count(), kNoGeneration);
  for (uint32_t i = first; i < first + count; ++i) {
    ledger_.ExpireOrphanedTickets(i, deadline);
    bool punched = punched_[i] == ledger_.generation(i);
    if ((punched && !ledger_.Referenced(i)) || !ledger_.TryFree(i)) continue;
    punched_[i] = ledger_.generation(i);
    // Whole pages only: small blocks share theirs.
    uint64_t start = RoundUp(ledger_.offset(i), kSharedPage);
    uint64_t end = ledger_.offset(i) + ledger_.capacity(i);
    end -= end % kSharedPage;
    if (start < end) Punch(start, end - start);
  }
  UnlockSlots(
      fd_.get(), SharedLedger::kOwnerSlot, SharedLedger::kOwnerSlot + 1);
}

bool SharedSegment::LockIfAlone() {
  if (pinned() || has_pinned_child_ || !Usable()) return false;
  // This process has the lock of its own slot, but maybe by another description
  // of the file than the descriptor's: it may have been opened again since.
  if (!TryLockSlots(fd_.get(), 0, slot_)) return false;
  if (!TryLockSlots(fd_.get(), slot_ + 1, SharedLedger::kSlots)) {
    UnlockSlots(fd_.get(), 0, slot_);
    return false;
  }
  // A pin is a child that shares this process's locks.
  bool needed = ledger_.HasMessages();
  for (uint32_t i = 0, n = ledger_.block_count(); i < n; ++i) {
    needed |= ledger_.Holds(i, SharedLedger::kPinnedSlot);
  }
  if (needed) UnlockOthers();
  return !needed;
}

void SharedSegment::UnlockOthers() {
  UnlockSlots(fd_.get(), 0, slot_);
  UnlockSlots(fd_.get(), slot_ + 1, SharedLedger::kSlots);
}

bool SharedSegment::Unlink() {
  return strategy_ == SharingStrategy::kFileDescriptor ||
         unlink(PathOf(name_).c_str()) == 0 || errno == ENOENT;
}

bool SharedSegment::RemoveIfAlone() {
  if (!LockIfAlone()) return false;
  Unlink();
  return true;
}

bool SharedSegment::Detach(const std::vector<SharedRange>& kept) {
  if (!LockIfAlone()) return false;
  // As long as it has a name, it is whole, so that whoever comes after a
  // process that was killed here finds a segment, or nothing.
  if (!Unlink()) {
    UnlockOthers();
    return false;
  }
  // A child that shares the slot needs the blocks of the slot's bits, too.
  std::vector<SharedRange> held;
  for (uint32_t i = 0, n = ledger_.block_count(); i < n; ++i) {
    if (ledger_.Holds(i, slot_)) {
      held.push_back({ledger_.offset(i), ledger_.capacity(i)});
    }
  }
  std::sort(held.begin(), held.end(), [](const auto& a, const auto& b) {
    return a.offset < b.offset;
  });
  // The magic number goes with the first range, before any lock is given back:
  // so a process that opened the file just before knows what has happened.
  ForEachGap(held, reserve_, [&](uint64_t start, uint64_t length) {
    PunchRange(fd_.get(), start, length);
  });
  LeaveButFor(kept);
  return true;
}

void SharedSegment::LeaveButFor(const std::vector<SharedRange>& kept) {
  ForEachGap(kept, reserve_, [&](uint64_t start, uint64_t length) {
    // Fails where the system allows no more mappings: then addresses stay.
    munmap(base_ + start, length);
  });
  fd_.Close();
  base_ = nullptr;
}

void SharedSegment::Park() {
  parked_ = strategy_ == SharingStrategy::kFileSystem;
  if (parked_) fd_.Close();
}

void DropPages(char* start, uint64_t length, bool shared) {
  if (length == 0) return;
  if (!shared) madvise(start, length, MADV_REMOVE);
  munmap(start, length);
}

void SharedSegment::SetLeaving() {
  if (!pinned()) {
    ledger_.SetSlot(slot_, SharedLedger::kLeaving, process_);
  }
}

uint32_t SharedSegment::TakeSlotForHeir() {
  try {
    // A description of its own, so that the lock is the child's alone.
    if (!parked_ && !Usable()) return SharedLedger::kPinnedSlot;
    heir_fd_ = parked_ ? OpenFile(PathOf(name_), O_RDWR | O_NOFOLLOW)
                       : OpenFile("/proc/self/fd/" + std::to_string(fd_.get()),
                                  O_RDWR);
    if (!heir_fd_.IsOfFileOf(fd_)) {
      heir_fd_ = FileDescriptor();
      return SharedLedger::kPinnedSlot;
    }
    std::optional<uint32_t> slot =
        TakeSlot(heir_fd_.get(), SharedLedger::kOwnerSlot + 1);
    if (slot) return *slot;
    // Nobody takes a segment apart that this process is attached to, but
    // something may have written over its header.
  } catch (const SharedMemoryError&) {
  }
  // A fork cannot be refused. What the child holds is then never given back
  // while the segment lives, which is safe.
  heir_fd_ = FileDescriptor();
  return SharedLedger::kPinnedSlot;
}

void SharedSegment::PrepareFork(const std::vector<uint32_t>& holds) {
  heir_slot_ = TakeSlotForHeir();
  for (uint32_t block : holds) ledger_.AddHolder(block, heir_slot_);
}

void SharedSegment::ParentAfterFork() {
  has_pinned_child_ |= heir_slot_ == SharedLedger::kPinnedSlot;
  heir_fd_ = FileDescriptor();
  if (parked_) fd_.Close();
}

void SharedSegment::ChildAfterFork(const std::vector<uint32_t>& holds) {
  process_ = getpid();
  has_pinned_child_ = false;
  // The mapping takes the place of that which keeps the parent's locks alive,
  // and keeps the child's own.
  bool has_lock =
      heir_fd_.IsIntact() && mmap(base_,
                                  reserve_,
                                  PROT_READ | PROT_WRITE,
                                  MAP_SHARED | MAP_NORESERVE | MAP_FIXED,
                                  heir_fd_.get(),
                                  0) != MAP_FAILED;
  if (has_lock) {
    LeaveOutOfCoreDumps(base_, reserve_);
    slot_ = heir_slot_;
    std::swap(fd_, heir_fd_);
    ledger_.SetSlot(slot_, SharedLedger::kTaken, process_);
  } else {
    slot_ = SharedLedger::kPinnedSlot;
    for (uint32_t block : holds) ledger_.AddHolder(block, slot_);
  }
  heir_fd_ = FileDescriptor();
  if (parked_) fd_.Close();
}

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
    return file_ && TryLockSlots(file_.get(), 0, SharedLedger::kSlots);
  }

  // Whether all who are attached have said that they leave.
  bool AllLeaving() const {
    return WithLedger([this](SharedLedger* ledger) {
      for (uint32_t slot = 0; slot < ledger->slot_limit(); ++slot) {
        // A child that got the pages alone keeps the lock of its parent's slot
        // when the parent has ended.
        uint32_t process = ledger->slot_pid(slot);
        if (ledger->slot_state(slot) == SharedLedger::kTaken &&
            !TryLockSlot(file_.get(), slot) && !HasEnded(process) &&
            !IsZombie(process)) {
          return false;
        }
      }
      return true;
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

// A process that was started with a family in its environment, and that may
// still join it: until it has imported Paddle it has no lock that says so.
//
// Looks at all processes of the user once, when it is asked for the first time.
class StartingProcesses {
 public:
  // `folder` is the one whose locks tell which families are alive.
  explicit StartingProcesses(int folder) { fstat(folder, &folder_); }

  // Whether there may be one of the family.
  bool MayJoin(uint64_t family) {
    if (!looked_) Look();
    return some_cannot_be_known_ || families_.count(family) != 0;
  }

 private:
  void Look() {
    looked_ = true;
    std::unique_ptr<DIR, int (*)(DIR*)> all(opendir("/proc"), closedir);
    some_cannot_be_known_ = !all;
    while (const dirent* entry = all ? readdir(all.get()) : nullptr) {
      uint32_t process = std::strtoul(entry->d_name, nullptr, 10);
      if (process == 0 || process == static_cast<uint32_t>(getpid())) continue;
      LookAt("/proc/" + std::string(entry->d_name));
    }
  }

  void LookAt(const std::string& process) {
    struct stat owner = {};
    if (stat(process.c_str(), &owner) != 0 || owner.st_uid != geteuid()) return;
    uint64_t family = FamilyIn(EnvironmentOf(process));
    if (family != 0 && !HasLeft(process)) families_.insert(family);
  }

  // Empty if it cannot be read. Of a process that is about to run a program, it
  // is that of the program, which is there in a moment.
  std::string EnvironmentOf(const std::string& process) {
    const std::string path = process + "/environ";
    for (; waits_left_ > 0; --waits_left_) {
      std::optional<std::string> environment = ContentOf(path);
      if (!environment) {
        // Of another process, it is gone or not to be read by this one.
        some_cannot_be_known_ |=
            errno == EMFILE || errno == ENFILE || errno == ENOMEM;
        return "";
      }
      if (!environment->empty()) return *environment;
      // It may have come before this was asked.
      if (!IsStartingProgram(process)) return ContentOf(path).value_or("");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    some_cannot_be_known_ = true;
    return "";
  }

  static uint64_t FamilyIn(const std::string& environment) {
    // As python/paddle/incubate/multiprocessing/sharing.py names it.
    static const std::string variable("PADDLE_SHARED_MEMORY_FAMILY=");
    for (size_t at = 0; at < environment.size();
         at = environment.find('\0', at) + 1) {
      if (environment.compare(at, variable.size(), variable) == 0) {
        const char* value = environment.c_str() + at + variable.size();
        return std::strtoull(value, nullptr, 16);
      }
      if (environment.find('\0', at) == std::string::npos) break;
    }
    return 0;
  }

  // Whether a process has no environment yet, because it is about to run
  // another program. Zombies and threads of the kernel have none either.
  static bool IsStartingProgram(const std::string& process) {
    std::vector<std::string> fields = FieldsOfStat(process);
    return fields.size() > kEndOfEnvironment && !IsDead(fields[kState]) &&
           (FlagsOf(fields) & (kExiting | kOfKernel)) == 0 &&
           fields[kEndOfEnvironment] == "0";
  }

  // Whether a process has joined and left: it then has the folder open twice.
  bool HasLeft(const std::string& process) const {
    std::string folder = process + "/fd/";
    std::unique_ptr<DIR, int (*)(DIR*)> all(opendir(folder.c_str()), closedir);
    int count = 0;
    while (const dirent* entry = all ? readdir(all.get()) : nullptr) {
      struct stat file = {};
      if (stat((folder + entry->d_name).c_str(), &file) == 0 &&
          file.st_dev == folder_.st_dev && file.st_ino == folder_.st_ino) {
        ++count;
      }
    }
    return count > 1;
  }

  struct stat folder_ = {};
  bool looked_{false};
  int waits_left_{1000};  // of a millisecond, for all processes together
  bool some_cannot_be_known_{false};
  std::set<uint64_t> families_;
};

}  // namespace

SharedFamily::SharedFamily(uint64_t family) : family_(family) { Lock(); }

bool SharedFamily::Lock() {
  FileDescriptor folder = OpenFile(kFolder, O_RDONLY | O_DIRECTORY);
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
