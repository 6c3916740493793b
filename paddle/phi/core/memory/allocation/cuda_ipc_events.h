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

#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>

#include "paddle/phi/core/memory/allocation/cuda_ipc_driver.h"
#include "paddle/phi/core/memory/allocation/shared_records.h"

namespace paddle {
namespace memory {
namespace allocation {

// When the work is done that a process had given to a device. Of no `maker`: it
// was done already.
struct CudaIPCStamp {
  uint64_t maker;
  CudaIPCHandle event;
};

// Events that tell other processes when work is done.
//
// Invariant: an event is recorded again only when the work of its last message
// is done and the message was received, or given up. So whoever receives it
// waits for what was there when the message was sent, and for nothing later.
// Who loads a pickle a second time may wait for more, never for less.
//
// Thread-safe.
class CudaIPCEvents {
 public:
  static constexpr size_t kMade = 1000;    // a device
  static constexpr size_t kOpened = 1024;  // a process

  explicit CudaIPCEvents(SharedRecords* records) : records_(records) {}

  // None if all events are waited for and the driver has no more.
  std::optional<CudaIPCStamp> Record(int device, CudaIPCDriver::Stream stream);
  // Says which message has the stamp; none if there was no message after all.
  void Sent(int device,
            const CudaIPCStamp& stamp,
            const std::optional<SharedMessage>& message);
  void Wait(int device,
            CudaIPCDriver::Stream stream,
            const CudaIPCStamp& stamp);
  uint64_t count();

 private:
  struct Made {
    CudaIPCDriver::SharedEvent shared;
    bool sending;
    std::optional<SharedMessage> message;
  };
  using Key = std::tuple<int, uint64_t, CudaIPCHandle>;

  bool IsFree(int device, const Made& made);
  bool Make(int device, std::deque<Made>* events);
  // Brings an event that is free to the end; false if there is none.
  bool FindFree(int device, std::deque<Made>* events);
  CudaIPCDriver::Event Find(int device, const CudaIPCStamp& stamp);

  SharedRecords* records_;
  uint64_t maker_{0};  // once there is an event
  std::mutex mutex_;
  std::map<int, std::deque<Made>> made_;
  std::map<Key, CudaIPCDriver::Event> opened_;
  std::deque<Key> oldest_opened_;
};

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
