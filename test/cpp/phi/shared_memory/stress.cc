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

#include "test/cpp/phi/shared_memory/stress.h"

#include <sys/mman.h>
#include <sys/wait.h>

#include <chrono>
#include <memory>
#include <new>
#include <random>
#include <thread>
#include <vector>

namespace shared_memory_test {

namespace {

constexpr int kKills = 100;
constexpr uint64_t kMostMessagesBetween = 5;
constexpr uint64_t kLongestPauseMicroseconds = 8000;

Board* MakeBoard() {
  void* page = mmap(nullptr,
                    sizeof(Board),
                    PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS,
                    -1,
                    0);
  REQUIRE_TRUE(page != MAP_FAILED);
  return new (page) Board;
}

// Returns whether a process has ended by itself, which is a failure.
bool Ended(const Worker& worker) {
  siginfo_t info = {};
  waitid(P_PID, worker.pid(), &info, WEXITED | WNOHANG | WNOWAIT);
  return info.si_pid != 0;
}

}  // namespace

void RunWithRandomKills(
    int processes, const std::function<void(Board*, int, uint64_t)>& share) {
  Board* board = MakeBoard();
  uint64_t life = 0;
  auto start = [&](int index) {
    ++life;
    return std::make_unique<Worker>(
        [&, index](const Channel&) { share(board, index, life); });
  };
  std::vector<std::unique_ptr<Worker>> workers;
  for (int i = 0; i < processes; ++i) workers.push_back(start(i));
  std::mt19937_64 random(Seed());
  for (int kills = 0; kills < kKills; ++kills) {
    // Wait for progress, not only for time: on a busy machine, the killed
    // processes might have done nothing yet.
    const uint64_t goal = board->received + random() % kMostMessagesBetween;
    REQUIRE_TRUE(Eventually([&] { return board->received >= goal; }));
    std::this_thread::sleep_for(
        std::chrono::microseconds(random() % kLongestPauseMicroseconds));
    const int victim = 1 + random() % (processes - 1);
    for (const auto& worker : workers) REQUIRE_TRUE(!Ended(*worker));
    workers[victim]->Kill();
    workers[victim] = start(victim);
  }
  board->stage = kDraining;
  EXPECT_TRUE(Eventually([&] { return board->drained == processes; }));
  board->stage = kCollecting;
  EXPECT_TRUE(Eventually([&] { return board->collected == processes; }));
  board->stage = kLeaving;
  for (const auto& worker : workers) worker->Finish();
  EXPECT_TRUE(Files().empty());
}

void TakePart(Board* board,
              const std::function<void()>& step,
              const std::function<void()>& drain,
              const std::function<bool()>& collect) {
  while (board->stage == kSharing) step();
  drain();
  ++board->drained;
  EXPECT_TRUE(Eventually([&] { return board->stage == kCollecting; }));
  EXPECT_TRUE(Eventually(collect));
  ++board->collected;
  EXPECT_TRUE(Eventually([&] { return board->stage == kLeaving; }));
}

}  // namespace shared_memory_test
