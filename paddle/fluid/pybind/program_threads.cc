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

#include "paddle/fluid/pybind/program_threads.h"

#ifndef _WIN32
#include <pthread.h>
#endif

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <thread>

#include "paddle/fluid/framework/new_executor/program_threads.h"
#include "paddle/fluid/pybind/take_gil.h"

namespace py = pybind11;

namespace paddle {
namespace pybind {

namespace {

using framework::Scope;

// A scope by the address that its Python object returns: the class of that
// object is not bound here.
const Scope* ScopeAt(uintptr_t address) {
  return reinterpret_cast<const Scope*>(address);
}

// The number of threads that are in LockBuilding.
std::atomic<int> forks_waiting{0};

void Sleep() { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }

// Waits without the GIL, if the thread has it: the building thread may need it.
// While a fork waits for the mutex, does not hold the mutex without the GIL.
void LockWithoutGil(std::timed_mutex* mutex) {
  if (PyGILState_Check() == 0) {
    mutex->lock();
    return;
  }
  const ReleasedGil released;
  mutex->lock();
  while (forks_waiting > 0) {
    mutex->unlock();
    while (forks_waiting > 0) Sleep();
    mutex->lock();
  }
}

bool TakeScope(uintptr_t address) {
  return framework::TakeScope(ScopeAt(address));
}

// Returns a scope that was taken for a call which failed before its run began:
// only the list still refers to it. The scope stays taken, for the caller.
// Returns None if there is none. Thread-safe, as nothing here releases the GIL.
py::object TakeAbandonedScope(const py::list& scopes) {
  for (const py::handle scope : scopes) {
    if (Py_REFCNT(scope.ptr()) == 1 &&
        framework::IsTakenBeforeRun(
            ScopeAt(scope.attr("raw_address")().cast<uintptr_t>()))) {
      return py::reinterpret_borrow<py::object>(scope);
    }
  }
  return py::none();
}

// Takes the lock only with the GIL, so that the forking thread never holds the
// one while it waits for the other. During a fork, predictors are created with
// the GIL. So whenever this thread has the GIL, no thread that creates one
// holds the lock, except those that LockWithoutGil has let pass before: this
// thread gets the lock even if threads create one predictor after the other.
void LockBuilding(double timeout_s) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  const std::chrono::duration<double> timeout(timeout_s);
  ++forks_waiting;
  while (!framework::LockBuilding(std::chrono::seconds(0)) &&
         Clock::now() - begin < timeout) {
    const ReleasedGil released;
    Sleep();
  }
  --forks_waiting;
}

}  // namespace

void BindProgramThreads(py::module_* module) {
  framework::SetWaitForBuilder(&LockWithoutGil);
#ifndef _WIN32
  // The child lacks the other threads that are about to fork.
  pthread_atfork(nullptr, nullptr, [] { forks_waiting = 0; });
#endif
  module->def("take_scope", &TakeScope);
  module->def("take_abandoned_scope", &TakeAbandonedScope);
  py::class_<framework::ProgramBuildGuard>(
      *module,
      "BuildGuard",
      "Makes the thread that creates it the only one that builds. The same "
      "thread has to destroy it.")
      .def(py::init<>());
  module->def("lock_building", &LockBuilding);
  module->def("unlock_building", &framework::UnlockBuilding);
  module->def("replace_building_lock", &framework::ReplaceBuildingLock);
}

}  // namespace pybind
}  // namespace paddle
