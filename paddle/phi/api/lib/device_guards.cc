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

#include "paddle/phi/api/include/device_guards.h"

#ifndef _WIN32
#include <unistd.h>
#endif

#include <algorithm>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <utility>

#include "paddle/phi/backends/thread_contexts.h"
#include "paddle/phi/core/device_context.h"
#include "paddle/phi/core/enforce.h"
#if defined(PADDLE_WITH_CUDA) || defined(PADDLE_WITH_HIP)
#include "paddle/phi/backends/gpu/gpu_context.h"
#include "paddle/phi/backends/gpu/gpu_info.h"
#include "paddle/phi/core/cuda_stream.h"
#endif
#ifdef PADDLE_WITH_XPU
#include "paddle/phi/backends/xpu/xpu_info.h"
#endif
#ifdef PADDLE_WITH_CUSTOM_DEVICE
#include "paddle/phi/backends/custom/custom_context.h"
#include "paddle/phi/backends/device_manager.h"
#include "paddle/phi/backends/stream.h"
#endif

namespace paddle {
namespace {

using Context = std::shared_ptr<phi::DeviceContext>;

// The driver's state for the device type of a place.
struct DriverState {
  int number_of_devices = 0;
  int current_device = 0;
};

DriverState StateOf(const phi::Place& place) {
  switch (place.GetType()) {
#if defined(PADDLE_WITH_CUDA) || defined(PADDLE_WITH_HIP)
    case phi::AllocationType::GPU:
      return {phi::backends::gpu::GetGPUDeviceCount(),
              phi::backends::gpu::GetCurrentDeviceId()};
#endif
#ifdef PADDLE_WITH_XPU
    case phi::AllocationType::XPU:
      return {phi::backends::xpu::GetXPUDeviceCount(),
              phi::backends::xpu::GetXPUCurrentDeviceId()};
#endif
#ifdef PADDLE_WITH_CUSTOM_DEVICE
    case phi::AllocationType::CUSTOM: {
      const std::string type = place.GetDeviceType();
      if (!phi::DeviceManager::HasDeviceType(type)) return {};
      return {static_cast<int>(phi::DeviceManager::GetDeviceCount(type)),
              phi::DeviceManager::GetDevice(type)};
    }
#endif
    default:
      return {};
  }
}

void SetDevice(const phi::Place& place) {
  switch (place.GetType()) {
#if defined(PADDLE_WITH_CUDA) || defined(PADDLE_WITH_HIP)
    case phi::AllocationType::GPU:
      phi::backends::gpu::SetDeviceId(place.GetDeviceId());
      break;
#endif
#ifdef PADDLE_WITH_XPU
    case phi::AllocationType::XPU:
      phi::backends::xpu::SetXPUDeviceId(place.GetDeviceId());
      break;
#endif
#ifdef PADDLE_WITH_CUSTOM_DEVICE
    case phi::AllocationType::CUSTOM:
      phi::DeviceManager::SetDevice(place);
      break;
#endif
    default:
      break;
  }
}

// Returns a number that differs in a forked child.
[[maybe_unused]] int64_t ThisProcess() {
#ifdef _WIN32
  return 0;
#else
  return getpid();
#endif
}

phi::Place WithIndex(phi::Place place, int index) {
  place.device = static_cast<int8_t>(index);
  return place;
}

#if defined(PADDLE_WITH_CUDA) || defined(PADDLE_WITH_HIP)
#define PADDLE_WITH_STREAMS
constexpr phi::AllocationType kTypeWithStreams = phi::AllocationType::GPU;
using BackendContext = phi::GPUContext;

std::shared_ptr<phi::CUDAStream> MakeStream(const phi::Place& place) {
  return std::make_shared<phi::CUDAStream>(place);
}

Context ContextOf(const std::shared_ptr<phi::CUDAStream>& stream) {
  return phi::NewStreamContext(stream.get());
}
#elif defined(PADDLE_WITH_CUSTOM_DEVICE)
#define PADDLE_WITH_STREAMS
constexpr phi::AllocationType kTypeWithStreams = phi::AllocationType::CUSTOM;
using BackendContext = phi::CustomContext;

std::shared_ptr<phi::stream::Stream> MakeStream(const phi::Place& place) {
  auto stream = std::make_shared<phi::stream::Stream>();
  stream->Init(place);
  return stream;
}

Context ContextOf(const std::shared_ptr<phi::stream::Stream>& stream) {
  return phi::NewStreamContext(stream);
}
#endif

void EnforceHasStreams(const phi::Place& place) {
#ifdef PADDLE_WITH_STREAMS
  if (place.GetType() == kTypeWithStreams) return;
#endif
  PADDLE_THROW(
      common::errors::InvalidArgument("%s has no streams in this Paddle. Pass "
                                      "the place of a GPU or of a custom "
                                      "device that this Paddle supports.",
                                      place));
}

}  // namespace

DeviceGuardBackend& DeviceGuardBackend::Instance() {
  static DeviceGuardBackend devices;
  return devices;
}

phi::Place DeviceGuardBackend::ExchangeDevice(const phi::Place& place,
                                              int index) {
  const DriverState state = StateOf(place);
  PADDLE_ENFORCE_EQ(
      index >= 0 && index < state.number_of_devices,
      true,
      common::errors::InvalidArgument(
          "There is no device %d of the type of %s: this process has %d such "
          "devices. Pass an index from 0 that is less than this number.",
          index,
          place,
          state.number_of_devices));
  if (index != state.current_device) SetDevice(WithIndex(place, index));
  return WithIndex(place, state.current_device);
}

void DeviceGuardBackend::RestoreDevice(const phi::Place& place) noexcept {
  try {
    if (StateOf(place).current_device != place.GetDeviceId()) SetDevice(place);
  } catch (...) {  // NOLINT
    // A destructor must not throw. A failed device reports the error again at
    // the thread's next call.
  }
}

Context DeviceGuardBackend::NewStream(const phi::Place& place) {
  EnforceHasStreams(place);
#ifdef PADDLE_WITH_STREAMS
  // Creating and destroying streams and contexts changes the current device.
  const DeviceGuard device(place);
  struct Kept {
    const int64_t process = ThisProcess();
    phi::Place place;
    decltype(MakeStream(phi::Place())) stream;
    Context context;

    ~Kept() {
      if (process != ThisProcess()) {
        // Destroying the stream would wait for its work, which no thread of a
        // forked child could finish. Leak both.
        std::make_unique<std::pair<decltype(stream), Context>>(
            std::move(stream), std::move(context))
            .release();  // NOLINT
        return;
      }
      const phi::Place current =
          WithIndex(place, StateOf(place).current_device);
      context = nullptr;
      stream = nullptr;
      Instance().RestoreDevice(current);
    }
  };
  const auto kept = std::make_shared<Kept>();
  kept->place = place;
  kept->stream = MakeStream(place);
  kept->context = ContextOf(kept->stream);
  return {kept, kept->context.get()};
#else
  return nullptr;
#endif
}

Context DeviceGuardBackend::CurrentStream(const phi::Place& place) {
  EnforceHasStreams(place);
  // Throws if the device does not exist.
  const DeviceGuard device(place);
  return phi::CurrentContext(place);
}

void* DeviceGuardBackend::RawStream(const phi::DeviceContext& stream) {
#ifdef PADDLE_WITH_STREAMS
  return static_cast<const BackendContext&>(stream).stream();
#else
  return nullptr;
#endif
}

void DeviceGuardBackend::Synchronize(const phi::DeviceContext& stream) {
  const DeviceGuard device(stream.GetPlace());
  stream.Wait();
}

void DeviceGuardBackend::WaitForStream(const phi::DeviceContext& waiting,
                                       const phi::DeviceContext& other) {
  // Creating an event changes the current device.
  const DeviceGuard device(other.GetPlace());
  phi::WaitForStream(&waiting, &other);
}

std::shared_ptr<void> DeviceGuardBackend::UseStreams(
    const std::vector<Context>& streams) {
  for (auto later = streams.begin(); later != streams.end(); ++later) {
    const phi::Place& place = (*later)->GetPlace();
    PADDLE_ENFORCE_EQ(
        std::any_of(
            streams.begin(),
            later,
            [&](const Context& stream) { return stream->GetPlace() == place; }),
        false,
        common::errors::InvalidArgument(
            "A guard takes one stream per device, but received two of %s. Pass "
            "only the stream that work should run on.",
            place));
  }
  // A list, since guards do not move.
  auto guards = std::make_shared<std::list<phi::ThreadContextGuard>>();
  for (const auto& stream : streams) guards->emplace_back(stream);
  return guards;
}

}  // namespace paddle
