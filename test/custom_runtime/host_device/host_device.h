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

#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "paddle/phi/backends/device_ext.h"

namespace host_device {

// Every address that Memory hands out is a multiple of this, which suits the
// widest vector instructions of a CPU kernel.
inline constexpr size_t kAlignment = 64;

// Invariant: blocks do not overlap; `used_` is the sum of their sizes and never
// exceeds `total_`.
class Memory {
 public:
  explicit Memory(size_t total) : total_(total) {}

  // Returns null when `size` is more than Available().
  void* Allocate(size_t size) {
    const std::lock_guard<std::mutex> lock(mutex_);
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

  // Returns false when `ptr` is not a live block of `size` bytes.
  bool Free(const void* ptr, size_t size) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = blocks_.find(reinterpret_cast<uintptr_t>(ptr));
    if (found == blocks_.end() || found->second.size != size) return false;
    used_ -= size;
    blocks_.erase(found);
    return true;
  }

  // Returns the live block that holds all of [ptr, ptr + size), or null. The
  // bytes stay mapped while the result is held, even past Free: a copy needs no
  // lock while it moves them.
  std::shared_ptr<void> Pin(const void* ptr, size_t size) const {
    const auto address = reinterpret_cast<uintptr_t>(ptr);
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto after = blocks_.upper_bound(address);
    if (after == blocks_.begin()) return nullptr;
    const auto& [start, block] = *std::prev(after);
    const size_t offset = address - start;
    const bool inside = offset <= block.size && size <= block.size - offset;
    return inside ? block.data : nullptr;
  }

  size_t Total() const { return total_; }

  size_t Available() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return total_ - used_;
  }

 private:
  struct Block {
    std::shared_ptr<void> data;
    size_t size;
  };

  const size_t total_;
  mutable std::mutex mutex_;  // Guards what follows.
  size_t used_ = 0;
  std::map<uintptr_t, Block> blocks_;  // By first address.
};

// Invariant: pieces of work run one at a time; `completed_` <= `submitted_`,
// and the two differ only while some thread is inside Run.
//
// Work runs in the thread that submits it. A thread thus never finds work of
// its own outstanding, but it can find another thread's.
class Stream {
 public:
  using Handle = C_Stream;

  explicit Stream(int device) : device_(device) {}

  int Device() const { return device_; }

  // Runs `work` and returns its status. As in a callback of CUDA, `work` must
  // neither submit to this stream nor wait for it.
  template <typename Work>
  C_Status Run(const Work& work) {
    const std::lock_guard<std::mutex> lock(mutex_);
    // Relaxed: a mere count; what the work writes is published below.
    const uint64_t position =
        submitted_.fetch_add(1, std::memory_order_relaxed) + 1;
    const C_Status status = work();
    // Release, for Reached: who reads this position sees what the work wrote.
    completed_.store(position, std::memory_order_release);
    return status;
  }

  // How many pieces of work have been submitted. Relaxed: a thread reads its
  // own submissions, and those it has synchronized with, under any order.
  uint64_t Position() const {
    return submitted_.load(std::memory_order_relaxed);
  }

  // Whether the first `position` pieces of work have completed.
  bool Reached(uint64_t position) const {
    return completed_.load(std::memory_order_acquire) >= position;
  }

  bool Complete() const { return Reached(Position()); }

  // Returns once all work submitted so far has completed. Work holds the mutex
  // while it runs, so to have locked it is to have waited.
  void Synchronize() const { const std::lock_guard<std::mutex> lock(mutex_); }

 private:
  const int device_;
  mutable std::mutex mutex_;
  std::atomic<uint64_t> submitted_{0};
  std::atomic<uint64_t> completed_{0};
};

// Invariant: names one position of one stream, the last one recorded. Before
// the first Record there is none and the event is complete, as CUDA has it.
class Event {
 public:
  using Handle = C_Event;

  explicit Event(int device) : device_(device) {}

  int Device() const { return device_; }

  void Record(std::shared_ptr<const Stream> stream) {
    const std::lock_guard<std::mutex> lock(mutex_);
    position_ = stream->Position();
    stream_ = std::move(stream);
  }

  bool Complete() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return stream_ == nullptr || stream_->Reached(position_);
  }

  void Synchronize() const {
    if (Complete()) return;
    std::unique_lock<std::mutex> lock(mutex_);
    const std::shared_ptr<const Stream> stream = stream_;
    lock.unlock();  // Others may use the event during the wait.
    stream->Synchronize();
  }

 private:
  const int device_;
  mutable std::mutex mutex_;  // Guards what follows.
  std::shared_ptr<const Stream> stream_;
  uint64_t position_ = 0;
};

// Invariant: a handle is not null, is given out once only, and stands for its
// object from Create to Destroy. It is a number and no address: an address
// would be used again, and a stale handle could pass for a live one.
template <typename Object>
class HandleTable {
 public:
  using Handle = typename Object::Handle;

  Handle Create(int device) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto handle = reinterpret_cast<Handle>(++last_);  // NOLINT
    objects_[handle] = std::make_shared<Object>(device);
    return handle;
  }

  // Returns null when the handle is not live.
  std::shared_ptr<Object> Find(Handle handle) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = objects_.find(handle);
    return found == objects_.end() ? nullptr : found->second;
  }

  // Returns false when the handle is not live.
  bool Destroy(Handle handle) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return objects_.erase(handle) == 1;
  }

  std::vector<std::shared_ptr<Object>> All() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<std::shared_ptr<Object>> all;
    for (const auto& [handle, object] : objects_) all.push_back(object);
    return all;
  }

 private:
  mutable std::mutex mutex_;  // Guards what follows.
  uintptr_t last_ = 0;
  std::unordered_map<Handle, std::shared_ptr<Object>> objects_;
};

// Invariant: the number of devices, memory.size(), never changes.
struct Runtime {
  Runtime(size_t device_count, size_t memory_size) {
    while (memory.size() < device_count) memory.emplace_back(memory_size);
  }

  std::deque<Memory> memory;  // By device.
  std::tuple<HandleTable<Stream>, HandleTable<Event>> tables;
};

}  // namespace host_device
