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

#include "paddle/phi/core/memory/allocation/shared_memory/file_descriptor.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace paddle {
namespace memory {
namespace allocation {

namespace {

struct flock ByteRange(int16_t type, int64_t first, int64_t count) {
  struct flock range = {};
  range.l_type = type;
  range.l_whence = SEEK_SET;
  range.l_start = first;
  range.l_len = count;
  return range;
}

}  // namespace

FileDescriptor::FileDescriptor(int fd) : fd_(fd) {
  struct stat file = {};
  if (fd >= 0 && fstat(fd, &file) == 0) {
    device_ = file.st_dev;
    inode_ = file.st_ino;
  }
}

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  // If both have the same number, other code has closed this descriptor, and
  // the number now belongs to `other`. It must stay open when this object's old
  // identity is destroyed.
  if (fd_ == other.fd_ && this != &other) fd_ = -1;
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

bool FileDescriptor::SameFile(const FileDescriptor& other) const {
  return fd_ >= 0 && device_ == other.device_ && inode_ == other.inode_;
}

FileDescriptor OpenFile(const std::string& path, int flags) {
  return FileDescriptor(RetryOnSignal(
      [&] { return open(path.c_str(), flags | O_CLOEXEC, 0600); }));
}

bool SetLock(int fd, int16_t type, int64_t first, int64_t count) {
  struct flock lock = ByteRange(type, first, count);
  return RetryOnSignal([&] { return fcntl(fd, F_OFD_SETLK, &lock); }) == 0;
}

bool IsLocked(int fd, int64_t byte) {
  struct flock lock = ByteRange(F_WRLCK, byte, 1);
  return fcntl(fd, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
