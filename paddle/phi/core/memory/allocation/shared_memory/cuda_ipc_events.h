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

#include "paddle/phi/core/memory/allocation/shared_memory/cuda_ipc_driver.h"
#include "paddle/phi/core/memory/allocation/shared_memory/shared_records.h"

namespace paddle {
namespace memory {
namespace allocation {

// Says when memory is ready to be used: once the work that was submitted before
// the event was recorded is done. If `process` is 0, it was already done.
struct CudaIPCReadyEvent {
  uint64_t process;  // a random number of the process that recorded the event
  CudaIPCHandle event;
  // Of the members above; 0 if they are 0. A driver may crash when it opens a
  // damaged handle (seen on an H200, driver 580.159.04).
  uint64_t checksum;
};

// The events that tell other processes when work on a GPU is done.
//
// Invariant: an event is recorded again only when the work of its last message
// is done and that message was received or has expired. So a receiver waits for
// the work that was submitted before the message was sent, and for no later
// work. A process that loads a pickle twice may wait for more work, never for
// less, and for as long as the sender keeps sending.
//
// Thread-safe. The mutex is held during driver calls, none of which waits for a
// device.
class CudaIPCEvents {
 public:
  static constexpr size_t kMaxCreated = 1000;  // per device
  static constexpr size_t kMaxOpened = 1024;   // per process

  // `records` outlives this object.
  explicit CudaIPCEvents(SharedRecords* records) : records_(records) {}

  // Records a free event. Returns none if there is no free event and the driver
  // cannot create more. The caller has to call Sent next.
  std::optional<CudaIPCReadyEvent> Record(int device,
                                          CudaIPCDriver::Stream stream);
  // Notes which message carries the event; none if no message was sent after
  // all.
  void Sent(int device,
            const CudaIPCReadyEvent& ready,
            const std::optional<SharedMessage>& message);
  // Throws if a received event was damaged. Other functions require that it was
  // not.
  static void EnforceIntact(const CudaIPCReadyEvent& ready);
  // If this process recorded the event, makes a stream wait for the work before
  // it, and returns true.
  bool WaitForOwn(int device,
                  CudaIPCDriver::Stream stream,
                  const CudaIPCReadyEvent& ready);
  // Returns whether the work before an event of another process is done.
  bool IsDone(int device, const CudaIPCReadyEvent& ready);
  uint64_t count();

 private:
  struct Created {
    CudaIPCDriver::SharedEvent shared;
    bool sending;
    std::optional<SharedMessage> message;
  };
  using Key = std::tuple<int, uint64_t, CudaIPCHandle>;

  // Requires, for all functions below: the mutex is held.
  bool IsFree(int device, const Created& created);
  bool Create(int device, std::deque<Created>* events);
  // Moves a free event to the end; returns false if there is none.
  bool FindFree(int device, std::deque<Created>* events);
  CudaIPCDriver::Event FindOrOpen(int device, const CudaIPCReadyEvent& ready);

  SharedRecords* records_;
  uint64_t process_{0};  // 0 until the first event is recorded
  std::mutex mutex_;
  std::map<int, std::deque<Created>> created_;
  std::map<Key, CudaIPCDriver::Event> opened_;
  std::deque<Key> oldest_opened_;
};

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
