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

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace phi {
namespace distributed {

// Runs functions one after the other, in the order in which they were handed
// over: on the caller's thread, or on a thread of the queue.
//
// Thread-safe, except for the destructor. In a child of fork, which does not
// have the queue's thread, nothing may be called.
class OperationQueue {
 public:
  OperationQueue() = default;
  // Stops. Requires: nobody calls any more.
  ~OperationQueue() { Stop(); }
  OperationQueue(const OperationQueue&) = delete;
  OperationQueue& operator=(const OperationQueue&) = delete;

  // Runs a function on the calling thread when all earlier ones have ended.
  // Throws what it throws.
  void Run(const std::function<void()>& function);
  // Hands over a function that the queue's thread runs. It must not throw.
  // Throws std::system_error, and does not take the function, if there is no
  // thread and none can be started.
  void Add(std::function<void()> function);
  // Ends the queue's thread once the functions that were handed over before
  // have ended, those on callers' threads too. A later one starts it again.
  void Stop();

 private:
  void RunAdded();
  // Ends the turn of the function that has run.
  void EndTurn();

  // Held by Stop: a second one would end the state that the first one's thread
  // has yet to see.
  std::mutex stop_mutex_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // The functions that were handed over, and those that have ended. Each one
  // has a number, the count before it, and runs when `ended_` has reached it.
  uint64_t handed_over_ = 0;
  uint64_t ended_ = 0;
  std::deque<std::pair<uint64_t, std::function<void()>>> added_;
  bool stopping_ = false;
  bool thread_runs_ = false;
  std::thread thread_;  // may have ended
};

}  // namespace distributed
}  // namespace phi
