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

// The parts of a device that lives in host memory. Any number of threads may
// use an object of any class here at the same time.
//
// A process that forks keeps in its child all but the threads: see
// Runtime::BeginAnewInChild.

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

// Guards all that is not the queue of a stream. It is held for moments only,
// never during a wait or while work runs. There is one for all, so that fork
// can hold it and a child finds everything whole.
inline std::mutex state_mutex;

using StateLock = std::lock_guard<std::mutex>;

// Whether this thread is the worker of a stream. What such a thread runs must
// not wait for streams, as in a callback of CUDA: it might wait for itself.
inline thread_local bool is_worker = false;

// A number that only grows, and that threads can wait for. It lives on a bare
// futex, since a condition variable does not survive fork.
class Counter {
 public:
  // The calls of several threads must be kept apart by a lock.
  void Advance() { Set(value_.load(std::memory_order_relaxed) + 1); }

  // As if all that is yet to be counted had been.
  void Exhaust() { Set(UINT64_MAX); }

  uint64_t Value() const { return value_.load(std::memory_order_acquire); }

  bool Reached(uint64_t value) const { return Value() >= value; }

  void Wait(uint64_t value) const {
    // Most waits are short. To sleep and be woken takes longer than this.
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
      // Returns at once when there has been a change since.
      syscall(SYS_futex, &changes_, FUTEX_WAIT_PRIVATE, seen, nullptr);
    }
    --sleepers_;
  }

 private:
  void Set(uint64_t value) {
    value_.store(value, std::memory_order_release);
    // One of the two threads sees what the other one writes first: this one the
    // sleeper, or the sleeper the change.
    ++changes_;
    if (sleepers_ == 0) return;
    syscall(SYS_futex, &changes_, FUTEX_WAKE_PRIVATE, INT_MAX);
  }

  std::atomic<uint64_t> value_{0};
  std::atomic<uint32_t> changes_{0};
  mutable std::atomic<uint32_t> sleepers_{0};
};

// Invariant: blocks do not overlap; `used_` is the sum of their sizes and of
// those that Free is about to release, and never exceeds `total_`.
class Memory {
 public:
  explicit Memory(size_t total) : total_(total) {}

  // Returns null when `size` is more than Available().
  void* Allocate(size_t size) {
    const StateLock lock(state_mutex);
    if (size > total_ - used_) return nullptr;
    // An empty block takes space too, so that it has an address of its own.
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

  // Returns once nothing pins the block any more, or returns false when `ptr`
  // is not a live block of `size` bytes.
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

  // Returns what keeps the live block that holds all of [ptr, ptr + size), or
  // null when there is none: until the result is gone, Free waits.
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

  // Forgets the pins of threads that a child does not have. To be called with
  // the state locked.
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
  // All that follows is guarded by the state's lock.
  size_t used_ = 0;
  std::map<uintptr_t, Block> blocks_;  // By first address.
  Counter unpinned_;
};

// A position of a stream: all of its work up to some piece. A position of no
// stream is complete. It may outlive its stream.
class Position {
 public:
  Position() = default;
  Position(std::shared_ptr<const Counter> completed, uint64_t value)
      : completed_(std::move(completed)), value_(value) {}

  bool Complete() const {
    return completed_ == nullptr || completed_->Reached(value_);
  }

  // Whether all work before the last piece is complete.
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

// Invariant: pieces of work run one at a time, in the order of their
// submission, in a thread of the stream, which starts with the first of them.
class Stream {
 public:
  using Handle = C_Stream;
  using Work = std::function<void()>;

  explicit Stream(int device) : device_(device) {}

  // Returns once all work has completed. Not for the worker of the stream.
  ~Stream() {
    if (!queue_->worker.joinable()) return;
    Submit(nullptr);
    queue_->worker.join();
  }

  int Device() const { return device_; }

  // Submits `work` and returns the position that it completes. Work must not
  // wait, other than for positions that it did not itself bring about.
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

  // Notes what a piece of work came to. Of several, the first failure stays.
  void Fail(C_Status status) {
    C_Status none = C_SUCCESS;
    failure_.compare_exchange_strong(none, status);
  }

  // Returns the failure noted since the last call, C_SUCCESS if none was.
  C_Status TakeFailure() { return failure_.exchange(C_SUCCESS); }

  // In a child after fork: forgets all work and the thread. The lock of the
  // queue may be held by a thread that is no more, so the queue is not touched.
  void BeginAnew() {
    completed_->Exhaust();
    completed_ = std::make_shared<Counter>();
    queue_.release();  // NOLINT
    queue_ = std::make_unique<Queue>();
  }

  std::atomic<uint64_t> delay{0};  // In microseconds.

 private:
  struct Queue {
    Counter submitted;
    std::mutex mutex;  // Guards what follows, and Submit.
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
      // What work holds is let go of before it counts as completed.
      work = nullptr;
      completed->Advance();
    }
  }

  const int device_;
  std::unique_ptr<Queue> queue_ = std::make_unique<Queue>();
  std::shared_ptr<Counter> completed_ = std::make_shared<Counter>();
  std::atomic<C_Status> failure_{C_SUCCESS};
};

// Invariant: stands for one position of one stream, the last one recorded.
// Before the first Record there is none and the event is complete, as CUDA has
// it.
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
  Position last_;  // Guarded by the state's lock.
};

// Invariant: a handle is not null, is given out once only, and stands for its
// object from Create to Destroy. It is a number and no address: an address
// would be used again, and a stale handle could pass for a live one.
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

  // Returns null when the handle is not live.
  std::shared_ptr<Object> Find(Handle handle) const {
    const StateLock lock(state_mutex);
    const auto found = objects_.find(handle);
    return found == objects_.end() ? nullptr : found->second;
  }

  // Returns what the handle stood for, or null when it is not live.
  std::shared_ptr<Object> Destroy(Handle handle) {
    const StateLock lock(state_mutex);
    const auto node = objects_.extract(handle);
    return node.empty() ? nullptr : node.mapped();
  }

  // To be called with the state locked.
  const std::unordered_map<Handle, std::shared_ptr<Object>>& All() const {
    return objects_;
  }

 private:
  // All that follows is guarded by the state's lock.
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

  // To be called with the state locked.
  void Clear() { operations_.clear(); }

 private:
  static constexpr size_t kCapacity = 4096;

  // All that follows is guarded by the state's lock.
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

  // Work is never lost: what has been submitted completes first. It may still
  // use all of the runtime.
  ~Runtime() {
    for (const auto& stream : Streams()) stream->Last().Wait();
  }

  // Lets a stream that has no handle any more live on until its work has
  // completed.
  void Retire(std::shared_ptr<Stream> stream) {
    std::vector<std::shared_ptr<Stream>> done;  // Ends after the lock does.
    const StateLock lock(state_mutex);
    retired_.push_back(std::move(stream));
    const auto end =
        std::partition(retired_.begin(), retired_.end(), [](const auto& each) {
          return each.use_count() > 1 || !each->Last().Complete();
        });
    std::move(end, retired_.end(), std::back_inserter(done));
    retired_.erase(end, retired_.end());
  }

  // Returns every stream that may yet have work, retired ones too.
  std::vector<std::shared_ptr<Stream>> Streams() const {
    const StateLock lock(state_mutex);
    auto streams = retired_;
    for (const auto& [handle, stream] :
         std::get<HandleTable<Stream>>(tables).All()) {
      streams.push_back(stream);
    }
    return streams;
  }

  // In a child after fork, with the state locked. A child has none of the
  // threads that ran work: its streams have none, and the events recorded on
  // them are complete, for whoever waited would wait forever.
  void BeginAnewInChild() {
    for (const auto& [handle, stream] :
         std::get<HandleTable<Stream>>(tables).All()) {
      stream->BeginAnew();
    }
    for (const auto& stream : retired_) stream->BeginAnew();
    for (Device& device : devices) device.memory.Unpin();
    host.Unpin();
    trace.Clear();
  }

  std::deque<Device> devices;
  Memory host{kMaxMemory};  // What copies on streams use when their turn comes.
  Trace trace;
  std::tuple<HandleTable<Stream>, HandleTable<Event>> tables;

 private:
  // Guarded by the state's lock.
  std::vector<std::shared_ptr<Stream>> retired_;
};

}  // namespace host_device
