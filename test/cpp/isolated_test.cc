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
#include "test/cpp/isolated_test.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <random>

namespace isolated_test {

namespace {

// Ends a test that waits forever. Other tests do not take this long, even on a
// busy machine.
constexpr unsigned kSecondsPerTest = 900;

// The exit status of a child process whose test was skipped: as for Automake.
constexpr int kSkipped = 77;

class ThrowingListener : public ::testing::EmptyTestEventListener {
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (result.fatally_failed()) throw AssertionFailed(result.message());
  }
};

// Returns the number of results (failures) that GoogleTest has recorded for the
// current test, in this process and, before the fork, in its parent.
int Reports() {
  return ::testing::UnitTest::GetInstance()
      ->current_test_info()
      ->result()
      ->total_part_count();
}

int reports_at_start = 0;

// Creates an object that GoogleTest will own: a listener or an environment.
template <typename T>
T* Owned() {
  return std::make_unique<T>().release();
}

class SeedPrinter : public ::testing::Environment {
  void SetUp() override {
    std::printf("SHARED_MEMORY_SEED=%" PRIu64 "\n", Seed());
  }
};

// Line buffering: lines of several processes are not mixed, and a fork
// duplicates no output.
const int buffering = std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
const auto* const seed_printer =
    ::testing::AddGlobalTestEnvironment(Owned<SeedPrinter>());

}  // namespace

void RunInChild(const std::function<void()>& body) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(kSecondsPerTest);
    ::testing::UnitTest::GetInstance()->listeners().Append(
        Owned<ThrowingListener>());
    std::exit(RunToExitStatus(body));
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  if (WIFSIGNALED(status)) {
    ADD_FAILURE() << "The test was ended by signal " << WTERMSIG(status) << ".";
  } else {
    const int exit_status = WEXITSTATUS(status);
    if (exit_status == kSkipped) {
      GTEST_SKIP() << "The process of the test printed why.";
    }
    EXPECT_EQ(exit_status, EXIT_SUCCESS)
        << "The test failed in its process, which printed why.";
  }
}

int RunToExitStatus(const std::function<void()>& body) {
  reports_at_start = Reports();
  try {
    body();
  } catch (const AssertionFailed&) {
    return EXIT_FAILURE;
  } catch (const std::exception& error) {
    ADD_FAILURE() << "The test threw: " << error.what();
  }
  if (::testing::Test::IsSkipped()) return kSkipped;
  return HasFailureHere() ? EXIT_FAILURE : EXIT_SUCCESS;
}

bool HasFailureHere() { return Reports() > reports_at_start; }

uint64_t Seed() {
  static const uint64_t seed = [] {
    const char* const given = std::getenv("SHARED_MEMORY_SEED");
    return given ? std::strtoull(given, nullptr, 0) : std::random_device()();
  }();
  return seed;
}

}  // namespace isolated_test

// Replaces Paddle's main, which initializes the devices: each test forks, and a
// forked child cannot use a GPU that its parent has initialized.
int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

// A race or a leak must end the program, in whichever process it is found.
extern "C" const char* __tsan_default_options();
extern "C" const char* __tsan_default_options() { return "halt_on_error=1"; }
