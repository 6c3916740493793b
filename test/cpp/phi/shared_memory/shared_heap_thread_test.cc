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

// Threads of one process, and of two, share blocks concurrently.

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "test/cpp/phi/shared_memory/stress.h"

namespace {

using namespace shared_memory_test;  // NOLINT(build/namespaces)

class SharedHeapThreadTest : public shared_memory_test::SharedMemoryTestCase {};

constexpr int kThreads = 8;
constexpr int kRounds = 1500;

void InThreads(const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) threads.emplace_back(body, i);
  for (std::thread& thread : threads) thread.join();
}

// Represents a tensor's storage. It is bound to a block, and releases the block
// with its last user.
struct Storage {
  Storage(const SharedBlock& block, uint64_t seed) : block(block), seed(seed) {}
  ~Storage() { Heap().Release(block); }
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  const SharedBlock block;
  const uint64_t seed;
};

std::shared_ptr<Storage> Bound(const SharedBlock& block, uint64_t seed) {
  auto storage = std::make_shared<Storage>(block, seed);
  Heap().Bind(block, storage, [] { return true; });
  return storage;
}

struct Mail {
  SharedMessage message;
  uint64_t seed;
};

std::shared_ptr<Storage> Open(const Mail& mail) {
  const auto received = Heap().Receive(mail.message);
  if (!received.storage) return Bound(received.block, mail.seed);
  return std::static_pointer_cast<Storage>(received.storage);
}

TEST_BOTH(SharedHeapThreadTest, ThreadsSendReceiveAndDropConcurrently) {
  ThreadMailbox<Mail> mailbox;
  InThreads([&](int index) {
    std::mt19937_64 random(Seed() * kThreads + index);
    std::vector<std::shared_ptr<Storage>> held;
    for (int round = 0; round < kRounds; ++round) {
      const uint64_t choice = random() % 16;
      if (choice < 6) {
        const uint64_t seed = random();
        held.push_back(
            Bound(AllocateFilled(strategy, 1 + random() % 9000, seed), seed));
      } else if (choice < 10 && !held.empty()) {
        const auto& storage = held[random() % held.size()];
        mailbox.Put({MessageOf(storage->block), storage->seed});
      } else if (choice < 14) {
        if (const auto mail = mailbox.Take()) held.push_back(Open(*mail));
      } else if (choice == 14) {
        Heap().Collect({});
      } else {
        Heap().Stats();
      }
      while (held.size() > 8) {
        auto& storage = held[random() % held.size()];
        EXPECT_TRUE(HasContent(storage->block, storage->seed));
        std::swap(storage, held.back());
        held.pop_back();
      }
    }
  });
  while (const auto mail = mailbox.Take()) {
    const auto storage = Open(*mail);
    EXPECT_TRUE(HasContent(storage->block, storage->seed));
  }
  EXPECT_EQ(Heap().Stats().messages, 0);
  EXPECT_EQ(Heap().Stats().used, 0);
}

TEST_BOTH(SharedHeapThreadTest, ThreadsReceiveWhatThreadsOfAnotherProcessSend) {
  Worker receiver([](const Channel& channel) {
    std::mutex mutex;
    InThreads([&](int) {
      for (int round = 0; round < 200; ++round) {
        Mail mail;
        {
          const std::lock_guard<std::mutex> guard(mutex);
          mail = channel.Receive<Mail>();
        }
        const auto storage = Open(mail);
        EXPECT_TRUE(HasContent(storage->block, storage->seed));
      }
    });
    channel.Signal();
    channel.Await();
  });
  InThreads([&](int index) {
    std::mt19937_64 random(Seed() * kThreads + index);
    for (int round = 0; round < 200; ++round) {
      const uint64_t seed = random();
      const auto storage =
          Bound(AllocateFilled(strategy, 1 + random() % 9000, seed), seed);
      receiver.channel().Send(Mail{MessageOf(storage->block), seed});
    }
  });
  receiver.channel().Await();
  EXPECT_EQ(Heap().Stats().messages, 0);
  EXPECT_EQ(Heap().Stats().used, 0);
  receiver.channel().Signal();
  receiver.Finish();
}

TEST_BOTH(SharedHeapThreadTest, ThreadsThatExceedTheLimitGetABlockOrAnError) {
  constexpr uint64_t kSize = 1 << 20;
  Heap().SetLimit(4 * kSize);
  std::atomic<int> refused{0};
  InThreads([&](int) {
    for (int round = 0; round < 30; ++round) {
      const auto kind = KindOf([&] {
        const SharedBlock block = Heap().Allocate(strategy, kSize);
        std::this_thread::yield();
        Heap().Release(block);
      });
      EXPECT_TRUE(!kind || kind == Kind::kExhausted);
      if (kind) ++refused;
      EXPECT_LE(Heap().Stats().reserved, 4 * kSize);
    }
  });
  EXPECT_EQ(Heap().Stats().used, 0);
  Heap().Release(Heap().Allocate(strategy, 4 * kSize));
}

}  // namespace
