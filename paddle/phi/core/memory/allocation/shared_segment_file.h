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

#include "paddle/phi/core/memory/allocation/file_descriptor.h"
#include "paddle/phi/core/memory/allocation/shared_ledger.h"

namespace paddle {
namespace memory {
namespace allocation {

// The folder of segments that have a name.
constexpr char kSharedMemoryFolder[] = "/dev/shm";

// How a segment is named, and so how long it lives.
enum class SharingStrategy : uint8_t {
  kFileSystem = 0,      // a file in /dev/shm; survives its creator
  kFileDescriptor = 1,  // a memfd; gone with the last process that has it
};

// What says which segment is meant, in a message. `pid` and `fd` are where a
// file_descriptor segment can be opened.
struct SegmentId {
  SharingStrategy strategy;
  uint64_t family;
  uint64_t segment;
  uint32_t pid;
  uint32_t fd;
};

std::string NameOf(uint64_t family, uint64_t segment);
std::string PathOf(const std::string& name);
// The family in the name of a file, 0 if it is not one of this user's.
uint64_t FamilyInName(const std::string& name);
// The names of all files of segments that are this user's.
std::vector<std::string> FilesOfUser();

// A memfd that is empty; its size cannot be sealed yet.
FileDescriptor MakeMemfd(const std::string& name);
// Opens what is at /proc/<pid>/fd/<fd> if it is a file of this user's, and
// nothing else: to open a device or a pipe can have effects.
FileDescriptor OpenOfProcess(uint32_t pid, uint32_t fd);

// Why a file is not what a segment must be, empty if it is.
std::string Unfit(int fd, SharingStrategy strategy);
// The first bytes of the file. They are read, not mapped: touching a page of a
// mapping gives it memory, or ends the process where there is none.
SharedLedger::Start StartOf(int fd);
// Memory that cannot be given back stays usable, so a failure is no matter.
void PunchRange(int fd, uint64_t offset, uint64_t length);

// A part of a file in memory, unmapped when it goes.
class Mapping {
 public:
  Mapping(int fd, uint64_t length);
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping();

  explicit operator bool() const { return base_ != nullptr; }
  void* base() const { return base_; }
  void* Release() { return std::exchange(base_, nullptr); }

 private:
  uint64_t length_;
  void* base_{nullptr};
};

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
