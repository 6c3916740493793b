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
#include <functional>
#include <optional>
#include <vector>

#include "paddle/phi/core/memory/allocation/shared_memory/shared_heap.h"

namespace paddle {
namespace memory {
namespace allocation {

// The other users of a block.
struct SharedBlockUsers {
  std::vector<uint32_t> processes;  // holders, without the calling process
  uint64_t messages;                // that were not received yet
};

// Records: blocks of a SharedHeap that stand for memory elsewhere, on a GPU. A
// holder of a record may use the memory that the record describes.
//
// Invariant: a record differs from other blocks in three points only. Forked
// children do not inherit it, since they cannot use the memory. Its message
// counts as not received until RedeemTicket, so that the sender keeps the event
// that the receiver still has to wait for. And a callback runs in its owner
// when it is freed.
//
// SharedHeap has the functions that work for all blocks: Send, Bind and
// Release.
//
// Thread-safe. Each function locks the heap's mutex itself.
class SharedRecords {
 public:
  // `heap` outlives this object, which is a view of it.
  explicit SharedRecords(SharedHeap* heap) : heap_(heap) {}

  // Allocates a record of at least `size` bytes. The caller becomes its one
  // user and has to release it.
  SharedBlock Allocate(SharingStrategy strategy, uint64_t size);
  // Receives a record as SharedHeap::Receive does, without redeeming the ticket
  // of the message.
  SharedHeap::Received Receive(const SharedMessage& message);
  // Redeems the ticket of a message. Has no effect if the record's segment is
  // gone: then no process waits for the message.
  void RedeemTicket(const SharedMessage& message);

  // Registers a callback for when the record is freed. It runs once, on a
  // thread that allocates or collects, without the heap's mutex. It never runs
  // in a forked child, nor because the process exits. It must not throw.
  //
  // Requires: the calling process owns the record and holds it.
  void OnFree(const SharedBlock& record, std::function<void()> callback);
  // Expires messages of records that were sent longer ago than the timeout, in
  // seconds, and reaps and frees in all own segments.
  void Collect(std::optional<double> message_timeout);

  // Returns whether a message that this process sent was not received yet.
  bool IsInFlight(const SharedMessage& message) const;
  // Returns the other users of a record; none if its segment is not attached.
  SharedBlockUsers OtherUsers(const SharedBlock& record) const;
  // Returns whether the owner of a record is alive.
  bool OwnerIsAlive(const SharedBlock& record) const;
  // Returns the calling process as a holder of a record; none if the owner of
  // the record's segment has ended and this process has detached the segment.
  // Requires: the process holds the record.
  std::optional<SharedHolder> Self(const SharedBlock& record) const;
  // Returns whether a process still holds a record; true if that is unknown.
  // Requires: the calling process holds the record.
  bool IsHeldBy(const SharedBlock& record, const SharedHolder& holder) const;

 private:
  SharedHeap* heap_;
};

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
