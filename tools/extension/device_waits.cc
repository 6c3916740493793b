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

#include "device_waits.h"

#include <pybind11/pybind11.h>

#include <string>

#include "paddle/fluid/pybind/take_gil.h"
#include "paddle/phi/common/place.h"
#if defined(PADDLE_WITH_CUDA) || defined(PADDLE_WITH_HIP)
#include "paddle/phi/api/profiler/event.h"
#include "paddle/phi/backends/gpu/gpu_info.h"
#include "paddle/phi/core/cuda_stream.h"
#endif
#ifdef PADDLE_WITH_CUSTOM_DEVICE
#include "paddle/phi/backends/device_manager.h"
#include "paddle/phi/backends/event.h"
#include "paddle/phi/backends/stream.h"
#endif

namespace py = pybind11;

namespace {

// Makes `wait` the method synchronize() of a class of libpaddle.
template <typename Type, typename Wait>
void ReplaceSynchronize(const Wait& wait) {
  constexpr char kName[] = "synchronize";
  const auto type = py::type::of<Type>();
  type.attr(kName) =
      py::cpp_function(wait,
                       py::name(kName),
                       py::is_method(type),
                       py::call_guard<paddle::pybind::ReleasedGil>());
}

// Makes `wait` a function of libpaddle.
template <typename Wait>
void ReplaceFunction(const char* name, const Wait& wait) {
  const auto core = py::module_::import("paddle.base.core");
  core.attr(name) = py::cpp_function(
      wait, py::name(name), py::call_guard<paddle::pybind::ReleasedGil>());
}

}  // namespace

void WaitForDevicesWithoutGil() {
#if defined(PADDLE_WITH_CUDA) || defined(PADDLE_WITH_HIP)
  ReplaceSynchronize<phi::CUDAStream>(
      [](const phi::CUDAStream& stream) { stream.Synchronize(); });
  ReplaceSynchronize<phi::CudaEvent>(
      [](phi::CudaEvent& event) { event.Synchronize(); });
  ReplaceFunction("_device_synchronize", [](int device) {
    const phi::backends::gpu::GPUDeviceGuard guard(
        device == -1 ? phi::backends::gpu::GetCurrentDeviceId() : device);
    phi::backends::gpu::GpuDeviceSync();
  });
#endif
#ifdef PADDLE_WITH_CUSTOM_DEVICE
  ReplaceSynchronize<phi::stream::Stream>(
      [](const phi::stream::Stream& stream) { stream.Synchronize(); });
  ReplaceSynchronize<phi::event::Event>(
      [](const phi::event::Event& event) { event.Synchronize(); });
  ReplaceFunction(
      "_synchronize_custom_device",
      [](const std::string& device_type, int device) {
        phi::DeviceManager::SynchronizeDevice(phi::CustomPlace(
            device_type,
            device == -1 ? phi::DeviceManager::GetDevice(device_type)
                         : device));
      });
#endif
}
