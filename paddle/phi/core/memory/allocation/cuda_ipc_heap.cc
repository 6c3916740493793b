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

#include "paddle/phi/core/memory/allocation/cuda_ipc_heap.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <iterator>

namespace paddle {
namespace memory {
namespace allocation {

namespace {

using Kind = SharedMemoryError::Kind;
using Stream = CudaIPCDriver::Stream;

constexpr uint64_t kRecordMagic = 0x3143504944444450;  // "PDDDIPC1"

// For threads that wait for a device while the process ends.
constexpr std::chrono::seconds kPatience(5);
// Of giving back what the driver would not let go: it may wait each time.
constexpr std::chrono::seconds kBetweenTries(1);

// What is in the block that stands for memory of a device.
struct CudaIPCRecord {
  uint64_t magic;
  CudaDeviceUuid uuid;
  CudaIPCDriver::Exported exported;
  uint64_t size;
};

std::string Join(const std::vector<uint32_t>& processes) {
  std::string text;
  for (uint32_t process : processes) {
    text += (text.empty() ? "" : ", ") + std::to_string(process);
  }
  return text;
}

}  // namespace

void CudaIPCSentDataLimbo::Add(const CudaIPCData* data) {
  if (data_.insert(data).second) bytes_ += data->memory.size;
}

void CudaIPCSentDataLimbo::Remove(const CudaIPCData* data) {
  if (data_.erase(data) != 0) bytes_ -= data->memory.size;
}

CudaIPCHeap& CudaIPCHeap::Instance() {
  static CudaIPCHeap& heap =
      *std::unique_ptr<CudaIPCHeap>(new CudaIPCHeap).release();  // NOLINT
  return heap;
}

CudaIPCHeap::CudaIPCHeap()
    : shared_(SharedHeap::Instance()),
      records_(&shared_),
      events_(std::make_unique<CudaIPCEvents>(&records_)),
      handles_(std::make_unique<CudaIPCOpenedHandles>()) {
  // SharedHeap's handlers were registered before; so in the child they come
  // first.
  pthread_atfork([] { Instance().mutex_.lock(); },
                 [] { Instance().mutex_.unlock(); },
                 [] { Instance().ChildAfterFork(); });
}

std::shared_ptr<CudaIPCData> CudaIPCHeap::Find(const void* address) {
  const char* byte = static_cast<const char*>(address);
  std::lock_guard<std::mutex> guard(mutex_);
  auto after = by_address_.upper_bound(byte);
  if (after == by_address_.begin()) return nullptr;
  auto& [start, data] = *std::prev(after);
  bool in_use = data->uses > 0 && byte < start + data->memory.size;
  return in_use ? data : nullptr;
}

bool CudaIPCHeap::Share(SharingStrategy strategy,
                        const CudaIPCMemory& memory,
                        std::weak_ptr<void> storage,
                        const std::function<void()>& take_over) {
  CudaIPCDriver& driver = CudaIPCDriver::Instance();
  std::optional<CudaIPCDriver::Exported> exported =
      driver.Export(memory.device, memory.data);
  if (!exported) return false;
  auto sent = std::make_shared<CudaIPCSentData>();
  sent->memory = memory;
  sent->uses = 1;
  // A child of fork cannot use the memory, so it must not keep it either.
  sent->block = records_.Allocate(strategy, sizeof(CudaIPCRecord));
  CudaIPCRecord record = {
      kRecordMagic, driver.Uuid(memory.device), *exported, memory.size};
  std::memcpy(sent->block.data, &record, sizeof(record));
  {
    std::lock_guard<std::mutex> guard(mutex_);
    if (by_address_.emplace(memory.data, sent).second) {
      sent_[IdOf(sent->block)] = sent;
      records_.AtEnd(sent->block, [this, data = sent.get()] { End(*data); });
      shared_.Bind(sent->block, std::move(storage), [&] {
        take_over();
        return true;
      });
      return true;
    }
  }
  shared_.Release(sent->block);
  return true;
}

std::optional<CudaIPCMessage> CudaIPCHeap::Send(const void* address,
                                                std::optional<Stream> stream) {
  EnforceNotLeaving();
  std::shared_ptr<CudaIPCData> data = Find(address);
  if (!data) return std::nullopt;
  GiveBackLateInTime();
  if (HasLimbo()) records_.Reclaim({});
  // Before there is a message, so that a failure leaves none behind.
  CudaIPCStamp stamp = Stamp(*data, stream);
  std::optional<SharedMessage> record;
  try {
    record = shared_.Send(data->block.data);
  } catch (...) {
    events_->Sent(data->memory.device, stamp, {});
    throw;
  }
  events_->Sent(data->memory.device, stamp, record);
  if (!record) return std::nullopt;
  uint64_t offset = static_cast<const char*>(address) - data->memory.data;
  return CudaIPCMessage{*record, stamp, offset};
}

CudaIPCStamp CudaIPCHeap::Stamp(const CudaIPCData& data,
                                std::optional<Stream> stream) {
  // An event goes with the process that made it. Memory does too, so an event
  // of the same process is good as long as it matters. Of what another made
  // this process may be gone when the message is received.
  std::optional<CudaIPCStamp> stamp;
  bool made_here = dynamic_cast<const CudaIPCSentData*>(&data) != nullptr;
  if (made_here && stream) {
    stamp = events_->Record(data.memory.device, *stream);
  }
  if (!stamp) {
    Aside([&] { CudaIPCDriver::Instance().Synchronize(data.memory.device); });
  }
  return stamp.value_or(CudaIPCStamp{});
}

bool CudaIPCHeap::Aside(const std::function<void()>& act) {
  std::function<void(const std::function<void()>&)> around;
  {
    std::lock_guard<std::mutex> guard(mutex_);
    if (leaving_) return false;
    ++aside_;
    around = around_waiting_;
  }
  std::exception_ptr failure;
  auto kept = [&] {
    try {
      act();
    } catch (...) {
      failure = std::current_exception();
    }
    std::lock_guard<std::mutex> guard(mutex_);
    --aside_;
    came_back_.notify_all();
  };
  around ? around(kept) : kept();
  if (failure) std::rethrow_exception(failure);
  return true;
}

std::shared_ptr<CudaIPCData> CudaIPCHeap::Known(
    const SharedBlock& block) const {
  auto sent = sent_.find(IdOf(block));
  if (sent != sent_.end()) return sent->second;
  auto received = received_.find(IdOf(block));
  if (received != received_.end()) return received->second;
  return nullptr;
}

std::shared_ptr<CudaIPCData> CudaIPCHeap::Use(const SharedBlock& block) {
  std::shared_ptr<CudaIPCData> data;
  {
    std::lock_guard<std::mutex> guard(mutex_);
    data = Known(block);
    if (!data) return nullptr;
    auto sent = std::dynamic_pointer_cast<CudaIPCSentData>(data);
    if (sent) sent->received_here = true;
    if (data->uses++ == 0) {
      limbo_.Remove(data.get());
      return data;
    }
  }
  shared_.Release(block);
  return data;
}

void CudaIPCHeap::EnforceMakerLives(const SharedBlock& block) {
  if (records_.OwnerIsAlive(block)) return;
  throw SharedMemoryError(
      Kind::kGone,
      "The process that made a received tensor has ended, and the GPU memory "
      "of a process goes with it. It has to live until nobody uses its tensors "
      "any more.");
}

void CudaIPCHeap::EnforceNotLeaving() {
  std::lock_guard<std::mutex> guard(mutex_);
  if (!leaving_) return;
  throw SharedMemoryError(
      Kind::kUnavailable,
      "This process ends: no more tensors on a GPU can be sent or received.");
}

std::shared_ptr<CudaIPCReceivedData> CudaIPCHeap::Open(
    const SharedBlock& block) {
  CudaIPCRecord record = {};
  if (block.capacity >= sizeof(record)) {
    std::memcpy(&record, block.data, sizeof(record));
  }
  const CudaIPCDriver::Exported& exported = record.exported;
  if (record.magic != kRecordMagic || record.size == 0 ||
      exported.offset > exported.size ||
      record.size > exported.size - exported.offset) {
    throw SharedMemoryError(
        Kind::kInvalid,
        "A received tensor is on a GPU, and what it names is no GPU memory.");
  }
  int device = CudaIPCDriver::Instance().DeviceOf(record.uuid);
  auto data = std::make_shared<CudaIPCReceivedData>();
  char* base = nullptr;
  EnforceMakerLives(block);
  try {
    Aside([&] { base = handles_->Open(device, exported.handle); });
    if (base == nullptr) EnforceNotLeaving();
  } catch (const SharedMemoryError&) {
    // Drivers say in many ways that there is no such memory any more.
    EnforceMakerLives(block);
    throw;
  }
  std::optional<uint64_t> size = CudaIPCDriver::Instance().SizeAt(device, base);
  if (size && *size < exported.offset + record.size) {
    handles_->Close(device, exported.handle);
    throw SharedMemoryError(
        Kind::kInvalid,
        "A received tensor has " + std::to_string(record.size) +
            " bytes at byte " + std::to_string(exported.offset) +
            " of GPU memory that has " + std::to_string(*size) + ".");
  }
  data->memory = {device, base + exported.offset, record.size};
  data->block = block;
  data->uses = 1;
  data->base = exported.handle;
  return data;
}

std::shared_ptr<CudaIPCData> CudaIPCHeap::UseOrOpen(const SharedBlock& block) {
  for (;;) {
    if (std::shared_ptr<CudaIPCData> known = Use(block)) return known;
    std::shared_ptr<CudaIPCReceivedData> opened = Open(block);
    {
      std::lock_guard<std::mutex> guard(mutex_);
      if (received_.emplace(IdOf(block), opened).second) {
        by_address_.emplace(opened->memory.data, opened);
        return opened;
      }
    }
    // Another thread has been faster.
    handles_->Close(opened->memory.device, opened->base);
  }
}

CudaIPCHeap::Received CudaIPCHeap::Receive(
    const CudaIPCMessage& message,
    const std::function<Stream(int)>& stream_of) {
  EnforceNotLeaving();
  GiveBackLateInTime();
  SharedHeap::Received record = records_.Receive(message.record);
  Received received{record.storage, nullptr};
  if (!received.storage) {
    try {
      received.data = UseOrOpen(record.block);
    } catch (...) {
      records_.Redeem(message.record);
      shared_.Release(record.block);
      throw;
    }
  }
  try {
    int device = DeviceOf(record.block);
    Wait(record.block, device, stream_of(device), message.stamp);
  } catch (...) {
    records_.Redeem(message.record);
    if (received.data) Drop(received.data);
    throw;
  }
  // Last: from now on the sender may use the event again.
  records_.Redeem(message.record);
  return received;
}

void CudaIPCHeap::Wait(const SharedBlock& block,
                       int device,
                       Stream stream,
                       const CudaIPCStamp& stamp) {
  try {
    events_->Wait(device, stream, stamp);
  } catch (const SharedMemoryError&) {
    EnforceMakerLives(block);
    throw;
  }
}

int CudaIPCHeap::DeviceOf(const SharedBlock& block) {
  std::lock_guard<std::mutex> guard(mutex_);
  std::shared_ptr<CudaIPCData> data = Known(block);
  if (!data) {
    throw SharedMemoryError(Kind::kInvalid,
                            "A received tensor is on a GPU, and what it names "
                            "is no GPU memory.");
  }
  return data->memory.device;
}

void CudaIPCHeap::Bind(const CudaIPCData& data, std::weak_ptr<void> storage) {
  shared_.Bind(data.block, std::move(storage), [] { return true; });
}

void CudaIPCHeap::Drop(const std::shared_ptr<CudaIPCData>& data) {
  {
    std::lock_guard<std::mutex> guard(mutex_);
    // What is not known was there before this process was forked.
    if (leaving_ || Known(data->block) != data || --data->uses > 0) return;
    if (received_.erase(IdOf(data->block)) != 0) {
      auto address = by_address_.find(data->memory.data);
      if (address->second == data) by_address_.erase(address);
    } else {
      limbo_.Add(data.get());
    }
  }
  GiveBack(data);
}

bool CudaIPCHeap::Drop(const void* data, std::function<void()> free) {
  std::shared_ptr<CudaIPCSentData> sent;
  {
    std::lock_guard<std::mutex> guard(mutex_);
    auto found = by_address_.find(static_cast<const char*>(data));
    if (found == by_address_.end()) return leaving_;
    sent = sent_.at(IdOf(found->second->block));
    sent->free = std::move(free);
  }
  Drop(sent);
  return true;
}

void CudaIPCHeap::End(const CudaIPCSentData& data) {
  std::function<void()> free;
  {
    std::lock_guard<std::mutex> guard(mutex_);
    auto ended = sent_.find(IdOf(data.block));
    free = std::move(ended->second->free);
    freed_ += data.memory.size;
    limbo_.Remove(&data);
    by_address_.erase(data.memory.data);
    sent_.erase(ended);
    // The process that ends gives it back, which needs no call.
    if (leaving_) return;
    ++aside_;
  }
  free();
  std::lock_guard<std::mutex> guard(mutex_);
  --aside_;
  came_back_.notify_all();
}

void CudaIPCHeap::GiveBack(const std::shared_ptr<CudaIPCData>& data) {
  std::shared_ptr<CudaIPCReceivedData> received =
      std::dynamic_pointer_cast<CudaIPCReceivedData>(data);
  bool waits = received != nullptr;
  if (auto sent = std::dynamic_pointer_cast<CudaIPCSentData>(data)) {
    // Of its own memory Paddle's allocator knows which streams use it, but not
    // of what came back in a message.
    std::lock_guard<std::mutex> guard(mutex_);
    waits = sent->received_here;
  }
  auto wait = [&] {
    CudaIPCDriver::Instance().Synchronize(data->memory.device);
    if (received) handles_->Close(data->memory.device, received->base);
  };
  try {
    if (waits && !Aside(wait)) return;
  } catch (const SharedMemoryError&) {
    std::lock_guard<std::mutex> guard(mutex_);
    late_.push_back(data);
    late_since_ = std::chrono::steady_clock::now();
    return;
  }
  shared_.Release(data->block);
  if (!received) {
    records_.Reclaim({});
    WarnIfCrowded();
  }
}

void CudaIPCHeap::GiveBackLate() {
  std::vector<std::shared_ptr<CudaIPCData>> late;
  {
    std::lock_guard<std::mutex> guard(mutex_);
    late.swap(late_);
  }
  for (const auto& data : late) GiveBack(data);
}

void CudaIPCHeap::GiveBackLateInTime() {
  {
    std::lock_guard<std::mutex> guard(mutex_);
    auto now = std::chrono::steady_clock::now();
    if (late_.empty() || now < late_since_ + kBetweenTries) return;
  }
  GiveBackLate();
}

bool CudaIPCHeap::HasLimbo() {
  std::lock_guard<std::mutex> guard(mutex_);
  return limbo_.blocks() != 0;
}

uint64_t CudaIPCHeap::Freed() {
  std::lock_guard<std::mutex> guard(mutex_);
  return freed_;
}

void CudaIPCHeap::WarnIfCrowded() {
  std::string text;
  std::function<void(const std::string&)> warn;
  {
    std::lock_guard<std::mutex> guard(mutex_);
    if (warned_ || !warn_ || limbo_.blocks() < kCrowded) return;
    warned_ = true;
    warn = warn_;
    text = "GPU memory of " + std::to_string(limbo_.blocks()) + " tensors (" +
           HumanBytes(limbo_.bytes()) +
           ") that this process has sent and dropped is still in use by "
           "others. They have to receive and drop them; messages that nobody "
           "will receive are given up by "
           "paddle.incubate.multiprocessing.collect_shared_memory("
           "message_timeout=seconds).\n" +
           DescribeOthers();
  }
  warn(text);
}

std::string CudaIPCHeap::DescribeOthers() const {
  constexpr int kLines = 10;
  std::string text;
  int lines = 0;
  for (const auto& [id, data] : sent_) {
    SharedBlockUsers users = records_.OtherUsers(data->block);
    if (users.processes.empty() && users.messages == 0) continue;
    if (++lines > kLines) continue;
    text += "  " + HumanBytes(data->memory.size) + " on GPU " +
            std::to_string(data->memory.device) + ": ";
    text += "messages not received: " + std::to_string(users.messages);
    if (!users.processes.empty()) {
      text += ", held by process " + Join(users.processes);
    }
    text += "\n";
  }
  if (lines > kLines) {
    text += "  and " + std::to_string(lines - kLines) + " more\n";
  }
  return text;
}

uint64_t CudaIPCHeap::Collect(std::optional<double> message_timeout) {
  uint64_t before = Freed();
  GiveBackLate();
  records_.Reclaim(message_timeout);
  return Freed() - before;
}

CudaIPCStats CudaIPCHeap::Stats() {
  CudaIPCStats stats = {};
  stats.handles = handles_->count();
  stats.events = events_->count();
  std::lock_guard<std::mutex> guard(mutex_);
  for (const auto& [id, data] : sent_) stats.sent_bytes += data->memory.size;
  for (const auto& [id, data] : received_) {
    stats.received_bytes += data->memory.size;
  }
  stats.sent = sent_.size();
  stats.received = received_.size();
  stats.limbo = limbo_.blocks();
  stats.limbo_bytes = limbo_.bytes();
  return stats;
}

std::string CudaIPCHeap::Describe() {
  std::lock_guard<std::mutex> guard(mutex_);
  return DescribeOthers();
}

void CudaIPCHeap::SetWaiting(
    std::function<void(const std::function<void()>&)> around) {
  std::lock_guard<std::mutex> guard(mutex_);
  around_waiting_ = std::move(around);
}

void CudaIPCHeap::SetWarning(std::function<void(const std::string&)> warn) {
  std::lock_guard<std::mutex> guard(mutex_);
  warn_ = std::move(warn);
}

void CudaIPCHeap::Leave() {
  records_.Reclaim({});
  std::string others;
  std::function<void(const std::string&)> warn;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    leaving_ = true;
    // A device that never gets done is no reason to stay for ever.
    came_back_.wait_for(lock, kPatience, [this] { return aside_ == 0; });
    warn = warn_;
    if (warn) others = DescribeOthers();
  }
  if (!others.empty()) {
    warn(
        "This process ends, and its GPU memory with it, which others still "
        "use. It has to live until they have dropped it.\n" +
        others);
  }
}

void CudaIPCHeap::ChildAfterFork() {
  // What they have is the parent's, and so is a mutex that is locked.
  of_parent_.push_back(std::move(events_));
  events_ = std::make_unique<CudaIPCEvents>(&records_);
  of_parent_.push_back(std::move(handles_));
  handles_ = std::make_unique<CudaIPCOpenedHandles>();
  sent_.clear();
  received_.clear();
  late_.clear();
  by_address_.clear();
  limbo_ = {};
  aside_ = 0;
  mutex_.unlock();
}

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
