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

#include "paddle/fluid/pybind/thread_value.h"

// Every `import paddle` loads this module. It calls no function of pybind11 or
// libpaddle: looking those up takes longer than loading the rest of the module.
PyMODINIT_FUNC PyInit__thread_value() {
  static PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                                   "_thread_value",
                                   nullptr,
                                   -1,
                                   nullptr,
                                   nullptr,
                                   nullptr,
                                   nullptr,
                                   nullptr};
  PyObject* module = PyModule_Create(&definition);
  if (module != nullptr && !paddle::pybind::AddThreadValue(module)) {
    Py_CLEAR(module);
  }
  return module;
}
