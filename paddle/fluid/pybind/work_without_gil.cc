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

#include "paddle/fluid/pybind/work_without_gil.h"

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

namespace paddle {
namespace pybind {
namespace {

// Lock order: the GIL, then `mutex`. A thread never waits for the GIL while it
// holds `mutex`.
struct AllWork {
  std::mutex mutex;
  std::condition_variable changed;
  std::set<const WorkWithoutGil*> in_progress;
  int pauses = 0;
  // Set when the interpreter has begun to exit: the thread that runs the exit
  // handlers, and whether other threads may no longer work.
  std::thread::id exiting_thread;
  bool (*is_over)() = nullptr;

  bool exiting() const { return is_over != nullptr; }
  // Requires: the GIL.
  bool IsOverForThisThread() const {
    return exiting() && std::this_thread::get_id() != exiting_thread &&
           is_over();
  }
};

// Never destroyed, because threads may use it while the process exits.
AllWork* all_work = std::make_unique<AllWork>().release();

// Whether the calling thread has paused all work.
thread_local bool has_paused = false;

// Stops the calling thread if it may no longer work. Raising an error instead
// would make each daemon thread that still works print it.
void StopIfOver() {
  {
    const std::lock_guard<std::mutex> lock(all_work->mutex);
    if (!all_work->IsOverForThisThread()) return;
  }
  // The exiting thread never waits for this one: its work has not begun.
  PyEval_SaveThread();
  while (true) std::this_thread::sleep_for(std::chrono::hours(1));
}

}  // namespace

WorkWithoutGil::WorkWithoutGil()
    : thread_(PyThreadState_Get()),
      python_calls_(thread_->gilstate_counter),
      keeps_gil_([this] {
        StopIfOver();
        const std::lock_guard<std::mutex> lock(all_work->mutex);
        const bool keeps = all_work->exiting() || all_work->pauses > 0;
        if (!keeps) all_work->in_progress.insert(this);
        return keeps;
      }()) {
  if (!keeps_gil_) PyEval_SaveThread();
}

WorkWithoutGil::~WorkWithoutGil() {
  if (keeps_gil_) return;
  {
    const std::lock_guard<std::mutex> lock(all_work->mutex);
    all_work->in_progress.erase(this);
  }
  all_work->changed.notify_all();
  TakeGil(thread_);
}

bool WorkWithoutGil::OthersWork(const PyThreadState* thread) {
  const std::lock_guard<std::mutex> lock(all_work->mutex);
  for (const WorkWithoutGil* work : all_work->in_progress) {
    // The counter changes only under the GIL, which this thread holds.
    if (work->thread_ != thread &&
        work->thread_->gilstate_counter == work->python_calls_) {
      return true;
    }
  }
  return false;
}

void WorkWithoutGil::WaitForOthers() {
  PyThreadState* const thread = PyThreadState_Get();
  while (OthersWork(thread)) {
    const ReleasedGil released;
    std::unique_lock<std::mutex> lock(all_work->mutex);
    // Poll, because a thread that enters Python does not notify `changed`.
    all_work->changed.wait_for(lock, std::chrono::milliseconds(1));
  }
}

void WorkWithoutGil::PauseForFork() {
  if (has_paused) return;
  {
    const std::lock_guard<std::mutex> lock(all_work->mutex);
    ++all_work->pauses;
  }
  has_paused = true;
  WaitForOthers();
}

void WorkWithoutGil::ContinueInParent() {
  if (!std::exchange(has_paused, false)) return;
  const std::lock_guard<std::mutex> lock(all_work->mutex);
  --all_work->pauses;
}

void WorkWithoutGil::ContinueInChild() {
  // Threads that the child does not have may hold the old mutex and wait on the
  // old condition variable.
  all_work = std::make_unique<AllWork>().release();
  has_paused = false;
}

void WorkWithoutGil::FinishAtExit(bool (*is_over)()) {
  {
    const std::lock_guard<std::mutex> lock(all_work->mutex);
    all_work->exiting_thread = std::this_thread::get_id();
    all_work->is_over = is_over;
  }
  all_work->changed.notify_all();
  WaitForOthers();
}

}  // namespace pybind
}  // namespace paddle
