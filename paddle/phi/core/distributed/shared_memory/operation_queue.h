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

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

namespace phi {
namespace distributed {

// Runs functions one at a time, in the order in which they were submitted: on
// the caller's thread, or on the queue's thread.
//
// Thread-safe, except for the destructor. A child of fork does not have the
// queue's thread and must not call any function.
class OperationQueue {
 public:
  OperationQueue() = default;
  // Stops the queue. Requires: no other call is in progress or follows.
  ~OperationQueue() { Stop(); }
  OperationQueue(const OperationQueue&) = delete;
  OperationQueue& operator=(const OperationQueue&) = delete;

  // How often a caller that waits for its turn checks for an interrupt.
  static constexpr std::chrono::milliseconds kInterruptInterval{100};

  // Waits until all earlier functions have returned, then runs a function on
  // the calling thread. Exceptions of the function propagate to the caller.
  // While the caller waits, calls `check_interrupt` (if it is not empty) once
  // per kInterruptInterval. If that throws, the function does not run, and the
  // exception propagates.
  void Run(const std::function<void()>& function,
           const std::function<void()>& check_interrupt = {});
  // Submits a function, which must not throw, to the queue's thread. Throws
  // std::system_error, and does not take the function, if there is no thread
  // and none can be started.
  void Add(std::function<void()> function);
  // Waits until all functions submitted before have returned, including those
  // on callers' threads, and ends the queue's thread. A later Add starts a new
  // thread.
  void Stop();

 private:
  void RunAdded();
  // Waits until it is this number's turn. If `check_interrupt` throws, the
  // number gets no turn.
  void WaitForTurn(uint64_t number,
                   const std::function<void()>& check_interrupt);
  // Ends the turn of the function that has returned. Requires: mutex_ is held.
  void EndTurn();

  // Held by Stop: a concurrent Stop would reset `stopping_` before the queue's
  // thread has seen it.
  std::mutex stop_mutex_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // How many functions were submitted, and how many have returned. A function's
  // number is the count of functions submitted before it; the function runs
  // when `ended_` equals its number.
  uint64_t submitted_ = 0;
  uint64_t ended_ = 0;
  std::set<uint64_t> abandoned_;  // numbers that get no turn
  std::deque<std::pair<uint64_t, std::function<void()>>> added_;
  bool stopping_ = false;
  bool thread_runs_ = false;
  std::thread thread_;  // may have exited
};

}  // namespace distributed
}  // namespace phi
