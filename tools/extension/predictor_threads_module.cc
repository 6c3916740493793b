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

#include "paddle/fluid/pybind/idle_predictors.h"
#include "paddle/fluid/pybind/predictor_threads.h"

namespace py = pybind11;

PYBIND11_MODULE(_predictor_threads, module) {
  auto core = py::module_::import("paddle.base.core");
  paddle::pybind::BindPredictorThreads(&core);
  paddle::pybind::BindIdlePredictors(&module);

  // Lookups have to find the CPU context of a predictor that uses oneDNN.
  const py::object redirect =
      py::module_::import("paddle.base._thread_contexts")
          .attr("redirect_lookups");
  const py::object type = core.attr("PaddleInferPredictor");
  const py::object construct = type.attr("__init__");
  type.attr("__init__") = py::cpp_function(
      [=](const py::object& self,
          const py::args& args,
          const py::kwargs& kwargs) {
        redirect();
        construct(self, *args, **kwargs);
      },
      py::name("__init__"),
      py::is_method(type));
}
