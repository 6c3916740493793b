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

// The parts of a device in host memory. All classes are thread-safe.
//
// A forked child keeps everything except the threads: see
// Runtime::ResetInChild.

#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "paddle/phi/backends/device_ext.h"
#include "test/custom_runtime/host_device/control.h"

namespace host_device {

// Every address that Memory hands out is a multiple of this, which suits the
// widest vector instructions of a CPU kernel.
inline constexpr size_t kAlignment = 64;

// The most bytes that a Memory may have.
inline constexpr size_t kMaxMemory = size_t{1} << 40;

// Guards all state except the streams' queues. It is held only briefly, never
// during a wait or while work runs. There is a single mutex, so that fork can
// hold it and the child finds all state consistent.
inline std::mutex state_mutex;

using StateLock = std::lock_guard<std::mutex>;

// Whether this thread is the worker of a stream. As in a CUDA callback, its
// work must not wait for streams: it might wait for itself.
inline thread_local bool is_worker = false;

// A number that only grows, and that threads can wait for. It uses a bare
// futex, since a condition variable does not survive fork.
class Counter {
 public:
  // Requires: a lock serializes the calls.
  void Advance() { Set(value_.load(std::memory_order_relaxed) + 1); }

  // Sets the maximum value, which satisfies all waits.
  void Exhaust() { Set(UINT64_MAX); }

  uint64_t Value() const { return value_.load(std::memory_order_acquire); }

  bool Reached(uint64_t value) const { return Value() >= value; }

  void Wait(uint64_t value) const {
    // Most waits are short. Sleeping and waking up takes longer than this.
    const auto patience =
        std::chrono::steady_clock::now() + std::chrono::microseconds(20);
    while (std::chrono::steady_clock::now() < patience) {
      if (Reached(value)) return;
      std::this_thread::yield();
    }
    ++sleepers_;
    for (;;) {
      const uint32_t seen = changes_;
      if (Reached(value)) break;
      // Returns immediately if `changes_` has changed since.
      syscall(SYS_futex, &changes_, FUTEX_WAIT_PRIVATE, seen, nullptr);
    }
    --sleepers_;
  }

 private:
  void Set(uint64_t value) {
    value_.store(value, std::memory_order_release);
    // At least one of the two threads sees the other's write: this thread sees
    // the sleeper, or the sleeper sees the change.
    ++changes_;
    if (sleepers_ == 0) return;
    syscall(SYS_futex, &changes_, FUTEX_WAKE_PRIVATE, INT_MAX);
  }

  std::atomic<uint64_t> value_{0};
  std::atomic<uint32_t> changes_{0};
  mutable std::atomic<uint32_t> sleepers_{0};
};

// Invariant: blocks do not overlap. `used_` is the total size of all blocks,
// including those that Free is about to release, and never exceeds `total_`.
class Memory {
 public:
  explicit Memory(size_t total) : total_(total) {}

  // Returns null when `size` is more than Available().
  void* Allocate(size_t size) {
    const StateLock lock(state_mutex);
    if (size > total_ - used_) return nullptr;
    // An empty block takes space too, so that its address is unique.
    const size_t units =
        std::max<size_t>(1, (size + kAlignment - 1) / kAlignment);
    Block block{{std::aligned_alloc(kAlignment, units * kAlignment), std::free},
                size};
    void* const ptr = block.data.get();
    if (ptr == nullptr) return nullptr;
    blocks_.emplace(reinterpret_cast<uintptr_t>(ptr), std::move(block));
    used_ += size;
    return ptr;
  }

  // Waits until the block is no longer pinned and frees it. Returns false if
  // `ptr` is not a live block of `size` bytes.
  bool Free(const void* ptr, size_t size) {
    std::unique_lock<std::mutex> lock(state_mutex);
    const auto found = blocks_.find(reinterpret_cast<uintptr_t>(ptr));
    if (found == blocks_.end() || found->second.size != size) return false;
    const auto node = blocks_.extract(found);
    while (node.mapped().pins > 0) {
      const uint64_t seen = unpinned_.Value();
      lock.unlock();
      unpinned_.Wait(seen + 1);
      lock.lock();
    }
    used_ -= size;
    return true;
  }

  // Pins the live block that contains [ptr, ptr + size): Free waits until the
  // result is destroyed. Returns null if there is no such block.
  std::shared_ptr<void> Pin(const void* ptr, size_t size) {
    const auto address = reinterpret_cast<uintptr_t>(ptr);
    const StateLock lock(state_mutex);
    const auto after = blocks_.upper_bound(address);
    if (after == blocks_.begin()) return nullptr;
    auto& [start, block] = *std::prev(after);
    const size_t offset = address - start;
    if (offset > block.size || size > block.size - offset) return nullptr;
    ++block.pins;
    return {block.data.get(), [this, pins = &block.pins](void*) {
              const StateLock lock(state_mutex);
              --*pins;
              unpinned_.Advance();
            }};
  }

  size_t Total() const { return total_; }

  size_t Available() const {
    const StateLock lock(state_mutex);
    return total_ - used_;
  }

  // Removes the pins of threads that do not exist in a child. Requires:
  // state_mutex is held.
  void Unpin() {
    for (auto& [start, block] : blocks_) block.pins = 0;
  }

 private:
  struct Block {
    std::unique_ptr<void, void (*)(void*)> data;
    size_t size;
    int pins = 0;
  };

  const size_t total_;
  // The members below are guarded by state_mutex.
  size_t used_ = 0;
  std::map<uintptr_t, Block> blocks_;  // By first address.
  Counter unpinned_;
};

// A position in a stream: all of its work up to some operation. A position
// without a stream is complete. A position may outlive its stream.
class Position {
 public:
  Position() = default;
  Position(std::shared_ptr<const Counter> completed, uint64_t value)
      : completed_(std::move(completed)), value_(value) {}

  bool Complete() const {
    return completed_ == nullptr || completed_->Reached(value_);
  }

  // Whether all work before the last operation is complete.
  bool IsNext() const {
    return completed_ == nullptr || completed_->Reached(value_ - 1);
  }

  void Wait() const {
    if (!Complete()) completed_->Wait(value_);
  }

 private:
  std::shared_ptr<const Counter> completed_;
  uint64_t value_ = 0;
};

// Invariant: operations run one at a time, in submission order, on the stream's
// thread, which starts with the first operation.
class Stream {
 public:
  using Handle = C_Stream;
  using Work = std::function<void()>;

  explicit Stream(int device) : device_(device) {}

  // Waits until all work is complete. Must not run on the stream's worker.
  ~Stream() {
    if (!queue_->worker.joinable()) return;
    Submit(nullptr);
    queue_->worker.join();
  }

  int Device() const { return device_; }

  // Submits `work` and returns the position that it completes. Work may only
  // wait for positions that it did not submit itself.
  Position Submit(Work work) {
    const std::lock_guard<std::mutex> lock(queue_->mutex);
    if (!queue_->worker.joinable()) {
      queue_->worker = std::thread(Run, queue_.get(), completed_);
    }
    queue_->work.push_back(std::move(work));
    queue_->submitted.Advance();
    return {completed_, queue_->submitted.Value()};
  }

  // The position of all work submitted so far.
  Position Last() const { return {completed_, queue_->submitted.Value()}; }

  // Records a failure of an operation. The first failure is kept.
  void Fail(C_Status status) {
    C_Status none = C_SUCCESS;
    failure_.compare_exchange_strong(none, status);
  }

  // Returns and clears the recorded failure; C_SUCCESS if there was none.
  C_Status TakeFailure() { return failure_.exchange(C_SUCCESS); }

  // In a forked child: drops all work and the thread. A thread that no longer
  // exists may hold the queue's lock, so the queue is not touched.
  void Reset() {
    completed_->Exhaust();
    completed_ = std::make_shared<Counter>();
    queue_.release();  // NOLINT
    queue_ = std::make_unique<Queue>();
  }

  std::atomic<uint64_t> delay{0};  // In microseconds.

 private:
  struct Queue {
    Counter submitted;
    std::mutex mutex;  // Guards the members below, and Submit.
    std::deque<Work> work;
    std::thread worker;
  };

  // Runs work until a null one.
  static void Run(Queue* queue, const std::shared_ptr<Counter>& completed) {
    is_worker = true;
    for (uint64_t position = 1;; ++position) {
      queue->submitted.Wait(position);
      std::unique_lock<std::mutex> lock(queue->mutex);
      Work work = std::move(queue->work.front());
      queue->work.pop_front();
      lock.unlock();
      if (work == nullptr) return;
      work();
      // Release the work's resources before it counts as complete.
      work = nullptr;
      completed->Advance();
    }
  }

  const int device_;
  std::unique_ptr<Queue> queue_ = std::make_unique<Queue>();
  std::shared_ptr<Counter> completed_ = std::make_shared<Counter>();
  std::atomic<C_Status> failure_{C_SUCCESS};
};

// Invariant: refers to the last recorded position of a stream. Before the first
// Record, the event is complete, as in CUDA.
class Event {
 public:
  using Handle = C_Event;

  explicit Event(int device) : device_(device) {}

  int Device() const { return device_; }

  void Record(Position position) {
    const StateLock lock(state_mutex);
    last_ = std::move(position);
  }

  Position Last() const {
    const StateLock lock(state_mutex);
    return last_;
  }

 private:
  const int device_;
  Position last_;  // Guarded by state_mutex.
};

// Invariant: a handle is not null, is never reused, and refers to its object
// from Create to Destroy. It is a number, not an address: an address could be
// reused, so that a stale handle could pass for a live one.
template <typename Object>
class HandleTable {
 public:
  using Handle = typename Object::Handle;

  Handle Create(int device) {
    const StateLock lock(state_mutex);
    const auto handle = reinterpret_cast<Handle>(++last_);  // NOLINT
    objects_[handle] = std::make_shared<Object>(device);
    return handle;
  }

  // Returns null if the handle is not live.
  std::shared_ptr<Object> Find(Handle handle) const {
    const StateLock lock(state_mutex);
    const auto found = objects_.find(handle);
    return found == objects_.end() ? nullptr : found->second;
  }

  // Returns the handle's object, or null if the handle is not live.
  std::shared_ptr<Object> Destroy(Handle handle) {
    const StateLock lock(state_mutex);
    const auto node = objects_.extract(handle);
    return node.empty() ? nullptr : node.mapped();
  }

  // Requires: state_mutex is held.
  const std::unordered_map<Handle, std::shared_ptr<Object>>& All() const {
    return objects_;
  }

 private:
  // The members below are guarded by state_mutex.
  uintptr_t last_ = 0;
  std::unordered_map<Handle, std::shared_ptr<Object>> objects_;
};

// The last operations that streams have completed.
class Trace {
 public:
  // Numbers the operation and adds it.
  void Add(HostDeviceOperation operation) {
    const StateLock lock(state_mutex);
    operation.number = count_++;
    if (operations_.size() == kCapacity) operations_.pop_front();
    operations_.push_back(operation);
  }

  size_t Take(HostDeviceOperation* operations, size_t capacity) {
    const StateLock lock(state_mutex);
    const size_t size = std::min(capacity, operations_.size());
    const auto end = operations_.begin() + size;
    std::copy(operations_.begin(), end, operations);
    operations_.erase(operations_.begin(), end);
    return size;
  }

  // Requires: state_mutex is held.
  void Clear() { operations_.clear(); }

 private:
  static constexpr size_t kCapacity = 4096;

  // The members below are guarded by state_mutex.
  uint64_t count_ = 0;
  std::deque<HostDeviceOperation> operations_;
};

// Invariant: the number of devices, devices.size(), never changes.
class Runtime {
 public:
  struct Device {
    Device(size_t memory_size, uint64_t delay)
        : memory(memory_size), delay(delay) {}

    Memory memory;
    std::atomic<uint64_t> delay;  // In microseconds.
  };

  Runtime(size_t device_count, size_t memory_size, uint64_t delay) {
    while (devices.size() < device_count) {
      devices.emplace_back(memory_size, delay);
    }
  }

  // Waits for all submitted work, which may still use the whole runtime.
  ~Runtime() {
    for (const auto& stream : Streams()) stream->Last().Wait();
  }

  // Keeps a stream whose handle was destroyed until its work is complete.
  void Retire(std::shared_ptr<Stream> stream) {
    std::vector<std::shared_ptr<Stream>> done;  // Destroyed after unlocking.
    const StateLock lock(state_mutex);
    retired_.push_back(std::move(stream));
    const auto end =
        std::partition(retired_.begin(), retired_.end(), [](const auto& each) {
          return each.use_count() > 1 || !each->Last().Complete();
        });
    std::move(end, retired_.end(), std::back_inserter(done));
    retired_.erase(end, retired_.end());
  }

  // Returns every stream that may still have work, including retired ones.
  std::vector<std::shared_ptr<Stream>> Streams() const {
    const StateLock lock(state_mutex);
    auto streams = retired_;
    for (const auto& [handle, stream] :
         std::get<HandleTable<Stream>>(tables).All()) {
      streams.push_back(stream);
    }
    return streams;
  }

  // Runs in a forked child, with state_mutex held. The child does not have the
  // threads that ran work. So its streams drop all work, and events recorded on
  // them are complete: waiting for them would block forever.
  void ResetInChild() {
    for (const auto& [handle, stream] :
         std::get<HandleTable<Stream>>(tables).All()) {
      stream->Reset();
    }
    for (const auto& stream : retired_) stream->Reset();
    for (Device& device : devices) device.memory.Unpin();
    host.Unpin();
    trace.Clear();
  }

  std::deque<Device> devices;
  Memory host{kMaxMemory};  // Pinned host memory, for asynchronous copies.
  Trace trace;
  std::tuple<HandleTable<Stream>, HandleTable<Event>> tables;

 private:
  // Guarded by state_mutex.
  std::vector<std::shared_ptr<Stream>> retired_;
};

}  // namespace host_device
