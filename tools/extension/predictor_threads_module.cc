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

#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

#include "paddle/fluid/inference/api/paddle_inference_api.h"
#include "paddle/fluid/pybind/idle_predictors.h"
#include "paddle/fluid/pybind/predictor_threads.h"

namespace py = pybind11;

namespace {

struct CustomDevice {
  std::string type;
  int id;
};

// The devices of the configs that enable one. Never destroyed, because configs
// may be destroyed while the process exits. Protected by the GIL.
using Devices = std::unordered_map<const paddle::AnalysisConfig*, CustomDevice>;
Devices& devices = *std::make_unique<Devices>().release();

// Makes configs record the custom device that they enable.
void RecordCustomDevices(const py::object& type) {
  // thread_contexts_module.cc has replaced the function of libpaddle by one
  // that loads this module.
  const auto target = type.attr("enable_custom_device").attr("__self__");
  const py::object enable = target.cast<py::tuple>()[2];
  const auto record = [enable](const py::object& self,
                               const std::string& device_type,
                               int device_id,
                               const py::args& others,
                               const py::kwargs& named) {
    enable(self, device_type, device_id, *others, **named);
    const auto* const config = self.cast<const paddle::AnalysisConfig*>();
    if (devices.count(config) == 0) {
      // Python calls this before another config can get the address.
      py::weakref(self, py::cpp_function([config](py::handle reference) {
                    devices.erase(config);
                    reference.dec_ref();
                  }))
          .release();
    }
    devices.insert_or_assign(config, CustomDevice{device_type, device_id});
  };
  type.attr("enable_custom_device") =
      py::cpp_function(record,
                       py::name("enable_custom_device"),
                       py::is_method(type),
                       py::arg("device_type"),
                       py::arg("device_id") = 0);
}

// Returns whether a predictor's arguments have a config whose predictors keep
// contexts of their own.
bool HasContexts(const py::args& args, const py::kwargs& kwargs) {
  py::list all(args);
  for (const auto& [name, value] : kwargs) all.append(value);
  for (const py::handle config : all) {
    if (py::isinstance<paddle::AnalysisConfig>(config)) {
      return config.attr("mkldnn_enabled")().cast<bool>() ||
             config.cast<const paddle::AnalysisConfig&>().use_custom_device();
    }
  }
  return false;
}

// Replaces a method by one that first redirects lookups, if `is_needed` returns
// true: they have to find the contexts of the predictor.
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

namespace paddle {

bool AnalysisConfig::use_custom_device() const {
  return devices.count(this) > 0;
}

int AnalysisConfig::custom_device_id() const { return devices.at(this).id; }

std::string AnalysisConfig::custom_device_type() const {
  return devices.at(this).type;
}

}  // namespace paddle

PYBIND11_MODULE(_predictor_threads, module) {
  auto core = py::module_::import("paddle.base.core");
  paddle::pybind::BindPredictorThreads(&core, &module);
  paddle::pybind::BindIdlePredictors(&module);
  RecordCustomDevices(core.attr("AnalysisConfig"));
  RedirectBefore(core.attr("PaddleInferPredictor"), "__init__", &HasContexts);
  // The config of a C++ pool is unknown here.
  RedirectBefore(
      core.attr("PredictorPool"), "retrieve", [](auto&&...) { return true; });
  // If libpaddle contains this module, paddle/inference/wrapper.py does this.
  const auto common = py::module_::import("paddle.static.nn.common");
  module.attr("call_outside_predictor")(common.attr("PyFuncRegistry"));
  core.attr("libpaddle").attr("_predictor_threads") = module;
}
