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

#include "paddle/fluid/pybind/place_errors.h"

#include "paddle/phi/core/enforce.h"
#ifdef PADDLE_WITH_CUSTOM_DEVICE
#include "paddle/phi/backends/device_manager.h"
#endif
#if defined(PADDLE_WITH_CUDA) || defined(PADDLE_WITH_HIP)
#include "paddle/phi/backends/gpu/gpu_info.h"
#endif
#ifdef PADDLE_WITH_XPU
#include "paddle/phi/backends/xpu/xpu_info.h"
#endif
#ifdef PADDLE_WITH_IPU
#include "paddle/fluid/platform/device/ipu/ipu_info.h"
#endif

namespace paddle {
namespace pybind {
namespace {

// Returns the names of `count` devices of a type, each after a comma.
std::string NamesOf(const std::string& type, int count) {
  std::string names;
  for (int index = 0; index < count; ++index) {
    names += ", " + type + ":" + std::to_string(index);
  }
  return names;
}

std::string DeviceNames() {
  std::string names = "cpu";
#ifdef PADDLE_WITH_CUSTOM_DEVICE
  for (const auto& type : phi::DeviceManager::GetAllCustomDeviceTypes()) {
    names += NamesOf(type, phi::DeviceManager::GetDeviceCount(type));
  }
#endif
#if defined(PADDLE_WITH_CUDA) || defined(PADDLE_WITH_HIP)
  names += NamesOf("gpu", phi::backends::gpu::GetGPUDeviceCount());
#endif
#ifdef PADDLE_WITH_XPU
  names += NamesOf("xpu", phi::backends::xpu::GetXPUDeviceCount());
#endif
#ifdef PADDLE_WITH_IPU
  names += NamesOf("ipu", platform::GetIPUDeviceCount());
#endif
  return names;
}

[[noreturn]] void Throw(const std::string& reason) {
  PADDLE_THROW(common::errors::InvalidArgument(
      "%s The devices of this process are %s.", reason, DeviceNames()));
}

void CheckIsNotNegative(int index) {
  if (index < 0) {
    Throw("A device index must be 0 or more, but received " +
          std::to_string(index) + ".");
  }
}

[[maybe_unused]] void CheckIsBelow(int count,
                                   int index,
                                   const std::string& type) {
  if (index >= count) {
    Throw("There is no device '" + type + ":" + std::to_string(index) +
          "': this process has " + std::to_string(count) + " of type '" + type +
          "'.");
  }
}

[[noreturn]] void ThrowNotCompiled(const std::string& device,
                                   const std::string& toolkit) {
  Throw("The device '" + device +
        "' cannot be used, since this PaddlePaddle is not compiled with " +
        toolkit + ".");
}

}  // namespace

void CheckHasPluginDevice(const std::string& type, int index) {
  CheckIsNotNegative(index);
#ifdef PADDLE_WITH_CUSTOM_DEVICE
  if (phi::DeviceManager::HasDeviceType(type) &&
      phi::DeviceManager::IsCustom(type)) {
    CheckIsBelow(phi::DeviceManager::GetDeviceCount(type), index, type);
    return;
  }
#endif
  Throw("The device must be a plugin's, but received '" + type + ":" +
        std::to_string(index) + "'.");
}

void CheckHasGpu(int index) {
  CheckIsNotNegative(index);
#if defined(PADDLE_WITH_CUDA) || defined(PADDLE_WITH_HIP)
  CheckIsBelow(phi::backends::gpu::GetGPUDeviceCount(), index, "gpu");
#else
  ThrowNotCompiled("gpu:" + std::to_string(index), "CUDA");
#endif
}

void CheckHasXpu(int index) {
  CheckIsNotNegative(index);
#ifdef PADDLE_WITH_XPU
  CheckIsBelow(phi::backends::xpu::GetXPUDeviceCount(), index, "xpu");
#else
  ThrowNotCompiled("xpu:" + std::to_string(index), "XPU");
#endif
}

void CheckHasIpu() {
#ifdef PADDLE_WITH_IPU
  CheckIsBelow(platform::GetIPUDeviceCount(), 0, "ipu");
#else
  ThrowNotCompiled("ipu:0", "IPU");
#endif
}

}  // namespace pybind
}  // namespace paddle
