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

#include "testing.h"  // NOLINT(build/include_subdir)

#include <dirent.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <random>
#include <thread>

namespace shared_memory_test {

namespace {

struct Test {
  std::string name;
  std::function<void()> run;
};

std::vector<Test>& Tests() {
  static std::vector<Test> tests;
  return tests;
}

// Both end a test that hangs: no machine is so busy that another one does.
constexpr unsigned kSecondsATest = 900;
constexpr auto kLong = std::chrono::seconds(120);

// In this process.
std::atomic<int> failed_checks{0};
uint64_t seed = 0;
// Distinct for each test of each program that runs.
uint64_t test_family = 0;

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
  char family[32];
  std::snprintf(family, sizeof(family), format, value);
  return "paddle-" + std::to_string(geteuid()) + "-" + family;
}

// Ends a program that waits forever.
int RunInChild(const Test& test) {
  alarm(kSecondsATest);
  return Outcome(test.run);
}

bool Passes(const Test& test) {
  std::printf("%s\n", test.name.c_str());
  pid_t child = fork();
  if (child == 0) std::exit(RunInChild(test));
  int status = -1;
  waitpid(child, &status, 0);
  bool passes = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  if (WIFSIGNALED(status)) {
    std::printf("  ended by signal %d\n", WTERMSIG(status));
  }
  for (const std::string& name : Files()) {
    std::printf("  left /dev/shm/%s\n", name.c_str());
    unlink(("/dev/shm/" + name).c_str());
    passes = false;
  }
  if (!passes) std::printf("  FAILED\n");
  return passes;
}

bool Wanted(const std::string& name, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    if (name.find(part) != std::string::npos) return true;
  }
  return parts.empty();
}

}  // namespace

Registration::Registration(const std::string& name,
                           const std::function<void()>& run) {
  Tests().push_back({name, run});
}

void Check(bool holds, const char* file, int line, const char* condition) {
  if (holds) return;
  ++failed_checks;
  std::printf("  %s:%d: %s does not hold\n", file, line, condition);
}

bool ChecksHold() { return failed_checks == 0; }

int Outcome(const std::function<void()>& body) {
  failed_checks = 0;
  try {
    body();
  } catch (const std::exception& error) {
    std::printf("  %s\n", error.what());
    return EXIT_FAILURE;
  }
  return ChecksHold() ? EXIT_SUCCESS : EXIT_FAILURE;
}

uint64_t Seed() { return seed; }

uint64_t Family(int other) { return test_family + (uint64_t(other) << 4); }

std::vector<std::string> Files() {
  return FilesWith(NamePrefix("%08" PRIx64, test_family >> 32));
}

std::vector<std::string> FilesOf(uint64_t family) {
  return FilesWith(NamePrefix("%016" PRIx64 "-", family));
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

// A race or a leak must end the program in whichever process it shows.
extern "C" const char* __tsan_default_options();
extern "C" const char* __tsan_default_options() { return "halt_on_error=1"; }

int main(int argc, char** argv) {
  using namespace shared_memory_test;  // NOLINT(build/namespaces)
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
  const char* given = std::getenv("SHARED_MEMORY_SEED");
  seed = given ? std::strtoull(given, nullptr, 0) : std::random_device()();
  std::printf("SHARED_MEMORY_SEED=%" PRIu64 "\n", seed);
  std::vector<std::string> parts(argv + 1, argv + argc);
  test_family = static_cast<uint64_t>(getpid()) << 32;
  int passed = 0;
  int failed = 0;
  for (const Test& test : Tests()) {
    test_family += 1 << 16;
    if (Wanted(test.name, parts)) ++(Passes(test) ? passed : failed);
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
