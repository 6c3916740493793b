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

PYBIND11_MODULE(_predictor_threads, module) {
  auto core = pybind11::module_::import("paddle.base.core");
  paddle::pybind::BindPredictorThreads(&core, &module);
  paddle::pybind::BindIdlePredictors(&module);
  // If libpaddle contains this module, paddle/inference/wrapper.py does this.
  const auto common = pybind11::module_::import("paddle.static.nn.common");
  module.attr("call_out_of_turn")(common.attr("PyFuncRegistry"));
}
