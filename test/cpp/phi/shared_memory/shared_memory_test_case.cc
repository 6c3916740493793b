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
#include "test/cpp/phi/shared_memory/shared_memory_test_case.h"

#include <dirent.h>
#include <unistd.h>

#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <memory>
#include <thread>

namespace shared_memory_test {

namespace {

// A condition that a test waits for becomes true sooner, even on a busy
// machine.
constexpr auto kLong = std::chrono::seconds(120);

// Differs between all tests of all programs that run at the same time.
uint64_t test_tree = 0;

std::vector<std::string> FilesWith(const std::string& prefix) {
  std::vector<std::string> names;
  std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/dev/shm"), closedir);
  if (!folder) return names;
  while (const dirent* entry = readdir(folder.get())) {
    if (std::strncmp(entry->d_name, prefix.c_str(), prefix.size()) == 0) {
      names.emplace_back(entry->d_name);
    }
  }
  return names;
}

std::string NamePrefix(const char* format, uint64_t value) {
  char tree[32];
  std::snprintf(tree, sizeof(tree), format, value);
  return "paddle-" + std::to_string(geteuid()) + "-" + tree;
}

}  // namespace

void SharedMemoryTestCase::SetUp() {
  // The process number comes first, so that Files() finds the program's files.
  static uint16_t number = 0;
  test_tree = static_cast<uint64_t>(getpid()) << 32 |
              static_cast<uint64_t>(++number) << 16;
}

void SharedMemoryTestCase::TearDown() {
  for (const std::string& name : Files()) {
    ADD_FAILURE() << "The test left /dev/shm/" << name << ".";
    unlink(("/dev/shm/" + name).c_str());
  }
}

uint64_t TreeId(int other) {
  return test_tree + (static_cast<uint64_t>(other) << 4);
}

std::vector<std::string> Files() {
  return FilesWith(NamePrefix("%08" PRIx64, test_tree >> 32));
}

std::vector<std::string> FilesOf(uint64_t tree) {
  return FilesWith(NamePrefix("%016" PRIx64 "-", tree));
}

bool Eventually(const std::function<bool()>& condition) {
  auto deadline = std::chrono::steady_clock::now() + kLong;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

}  // namespace shared_memory_test
