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

// Threads of two processes concurrently send, receive and drop one event.

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "paddle/phi/core/memory/allocation/shared_memory/cuda_interprocess_event.h"
#include "test/cpp/phi/shared_memory/devices.h"

namespace {

using namespace shared_memory_test;  // NOLINT(build/namespaces)

using paddle::memory::allocation::CudaInterprocessEvent;
using Event = std::shared_ptr<CudaInterprocessEvent>;

class CudaIPCEventThreadTest : public shared_memory_test::SharedMemoryTestCase {
};

constexpr int kThreads = 6;
constexpr int kRounds = 20;

void InThreadsAtOnce(const std::function<void()>& body) {
  std::atomic<int> ready{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      ++ready;
      while (ready < kThreads) std::this_thread::yield();
      body();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Each thread receives the event of a message, uses it and drops it.
void ReceiveInThreads(const Channel& channel) {
  std::mutex mutex;
  InThreadsAtOnce([&] {
    SharedMessage message;
    {
      const std::lock_guard<std::mutex> guard(mutex);
      message = channel.Receive<SharedMessage>();
    }
    const Event event = CudaInterprocessEvent::Receive(message, {});
    event->Wait(0, nullptr);
    EXPECT_TRUE(event->IsDone());
  });
}

void SendInThreads(const Event& event,
                   SharingStrategy strategy,
                   const Channel& channel) {
  std::mutex mutex;
  InThreadsAtOnce([&] {
    const SharedMessage message = event->Send(strategy);
    const std::lock_guard<std::mutex> guard(mutex);
    channel.Send(message);
  });
}

TEST_BOTH(CudaIPCEventThreadTest, ThreadsShareOneEventOfAnotherProcess) {
  Worker receiver([](const Channel& channel) {
    DeviceHeap();
    for (int i = 0; i < kRounds; ++i) {
      ReceiveInThreads(channel);
      EXPECT_TRUE(UsesNothing());
      channel.Signal();
    }
    channel.Await();
  });
  DeviceHeap();
  for (int i = 0; i < kRounds; ++i) {
    Event event = CudaInterprocessEvent::Make(0);
    SendInThreads(event, strategy, receiver.channel());
    event.reset();
    receiver.channel().Await();
    EXPECT_TRUE(UsesNothing());
  }
  receiver.channel().Signal();
  receiver.Finish();
}

TEST_BOTH(CudaIPCEventThreadTest, ThreadsShareOneEventOfTheirOwnProcess) {
  DeviceHeap();
  for (int i = 0; i < kRounds; ++i) {
    Event event = CudaInterprocessEvent::Make(0);
    std::vector<SharedMessage> messages;
    for (int thread = 0; thread < kThreads; ++thread) {
      messages.push_back(event->Send(strategy));
    }
    event.reset();  // the first thread recreates it, and the last one ends it
    std::atomic<int> next{0};
    InThreadsAtOnce([&] {
      EXPECT_TRUE(
          CudaInterprocessEvent::Receive(messages[next++], {})->IsDone());
    });
    EXPECT_TRUE(UsesNothing());
  }
}

}  // namespace
