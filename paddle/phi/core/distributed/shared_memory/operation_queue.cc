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

#include "paddle/phi/core/distributed/shared_memory/operation_queue.h"

#include <pthread.h>
#include <signal.h>

#include <utility>

namespace phi {
namespace distributed {
namespace {

// Signals of errors in a thread itself. If it blocked them, the kernel would
// end the process without calling its handler, which reports the error.
constexpr int kErrors[] = {
    SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP};

// Starts a thread that blocks all signals except those of errors that the
// calling thread does not block, so that the kernel delivers signals to the
// program's own threads, which expect them.
template <typename Body>
std::thread StartWithoutSignals(Body body) {
  sigset_t blocked, before;
  pthread_sigmask(SIG_BLOCK, nullptr, &before);
  sigfillset(&blocked);
  for (int error : kErrors) {
    if (sigismember(&before, error) == 0) sigdelset(&blocked, error);
  }
  pthread_sigmask(SIG_SETMASK, &blocked, nullptr);
  struct Restore {
    ~Restore() { pthread_sigmask(SIG_SETMASK, mask, nullptr); }
    const sigset_t* mask;
  } restore{&before};
  return std::thread(std::move(body));
}

}  // namespace

void OperationQueue::Stop() {
  std::lock_guard<std::mutex> stop(stop_mutex_);
  std::thread ending;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    const uint64_t number = submitted_;
    changed_.wait(lock, [&] { return ended_ >= number; });
    stopping_ = true;
    ending = std::move(thread_);
  }
  changed_.notify_all();
  if (ending.joinable()) ending.join();
  std::lock_guard<std::mutex> lock(mutex_);
  stopping_ = false;
}

void OperationQueue::Run(const std::function<void()>& function,
                         const std::function<void()>& check_interrupt) {
  std::unique_lock<std::mutex> lock(mutex_);
  const uint64_t number = submitted_++;
  lock.unlock();
  WaitForTurn(number, check_interrupt);
  struct Turn {
    ~Turn() {
      std::lock_guard<std::mutex> lock(queue->mutex_);
      queue->EndTurn();
    }
    OperationQueue* queue;
  } turn{this};
  function();
}

void OperationQueue::WaitForTurn(uint64_t number,
                                 const std::function<void()>& check_interrupt) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto has_turn = [&] { return ended_ == number; };
  while (!changed_.wait_for(lock, kInterruptInterval, has_turn)) {
    if (!check_interrupt) continue;
    lock.unlock();
    try {
      check_interrupt();
    } catch (...) {
      lock.lock();
      if (has_turn()) {
        EndTurn();
      } else {
        abandoned_.insert(number);
      }
      throw;
    }
    lock.lock();
  }
}

void OperationQueue::Add(std::function<void()> function) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!thread_runs_) {
    if (thread_.joinable()) thread_.join();
    thread_ = StartWithoutSignals([this] { RunAdded(); });
    thread_runs_ = true;
  }
  added_.emplace_back(submitted_, std::move(function));
  ++submitted_;
  changed_.notify_all();
}

void OperationQueue::RunAdded() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] {
      return added_.empty() ? stopping_ : added_.front().first == ended_;
    });
    if (added_.empty()) break;
    std::function<void()> function = std::move(added_.front().second);
    added_.pop_front();
    lock.unlock();
    function();
    // Release the captured objects before the turn ends, so that after a wait
    // no reference to the caller's tensors remains here.
    function = nullptr;
    lock.lock();
    EndTurn();
  }
  thread_runs_ = false;
}

void OperationQueue::EndTurn() {
  do {
    ++ended_;
  } while (abandoned_.erase(ended_) != 0);
  changed_.notify_all();
}

}  // namespace distributed
}  // namespace phi
