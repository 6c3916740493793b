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

// Guards of the current device and the current streams, for custom operators
// and other code in C++:
//
//   paddle::DeviceStream side(x.place());
//   side.wait_stream(paddle::DeviceStream::current(x.place()));
//   {
//     paddle::StreamGuard guard(side);
//     y = paddle::experimental::scale(x, 2.0);  // runs on `side`
//   }
//   paddle::DeviceStream::current(x.place()).wait_stream(side);
//
// A guard acts on the calling thread only, and puts back what it has changed
// when it is destroyed, also by an exception. A function that throws has
// changed nothing. All functions are thread-safe, but a guard is used and
// destroyed on the thread that made it. No function needs the GIL.
//
// Each type of devices has a current device, which calls of the driver act on:
// the one that cudaSetDevice and DeviceManager::SetDevice set. What
// paddle.device.get_device() returns stays, and new tensors are on the place
// that they are given. The CPU has no index and no streams; a guard of it does
// nothing.

namespace phi {
class DeviceContext;
}  // namespace phi

namespace paddle {

// What the classes below do to the calling thread. Virtual, so that code that
// is compiled with this header needs one function of Paddle's libraries.
class PADDLE_API ThreadDevices {
 public:
  static ThreadDevices& Instance();

  // Makes the device of this index the current one of the type of `place`.
  // Returns the previous one.
  virtual phi::Place ExchangeDevice(const phi::Place& place, int index);

  // Makes a device that ExchangeDevice has returned the current one again.
  virtual void RestoreDevice(const phi::Place& place) noexcept;

  // A stream is the device context that is bound to it.
  virtual std::shared_ptr<phi::DeviceContext> NewStream(
      const phi::Place& place);
  virtual std::shared_ptr<phi::DeviceContext> CurrentStream(
      const phi::Place& place);
  virtual void* RawStream(const phi::DeviceContext& stream);
  virtual void Synchronize(const phi::DeviceContext& stream);
  virtual void WaitForStream(const phi::DeviceContext& waiting,
                             const phi::DeviceContext& other);

  // Makes each stream the current one of its device, until the object that is
  // returned is destroyed.
  virtual std::shared_ptr<void> UseStreams(
      const std::vector<std::shared_ptr<phi::DeviceContext>>& streams);

 protected:
  ThreadDevices() = default;
  ~ThreadDevices() = default;
};

// A stream of a device; copies are the same stream. The stream and its device
// context are made once, so make it once and use it often. It is destroyed with
// the last copy, which waits for its work, but not by a child of a fork.
class DeviceStream {
 public:
  // Makes a new stream. Throws if the place is of no GPU and no custom device,
  // or if there is no such device.
  explicit DeviceStream(const phi::Place& place)
      : place_(place), context_(ThreadDevices::Instance().NewStream(place)) {}

  // Returns the current stream of the calling thread on a device. On a thread
  // that has set none that is the stream of the process, which changes when the
  // main thread sets one. Throws as the constructor does.
  static DeviceStream current(const phi::Place& place) {
    return {place, ThreadDevices::Instance().CurrentStream(place)};
  }

  const phi::Place& place() const { return place_; }

  // Returns the stream as the driver has it, such as a cudaStream_t.
  void* raw_stream() const {
    return ThreadDevices::Instance().RawStream(*context_);
  }

  // Waits until the work on the stream is done.
  void synchronize() const { ThreadDevices::Instance().Synchronize(*context_); }

  // Makes later work on this stream wait for the work that `other` has been
  // given by now, as Stream.wait_stream does in Python.
  void wait_stream(const DeviceStream& other) const {
    ThreadDevices::Instance().WaitForStream(*context_, *other.context_);
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
  // Throws if there is no such device.
  explicit DeviceGuard(const phi::Place& place)
      : original_(Exchange(place, place.GetDeviceId())), current_(place) {}

  ~DeviceGuard() { Restore(); }

  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

  // Makes another device the current one, and puts back the one of the previous
  // type if the types differ. Throws if there is no such device.
  void reset_device(const phi::Place& place) {
    const phi::Place previous = Exchange(place, place.GetDeviceId());
    if (!OfSameType(place, original_)) {
      Restore();
      original_ = previous;
    }
    current_ = place;
  }

  // The same for another device of the type. Throws if there is no such device.
  void set_index(int index) {
    Exchange(current_, index);
    if (HasIndex(current_)) current_.device = static_cast<int8_t>(index);
  }

  // Returns the device that is restored.
  const phi::Place& original_device() const { return original_; }

  // Returns the device that this has made the current one.
  const phi::Place& current_device() const { return current_; }

 private:
  // The others cost nothing.
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
    return ThreadDevices::Instance().ExchangeDevice(place, index);
  }

  void Restore() noexcept {
    if (HasIndex(original_)) {
      ThreadDevices::Instance().RestoreDevice(original_);
    }
  }

  phi::Place original_;
  phi::Place current_;
};

// A DeviceGuard that does nothing until it is given a device.
class OptionalDeviceGuard {
 public:
  OptionalDeviceGuard() = default;

  // Throws if there is no such device.
  explicit OptionalDeviceGuard(const std::optional<phi::Place>& place) {
    if (place) guard_.emplace(*place);
  }

  // Makes a device the current one. Throws if there is no such device.
  void reset_device(const phi::Place& place) {
    if (guard_) {
      guard_->reset_device(place);
    } else {
      guard_.emplace(place);
    }
  }

  // Puts back what was current, and does nothing until it is given a device.
  void reset() { guard_.reset(); }

  // Returns the device that is restored, if any.
  std::optional<phi::Place> original_device() const {
    if (!guard_) return std::nullopt;
    return guard_->original_device();
  }

  // Returns the device that this has made the current one, if any.
  std::optional<phi::Place> current_device() const {
    if (!guard_) return std::nullopt;
    return guard_->current_device();
  }

 private:
  std::optional<DeviceGuard> guard_;
};

// Makes a stream the current one of its device, and that device the current one
// of its type. While it exists, no stream of that device can be set from Python
// on this thread.
class StreamGuard {
 public:
  explicit StreamGuard(DeviceStream stream)
      : device_(stream.place()),
        stream_(std::move(stream)),
        use_(ThreadDevices::Instance().UseStreams({stream_.context_})) {}

  StreamGuard(const StreamGuard&) = delete;
  StreamGuard& operator=(const StreamGuard&) = delete;

  // Uses another stream, which may be of another device, instead.
  void reset_stream(DeviceStream stream) {
    auto use = ThreadDevices::Instance().UseStreams({stream.context_});
    device_.reset_device(stream.place());
    use_ = std::move(use);
    stream_ = std::move(stream);
  }

  // Returns the stream that this has made the current one.
  const DeviceStream& current_stream() const { return stream_; }

  // Returns the device that is restored.
  const phi::Place& original_device() const {
    return device_.original_device();
  }

 private:
  DeviceGuard device_;
  // Outlives its use.
  DeviceStream stream_;
  std::shared_ptr<void> use_;
};

// Makes several streams the current ones, each of its device. The current
// device stays.
class MultiStreamGuard {
 public:
  // Throws if two of the streams are of one device.
  explicit MultiStreamGuard(const std::vector<DeviceStream>& streams) {
    std::vector<std::shared_ptr<phi::DeviceContext>> contexts;
    for (const auto& stream : streams) contexts.push_back(stream.context_);
    use_ = ThreadDevices::Instance().UseStreams(contexts);
  }

  MultiStreamGuard(const MultiStreamGuard&) = delete;
  MultiStreamGuard& operator=(const MultiStreamGuard&) = delete;

 private:
  std::shared_ptr<void> use_;
};

}  // namespace paddle
