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

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "paddle/common/macros.h"
#include "paddle/phi/common/place.h"

// Guards that set the current device and the current streams, for custom
// operators and other C++ code:
//
//   paddle::DeviceStream side(x.place());
//   side.wait_stream(paddle::DeviceStream::current(x.place()));
//   {
//     paddle::StreamGuard guard(side);
//     y = paddle::experimental::scale(x, 2.0);  // runs on `side`
//   }
//   paddle::DeviceStream::current(x.place()).wait_stream(side);
//
// A guard acts on the calling thread only. Its destructor restores the previous
// state, also during stack unwinding. A function that throws has no effect. All
// functions are thread-safe, but a guard must be used and destroyed on the
// thread that created it. No function needs the GIL.
//
// Each device type has a current device, which driver calls act on:
// cudaSetDevice or DeviceManager::SetDevice sets it. A guard does not change
// the result of paddle.device.get_device(); new tensors are allocated on the
// place that the caller passes. The CPU has no index and no streams: a guard
// for it does nothing.

namespace phi {
class DeviceContext;
}  // namespace phi

namespace paddle {

// The operations on the calling thread that the classes below use. They are
// virtual, so that code compiled with this header links to only one function of
// Paddle's libraries.
class PADDLE_API DeviceGuardBackend {
 public:
  static DeviceGuardBackend& Instance();

  // Makes the device with this index the current one of the type of `place`.
  // Returns the previous device.
  virtual phi::Place ExchangeDevice(const phi::Place& place, int index);

  // Restores a device that ExchangeDevice returned.
  virtual void RestoreDevice(const phi::Place& place) noexcept;

  // These functions represent a stream by the device context bound to it.
  virtual std::shared_ptr<phi::DeviceContext> NewStream(
      const phi::Place& place);
  virtual std::shared_ptr<phi::DeviceContext> CurrentStream(
      const phi::Place& place);
  virtual void* RawStream(const phi::DeviceContext& stream);
  virtual void Synchronize(const phi::DeviceContext& stream);
  virtual void WaitForStream(const phi::DeviceContext& waiting,
                             const phi::DeviceContext& other);

  // Makes each stream the current one of its device, until the returned object
  // is destroyed.
  virtual std::shared_ptr<void> UseStreams(
      const std::vector<std::shared_ptr<phi::DeviceContext>>& streams);

 protected:
  DeviceGuardBackend() = default;
  ~DeviceGuardBackend() = default;
};

// A stream of a device; copies refer to the same stream. Creating one also
// creates a device context: keep it and reuse it. Destroying the last copy
// waits for the work on the stream and destroys the stream, except in a forked
// child.
class DeviceStream {
 public:
  // Creates a stream. Throws if `place` is neither a GPU nor a custom device,
  // or if the device does not exist.
  explicit DeviceStream(const phi::Place& place)
      : place_(place),
        context_(DeviceGuardBackend::Instance().NewStream(place)) {}

  // Returns the calling thread's current stream on a device. For a Python
  // thread that has set no stream, this is the device's default stream. For the
  // main thread and for threads without Python, it is the stream that the main
  // thread has set last. Throws in the same cases as the constructor.
  static DeviceStream current(const phi::Place& place) {
    return {place, DeviceGuardBackend::Instance().CurrentStream(place)};
  }

  const phi::Place& place() const { return place_; }

  // Returns the driver's handle of the stream, such as a cudaStream_t.
  void* raw_stream() const {
    return DeviceGuardBackend::Instance().RawStream(*context_);
  }

  // Waits until the work on the stream is done.
  void synchronize() const {
    DeviceGuardBackend::Instance().Synchronize(*context_);
  }

  // Makes later work on this stream wait for the work enqueued on `other` so
  // far, as Stream.wait_stream does in Python.
  void wait_stream(const DeviceStream& other) const {
    DeviceGuardBackend::Instance().WaitForStream(*context_, *other.context_);
  }

 private:
  friend class StreamGuard;
  friend class MultiStreamGuard;

  DeviceStream(const phi::Place& place,
               std::shared_ptr<phi::DeviceContext> context)
      : place_(place), context_(std::move(context)) {}

  phi::Place place_;
  std::shared_ptr<phi::DeviceContext> context_;
};

// Makes a device the current one of its type.
class DeviceGuard {
 public:
  // Throws if the device does not exist.
  explicit DeviceGuard(const phi::Place& place)
      : original_(Exchange(place, place.GetDeviceId())), current_(place) {}

  ~DeviceGuard() { Restore(); }

  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

  // Makes another device the current one. If its type differs, restores the
  // device of the previous type. Throws if the device does not exist.
  void reset_device(const phi::Place& place) {
    const phi::Place previous = Exchange(place, place.GetDeviceId());
    if (!OfSameType(place, original_)) {
      Restore();
      original_ = previous;
    }
    current_ = place;
  }

  // The same for another device of the current type. Throws if the device does
  // not exist.
  void set_index(int index) {
    Exchange(current_, index);
    if (HasIndex(current_)) current_.device = static_cast<int8_t>(index);
  }

  // Returns the device that the guard restores.
  const phi::Place& original_device() const { return original_; }

  // Returns the device that the guard has made the current one.
  const phi::Place& current_device() const { return current_; }

 private:
  static bool HasIndex(const phi::Place& place) {
    return place.GetType() == phi::AllocationType::GPU ||
           place.GetType() == phi::AllocationType::XPU ||
           place.GetType() == phi::AllocationType::CUSTOM;
  }

  static bool OfSameType(phi::Place one, const phi::Place& other) {
    one.device = other.device;
    return one == other;
  }

  static phi::Place Exchange(const phi::Place& place, int index) {
    if (!HasIndex(place)) return place;
    return DeviceGuardBackend::Instance().ExchangeDevice(place, index);
  }

  void Restore() noexcept {
    if (HasIndex(original_)) {
      DeviceGuardBackend::Instance().RestoreDevice(original_);
    }
  }

  phi::Place original_;
  phi::Place current_;
};

// A DeviceGuard that does nothing until it gets a device.
class OptionalDeviceGuard {
 public:
  OptionalDeviceGuard() = default;

  // Throws if the device does not exist.
  explicit OptionalDeviceGuard(const std::optional<phi::Place>& place) {
    if (place) guard_.emplace(*place);
  }

  // Makes a device the current one. Throws if the device does not exist.
  void reset_device(const phi::Place& place) {
    if (guard_) {
      guard_->reset_device(place);
    } else {
      guard_.emplace(place);
    }
  }

  // Restores the original device, and does nothing until it gets another one.
  void reset() { guard_.reset(); }

  // Returns the device that the guard restores, if any.
  std::optional<phi::Place> original_device() const {
    if (!guard_) return std::nullopt;
    return guard_->original_device();
  }

  // Returns the device that the guard has made the current one, if any.
  std::optional<phi::Place> current_device() const {
    if (!guard_) return std::nullopt;
    return guard_->current_device();
  }

 private:
  std::optional<DeviceGuard> guard_;
};

// Makes a stream the current one of its device, and that device the current one
// of its type. While the guard exists, Python cannot set another stream of that
// device on this thread.
class StreamGuard {
 public:
  explicit StreamGuard(DeviceStream stream)
      : device_(stream.place()),
        stream_(std::move(stream)),
        use_(DeviceGuardBackend::Instance().UseStreams({stream_.context_})) {}

  StreamGuard(const StreamGuard&) = delete;
  StreamGuard& operator=(const StreamGuard&) = delete;

  // Switches to another stream, which may belong to another device.
  void reset_stream(DeviceStream stream) {
    auto use = DeviceGuardBackend::Instance().UseStreams({stream.context_});
    device_.reset_device(stream.place());
    use_ = std::move(use);
    stream_ = std::move(stream);
  }

  // Returns the stream that the guard has made the current one.
  const DeviceStream& current_stream() const { return stream_; }

  // Returns the device that the guard restores.
  const phi::Place& original_device() const {
    return device_.original_device();
  }

 private:
  DeviceGuard device_;
  DeviceStream stream_;  // Must outlive use_.
  std::shared_ptr<void> use_;
};

// Makes several streams the current ones, one per device. The current device
// does not change.
class MultiStreamGuard {
 public:
  // Throws if two of the streams belong to the same device.
  explicit MultiStreamGuard(const std::vector<DeviceStream>& streams) {
    std::vector<std::shared_ptr<phi::DeviceContext>> contexts;
    for (const auto& stream : streams) contexts.push_back(stream.context_);
    use_ = DeviceGuardBackend::Instance().UseStreams(contexts);
  }

  MultiStreamGuard(const MultiStreamGuard&) = delete;
  MultiStreamGuard& operator=(const MultiStreamGuard&) = delete;

 private:
  std::shared_ptr<void> use_;
};

}  // namespace paddle
