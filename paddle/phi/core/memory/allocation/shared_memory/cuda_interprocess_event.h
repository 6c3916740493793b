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
#include <memory>
#include <mutex>
#include <optional>
#include <set>

#include "paddle/phi/core/memory/allocation/shared_memory/cuda_ipc_driver.h"
#include "paddle/phi/core/memory/allocation/shared_memory/shared_records.h"

namespace paddle {
namespace memory {
namespace allocation {

// A GPU event that a program sends to other processes. Each process may record
// it, query it, and make streams wait for it. CudaIPCEvents has the events that
// accompany tensor messages.
//
// Like GPU memory, an event that was sent has a record (SharedRecords). The
// driver's event is destroyed once no process holds the record and no message
// carries it, since drivers leave any later use undefined. The event ends with
// the process that created it.
//
// Invariant: a process has at most one object for a record, and each object is
// one user of its record.
//
// Thread-safe. In a forked child all functions throw, and the destructor does
// nothing.
class CudaInterprocessEvent
    : public std::enable_shared_from_this<CudaInterprocessEvent> {
 public:
  using Stream = CudaIPCDriver::Stream;

  // Creates an event. It counts as done until it is recorded.
  static std::shared_ptr<CudaInterprocessEvent> Make(int device);
  // Receives an event. If this process already has an object for it, returns
  // that object. If the event is not on `device` (none: any device), throws,
  // and the message can be received again.
  static std::shared_ptr<CudaInterprocessEvent> Receive(
      const SharedMessage& message, std::optional<int> device);

  CudaInterprocessEvent(const CudaInterprocessEvent&) = delete;
  CudaInterprocessEvent& operator=(const CudaInterprocessEvent&) = delete;
  // If this process has received the event, waits until its streams are done
  // with it.
  ~CudaInterprocessEvent();

  int device() const { return device_; }
  // Returns a message, which keeps the event alive until it is received or
  // expires.
  SharedMessage Send(SharingStrategy strategy);
  // Records the event on a stream of its device, and replaces an earlier
  // recording. Throws if the process of that recording was killed before its
  // work was done: the driver would never complete the event.
  void Record(Stream stream);
  // Makes a stream of any device wait for the work that was submitted before
  // the last recording of the event, by whichever process. Does nothing if that
  // process has ended. If it ends later, before its work is done, the stream
  // waits forever: no way to end such a wait is known.
  void Wait(int device, Stream stream);
  // Returns whether nothing of that work is left: it is done, or its process
  // was killed, which the driver never reports. Stays false if the event was
  // recorded again before the work of an earlier recording was done, and the
  // process of that one is killed.
  bool IsDone();

 private:
  class Registry;
  // Words of a record that stand for processes.
  struct Recorders {
    uint64_t previous;
    uint64_t self;
  };

  CudaInterprocessEvent(int device, const CudaIPCDriver::SharedEvent& made);
  CudaInterprocessEvent(int device,
                        CudaIPCDriver::Event event,
                        bool is_received,
                        const SharedBlock& record);
  // Returns the event of a record. Takes over the caller's use of the record,
  // unless it throws.
  static std::shared_ptr<CudaInterprocessEvent> Open(
      const SharedBlock& record, int device, const CudaIPCHandle& handle);

  void EnsureRecord(SharingStrategy strategy);
  template <typename Call>
  void CallDriver(const Call& call);
  void NoteUseOn(int device);
  // Notes in the record that this process records the event. If that fails,
  // RestoreRecorder takes it back.
  Recorders NoteRecorder();
  void RestoreRecorder(Recorders noted);
  // Returns whether the process that recorded the event last has ended, or has
  // dropped the event, which it does only when its work is done. Requires: the
  // owner is alive.
  bool RecorderIsGone();

  const int device_;
  const CudaIPCDriver::Event event_;
  const bool is_received_;
  std::optional<CudaIPCHandle> handle_;  // if this object created the event
  std::mutex mutex_;                     // guards the members below
  std::optional<SharedBlock> record_;    // once it was sent; it never changes
  std::set<int> used_on_;                // devices
};

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
