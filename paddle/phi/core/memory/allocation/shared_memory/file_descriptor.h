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

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/types.h>

#include <cerrno>
#include <cstdint>
#include <string>
#include <utility>

// Linux has these, but the headers of glibc 2.17 do not. Paddle's wheels are
// built with such headers.
#ifndef O_TMPFILE
#define O_TMPFILE (020000000 | O_DIRECTORY)
#endif
#ifndef F_OFD_SETLK
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#endif
#ifndef F_ADD_SEALS
#define F_ADD_SEALS 1033
#define F_GET_SEALS 1034
#define F_SEAL_SEAL 0x0001
#define F_SEAL_SHRINK 0x0002
#define F_SEAL_GROW 0x0004
#endif
#ifndef MFD_CLOEXEC
#define MFD_CLOEXEC 0x0001U
#define MFD_ALLOW_SEALING 0x0002U
#endif

namespace paddle {
namespace memory {
namespace allocation {

// Repeats a system call until no signal interrupts it.
template <typename Call>
auto RetryOnSignal(const Call& call) {
  auto result = call();
  while (result == -1 && errno == EINTR) result = call();
  return result;
}

// A file descriptor that this object owns, and the identity of its file.
//
// Invariant: only a descriptor that still refers to that file is closed. Other
// code of the process may close all descriptors, and the system may then give
// the number to another file; after that, this descriptor is not intact.
//
// Not thread-safe.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd);
  FileDescriptor(FileDescriptor&& other) noexcept { *this = std::move(other); }
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor();

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  // Returns whether the descriptor still refers to its file; costs one fstat.
  bool IsIntact() const;
  // Closes the descriptor if it is intact. The identity of the file is kept.
  void Close();
  // Returns whether this descriptor refers to the file of `other`, which may be
  // closed.
  bool SameFile(const FileDescriptor& other) const;

 private:
  int fd_{-1};
  dev_t device_{0};
  ino_t inode_{0};
};

// Opens a file that programs started by this process do not inherit. Returns an
// empty descriptor on failure, with the reason in errno.
//
// Thread-safe.
FileDescriptor OpenFile(const std::string& path, int flags);

// Takes a lock on bytes of a file (F_RDLCK or F_WRLCK) or releases it
// (F_UNLCK). It belongs to the open file description, not to the process.
// Returns false, with the reason in errno, if it fails, for example because
// another description holds the lock.
//
// Thread-safe.
bool SetLock(int fd, int16_t type, int64_t first, int64_t count);

// Returns whether another open file description has a lock on a byte. Returns
// true if that is unknown.
//
// Thread-safe.
bool IsLocked(int fd, int64_t byte);

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
