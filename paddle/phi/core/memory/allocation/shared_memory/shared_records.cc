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

#include "paddle/phi/core/memory/allocation/shared_memory/shared_records.h"

#include <mutex>
#include <utility>

namespace paddle {
namespace memory {
namespace allocation {

SharedBlock SharedRecords::Allocate(SharingStrategy strategy, uint64_t size) {
  return heap_->Allocate(strategy, size, SharedHeap::Inheritance::kNone);
}

SharedHeap::Received SharedRecords::Receive(const SharedMessage& message) {
  std::lock_guard<std::mutex> guard(heap_->mutex_);
  return heap_->ReceiveBlock(
      message, SharedHeap::Inheritance::kNone, SharedHeap::Ticket::kKeep);
}

void SharedRecords::RedeemTicket(const SharedMessage& message) {
  std::lock_guard<std::mutex> guard(heap_->mutex_);
  // If the segment is gone, no process waits for the message any more.
  auto attached = heap_->segments_.find(message.id.segment);
  if (attached == heap_->segments_.end()) return;
  attached->second.segment->ledger().RedeemTicket(message.block,
                                                  message.ticket);
}

void SharedRecords::OnFree(const SharedBlock& block,
                           std::function<void()> callback) {
  std::lock_guard<std::mutex> guard(heap_->mutex_);
  heap_->segments_.at(block.segment)
      .blocks->OnFree(block.index, std::move(callback));
}

void SharedRecords::Collect(std::optional<double> message_timeout) {
  SharedHeap::Locked locked(heap_);
  if (message_timeout) {
    for (SharedHeap::Attached* owned : heap_->owned_)
      owned->blocks->ExpireRecords(SharedHeap::SecondsAgo(*message_timeout));
  }
  heap_->ReapAndFree();
}

bool SharedRecords::IsInFlight(const SharedMessage& message) const {
  std::lock_guard<std::mutex> guard(heap_->mutex_);
  auto attached = heap_->segments_.find(message.id.segment);
  if (attached == heap_->segments_.end()) return false;
  SharedLedger& ledger = attached->second.segment->ledger();
  return ledger.generation(message.block) == message.generation &&
         ledger.HasTicket(message.block, message.ticket);
}

SharedBlockUsers SharedRecords::OtherUsers(const SharedBlock& block) const {
  std::lock_guard<std::mutex> guard(heap_->mutex_);
  auto attached = heap_->segments_.find(block.segment);
  if (attached == heap_->segments_.end()) return {};
  SharedSegment& segment = *attached->second.segment;
  return {segment.OtherHolders(block.index),
          segment.ledger().TicketCount(block.index)};
}

bool SharedRecords::OwnerIsAlive(const SharedBlock& block) const {
  std::lock_guard<std::mutex> guard(heap_->mutex_);
  auto attached = heap_->segments_.find(block.segment);
  return attached != heap_->segments_.end() &&
         (attached->second.blocks || attached->second.segment->OwnerIsAlive());
}

std::optional<SharedHolder> SharedRecords::Self(
    const SharedBlock& block) const {
  std::lock_guard<std::mutex> guard(heap_->mutex_);
  auto attached = heap_->segments_.find(block.segment);
  if (attached == heap_->segments_.end()) return std::nullopt;
  return attached->second.segment->self();
}

bool SharedRecords::IsHeldBy(const SharedBlock& block,
                             const SharedHolder& holder) const {
  std::lock_guard<std::mutex> guard(heap_->mutex_);
  auto attached = heap_->segments_.find(block.segment);
  return attached == heap_->segments_.end() ||
         attached->second.segment->IsHeldBy(block.index, holder);
}

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
