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

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>

#include "test/cpp/phi/shared_memory/processes.h"

// Helpers for tests in which many processes share concurrently.
namespace shared_memory_test {

// A queue between processes that stays intact when one of them is killed. It is
// a pipe, since writes and reads of a mail are atomic.
template <typename Mail>
class ProcessMailbox {
 public:
  ProcessMailbox() {
    REQUIRE_EQ(pipe2(ends_, O_NONBLOCK | O_CLOEXEC), 0);
    REQUIRE_TRUE(fcntl(ends_[1], F_SETPIPE_SZ, 4096) > 0);
  }

  // A mail that does not fit is lost, as messages can be.
  void Put(const Mail& mail) {
    const ssize_t written = write(ends_[1], &mail, sizeof(mail));
    EXPECT_TRUE(written == sizeof(mail) || written == -1);
  }

  std::optional<Mail> Take() {
    Mail mail;
    const ssize_t got = read(ends_[0], &mail, sizeof(mail));
    if (got == -1) return std::nullopt;
    EXPECT_EQ(got, sizeof(mail));
    return mail;
  }

 private:
  int ends_[2];
};

template <typename Mail>
class ThreadMailbox {
 public:
  void Put(const Mail& mail) {
    const std::lock_guard<std::mutex> guard(mutex_);
    mails_.push_back(mail);
  }

  std::optional<Mail> Take() {
    const std::lock_guard<std::mutex> guard(mutex_);
    if (mails_.empty()) return std::nullopt;
    const Mail mail = mails_.front();
    mails_.pop_front();
    return mail;
  }

 private:
  std::mutex mutex_;
  std::deque<Mail> mails_;
};

enum Stage { kSharing, kDraining, kCollecting, kLeaving };

// The state that all processes of a test with random kills share.
struct Board {
  std::atomic<int> stage{kSharing};
  std::atomic<int> drained{0};
  std::atomic<int> collected{0};
  std::atomic<uint64_t> received{0};
  std::atomic<uint64_t> gone{0};
};

// Runs `share` in this number of processes, and kills and replaces processes
// other than the first at random, each time after some received messages and a
// pause. Then the remaining processes drain the messages in flight, collect and
// leave; each stage begins when all processes have finished the previous one.
// The arguments of `share` are the board, the index of the process, and the
// number of processes started so far. It counts messages in `received`. It may
// count those that ended with a killed process in `gone`.
void RunWithRandomKills(
    int processes, const std::function<void(Board*, int, uint64_t)>& share);

// Runs one process of such a test: repeats `step` until the sharing ends, calls
// `drain`, and then repeats `collect` until it returns true.
void TakePart(Board* board,
              const std::function<void()>& step,
              const std::function<void()>& drain,
              const std::function<bool()>& collect);

}  // namespace shared_memory_test
