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

#include "paddle/fluid/pybind/stream_errors.h"

#ifdef PADDLE_WITH_CUSTOM_DEVICE
#include "paddle/phi/backends/device_manager.h"
#endif
#if defined(PADDLE_WITH_CUDA) || defined(PADDLE_WITH_HIP)
#include "paddle/phi/backends/gpu/gpu_info.h"
#endif
#ifdef PADDLE_WITH_XPU
#include "paddle/phi/backends/xpu/xpu_info.h"
#endif

namespace py = pybind11;

namespace paddle {
namespace pybind {
namespace {

// Calls a check of device strings. It raises the error, or returns if the
// device is not the reason.
template <typename... Values>
void CheckInPython(const char* check, const Values&... values) {
  py::module_::import("paddle.base.device_strings").attr(check)(values...);
}

// A negative index means the current device, which exists if any does.
[[maybe_unused]] bool Exists(int index, int count) {
  return count > 0 && index < count;
}

void CheckIndex(const char* type, int index) {
  CheckInPython("check_stream_device", py::str(type), py::int_(index));
}

[[noreturn]] void ThrowErrorOfStream(const char* type, OtherValue device) {
  CheckInPython(
      "check_stream_device", py::str(type), py::handle(device.object));
  throw py::reference_cast_error();  // The call then fits no overload.
}

}  // namespace

void CheckGpuOfStream(int index) {
#if defined(PADDLE_WITH_CUDA) || defined(PADDLE_WITH_HIP)
  if (Exists(index, phi::backends::gpu::GetGPUDeviceCount())) {
    return;
  }
#endif
  CheckIndex("gpu", index);
}

void CheckXpuOfStream(int index) {
#ifdef PADDLE_WITH_XPU
  if (Exists(index, phi::backends::xpu::GetXPUDeviceCount())) {
    return;
  }
#endif
  CheckIndex("xpu", index);
}

void CheckPluginDeviceOfStream(const std::string& type, int index) {
#ifdef PADDLE_WITH_CUSTOM_DEVICE
  if (phi::DeviceManager::HasDeviceType(type) &&
      phi::DeviceManager::IsCustom(type) && index >= -1 &&
      Exists(index, phi::DeviceManager::GetDeviceCount(type))) {
    return;
  }
#endif
  CheckInPython("check_plugin_stream_device", py::str(type), py::int_(index));
}

void ThrowErrorOfGpuStream(OtherValue device) {
  ThrowErrorOfStream("gpu", device);
}

void ThrowErrorOfXpuStream(OtherValue device) {
  ThrowErrorOfStream("xpu", device);
}

void ThrowErrorOfPluginDeviceStream(OtherValue device, OtherValue index) {
  CheckInPython("check_plugin_stream_device",
                py::handle(device.object),
                py::handle(index.object));
  throw py::reference_cast_error();
}

}  // namespace pybind
}  // namespace paddle
