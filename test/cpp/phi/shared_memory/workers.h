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

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>

#include "paddle/phi/core/memory/allocation/shared_memory/shared_memory_error.h"
#include "test/cpp/phi/shared_memory/shared_memory_test_case.h"

// Helpers for tests with several processes.
namespace shared_memory_test {

using paddle::memory::allocation::SharedMemoryError;
using Kind = SharedMemoryError::Kind;

constexpr int64_t kMiB = 1 << 20;

// Returns the error that the call throws; none if it does not throw.
std::optional<SharedMemoryError> ErrorOf(const std::function<void()>& call);
std::optional<Kind> KindOf(const std::function<void()>& call);
std::optional<Kind> KindOf(const std::optional<SharedMemoryError>& error);

// One end of a connection between processes, which carries values in order.
class Channel {
 public:
  // A worker waits as long as the test runs. The test itself waits only for
  // this time and then fails, which ends its workers.
  static constexpr int kPatienceMilliseconds = 20000;
  static constexpr int kNoEnd = -1;

  explicit Channel(int fd, int patience = kPatienceMilliseconds)
      : fd_(fd), patience_(patience) {}

  template <typename T>
  void Send(const T& value) const {
    static_assert(std::is_trivially_copyable<T>::value);
    SendBytes(&value, sizeof(value));
  }

  template <typename T>
  T Receive() const {
    static_assert(std::is_trivially_copyable<T>::value);
    T value;
    ReceiveBytes(&value, sizeof(value));
    return value;
  }

  void Signal() const { Send('!'); }
  void Await() const { Receive<char>(); }
  // Returns whether there is something to receive.
  bool HasMore() const;
  // Waits until there is something to receive, and then returns true. If all
  // processes that have the other end are gone, returns false.
  bool SaysMore() const;
  void AwaitEnd() const { ASSERT_FALSE(SaysMore()); }
  int fd() const { return fd_; }

 private:
  void SendBytes(const void* bytes, size_t size) const;
  void ReceiveBytes(void* bytes, size_t size) const;

  int fd_;
  int patience_;
};

// A forked process. If it is created before this process has used its heap, it
// inherits nothing, like a spawned process.
class Worker {
 public:
  // The process succeeds if the body returns and all of its checks hold. If
  // `starved`, it is forked while no descriptor can be opened.
  explicit Worker(const std::function<void(const Channel&)>& body,
                  bool starved = false);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  const Channel& channel() const { return channel_; }
  pid_t pid() const { return pid_; }
  // Closes the channel and waits, with a timeout, for the process to succeed.
  void Finish();
  void Kill();
  // Waits until the process ends, or stops because it is traced.
  int AwaitChange();

 private:
  pid_t pid_;  // 0 once it has ended
  Channel channel_{-1};
};

// Makes /proc show a variable as if this process had been started with it. The
// process then has only the other variables whose text is not overwritten.
void LookStartedWith(const std::string& variable);

}  // namespace shared_memory_test
