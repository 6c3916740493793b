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

#include <pybind11/pybind11.h>

#include "paddle/fluid/pybind/thread_contexts.h"
#include "redirected_lookups.h"

namespace py = pybind11;

namespace {

// Redirects the calls of a library that Paddle loads for custom operators, with
// lazy binding, before any thread can call one of its operators.
void RedirectWhereOperatorsAreLoaded() {
  const auto core = py::module_::import("paddle.base.core");
  constexpr char kLoad[] = "load_op_meta_info_and_register_op";
  const py::object load = core.attr(kLoad);
  core.attr(kLoad) =
      py::cpp_function([load](const py::args& args, const py::kwargs& kwargs) {
        const py::object operators = load(*args, **kwargs);
        RedirectLazyLookups();
        return operators;
      });
}

}  // namespace

PYBIND11_MODULE(_thread_contexts, module) {
  RedirectLazyLookups();
  RedirectWhereOperatorsAreLoaded();
  paddle::pybind::BindThreadContexts(&module);
  module.def("redirect_lookups", &RedirectLookups);
}
