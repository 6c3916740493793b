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

namespace {

// Returns whether a predictor's arguments have a config that uses oneDNN.
bool UsesOneDnn(const py::args& args, const py::kwargs& kwargs) {
  py::list all(args);
  for (const auto& [name, value] : kwargs) all.append(value);
  for (const py::handle config : all) {
    if (py::hasattr(config, "mkldnn_enabled")) {
      return config.attr("mkldnn_enabled")().cast<bool>();
    }
  }
  return false;
}

// Replaces a method by one that first redirects lookups, if `is_needed` returns
// true: they have to find the CPU context of a predictor that uses oneDNN.
template <typename IsNeeded>
void RedirectBefore(const py::object& type,
                    const char* name,
                    IsNeeded is_needed) {
  const py::object redirect =
      py::module_::import("paddle.base._thread_contexts")
          .attr("redirect_lookups");
  const py::object method = type.attr(name);
  type.attr(name) = py::cpp_function(
      [=](const py::object& self,
          const py::args& args,
          const py::kwargs& kwargs) -> py::object {
        if (is_needed(args, kwargs)) redirect();
        return method(self, *args, **kwargs);
      },
      py::name(name),
      py::is_method(type));
}

}  // namespace

PYBIND11_MODULE(_predictor_threads, module) {
  auto core = py::module_::import("paddle.base.core");
  paddle::pybind::BindPredictorThreads(&core, &module);
  paddle::pybind::BindIdlePredictors(&module);
  RedirectBefore(core.attr("PaddleInferPredictor"), "__init__", &UsesOneDnn);
  // The config of a C++ pool is unknown here.
  RedirectBefore(
      core.attr("PredictorPool"), "retrieve", [](auto&&...) { return true; });
  // If libpaddle contains this module, paddle/inference/wrapper.py does this.
  const auto common = py::module_::import("paddle.static.nn.common");
  module.attr("call_outside_predictor")(common.attr("PyFuncRegistry"));
  core.attr("libpaddle").attr("_predictor_threads") = module;
}
