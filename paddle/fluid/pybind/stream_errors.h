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

#include <string>

#include "pybind11/pybind11.h"

namespace paddle {
namespace pybind {

// Checks for the constructors of streams and events. If a device does not
// exist, they raise the error of device_strings.py. The caller holds the GIL.

// Check that this process has the device with this index. A negative index
// means the current device.
void CheckGpuOfStream(int index = -1);
void CheckXpuOfStream(int index = -1);

// Checks that a plugin registered `type`, and that the device exists. The index
// -1 means the current device.
void CheckPluginDeviceOfStream(const std::string& type, int index);

// Accepts any value. For an overload that is registered after all others with
// this parameter, so that it gets only values that none of them accepts or
// converts.
struct OtherValue {
  PyObject* object = nullptr;  // Lives until the call returns.
};

// Throw the error for such values: that of the device, or pybind11's TypeError
// for a call that fits no overload if the device is not the reason.
[[noreturn]] void ThrowErrorOfGpuStream(OtherValue device);
[[noreturn]] void ThrowErrorOfXpuStream(OtherValue device);
[[noreturn]] void ThrowErrorOfPluginDeviceStream(OtherValue device,
                                                 OtherValue index);

}  // namespace pybind
}  // namespace paddle

namespace pybind11 {
namespace detail {

template <>
struct type_caster<paddle::pybind::OtherValue> {
  PYBIND11_TYPE_CASTER(paddle::pybind::OtherValue, const_name("object"));

  // All overloads are tried without conversions first, then all with them.
  bool load(handle source, bool convert) {
    value.object = source.ptr();
    return convert;
  }
};

}  // namespace detail
}  // namespace pybind11
