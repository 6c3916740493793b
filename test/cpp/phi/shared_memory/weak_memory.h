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

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <type_traits>
#include <vector>

// Explores the executions of a few threads that the C++ memory model allows.
//
// Only one thread runs at a time. The explorer may switch threads before each
// operation on an Atomic that more than one thread uses. It keeps all writes of
// an Atomic. A load may return any write that is not older than one that its
// thread knows. A thread knows its own writes, the writes that it has read,
// and, after an acquire that synchronizes with a release, all writes that the
// releasing thread knew. All sequentially consistent loads know a sequentially
// consistent write from the next sequentially consistent operation of its
// thread on, and not earlier unless it is read: until then nothing orders the
// write before the operations that follow it.
//
// Some executions that C++ allows are not explored: the modification order of
// an Atomic is always the order in which its writes were run, and no load
// returns a write that was not run yet.
namespace weak_memory {

using Order = std::memory_order;

// For each Atomic, the oldest write that a thread may still read.
class View {
 public:
  uint32_t of(uint32_t location) const {
    return location < writes_.size() ? writes_[location] : 0;
  }
  void Raise(uint32_t location, uint32_t write);
  void Join(const View& other);

 private:
  std::vector<uint32_t> writes_;
};

class Explorer {
 public:
  // Computes the new value of an Atomic from the value that was read. Returns
  // false if there is no write because the value is not the expected one.
  using Change = std::function<bool(uint64_t before, uint64_t* after)>;

  // For each execution, runs `prepare`, the threads, and `settle`. Each Atomic
  // must have the same address in all executions. Returns the number of
  // executions ("ways").
  static uint64_t Explore(const std::function<void()>& prepare,
                          const std::vector<std::function<void()>>& threads,
                          const std::function<void()>& settle);

  // Returns the explorer that is running threads now; null if there is none.
  static Explorer* Running();

  uint64_t Load(const void* atomic, uint64_t initial, Order order);
  void Store(const void* atomic, uint64_t initial, uint64_t value, Order order);
  // Returns the value that was read. Sets `changed` to whether a new value was
  // written.
  uint64_t ReadAndChange(const void* atomic,
                         uint64_t initial,
                         const Change& change,
                         Order order,
                         bool* changed);

 private:
  class Threads;

  struct Write {
    uint64_t value;
    View view;  // that an acquire load of this write joins to its thread's
  };
  struct Location {
    uint32_t number;
    std::vector<Write> writes;
  };
  struct Thread {
    View view;
    // The thread's last sequentially consistent write, as long as it is not yet
    // ordered before later sequentially consistent operations.
    bool has_pending;
    uint32_t pending_location;
    uint32_t pending_write;
  };
  struct Choice {
    uint32_t taken;
    uint32_t count;
  };

  Explorer() = default;

  void Run(const std::vector<std::function<void()>>& threads);
  // Selects the next execution. Returns false if there is none.
  bool Advance();
  uint32_t Choose(uint32_t count);
  // Returns the location of an Atomic. If other threads use it too, lets them
  // run first.
  Location& At(const void* atomic, uint64_t initial, bool writes);
  void BeginOrdered(Order order);
  void Append(Location* location, uint64_t value, Order order, View view);
  void See(const Location& location, uint32_t write, Order order);
  uint32_t OldestReadable(const Location& location, Order order) const;

  std::vector<Choice> choices_;
  size_t depth_{0};
  std::map<const void*, Location> locations_;
  std::vector<Thread> states_;
  View ordered_;  // the view that sequentially consistent operations share
  uint32_t current_{0};
  Threads* threads_{nullptr};
  // The members below are kept for all executions.
  struct Use {
    std::set<uint32_t> threads;
    bool written;
  };
  std::map<const void*, Use> uses_;
  std::set<const void*> shared_;
  bool more_shared_{false};
  // Functions that write the final values back after an execution.
  std::map<const void*, std::function<void(uint64_t)>> write_back_;

  template <typename T>
  friend class Atomic;
};

// Replaces std::atomic, and has the same size.
template <typename T>
class Atomic {
 public:
  static constexpr bool is_always_lock_free = true;

  Atomic() = default;
  Atomic(T value) : value_(value) {}  // NOLINT(runtime/explicit)

  T load(Order order) const {
    Explorer* explorer = Running();
    if (explorer == nullptr) return value_;
    return static_cast<T>(explorer->Load(this, value_, order));
  }

  void store(T value, Order order) {
    if (Explorer* explorer = Running()) {
      explorer->Store(this, value_, value, order);
    } else {
      value_ = value;
    }
  }

  T exchange(T value, Order order) {
    return Change([value](T) { return value; }, order);
  }
  T fetch_or(T value, Order order) {
    return Change([value](T old) { return old | value; }, order);
  }
  T fetch_and(T value, Order order) {
    return Change([value](T old) { return old & value; }, order);
  }
  T fetch_add(T value, Order order) {
    return Change([value](T old) { return old + value; }, order);
  }
  T fetch_sub(T value, Order order) {
    return Change([value](T old) { return old - value; }, order);
  }

  bool compare_exchange_strong(T& expected,  // NOLINT(runtime/references)
                               T value,
                               Order order) {
    const T wanted = expected;
    auto change = [wanted, value](uint64_t old, uint64_t* next) {
      *next = value;
      return static_cast<T>(old) == wanted;
    };
    bool changed = false;
    if (Explorer* explorer = Running()) {
      expected = static_cast<T>(
          explorer->ReadAndChange(this, value_, change, order, &changed));
      return changed;
    }
    if (value_ != wanted) {
      expected = value_;
      return false;
    }
    value_ = value;
    return true;
  }
  // Never fails spuriously: the caller would only try again.
  bool compare_exchange_weak(T& expected,  // NOLINT(runtime/references)
                             T value,
                             Order order) {
    return compare_exchange_strong(expected, value, order);
  }

 private:
  Explorer* Running() const {
    Explorer* explorer = Explorer::Running();
    if (explorer != nullptr) {
      auto* place = const_cast<T*>(&value_);
      explorer->write_back_.try_emplace(
          this, [place](uint64_t value) { *place = static_cast<T>(value); });
    }
    return explorer;
  }

  template <typename Function>
  T Change(const Function& function, Order order) {
    Explorer* explorer = Running();
    if (explorer == nullptr) {
      const T old = value_;
      value_ = function(old);
      return old;
    }
    bool changed = false;
    return static_cast<T>(explorer->ReadAndChange(
        this,
        value_,
        [&function](uint64_t old, uint64_t* next) {
          *next = function(static_cast<T>(old));
          return true;
        },
        order,
        &changed));
  }

  T value_;
};

}  // namespace weak_memory
