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

#include "test/cpp/phi/shared_memory/weak_memory.h"

#include <ucontext.h>

#include <algorithm>
#include <cinttypes>
#include <memory>

#include "test/cpp/phi/shared_memory/shared_memory_test_case.h"

namespace weak_memory {

namespace {

Explorer* running = nullptr;

bool Acquires(Order order) {
  return order != std::memory_order_relaxed &&
         order != std::memory_order_release;
}

bool Releases(Order order) {
  return order == std::memory_order_release ||
         order == std::memory_order_acq_rel ||
         order == std::memory_order_seq_cst;
}

}  // namespace

void View::Raise(uint32_t location, uint32_t write) {
  if (location >= writes_.size()) writes_.resize(location + 1);
  writes_[location] = std::max(writes_[location], write);
}

void View::Join(const View& other) {
  for (uint32_t i = 0; i < other.writes_.size(); ++i) {
    Raise(i, other.writes_[i]);
  }
}

// The explored threads, which are contexts (coroutines) of one real thread.
class Explorer::Threads {
 public:
  explicit Threads(const std::vector<std::function<void()>>& bodies) {
    for (const auto& body : bodies) {
      all_.push_back(std::make_unique<One>());
      One& one = *all_.back();
      one.body = &body;
      REQUIRE_EQ(getcontext(&one.context), 0);
      one.context.uc_stack.ss_sp = one.stack.data();
      one.context.uc_stack.ss_size = one.stack.size();
      one.context.uc_link = &main_;
      makecontext(&one.context, &Threads::Enter, 0);
    }
  }

  std::vector<uint32_t> Unfinished() const {
    std::vector<uint32_t> numbers;
    for (uint32_t i = 0; i < all_.size(); ++i) {
      if (!all_[i]->is_done) numbers.push_back(i);
    }
    return numbers;
  }

  // Runs one thread up to its next operation on an Atomic that others use.
  void Resume(uint32_t number) {
    entered_ = current_ = all_[number].get();
    ASSERT_EQ(swapcontext(&main_, &current_->context), 0);
  }

  void Pause() { ASSERT_EQ(swapcontext(&current_->context, &main_), 0); }

 private:
  struct One {
    std::vector<char> stack = std::vector<char>(1 << 16);
    ucontext_t context{};
    const std::function<void()>* body{nullptr};
    bool is_done{false};
  };

  static void Enter() {
    One* one = entered_;
    (*one->body)();
    one->is_done = true;
  }

  static inline One* entered_ = nullptr;

  std::vector<std::unique_ptr<One>> all_;
  ucontext_t main_{};
  One* current_{nullptr};
};

Explorer* Explorer::Running() { return running; }

uint64_t Explorer::Explore(const std::function<void()>& prepare,
                           const std::vector<std::function<void()>>& threads,
                           const std::function<void()>& settle) {
  Explorer explorer;
  uint64_t ways = 0;
  for (bool more = true; more && !isolated_test::HasFailureHere();) {
    prepare();
    explorer.Run(threads);
    if (explorer.more_shared_) {
      // An Atomic that only one thread used so far is shared: start again.
      explorer.more_shared_ = false;
      explorer.choices_.clear();
      ways = 0;
      continue;
    }
    ++ways;
    settle();
    more = explorer.Advance();
  }
  std::printf("  %" PRIu64 " ways\n", ways);
  return ways;
}

void Explorer::Run(const std::vector<std::function<void()>>& bodies) {
  depth_ = 0;
  locations_.clear();
  write_back_.clear();
  ordered_ = View();
  states_.assign(bodies.size(), Thread());
  Threads threads(bodies);
  threads_ = &threads;
  running = this;
  for (auto left = threads.Unfinished(); !left.empty();
       left = threads.Unfinished()) {
    current_ = left[Choose(left.size())];
    threads.Resume(current_);
  }
  running = nullptr;
  threads_ = nullptr;
  for (const auto& [atomic, write_back] : write_back_) {
    write_back(locations_.at(atomic).writes.back().value);
  }
}

bool Explorer::Advance() {
  while (!choices_.empty() &&
         choices_.back().taken + 1 == choices_.back().count) {
    choices_.pop_back();
  }
  if (choices_.empty()) return false;
  ++choices_.back().taken;
  return true;
}

uint32_t Explorer::Choose(uint32_t count) {
  if (count == 1) return 0;
  if (depth_ == choices_.size()) choices_.push_back({0, count});
  REQUIRE_EQ(choices_[depth_].count, count);
  return choices_[depth_++].taken;
}

Explorer::Location& Explorer::At(const void* atomic,
                                 uint64_t initial,
                                 bool writes) {
  Use& use = uses_[atomic];
  use.threads.insert(current_);
  use.written |= writes;
  if (use.threads.size() > 1 && use.written) {
    more_shared_ |= shared_.insert(atomic).second;
  }
  if (shared_.count(atomic) != 0) threads_->Pause();
  auto [found, is_new] = locations_.try_emplace(atomic);
  if (is_new) {
    found->second.number = locations_.size();
    found->second.writes.push_back({initial, View()});
  }
  return found->second;
}

void Explorer::BeginOrdered(Order order) {
  Thread& thread = states_[current_];
  if (order != std::memory_order_seq_cst || !thread.has_pending) return;
  ordered_.Raise(thread.pending_location, thread.pending_write);
  thread.has_pending = false;
}

uint32_t Explorer::OldestReadable(const Location& location, Order order) const {
  uint32_t known = states_[current_].view.of(location.number);
  if (order != std::memory_order_seq_cst) return known;
  return std::max(known, ordered_.of(location.number));
}

void Explorer::See(const Location& location, uint32_t write, Order order) {
  View& view = states_[current_].view;
  view.Raise(location.number, write);
  if (Acquires(order)) view.Join(location.writes[write].view);
  // The write that it reads precedes it in the order of sequentially consistent
  // operations.
  if (order == std::memory_order_seq_cst)
    ordered_.Raise(location.number, write);
}

void Explorer::Append(Location* location,
                      uint64_t value,
                      Order order,
                      View view) {
  Thread& thread = states_[current_];
  uint32_t write = location->writes.size();
  thread.view.Raise(location->number, write);
  view.Raise(location->number, write);
  if (Releases(order)) view.Join(thread.view);
  location->writes.push_back({value, view});
  if (order == std::memory_order_seq_cst) {
    thread.has_pending = true;
    thread.pending_location = location->number;
    thread.pending_write = write;
  }
}

uint64_t Explorer::Load(const void* atomic, uint64_t initial, Order order) {
  Location& location = At(atomic, initial, false);
  BeginOrdered(order);
  uint32_t last = location.writes.size() - 1;
  uint32_t write = last - Choose(last - OldestReadable(location, order) + 1);
  See(location, write, order);
  return location.writes[write].value;
}

void Explorer::Store(const void* atomic,
                     uint64_t initial,
                     uint64_t value,
                     Order order) {
  Location& location = At(atomic, initial, true);
  BeginOrdered(order);
  Append(&location, value, order, View());
}

uint64_t Explorer::ReadAndChange(const void* atomic,
                                 uint64_t initial,
                                 const Change& change,
                                 Order order,
                                 bool* changed) {
  Location& location = At(atomic, initial, true);
  BeginOrdered(order);
  // It reads the last write, and changes it; or it reads an earlier write whose
  // value is not the expected one, and fails.
  std::vector<uint32_t> readable;
  uint32_t last = location.writes.size() - 1;
  readable.push_back(last);
  uint64_t next = 0;
  for (uint32_t i = OldestReadable(location, order); i < last; ++i) {
    if (!change(location.writes[i].value, &next)) readable.push_back(i);
  }
  uint32_t write = readable[Choose(readable.size())];
  uint64_t read = location.writes[write].value;
  *changed = change(read, &next);
  See(location, write, order);
  // A read-modify-write continues the release sequence of the write that it
  // replaces.
  if (*changed) Append(&location, next, order, location.writes[write].view);
  return read;
}

}  // namespace weak_memory
