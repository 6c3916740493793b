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

#include "paddle/phi/core/memory/allocation/shared_memory/cuda_ipc_events.h"

#include "paddle/phi/core/memory/allocation/shared_memory/random_bits.h"
#include "paddle/phi/core/memory/allocation/shared_memory/shared_memory_error.h"

namespace paddle {
namespace memory {
namespace allocation {

namespace {

using Stream = CudaIPCDriver::Stream;
using Event = CudaIPCDriver::Event;

// FNV-1a, but starting with 0. Each change of a single byte changes the result.
uint64_t ChecksumOf(uint64_t process, const CudaIPCHandle& event) {
  constexpr uint64_t kPrime = 0x100000001b3;
  uint64_t sum = 0;
  for (int shift = 0; shift < 64; shift += 8) {
    sum = (sum ^ (process >> shift & 0xff)) * kPrime;
  }
  for (char byte : event) {
    sum = (sum ^ static_cast<unsigned char>(byte)) * kPrime;
  }
  return sum;
}

}  // namespace

void CudaIPCEvents::EnforceIntact(const CudaIPCReadyEvent& ready) {
  if (ready.checksum == ChecksumOf(ready.process, ready.event)) return;
  throw SharedMemoryError(
      SharedMemoryError::Kind::kInvalid,
      "The handle of a received tensor was damaged: the event that says when "
      "its GPU memory is ready has a wrong checksum. Send the tensor again.");
}

bool CudaIPCEvents::IsFree(int device, const Created& created) {
  return !created.sending &&
         !(created.message && records_->IsInFlight(*created.message)) &&
         CudaIPCDriver::Instance().IsDone(device, created.shared.event);
}

bool CudaIPCEvents::Create(int device, std::deque<Created>* events) {
  if (events->size() >= kMaxCreated) return false;
  auto event = CudaIPCDriver::Instance().MakeEvent(device);
  if (event) events->push_back({*event, false, {}});
  return event.has_value();
}

bool CudaIPCEvents::FindFree(int device, std::deque<Created>* events) {
  // Usually the first event, or one near it, is free. All events are checked
  // only when no more can be created.
  constexpr size_t kNear = 8;
  for (size_t i = 0; i < events->size(); ++i) {
    if (i == kNear && Create(device, events)) return true;
    bool is_free = IsFree(device, events->front());
    events->push_back(events->front());
    events->pop_front();
    if (is_free) return true;
  }
  return events->size() <= kNear && Create(device, events);
}

std::optional<CudaIPCReadyEvent> CudaIPCEvents::Record(int device,
                                                       Stream stream) {
  CudaIPCDriver& driver = CudaIPCDriver::Instance();
  std::lock_guard<std::mutex> guard(mutex_);
  if (process_ == 0) process_ = RandomBits();
  std::deque<Created>& events = created_[device];
  if (!FindFree(device, &events)) return std::nullopt;
  Created& created = events.back();
  driver.Record(device, created.shared.event, stream);
  created.sending = true;
  created.message.reset();
  const CudaIPCHandle& handle = created.shared.handle;
  return CudaIPCReadyEvent{process_, handle, ChecksumOf(process_, handle)};
}

void CudaIPCEvents::Sent(int device,
                         const CudaIPCReadyEvent& ready,
                         const std::optional<SharedMessage>& message) {
  if (ready.process == 0) return;
  std::lock_guard<std::mutex> guard(mutex_);
  for (auto created = created_[device].rbegin();
       created != created_[device].rend();
       ++created) {
    if (created->shared.handle != ready.event) continue;
    created->sending = false;
    created->message = message;
    return;
  }
}

Event CudaIPCEvents::FindOrOpen(int device, const CudaIPCReadyEvent& ready) {
  Key key{device, ready.process, ready.event};
  auto known = opened_.find(key);
  if (known != opened_.end()) return known->second;
  CudaIPCDriver& driver = CudaIPCDriver::Instance();
  if (oldest_opened_.size() == kMaxOpened) {
    auto oldest = opened_.extract(oldest_opened_.front());
    oldest_opened_.pop_front();
    try {
      driver.DestroyEvent(std::get<int>(oldest.key()), oldest.mapped());
    } catch (const SharedMemoryError&) {
      // Its process may be gone, and the event is no longer needed here.
    }
  }
  Event event = driver.OpenEvent(device, ready.event);
  opened_[key] = event;
  oldest_opened_.push_back(key);
  return event;
}

bool CudaIPCEvents::WaitForOwn(int device,
                               Stream stream,
                               const CudaIPCReadyEvent& ready) {
  std::lock_guard<std::mutex> guard(mutex_);
  if (ready.process == 0 || ready.process != process_) return false;
  for (const Created& created : created_[device]) {
    if (created.shared.handle != ready.event) continue;
    CudaIPCDriver::Instance().Wait(device, stream, created.shared.event);
    return true;
  }
  return false;
}

bool CudaIPCEvents::IsDone(int device, const CudaIPCReadyEvent& ready) {
  if (ready.process == 0) return true;
  std::lock_guard<std::mutex> guard(mutex_);
  return CudaIPCDriver::Instance().IsDone(device, FindOrOpen(device, ready));
}

uint64_t CudaIPCEvents::count() {
  std::lock_guard<std::mutex> guard(mutex_);
  uint64_t count = opened_.size();
  for (const auto& [device, events] : created_) count += events.size();
  return count;
}

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
