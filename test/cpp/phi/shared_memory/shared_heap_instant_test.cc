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

// An event happens just before a certain system call: an instant that random
// tests might never hit.

#include <signal.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

#include "test/cpp/phi/shared_memory/intercepted_calls.h"
#include "test/cpp/phi/shared_memory/processes.h"

namespace {

using namespace shared_memory_test;  // NOLINT(build/namespaces)

class SharedHeapInstantTest : public shared_memory_test::SharedMemoryTestCase {
};

// More calls than a process here ever makes of one function.
constexpr int kMostCalls = 1000;

enum Request { kSendOne, kLookWhetherAllIsClean, kEnd };

// Sends blocks on request without keeping them. Also reports on request whether
// all of them, and all blocks of dead processes, become unused.
void Survive(const Channel& channel, SharingStrategy strategy) {
  const SharedBlock kept = AllocateFilled(strategy, kMiB, 2);
  const size_t files = Files().size();
  for (;;) {
    const auto request = channel.Receive<Request>();
    if (request == kEnd) return;
    if (request == kSendOne) {
      const SharedBlock block = AllocateFilled(strategy, kMiB, 1);
      channel.Send(MessageOf(block));
      Heap().Release(block);
    } else {
      channel.Send(Eventually([&] {
        Heap().Collect(0.0);
        return Heap().Stats().used == kept.capacity &&
               Heap().Stats().attached == 0 && Files().size() == files;
      }));
      EXPECT_TRUE(HasContent(kept, 2));
    }
  }
}

// Runs all operations of shared memory once.
void Live(SharingStrategy strategy, const SharedMessage& message) {
  const SharedBlock received = Heap().Receive(message).block;
  EXPECT_TRUE(HasContent(received, 1));
  const SharedBlock own = AllocateFilled(strategy, 100, 3);
  const SharedBlock large = AllocateFilled(strategy, 2 * kMiB, 4);
  MessageOf(received);
  MessageOf(own);
  Worker child([&](const Channel& channel) {
    channel.Send(HasContent(received, 1) && HasContent(own, 3));
    Heap().Release(received);
  });
  // The child may be the process that is killed.
  if (child.channel().SaysMore()) {
    EXPECT_TRUE(child.channel().Receive<bool>());
  }
  Heap().Release(large);
  Heap().Release(received);
  Heap().Collect({});
  EXPECT_TRUE(HasContent(own, 3));
  Heap().Leave();
}

TEST_BOTH(SharedHeapInstantTest, AProcessKilledBeforeAnyCallLeavesNothing) {
  Worker survivor([&](const Channel& channel) { Survive(channel, strategy); });
  for (const std::string& function : InterceptedFunctions()) {
    bool happened = true;
    for (int n = 1; happened && n < kMostCalls; ++n) {
      survivor.channel().Send(kSendOne);
      const auto message = survivor.channel().Receive<SharedMessage>();
      Worker victim([&](const Channel& channel) {
        const Interception interception(
            function, n, Calls::kOne, [] { return raise(SIGKILL); });
        Live(strategy, message);
        channel.Signal();
        channel.Await();
      });
      happened = !victim.channel().SaysMore();
      if (!happened) {
        victim.channel().Await();
        victim.channel().Signal();
        victim.Finish();
      }
      survivor.channel().Send(kLookWhetherAllIsClean);
      const bool clean = survivor.channel().Receive<bool>();
      EXPECT_TRUE(clean);
      if (!clean) std::printf("  call %d of %s\n", n, function.c_str());
    }
    EXPECT_FALSE(happened);
  }
  survivor.channel().Send(kEnd);
  survivor.Finish();
}

// As if another process removed the file after an earlier check for messages.
ISOLATED_TEST(SharedHeapInstantTest, AFileThatIsRemovedWhileItIsOpenedIsGone) {
  Worker sender([](const Channel& channel) {
    channel.Send(
        MessageOf(AllocateFilled(SharingStrategy::kFileSystem, kMiB, 1)));
    channel.Await();
  });
  const auto message = sender.channel().Receive<SharedMessage>();
  Heap();
  const Possessions before = Possessions::Now();
  std::optional<Kind> kind;
  {
    const Interception interception("fcntl", 1, Calls::kOne, [&] {
      return unlink(PathOf(message).c_str());
    });
    kind = KindOf([&] { Heap().Receive(message); });
    EXPECT_TRUE(interception.Happened());
  }
  EXPECT_EQ(kind, Kind::kGone);
  EXPECT_EQ(Possessions::Now().descriptors, before.descriptors);
  EXPECT_EQ(Possessions::Now().mappings, before.mappings);
  sender.channel().Signal();
  sender.Finish();
}

}  // namespace
