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

#pragma once

#include <pybind11/pybind11.h>

#include "paddle/fluid/pybind/thread_value_type.h"

namespace paddle::pybind {

// Does as `AddThreadValue`, but throws the exception.
inline void BindThreadValue(pybind11::module* m) {
  if (!AddThreadValue(m->ptr())) throw pybind11::error_already_set();
}

}  // namespace paddle::pybind
