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
#include <stdexcept>
#include <string>
#include <vector>

// A small test framework. Each test runs in a process of its own, since a
// process has one heap; a file that it leaves in /dev/shm fails it.
namespace shared_memory_test {

// A check that fails does not end its test, which might yet have to let other
// threads or processes go on.
#define CHECK(condition) \
  ::shared_memory_test::Check(condition, __FILE__, __LINE__, #condition)

// A check without which the rest of a test makes no sense: it ends the test.
#define REQUIRE(condition)                                                 \
  do {                                                                     \
    if (!(condition)) {                                                    \
      throw ::shared_memory_test::Failure(__FILE__, __LINE__, #condition); \
    }                                                                      \
  } while (false)

#define TEST(name)                                                          \
  void name();                                                              \
  const ::shared_memory_test::Registration name##Registration(#name, name); \
  void name()

class Failure : public std::runtime_error {
 public:
  Failure(const char* file, int line, const std::string& condition)
      : std::runtime_error(std::string(file) + ":" + std::to_string(line) +
                           ": " + condition + " does not hold") {}
};

struct Registration {
  Registration(const std::string& name, const std::function<void()>& run);
};

void Check(bool holds, const char* file, int line, const char* condition);

// Returns whether all checks of this process have held so far.
bool ChecksHold();

// Runs a body, prints what it throws and returns the exit status for it.
int Outcome(const std::function<void()>& body);

// The seed of all random choices: the same seed leads to the same choices.
uint64_t Seed();

// Of the test that runs, the family of processes; `other` ones are unrelated.
uint64_t Family(int other = 0);

// The names of the files that processes of the test have in /dev/shm.
std::vector<std::string> Files();
std::vector<std::string> FilesOf(uint64_t family);

// Returns whether the condition becomes true before long.
bool Eventually(const std::function<bool()>& condition);

}  // namespace shared_memory_test
