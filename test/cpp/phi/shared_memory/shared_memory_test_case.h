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
#include <functional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "test/cpp/isolated_test.h"

namespace shared_memory_test {

using isolated_test::Seed;

// Each test runs in its own process, since there is one heap per process. A
// test that leaves a file in /dev/shm fails.
class SharedMemoryTestCase : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;
};

// Returns the process tree of the current test's processes. Other values of
// `other` give unrelated process trees.
uint64_t TreeId(int other = 0);

// Return the names of the files in /dev/shm that belong to processes of the
// test, or to a process tree.
std::vector<std::string> Files();
std::vector<std::string> FilesOf(uint64_t tree);

// Returns whether the condition becomes true before long.
bool Eventually(const std::function<bool()>& condition);

}  // namespace shared_memory_test
