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

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "paddle/phi/core/memory/allocation/shared_memory/file_descriptor.h"
#include "paddle/phi/core/memory/allocation/shared_memory/shared_ledger.h"

namespace paddle {
namespace memory {
namespace allocation {

// The folder of segments that have a name.
constexpr char kSharedMemoryFolder[] = "/dev/shm";

// How other processes find the memory of a segment, and so how long it lives.
enum class SharingStrategy : uint8_t {
  kFileSystem = 0,      // a file in /dev/shm; outlives its owner
  kFileDescriptor = 1,  // a memfd; gone with the last process that has it open
};

// Identifies a segment in a message. `pid` and `fd` say where the memfd of a
// kFileDescriptor segment can be opened.
struct SegmentId {
  SharingStrategy strategy;
  uint64_t tree;
  uint64_t segment;
  uint32_t pid;
  uint32_t fd;
};

// All functions of this file are thread-safe.

// Returns the file name of a segment of the calling user.
std::string SegmentName(uint64_t tree, uint64_t segment);
std::string SegmentPath(const std::string& name);
// Returns the process tree in a file name, or 0 if SegmentName does not return
// such names.
uint64_t TreeInName(const std::string& name);
// Returns the names of all files of segments of the calling user.
std::vector<std::string> SegmentFilesOfUser();

// Creates an empty memfd that can be sealed. Returns an empty descriptor on
// failure, with the reason in errno.
FileDescriptor MakeMemfd(const std::string& name);
// Returns whether this system has what segments need: memfds and open file
// description locks. Returns true if that is unknown.
//
// Thread-safe.
bool CanMakeSegments();
// Opens /proc/<pid>/fd/<fd> if it is a regular file of this user. Opens nothing
// else, since opening a device or a pipe can have side effects. Returns an
// empty descriptor on failure, with the reason in errno.
FileDescriptor OpenMemfdOf(uint32_t pid, uint32_t fd);

// Returns why a file cannot be used as a segment; empty if it can.
std::string WhyUnfit(int fd, SharingStrategy strategy);
// Returns the first bytes of a segment. They are read, not mapped: touching a
// page of a mapping allocates memory for it, or ends the process if there is
// none.
SharedLedger::Start ReadLedgerStart(int fd);
// Reserves memory for a range of a file. On failure, trims what it has reserved
// and returns false, with the reason in errno.
bool ReserveFile(int fd, uint64_t offset, uint64_t length);
// Returns the memory of a range to the system. If this fails, the memory just
// stays in use.
void TrimFile(int fd, uint64_t offset, uint64_t length);

// A mapping of the first bytes of a file. The destructor unmaps it.
//
// Not thread-safe.
class Mapping {
 public:
  // Check the result: on failure it is empty, with the reason in errno.
  Mapping(int fd, uint64_t length);
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping();

  explicit operator bool() const { return base_ != nullptr; }
  void* base() const { return base_; }
  // Hands the mapping over to the caller, which has to unmap it.
  void* Release() { return std::exchange(base_, nullptr); }

 private:
  uint64_t length_;
  void* base_{nullptr};
};

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
