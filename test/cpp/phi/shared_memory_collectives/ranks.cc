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

#include "test/cpp/phi/shared_memory_collectives/ranks.h"

#include <cstring>

namespace shared_memory_test {

namespace {

struct Id {
  char text[64];
};

}  // namespace

bool Outcome::Is(CollectiveError::Kind expected, int about) const {
  return failed && kind == expected && rank == about;
}

bool Outcome::Says(const std::string& part) const {
  return std::string(text).find(part) != std::string::npos;
}

std::ostream& operator<<(std::ostream& out, const Outcome& outcome) {
  if (!outcome.failed) return out << "no error";
  return out << "error " << static_cast<int>(outcome.kind) << " of rank "
             << outcome.rank << ": " << outcome.text;
}

Outcome OutcomeOf(const std::function<void()>& call) {
  Outcome outcome = {};
  try {
    call();
  } catch (const CollectiveError& error) {
    outcome.failed = true;
    outcome.kind = error.kind();
    outcome.rank = error.rank();
    std::strncpy(outcome.text, error.what(), sizeof(outcome.text) - 1);
  }
  return outcome;
}

Ranks::Ranks(int size, const Body& body, const GroupOptions& options) {
  workers_.push_back(std::make_unique<Worker>([&](const Channel& channel) {
    const auto group = GroupMemory::Create(size, options);
    Id id = {};
    group->id().copy(id.text, sizeof(id.text) - 1);
    channel.Send(id);
    body(group.get(), channel);
  }));
  const std::string id = channel(0).Receive<Id>().text;
  for (int rank = 1; rank < size; ++rank) {
    workers_.push_back(
        std::make_unique<Worker>([&, rank](const Channel& channel) {
          const auto group = GroupMemory::Attach(id, rank);
          body(group.get(), channel);
        }));
  }
}

void Ranks::Finish() {
  for (const auto& worker : workers_) worker->Finish();
}

std::vector<std::unique_ptr<GroupMemory>> GroupInOneProcess(
    int size, const GroupOptions& options) {
  std::vector<std::unique_ptr<GroupMemory>> ranks;
  ranks.push_back(GroupMemory::Create(size, options));
  for (int rank = 1; rank < size; ++rank) {
    ranks.push_back(GroupMemory::Attach(ranks[0]->id(), rank));
  }
  return ranks;
}

OperationInfo SomeOperation() {
  return OperationInfo::Of("all_reduce", 4096, "float32", "sum");
}

uint64_t Sum(GroupMemory* group, uint64_t number, Milliseconds timeout) {
  Operation operation(group, SomeOperation(), timeout);
  std::memcpy(operation.inline_data(group->rank()), &number, sizeof(number));
  operation.Publish(1);
  uint64_t sum = 0;
  for (int rank = 0; rank < group->size(); ++rank) {
    operation.WaitFor(rank, 1);
    uint64_t part;
    std::memcpy(&part, operation.inline_data(rank), sizeof(part));
    sum += part;
  }
  operation.End();
  return sum;
}

void Meet(GroupMemory* group, Milliseconds timeout) { Sum(group, 0, timeout); }

void MeetUntilItFails(GroupMemory* group, const Channel& channel) {
  channel.Send(OutcomeOf([&] {
    for (;;) Meet(group);
  }));
}

void SendNumber(GroupMemory* group,
                uint64_t number,
                int receiver,
                Milliseconds timeout) {
  const int rank = group->rank();
  Operation operation(group,
                      OperationInfo::Of("send", sizeof(number)),
                      rank,
                      receiver,
                      timeout);
  std::memcpy(operation.inline_data(rank), &number, sizeof(number));
  operation.Publish(1);
  operation.End();
}

uint64_t ReceiveNumber(GroupMemory* group, int sender, Milliseconds timeout) {
  uint64_t number;
  Operation operation(group,
                      OperationInfo::Of("recv", sizeof(number)),
                      sender,
                      group->rank(),
                      timeout);
  operation.Publish(1);
  operation.WaitFor(sender, 1);
  std::memcpy(&number, operation.inline_data(sender), sizeof(number));
  operation.End();
  return number;
}

}  // namespace shared_memory_test
