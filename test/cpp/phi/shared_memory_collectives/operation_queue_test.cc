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

// The order in which a group runs its operations, and the thread that runs
// some of them.

#include "paddle/phi/core/distributed/shared_memory/operation_queue.h"

#include <atomic>
#include <functional>
#include <numeric>
#include <thread>
#include <vector>

#include "test/cpp/phi/shared_memory/shared_memory_test_case.h"

namespace {

using phi::distributed::OperationQueue;

class OperationQueueTest : public shared_memory_test::SharedMemoryTestCase {};

constexpr int kRounds = 2000;

void OnThreads(int count, const std::function<void()>& call) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back(call);
  for (std::thread& thread : threads) thread.join();
}

ISOLATED_TEST(OperationQueueTest, FunctionsRunInTheOrderOfTheCalls) {
  OperationQueue queue;
  std::vector<int> found;
  for (int i = 0; i < kRounds; i += 2) {
    queue.Add([&found, i] { found.push_back(i); });
    queue.Run([&found, i] { found.push_back(i + 1); });
  }
  std::vector<int> expected(kRounds);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(found, expected);
}

ISOLATED_TEST(OperationQueueTest, StopWaitsForWhatWasAdded) {
  OperationQueue queue;
  for (int i = 0; i < kRounds; ++i) {
    int ran = 0;
    queue.Add([&ran] { ran = 1; });
    queue.Stop();
    ASSERT_EQ(ran, 1);
  }
}

// Bounded by the time limit of the test.
ISOLATED_TEST(OperationQueueTest, ThreadsThatStopAtOnceAllReturn) {
  OperationQueue queue;
  std::atomic<int> ran{0};
  for (int i = 0; i < kRounds; ++i) {
    queue.Add([&ran] { ++ran; });
    OnThreads(3, [&queue] { queue.Stop(); });
    ASSERT_EQ(ran, i + 1);
  }
}

ISOLATED_TEST(OperationQueueTest, FunctionsThatAreAddedBesideStopsRun) {
  OperationQueue queue;
  std::atomic<int> ran{0};
  OnThreads(4, [&] {
    for (int i = 0; i < kRounds; ++i) {
      queue.Add([&ran] { ++ran; });
      queue.Stop();
    }
  });
  EXPECT_EQ(ran, 4 * kRounds);
}

}  // namespace
