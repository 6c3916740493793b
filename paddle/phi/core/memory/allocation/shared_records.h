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

#include "paddle/phi/core/memory/allocation/shared_heap.h"

namespace paddle {
namespace memory {
namespace allocation {

// Others that still need a block.
struct SharedBlockUsers {
  std::vector<uint32_t> processes;
  uint64_t messages;
};

// Records: blocks of a SharedHeap that stand for memory elsewhere, on a GPU. A
// process that holds a record may use the memory that it describes.
//
// A record differs from other blocks in three ways: no child of fork inherits
// it, since the child could not use the memory; its message counts as not
// received until Redeem, so that the sender keeps what the receiver waits for;
// and its owner learns when nobody needs it any more.
//
// What records have in common with other blocks (Send, Bind, Release) is the
// heap's.
//
// Thread-safe.
class SharedRecords {
 public:
  explicit SharedRecords(SharedHeap* heap) : heap_(heap) {}

  // A record of at least `size` bytes with one user, who releases it.
  SharedBlock Allocate(SharingStrategy strategy, uint64_t size);
  // Receives the record of a message, as SharedHeap::Receive does. The message
  // counts as not received before Redeem.
  SharedHeap::Received Receive(const SharedMessage& message);
  void Redeem(const SharedMessage& message);

  // Says what to do when nobody holds the block and no message carries it any
  // more. The calling process made the block and holds it. It is done once, by
  // a thread that allocates, collects or reclaims, with no lock held; never in
  // a child of fork, nor when the process ends. It may not throw.
  void AtEnd(const SharedBlock& block, std::function<void()> act);
  // Takes back what dead processes held and does what is to be done at the end
  // of blocks. With a timeout in seconds, messages that were sent longer ago
  // and carry such a block are given up.
  void Reclaim(std::optional<double> message_timeout);
  // Whether a message that this process made was not received yet.
  bool IsInFlight(const SharedMessage& message) const;
  SharedBlockUsers OtherUsers(const SharedBlock& block) const;
  // Whether the process lives that made the block.
  bool OwnerIsAlive(const SharedBlock& block) const;

 private:
  SharedHeap* heap_;
};

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
