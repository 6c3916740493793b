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

// The locks and scopes by which threads run programs. What the locks protect is
// plain memory here, so that the thread sanitizer reports missing order.

#include "paddle/fluid/framework/new_executor/program_threads.h"

#include <array>
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace paddle {
namespace framework {

// Stands in for Paddle's class, of which only addresses are used.
class Scope {
 public:
  int frees = 0;
};

namespace {

using std::chrono::milliseconds;

constexpr int kThreads = 4;
constexpr int kRounds = 2000;
constexpr std::chrono::seconds kPatience{60};

void FreeVariables(Scope* scope) {
  ++scope->frees;
  ReturnScope(scope);
}

template <typename Function>
void InThreads(const Function& function) {
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) threads.emplace_back(function);
  for (std::thread& thread : threads) thread.join();
}

// Holds ProgramBuildGuard on a thread of its own until it is destroyed.
class Builder {
 public:
  Builder() {
    std::promise<void> building;
    std::future<void> has_begun = building.get_future();
    thread_ = std::thread([this, building = std::move(building)]() mutable {
      const ProgramBuildGuard guard;
      building.set_value();
      end_.get_future().wait();
    });
    has_begun.wait();
  }
  ~Builder() { End(); }
  Builder(const Builder&) = delete;
  Builder& operator=(const Builder&) = delete;

  void End() {
    if (!thread_.joinable()) return;
    end_.set_value();
    thread_.join();
  }

 private:
  std::promise<void> end_;
  std::thread thread_;
};

TEST(ProgramScopes, ScopeIsTakenOnceUntilItIsReturned) {
  const Scope scope;
  EXPECT_TRUE(TakeScope(&scope));
  EXPECT_FALSE(TakeScope(&scope));
  ReturnScope(&scope);
  EXPECT_TRUE(TakeScope(&scope));
  ReturnScope(&scope);
}

TEST(ProgramScopes, ReturningScopeThatIsNotTakenHasNoEffect) {
  const Scope scope;
  ReturnScope(&scope);
  EXPECT_TRUE(TakeScope(&scope));
  ReturnScope(&scope);
}

TEST(ProgramScopes, OneOfSeveralThreadsTakesScope) {
  std::array<Scope, 3> scopes;
  // Plain: at most one thread has the scope.
  std::array<int, 3> uses{};
  std::atomic<int> taken{0};
  InThreads([&] {
    for (int i = 0; i < kRounds; ++i) {
      for (size_t at = 0; at < scopes.size(); ++at) {
        if (!TakeScope(&scopes[at])) continue;
        ++uses[at];
        ++taken;
        ReturnScope(&scopes[at]);
      }
    }
  });
  EXPECT_EQ(uses[0] + uses[1] + uses[2], taken);
}

TEST(ProgramScopes, ThreadsBeginRunsAndCheckScopesConcurrently) {
  Scope shared;
  InThreads([&shared] {
    Scope scope;
    for (int i = 0; i < kRounds; ++i) {
      EXPECT_TRUE(TakeScope(&scope));
      EXPECT_TRUE(IsTakenBeforeRun(&scope));
      { const ProgramRun run(&scope, &FreeVariables); }
      EXPECT_FALSE(IsTakenBeforeRun(&scope));
      ReturnScope(&scope);
      IsTakenBeforeRun(&shared);
    }
  });
}

TEST(ProgramRun, RunThatEndsKeepsItsScope) {
  Scope scope;
  ASSERT_TRUE(TakeScope(&scope));
  EXPECT_TRUE(IsTakenBeforeRun(&scope));
  { const ProgramRun run(&scope, &FreeVariables); }
  EXPECT_FALSE(IsTakenBeforeRun(&scope));
  EXPECT_EQ(scope.frees, 0);
  EXPECT_FALSE(TakeScope(&scope));
  ReturnScope(&scope);
}

TEST(ProgramRun, RunThatThrowsFreesItsScope) {
  Scope scope;
  ASSERT_TRUE(TakeScope(&scope));
  const auto run_and_throw = [&] {
    const ProgramRun run(&scope, &FreeVariables);
    throw std::runtime_error("failed run");
  };
  EXPECT_THROW(run_and_throw(), std::runtime_error);
  EXPECT_EQ(scope.frees, 1);
  EXPECT_TRUE(TakeScope(&scope));
  ReturnScope(&scope);
}

TEST(ProgramRun, RunThatEndsWhileAnExceptionUnwindsKeepsItsScope) {
  static Scope scope;
  struct RunsWhenDestroyed {
    ~RunsWhenDestroyed() { const ProgramRun run(&scope, &FreeVariables); }
  };
  const auto run_and_throw = [] {
    const RunsWhenDestroyed runs;
    throw std::runtime_error("unrelated");
  };
  ASSERT_TRUE(TakeScope(&scope));
  EXPECT_THROW(run_and_throw(), std::runtime_error);
  EXPECT_EQ(scope.frees, 0);
  ReturnScope(&scope);
}

TEST(ProgramRun, ScopeThatWasNotTakenStaysAvailable) {
  Scope scope;
  { const ProgramRun run(&scope, &FreeVariables); }
  EXPECT_TRUE(TakeScope(&scope));
  ReturnScope(&scope);
}

TEST(BackwardRun, IsFirstOnce) {
  const auto executed = std::make_shared<bool>(false);
  {
    const BackwardRun run(executed);
    EXPECT_TRUE(run.IsFirst());
    *executed = true;
  }
  EXPECT_FALSE(BackwardRun(executed).IsFirst());
}

TEST(BackwardRun, RunThatThrewIsNotARun) {
  const auto executed = std::make_shared<bool>(false);
  EXPECT_TRUE(BackwardRun(executed).IsFirst());
  EXPECT_TRUE(BackwardRun(executed).IsFirst());
}

TEST(BackwardRun, NoneIsFirstWhileAnotherIsUnderWay) {
  const auto executed = std::make_shared<bool>(false);
  const BackwardRun run(executed);
  EXPECT_FALSE(BackwardRun(executed).IsFirst());
  EXPECT_FALSE(BackwardRun(executed).IsFirst());
  EXPECT_TRUE(BackwardRun(std::make_shared<bool>(false)).IsFirst());
}

TEST(BackwardRun, OneOfSeveralThreadsIsFirst) {
  for (int round = 0; round < kRounds / 10; ++round) {
    const auto executed = std::make_shared<bool>(false);
    std::atomic<int> first{0};
    InThreads([&] {
      const BackwardRun run(executed);
      if (!run.IsFirst()) return;
      ++first;
      *executed = true;
    });
    EXPECT_EQ(first, 1);
  }
}

TEST(InterpreterMapGuard, OneThreadAtATimeUsesTheMap) {
  int uses = 0;
  InThreads([&] {
    for (int i = 0; i < kRounds; ++i) {
      const InterpreterMapGuard guard;
      ++uses;
    }
  });
  EXPECT_EQ(uses, kThreads * kRounds);
}

TEST(ProgramBuildGuard, OneThreadAtATimeBuilds) {
  int builds = 0;
  InThreads([&] {
    for (int i = 0; i < kRounds; ++i) {
      const ProgramBuildGuard guard;
      const ProgramBuildGuard nested;
      ++builds;
    }
  });
  EXPECT_EQ(builds, kThreads * kRounds);
}

TEST(ProgramBuildGuard, EndOfANestedGuardKeepsTheLock) {
  const ProgramBuildGuard guard;
  { const ProgramBuildGuard nested; }
  std::thread([] {
    LockBuilding(milliseconds(1));
    EXPECT_FALSE(UnlockBuilding());
  }).join();
}

TEST(ProgramBuildGuard, WaitsByTheFunctionThatWasSet) {
  static std::promise<void>* waiting = nullptr;
  std::promise<void> has_waited;
  waiting = &has_waited;
  SetWaitForBuilder([](std::timed_mutex* mutex) {
    waiting->set_value();
    mutex->lock();
  });
  {
    Builder builder;
    std::thread second([] { const ProgramBuildGuard guard; });
    EXPECT_EQ(has_waited.get_future().wait_for(kPatience),
              std::future_status::ready);
    builder.End();
    second.join();
  }
  SetWaitForBuilder([](std::timed_mutex* mutex) { mutex->lock(); });
}

}  // namespace
}  // namespace framework
}  // namespace paddle
