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

#include <cstdint>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "test/cpp/isolated_test.h"
#include "test/cpp/phi/shared_memory_collectives/collective_cases.h"
#include "test/cpp/phi/shared_memory_collectives/ranks.h"

// Ranks that are threads of one process, for the thread sanitizer: it does not
// detect races between processes.
namespace shared_memory_test {

using CollectivesThreadTest = SharedMemoryTestCase;

// The messages fit into the inline data, into one window of staging memory, and
// into several windows of transfer memory.
ISOLATED_TEST(CollectivesThreadTest, ThreadsOfARankUseTheGroupAtOnce) {
  for (const uint64_t bytes : {1000, 20000, 1000000}) {
    const auto group = GroupInOneProcess(2);
    std::thread other(
        [&] { SendReceiveAndReduceOnThreads(group[1].get(), bytes, 10); });
    SendReceiveAndReduceOnThreads(group[0].get(), bytes, 10);
    other.join();
  }
}

// Some of the messages get no transfer memory.
ISOLATED_TEST(CollectivesThreadTest, ARankSendsLargeMessagesToManyRanksAtOnce) {
  constexpr int kSize = 20;
  constexpr uint64_t kBytes = 200000;
  RunOnThreads(kSize, [](GroupMemory* group, Collectives* collectives) {
    if (group->rank() != 0) {
      std::this_thread::sleep_for(kSoon);  // so that all sends have begun
      Buffer data(kBytes);
      collectives->Recv(data.data(), kBytes, "uint8", 0, kNever);
      EXPECT_EQ(data, Buffer(kBytes, static_cast<char>(group->rank())));
      return;
    }
    std::vector<std::thread> senders;
    for (int receiver = 1; receiver < kSize; ++receiver) {
      senders.emplace_back([=] {
        const Buffer data(kBytes, static_cast<char>(receiver));
        collectives->Send(data.data(), kBytes, "uint8", receiver, kNever);
      });
    }
    for (std::thread& sender : senders) sender.join();
  });
}

}  // namespace shared_memory_test
