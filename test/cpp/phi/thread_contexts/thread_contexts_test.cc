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

#include "paddle/phi/backends/thread_contexts.h"

#include <atomic>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "paddle/phi/backends/cpu/cpu_context.h"
#include "test/cpp/isolated_test.h"

namespace {

class ThreadContextsTest : public ::testing::Test {};

using Context = std::shared_ptr<phi::DeviceContext>;

constexpr int kDevices = 32;
constexpr int kThreads = 4;
constexpr int kRounds = 20000;

thread_local bool is_python_thread = true;

bool IsPythonThread() { return is_python_thread; }

phi::Place Device(int id) { return phi::CustomPlace("test", id); }

// The type of context does not matter: the tests only compare pointers.
Context NewContext() {
  return std::make_shared<phi::CPUContext>(phi::CPUPlace());
}

template <typename Body>
void OnThread(const Body& body) {
  std::thread(body).join();
}

ISOLATED_TEST(ThreadContextsTest, AThreadsOwnContextIsFoundOnlyOnThatThread) {
  const phi::ThreadContexts own = {{Device(0), NewContext()}};
  phi::UseThreadContexts(&own);
  EXPECT_EQ(phi::FindThreadContext(Device(0)), own.at(Device(0)).get());
  EXPECT_EQ(phi::FindThreadContext(Device(1)), nullptr);
  OnThread([] { EXPECT_EQ(phi::FindThreadContext(Device(0)), nullptr); });
  phi::UseThreadContexts(nullptr);
  EXPECT_EQ(phi::FindThreadContext(Device(0)), nullptr);
}

ISOLATED_TEST(ThreadContextsTest,
              PythonThreadsFindADefaultContextAndTheMainThreadDoesNot) {
  const Context kept = NewContext();
  phi::BecomeMainThread();
  phi::KeepDefaultContext(Device(0), kept, IsPythonThread);
  EXPECT_EQ(phi::FindThreadContext(Device(0)), nullptr);
  OnThread([&] {
    EXPECT_EQ(phi::FindThreadContext(Device(0)), kept.get());
    EXPECT_EQ(phi::FindThreadContext(Device(1)), nullptr);
  });
  OnThread([] {
    is_python_thread = false;
    EXPECT_EQ(phi::FindThreadContext(Device(0)), nullptr);
  });
}

ISOLATED_TEST(ThreadContextsTest, AThreadsOwnContextPrecedesTheDefaultContext) {
  phi::BecomeMainThread();
  phi::KeepDefaultContext(Device(0), NewContext(), IsPythonThread);
  OnThread([] {
    const phi::ThreadContexts own = {{Device(0), NewContext()}};
    phi::UseThreadContexts(&own);
    EXPECT_EQ(phi::FindThreadContext(Device(0)), own.at(Device(0)).get());
    phi::UseThreadContexts(nullptr);
  });
}

ISOLATED_TEST(ThreadContextsTest, AWorkerFindsTheContextsOfItsCreator) {
  const Context kept = NewContext();
  const phi::ThreadContexts own = {{Device(0), NewContext()}};
  phi::UseThreadContexts(&own);
  const auto of_creator = phi::WorkerContexts();
  phi::UseThreadContexts(nullptr);
  OnThread([&] {
    is_python_thread = false;
    {
      const phi::WorkerContextsGuard guard(of_creator.get());
      EXPECT_EQ(phi::FindThreadContext(Device(0)), own.at(Device(0)).get());
      EXPECT_EQ(phi::FindThreadContext(Device(1)), nullptr);
      phi::KeepDefaultContext(Device(1), kept, IsPythonThread);
      EXPECT_EQ(phi::FindThreadContext(Device(1)), kept.get());
    }
    EXPECT_EQ(phi::FindThreadContext(Device(0)), nullptr);
    EXPECT_EQ(phi::FindThreadContext(Device(1)), nullptr);
  });
}

ISOLATED_TEST(ThreadContextsTest, WorkersInsideAProcessContextsGuardHaveNone) {
  const phi::ThreadContexts own = {{Device(0), NewContext()}};
  phi::UseThreadContexts(&own);
  const phi::ProcessContextsGuard guard;
  EXPECT_EQ(phi::WorkerContexts(), nullptr);
}

ISOLATED_TEST(ThreadContextsTest, WorkersOfACppThreadHaveNoContexts) {
  phi::KeepDefaultContext(Device(0), NewContext(), IsPythonThread);
  OnThread([] {
    is_python_thread = false;
    EXPECT_EQ(phi::WorkerContexts(), nullptr);
  });
}

ISOLATED_TEST(ThreadContextsTest, AWorkerOfTheMainThreadUsesTheProcessContext) {
  phi::BecomeMainThread();
  phi::KeepDefaultContext(Device(0), NewContext(), IsPythonThread);
  const auto of_creator = phi::WorkerContexts();
  OnThread([&] {
    is_python_thread = false;
    const phi::WorkerContextsGuard guard(of_creator.get());
    EXPECT_EQ(phi::FindThreadContext(Device(0)), nullptr);
  });
}

ISOLATED_TEST(ThreadContextsTest, AProcessContextsGuardHidesAllOtherContexts) {
  phi::BecomeMainThread();
  phi::KeepDefaultContext(Device(1), NewContext(), IsPythonThread);
  OnThread([] {
    const phi::ThreadContexts own = {{Device(0), NewContext()}};
    phi::UseThreadContexts(&own);
    {
      const phi::ProcessContextsGuard outer;
      { const phi::ProcessContextsGuard inner; }
      EXPECT_EQ(phi::FindThreadContext(Device(0)), nullptr);
      EXPECT_EQ(phi::FindThreadContext(Device(1)), nullptr);
      EXPECT_EQ(phi::FindThreadAllocator(Device(0)), nullptr);
    }
    EXPECT_EQ(phi::FindThreadContext(Device(0)), own.at(Device(0)).get());
    phi::UseThreadContexts(nullptr);
  });
}

ISOLATED_TEST(ThreadContextsTest,
              OnlyTheContextsOfAnOrderedGuardAreFoundInsideIt) {
  const phi::ThreadContexts own = {{Device(0), NewContext()}};
  const Context host = NewContext();
  phi::UseThreadContexts(&own);
  phi::UseHostContext(host.get());
  {
    const phi::OrderedContextsGuard guard(phi::CurrentContexts());
    phi::UseThreadContexts(nullptr);
    EXPECT_EQ(phi::FindThreadContext(Device(0)), own.at(Device(0)).get());
    EXPECT_EQ(phi::FindThreadContext(Device(1)), nullptr);
    EXPECT_EQ(phi::FindThreadContext(phi::CPUPlace()), nullptr);
    {
      const phi::ProcessContextsGuard inner;
      EXPECT_EQ(phi::FindThreadContext(Device(0)), nullptr);
    }
    EXPECT_EQ(phi::CurrentContexts(), own);
  }
  EXPECT_EQ(phi::FindThreadContext(Device(0)), nullptr);
  EXPECT_EQ(phi::FindThreadContext(phi::CPUPlace()), host.get());
  phi::UseHostContext(nullptr);
}

ISOLATED_TEST(ThreadContextsTest,
              GuardsThatOverrideLookupsHideOnlyOlderThreadContextGuards) {
  const auto make = [] { return std::make_shared<phi::CPUContext>(Device(0)); };
  const auto found = [] { return phi::FindThreadContext(Device(0)); };
  const Context first = make(), second = make(), third = make();
  const phi::ThreadContextGuard outer(first);
  {
    const phi::ProcessContextsGuard process;
    EXPECT_EQ(found(), nullptr);
    EXPECT_TRUE(phi::CurrentContexts().empty());
    const phi::ThreadContextGuard inside_process(second);
    EXPECT_EQ(found(), second.get());
    {
      const phi::OrderedContextsGuard ordered(phi::CurrentContexts());
      {
        const phi::ThreadContextGuard inside_ordered(third);
        EXPECT_EQ(found(), third.get());
        EXPECT_EQ(phi::CurrentContexts(),
                  (phi::ThreadContexts{{Device(0), third}}));
      }
      EXPECT_EQ(found(), second.get());
    }
    EXPECT_EQ(found(), second.get());
  }
  EXPECT_EQ(found(), first.get());
}

ISOLATED_TEST(ThreadContextsTest,
              GuardsOlderThanAHiddenOneStayHiddenAfterThatOneEnds) {
  const auto make = [] { return std::make_shared<phi::CPUContext>(Device(0)); };
  const phi::ThreadContextGuard oldest(make());
  auto hidden = std::make_unique<phi::ThreadContextGuard>(make());
  const phi::ProcessContextsGuard process;
  hidden = nullptr;
  EXPECT_EQ(phi::FindThreadContext(Device(0)), nullptr);
  EXPECT_TRUE(phi::CurrentContexts().empty());
}

ISOLATED_TEST(ThreadContextsTest,
              AHiddenThreadContextGuardCanBeReplacedInsideTheOverride) {
  const auto make = [] { return std::make_shared<phi::CPUContext>(Device(0)); };
  auto outer = std::make_unique<phi::ThreadContextGuard>(make());
  const Context inside = make();
  {
    const phi::ProcessContextsGuard process;
    outer = std::make_unique<phi::ThreadContextGuard>(inside);
    EXPECT_EQ(phi::FindThreadContext(Device(0)), inside.get());
  }
  EXPECT_EQ(phi::FindThreadContext(Device(0)), inside.get());
  outer.reset();
  EXPECT_EQ(phi::FindThreadContext(Device(0)), nullptr);
}

ISOLATED_TEST(ThreadContextsTest,
              AThreadsOwnHostContextIsFoundOnlyOnThatThread) {
  const Context host = NewContext();
  phi::UseHostContext(host.get());
  EXPECT_EQ(phi::FindThreadContext(phi::CPUPlace()), host.get());
  EXPECT_EQ(phi::FindThreadContext(Device(0)), nullptr);
  OnThread([] { EXPECT_EQ(phi::FindThreadContext(phi::CPUPlace()), nullptr); });
  {
    const phi::ProcessContextsGuard guard;
    EXPECT_EQ(phi::FindThreadContext(phi::CPUPlace()), nullptr);
  }
  phi::UseHostContext(nullptr);
  EXPECT_EQ(phi::FindThreadContext(phi::CPUPlace()), nullptr);
}

ISOLATED_TEST(ThreadContextsTest,
              TheNewestGuardDecidesWhichHostContextIsFound) {
  const auto found = [] { return phi::FindThreadContext(phi::CPUPlace()); };
  const Context own = NewContext();
  const Context guarded = NewContext();
  const phi::ThreadContexts devices = {{Device(0), NewContext()}};
  phi::UseHostContext(own.get());
  phi::UseThreadContexts(&devices);
  {
    const phi::OrderedContextsGuard contexts(devices);
    const phi::HostContextGuard guard(guarded.get());
    EXPECT_EQ(found(), guarded.get());
    EXPECT_EQ(phi::FindThreadContext(Device(0)), devices.at(Device(0)).get());
    OnThread([&] { EXPECT_EQ(found(), nullptr); });
    {
      const phi::HostContextGuard none(nullptr);
      EXPECT_EQ(found(), nullptr);
    }
    {
      const phi::ProcessContextsGuard process;
      EXPECT_EQ(found(), nullptr);
    }
    {
      const phi::OrderedContextsGuard inner(devices);
      EXPECT_EQ(found(), nullptr);
    }
    EXPECT_EQ(found(), guarded.get());
  }
  EXPECT_EQ(found(), own.get());
  phi::UseThreadContexts(nullptr);
  phi::UseHostContext(nullptr);
}

ISOLATED_TEST(ThreadContextsTest,
              ThreadsLookUpContextsWhileDefaultContextsAreAdded) {
  std::vector<Context> kept;
  for (int id = 0; id < kDevices; ++id) kept.push_back(NewContext());
  std::atomic<int> ready{0};  // The contexts below this index are kept.
  // The first place of a device type registers the type, without a lock.
  Device(0);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      std::mt19937_64 random(isolated_test::Seed() + i);
      const phi::ThreadContexts own = {{Device(0), NewContext()}};
      for (int round = 0; round < kRounds; ++round) {
        const bool sets_own = random() % 2 == 0;
        phi::UseThreadContexts(sets_own ? &own : nullptr);
        const int known = ready;
        const int id = static_cast<int>(random() % kDevices);
        const auto* found = phi::FindThreadContext(Device(id));
        if (sets_own && id == 0) {
          EXPECT_EQ(found, own.at(Device(0)).get());
        } else {
          EXPECT_TRUE(found == kept[id].get() ||
                      (found == nullptr && id >= known));
        }
      }
      phi::UseThreadContexts(nullptr);
    });
  }
  phi::BecomeMainThread();
  for (int id = 0; id < kDevices; ++id) {
    phi::KeepDefaultContext(Device(id), kept[id], IsPythonThread);
    ready = id + 1;
    EXPECT_EQ(phi::FindThreadContext(Device(id)), nullptr);
    std::this_thread::yield();
  }
  for (auto& thread : threads) thread.join();
}

}  // namespace
