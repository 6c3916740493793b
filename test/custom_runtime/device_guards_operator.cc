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

// Custom operators and test cases for test_device_guards_device.py, which
// compiles this file and calls the cases through ctypes, without the GIL.

#include <atomic>
#include <functional>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "paddle/phi/api/ext/op_meta_info.h"
#include "paddle/phi/api/include/api.h"
#include "paddle/phi/api/include/device_guards.h"
#include "paddle/phi/backends/device_manager.h"

// The example operator:
// Scales x on its own stream.
std::vector<paddle::Tensor> ScaleOnSideStream(const paddle::Tensor& x) {
  static const paddle::DeviceStream side(x.place());
  const auto current = paddle::DeviceStream::current(x.place());
  side.wait_stream(current);  // until x is written
  paddle::Tensor y;
  {
    const paddle::StreamGuard guard(side);
    y = paddle::experimental::scale(x, 2.0, 0.0, true);
  }
  current.wait_stream(side);  // until y is written
  return {y};
}

PD_BUILD_OP(scale_on_side_stream)
    .Inputs({"X"})
    .Outputs({"Out"})
    .SetKernelFn(PD_KERNEL(ScaleOnSideStream));
// End of the example operator.

namespace {

using paddle::DeviceGuard;
using paddle::DeviceStream;
using paddle::MultiStreamGuard;
using paddle::OptionalDeviceGuard;
using paddle::StreamGuard;

constexpr char kType[] = "custom_cpu";

// The same without the waits.
std::vector<paddle::Tensor> ScaleWithoutWaits(const paddle::Tensor& x) {
  static const DeviceStream side(x.place());
  const StreamGuard guard(side);
  return {paddle::experimental::scale(x, 2.0, 0.0, true)};
}

phi::Place Device(int index) { return phi::CustomPlace(kType, index); }

void Check(bool holds, const char* what) {
  if (!holds) throw std::logic_error(std::string("does not hold: ") + what);
}
#define EXPECT(condition) Check(condition, #condition)

int CurrentDevice() { return phi::DeviceManager::GetDevice(kType); }

bool IsCurrent(const DeviceStream& stream) {
  return DeviceStream::current(stream.place()).raw_stream() ==
         stream.raw_stream();
}

// Returns the error that `function` throws. The call must not change the
// current device.
std::string ErrorOf(const std::function<void()>& function) {
  const int before = CurrentDevice();
  try {
    function();
  } catch (const std::exception& error) {
    EXPECT(CurrentDevice() == before);
    return error.what();
  }
  throw std::logic_error("no error was thrown");
}

bool Contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

void DeviceGuards() {
  const DeviceGuard first(Device(0));
  {
    const DeviceGuard outer(Device(2));
    EXPECT(CurrentDevice() == 2);
    EXPECT(outer.original_device() == Device(0));
    EXPECT(outer.current_device() == Device(2));
    {
      const DeviceGuard inner(Device(1));
      EXPECT(CurrentDevice() == 1);
    }
    EXPECT(CurrentDevice() == 2);
    try {
      const DeviceGuard inner(Device(3));
      throw 7;
    } catch (int) {
      EXPECT(CurrentDevice() == 2);
    }
    // Paddle's own functions change the device, too.
    phi::DeviceManager::SetDevice(Device(3));
  }
  EXPECT(CurrentDevice() == 0);
}

void ResetDeviceGuards() {
  const DeviceGuard first(Device(0));
  {
    DeviceGuard guard(Device(1));
    guard.reset_device(Device(2));
    EXPECT(CurrentDevice() == 2);
    guard.set_index(3);
    EXPECT(CurrentDevice() == 3);
    EXPECT(guard.current_device() == Device(3));
    EXPECT(guard.original_device() == Device(0));
    guard.reset_device(phi::CPUPlace());
    EXPECT(CurrentDevice() == 0);
    guard.reset_device(Device(1));
    EXPECT(CurrentDevice() == 1);
  }
  EXPECT(CurrentDevice() == 0);
}

void OptionalDeviceGuards() {
  const DeviceGuard first(Device(0));
  {
    OptionalDeviceGuard guard;
    EXPECT(CurrentDevice() == 0);
    EXPECT(!guard.original_device() && !guard.current_device());
    guard.reset_device(Device(1));
    guard.reset_device(Device(2));
    EXPECT(CurrentDevice() == 2);
    EXPECT(guard.original_device() == Device(0));
    EXPECT(guard.current_device() == Device(2));
    guard.reset();
    EXPECT(CurrentDevice() == 0);
    const OptionalDeviceGuard none(std::nullopt);
    EXPECT(CurrentDevice() == 0);
    const OptionalDeviceGuard some(std::optional<phi::Place>(Device(3)));
    EXPECT(CurrentDevice() == 3);
  }
  EXPECT(CurrentDevice() == 0);
}

void CpuGuards() {
  const DeviceGuard first(Device(1));
  DeviceGuard guard(phi::CPUPlace{});
  guard.set_index(0);
  EXPECT(CurrentDevice() == 1);
  EXPECT(Contains(ErrorOf([] { DeviceStream stream(phi::CPUPlace{}); }),
                  "no streams"));
  EXPECT(Contains(ErrorOf([] { DeviceStream::current(phi::GPUPlace(0)); }),
                  "gpu"));
}

void UnknownDevices() {
  const DeviceGuard first(Device(1));
  DeviceGuard guard(Device(2));
  for (const int index : {-1, 4, 99, 256}) {
    const std::string error = ErrorOf([&] { guard.set_index(index); });
    EXPECT(Contains(error, kType));
    EXPECT(Contains(error, std::to_string(index).c_str()));
  }
  EXPECT(guard.current_device() == Device(2));
  ErrorOf([&] { guard.reset_device(Device(4)); });
  ErrorOf([] { DeviceGuard other(Device(4)); });
  ErrorOf([] { DeviceGuard other(phi::CustomPlace("no_such_device", 0)); });
  ErrorOf([] { DeviceStream stream(Device(4)); });
  EXPECT(CurrentDevice() == 2);
}

void StreamGuards() {
  const DeviceGuard first(Device(0));
  const auto original = DeviceStream::current(Device(1));
  const DeviceStream outer_stream(Device(1)), inner_stream(Device(1));
  EXPECT(CurrentDevice() == 0);
  EXPECT(original.raw_stream() != outer_stream.raw_stream());
  {
    const StreamGuard outer(outer_stream);
    EXPECT(CurrentDevice() == 1);
    EXPECT(IsCurrent(outer_stream));
    EXPECT(outer.original_device() == Device(0));
    EXPECT(outer.current_stream().raw_stream() == outer_stream.raw_stream());
    try {
      const StreamGuard inner(inner_stream);
      EXPECT(IsCurrent(inner_stream));
      throw 7;
    } catch (int) {
      EXPECT(IsCurrent(outer_stream));
    }
    EXPECT(CurrentDevice() == 1);
  }
  EXPECT(IsCurrent(original));
  EXPECT(CurrentDevice() == 0);
}

void ResetStreamGuards() {
  const DeviceGuard first(Device(0));
  const auto original = DeviceStream::current(Device(1));
  const DeviceStream near(Device(1)), far(Device(2)), last(Device(2));
  const auto far_original = DeviceStream::current(Device(2));
  {
    StreamGuard guard(near);
    guard.reset_stream(far);
    EXPECT(IsCurrent(original));
    EXPECT(IsCurrent(far));
    EXPECT(CurrentDevice() == 2);
    guard.reset_stream(last);
    EXPECT(IsCurrent(last));
    EXPECT(guard.current_stream().raw_stream() == last.raw_stream());
  }
  EXPECT(IsCurrent(far_original));
  EXPECT(CurrentDevice() == 0);
}

void MultiStreamGuards() {
  const DeviceGuard first(Device(3));
  const DeviceStream one(Device(0)), two(Device(1)), other(Device(1));
  const auto one_original = DeviceStream::current(Device(0));
  const auto two_original = DeviceStream::current(Device(1));
  {
    const MultiStreamGuard guard({one, two});
    EXPECT(IsCurrent(one));
    EXPECT(IsCurrent(two));
    EXPECT(CurrentDevice() == 3);
    const std::string error = ErrorOf([&] {
      MultiStreamGuard wrong({other, one, other});
    });
    EXPECT(Contains(error, "one stream per device"));
    EXPECT(Contains(error, kType));
    EXPECT(IsCurrent(one));
    EXPECT(IsCurrent(two));
  }
  EXPECT(IsCurrent(one_original));
  EXPECT(IsCurrent(two_original));
  const MultiStreamGuard none({});
}

void DestroyedStreams() {
  const DeviceGuard first(Device(0));
  { const DeviceStream stream(Device(2)); }
  EXPECT(CurrentDevice() == 0);
  const DeviceStream stream(Device(1));
  std::optional<StreamGuard> guard(DeviceStream(Device(2)));
  guard->reset_stream(stream);
  EXPECT(CurrentDevice() == 1);
  EXPECT(IsCurrent(stream));
  stream.synchronize();
  guard.reset();
  EXPECT(CurrentDevice() == 0);
}

// Each thread uses its own device and stream, whatever other threads set.
void Threads() {
  std::atomic<int> failed{0};
  std::vector<std::thread> threads;
  for (int number = 0; number < 8; ++number) {
    threads.emplace_back([number, &failed] {
      try {
        const DeviceStream stream(Device(number % 4));
        const auto original = DeviceStream::current(stream.place());
        for (int round = 0; round < 200; ++round) {
          const StreamGuard guard(stream);
          const auto value = static_cast<float>(number);
          const auto x = paddle::experimental::full(
              {2}, value, phi::DataType::FLOAT32, stream.place());
          EXPECT(x.place() == stream.place());
          EXPECT(IsCurrent(stream));
          EXPECT(CurrentDevice() == number % 4);
        }
        EXPECT(IsCurrent(original));
      } catch (const std::exception&) {
        ++failed;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT(failed == 0);
}

const std::map<std::string, void (*)()>& Cases() {
  static const std::map<std::string, void (*)()> cases = {
      {"DeviceGuards", &DeviceGuards},
      {"ResetDeviceGuards", &ResetDeviceGuards},
      {"OptionalDeviceGuards", &OptionalDeviceGuards},
      {"CpuGuards", &CpuGuards},
      {"UnknownDevices", &UnknownDevices},
      {"StreamGuards", &StreamGuards},
      {"ResetStreamGuards", &ResetStreamGuards},
      {"MultiStreamGuards", &MultiStreamGuards},
      {"DestroyedStreams", &DestroyedStreams},
      {"Threads", &Threads},
  };
  return cases;
}

std::optional<DeviceStream> kept_stream;

}  // namespace

PD_BUILD_OP(scale_without_waits)
    .Inputs({"X"})
    .Outputs({"Out"})
    .SetKernelFn(PD_KERNEL(ScaleWithoutWaits));

extern "C" {

// Returns the error of a case, or null.
const char* run_case(const char* name) {
  static thread_local std::string error;
  try {
    Cases().at(name)();
    return nullptr;
  } catch (const std::exception& caught) {
    error = caught.what();
    return error.c_str();
  }
}

// Calls `function` with a new stream, inside a guard for this stream.
void call_inside(int device, void (*function)(void*)) {
  const DeviceStream stream(Device(device));
  const StreamGuard guard(stream);
  function(stream.raw_stream());
}

void* current_stream(int device) {
  return DeviceStream::current(Device(device)).raw_stream();
}

void keep_current_stream(int device) {
  kept_stream = DeviceStream::current(Device(device));
}

void drop_kept_stream() { kept_stream.reset(); }

}  // extern "C"
