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

#include <sys/resource.h>

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "paddle/phi/core/memory/allocation/shared_memory/shared_heap.h"
#include "test/cpp/phi/shared_memory/workers.h"

// Helpers for tests with the heaps of several processes.
namespace shared_memory_test {

using paddle::memory::allocation::SharedBlock;
using paddle::memory::allocation::SharedHeap;
using paddle::memory::allocation::SharedHeapStats;
using paddle::memory::allocation::SharedMessage;
using paddle::memory::allocation::SharingStrategy;

// Two tests, one for each strategy.
#define TEST_BOTH(fixture, name)                                  \
  void name(::shared_memory_test::SharingStrategy strategy);      \
  ISOLATED_TEST(fixture, name##_file_system) {                    \
    name(::shared_memory_test::SharingStrategy::kFileSystem);     \
  }                                                               \
  ISOLATED_TEST(fixture, name##_file_descriptor) {                \
    name(::shared_memory_test::SharingStrategy::kFileDescriptor); \
  }                                                               \
  void name(::shared_memory_test::SharingStrategy strategy)

// Returns the heap of this process. It joins the process tree of the test, and
// leaves it when the process exits, as in Paddle.
SharedHeap& Heap();
// Returns whether, after a collection, no process holds a block of this one.
bool UsesNothing();

// Fill a block with content that depends on the seed, and check that content.
void Fill(const SharedBlock& block, uint64_t seed);
bool HasContent(const SharedBlock& block, uint64_t seed);

SharedBlock AllocateFilled(SharingStrategy strategy,
                           uint64_t size,
                           uint64_t seed);
// Returns a message for a block that this process holds.
SharedMessage MessageOf(const SharedBlock& block);

// Returns the path of the file of a message's segment.
std::string PathOf(const SharedMessage& message);
// Returns how many bytes of memory a file occupies.
uint64_t BytesOfFile(const std::string& path);

// The number of descriptors of a process, and its mappings and files of shared
// memory.
struct Possessions {
  static Possessions Now();
  bool operator==(const Possessions& other) const;
  bool operator!=(const Possessions& other) const { return !(*this == other); }

  int descriptors;
  std::vector<std::string> mappings;  // of shared memory
  std::vector<std::string> files;
};
std::ostream& operator<<(std::ostream& out, const Possessions& possessions);

// The range of descriptors that a process may have besides its standard
// streams.
constexpr int kFirstDescriptor = 3;
constexpr int kLastDescriptor = 60;

void CloseAllBut(int kept);

// Lowers a limit of this process as long as the object exists.
class Limited {
 public:
  Limited(int resource, uint64_t limit);
  ~Limited();
  Limited(const Limited&) = delete;
  Limited& operator=(const Limited&) = delete;

 private:
  int resource_;
  rlimit before_;
};

// Allows only `spare` more descriptors to be opened as long as the object
// exists.
class FewDescriptors {
 public:
  explicit FewDescriptors(int spare);
  ~FewDescriptors();
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;

 private:
  Limited limited_;
  std::vector<int> fillers_;
};

}  // namespace shared_memory_test
