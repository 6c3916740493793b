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

// A custom operator that calls Python, for test_inference_threads_operator.py.

#include <Python.h>

#include <stdexcept>
#include <vector>

#include "paddle/phi/api/ext/op_meta_info.h"
#include "paddle/phi/api/include/api.h"

namespace {

// The Python function that the operator calls; set with the GIL.
PyObject* called = nullptr;

class GilGuard {
 public:
  GilGuard() : state_(PyGILState_Ensure()) {}
  ~GilGuard() { PyGILState_Release(state_); }
  GilGuard(const GilGuard&) = delete;
  GilGuard& operator=(const GilGuard&) = delete;

 private:
  const PyGILState_STATE state_;
};

void CallPython() {
  const GilGuard guard;
  // The function may set another one.
  PyObject* const function = called;
  Py_INCREF(function);
  PyObject* const result = PyObject_CallObject(function, nullptr);
  Py_DECREF(function);
  if (result == nullptr) {
    PyErr_Print();
    throw std::runtime_error("the Python function failed");
  }
  Py_DECREF(result);
}

std::vector<paddle::Tensor> CallAndDouble(const paddle::Tensor& x) {
  CallPython();
  return {paddle::experimental::scale(x, 2.0, 0.0, true)};
}

}  // namespace

PD_BUILD_OP(call_and_double)
    .Inputs({"X"})
    .Outputs({"Out"})
    .SetKernelFn(PD_KERNEL(CallAndDouble));

extern "C" void set_called(PyObject* function) {
  Py_XINCREF(function);
  Py_XSETREF(called, function);
}
