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

#include "gtest/gtest.h"

// GoogleTest tests that each run in their own process, since they change state
// that exists once per process. The process that runs all tests forks one child
// per test and takes the child's exit status as the result. A signal ends a
// test that hangs.
namespace isolated_test {

// Defines a test as TEST_F does; the child process runs its body.
#define ISOLATED_TEST(fixture, name)                           \
  void name();                                                 \
  TEST_F(fixture, name) { ::isolated_test::RunInChild(name); } \
  void name()

// ASSERT_TRUE and ASSERT_EQ for functions that return a value and for
// constructors, where GoogleTest's own do not compile.
#define REQUIRE_TRUE(condition) [&] { ASSERT_TRUE(condition); }()
#define REQUIRE_EQ(left, right) [&] { ASSERT_EQ(left, right); }()

// The exception that a failed ASSERT_ throws in a child process, so that it
// ends the test from any function that the test calls. The failure has already
// been reported.
class AssertionFailed : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

void RunInChild(const std::function<void()>& body);

// Runs the body in this process, which is a child of a test process, and
// returns the exit status: success if the body returns and nothing has failed
// in this process, and a status of its own if GTEST_SKIP has ended the body.
int RunToExitStatus(const std::function<void()>& body);

// Returns whether an expectation of this process has failed. Failures in its
// parent before the fork do not count.
bool HasFailureHere();

// The seed of all random choices: the same seed leads to the same choices. It
// is SHARED_MEMORY_SEED, or chosen at random and printed.
uint64_t Seed();

}  // namespace isolated_test
