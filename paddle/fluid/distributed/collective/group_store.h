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
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "paddle/phi/core/distributed/store/store.h"

namespace paddle {
namespace distributed {

// A process and when it started, in clock ticks since the machine booted: a
// later process may have the same ID. The ID is 0 if the process is unknown.
//
// The kernel shifts the time by an offset of the reader's time namespace, so
// only processes of one time namespace may compare it.
struct ProcessStart {
  uint32_t process = 0;
  uint64_t ticks = 0;
};

// The ID is 0 if /proc shows the processes of another PID namespace.
ProcessStart StartOfThisProcess();

// Returns whether a process has ended, or is ending; false if that is unknown.
bool HasEnded(const ProcessStart& start);

// A rank and its process.
using WatchedRank = std::tuple<int, uint32_t, uint64_t>;

// A store that prefixes the keys of one group, because gloo uses the same keys
// in every group.
//
// It waits for keys until a deadline, which is `timeout` after its creation, or
// until it finds that a watched rank has died. As thread-safe as the underlying
// store.
//
// `check_interrupt` is called whenever a key is not set yet. It may throw,
// which ends the wait, and may be empty.
class GroupStore : public phi::distributed::Store {
 public:
  GroupStore(std::shared_ptr<phi::distributed::Store> store,
             std::string prefix,
             std::chrono::milliseconds timeout,
             std::function<void()> check_interrupt = {});

  // Watches these ranks, and no others, from now on. They must be in processes
  // of this machine.
  void Watch(std::vector<WatchedRank> ranks);
  // Throws CollectiveError if one of the watched ranks has died. Called after
  // an error, whose cause may be a death that is not visible yet: the
  // connections and the memory of a process may be closed before it ends. So
  // waits for a second if no watched rank has died.
  void AwaitDeath();

  int64_t add(const std::string& key, int64_t value) override;
  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  // If the key is not set, throws CollectiveError if it finds that a watched
  // rank has died. A call looks at one of the ranks, which takes about 10 us,
  // and the next call at the next one.
  bool check(const std::string& key) override;
  void wait(const std::string& key) override;
  std::vector<uint8_t> get(const std::string& key) override;

 private:
  // Looks at all watched ranks. Returns false if there are none.
  bool ThrowIfDied();
  // Calls the underlying store, whose own errors name no rank. If the call
  // fails, throws CollectiveError.
  template <typename Call>
  auto NameDead(const Call& call) -> decltype(call());

  const std::shared_ptr<phi::distributed::Store> store_;
  const std::string prefix_;
  const std::chrono::milliseconds timeout_;
  const std::chrono::steady_clock::time_point deadline_;
  const std::function<void()> check_interrupt_;
  std::mutex mutex_;
  std::vector<WatchedRank> ranks_;  // guarded by mutex_
  size_t next_ = 0;                 // guarded by mutex_
};

}  // namespace distributed
}  // namespace paddle
