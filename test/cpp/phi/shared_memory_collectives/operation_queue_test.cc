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

// The order in which a group runs its operations, and the thread that runs the
// asynchronous ones.

#include "paddle/phi/core/distributed/shared_memory/operation_queue.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <numeric>
#include <set>
#include <stdexcept>
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

ISOLATED_TEST(OperationQueueTest, StopWaitsForAddedFunctions) {
  OperationQueue queue;
  for (int i = 0; i < kRounds; ++i) {
    int ran = 0;
    queue.Add([&ran] { ran = 1; });
    queue.Stop();
    ASSERT_EQ(ran, 1);
  }
}

// The time limit of the test bounds a deadlock.
ISOLATED_TEST(OperationQueueTest, ConcurrentStopsAllReturn) {
  OperationQueue queue;
  std::atomic<int> ran{0};
  for (int i = 0; i < kRounds; ++i) {
    queue.Add([&ran] { ++ran; });
    OnThreads(3, [&queue] { queue.Stop(); });
    ASSERT_EQ(ran, i + 1);
  }
}

ISOLATED_TEST(OperationQueueTest, FunctionsAddedConcurrentlyWithStopsRun) {
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

// Gives a fault time to happen.
void LetOthersRun() {
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

// A function that blocks until it is released.
class Held {
 public:
  void operator()() {
    begun_.set_value();
    gate_.get_future().wait();
    ended_ = true;
  }
  void WaitForBegin() { begun_.get_future().wait(); }
  void Release() { gate_.set_value(); }
  bool ended() const { return ended_; }

 private:
  std::promise<void> begun_, gate_;
  std::atomic<bool> ended_{false};
};

ISOLATED_TEST(OperationQueueTest, AddedFunctionWaitsForOneThatACallerRuns) {
  OperationQueue queue;
  Held held;
  std::thread caller([&] { queue.Run([&] { held(); }); });
  held.WaitForBegin();
  std::promise<bool> found;
  queue.Add([&] { found.set_value(held.ended()); });
  LetOthersRun();
  held.Release();
  EXPECT_TRUE(found.get_future().get());
  caller.join();
}

ISOLATED_TEST(OperationQueueTest, WaitThatThrowsEndsBeforeTheEarlierFunction) {
  OperationQueue queue;
  Held held;
  queue.Add([&] { held(); });
  held.WaitForBegin();
  const auto interrupt = [] { throw std::runtime_error("deliberate"); };
  std::vector<int> ran;
  for (int i = 0; i < 2; ++i) {
    EXPECT_THROW(queue.Run([&] { ran.push_back(0); }, interrupt),
                 std::runtime_error);
    queue.Add([&ran, i] { ran.push_back(i + 1); });
  }
  held.Release();
  queue.Run([&] { ran.push_back(3); });
  EXPECT_EQ(ran, (std::vector<int>{1, 2, 3}));
}

ISOLATED_TEST(OperationQueueTest, WaitThatThrowsInItsTurnEndsTheTurn) {
  OperationQueue queue;
  Held held;
  queue.Add([&] { held(); });
  held.WaitForBegin();
  const auto release_and_interrupt = [&] {
    held.Release();
    queue.Add([] {});
    while (!held.ended()) LetOthersRun();
    LetOthersRun();
    throw std::runtime_error("deliberate");
  };
  EXPECT_THROW(queue.Run([] {}, release_and_interrupt), std::runtime_error);
  bool ran = false;
  queue.Run([&] { ran = true; });
  EXPECT_TRUE(ran);
}

ISOLATED_TEST(OperationQueueTest, StopWaitsForAFunctionThatACallerRuns) {
  OperationQueue queue;
  Held held;
  std::thread caller([&] { queue.Run([&] { held(); }); });
  held.WaitForBegin();
  std::thread opener([&] {
    LetOthersRun();
    held.Release();
  });
  queue.Stop();
  EXPECT_TRUE(held.ended());
  opener.join();
  caller.join();
}

ISOLATED_TEST(OperationQueueTest, AddDoesNotWaitForTheFunctionThatRuns) {
  OperationQueue queue;
  Held held;
  bool ran = false;
  queue.Add([&] { held(); });
  held.WaitForBegin();
  queue.Add([&] { ran = true; });
  held.Release();
  queue.Stop();
  EXPECT_TRUE(ran);
}

ISOLATED_TEST(OperationQueueTest, FunctionsOfAllWaitingCallersRun) {
  OperationQueue queue;
  for (int i = 0; i < 20; ++i) {
    // The queue's thread also waits.
    queue.Add([] {});
    LetOthersRun();
    Held held;
    int ran = 0;
    std::thread caller([&] { queue.Run([&] { held(); }); });
    held.WaitForBegin();
    std::thread opener([&] {
      LetOthersRun();
      held.Release();
    });
    OnThreads(8, [&] { queue.Run([&ran] { ++ran; }); });
    EXPECT_EQ(ran, 8);
    opener.join();
    caller.join();
  }
}

ISOLATED_TEST(OperationQueueTest, FunctionAddedDuringAStopRuns) {
  OperationQueue queue;
  for (int i = 0; i < kRounds; ++i) {
    queue.Add([] {});
    std::promise<void> ran;
    std::thread stopper([&] { queue.Stop(); });
    queue.Add([&] { ran.set_value(); });
    stopper.join();
    ran.get_future().wait();
  }
}

ISOLATED_TEST(OperationQueueTest, CapturesAreDestroyedBeforeTheNextFunction) {
  struct Slow {
    ~Slow() {
      // A destructor may use the queue.
      queue->Add([] {});
      LetOthersRun();
      *ended = true;
    }
    OperationQueue* queue;
    std::atomic<bool>* ended;
  };
  OperationQueue queue;
  std::atomic<bool> ended{false};
  auto slow = std::make_shared<Slow>();
  slow->queue = &queue;
  slow->ended = &ended;
  queue.Add([slow = std::move(slow)] {});
  bool found = false;
  queue.Run([&] { found = ended; });
  EXPECT_TRUE(found);
}

ISOLATED_TEST(OperationQueueTest, OneThreadRunsAllFunctionsAfterAStop) {
  OperationQueue queue;
  queue.Add([] {});
  queue.Stop();
  std::set<pid_t> threads;
  for (int i = 0; i < 5; ++i) {
    std::promise<pid_t> thread;
    queue.Add([&] { thread.set_value(syscall(SYS_gettid)); });
    threads.insert(thread.get_future().get());
    LetOthersRun();
  }
  EXPECT_EQ(threads.size(), 1u);
}

ISOLATED_TEST(OperationQueueTest, AnExceptionPropagatesToTheCallerOfRun) {
  OperationQueue queue;
  EXPECT_THROW(queue.Run([] { throw std::runtime_error("deliberate"); }),
               std::runtime_error);
  bool ran = false;
  queue.Run([&] { ran = true; });
  EXPECT_TRUE(ran);
}

// A page that no thread may access until the handler of SIGSEGV allows it.
constexpr size_t kPageBytes = 4096;
void* page = nullptr;
volatile sig_atomic_t faults = 0;

void AllowAccess(int) {
  faults = faults + 1;
  mprotect(page, kPageBytes, PROT_READ | PROT_WRITE);
}

ISOLATED_TEST(OperationQueueTest, TheHandlerOfAFaultInTheQueuesThreadRuns) {
  page =
      mmap(nullptr, kPageBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  struct sigaction action = {};
  action.sa_handler = AllowAccess;
  ASSERT_EQ(sigaction(SIGSEGV, &action, nullptr), 0);
  OperationQueue queue;
  // If the thread blocked SIGSEGV, the kernel would kill this process.
  queue.Add([] { *static_cast<volatile char*>(page) = 7; });
  queue.Stop();
  EXPECT_EQ(faults, 1);
  EXPECT_EQ(*static_cast<char*>(page), 7);
}

ISOLATED_TEST(OperationQueueTest, OnlyTheQueuesThreadBlocksSignals) {
  OperationQueue queue;
  sigset_t mask;
  queue.Add([&] { pthread_sigmask(SIG_BLOCK, nullptr, &mask); });
  queue.Stop();
  EXPECT_EQ(sigismember(&mask, SIGUSR1), 1);
  EXPECT_EQ(sigismember(&mask, SIGTERM), 1);
  for (int error :
       {SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP}) {
    EXPECT_EQ(sigismember(&mask, error), 0) << error;
  }
  pthread_sigmask(SIG_BLOCK, nullptr, &mask);
  EXPECT_EQ(sigismember(&mask, SIGUSR1), 0);
  EXPECT_EQ(sigismember(&mask, SIGTERM), 0);
}

ISOLATED_TEST(OperationQueueTest,
              TheQueuesThreadBlocksErrorsThatItsCreatorDoes) {
  sigset_t errors, mask;
  sigemptyset(&errors);
  sigaddset(&errors, SIGABRT);
  ASSERT_EQ(pthread_sigmask(SIG_BLOCK, &errors, nullptr), 0);
  OperationQueue queue;
  queue.Add([&] { pthread_sigmask(SIG_BLOCK, nullptr, &mask); });
  queue.Stop();
  EXPECT_EQ(sigismember(&mask, SIGABRT), 1);
  EXPECT_EQ(sigismember(&mask, SIGSEGV), 0);
  pthread_sigmask(SIG_UNBLOCK, &errors, &mask);
  EXPECT_EQ(sigismember(&mask, SIGABRT), 1);
}

}  // namespace
