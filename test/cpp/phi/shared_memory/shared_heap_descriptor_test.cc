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

// A process may close descriptors that it does not know, for example when it
// becomes a daemon. The process is still alive, and so are its blocks.

#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <vector>

#include "test/cpp/phi/shared_memory/processes.h"

namespace {

using namespace shared_memory_test;  // NOLINT(build/namespaces)

class SharedHeapDescriptorTest
    : public shared_memory_test::SharedMemoryTestCase {};

TEST_BOTH(SharedHeapDescriptorTest, AReceiverWithoutDescriptorsKeepsItsBlock) {
  Worker worker([](const Channel& channel) {
    const auto received = Heap().Receive(channel.Receive<SharedMessage>());
    CloseAllBut(channel.fd());
    channel.Signal();
    channel.Await();
    EXPECT_TRUE(HasContent(received.block, 1));
    Heap().Release(received.block);
    channel.Signal();
    channel.Await();
  });
  const SharedBlock block = AllocateFilled(strategy, kMiB, 1);
  worker.channel().Send(MessageOf(block));
  worker.channel().Await();
  Heap().Release(block);
  Heap().Collect(0.0);
  EXPECT_EQ(Heap().Stats().used, block.capacity);
  AllocateFilled(strategy, kMiB, 2);
  worker.channel().Signal();
  worker.channel().Await();
  EXPECT_EQ(Heap().Stats().used, block.capacity);
  worker.channel().Signal();
  worker.Finish();
}

TEST_BOTH(SharedHeapDescriptorTest,
          SmallBlocksCanBeCutAfterDescriptorsWereClosed) {
  for (int before : {1, 16}) {
    Worker worker([&](const Channel& channel) {
      for (int i = 0; i < before; ++i) Heap().Allocate(strategy, 20);
      CloseAllBut(channel.fd());
      for (int i = 0; i < 100; ++i) {
        EXPECT_TRUE(HasContent(AllocateFilled(strategy, 20, i), i));
      }
    });
    worker.Finish();
  }
  // Without its descriptors the process could not leave its process tree, so
  // others clean up.
  EXPECT_TRUE(Eventually([] {
    Heap().Collect({});
    return Files().empty();
  }));
}

ISOLATED_TEST(SharedHeapDescriptorTest,
              AReceiverWithoutDescriptorsReceivesMore) {
  Worker worker([](const Channel& channel) {
    for (int i = 1; i <= 2; ++i) {
      const auto received = Heap().Receive(channel.Receive<SharedMessage>());
      EXPECT_TRUE(HasContent(received.block, i));
      CloseAllBut(channel.fd());
      channel.Signal();
    }
  });
  for (int i = 1; i <= 2; ++i) {
    const SharedBlock block =
        AllocateFilled(SharingStrategy::kFileSystem, 10 * i * kMiB, i);
    worker.channel().Send(MessageOf(block));
    worker.channel().Await();
  }
  worker.Finish();
}

TEST_BOTH(SharedHeapDescriptorTest, ASenderWithoutDescriptorsKeepsItsBlocks) {
  Worker worker([&](const Channel& channel) {
    const SharedBlock sent = AllocateFilled(strategy, kMiB, 1);
    const SharedBlock kept = AllocateFilled(strategy, kMiB, 2);
    channel.Send(MessageOf(sent));
    channel.Await();
    CloseAllBut(channel.fd());
    channel.Signal();
    channel.Await();
    EXPECT_TRUE(HasContent(sent, 1));
    EXPECT_TRUE(HasContent(kept, 2));
    Heap().Release(sent);
    Heap().Release(kept);
    Heap().Collect({});
    Heap().Stats();
  });
  const auto message = worker.channel().Receive<SharedMessage>();
  const SharedBlock received = Heap().Receive(message).block;
  worker.channel().Signal();
  worker.channel().Await();
  Heap().Collect(0.0);
  EXPECT_TRUE(HasContent(received, 1));
  worker.channel().Signal();
  worker.Finish();
  EXPECT_TRUE(HasContent(received, 1));
}

TEST_BOTH(SharedHeapDescriptorTest, AProcessWithoutDescriptorsCanShareAgain) {
  Worker receiver([](const Channel& channel) {
    for (int i = 1; i <= 2; ++i) {
      const auto received = Heap().Receive(channel.Receive<SharedMessage>());
      EXPECT_TRUE(HasContent(received.block, i));
      Heap().Release(received.block);
      channel.Signal();
    }
    channel.Await();
  });
  Worker sender([&](const Channel& channel) {
    const SharedBlock first = AllocateFilled(strategy, kMiB, 1);
    channel.Send(MessageOf(first));
    channel.Await();
    CloseAllBut(channel.fd());
    EXPECT_TRUE(HasContent(first, 1));
    Heap().Release(first);
    channel.Send(MessageOf(AllocateFilled(strategy, kMiB, 2)));
    channel.Await();
  });
  for (int i = 1; i <= 2; ++i) {
    receiver.channel().Send(sender.channel().Receive<SharedMessage>());
    receiver.channel().Await();
    sender.channel().Signal();
  }
  sender.Finish();
  receiver.channel().Signal();
  receiver.Finish();
}

// Opens another file under all descriptor numbers that were closed.
int TakeNumbers(int kept) {
  char path[] = "/tmp/shared_memory_testXXXXXX";
  const int file = mkstemp(path);
  REQUIRE_TRUE(file >= 0);
  unlink(path);
  for (int fd = kFirstDescriptor; fd < kLastDescriptor; ++fd) {
    if (fd != kept && fd != file) dup2(file, fd);
  }
  return file;
}

TEST_BOTH(SharedHeapDescriptorTest,
          FilesWithReusedDescriptorNumbersAreNotTouched) {
  Worker worker([&](const Channel& channel) {
    const SharedBlock idle = AllocateFilled(strategy, 4 * kMiB, 1);
    const SharedBlock held = AllocateFilled(strategy, kMiB, 2);
    Heap().Release(idle);
    CloseAllBut(channel.fd());
    const int file = TakeNumbers(channel.fd());
    const std::vector<char> bytes(idle.capacity, 'x');
    ASSERT_EQ(pwrite(file, bytes.data(), bytes.size(), idle.offset),
              static_cast<ssize_t>(bytes.size()));
    const off_t size = lseek(file, 0, SEEK_END);
    Heap().Collect({});
    ErrorOf([&] { Heap().Allocate(strategy, 16 * kMiB); });
    Heap().Release(held);
    Heap().Collect(0.0);
    std::vector<char> now(bytes.size());
    EXPECT_EQ(pread(file, now.data(), now.size(), idle.offset),
              static_cast<ssize_t>(now.size()));
    EXPECT_EQ(now, bytes);
    EXPECT_EQ(lseek(file, 0, SEEK_END), size);
  });
  worker.Finish();
}

// If the receiver can lock those files, this says nothing about the owner.
TEST_BOTH(SharedHeapDescriptorTest,
          AReceiverWithoutDescriptorsTakesNoLivingOwnerForDead) {
  Worker worker([](const Channel& channel) {
    const SharedBlock block =
        Heap().Receive(channel.Receive<SharedMessage>()).block;
    CloseAllBut(channel.fd());
    TakeNumbers(channel.fd());
    Heap().Release(block);
    Heap().Collect(0.0);
    channel.Signal();
    channel.Await();
  });
  const SharedBlock sent = AllocateFilled(strategy, kMiB, 1);
  const SharedBlock kept = AllocateFilled(strategy, kMiB, 2);
  worker.channel().Send(MessageOf(sent));
  worker.channel().Await();
  Heap().Collect({});
  EXPECT_EQ(Heap().Stats().blocks, 2);
  for (int i = 0; i < 4; ++i) AllocateFilled(strategy, kMiB, 3);
  EXPECT_TRUE(HasContent(sent, 1));
  EXPECT_TRUE(HasContent(kept, 2));
  worker.channel().Signal();
  worker.Finish();
}

}  // namespace
