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

// Tests of Python threads that work without the GIL. They access plain memory
// without atomics, so that the thread sanitizer detects missing ordering.

#include "paddle/fluid/pybind/work_without_gil.h"

#include <array>
#include <chrono>
#include <functional>
#include <future>
#include <stdexcept>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace {

using paddle::pybind::WorkWithoutGil;

constexpr int kThreads = 4;
constexpr int kRounds = 2000;

class Gil {
 public:
  Gil() : state_(PyGILState_Ensure()) {}
  Gil(const Gil&) = delete;
  Gil& operator=(const Gil&) = delete;
  ~Gil() { PyGILState_Release(state_); }

 private:
  const PyGILState_STATE state_;
};

class Interpreter : public ::testing::Environment {
 public:
  void SetUp() override {
    Py_Initialize();
    thread_ = PyEval_SaveThread();
  }
  void TearDown() override {
    PyEval_RestoreThread(thread_);
    Py_Finalize();
  }

 private:
  PyThreadState* thread_ = nullptr;
};

const auto* const interpreter =
    ::testing::AddGlobalTestEnvironment(new Interpreter);  // NOLINT

// Calls each function on its own Python thread, with the GIL.
void InThreads(const std::vector<std::function<void()>>& functions) {
  std::vector<std::thread> threads;
  for (const auto& function : functions) {
    threads.emplace_back([&function] {
      const Gil gil;
      function();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Waits without the GIL. Returns whether another thread sets the promise in
// time.
bool Wait(std::promise<void>* promise) {
  return WorkWithoutGil::Wait([&] {
    return promise->get_future().wait_for(std::chrono::minutes(1)) ==
           std::future_status::ready;
  });
}

TEST(WorkWithoutGilTest, ThreadsWorkConcurrently) {
  std::array<std::promise<void>, 2> began;
  const auto work = [&](int mine) {
    WorkWithoutGil::Run([&] {
      began[mine].set_value();
      EXPECT_EQ(began[1 - mine].get_future().wait_for(std::chrono::minutes(1)),
                std::future_status::ready);
    });
  };
  InThreads({[&] { work(0); }, [&] { work(1); }});
}

TEST(WorkWithoutGilTest, ErrorsReachTheCallerWithTheGil) {
  InThreads({[] {
    const auto fail = [] { throw std::runtime_error("of the work"); };
    for (int round = 0; round < 2; ++round) {
      EXPECT_THROW(WorkWithoutGil::Run(fail), std::runtime_error);
      EXPECT_THROW(static_cast<void>(WorkWithoutGil::RunInTurn(fail)),
                   std::runtime_error);
      EXPECT_EQ(PyGILState_Check(), 1);
    }
  }});
}

TEST(WorkWithoutGilTest, RunInTurnSerializesWork) {
  int calls = 0;
  const auto work = [&] {
    for (int round = 0; round < kRounds; ++round) {
      EXPECT_TRUE(WorkWithoutGil::RunInTurn([&] { ++calls; }));
    }
  };
  InThreads(std::vector<std::function<void()>>(kThreads, work));
  EXPECT_EQ(calls, kThreads * kRounds);
}

TEST(WorkWithoutGilTest, RunInTurnWithGilIsSerializedToo) {
  int calls = 0;
  const auto work = [&] {
    for (int round = 0; round < kRounds; ++round) {
      EXPECT_TRUE(WorkWithoutGil::RunInTurn([&] { ++calls; }));
      WorkWithoutGil::RunInTurnWithGil([&] {
        EXPECT_EQ(PyGILState_Check(), 1);
        ++calls;
      });
    }
  };
  InThreads(std::vector<std::function<void()>>(kThreads, work));
  EXPECT_EQ(calls, 2 * kThreads * kRounds);
}

TEST(WorkWithoutGilTest, TurnsMayBeNested) {
  int calls = 0;
  const auto work = [&] {
    for (int round = 0; round < kRounds; ++round) {
      EXPECT_TRUE(WorkWithoutGil::RunInTurn([&] {
        ++calls;
        const Gil gil;
        EXPECT_TRUE(WorkWithoutGil::RunInTurn([&] { ++calls; }));
        ++calls;
      }));
    }
  };
  InThreads(std::vector<std::function<void()>>(kThreads, work));
  EXPECT_EQ(calls, 3 * kThreads * kRounds);
}

TEST(WorkWithoutGilTest, ThreadOutOfTurnMayWaitForAnotherThreadsTurn) {
  std::promise<void> entered, other_has_worked;
  int calls = 0;
  InThreads({[&] {
               EXPECT_TRUE(WorkWithoutGil::RunInTurn([&] {
                 ++calls;
                 {
                   const Gil gil;
                   const WorkWithoutGil::OutOfTurn out_of_turn;
                   entered.set_value();
                   EXPECT_TRUE(Wait(&other_has_worked));
                 }
                 ++calls;
               }));
             },
             [&] {
               EXPECT_TRUE(Wait(&entered));
               EXPECT_TRUE(WorkWithoutGil::RunInTurn([&] { ++calls; }));
               other_has_worked.set_value();
             }});
  EXPECT_EQ(calls, 3);
}

TEST(WorkWithoutGilTest, OutOfTurnReacquiresTheTurn) {
  int calls = 0;
  const auto work = [&] {
    for (int round = 0; round < kRounds; ++round) {
      EXPECT_TRUE(WorkWithoutGil::RunInTurn([&] {
        ++calls;
        {
          const Gil gil;
          const WorkWithoutGil::OutOfTurn out_of_turn;
          EXPECT_TRUE(WorkWithoutGil::RunInTurn([&] { ++calls; }));
        }
        ++calls;
      }));
    }
  };
  InThreads(std::vector<std::function<void()>>(kThreads, work));
  EXPECT_EQ(calls, 3 * kThreads * kRounds);
}

TEST(WorkWithoutGilTest, SignalEndsTheWaitWithoutLosingTheTurn) {
  int calls = 0;
  for (int round = 0; round < 3; ++round) {
    std::promise<void> has_turn, may_end;
    std::thread other([&] {
      const Gil gil;
      EXPECT_TRUE(WorkWithoutGil::RunInTurn([&] {
        ++calls;
        has_turn.set_value();
        PyErr_SetInterrupt();
        EXPECT_EQ(may_end.get_future().wait_for(std::chrono::minutes(1)),
                  std::future_status::ready);
      }));
    });
    {
      // Python calls signal handlers on this thread, which initialized the
      // interpreter.
      const Gil gil;
      EXPECT_TRUE(Wait(&has_turn));
      const auto call = [&] { ++calls; };
      EXPECT_FALSE(WorkWithoutGil::RunInTurn(call, call));
      EXPECT_NE(PyErr_ExceptionMatches(PyExc_KeyboardInterrupt), 0);
      PyErr_Clear();
      may_end.set_value();
      EXPECT_TRUE(WorkWithoutGil::RunInTurn([&] { ++calls; }));
    }
    other.join();
  }
  EXPECT_EQ(calls, 6);
}

TEST(WorkWithoutGilTest, BeginIsCalledInTheTurnWithTheGil) {
  int calls = 0;
  const auto work = [&] {
    for (int round = 0; round < kRounds; ++round) {
      int begun = 0;
      EXPECT_TRUE(WorkWithoutGil::RunInTurn(
          [&] {
            EXPECT_EQ(PyGILState_Check(), 1);
            begun = ++calls;
          },
          [&] {
            EXPECT_EQ(PyGILState_Check(), 0);
            EXPECT_EQ(++calls, begun + 1);
          }));
    }
  };
  InThreads(std::vector<std::function<void()>>(kThreads, work));
  EXPECT_EQ(calls, 2 * kThreads * kRounds);
}

TEST(WorkWithoutGilTest, ErrorInBeginEndsTheTurn) {
  int calls = 0;
  const auto fail = [] { throw std::runtime_error("of the beginning"); };
  const auto work = [&] {
    EXPECT_THROW(
        static_cast<void>(WorkWithoutGil::RunInTurn(fail, [&] { ++calls; })),
        std::runtime_error);
    EXPECT_EQ(PyGILState_Check(), 1);
  };
  InThreads({work});
  InThreads({work});
  EXPECT_EQ(calls, 0);
}

TEST(WorkWithoutGilTest, ContinueWithoutPauseHasNoEffect) {
  const auto has_gil_in_work = [] {
    int has_gil = 0;
    WorkWithoutGil::Run([&] { has_gil = PyGILState_Check(); });
    return has_gil;
  };
  InThreads({[&] {
    WorkWithoutGil::ContinueInParent();
    WorkWithoutGil::PauseForFork();
    EXPECT_EQ(has_gil_in_work(), 1);
    WorkWithoutGil::ContinueInParent();
    EXPECT_EQ(has_gil_in_work(), 0);
  }});
}

TEST(WorkWithoutGilTest, NoOtherThreadWorksBetweenPauseAndContinue) {
  // The work in progress per thread, and the number of unfinished threads.
  std::array<int, kThreads> works{};
  int working = kThreads;
  std::vector<std::function<void()>> functions;
  for (int& mine : works) {
    functions.emplace_back([&] {
      for (int round = 0; round < kRounds; ++round) {
        const auto work = [&] {
          ++mine;
          std::this_thread::yield();
          --mine;
        };
        WorkWithoutGil::Run(work);
        EXPECT_TRUE(WorkWithoutGil::RunInTurn(work));
      }
      --working;
    });
  }
  functions.emplace_back([&] {
    while (working > 0) {
      WorkWithoutGil::PauseForFork();
      for (const int work : works) EXPECT_EQ(work, 0);
      WorkWithoutGil::ContinueInParent();
      WorkWithoutGil::Wait([] {
        std::this_thread::yield();
        return 0;
      });
    }
  });
  InThreads(functions);
}

}  // namespace
