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

// Threads of one process, and of two, concurrently share device memory.

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "test/cpp/phi/shared_memory/devices.h"
#include "test/cpp/phi/shared_memory/stress.h"

namespace {

using namespace shared_memory_test;  // NOLINT(build/namespaces)

class CudaIPCThreadTest : public shared_memory_test::SharedMemoryTestCase {};

constexpr int kThreads = 6;
constexpr int kRounds = 300;

void InThreads(const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) threads.emplace_back(body, i);
  for (std::thread& thread : threads) thread.join();
}

// Runs the body in several threads, which start at the same moment.
void InThreadsAtOnce(const std::function<void()>& body) {
  std::atomic<int> ready{0};
  InThreads([&](int) {
    ++ready;
    while (ready < kThreads) std::this_thread::yield();
    body();
  });
}

struct Mail {
  CudaIPCMessage message;
  uint32_t word;
};

struct Held {
  Storage storage;
  uint32_t word;
};

Held MakeHeld(std::mt19937_64* random, Stream stream) {
  const uint32_t word = (*random)();
  const Storage storage = (*random)() % 2 == 0
                              ? Allocate(4 * (1 + (*random)() % 2000))
                              : AllocateInChunks({1, 1});
  Fill(storage->memory, word, stream);
  return {storage, word};
}

TEST_BOTH(CudaIPCThreadTest, ThreadsSendReceiveAndDropConcurrently) {
  ThreadMailbox<Mail> mailbox;
  InThreads([&](int index) {
    std::mt19937_64 random(Seed() * kThreads + index);
    const Stream stream = MakeStream();
    std::vector<Held> held;
    for (int round = 0; round < kRounds; ++round) {
      const uint64_t choice = random() % 16;
      if (choice < 5) {
        held.push_back(MakeHeld(&random, stream));
      } else if (choice < 10 && !held.empty()) {
        const Held& sent = held[random() % held.size()];
        mailbox.Put({MessageOf(sent.storage, strategy, stream), sent.word});
      } else if (choice < 14) {
        if (const auto mail = mailbox.Take()) {
          held.push_back({StorageOf(mail->message, stream), mail->word});
        }
      } else if (choice == 14) {
        DeviceHeap().Collect({});
      } else {
        DeviceHeap().Stats();
        DeviceHeap().Describe();
      }
      while (held.size() > 4) {
        Held& dropped = held[random() % held.size()];
        EXPECT_TRUE(HasContent(dropped.storage->memory, dropped.word, stream));
        std::swap(dropped, held.back());
        held.pop_back();
      }
    }
  });
  while (const auto mail = mailbox.Take()) {
    EXPECT_TRUE(HasContent(StorageOf(mail->message)->memory, mail->word));
  }
  EXPECT_TRUE(SharesNothing());
}

TEST_BOTH(CudaIPCThreadTest, ThreadsReceiveWhatThreadsOfAnotherProcessSend) {
  constexpr int kMails = 40;  // per thread
  Worker receiver([](const Channel& channel) {
    std::mutex mutex;
    InThreads([&](int) {
      const Stream stream = MakeStream();
      for (int round = 0; round < kMails; ++round) {
        Mail mail;
        {
          const std::lock_guard<std::mutex> guard(mutex);
          mail = channel.Receive<Mail>();
        }
        const Storage storage = StorageOf(mail.message, stream);
        EXPECT_TRUE(HasContent(storage->memory, mail.word, stream));
      }
    });
    EXPECT_TRUE(SharesNothing());
    channel.Signal();
    channel.Await();
  });
  InThreads([&](int index) {
    std::mt19937_64 random(Seed() * kThreads + index);
    const Stream stream = MakeStream();
    for (int round = 0; round < kMails; ++round) {
      const Held held = MakeHeld(&random, stream);
      receiver.channel().Send(
          Mail{MessageOf(held.storage, strategy, stream), held.word});
    }
  });
  receiver.channel().Await();
  EXPECT_TRUE(SharesNothing());
  receiver.channel().Signal();
  receiver.Finish();
}

TEST_BOTH(CudaIPCThreadTest, ThreadsThatSendOneTensorGiveItOneRecord) {
  for (int round = 0; round < 20; ++round) {
    Storage storage = AllocateFilled(4096, 1);
    InThreadsAtOnce(
        [&] { EXPECT_EQ(StorageOf(MessageOf(storage, strategy)), storage); });
    EXPECT_EQ(DeviceHeap().Stats().sent, 1);
    storage.reset();
    EXPECT_TRUE(SharesNothing());
  }
}

TEST_BOTH(CudaIPCThreadTest, ThreadsThatReceiveOneTensorOpenItOnce) {
  constexpr int kTimes = 20;
  Worker receiver([](const Channel& channel) {
    std::mutex mutex;
    for (int i = 0; i < kTimes; ++i) {
      InThreadsAtOnce([&] {
        CudaIPCMessage message;
        {
          const std::lock_guard<std::mutex> guard(mutex);
          message = channel.Receive<CudaIPCMessage>();
        }
        const Storage storage = StorageOf(message);
        EXPECT_EQ(DeviceHeap().Stats().handles, 1);
        EXPECT_TRUE(HasContent(storage->memory, 1));
      });
      EXPECT_TRUE(SharesNothing());
      channel.Signal();
    }
    channel.Await();
  });
  for (int i = 0; i < kTimes; ++i) {
    Storage storage = AllocateFilled(4096, 1);
    for (int thread = 0; thread < kThreads; ++thread) {
      receiver.channel().Send(MessageOf(storage, strategy));
    }
    storage.reset();
    receiver.channel().Await();
    EXPECT_TRUE(SharesNothing());
  }
  receiver.channel().Signal();
  receiver.Finish();
}

}  // namespace
