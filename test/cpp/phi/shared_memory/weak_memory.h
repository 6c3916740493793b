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

// Runs a few threads in every way that the memory orders of C++ allow.
//
// Threads are run one at a time and change over before each operation on an
// Atomic that more than one uses. Each write of an Atomic is kept. Which of
// them a load may return depends on what its thread knows of: its own writes,
// and what it came to know by an acquire of a release. A write that is
// sequentially consistent is known to loads that are so, too, from the next
// such operation of its thread on, and no earlier unless it is read: until then
// nothing orders it with what comes after it.
//
// Not every behavior that C++ allows is tried: the writes of one Atomic are in
// the order in which they were run, and no load returns a write that was not
// run yet.
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
  // What an operation on an Atomic makes of the value that it reads; it is
  // refused where the value is another than expected.
  using Change = std::function<bool(uint64_t before, uint64_t* after)>;

  // Runs `prepare`, the threads in one way, and `settle`; and so on for each
  // way. What is an Atomic must be at the same address each time. Returns the
  // number of ways.
  static uint64_t Explore(const std::function<void()>& prepare,
                          const std::vector<std::function<void()>>& threads,
                          const std::function<void()>& settle);

  // That which explores now and runs threads; none while only one thing runs.
  static Explorer* Running();

  uint64_t Load(const void* atomic, uint64_t initial, Order order);
  void Store(const void* atomic, uint64_t initial, uint64_t value, Order order);
  // Returns the value that was read; `changed` says whether it was changed,
  // too.
  uint64_t ReadAndChange(const void* atomic,
                         uint64_t initial,
                         const Change& change,
                         Order order,
                         bool* changed);

 private:
  class Threads;

  struct Write {
    uint64_t value;
    View view;  // that an acquire brings
  };
  struct Location {
    uint32_t number;
    std::vector<Write> writes;
  };
  struct Thread {
    View view;
    // The last of its sequentially consistent writes, while nothing says that
    // it is before what comes next in the order of those.
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
  // The next way; false if there is none.
  bool Advance();
  uint32_t Choose(uint32_t count);
  // Lets others run, if others use the location; then `number` may be used.
  Location& At(const void* atomic, uint64_t initial, bool writes);
  void BeginOrdered(Order order);
  void Append(Location* location, uint64_t value, Order order, View view);
  void See(const Location& location, uint32_t write, Order order);
  uint32_t OldestReadable(const Location& location, Order order) const;

  std::vector<Choice> choices_;
  size_t depth_{0};
  std::map<const void*, Location> locations_;
  std::vector<Thread> states_;
  View ordered_;  // by the sequentially consistent operations
  uint32_t current_{0};
  Threads* threads_{nullptr};
  // Over all ways.
  struct Use {
    std::set<uint32_t> threads;
    bool written;
  };
  std::map<const void*, Use> uses_;
  std::set<const void*> shared_;
  bool more_shared_{false};
  // Values after the threads, which are then written back.
  std::map<const void*, std::function<void(uint64_t)>> write_back_;

  template <typename T>
  friend class Atomic;
};

// In the place of std::atomic, of its size.
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
  // Never fails without a reason: its caller would only try again.
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
