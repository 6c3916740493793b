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

#include <Python.h>

#include <exception>
#include <utility>

#include "paddle/fluid/pybind/take_gil.h"

namespace paddle {
namespace pybind {

// C++ work for which a thread has released the GIL.
//
// In Paddle 3.3.0 such work holds the GIL, so no fork and no exit of the
// interpreter can occur during it. Otherwise a child would inherit locks held
// by threads that it does not have, and an exiting process would destroy
// objects that are in use. Here a fork and the exit wait for the work instead,
// which takes as long as waiting for the GIL.
class WorkWithoutGil {
 public:
  // Calls `function` without the GIL. Keeps the GIL, however, while a thread
  // forks and after the interpreter has begun to exit. Rethrows exceptions of
  // `function`, with the GIL held. May never return at exit: see
  // `FinishAtExit`.
  //
  // Thread-safe. Requires: the GIL; `function` acquires it to call Python.
  template <typename Function>
  static void Run(Function&& function) {
    std::exception_ptr error;
    {
      WorkWithoutGil work;
      try {
        function();
#if defined(__GLIBCXX__)
      } catch (abi::__forced_unwind&) {
        // CPython ended the thread in a call, since the interpreter has exited.
        StopThread();
#endif
      } catch (...) {
        error = std::current_exception();
      }
    }
    if (error) std::rethrow_exception(error);
  }

  // Calls `function`, which only waits, without the GIL, and returns its
  // result. A fork and the exit do not wait for it. Requires: the GIL;
  // `function` does not throw.
  template <typename Function>
  static auto Wait(Function&& function) {
    const ReleasedGil released;
    return function();
  }

  // Waits until no other thread runs C++ code of such work. A thread whose work
  // is currently in Python does not count. Until the same thread calls
  // `ContinueInParent` or `ContinueInChild`, new work keeps the GIL, so the
  // fork does not occur during it. New work does not wait instead, because
  // other fork handlers may wait for the working thread. Requires: the GIL.
  // Has no effect on a thread that has paused work already: it does not wait
  // again, since it may hold locks by then.
  //
  // If these handlers are registered while a fork already runs its handlers,
  // that fork calls only the `Continue` functions, which then have no effect.
  static void PauseForFork();
  static void ContinueInParent();
  static void ContinueInChild();

  // Waits like `PauseForFork`. After that, all work keeps the GIL. Once
  // `is_over` returns true, work on other threads than the calling one never
  // begins: those threads release the GIL and stop for ever, as CPython's
  // daemon threads do at the end of the exit. They keep what they hold, such as
  // a predictor. So later exit handlers must not wait for that.
  //
  // Requires: the GIL. `is_over` is called with the GIL and calls no Python.
  static void FinishAtExit(bool (*is_over)());

  WorkWithoutGil(const WorkWithoutGil&) = delete;
  WorkWithoutGil& operator=(const WorkWithoutGil&) = delete;

 private:
  // Releases the GIL, unless a thread forks or the interpreter exits.
  WorkWithoutGil();
  // Acquires the GIL if it was released.
  ~WorkWithoutGil();

  // Returns whether a thread other than `thread` works in C++.
  static bool OthersWork(const PyThreadState* thread);
  static void WaitForOthers();

  PyThreadState* const thread_;
  // The number of calls from C++ to Python that the thread was in at the start.
  const int python_calls_;
  const bool keeps_gil_;
};

}  // namespace pybind
}  // namespace paddle
