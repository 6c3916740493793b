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

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "paddle/phi/core/distributed/shared_memory/collective_error.h"
#include "paddle/phi/core/distributed/shared_memory/group_memory.h"
#include "paddle/phi/core/distributed/shared_memory/operation.h"
#include "test/cpp/phi/shared_memory/processes.h"

// Helpers of tests of collective operations.
namespace shared_memory_test {

using phi::distributed::CollectiveError;
using phi::distributed::GroupMemory;
using phi::distributed::GroupOptions;
using phi::distributed::Operation;
using phi::distributed::OperationInfo;
using Milliseconds = Operation::Milliseconds;

// A timeout so long that a test that reaches it has failed.
constexpr Milliseconds kNever{1000 * 1000};
constexpr Milliseconds kSoon{50};

// The outcome of a call, in a form that channels between processes can carry.
struct Outcome {
  bool Is(CollectiveError::Kind kind, int rank) const;
  bool Says(const std::string& part) const;

  bool failed;
  CollectiveError::Kind kind;
  int rank;
  char text[1024];
};
std::ostream& operator<<(std::ostream& out, const Outcome& outcome);
Outcome OutcomeOf(const std::function<void()>& call);

// The processes of a group, one per rank.
class Ranks {
 public:
  using Body = std::function<void(GroupMemory*, const Channel&)>;

  // Starts the processes; each rank runs the body.
  explicit Ranks(int size, const Body& body, const GroupOptions& options = {});

  int size() const { return static_cast<int>(workers_.size()); }
  Worker& operator[](int rank) { return *workers_[rank]; }
  const Channel& channel(int rank) { return workers_[rank]->channel(); }
  Outcome ReceiveOutcome(int rank) { return channel(rank).Receive<Outcome>(); }
  void Finish();

 private:
  std::vector<std::unique_ptr<Worker>> workers_;
};

// Returns a group whose ranks are all in this process.
std::vector<std::unique_ptr<GroupMemory>> GroupInOneProcess(
    int size, const GroupOptions& options = {});

// An arbitrary operation, for tests of something else.
OperationInfo SomeOperation();

// Runs an operation with inline data: each rank contributes a number, and gets
// the sum of all numbers.
uint64_t Sum(GroupMemory* group,
             uint64_t number,
             Milliseconds timeout = kNever);
void Meet(GroupMemory* group, Milliseconds timeout = kNever);
// Runs operations until one fails, and sends its outcome.
void MeetUntilItFails(GroupMemory* group, const Channel& channel);

// Send a number from one rank to another.
void SendNumber(GroupMemory* group,
                uint64_t number,
                int receiver,
                Milliseconds timeout = kNever);
uint64_t ReceiveNumber(GroupMemory* group,
                       int sender,
                       Milliseconds timeout = kNever);

}  // namespace shared_memory_test
