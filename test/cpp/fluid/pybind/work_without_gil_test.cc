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
      EXPECT_EQ(PyGILState_Check(), 1);
    }
  }});
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

TEST(WorkWithoutGilTest, ASecondPauseOfTheThreadHasNoEffect) {
  InThreads({[] {
    WorkWithoutGil::PauseForFork();
    WorkWithoutGil::PauseForFork();
    WorkWithoutGil::ContinueInParent();
    WorkWithoutGil::Run([] { EXPECT_EQ(PyGILState_Check(), 0); });
  }});
}

// Whether the kernels of a Paddle that exits are gone, and how often that was
// asked. Protected by the GIL.
bool is_over = false;
int asked = 0;

TEST(WorkWithoutGilTest, AtExitOnlyTheExitingThreadWorksOnceAllIsOver) {
  // Of threads that never end.
  static int began = 0;
  const auto work_in_other_thread = [] {
    std::thread([] {
      const Gil gil;
      WorkWithoutGil::Run([] { ++began; });
    }).detach();
  };
  const auto wait_until = [](const int& count, int value) {
    while (count < value) {
      WorkWithoutGil::Wait([] {
        std::this_thread::yield();
        return 0;
      });
    }
  };
  InThreads({[&] {
    WorkWithoutGil::FinishAtExit([] {
      ++asked;
      return is_over;
    });
    work_in_other_thread();
    wait_until(began, 1);
    is_over = true;
    const int asked_before = asked;
    work_in_other_thread();
    // The other thread has the GIL from this question until it stops.
    wait_until(asked, asked_before + 1);
    EXPECT_EQ(began, 1);
    bool works = false;
    WorkWithoutGil::Run([&] { works = true; });
    EXPECT_TRUE(works);
    // The next tests are not in an exiting process.
    WorkWithoutGil::ContinueInChild();
    WorkWithoutGil::Run([] { EXPECT_EQ(PyGILState_Check(), 0); });
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
        WorkWithoutGil::Run([&] {
          ++mine;
          std::this_thread::yield();
          --mine;
        });
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
