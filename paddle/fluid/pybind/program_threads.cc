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

#include <chrono>
#include <cstdint>
#include <mutex>

#include "paddle/fluid/framework/new_executor/program_threads.h"

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

// Releases the GIL, if the thread has it: the building thread may need it.
void LockWithoutGil(std::timed_mutex* mutex) {
  if (PyGILState_Check() == 0) {
    mutex->lock();
    return;
  }
  const py::gil_scoped_release release;
  mutex->lock();
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

void LockBuilding(double timeout_s) {
  framework::LockBuilding(std::chrono::duration<double>(timeout_s));
}

}  // namespace

void BindProgramThreads(py::module_* module) {
  framework::SetWaitForBuilder(&LockWithoutGil);
  module->def("take_scope", &TakeScope);
  module->def("take_abandoned_scope", &TakeAbandonedScope);
  module->def(
      "lock_building", &LockBuilding, py::call_guard<py::gil_scoped_release>());
  module->def("unlock_building", &framework::UnlockBuilding);
  module->def("replace_building_lock", &framework::ReplaceBuildingLock);
}

}  // namespace pybind
}  // namespace paddle
