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

// Messages between processes that are not related by fork, including cases in
// which one of the processes dies.

#include <cstdint>
#include <string>
#include <vector>

#include "test/cpp/phi/shared_memory/processes.h"

namespace {

using namespace shared_memory_test;  // NOLINT(build/namespaces)

class SharedHeapMessageTest : public shared_memory_test::SharedMemoryTestCase {
};

// Receives one message, reports whether it has the content of a seed, and waits
// before it releases the block.
void ReceiveOnce(const Channel& channel) {
  const auto received = Heap().Receive(channel.Receive<SharedMessage>());
  channel.Send(HasContent(received.block, 1));
  channel.Await();
  Heap().Release(received.block);
  channel.Signal();
  channel.Await();
}

// Receives a message, and reports the error.
void SendErrorOfReceiving(const Channel& channel) {
  const auto message = channel.Receive<SharedMessage>();
  const auto kind = KindOf([&] { Heap().Receive(message); });
  EXPECT_EQ(kind, Kind::kGone);
}

TEST_BOTH(SharedHeapMessageTest, SenderAndReceiverSeeEachOthersWrites) {
  Worker worker([](const Channel& channel) {
    const auto received = Heap().Receive(channel.Receive<SharedMessage>());
    EXPECT_TRUE(HasContent(received.block, 1));
    Fill(received.block, 2);
    channel.Signal();
    channel.Await();
    EXPECT_TRUE(HasContent(received.block, 3));
  });
  const SharedBlock block = AllocateFilled(strategy, kMiB, 1);
  worker.channel().Send(MessageOf(block));
  worker.channel().Await();
  EXPECT_TRUE(HasContent(block, 2));
  Fill(block, 3);
  worker.channel().Signal();
  worker.Finish();
}

TEST_BOTH(SharedHeapMessageTest, ABlockIsFreeWhenItsLastHolderReleasesIt) {
  Worker worker(ReceiveOnce);
  const SharedBlock block = AllocateFilled(strategy, kMiB, 1);
  worker.channel().Send(MessageOf(block));
  Heap().Release(block);
  EXPECT_TRUE(worker.channel().Receive<bool>());
  EXPECT_EQ(Heap().Stats().used, block.capacity);
  EXPECT_EQ(Heap().Stats().messages, 0);
  worker.channel().Signal();
  worker.channel().Await();
  EXPECT_EQ(Heap().Stats().used, 0);  // immediately, without Collect
  worker.channel().Signal();
  worker.Finish();
}

TEST_BOTH(SharedHeapMessageTest, BlocksOfAKilledReceiverAreReclaimed) {
  Worker worker(ReceiveOnce);
  const SharedBlock block = AllocateFilled(strategy, kMiB, 1);
  worker.channel().Send(MessageOf(block));
  Heap().Release(block);
  EXPECT_TRUE(worker.channel().Receive<bool>());
  worker.Kill();
  EXPECT_TRUE(Eventually(UsesNothing));
}

TEST_BOTH(SharedHeapMessageTest, AReceiverForwardsABlock) {
  Worker last(ReceiveOnce);
  Worker middle([](const Channel& channel) {
    const auto received = Heap().Receive(channel.Receive<SharedMessage>());
    channel.Send(MessageOf(received.block));
    Heap().Release(received.block);
    channel.Await();
  });
  const SharedBlock block = AllocateFilled(strategy, kMiB, 1);
  middle.channel().Send(MessageOf(block));
  Heap().Release(block);
  last.channel().Send(middle.channel().Receive<SharedMessage>());
  EXPECT_TRUE(last.channel().Receive<bool>());
  middle.channel().Signal();
  middle.Finish();
  EXPECT_FALSE(UsesNothing());
  last.channel().Signal();
  last.channel().Await();
  EXPECT_TRUE(UsesNothing());
  last.channel().Signal();
  last.Finish();
}

TEST_BOTH(SharedHeapMessageTest, AReceivedBlockOutlivesItsOwner) {
  Worker sender([&](const Channel& channel) {
    channel.Send(MessageOf(AllocateFilled(strategy, kMiB, 1)));
    channel.Await();
  });
  const auto received =
      Heap().Receive(sender.channel().Receive<SharedMessage>());
  sender.Kill();
  Heap().Collect(0.0);
  EXPECT_TRUE(HasContent(received.block, 1));
  const auto again = Heap().Receive(MessageOf(received.block));
  Heap().Release(received.block);
  Heap().Collect(0.0);
  EXPECT_TRUE(HasContent(again.block, 1));
  Heap().Release(again.block);
  EXPECT_TRUE(Eventually([] {
    Heap().Collect({});
    return Heap().Stats().attached == 0;
  }));
  EXPECT_TRUE(Files().empty());
}

ISOLATED_TEST(SharedHeapMessageTest,
              TheLastReceiverRemovesTheFileOfADeadOwner) {
  Worker sender([](const Channel& channel) {
    channel.Send(
        MessageOf(AllocateFilled(SharingStrategy::kFileSystem, kMiB, 1)));
    channel.Await();
  });
  const auto message = sender.channel().Receive<SharedMessage>();
  const SharedBlock received = Heap().Receive(message).block;
  sender.Kill();
  EXPECT_EQ(Files().size(), 1);
  Heap().Release(received);
  EXPECT_TRUE(Files().empty());  // immediately, without Collect
}

TEST_BOTH(SharedHeapMessageTest, MemoryOfADeadOwnerIsReturnedBlockByBlock) {
  Worker sender([&](const Channel& channel) {
    for (int i = 0; i < 2; ++i) {
      channel.Send(MessageOf(AllocateFilled(strategy, 2 * kMiB, i)));
    }
    channel.Await();
  });
  std::vector<SharedBlock> blocks;
  for (int i = 0; i < 2; ++i) {
    const auto message = sender.channel().Receive<SharedMessage>();
    blocks.push_back(Heap().Receive(message).block);
  }
  sender.Kill();
  // This process's own name for the segment.
  const std::string path = PathOf(MessageOf(blocks[1]));
  const uint64_t before = BytesOfFile(path);
  Heap().Release(blocks[0]);
  EXPECT_TRUE(Eventually([&] {
    Heap().Collect({});
    return BytesOfFile(path) + 2 * kMiB <= before;
  }));
  EXPECT_TRUE(HasContent(blocks[1], 1));
}

TEST_BOTH(SharedHeapMessageTest, TwoReceiversReleaseBlocksOfADeadOwner) {
  Worker sender([&](const Channel& channel) {
    const SharedBlock block = AllocateFilled(strategy, kMiB, 1);
    channel.Send(MessageOf(block));
    channel.Send(MessageOf(block));
    channel.Await();
  });
  auto receive = [](const Channel& channel) {
    const auto received = Heap().Receive(channel.Receive<SharedMessage>());
    channel.Signal();
    channel.Await();
    EXPECT_TRUE(HasContent(received.block, 1));
    Heap().Release(received.block);
    channel.Signal();
    channel.Await();
    EXPECT_TRUE(Eventually([] {
      Heap().Collect({});
      return Heap().Stats().attached == 0;
    }));
    channel.Signal();
    channel.Await();
  };
  Worker first(receive);
  Worker second(receive);
  const std::vector<Worker*> receivers = {&first, &second};
  for (Worker* receiver : receivers) {
    receiver->channel().Send(sender.channel().Receive<SharedMessage>());
    receiver->channel().Await();
  }
  sender.Kill();
  for (int step = 0; step < 2; ++step) {
    for (Worker* receiver : receivers) receiver->channel().Signal();
    for (Worker* receiver : receivers) receiver->channel().Await();
  }
  for (Worker* receiver : receivers) receiver->channel().Signal();
  for (Worker* receiver : receivers) receiver->Finish();
}

ISOLATED_TEST(SharedHeapMessageTest, AMessageInAFileOutlivesItsSender) {
  Worker sender([](const Channel& channel) {
    const SharedBlock block =
        AllocateFilled(SharingStrategy::kFileSystem, kMiB, 1);
    channel.Send(MessageOf(block));
    Heap().Release(block);
    channel.Await();
  });
  const auto message = sender.channel().Receive<SharedMessage>();
  Heap();  // so that the process tree lives
  sender.Kill();
  Heap().Collect({});
  const auto received = Heap().Receive(message);
  EXPECT_TRUE(HasContent(received.block, 1));
  Heap().Release(received.block);
  EXPECT_TRUE(Eventually([] {
    Heap().Collect({});
    return Files().empty();
  }));
}

ISOLATED_TEST(SharedHeapMessageTest, AMessageInADescriptorIsGoneWithItsSender) {
  Worker sender([](const Channel& channel) {
    channel.Send(
        MessageOf(AllocateFilled(SharingStrategy::kFileDescriptor, kMiB, 1)));
    channel.Await();
  });
  const auto message = sender.channel().Receive<SharedMessage>();
  sender.Kill();
  const auto error = ErrorOf([&] { Heap().Receive(message); });
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->kind(), Kind::kGone);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring,
                      std::to_string(message.id.pid),
                      std::string(error->what()));
}

TEST_BOTH(SharedHeapMessageTest, AnExpiredMessageIsGoneForTheReceiver) {
  Worker worker(SendErrorOfReceiving);
  const SharedBlock block = AllocateFilled(strategy, kMiB, 1);
  const SharedMessage message = MessageOf(block);
  Heap().Release(block);
  Heap().Collect(0.0);
  EXPECT_EQ(Heap().Stats().used, 0);
  AllocateFilled(strategy, kMiB, 2);
  worker.channel().Send(message);
  worker.Finish();
}

TEST_BOTH(SharedHeapMessageTest,
          AMessageMayBeReceivedTwiceWhileTheBlockIsHeld) {
  Worker worker([](const Channel& channel) {
    const auto message = channel.Receive<SharedMessage>();
    const auto first = Heap().Receive(message);
    const auto second = Heap().Receive(message);
    EXPECT_EQ(second.block.data, first.block.data);
    Heap().Release(first.block);
    EXPECT_TRUE(HasContent(second.block, 1));
    Heap().Release(second.block);
    channel.Signal();
    channel.Await();
    EXPECT_TRUE(HasContent(Heap().Receive(message).block, 1));
  });
  const SharedBlock block = AllocateFilled(strategy, kMiB, 1);
  worker.channel().Send(MessageOf(block));
  worker.channel().Await();
  worker.channel().Signal();  // held by this process, not by the worker
  worker.Finish();
}

TEST_BOTH(SharedHeapMessageTest, AMessageThatWasReceivedAndDroppedIsGone) {
  Worker worker([](const Channel& channel) {
    const auto message = channel.Receive<SharedMessage>();
    Heap().Release(Heap().Receive(message).block);
    channel.Signal();
    channel.Await();
    EXPECT_EQ(Kind::kGone, KindOf([&] { Heap().Receive(message); }));
    channel.Signal();
    channel.Await();
  });
  const SharedBlock block = AllocateFilled(strategy, kMiB, 1);
  worker.channel().Send(MessageOf(block));
  Heap().Release(block);
  worker.channel().Await();
  const SharedBlock reused = AllocateFilled(strategy, kMiB, 2);
  EXPECT_EQ(reused.data, block.data);
  worker.channel().Signal();
  worker.channel().Await();
  EXPECT_TRUE(HasContent(reused, 2));
  Heap().Release(reused);
  EXPECT_EQ(Heap().Stats().used, 0);  // the attempt holds nothing
  worker.channel().Signal();
  worker.Finish();
}

TEST_BOTH(SharedHeapMessageTest, EachOfManyMessagesOfABlockCounts) {
  Worker worker([](const Channel& channel) {
    for (int i = 0; i < 100; ++i) {
      const auto received = Heap().Receive(channel.Receive<SharedMessage>());
      EXPECT_TRUE(HasContent(received.block, 1));
      Heap().Release(received.block);
      channel.Signal();
    }
    channel.Await();
  });
  const SharedBlock block = AllocateFilled(strategy, 4096, 1);
  std::vector<SharedMessage> messages;
  for (int i = 0; i < 100; ++i) messages.push_back(MessageOf(block));
  Heap().Release(block);
  for (const SharedMessage& message : messages) {
    EXPECT_EQ(Heap().Stats().used, block.capacity);
    worker.channel().Send(message);
    worker.channel().Await();
  }
  EXPECT_EQ(Heap().Stats().used, 0);
  worker.channel().Signal();
  worker.Finish();
}

}  // namespace
