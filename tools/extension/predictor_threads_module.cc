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

void Record(const py::object& config, CustomDevice device) {
  const auto* const object = config.cast<const paddle::AnalysisConfig*>();
  if (devices.count(object) == 0) {
    // Python calls this before another config can get the address.
    py::weakref(config, py::cpp_function([object](py::handle reference) {
                  devices.erase(object);
                  reference.dec_ref();
                }))
        .release();
  }
  devices.insert_or_assign(object, std::move(device));
}

// Makes configs record the custom device that they enable, and copies of
// configs the device of the original.
void RecordCustomDevices(const py::object& type, const py::object& enable) {
  type.attr("enable_custom_device") = py::cpp_function(
      [enable](const py::object& self,
               const std::string& device_type,
               int device_id,
               const py::args& others,
               const py::kwargs& named) {
        enable(self, device_type, device_id, *others, **named);
        Record(self, {device_type, device_id});
      },
      py::name("enable_custom_device"),
      py::is_method(type),
      py::arg("device_type"),
      py::arg("device_id") = 0);
  const py::object init = type.attr("__init__");
  type.attr("__init__") = py::cpp_function(
      [init](const py::object& self,
             const py::args& args,
             const py::kwargs& named) {
        init(self, *args, **named);
        if (args.size() != 1 ||
            !py::isinstance<paddle::AnalysisConfig>(args[0]))
          return;
        const auto found =
            devices.find(args[0].cast<const paddle::AnalysisConfig*>());
        if (found != devices.end()) Record(self, found->second);
      },
      py::name("__init__"),
      py::is_method(type));
}

// Warns of methods that other code has replaced, if BindPredictorThreads drops
// the replacements. A source build binds its methods before any code can
// replace them.
void WarnOfLostReplacements(const py::object& type) {
  for (const std::string name : {"__init__", "run", "clone"}) {
    if (PyInstanceMethod_Check(type.attr(name.c_str()).ptr())) continue;
    const std::string text =
        "The replacement of paddle.inference.Predictor." + name +
        " is lost, because Paddle installs its own method when the first "
        "predictor is created. Create a predictor or import "
        "paddle.base._predictor_threads before you replace the method.";
    if (PyErr_WarnEx(PyExc_RuntimeWarning, text.c_str(), 1) != 0) {
      throw py::error_already_set();
    }
  }
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
  const auto contexts = py::module_::import("paddle.base._thread_contexts");
  const py::object enable = contexts.attr("enable_custom_device");
  const py::object load_scratchpads = contexts.attr("load_onednn_scratchpads");
  WarnOfLostReplacements(core.attr("PaddleInferPredictor"));
  paddle::pybind::BindPredictorThreads(&core, &module);
  paddle::pybind::BindIdlePredictors(&module);
  RecordCustomDevices(core.attr("AnalysisConfig"), enable);
  RedirectBefore(core.attr("PaddleInferPredictor"),
                 "__init__",
                 [load_scratchpads](const auto&... arguments) {
                   // A fork loads this module without the scratchpads.
                   load_scratchpads();
                   return HasContexts(arguments...);
                 });
  // If libpaddle contains this module, paddle/inference/wrapper.py does this.
  const auto common = py::module_::import("paddle.static.nn.common");
  module.attr("call_outside_predictor")(common.attr("PyFuncRegistry"));
  core.attr("libpaddle").attr("_predictor_threads") = module;
}
