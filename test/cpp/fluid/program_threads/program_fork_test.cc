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

// A process that forks while its threads build and run programs.

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <thread>

#include "gtest/gtest.h"
#include "paddle/fluid/framework/new_executor/program_threads.h"

namespace paddle {
namespace framework {

// Stands in for Paddle's class, of which only addresses are used.
class Scope {};

namespace {

using std::chrono::milliseconds;

constexpr std::chrono::seconds kPatience{60};
constexpr int kForks = 200;

// Runs a function in a child and returns whether it returned true. A child that
// hangs is killed by its alarm.
template <typename Function>
bool IsTrueInChild(const Function& function) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(30);
    _exit(function() ? 0 : 1);
  }
  int status = -1;
  return waitpid(child, &status, 0) == child && status == 0;
}

// Calls a function on another thread again and again until destroyed.
class Loop {
 public:
  template <typename Function>
  explicit Loop(const Function& function)
      : thread_([this, function] {
          while (!end_) function();
        }) {}
  ~Loop() {
    end_ = true;
    thread_.join();
  }
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

 private:
  std::atomic<bool> end_{false};
  std::thread thread_;
};

// Builds on another thread until destroyed.
class Builder {
 public:
  Builder() {
    std::promise<void> has_begun;
    thread_ = std::thread([this, &has_begun] {
      const ProgramBuildGuard guard;
      has_begun.set_value();
      end_.get_future().wait();
    });
    has_begun.get_future().wait();
  }
  ~Builder() {
    end_.set_value();
    thread_.join();
  }
  Builder(const Builder&) = delete;
  Builder& operator=(const Builder&) = delete;

 private:
  std::promise<void> end_;
  std::thread thread_;
};

bool Builds() {
  const ProgramBuildGuard guard;
  return true;
}

TEST(ProgramFork, NobodyBuildsWhileBuildingIsLocked) {
  LockBuilding(kPatience);
  std::atomic<bool> has_built{false};
  std::thread builder([&] { has_built = Builds(); });
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_FALSE(has_built);
  EXPECT_TRUE(UnlockBuilding());
  builder.join();
  EXPECT_TRUE(has_built);
}

TEST(ProgramFork, LockingHasNoEffectOnTheBuildingThread) {
  const ProgramBuildGuard guard;
  LockBuilding(kPatience);
  EXPECT_TRUE(UnlockBuilding());
}

TEST(ProgramFork, LockingTellsWhetherBuildingIsLocked) {
  {
    const Builder builder;
    EXPECT_FALSE(LockBuilding(milliseconds(1)));
  }
  EXPECT_TRUE(LockBuilding(milliseconds(1)));
  EXPECT_TRUE(UnlockBuilding());
}

TEST(ProgramFork, BuildingIsUnlockedOnce) {
  EXPECT_TRUE(LockBuilding(kPatience));
  EXPECT_TRUE(UnlockBuilding());
  EXPECT_FALSE(UnlockBuilding());
}

TEST(ProgramFork, OnlyTheThreadThatLockedBuildingUnlocksIt) {
  LockBuilding(kPatience);
  std::thread([] { EXPECT_FALSE(UnlockBuilding()); }).join();
  EXPECT_TRUE(UnlockBuilding());
}

TEST(ProgramFork, TheBuildingThreadKeepsItsLock) {
  const ProgramBuildGuard guard;
  ReplaceBuildingLock();
  std::thread([] {
    LockBuilding(milliseconds(1));
    EXPECT_FALSE(UnlockBuilding());
  }).join();
}

TEST(ProgramFork, ChildBuildsAfterALockedFork) {
  const Loop builds(Builds);
  for (int i = 0; i < kForks; ++i) {
    LockBuilding(kPatience);
    EXPECT_TRUE(IsTrueInChild([] { return UnlockBuilding() && Builds(); }));
    EXPECT_TRUE(UnlockBuilding());
  }
}

TEST(ProgramFork, ChildBuildsWithANewLockIfAThreadBuildsForTooLong) {
  const Builder builder;
  LockBuilding(milliseconds(1));
  EXPECT_TRUE(IsTrueInChild([] {
    if (UnlockBuilding()) return false;
    ReplaceBuildingLock();
    return Builds();
  }));
  EXPECT_FALSE(UnlockBuilding());
}

TEST(ProgramFork, ChildOfABusyProcessUsesTheMapAndTheScopes) {
  const Scope scope, scope_of_child;
  const Loop lookups([] { const InterpreterMapGuard guard; });
  const Loop runs([&scope] {
    TakeScope(&scope);
    ReturnScope(&scope);
  });
  for (int i = 0; i < kForks; ++i) {
    EXPECT_TRUE(IsTrueInChild([&scope_of_child] {
      const InterpreterMapGuard guard;
      return TakeScope(&scope_of_child);
    }));
  }
}

}  // namespace
}  // namespace framework
}  // namespace paddle
