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

#include "paddle/fluid/distributed/collective/group_store.h"

#include <unistd.h>

#include <exception>
#include <optional>
#include <thread>
#include <utility>

#include "paddle/phi/core/distributed/shared_memory/collective_error.h"
#include "paddle/phi/core/distributed/shared_memory/group_memory.h"
#include "paddle/phi/core/enforce.h"
#include "paddle/phi/core/memory/allocation/shared_memory/process_status.h"

namespace paddle {
namespace distributed {
namespace {

using memory::allocation::ProcessStat;
using phi::distributed::CollectiveError;
using phi::distributed::Store;

// Returns whether /proc shows the processes of this process's PID namespace.
bool SeesItsProcesses() {
  char text[16] = {};
  return readlink("/proc/self", text, sizeof(text) - 1) > 0 &&
         std::to_string(getpid()) == text;
}

void ThrowIfRankDied(const WatchedRank& watched) {
  const auto [rank, process, ticks] = watched;
  if (!HasEnded({process, ticks})) return;
  throw CollectiveError(CollectiveError::Kind::kDied,
                        rank,
                        "Rank " + std::to_string(rank) + " (process " +
                            std::to_string(process) +
                            ") has died: it was killed, or it ended before "
                            "all ranks had joined the group. See its output, "
                            "and start all ranks again.");
}

}  // namespace

ProcessStart StartOfThisProcess() {
  if (!SeesItsProcesses()) return {};
  const std::optional<ProcessStat> stat =
      memory::allocation::ReadProcessStat("/proc/self");
  if (!stat || stat->start == 0) return {};
  return {static_cast<uint32_t>(getpid()), stat->start};
}

bool HasEnded(const ProcessStart& start) {
  if (start.process == 0) return false;
  if (memory::allocation::HasEnded(start.process)) return true;
  if (!SeesItsProcesses()) return false;
  const std::optional<ProcessStat> stat = memory::allocation::ReadProcessStat(
      "/proc/" + std::to_string(start.process));
  if (!stat) return false;
  if (stat->start != start.ticks) return true;
  return stat->IsExiting() && phi::distributed::IsGoneOrExiting(start.process);
}

GroupStore::GroupStore(std::shared_ptr<Store> store,
                       std::string prefix,
                       std::chrono::milliseconds timeout,
                       std::function<void()> check_interrupt)
    : store_(std::move(store)),
      prefix_(std::move(prefix)),
      timeout_(timeout),
      deadline_(std::chrono::steady_clock::now() + timeout),
      check_interrupt_(std::move(check_interrupt)) {}

void GroupStore::Watch(std::vector<WatchedRank> ranks) {
  std::lock_guard<std::mutex> lock(mutex_);
  ranks_ = std::move(ranks);
}

void GroupStore::AwaitDeath() {
  constexpr int kTries = 100;
  constexpr std::chrono::milliseconds kPause{10};
  for (int i = 0; i < kTries && ThrowIfDied(); ++i) {
    std::this_thread::sleep_for(kPause);
  }
}

bool GroupStore::ThrowIfDied() {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const WatchedRank& rank : ranks_) ThrowIfRankDied(rank);
  return !ranks_.empty();
}

template <typename Call>
auto GroupStore::NameDead(const Call& call) -> decltype(call()) {
  try {
    return call();
  } catch (const std::exception& error) {
    AwaitDeath();
    throw CollectiveError(
        CollectiveError::Kind::kUnavailable,
        -1,
        "Cannot use the store through which the ranks of a group find each "
        "other. The process that has it, usually rank 0, may have died: see "
        "its output. " +
            std::string(error.what()));
  }
}

int64_t GroupStore::add(const std::string& key, int64_t value) {
  return NameDead([&] { return store_->add(prefix_ + key, value); });
}

void GroupStore::set(const std::string& key,
                     const std::vector<uint8_t>& value) {
  NameDead([&] { store_->set(prefix_ + key, value); });
}

bool GroupStore::check(const std::string& key) {
  const bool is_set = NameDead([&] { return store_->check(prefix_ + key); });
  if (is_set) return true;
  if (check_interrupt_) check_interrupt_();
  std::lock_guard<std::mutex> lock(mutex_);
  if (!ranks_.empty()) ThrowIfRankDied(ranks_[next_++ % ranks_.size()]);
  return false;
}

void GroupStore::wait(const std::string& key) {
  while (!check(key)) {
    if (std::chrono::steady_clock::now() > deadline_) {
      PADDLE_THROW(common::errors::ExecutionTimeout(
          "No rank set %s%s within %d ms: another rank of the group has "
          "failed or did not arrive. Look for its error, or pass a longer "
          "timeout.",
          prefix_,
          key,
          timeout_.count()));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

std::vector<uint8_t> GroupStore::get(const std::string& key) {
  wait(key);
  return NameDead([&] { return store_->get(prefix_ + key); });
}

}  // namespace distributed
}  // namespace paddle
