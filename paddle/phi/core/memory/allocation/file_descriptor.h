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

#include <sys/types.h>

#include <cerrno>
#include <cstdint>
#include <string>
#include <utility>

namespace paddle {
namespace memory {
namespace allocation {

// Owns a file descriptor and knows the file. Other code of the process may
// close all descriptors and get the number for a file of its own: then this one
// is not intact any more, and closes nothing.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd);
  FileDescriptor(FileDescriptor&& other) noexcept { *this = std::move(other); }
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor();

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  bool IsIntact() const;
  // Closes it, if it is intact, and still knows the file.
  void Close();
  // Whether both are, or were when they were intact, of one file.
  bool IsOfFileOf(const FileDescriptor& other) const;

 private:
  int fd_{-1};
  dev_t device_{0};
  ino_t inode_{0};
};

template <typename Call>
auto RetryOnSignal(const Call& call) {
  auto result = call();
  while (result == -1 && errno == EINTR) result = call();
  return result;
}

// Opens a file; not to be inherited by a program that this process starts.
// What comes back is empty on failure, with the reason in errno.
FileDescriptor OpenFile(const std::string& path, int flags);

// Takes or gives back (F_UNLCK) a lock that belongs to the open file
// description.
bool SetLock(int fd, int16_t type, int64_t first, int64_t count);

// Whether somebody else has the lock. What cannot be known is taken for locked.
bool IsLocked(int fd, int64_t byte);

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
