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

#if defined(__GLIBCXX__)
#include <cxxabi.h>
#endif

namespace paddle {
namespace pybind {

// Work in C++ for which a thread has released the GIL.
//
// On Paddle 3.3.0 such work held the GIL, so that no fork and no exit of the
// interpreter came in between: a child has the locks of threads that it does
// not have, and an exiting process destroys what they use. Here a fork and the
// exit wait for the work instead, which is as long.
class WorkWithoutGil {
 public:
  // Calls `function` without the GIL, but with it while a thread forks and once
  // the interpreter has begun to exit. Rethrows what `function` throws, with
  // the GIL.
  //
  // Thread-safe. Requires: the GIL, and that `function` takes it for what it
  // does in Python.
  template <typename Function>
  static void Run(Function&& function) {
    Do(
        Turn::kNone, [] {}, function);
  }

  // As `Run`, for work that must not overlap other such work: threads call
  // `function` in turn. They wait without the GIL. Inside `function` a thread
  // may call this again.
  //
  // Returns false, with an error of Python, if the handler of a signal raised
  // one while the main thread waited. `function` was not called then.
  //
  // Requires also: where `function` calls Python code that may wait for such
  // work of another thread, it does so within `OutOfTurn`.
  template <typename Function>
  [[nodiscard]] static bool RunInTurn(Function&& function) {
    return RunInTurn([] {}, function);
  }

  // As `RunInTurn`, but calls `begin` first, in the turn and with the GIL: for
  // what must not be done if a signal ends the wait. Rethrows what `begin`
  // throws, and does not call `function` then.
  template <typename Begin, typename Function>
  [[nodiscard]] static bool RunInTurn(Begin&& begin, Function&& function) {
    return Do(Turn::kOwn, begin, function);
  }

  // As `RunInTurn`, but calls `function` with the GIL, and leaves signals for
  // later. For a thread whose state Python is destroying, which must not ask
  // for the GIL.
  template <typename Function>
  static void RunInTurnWithGil(Function&& function) {
    Do(
        Turn::kOwnWithGil, [] {}, function);
  }

  // Gives up the turn of the calling thread, if it has one, and waits for it
  // again at the end. Requires: the GIL, at both ends.
  class OutOfTurn {
   public:
    OutOfTurn();
    ~OutOfTurn();
    OutOfTurn(const OutOfTurn&) = delete;
    OutOfTurn& operator=(const OutOfTurn&) = delete;

   private:
    const WorkWithoutGil* const work_;
  };

  // Calls `function`, which only waits, without the GIL, and returns its
  // result. A fork and the exit do not wait for it. Requires: the GIL;
  // `function` does not throw.
  template <typename Function>
  static auto Wait(Function&& function) {
    PyThreadState* const thread = PyEval_SaveThread();
    const auto result = function();
    TakeGil(thread);
    return result;
  }

  // Waits until no other thread is in C++ code of such work. Until the next
  // call of `ContinueInParent` or `ContinueInChild`, on the same thread, work
  // that begins keeps the GIL, so that the fork is not in the middle of it. It
  // does not wait: other handlers of the fork may wait for the thread that
  // works. A thread that is in Python meanwhile does not count.
  // Requires: the GIL.
  //
  // A fork that has the handlers added while it calls those of others does not
  // call this, and continues all the same, which changes nothing.
  static void PauseForFork();
  static void ContinueInParent();
  static void ContinueInChild();

  // Waits as `PauseForFork` does. From then on all work keeps the GIL.
  // Requires: the GIL.
  static void FinishAtExit();

  WorkWithoutGil(const WorkWithoutGil&) = delete;
  WorkWithoutGil& operator=(const WorkWithoutGil&) = delete;

 private:
  enum class Turn { kNone, kOwn, kOwnWithGil };

  // Waits for its turn.
  explicit WorkWithoutGil(Turn turn);
  // Ends the turn, and takes the GIL if it was released.
  ~WorkWithoutGil();

  template <typename Begin, typename Function>
  static bool Do(Turn turn, Begin&& begin, Function&& function) {
    std::exception_ptr error;
    {
      WorkWithoutGil work(turn);
      if (work.is_interrupted_) return false;
      try {
        begin();
        if (turn != Turn::kOwnWithGil) work.ReleaseGil();
        function();
#if defined(__GLIBCXX__)
      } catch (abi::__forced_unwind&) {
        // A call of Python ended the thread, since the interpreter has exited.
        StopThread();
#endif
      } catch (...) {
        error = std::current_exception();
      }
    }
    if (error) std::rethrow_exception(error);
    return true;
  }

  // Keeps it if a thread forks or the interpreter exits.
  void ReleaseGil();
  // Returns false if it handles signals and a handler has raised an error.
  bool WaitForTurn(bool handles_signals) const;
  // Returns whether this work may go on, in its turn or within another one of
  // its thread.
  bool TakeTurn() const;
  static void TakeGil(PyThreadState* thread);
  // Returns whether a thread other than this one works in C++.
  static bool OthersWork(const PyThreadState* thread);
  static void WaitForOthers();
  [[noreturn]] static void StopThread();

  PyThreadState* const thread_;
  // How many calls from C++ to Python the thread was in.
  const int python_calls_;
  const bool is_interrupted_;
  bool keeps_gil_ = true;
};

}  // namespace pybind
}  // namespace paddle
