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

// A process receives from many others: the costs while these are alive and
// after they have died, and blocks whose segment was detached.

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "paddle/phi/core/memory/allocation/shared_memory/shared_records.h"
#include "test/cpp/phi/shared_memory/intercepted_calls.h"
#include "test/cpp/phi/shared_memory/processes.h"

namespace {

using namespace shared_memory_test;  // NOLINT(build/namespaces)
using paddle::memory::allocation::kSharedPage;
using paddle::memory::allocation::SharedRecords;

class SharedHeapSendersTest : public shared_memory_test::SharedMemoryTestCase {
};

constexpr uint64_t kSmall = 20;  // bytes
// More segments than a process keeps complete once their owners are dead, and
// the maximum that it keeps complete.
constexpr int kMany = 40;
constexpr int kWhole = 28;
// A descriptor limit at which descriptors are short when segments of 16 dead
// senders are attached.
constexpr rlim_t kShort = 28;
// The descriptors of dead senders that a process keeps open at that limit.
constexpr int kFewOpen = 18;

SharedRecords Records() { return SharedRecords(&Heap()); }

// Starts processes that send one block each. Its own process is forked before
// the test has any shared memory, so that the senders inherit nothing.
class Senders {
 public:
  explicit Senders(SharingStrategy strategy)
      : worker_(
            [strategy](const Channel& channel) { Serve(channel, strategy); }) {}

  // Returns the message of a new sender, which holds its block until it is
  // killed.
  SharedMessage Start(uint64_t size, uint64_t seed) {
    worker_.channel().Send(Order{size, seed});
    return worker_.channel().Receive<SharedMessage>();
  }
  // Kills all senders, and waits until the kernel has ended them.
  void Kill() {
    worker_.channel().Send(Order{});
    worker_.channel().Await();
  }
  void Finish() { worker_.Finish(); }

 private:
  struct Order {
    uint64_t size;  // 0: kill all senders
    uint64_t seed;
  };

  static void Serve(const Channel& channel, SharingStrategy strategy) {
    std::vector<std::unique_ptr<Worker>> senders;
    while (channel.SaysMore()) {
      const auto order = channel.Receive<Order>();
      if (order.size == 0) {
        senders.clear();
        channel.Signal();
        continue;
      }
      senders.push_back(std::make_unique<Worker>([&](const Channel& up) {
        up.Send(MessageOf(AllocateFilled(strategy, order.size, order.seed)));
        up.Await();
      }));
      channel.Send(senders.back()->channel().Receive<SharedMessage>());
    }
  }

  Worker worker_;
};

uint64_t BytesOf(int fd) {
  struct stat file = {};
  REQUIRE_EQ(fstat(fd, &file), 0);
  return file.st_blocks * 512;
}

uint64_t Addresses() {
  std::unique_ptr<FILE, int (*)(FILE*)> file(
      std::fopen("/proc/self/statm", "r"), std::fclose);
  unsigned long pages = 0;  // NOLINT(runtime/int)
  REQUIRE_TRUE(file);
  REQUIRE_EQ(std::fscanf(file.get(), "%lu", &pages), 1);
  return pages * kSharedPage;
}

SharedBlock ReceiveFrom(Senders* senders, uint64_t size, uint64_t seed) {
  const SharedBlock block = Heap().Receive(senders->Start(size, seed)).block;
  EXPECT_TRUE(HasContent(block, seed));
  return block;
}

// Returns blocks of dead senders, received while descriptors are short. At
// least the segment of the first block is detached.
std::vector<SharedBlock> ReceiveFromDead(Senders* senders, uint64_t size) {
  const Limited descriptors(RLIMIT_NOFILE, kShort);
  std::vector<SharedBlock> blocks;
  for (int i = 0; i < kMany; ++i) {
    blocks.push_back(ReceiveFrom(senders, size, i));
    senders->Kill();
  }
  EXPECT_GE(Heap().Stats().detached, kMany - kWhole);
  return blocks;
}

TEST_BOTH(SharedHeapSendersTest, TensorsOfManyDeadSendersCostOnlyTheirPages) {
  constexpr int kSenders = 600;
  Senders senders(strategy);
  Heap();
  const Limited descriptors(RLIMIT_NOFILE, kShort);
  const Possessions before = Possessions::Now();
  const uint64_t addresses = Addresses();
  std::vector<SharedBlock> blocks;
  std::vector<int> files;  // of some of the segments, to look at their size
  for (int i = 0; i < kSenders; ++i) {
    const SharedMessage message = senders.Start(kSmall, i);
    if (i % 100 == 0) {
      files.push_back(open(PathOf(message).c_str(), O_RDONLY | O_CLOEXEC));
      EXPECT_LE(BytesOf(files.back()), 6 * kSharedPage);
    }
    blocks.push_back(Heap().Receive(message).block);
    senders.Kill();
  }
  for (int i = 0; i < kSenders; ++i) EXPECT_TRUE(HasContent(blocks[i], i));
  for (int fd : files) {
    EXPECT_LE(BytesOf(fd), kSharedPage);
    close(fd);
  }
  const Possessions now = Possessions::Now();
  EXPECT_LE(now.descriptors, before.descriptors + kWhole);
  EXPECT_LE(now.files.size(), before.files.size() + kWhole);
  EXPECT_LE(now.mappings.size(), before.mappings.size() + kSenders);
  EXPECT_LT(Addresses() - addresses, 1000 * kMiB);
  for (const SharedBlock& block : blocks) Heap().Release(block);
  Heap().Collect({});
  EXPECT_EQ(Possessions::Now(), before);
  senders.Finish();
}

TEST_BOTH(SharedHeapSendersTest, ALimitOnAddressesLeavesRoomForManySenders) {
  constexpr int kSenders = 30;
  Senders senders(strategy);
  Heap();
  const Limited addresses(RLIMIT_AS, Addresses() + 1024 * kMiB);
  std::vector<SharedBlock> blocks;
  for (int i = 0; i < kSenders; ++i) {
    blocks.push_back(ReceiveFrom(&senders, kSmall, i));
  }
  const SharedBlock own = AllocateFilled(strategy, 100 * kMiB, 1);
  for (int i = 0; i < kSenders; ++i) EXPECT_TRUE(HasContent(blocks[i], i));
  EXPECT_TRUE(HasContent(own, 1));
  senders.Finish();
}

TEST_BOTH(SharedHeapSendersTest, TheAddressesOfSegmentsGrowWithTheirUse) {
  Heap();
  const uint64_t before = Addresses();
  Heap().Allocate(strategy, kSmall);
  EXPECT_LT(Addresses() - before, 20 * kMiB);
  Heap().Allocate(strategy, 100 * kMiB);
  EXPECT_LT(Addresses() - before, 400 * kMiB);
  // There are few segments, however much was sent.
  for (int i = 0; i < 100; ++i) Heap().Allocate(strategy, kMiB);
  EXPECT_LE(Heap().Stats().segments, 5);
}

TEST_BOTH(SharedHeapSendersTest,
          AttachingWithoutAddressesFailsForThatMessageOnly) {
  Senders senders(strategy);
  const SharedBlock kept = ReceiveFrom(&senders, kSmall, 1);
  const SharedMessage message = senders.Start(kSmall, 2);
  {
    const Limited addresses(RLIMIT_AS, Addresses() + kMiB);
    const auto error = ErrorOf([&] { Heap().Receive(message); });
    REQUIRE_TRUE(error.has_value());
    EXPECT_EQ(error->kind(), Kind::kExhausted);
    EXPECT_PRED_FORMAT2(
        ::testing::IsSubstring, "ulimit -v", std::string(error->what()));
    EXPECT_TRUE(HasContent(Heap().Receive(MessageOf(kept)).block, 1));
  }
  EXPECT_TRUE(HasContent(Heap().Receive(message).block, 2));
  senders.Finish();
}

TEST_BOTH(SharedHeapSendersTest,
          AttachingWithoutDescriptorsFailsForThatMessageOnly) {
  Senders senders(strategy);
  const SharedBlock kept = ReceiveFrom(&senders, kSmall, 1);
  const SharedMessage message = senders.Start(kSmall, 2);
  {
    const FewDescriptors none(0);
    const auto error = ErrorOf([&] { Heap().Receive(message); });
    REQUIRE_TRUE(error.has_value());
    EXPECT_EQ(error->kind(), Kind::kExhausted);
    EXPECT_PRED_FORMAT2(
        ::testing::IsSubstring, "ulimit -n", std::string(error->what()));
    EXPECT_TRUE(HasContent(Heap().Receive(MessageOf(kept)).block, 1));
  }
  EXPECT_TRUE(HasContent(Heap().Receive(message).block, 2));
  senders.Finish();
}

TEST_BOTH(SharedHeapSendersTest,
          DescriptorsOfDeadSendersAreReleasedForTheNext) {
  Senders dead(strategy);
  Senders living(strategy);
  const SharedBlock kept = ReceiveFrom(&dead, kSmall, 1);
  dead.Kill();
  const SharedMessage message = living.Start(kSmall, 2);
  {
    // Opening a memfd needs a second descriptor for a moment.
    const FewDescriptors few(strategy == SharingStrategy::kFileSystem ? 0 : 1);
    EXPECT_TRUE(HasContent(Heap().Receive(message).block, 2));
  }
  EXPECT_TRUE(HasContent(kept, 1));
  EXPECT_EQ(Heap().Stats().attached, 1);
  EXPECT_EQ(Heap().Stats().detached, 1);
  living.Finish();
  dead.Finish();
}

// Returns the number of fcntl calls while blocks are released. Each check of a
// slot is one call.
int CountSlotChecks(SharingStrategy strategy, int count) {
  Senders senders(strategy);
  std::vector<SharedBlock> blocks;
  for (int i = 0; i < count; ++i) {
    blocks.push_back(ReceiveFrom(&senders, kSmall, i));
  }
  senders.Kill();
  int calls = 0;
  const Interception counting("fcntl", 1, Calls::kAllFromThenOn, [&] {
    ++calls;
    return 0;
  });
  for (const SharedBlock& block : blocks) Heap().Release(block);
  senders.Finish();
  return calls;
}

TEST_BOTH(SharedHeapSendersTest,
          DroppingATensorCostsTheSameHoweverManyDeadSendersThereAre) {
  const int few = CountSlotChecks(strategy, 25);
  const int many = CountSlotChecks(strategy, 100);
  EXPECT_GT(few, 0);
  EXPECT_LE(many, 5 * few);
}

TEST_BOTH(SharedHeapSendersTest,
          AttachingCostsTheSameHoweverManySendersThereAre) {
  Senders senders(strategy);
  const auto looks = [&](int count) {
    int calls = 0;
    for (int i = 0; i < count; ++i) {
      const SharedMessage message = senders.Start(kSmall, i);
      const Interception counting("fcntl", 1, Calls::kAllFromThenOn, [&] {
        ++calls;
        return 0;
      });
      Heap().Receive(message);
    }
    return calls;
  };
  const int first = looks(20);
  const int then = looks(80);  // including the checks of all segments
  EXPECT_GT(first, 0);
  EXPECT_LE(then, 10 * first);
  senders.Finish();
}

TEST_BOTH(SharedHeapSendersTest, ADetachedBlockIsStillKnown) {
  Senders senders(strategy);
  const SharedMessage message = senders.Start(kMiB, 7);
  const SharedBlock block = Heap().Receive(message).block;
  const SharedMessage gone = senders.Start(kMiB, 8);
  Heap().Release(Heap().Receive(gone).block);
  senders.Kill();
  const std::vector<SharedBlock> others = ReceiveFromDead(&senders, kSmall);
  EXPECT_GT(Heap().Stats().detached, 0);
  EXPECT_TRUE(Heap().Has(block.data));
  EXPECT_TRUE(Heap().Has(block.data + kMiB - 1));
  EXPECT_FALSE(Heap().Has(block.data - 1));
  EXPECT_FALSE(Heap().Has(block.data + kMiB));
  // The same pickle, loaded again.
  const SharedBlock again = Heap().Receive(message).block;
  EXPECT_EQ(again.data, block.data);
  EXPECT_TRUE(HasContent(again, 7));
  EXPECT_EQ(Kind::kGone, KindOf([&] { Heap().Receive(gone); }));
  SharedMessage other = message;
  other.generation += 2;
  EXPECT_EQ(Kind::kGone, KindOf([&] { Heap().Receive(other); }));
  EXPECT_FALSE(Records().OwnerIsAlive(block));
  EXPECT_TRUE(Records().OtherUsers(block).processes.empty());
  Heap().Release(block);
  EXPECT_TRUE(HasContent(again, 7));
  Heap().Release(again);
  EXPECT_FALSE(Heap().Has(block.data));
  senders.Finish();
}

TEST_BOTH(SharedHeapSendersTest,
          ReleasingADetachedBlockKeepsItsNeighboursOnALargePage) {
  constexpr int kBlocks = 40;
  Worker sender([strategy](const Channel& channel) {
    for (int i = 0; i < kBlocks; ++i) {
      channel.Send(MessageOf(AllocateFilled(strategy, kSharedPage, i)));
    }
    channel.Await();
  });
  Heap().Release(Heap().Allocate(strategy, kSmall));
  const auto before = Possessions::Now().mappings;
  std::vector<SharedBlock> blocks;
  for (int i = 0; i < kBlocks; ++i) {
    const auto message = sender.channel().Receive<SharedMessage>();
    blocks.push_back(Heap().Receive(message).block);
  }
  sender.Kill();
  const char* segment = blocks.front().data - blocks.front().offset;
  const LargePages pages(segment, blocks.back().offset + kSharedPage);
  Heap().SetLimit(0);  // the heap detaches the segment when memory runs out
  EXPECT_TRUE(Eventually([&] {
    // The kernel may need a moment to end a process.
    EXPECT_EQ(Kind::kExhausted,
              KindOf([&] { Heap().Allocate(strategy, kMiB); }));
    return Heap().Stats().detached == 1;
  }));
  // Every second block, including each that starts a large page.
  const auto goes_first = [&](int i) {
    return blocks[i].offset / kSharedPage % 2 == 0;
  };
  for (int i = 0; i < kBlocks; ++i) {
    if (goes_first(i)) Heap().Release(blocks[i]);
  }
  for (int i = 0; i < kBlocks; ++i) {
    if (goes_first(i)) continue;
    EXPECT_TRUE(HasContent(blocks[i], i));
    Heap().Release(blocks[i]);
  }
  EXPECT_EQ(Possessions::Now().mappings, before);
}

TEST_BOTH(SharedHeapSendersTest, AStorageBoundToADetachedBlockIsFound) {
  Senders senders(strategy);
  const SharedMessage message = senders.Start(kSmall, 7);
  const SharedBlock block = Heap().Receive(message).block;
  senders.Kill();
  ReceiveFromDead(&senders, kSmall);
  const auto storage = std::make_shared<int>(1);
  EXPECT_TRUE(Heap().Bind(block, storage, [] { return true; }));
  EXPECT_EQ(Heap().Receive(message).storage, storage);
  senders.Finish();
}

TEST_BOTH(SharedHeapSendersTest, ADetachedBlockHasToBeMovedBeforeItIsSent) {
  Senders senders(strategy);
  const std::vector<SharedBlock> blocks = ReceiveFromDead(&senders, kSmall);
  EXPECT_FALSE(Heap().Send(blocks[0].data));  // its bytes have to be moved
  EXPECT_TRUE(HasContent(blocks[0], 0));
  EXPECT_TRUE(Heap().Send(blocks.back().data).has_value());
  senders.Finish();
}

TEST_BOTH(SharedHeapSendersTest, BlocksOfOneDeadSenderAreReleasedOneByOne) {
  Senders others(strategy);
  std::vector<SharedMessage> messages;
  Worker sender([&](const Channel& channel) {
    for (int i = 0; i < 20; ++i) {
      // Half a page, or three pages.
      const uint64_t size = i % 2 == 0 ? 2000 : 3 * kSharedPage;
      channel.Send(MessageOf(AllocateFilled(strategy, size, i)));
    }
    channel.Await();
  });
  for (int i = 0; i < 20; ++i) {
    messages.push_back(sender.channel().Receive<SharedMessage>());
  }
  std::vector<SharedBlock> blocks;
  for (const SharedMessage& message : messages) {
    blocks.push_back(Heap().Receive(message).block);
  }
  const int file = open(PathOf(messages[0]).c_str(), O_RDONLY | O_CLOEXEC);
  sender.Kill();
  // Some of its blocks were dropped before.
  for (int i = 0; i < 5; ++i) Heap().Release(blocks[i]);
  const std::vector<SharedBlock> more = ReceiveFromDead(&others, kSmall);
  const auto pages = [&] { return BytesOf(file) / kSharedPage; };
  EXPECT_LT(pages(), 45);
  for (int i = 5; i < 19; ++i) {
    for (int k = i; k < 20; ++k) EXPECT_TRUE(HasContent(blocks[k], k));
    Heap().Release(blocks[i]);
  }
  EXPECT_TRUE(HasContent(blocks[19], 19));
  EXPECT_EQ(pages(), 3);
  Heap().Release(blocks[19]);
  EXPECT_EQ(pages(), 0);
  close(file);
  others.Finish();
}

TEST_BOTH(SharedHeapSendersTest, ParentAndChildShareADetachedBlock) {
  Senders senders(strategy);
  const std::vector<SharedBlock> blocks = ReceiveFromDead(&senders, kMiB);
  const SharedBlock block = blocks[0];
  Worker child([&](const Channel& channel) {
    EXPECT_TRUE(HasContent(block, 0));
    Fill(block, 77);
    channel.Signal();
    channel.Await();
    EXPECT_TRUE(HasContent(block, 88));
    // Sending a block that neither process can move is refused with a clear
    // error.
    const auto error = ErrorOf([&] { Heap().Send(block.data); });
    EXPECT_EQ(KindOf(error), Kind::kUnavailable);
    Heap().Release(block);
    EXPECT_FALSE(Heap().Has(block.data));
    channel.Signal();
    channel.Await();
    EXPECT_TRUE(HasContent(blocks[1], 1));
  });
  child.channel().Await();
  EXPECT_TRUE(HasContent(block, 77));
  Fill(block, 88);
  const auto error = ErrorOf([&] { Heap().Send(block.data); });
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->kind(), Kind::kUnavailable);
  EXPECT_PRED_FORMAT2(
      ::testing::IsSubstring, "clone()", std::string(error->what()));
  child.channel().Signal();
  child.channel().Await();
  EXPECT_TRUE(
      HasContent(block, 88));  // the child's release affects only the child
  Heap().Release(blocks[1]);
  child.channel().Signal();
  child.Finish();
  senders.Finish();
}

TEST_BOTH(SharedHeapSendersTest, AChildKeepsNoDetachedRecords) {
  Senders senders(strategy);
  const SharedMessage message = senders.Start(kSmall, 1);
  const SharedBlock record = Records().Receive(message).block;
  Records().RedeemTicket(message);
  senders.Kill();
  ReceiveFromDead(&senders, kSmall);
  Records().RedeemTicket(message);  // late, and of no effect
  Worker child([&](const Channel&) {
    EXPECT_FALSE(Heap().Has(record.data));
    Heap().Release(record);
  });
  child.Finish();
  EXPECT_TRUE(Heap().Has(record.data));
  EXPECT_TRUE(HasContent(record, 1));
  senders.Finish();
}

TEST_BOTH(SharedHeapSendersTest, ASegmentThatAMessageNeedsIsNotDetached) {
  Senders senders(strategy);
  const SharedBlock block = ReceiveFrom(&senders, kSmall, 1);
  const SharedMessage message = MessageOf(block);
  senders.Kill();
  ReceiveFromDead(&senders, kSmall);
  Worker receiver([&](const Channel& channel) {
    channel.Await();
    EXPECT_TRUE(HasContent(Heap().Receive(message).block, 1));
  });
  receiver.channel().Signal();
  receiver.Finish();
  senders.Finish();
}

TEST_BOTH(SharedHeapSendersTest,
          ASegmentThatTwoProcessesHaveStaysWholeForBoth) {
  Senders senders(strategy);
  Worker other([&](const Channel& channel) {
    const SharedBlock block =
        Heap().Receive(channel.Receive<SharedMessage>()).block;
    channel.Signal();
    EXPECT_TRUE(
        HasContent(Heap().Receive(channel.Receive<SharedMessage>()).block, 1));
    Heap().Release(block);
    channel.Signal();
    channel.Await();
  });
  const SharedMessage message = senders.Start(kSmall, 1);
  const SharedBlock block = Heap().Receive(message).block;
  other.channel().Send(MessageOf(block));
  other.channel().Await();
  senders.Kill();
  const std::vector<SharedBlock> more = ReceiveFromDead(&senders, kSmall);
  EXPECT_TRUE(HasContent(block, 1));
  const auto sent = Heap().Send(block.data);
  ASSERT_TRUE(sent.has_value());
  other.channel().Send(*sent);
  other.channel().Await();
  other.Kill();
  // Now only this process is attached, even if it had closed the descriptor.
  Heap().Release(block);
  for (const SharedBlock& each : more) Heap().Release(each);
  EXPECT_TRUE(Eventually([] {
    Heap().Collect({});
    return Heap().Stats().attached == 0 && Files().empty();
  }));
  senders.Finish();
}

TEST_BOTH(SharedHeapSendersTest, AProcessThatCollectsKeepsFewDescriptors) {
  Senders senders(strategy);
  Heap();
  const Limited descriptors(RLIMIT_NOFILE, kShort);
  const Possessions before = Possessions::Now();
  std::vector<SharedBlock> blocks;
  for (int i = 0; i < kMany; ++i) {
    blocks.push_back(ReceiveFrom(&senders, kSmall, i));
    senders.Kill();
    Heap().Collect({});
    EXPECT_LE(Possessions::Now().descriptors, before.descriptors + kFewOpen);
  }
  for (int i = 0; i < kMany; ++i) EXPECT_TRUE(HasContent(blocks[i], i));
  for (const SharedBlock& block : blocks) Heap().Release(block);
  senders.Finish();
}

TEST_BOTH(SharedHeapSendersTest,
          AProcessThatForksAllTheTimeKeepsFewSegmentsWhole) {
  // Like a pool whose workers end after one task each, while others work.
  constexpr int kRounds = 80;
  Senders senders(strategy);
  Heap();
  const Limited descriptors(RLIMIT_NOFILE, kShort);
  const Possessions before = Possessions::Now();
  std::deque<std::unique_ptr<Worker>> children;
  std::vector<SharedBlock> blocks;
  for (int i = 0; i < kRounds; ++i) {
    children.push_back(std::make_unique<Worker>([&](const Channel& channel) {
      channel.Await();
      for (int k = 0; k < i; ++k) EXPECT_TRUE(HasContent(blocks[k], k));
    }));
    blocks.push_back(ReceiveFrom(&senders, kSmall, i));
    senders.Kill();
    if (children.size() < 3) continue;
    children.front()->channel().Signal();
    children.front()->Finish();
    children.pop_front();
  }
  EXPECT_LE(Heap().Stats().attached, kWhole);
  EXPECT_LE(Possessions::Now().descriptors, before.descriptors + kWhole + 2);
  for (int i = 0; i < kRounds; ++i) EXPECT_TRUE(HasContent(blocks[i], i));
  for (const SharedBlock& block : blocks) Heap().Release(block);
  children.clear();
  EXPECT_TRUE(Eventually([] {
    Heap().Collect({});
    return Heap().Stats().attached == 0 && Files().empty();
  }));
  EXPECT_EQ(Heap().Stats().detached, 0);
  senders.Finish();
}

TEST_BOTH(SharedHeapSendersTest,
          AChildSharesABlockOfADeadSenderWithItsParentAndAThirdProcess) {
  Senders senders(strategy);
  Senders living(strategy);
  Worker third([&](const Channel& channel) {
    const SharedBlock block =
        Heap().Receive(channel.Receive<SharedMessage>()).block;
    channel.Signal();
    channel.Await();
    EXPECT_TRUE(HasContent(block, 77));
    Fill(block, 88);
    Heap().Release(block);
    Heap().Collect({});
    channel.Signal();
    channel.Await();
  });
  const SharedBlock block = ReceiveFrom(&senders, kMiB, 1);
  third.channel().Send(MessageOf(block));
  third.channel().Await();
  senders.Kill();
  for (int i = 0; i < kMany; ++i) ReceiveFrom(&living, kSmall, i);
  const Limited descriptors(RLIMIT_NOFILE, 2 * kMany);
  Worker child([&](const Channel& channel) {
    Fill(block, 77);
    EXPECT_EQ(Kind::kUnavailable, KindOf([&] { Heap().Send(block.data); }));
    channel.Signal();
    channel.Await();
    EXPECT_TRUE(HasContent(block, 88));
  });
  child.channel().Await();
  EXPECT_TRUE(HasContent(block, 77));
  EXPECT_TRUE(Heap().Send(block.data).has_value());  // the parent has its slot
  Heap().Release(block);
  Heap().Collect(0.0);
  third.channel().Signal();
  third.channel().Await();
  Heap().Collect(0.0);
  child.channel().Signal();
  child.Finish();
  third.channel().Signal();
  third.Finish();
  living.Finish();
  senders.Finish();
}

ISOLATED_TEST(SharedHeapSendersTest,
              ANamedSegmentOfADeadSenderIsWholeWithoutADescriptor) {
  Senders senders(SharingStrategy::kFileSystem);
  Heap();
  const Possessions before = Possessions::Now();
  std::vector<SharedBlock> blocks;
  for (int i = 0; i < kMany; ++i) {
    blocks.push_back(ReceiveFrom(&senders, kSmall, i));
    senders.Kill();
  }
  EXPECT_EQ(Heap().Stats().detached, 0);
  EXPECT_LE(Possessions::Now().descriptors, before.descriptors + kWhole);
  // A child has it too, and both can forward it.
  Worker child([&](const Channel& channel) {
    const auto sent = Heap().Send(blocks[0].data);
    ASSERT_TRUE(sent.has_value());
    channel.Send(*sent);
    channel.Await();
    EXPECT_TRUE(HasContent(blocks[0], 7));
  });
  const SharedMessage message = child.channel().Receive<SharedMessage>();
  Fill(Heap().Receive(message).block, 7);
  child.channel().Signal();
  child.Finish();
  EXPECT_TRUE(HasContent(blocks[0], 7));
  senders.Finish();
}

// Two messages of one sender. This process has received only the first.
struct HalfReceived {
  SharedBlock block;
  SharedMessage other;
};

// Receives the first of two messages of each sender, and then kills the
// senders. The segments are still needed for the other messages, so a child
// that is forked while descriptors are short gets only the pages of the
// received blocks.
std::vector<HalfReceived> ReceiveHalf() {
  struct Pair {
    SharedMessage first;
    SharedMessage second;
  };
  std::vector<std::unique_ptr<Worker>> senders;
  std::vector<HalfReceived> received;
  for (int i = 0; i < 16; ++i) {
    senders.push_back(std::make_unique<Worker>([&](const Channel& channel) {
      constexpr auto strategy = SharingStrategy::kFileSystem;
      channel.Send(Pair{MessageOf(AllocateFilled(strategy, kSmall, i)),
                        MessageOf(AllocateFilled(strategy, kSmall, 100 + i))});
      channel.Await();
    }));
    const auto pair = senders.back()->channel().Receive<Pair>();
    received.push_back({Heap().Receive(pair.first).block, pair.second});
  }
  for (const auto& sender : senders) sender->Kill();
  return received;
}

ISOLATED_TEST(SharedHeapSendersTest,
              AChildWithOnlyPagesReceivesOtherBlocksOfTheirSegments) {
  const std::vector<HalfReceived> received = ReceiveHalf();
  const Limited descriptors(RLIMIT_NOFILE, kShort);
  Worker child([&](const Channel& channel) {
    const SharedBlock other = Heap().Receive(received[0].other).block;
    EXPECT_TRUE(HasContent(other, 100));
    EXPECT_TRUE(HasContent(received[0].block, 0));
    // The block that the parent has received meanwhile and forwards.
    const auto sent_on = channel.Receive<SharedMessage>();
    EXPECT_TRUE(HasContent(Heap().Receive(sent_on).block, 101));
    Heap().Release(other);
    EXPECT_TRUE(HasContent(received[0].block, 0));
  });
  const SharedBlock other = Heap().Receive(received[1].other).block;
  child.channel().Send(MessageOf(other));
  child.Finish();
}

ISOLATED_TEST(SharedHeapSendersTest,
              AChildWithOnlyPagesOfABlockReceivesAMessageOfIt) {
  const std::vector<HalfReceived> received = ReceiveHalf();
  const Limited descriptors(RLIMIT_NOFILE, kShort);
  Worker child([&](const Channel& channel) {
    const auto message = channel.Receive<SharedMessage>();
    EXPECT_EQ(Heap().Receive(message).block.data, received[0].block.data);
  });
  const SharedMessage message = MessageOf(received[0].block);
  child.channel().Send(message);
  child.Finish();
  EXPECT_FALSE(Records().IsInFlight(message));
}

ISOLATED_TEST(SharedHeapSendersTest,
              TheLastOfATreeRemovesFilesOfWhichItHasOnlyPages) {
  int to_child[2];
  int from_child[2];
  ASSERT_EQ(pipe(to_child), 0);
  ASSERT_EQ(pipe(from_child), 0);
  char byte = '!';
  Worker parent([&](const Channel& channel) {
    const std::vector<HalfReceived> received = ReceiveHalf();
    const Limited descriptors(RLIMIT_NOFILE, kShort);
    if (fork() == 0) {
      ASSERT_EQ(read(to_child[0], &byte, 1), 1);
      Heap().Leave();
      byte = static_cast<char>(Files().size());
      ASSERT_EQ(write(from_child[1], &byte, 1), 1);
      _exit(0);
    }
    channel.Signal();
    channel.Await();
  });
  parent.channel().Await();
  EXPECT_FALSE(Files().empty());
  parent.Kill();
  ASSERT_EQ(write(to_child[1], &byte, 1), 1);
  ASSERT_EQ(read(from_child[0], &byte, 1), 1);
  EXPECT_EQ(byte, 0);
  for (int fd : {to_child[0], to_child[1], from_child[0], from_child[1]}) {
    close(fd);
  }
}

ISOLATED_TEST(SharedHeapSendersTest,
              ANamedSegmentThatTwoProcessesHaveKeepsNoDescriptor) {
  constexpr auto strategy = SharingStrategy::kFileSystem;
  Senders senders(strategy);
  Worker other([&](const Channel& channel) {
    for (int i = 0; i < kMany; ++i) {
      Heap().Receive(channel.Receive<SharedMessage>());
      channel.Signal();
    }
    channel.Await();
  });
  Heap();
  const Possessions before = Possessions::Now();
  std::vector<SharedBlock> blocks;
  for (int i = 0; i < kMany; ++i) {
    blocks.push_back(ReceiveFrom(&senders, kSmall, i));
    other.channel().Send(MessageOf(blocks.back()));
    other.channel().Await();
    senders.Kill();
  }
  EXPECT_EQ(Heap().Stats().attached, kMany);
  EXPECT_LE(Possessions::Now().descriptors, before.descriptors + kWhole);
  // A function that needs the descriptor opens it again.
  Heap().Release(blocks.back());
  blocks.pop_back();
  EXPECT_TRUE(Heap().Send(blocks[0].data).has_value());
  Worker child([&](const Channel&) {
    for (size_t i = 0; i < blocks.size(); ++i)
      EXPECT_TRUE(HasContent(blocks[i], i));
  });
  child.Finish();
  EXPECT_LE(Possessions::Now().descriptors, before.descriptors + kWhole);
  other.Kill();
  for (const SharedBlock& block : blocks) Heap().Release(block);
  EXPECT_TRUE(Eventually([] {
    Heap().Collect(0.0);
    return Heap().Stats().attached == 0 && Files().empty();
  }));
  senders.Finish();
}

}  // namespace
