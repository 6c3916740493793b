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

// Malformed messages: each is refused with the right error, and the attempt
// leaves nothing behind.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <functional>
#include <vector>

#include "test/cpp/phi/shared_memory/processes.h"

namespace {

using namespace shared_memory_test;  // NOLINT(build/namespaces)

class SharedHeapHandleTest : public shared_memory_test::SharedMemoryTestCase {};

struct Forgery {
  std::function<void(SharedMessage*)> forge;
  Kind kind;
};

// Receives each forgery of a good message.
void Refuse(const SharedMessage& good, const std::vector<Forgery>& forgeries) {
  const Possessions before = Possessions::Now();
  const uint64_t attached = Heap().Stats().attached;
  for (size_t i = 0; i < forgeries.size(); ++i) {
    SharedMessage message = good;
    forgeries[i].forge(&message);
    const auto kind = KindOf([&] { Heap().Receive(message); });
    if (kind != forgeries[i].kind) std::printf("  forgery %zu\n", i);
    EXPECT_EQ(kind, forgeries[i].kind);
    EXPECT_EQ(Possessions::Now(), before);
    EXPECT_EQ(Heap().Stats().attached, attached);
  }
}

TEST_BOTH(SharedHeapHandleTest, AMessageWithAWrongSegmentIsRefused) {
  Worker sender([&](const Channel& channel) {
    channel.Send(MessageOf(AllocateFilled(strategy, kMiB, 1)));
    channel.Await();
  });
  const auto good = sender.channel().Receive<SharedMessage>();
  Heap();
  const auto pid = [](SharedMessage* m) { m->id.pid = INT32_MAX; };
  const auto no_fd = [](SharedMessage* m) { m->id.fd = 9999; };
  const auto fd_0 = [](SharedMessage* m) { m->id.fd = 0; };
  const auto socket = [&](SharedMessage* m) {
    m->id.pid = getpid();
    m->id.fd = sender.channel().fd();
  };
  const auto segment = [](SharedMessage* m) { ++m->id.segment; };
  const auto tree = [](SharedMessage* m) { ++m->id.tree; };
  const auto strategy_of_others = [](SharedMessage* m) {
    m->id.strategy = m->id.strategy == SharingStrategy::kFileSystem
                         ? SharingStrategy::kFileDescriptor
                         : SharingStrategy::kFileSystem;
  };
  std::vector<Forgery> forgeries = {{segment, Kind::kGone},
                                    {tree, Kind::kGone},
                                    {strategy_of_others, Kind::kGone}};
  if (strategy == SharingStrategy::kFileDescriptor) {
    forgeries.insert(forgeries.end(),
                     {{pid, Kind::kGone},
                      {no_fd, Kind::kGone},
                      {fd_0, Kind::kGone},
                      {socket, Kind::kGone}});
  }
  Refuse(good, forgeries);
  EXPECT_TRUE(HasContent(Heap().Receive(good).block, 1));
  sender.channel().Signal();
  sender.Finish();
}

// A file that can be truncated is dangerous: touching the missing part kills
// the process.
ISOLATED_TEST(SharedHeapHandleTest, ACopyThatCanBeTruncatedIsRefused) {
  Worker sender([](const Channel& channel) {
    channel.Send(
        MessageOf(AllocateFilled(SharingStrategy::kFileDescriptor, kMiB, 1)));
    channel.Await();
  });
  const auto good = sender.channel().Receive<SharedMessage>();
  Heap();
  const int original = open(PathOf(good).c_str(), O_RDONLY | O_CLOEXEC);
  const int copy = memfd_create("copy", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  std::vector<char> bytes(kMiB);
  ASSERT_EQ(pread(original, bytes.data(), kMiB, 0), kMiB);
  ASSERT_EQ(pwrite(copy, bytes.data(), kMiB, 0), kMiB);
  ASSERT_EQ(fchmod(copy, 0600), 0);
  Refuse(good,
         {{[&](SharedMessage* m) {
             m->id.pid = getpid();
             m->id.fd = copy;
           },
           Kind::kGone}});
  sender.channel().Signal();
  sender.Finish();
}

TEST_BOTH(SharedHeapHandleTest, AMessageWithAWrongBlockIsRefused) {
  Worker sender([&](const Channel& channel) {
    const SharedBlock block = AllocateFilled(strategy, kMiB, 1);
    for (int i = 0; i < 3; ++i) channel.Send(MessageOf(block));
    channel.Await();
  });
  const auto first = sender.channel().Receive<SharedMessage>();
  const auto second = sender.channel().Receive<SharedMessage>();
  const auto third = sender.channel().Receive<SharedMessage>();
  const SharedBlock held = Heap().Receive(first).block;
  const std::vector<Forgery> forgeries = {
      {[](SharedMessage* m) { m->block += 1; }, Kind::kInvalid},
      {[](SharedMessage* m) { m->block = UINT32_MAX; }, Kind::kInvalid},
      {[&](SharedMessage* m) { m->offset = held.capacity; }, Kind::kInvalid},
      {[](SharedMessage* m) { m->offset = UINT64_MAX; }, Kind::kInvalid},
      {[](SharedMessage* m) { m->generation += 2; }, Kind::kGone},
      {[](SharedMessage* m) { m->generation = 1; }, Kind::kGone}};
  Refuse(second, forgeries);
  Heap().Release(held);
  Refuse(second, forgeries);
  EXPECT_TRUE(HasContent(Heap().Receive(third).block, 1));
  sender.channel().Signal();
  sender.Finish();
}

TEST_BOTH(SharedHeapHandleTest, AWrongTicketOpensNoBlockThatIsGone) {
  Worker sender([&](const Channel& channel) {
    const SharedBlock block = AllocateFilled(strategy, kMiB, 1);
    channel.Send(MessageOf(block));
    Heap().Release(block);
    channel.Await();
    const SharedBlock next = AllocateFilled(strategy, kMiB, 2);
    EXPECT_EQ(next.data, block.data);
    channel.Send(MessageOf(next));
    channel.Await();
  });
  const auto message = sender.channel().Receive<SharedMessage>();
  Heap().Release(Heap().Receive(message).block);
  sender.channel().Signal();
  sender.channel().Receive<SharedMessage>();
  const auto ticket = [](SharedMessage* m) { ++m->ticket.nonce; };
  const auto index = [](SharedMessage* m) { m->ticket.index = UINT32_MAX; };
  Refuse(message, {{ticket, Kind::kGone}, {index, Kind::kGone}});
  sender.channel().Signal();
  sender.Finish();
}

// The other slots are locked as if their processes were alive.
TEST_BOTH(SharedHeapHandleTest, AProcessIsRefusedUntilASlotIsFree) {
  Worker sender([&](const Channel& channel) {
    channel.Send(MessageOf(AllocateFilled(strategy, kMiB, 1)));
    channel.Await();
  });
  const auto message = sender.channel().Receive<SharedMessage>();
  Heap();
  const int file = open(PathOf(message).c_str(), O_RDWR | O_CLOEXEC);
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_start = 2;
  lock.l_len = 510;
  ASSERT_EQ(fcntl(file, F_OFD_SETLK, &lock), 0);
  Refuse(message, {{[](SharedMessage*) {}, Kind::kExhausted}});
  const auto error = ErrorOf([&] { Heap().Receive(message); });
  EXPECT_PRED_FORMAT2(::testing::IsSubstring,
                      "All 510 process slots of",
                      error ? error->what() : "no error");
  close(file);
  EXPECT_TRUE(HasContent(Heap().Receive(message).block, 1));
  sender.channel().Signal();
  sender.Finish();
}

}  // namespace
