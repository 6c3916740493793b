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

#include "test/cpp/phi/shared_memory/processes.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>

namespace shared_memory_test {

namespace {

// Returns a word that differs between neighbouring indices and between seeds.
uint64_t WordAt(uint64_t seed, uint64_t index) {
  return (seed + 1) * 0x9e3779b97f4a7c15 ^ index * 0xff51afd7ed558ccd;
}

std::vector<std::string> SharedMappings() {
  std::vector<std::string> mappings;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("/dev/shm/") != std::string::npos ||
        line.find("/memfd:") != std::string::npos) {
      mappings.push_back(line);
    }
  }
  return mappings;
}

}  // namespace

SharedHeap& Heap() {
  static SharedHeap& heap = [&]() -> SharedHeap& {
    SharedHeap& instance = SharedHeap::Instance();
    instance.Join(TreeId());
    std::atexit([] { SharedHeap::Instance().Leave(); });
    return instance;
  }();
  return heap;
}

bool UsesNothing() {
  Heap().Collect({});
  return Heap().Stats().used == 0;
}

void Fill(const SharedBlock& block, uint64_t seed) {
  for (uint64_t i = 0; i < block.capacity / sizeof(uint64_t); ++i) {
    reinterpret_cast<uint64_t*>(block.data)[i] = WordAt(seed, i);
  }
}

bool HasContent(const SharedBlock& block, uint64_t seed) {
  for (uint64_t i = 0; i < block.capacity / sizeof(uint64_t); ++i) {
    if (reinterpret_cast<uint64_t*>(block.data)[i] != WordAt(seed, i)) {
      return false;
    }
  }
  return true;
}

SharedBlock AllocateFilled(SharingStrategy strategy,
                           uint64_t size,
                           uint64_t seed) {
  const SharedBlock block = Heap().Allocate(strategy, size);
  Fill(block, seed);
  return block;
}

SharedMessage MessageOf(const SharedBlock& block) {
  const std::optional<SharedMessage> message = Heap().Send(block.data);
  REQUIRE_TRUE(message.has_value());
  return *message;
}

std::string PathOf(const SharedMessage& message) {
  if (message.id.strategy == SharingStrategy::kFileDescriptor) {
    return "/proc/" + std::to_string(message.id.pid) + "/fd/" +
           std::to_string(message.id.fd);
  }
  char name[80];
  std::snprintf(name,
                sizeof(name),
                "/dev/shm/paddle-%u-%016" PRIx64 "-%016" PRIx64,
                geteuid(),
                message.id.tree,
                message.id.segment);
  return name;
}

uint64_t BytesOfFile(const std::string& path) {
  struct stat file = {};
  REQUIRE_EQ(stat(path.c_str(), &file), 0);
  return file.st_blocks * 512;
}

Possessions Possessions::Now() {
  Possessions now{0, SharedMappings(), Files()};
  for (int fd = 0; fd < kLastDescriptor; ++fd) {
    if (fcntl(fd, F_GETFD) != -1) ++now.descriptors;
  }
  std::sort(now.files.begin(), now.files.end());
  return now;
}

bool Possessions::operator==(const Possessions& other) const {
  return descriptors == other.descriptors && mappings == other.mappings &&
         files == other.files;
}

std::ostream& operator<<(std::ostream& out, const Possessions& possessions) {
  out << possessions.descriptors << " descriptors";
  for (const auto& mapping : possessions.mappings) out << ", " << mapping;
  for (const auto& file : possessions.files) out << ", /dev/shm/" << file;
  return out;
}

void CloseAllBut(int kept) {
  for (int fd = kFirstDescriptor; fd < kLastDescriptor; ++fd) {
    if (fd != kept) close(fd);
  }
}

Limited::Limited(int resource, uint64_t limit) : resource_(resource) {
  REQUIRE_EQ(getrlimit(resource_, &before_), 0);
  const rlimit lowered = {limit, before_.rlim_max};
  REQUIRE_EQ(setrlimit(resource_, &lowered), 0);
}

Limited::~Limited() { setrlimit(resource_, &before_); }

FewDescriptors::FewDescriptors(int spare)
    : limited_(RLIMIT_NOFILE, kLastDescriptor) {
  for (int fd = 0; fd >= 0;) {
    fd = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0);
    if (fd >= 0) fillers_.push_back(fd);
  }
  for (; spare > 0; --spare) {
    close(fillers_.back());
    fillers_.pop_back();
  }
}

FewDescriptors::~FewDescriptors() {
  for (int fd : fillers_) close(fd);
}

}  // namespace shared_memory_test
