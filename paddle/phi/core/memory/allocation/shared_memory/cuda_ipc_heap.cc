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

#include "paddle/phi/core/memory/allocation/shared_memory/cuda_ipc_heap.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <iterator>
#include <new>
#include <thread>

namespace paddle {
namespace memory {
namespace allocation {

namespace {

using Kind = SharedMemoryError::Kind;
using Stream = CudaIPCDriver::Stream;

constexpr uint64_t kRecordMagic = 0x3243504944444450;  // "PDDDIPC2"

// How long the exit waits for driver calls that are in progress.
constexpr std::chrono::seconds kExitPatience(5);
// The time between two attempts at a release in which the driver failed: each
// attempt may wait for a device.
constexpr std::chrono::seconds kRetryInterval(1);
// Between two looks at the event of a message.
constexpr std::chrono::microseconds kShortestPause(10);
constexpr std::chrono::microseconds kLongestPause(200);
// Between two calls of the interruption check.
constexpr std::chrono::milliseconds kInterruptionInterval(50);

// The content of a record, before its chunks.
struct CudaIPCRecord {
  uint64_t magic;
  CudaDeviceUuid uuid;
  CudaIPCDriver::Exported exported;
  uint64_t size;
  uint64_t chunks;  // 0 for memory that the driver has a handle for
};

// Reads the chunks that follow a record in its block. Returns false if their
// total size differs from the size in the record.
bool ReadChunks(const CudaIPCRecord& record,
                const SharedBlock& block,
                std::vector<CudaIPCDriver::Chunk>* chunks) {
  if (record.chunks == 0) return true;
  const uint64_t space = block.capacity - sizeof(record);
  if (record.chunks > space / sizeof(CudaIPCDriver::Chunk)) return false;
  chunks->resize(record.chunks);
  std::memcpy(chunks->data(),
              block.data + sizeof(record),
              record.chunks * sizeof(CudaIPCDriver::Chunk));
  uint64_t left = record.exported.size;
  for (const CudaIPCDriver::Chunk& chunk : *chunks) {
    if (chunk.size == 0 || chunk.size > left) return false;
    left -= chunk.size;
  }
  return left == 0;
}

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
  // SharedHeap registered its handlers before, so in the child they run first.
  int error = pthread_atfork(
      [] {
        // Lock this mutex first: another thread may be in a driver call of an
        // export. That call may wait for a callback, which must not have to
        // wait for the other mutex.
        Instance().chunks_.BeforeFork();
        Instance().mutex_.lock();
      },
      [] {
        Instance().mutex_.unlock();
        Instance().chunks_.ParentAfterFork();
      },
      [] { Instance().ChildAfterFork(); });
  if (error != 0) throw std::bad_alloc();
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
  std::optional<CudaIPCChunkExports::Exported> in_chunks;
  if (!exported) {
    in_chunks = chunks_.Export(memory.device, memory.data, memory.size);
    if (!in_chunks) return false;
    exported = in_chunks->range;
  }
  auto sent = std::make_shared<CudaIPCSentData>();
  sent->memory = memory;
  sent->uses = 1;
  // A forked child cannot use the memory, so it must not keep it either.
  const uint64_t count = in_chunks ? in_chunks->chunks.size() : 0;
  const uint64_t chunk_bytes = count * sizeof(CudaIPCDriver::Chunk);
  sent->block =
      records_.Allocate(strategy, sizeof(CudaIPCRecord) + chunk_bytes);
  CudaIPCRecord record = {
      kRecordMagic, driver.Uuid(memory.device), *exported, memory.size, count};
  std::memcpy(sent->block.data, &record, sizeof(record));
  if (in_chunks) {
    std::memcpy(sent->block.data + sizeof(record),
                in_chunks->chunks.data(),
                chunk_bytes);
    sent->descriptors = std::move(in_chunks->descriptors);
    sent->in_chunks = true;
  }
  {
    std::lock_guard<std::mutex> guard(mutex_);
    if (by_address_.emplace(memory.data, sent).second) {
      sent_[IdOf(sent->block)] = sent;
      records_.OnFree(sent->block, [this, data = sent.get()] { Free(*data); });
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
  RetryDeferredIfDue();
  if (HasLimbo()) records_.Collect({});
  // Record the event before the message is created, so that a failure leaves
  // none behind.
  CudaIPCReadyEvent ready = RecordReadyEvent(*data, stream);
  std::optional<SharedMessage> record;
  try {
    record = shared_.Send(data->block.data);
  } catch (...) {
    events_->Sent(data->memory.device, ready, {});
    throw;
  }
  events_->Sent(data->memory.device, ready, record);
  if (!record) return std::nullopt;
  uint64_t offset = static_cast<const char*>(address) - data->memory.data;
  return CudaIPCMessage{*record, ready, offset};
}

CudaIPCReadyEvent CudaIPCHeap::RecordReadyEvent(const CudaIPCData& data,
                                                std::optional<Stream> stream) {
  // An event ends with the process that recorded it, and memory with its owner.
  // So an event of the owner lasts as long as it is needed. If this process is
  // not the owner, it may be gone when the message is received, so wait here.
  std::optional<CudaIPCReadyEvent> ready;
  bool is_owner = dynamic_cast<const CudaIPCSentData*>(&data) != nullptr;
  if (is_owner && stream) {
    ready = events_->Record(data.memory.device, *stream);
  }
  if (!ready) {
    CallDriver(
        [&] { CudaIPCDriver::Instance().Synchronize(data.memory.device); });
  }
  return ready.value_or(CudaIPCReadyEvent{});
}

bool CudaIPCHeap::CallDriver(const std::function<void()>& call,
                             bool may_block) {
  std::function<void(const std::function<void()>&)> wrap;
  {
    std::lock_guard<std::mutex> guard(mutex_);
    if (leaving_) return false;
    ++driver_calls_;
    if (may_block) wrap = wrap_blocking_call_;
  }
  std::exception_ptr failure;
  auto kept = [&] {
    try {
      call();
    } catch (...) {
      failure = std::current_exception();
    }
    std::lock_guard<std::mutex> guard(mutex_);
    --driver_calls_;
    driver_call_done_.notify_all();
  };
  wrap ? wrap(kept) : kept();
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

void CudaIPCHeap::EnforceOwnerAlive(const SharedBlock& block) {
  if (records_.OwnerIsAlive(block)) return;
  throw SharedMemoryError(
      Kind::kGone,
      "Cannot use a received tensor: the process that owns its GPU memory has "
      "ended, and the memory with it. Keep a process that sends GPU tensors "
      "alive until no process uses them any more.");
}

void CudaIPCHeap::EnforceNotLeaving() {
  std::lock_guard<std::mutex> guard(mutex_);
  if (!leaving_) return;
  throw SharedMemoryError(Kind::kUnavailable,
                          "Cannot send or receive a tensor on a GPU: this "
                          "process is exiting. Do so "
                          "before the interpreter's exit handlers run.");
}

std::shared_ptr<CudaIPCReceivedData> CudaIPCHeap::Open(
    const SharedBlock& block) {
  CudaIPCRecord record = {};
  if (block.capacity >= sizeof(record)) {
    std::memcpy(&record, block.data, sizeof(record));
  }
  const CudaIPCDriver::Exported& exported = record.exported;
  std::vector<CudaIPCDriver::Chunk> chunks;
  if (record.magic != kRecordMagic || record.size == 0 ||
      exported.offset > exported.size ||
      record.size > exported.size - exported.offset ||
      !ReadChunks(record, block, &chunks)) {
    throw SharedMemoryError(
        Kind::kInvalid,
        "The handle of a received tensor does not refer to GPU memory: its "
        "block is not a valid record of such memory. It was damaged, or made "
        "by another version of Paddle; send the tensor again.");
  }
  int device = CudaIPCDriver::Instance().DeviceOf(record.uuid);
  auto data = std::make_shared<CudaIPCReceivedData>();
  char* base = nullptr;
  EnforceOwnerAlive(block);
  try {
    CallDriver([&] { base = handles_->Open(device, exported.handle, chunks); });
    if (base == nullptr) EnforceNotLeaving();
  } catch (const SharedMemoryError&) {
    // Drivers report in many ways that memory does not exist any more.
    EnforceOwnerAlive(block);
    throw;
  }
  const uint64_t wanted = exported.offset + record.size;
  std::optional<CudaIPCDriver::Allocation> found;
  try {
    // For chunks, the mapping has the size that the record states.
    if (chunks.empty()) {
      found = CudaIPCDriver::Instance().AllocationAt(device, base);
    }
  } catch (const SharedMemoryError&) {
    // A driver need not report the size of another process's allocation.
  }
  if (found && found->base + found->size < base + wanted) {
    handles_->Close(device, exported.handle);
    throw SharedMemoryError(
        Kind::kInvalid,
        "A received tensor has " + std::to_string(record.size) +
            " bytes at byte " + std::to_string(exported.offset) +
            " of GPU memory that has only " +
            std::to_string(found->base + found->size - base) +
            ". Its record was damaged; send the tensor again.");
  }
  data->memory = {device, base + exported.offset, record.size};
  data->block = block;
  data->uses = 1;
  data->base = exported.handle;
  data->in_chunks = !chunks.empty();
  return data;
}

std::shared_ptr<CudaIPCData> CudaIPCHeap::UseOrOpen(const SharedBlock& block) {
  for (;;) {
    if (std::shared_ptr<CudaIPCData> known = Use(block)) return known;
    std::shared_ptr<CudaIPCReceivedData> opened = Open(block);
    bool is_known = false;
    {
      std::lock_guard<std::mutex> guard(mutex_);
      is_known = Known(block) != nullptr;  // another thread was faster
      if (!is_known &&
          by_address_.emplace(opened->memory.data, opened).second) {
        received_[IdOf(block)] = opened;
        return opened;
      }
    }
    handles_->Close(opened->memory.device, opened->base);
    if (is_known) continue;
    throw SharedMemoryError(
        Kind::kInvalid,
        "Cannot use a received tensor: its record describes the same GPU "
        "memory as the record of another tensor. One of the two was damaged; "
        "send the tensor again.");
  }
}

CudaIPCHeap::Received CudaIPCHeap::Receive(
    const CudaIPCMessage& message,
    const std::function<Stream(int)>& stream_of) {
  EnforceNotLeaving();
  RetryDeferredIfDue();
  SharedHeap::Received record = records_.Receive(message.record);
  Received received{record.storage, nullptr};
  if (!received.storage) {
    try {
      received.data = UseOrOpen(record.block);
    } catch (...) {
      records_.RedeemTicket(message.record);
      shared_.Release(record.block);
      throw;
    }
  }
  try {
    int device = DeviceOf(record.block);
    Wait(record.block, device, stream_of(device), message.ready);
  } catch (...) {
    records_.RedeemTicket(message.record);
    if (received.data) Release(received.data);
    throw;
  }
  // Redeem the ticket last: from now on the sender may record the event again.
  records_.RedeemTicket(message.record);
  return received;
}

void CudaIPCHeap::Wait(const SharedBlock& block,
                       int device,
                       Stream stream,
                       const CudaIPCReadyEvent& ready) {
  bool may_use = false;
  auto look = [&] {
    may_use = events_->WaitForOwn(device, stream, ready) ||
              events_->IsDone(device, ready);
  };
  auto wait = [&] {
    auto end = std::chrono::steady_clock::now() + kInterruptionInterval;
    auto pause = kShortestPause;
    while (!may_use && std::chrono::steady_clock::now() < end) {
      EnforceNotLeaving();
      EnforceOwnerAlive(block);
      std::this_thread::sleep_for(pause);
      pause = std::min(2 * pause, kLongestPause);
      may_use = events_->IsDone(device, ready);
    }
  };
  try {
    CudaIPCEvents::EnforceIntact(ready);
    // Usually the event is done, and this is the only look.
    if (!CallDriver(look, false)) EnforceNotLeaving();
    while (!may_use) {
      CheckInterruption();
      if (!CallDriver(wait)) EnforceNotLeaving();
    }
  } catch (const SharedMemoryError&) {
    EnforceOwnerAlive(block);
    throw;
  }
}

int CudaIPCHeap::DeviceOf(const SharedBlock& block) {
  std::lock_guard<std::mutex> guard(mutex_);
  std::shared_ptr<CudaIPCData> data = Known(block);
  if (!data) {
    throw SharedMemoryError(Kind::kInvalid,
                            "The handle of a received tensor does not refer to "
                            "GPU memory: its block is in use by a tensor in "
                            "host memory. It was damaged, or made by another "
                            "version of Paddle; send the tensor again.");
  }
  return data->memory.device;
}

void CudaIPCHeap::Bind(const CudaIPCData& data, std::weak_ptr<void> storage) {
  shared_.Bind(data.block, std::move(storage), [] { return true; });
}

void CudaIPCHeap::Release(const std::shared_ptr<CudaIPCData>& data) {
  {
    std::lock_guard<std::mutex> guard(mutex_);
    // An unknown storage belongs to the parent: this process was forked.
    if (leaving_ || Known(data->block) != data || --data->uses > 0) return;
    if (received_.erase(IdOf(data->block)) != 0) {
      by_address_.erase(data->memory.data);
    } else {
      limbo_.Add(data.get());
    }
  }
  FinishRelease(data);
}

bool CudaIPCHeap::ReleaseOwned(const void* data, std::function<void()> free) {
  std::shared_ptr<CudaIPCSentData> sent;
  {
    std::lock_guard<std::mutex> guard(mutex_);
    auto found = by_address_.find(static_cast<const char*>(data));
    if (found == by_address_.end()) return leaving_;
    sent = sent_.at(IdOf(found->second->block));
    sent->free = std::move(free);
  }
  Release(sent);
  return true;
}

void CudaIPCHeap::Free(const CudaIPCSentData& data) {
  std::function<void()> free;
  std::vector<std::shared_ptr<FileDescriptor>> descriptors;
  {
    std::lock_guard<std::mutex> guard(mutex_);
    auto ended = sent_.find(IdOf(data.block));
    free = std::move(ended->second->free);
    descriptors = std::move(ended->second->descriptors);
    freed_ += data.memory.size;
    limbo_.Remove(&data);
    by_address_.erase(data.memory.data);
    sent_.erase(ended);
    // The process exit frees the memory; no driver call is needed.
    if (leaving_) return;
    ++driver_calls_;
  }
  descriptors.clear();
  free();
  std::lock_guard<std::mutex> guard(mutex_);
  --driver_calls_;
  driver_call_done_.notify_all();
}

void CudaIPCHeap::FinishRelease(const std::shared_ptr<CudaIPCData>& data) {
  std::shared_ptr<CudaIPCReceivedData> received =
      std::dynamic_pointer_cast<CudaIPCReceivedData>(data);
  bool waits = received != nullptr;
  if (auto sent = std::dynamic_pointer_cast<CudaIPCSentData>(data)) {
    // Paddle's allocator knows which streams use this process's memory, except
    // for memory that came back in a message.
    std::lock_guard<std::mutex> guard(mutex_);
    waits = sent->received_here;
  }
  auto wait = [&] {
    CudaIPCDriver& driver = CudaIPCDriver::Instance();
    if (data->in_chunks) {
      driver.SynchronizeChunks();
    } else {
      driver.Synchronize(data->memory.device);
    }
    if (received) handles_->Close(data->memory.device, received->base);
  };
  try {
    if (waits && !CallDriver(wait)) return;
  } catch (const SharedMemoryError&) {
    std::lock_guard<std::mutex> guard(mutex_);
    deferred_.push_back(data);
    deferred_since_ = std::chrono::steady_clock::now();
    return;
  }
  shared_.Release(data->block);
  if (!received) {
    records_.Collect({});
    WarnIfCrowded();
  }
}

void CudaIPCHeap::RetryDeferred() {
  std::vector<std::shared_ptr<CudaIPCData>> late;
  {
    std::lock_guard<std::mutex> guard(mutex_);
    late.swap(deferred_);
  }
  for (const auto& data : late) FinishRelease(data);
}

void CudaIPCHeap::RetryDeferredIfDue() {
  {
    std::lock_guard<std::mutex> guard(mutex_);
    auto now = std::chrono::steady_clock::now();
    if (deferred_.empty() || now < deferred_since_ + kRetryInterval) return;
  }
  RetryDeferred();
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
           ") that this process has sent and dropped is still in use by other "
           "processes. Have them receive and drop it, or expire lost messages "
           "with paddle.incubate.multiprocessing.collect_shared_memory("
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
  RetryDeferred();
  records_.Collect(message_timeout);
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

void CudaIPCHeap::SetBlockingCallWrapper(
    std::function<void(const std::function<void()>&)> wrap) {
  std::lock_guard<std::mutex> guard(mutex_);
  wrap_blocking_call_ = std::move(wrap);
}

void CudaIPCHeap::SetInterruptionCheck(std::function<void()> check) {
  std::lock_guard<std::mutex> guard(mutex_);
  check_interruption_ = std::move(check);
}

void CudaIPCHeap::CheckInterruption() {
  std::function<void()> check;
  {
    std::lock_guard<std::mutex> guard(mutex_);
    check = check_interruption_;
  }
  if (check) check();
}

void CudaIPCHeap::SetWarning(std::function<void(const std::string&)> warn) {
  std::lock_guard<std::mutex> guard(mutex_);
  warn_ = std::move(warn);
}

void CudaIPCHeap::Leave() {
  records_.Collect({});
  std::string others;
  std::function<void(const std::string&)> warn;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    leaving_ = true;
    // A device whose work never ends must not prevent the exit.
    driver_call_done_.wait_for(
        lock, kExitPatience, [this] { return driver_calls_ == 0; });
    warn = warn_;
    if (warn) others = DescribeOthers();
  }
  if (!others.empty()) {
    warn(
        "This process is exiting while other processes still use its GPU "
        "memory, which ends with it. Keep it alive until they have dropped the "
        "memory.\n" +
        others);
  }
}

void CudaIPCHeap::ChildAfterFork() {
  // The events and handles belong to the parent, and their mutexes may be
  // locked.
  parents_objects_.push_back(std::move(events_));
  events_ = std::make_unique<CudaIPCEvents>(&records_);
  parents_objects_.push_back(std::move(handles_));
  handles_ = std::make_unique<CudaIPCOpenedHandles>();
  chunks_.ChildAfterFork();
  sent_.clear();
  received_.clear();
  deferred_.clear();
  by_address_.clear();
  limbo_ = {};
  driver_calls_ = 0;
  mutex_.unlock();
}

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
