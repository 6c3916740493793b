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

// Device memory between processes. Each test checks one property. The kernels
// are memory fills, which a slow stream delays.

#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "test/cpp/phi/shared_memory/devices.h"

namespace {

using namespace shared_memory_test;  // NOLINT(build/namespaces)

class CudaIPCTest : public shared_memory_test::SharedMemoryTestCase {};

constexpr int kSlow = 30000;   // microseconds
constexpr int kUnknown = 999;  // a driver error
// Smaller allocations share what the driver allocates, so that the device's
// free memory need not change with each.
constexpr uint64_t kSize = 2 * kMiB;

::testing::AssertionResult Says(const std::optional<SharedMemoryError>& error,
                                const std::string& text) {
  return ::testing::IsSubstring(
      "text", "error", text, error ? error->what() : "there is no error");
}

// Returns the error of receiving a message, which must leave nothing behind.
std::optional<SharedMemoryError> ErrorOfReceiving(
    const CudaIPCMessage& message) {
  const auto error = ErrorOf([&] { StorageOf(message); });
  EXPECT_TRUE(SharesNothing());
  return error;
}

// Ends a child of a process that has used a device, without a leak check:
// memory to which only threads of the parent refer would seem leaked.
[[noreturn]] void EndChild() {
  _exit(isolated_test::HasFailureHere() ? EXIT_FAILURE : EXIT_SUCCESS);
}

void End(Worker* worker) {
  worker->channel().Signal();
  worker->Finish();
}

// A process that works together with the test, usually to receive its messages.
// After its body has returned, it waits for the end of the test, so that its
// own end changes nothing that the test checks.
class Peer : public Worker {
 public:
  explicit Peer(const std::function<void(const Channel&)>& body)
      : Worker([body](const Channel& channel) {
          body(channel);
          channel.Signal();
          channel.Await();
        }) {}
  // Ends the process, unless it has ended or the test has failed.
  ~Peer() noexcept(false) {
    if (pid() > 0 && std::uncaught_exceptions() == 0) End(this);
  }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  void Send(const Storage& storage, SharingStrategy strategy) const {
    channel().Send(MessageOf(storage, strategy));
  }
  // Sends a new tensor, of content 1, and returns it.
  Storage SendNew(SharingStrategy strategy) const {
    Storage storage = AllocateFilled(kSize, 1);
    Send(storage, strategy);
    return storage;
  }
  // Waits until the body has returned.
  void AwaitDone() const { channel().Await(); }
  // Lets a waiting body continue, and waits until it has returned.
  void Continue() const {
    channel().Signal();
    AwaitDone();
  }
};

// A process that receives one tensor, of content 1, and holds it until Drop.
class Holder : public Peer {
 public:
  Holder()
      : Peer([](const Channel& channel) {
          Storage storage = StorageOf(channel.Receive<CudaIPCMessage>());
          channel.Send(HasContent(storage->memory, 1));
          channel.Await();
          storage.reset();
          EXPECT_TRUE(SharesNothing());
        }) {}

  // Sends the process a new tensor, and returns the tensor once it is received.
  Storage SendNew(SharingStrategy strategy) const {
    Storage storage = Peer::SendNew(strategy);
    AwaitReceived();
    return storage;
  }
  void AwaitReceived() const { EXPECT_TRUE(channel().Receive<bool>()); }
  void Drop() const { Continue(); }
};

TEST_BOTH(CudaIPCTest, ATensorArrivesAndBothSeeWrites) {
  Peer receiver([](const Channel& channel) {
    const Storage storage = StorageOf(channel.Receive<CudaIPCMessage>());
    EXPECT_EQ(storage->memory.size, kSize);
    EXPECT_TRUE(HasContent(storage->memory, 1));
    Fill(storage->memory, 2);
    EXPECT_TRUE(HasContent(storage->memory, 2));
    channel.Signal();
    channel.Await();
    EXPECT_TRUE(HasContent(storage->memory, 3));
  });
  const Storage storage = receiver.SendNew(strategy);
  receiver.channel().Await();
  EXPECT_TRUE(HasContent(storage->memory, 2));
  Fill(storage->memory, 3);
  EXPECT_TRUE(HasContent(storage->memory, 3));
  receiver.Continue();
}

TEST_BOTH(CudaIPCTest, AMessageSaysWhereInTheStorageItStarts) {
  Peer receiver([](const Channel& channel) {
    const auto message = channel.Receive<CudaIPCMessage>();
    EXPECT_EQ(message.offset, 1024);
    const Storage storage = StorageOf(message);
    EXPECT_TRUE(HasContent(PartOf(storage->memory, 0, 1024), 1));
    EXPECT_TRUE(HasContent(PartOf(storage->memory, 1024, 1024), 2));
  });
  const Storage storage = AllocateFilled(2048, 1);
  Fill(PartOf(storage->memory, 1024, 1024), 2);
  receiver.channel().Send(MessageOf(storage, strategy, nullptr, 1024));
  receiver.AwaitDone();
}

TEST_BOTH(CudaIPCTest, APartOfADriversAllocationArrives) {
  Peer receiver([](const Channel& channel) {
    const Storage storage = StorageOf(channel.Receive<CudaIPCMessage>());
    EXPECT_EQ(storage->memory.size, 512);
    EXPECT_TRUE(HasContent(storage->memory, 1));
    Fill(storage->memory, 3);
    EXPECT_TRUE(HasContent(storage->memory, 3));
  });
  const CudaIPCMemory all = AllocateMemory(kSize);
  Fill(all, 2);
  const Storage storage = StorageIn(PartOf(all, 4096, 512), [] {});
  Fill(storage->memory, 1);
  receiver.Send(storage, strategy);
  receiver.AwaitDone();
  EXPECT_TRUE(HasContent(PartOf(all, 0, 4096), 2));
  EXPECT_TRUE(HasContent(storage->memory, 3));
  EXPECT_TRUE(HasContent(PartOf(all, 4096 + 512, 4096), 2));
}

TEST_BOTH(CudaIPCTest, TensorsInOneAllocationOpenOneHandleAndTheLastClosesIt) {
  Peer receiver([](const Channel& channel) {
    std::array<Storage, 3> storages;
    for (Storage& storage : storages) {
      storage = StorageOf(channel.Receive<CudaIPCMessage>());
      EXPECT_EQ(DeviceHeap().Stats().handles, 1);
    }
    EXPECT_EQ(storages[2]->memory.data - storages[0]->memory.data, 2048);
    storages[0].reset();
    storages[2].reset();
    EXPECT_EQ(DeviceHeap().Stats().handles, 1);
    EXPECT_TRUE(HasContent(storages[1]->memory, 1));
    storages[1].reset();
    EXPECT_TRUE(SharesNothing());
  });
  const CudaIPCMemory all = AllocateMemory(4096);
  Fill(all, 1);
  std::array<Storage, 3> storages;
  for (int i = 0; i < 3; ++i) {
    storages[i] = StorageIn(PartOf(all, i * 1024, 1024), [] {});
    receiver.Send(storages[i], strategy);
  }
  receiver.AwaitDone();
  // No process has the handle open any more.
  FreeMemory(all);
}

TEST_BOTH(CudaIPCTest, MemoryDroppedByItsOwnerLivesAsLongAsAReceiverHoldsIt) {
  Holder receiver;
  Storage storage = receiver.SendNew(strategy);
  const uint64_t left = FreeBytes();
  storage.reset();
  EXPECT_EQ(DeviceHeap().Collect(0.0), 0);
  const CudaIPCStats stats = DeviceHeap().Stats();
  EXPECT_EQ(stats.sent, 1);
  EXPECT_EQ(stats.sent_bytes, kSize);
  EXPECT_EQ(stats.limbo, 1);
  EXPECT_EQ(stats.limbo_bytes, kSize);
  EXPECT_EQ(FreeBytes(), left);
  receiver.Drop();
  EXPECT_EQ(DeviceHeap().Collect({}), kSize);
  EXPECT_GE(FreeBytes(), left + kSize);
  EXPECT_TRUE(SharesNothing());
}

TEST_BOTH(CudaIPCTest, MemoryDroppedFirstByItsReceiverIsFreedWithItsTensor) {
  Holder receiver;
  Storage storage = receiver.SendNew(strategy);
  receiver.Drop();
  const uint64_t left = FreeBytes();
  EXPECT_TRUE(HasContent(storage->memory, 1));
  EXPECT_EQ(DeviceHeap().Stats().limbo, 0);
  storage.reset();  // frees immediately, without Collect
  EXPECT_GE(FreeBytes(), left + kSize);
  EXPECT_EQ(DeviceHeap().Stats().sent, 0);
}

TEST_BOTH(CudaIPCTest, MemoryLivesAsLongAsAMessageCarriesIt) {
  Peer receiver([](const Channel& channel) {
    const auto message = channel.Receive<CudaIPCMessage>();
    channel.Signal();
    channel.Await();
    EXPECT_TRUE(HasContent(StorageOf(message)->memory, 1));
    EXPECT_TRUE(SharesNothing());
  });
  Storage storage = receiver.SendNew(strategy);
  receiver.channel().Await();
  storage.reset();
  EXPECT_EQ(DeviceHeap().Collect(3600), 0);
  EXPECT_EQ(DeviceHeap().Stats().limbo, 1);
  receiver.Continue();
  EXPECT_TRUE(SharesNothing());
}

TEST_BOTH(CudaIPCTest, AMessageToTheSameProcessReturnsTheSameTensor) {
  const Storage storage = AllocateFilled(kSize, 1);
  EXPECT_EQ(StorageOf(MessageOf(storage, strategy)), storage);
  EXPECT_EQ(DeviceHeap().Stats().handles, 0);
  EXPECT_EQ(DeviceHeap().Stats().received, 0);
}

TEST_BOTH(CudaIPCTest, AMessageToTheSameProcessBringsBackDroppedMemory) {
  Storage storage = AllocateFilled(kSize, 1);
  const char* data = storage->memory.data;
  std::vector<CudaIPCMessage> messages;
  for (int i = 0; i < 3; ++i) messages.push_back(MessageOf(storage, strategy));
  for (const CudaIPCMessage& message : messages) {
    storage.reset();
    EXPECT_EQ(DeviceHeap().Stats().limbo, 1);
    storage = StorageOf(message);
    EXPECT_EQ(storage->memory.data, data);
    EXPECT_TRUE(HasContent(storage->memory, 1));
    EXPECT_EQ(DeviceHeap().Stats().limbo, 0);
    EXPECT_EQ(DeviceHeap().Stats().handles, 0);
  }
  const uint64_t left = FreeBytes();
  storage.reset();
  EXPECT_GE(FreeBytes(), left + kSize);
  EXPECT_TRUE(SharesNothing());
}

TEST_BOTH(CudaIPCTest, ReturnedMemoryIsFreedWhenTheWorkOnItIsDone) {
  NEEDS_STAND_IN;
  bool done_when_freed = false;
  CudaIPCDriver& driver = CudaIPCDriver::Instance();
  const auto done = driver.MakeEvent(0);
  ASSERT_TRUE(done.has_value());
  const CudaIPCMemory memory = AllocateMemory(kSize);
  Storage storage = StorageIn(memory, [&] {
    done_when_freed = driver.IsDone(0, done->event);
    FreeMemory(memory);
  });
  const CudaIPCMessage message = MessageOf(storage, strategy);
  storage.reset();
  const Stream stream = MakeStream();
  storage = StorageOf(message, stream);
  SetDelay(kSlow);
  Fill(storage->memory, 1, stream);
  driver.Record(0, done->event, stream);
  storage.reset();
  EXPECT_TRUE(done_when_freed);
}

TEST_BOTH(CudaIPCTest, ATensorIsForwardedDroppedAndReturnedToItsOwner) {
  Peer last([](const Channel& channel) {
    Storage storage = StorageOf(channel.Receive<CudaIPCMessage>());
    EXPECT_TRUE(HasContent(storage->memory, 1));
    Fill(storage->memory, 2);
    channel.Send(
        MessageOf(storage, SharingStrategy::kFileSystem /* has a record */));
    storage.reset();
    EXPECT_TRUE(SharesNothing());
  });
  Peer middle([](const Channel& channel) {
    Storage storage = StorageOf(channel.Receive<CudaIPCMessage>());
    channel.Send(MessageOf(storage, SharingStrategy::kFileSystem));
    storage.reset();
    EXPECT_TRUE(SharesNothing());
  });
  Storage storage = AllocateFilled(kSize, 1);
  const char* data = storage->memory.data;
  middle.Send(storage, strategy);
  storage.reset();
  last.channel().Send(middle.channel().Receive<CudaIPCMessage>());
  storage = StorageOf(last.channel().Receive<CudaIPCMessage>());
  EXPECT_EQ(storage->memory.data, data);
  EXPECT_TRUE(HasContent(storage->memory, 2));
  storage.reset();
  EXPECT_TRUE(Eventually(SharesNothing));
}

// Uses a file, since a descriptor would end with the process that sent it.
ISOLATED_TEST(CudaIPCTest, AForwardedTensorOutlivesTheForwarder) {
  const SharingStrategy strategy = SharingStrategy::kFileSystem;
  Holder last;
  Peer middle([&](const Channel& channel) {
    const Storage storage = StorageOf(channel.Receive<CudaIPCMessage>());
    channel.Send(MessageOf(storage, strategy));
  });
  const Storage storage = AllocateFilled(kSize, 1);
  middle.Send(storage, strategy);
  const auto message = middle.channel().Receive<CudaIPCMessage>();
  End(&middle);
  last.channel().Send(message);
  last.AwaitReceived();
  last.Drop();
}

TEST_BOTH(CudaIPCTest, MemoryOfAKilledReceiverIsReclaimedAtTheNextSend) {
  Holder receiver;
  Peer other([](const Channel&) {});
  Storage storage = AllocateFilled(kSize, 1);
  const Storage sent_next = AllocateFilled(64, 1);
  receiver.Send(storage, strategy);
  receiver.AwaitReceived();
  storage.reset();
  receiver.Kill();
  const uint64_t left = FreeBytes();
  EXPECT_TRUE(Eventually([&] {
    MessageOf(sent_next, strategy);
    return DeviceHeap().Stats().limbo == 0;
  }));
  EXPECT_GE(FreeBytes(), left + kSize);
}

TEST_BOTH(CudaIPCTest, MemoryOfAKilledReceiverIsReclaimedByCollect) {
  Holder receiver;
  Storage storage = receiver.SendNew(strategy);
  storage.reset();
  receiver.Kill();
  EXPECT_TRUE(Eventually(SharesNothing));
}

TEST_BOTH(CudaIPCTest, AMessageThatNobodyReceivesExpiresOnDemand) {
  Worker late([](const Channel& channel) {
    const auto message = channel.Receive<CudaIPCMessage>();
    const auto error = ErrorOfReceiving(message);
    EXPECT_EQ(KindOf(error), Kind::kGone);
  });
  Storage storage = AllocateFilled(kSize, 1);
  MessageOf(storage, strategy);
  EXPECT_EQ(DeviceHeap().Collect(0.0), 0);  // the tensor is still there
  storage.reset();
  EXPECT_TRUE(SharesNothing());
  storage = AllocateFilled(kSize, 1);
  const CudaIPCMessage lost = MessageOf(storage, strategy);
  storage.reset();
  EXPECT_EQ(DeviceHeap().Collect(3600), 0);
  EXPECT_EQ(DeviceHeap().Collect(0.0), kSize);
  EXPECT_TRUE(SharesNothing());
  late.channel().Send(lost);
  late.Finish();
}

TEST_BOTH(CudaIPCTest, AMessageCanBeReceivedTwiceAsLongAsTheTensorExists) {
  Peer receiver([](const Channel& channel) {
    const auto message = channel.Receive<CudaIPCMessage>();
    Storage storage = StorageOf(message);
    EXPECT_EQ(StorageOf(message), storage);
    EXPECT_EQ(DeviceHeap().Stats().received, 1);
    storage.reset();
    storage = StorageOf(message);
    EXPECT_TRUE(HasContent(storage->memory, 1));
    storage.reset();
    EXPECT_TRUE(SharesNothing());
    channel.Signal();
    channel.Await();
    const auto error = ErrorOfReceiving(message);
    EXPECT_EQ(KindOf(error), Kind::kGone);
  });
  Storage storage = AllocateFilled(kSize, 1);
  receiver.Send(storage, strategy);
  receiver.channel().Await();
  storage.reset();
  EXPECT_TRUE(SharesNothing());
  receiver.Continue();
}

// Sends a tensor on which the process has work that never ends.
void SendUnfinished(const Channel& channel, SharingStrategy strategy) {
  const Storage storage = Allocate(kSize);
  const Stream stream = MakeStream();
  SetDelay(kForever);
  Fill(storage->memory, 1, stream);
  channel.Send(MessageOf(storage, strategy, stream));
  channel.Await();
}

// Calls `act` on another thread while this one waits for the sender's work.
std::optional<SharedMemoryError> ErrorOfReceivingWhile(
    const CudaIPCMessage& message, const std::function<void()>& act) {
  std::thread actor([&] {
    if (HasStandIn()) {
      while (CallsOf("cuEventQuery") < 10) std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
    }
    act();
  });
  const auto error = ErrorOf([&] { StorageOf(message); });
  actor.join();
  return error;
}

TEST_BOTH(CudaIPCTest, AMessageOfAProcessKilledDuringItsWorkIsGone) {
  Worker owner(
      [&](const Channel& channel) { SendUnfinished(channel, strategy); });
  const auto message = owner.channel().Receive<CudaIPCMessage>();
  const auto error = ErrorOfReceivingWhile(message, [&] { owner.Kill(); });
  EXPECT_EQ(KindOf(error), Kind::kGone);
  EXPECT_TRUE(SharesNothing());
  // No stream is stuck.
  const Storage own = AllocateFilled(kSize, 1);
  EXPECT_TRUE(HasContent(own->memory, 1));
}

TEST_BOTH(CudaIPCTest, AnExitEndsTheWaitForTheSendersWork) {
  Worker owner(
      [&](const Channel& channel) { SendUnfinished(channel, strategy); });
  const auto message = owner.channel().Receive<CudaIPCMessage>();
  const auto error =
      ErrorOfReceivingWhile(message, [] { DeviceHeap().Leave(); });
  EXPECT_EQ(KindOf(error), Kind::kUnavailable);
  owner.Kill();
}

TEST_BOTH(CudaIPCTest, AnInterruptionEndsTheWaitForTheSendersWork) {
  class Interruption {};
  Worker owner(
      [&](const Channel& channel) { SendUnfinished(channel, strategy); });
  const auto message = owner.channel().Receive<CudaIPCMessage>();
  DeviceHeap().SetInterruptionCheck([] { throw Interruption(); });
  EXPECT_THROW(StorageOf(message), Interruption);
  owner.Kill();
  EXPECT_TRUE(SharesNothing());
}

TEST_BOTH(CudaIPCTest, AReceiverDoesNotWaitForLaterWorkOfAnotherProcess) {
  Worker owner([&](const Channel& channel) {
    const Storage storage = Allocate(kSize);
    const Storage other = Allocate(kSize);
    const Stream stream = MakeStream();
    Fill(storage->memory, 1, stream);
    const auto message = MessageOf(storage, strategy, stream);
    SetDelay(kForever);
    Fill(other->memory, 2, stream);
    channel.Send(message);
    channel.Await();
  });
  Storage received = StorageOf(owner.channel().Receive<CudaIPCMessage>());
  EXPECT_TRUE(HasContent(received->memory, 1));
  received.reset();
  owner.Kill();
}

TEST_BOTH(CudaIPCTest, AMessageWhoseEventWasDamagedIsRefused) {
  Peer receiver([](const Channel& channel) {
    const auto intact = channel.Receive<CudaIPCMessage>();
    for (size_t i = 0; i < sizeof(intact.ready); ++i) {
      CudaIPCMessage message = intact;
      reinterpret_cast<char*>(&message.ready)[i] ^= 4;
      const auto error = ErrorOf([&] { StorageOf(message); });
      EXPECT_EQ(KindOf(error), Kind::kInvalid);
      EXPECT_TRUE(Says(error, "wrong checksum"));
    }
  });
  const Storage storage = receiver.SendNew(strategy);
  receiver.AwaitDone();
}

TEST_BOTH(CudaIPCTest, AMessageOfADeadProcessIsGone) {
  Peer receiver([&](const Channel& channel) {
    const auto error = ErrorOfReceiving(channel.Receive<CudaIPCMessage>());
    EXPECT_EQ(KindOf(error), Kind::kGone);
    // A descriptor ends with its process, so the reason is not known.
    EXPECT_TRUE(strategy == SharingStrategy::kFileDescriptor ||
                Says(error, "has ended"));
  });
  Peer holder([](const Channel& channel) {
    const auto message = channel.Receive<CudaIPCMessage>();
    Storage storage = StorageOf(message);
    channel.Signal();
    channel.Await();
    // The process is attached to the record's segment, so it knows the reason.
    storage.reset();
    EXPECT_TRUE(SharesNothing());
    EXPECT_TRUE(Says(ErrorOfReceiving(message), "has ended") ||
                Says(ErrorOfReceiving(message), "does not exist any more"));
  });
  Worker owner([&](const Channel& channel) {
    const Storage storage = AllocateFilled(kSize, 1);
    channel.Send(MessageOf(storage, strategy));
    channel.Send(MessageOf(storage, strategy));
    channel.Await();
  });
  const auto message = owner.channel().Receive<CudaIPCMessage>();
  holder.channel().Send(owner.channel().Receive<CudaIPCMessage>());
  holder.channel().Await();
  owner.Kill();
  receiver.channel().Send(message);
  receiver.AwaitDone();
  holder.Continue();
}

// Sends a storage while work on it is in progress. With `names_stream`, passes
// the stream of the work.
void SendEarly(SharingStrategy strategy, bool names_stream) {
  Peer receiver([](const Channel& channel) {
    const Stream stream = MakeStream();
    const Storage storage =
        StorageOf(channel.Receive<CudaIPCMessage>(), stream);
    EXPECT_TRUE(HasContent(storage->memory, 2, stream));
  });
  const Storage storage = AllocateFilled(kSize, 1);
  const Stream stream = MakeStream();
  EXPECT_TRUE(HasContent(storage->memory, 1));
  SetDelay(kSlow);
  Fill(storage->memory, 3, stream);
  Fill(storage->memory, 2, stream);
  receiver.channel().Send(
      MessageOf(storage,
                strategy,
                names_stream ? std::optional<Stream>(stream) : std::nullopt));
  receiver.AwaitDone();
}

TEST_BOTH(CudaIPCTest, AReceiverWaitsForUnfinishedWorkOfTheSender) {
  SendEarly(strategy, true);
}

TEST_BOTH(CudaIPCTest, WithoutAStreamTheReceiverSeesTheWorkOfAllStreams) {
  SendEarly(strategy, false);
}

TEST_BOTH(CudaIPCTest, TheReceiverOfAForwardedTensorSeesTheFirstSendersWork) {
  Peer last([](const Channel& channel) {
    const Stream stream = MakeStream();
    const Storage storage =
        StorageOf(channel.Receive<CudaIPCMessage>(), stream);
    EXPECT_TRUE(HasContent(storage->memory, 2, stream));
  });
  Peer middle([&](const Channel& channel) {
    const Stream stream = MakeStream();
    const Storage storage =
        StorageOf(channel.Receive<CudaIPCMessage>(), stream);
    channel.Send(MessageOf(storage, strategy, stream));
  });
  const Storage storage = AllocateFilled(kSize, 1);
  const Stream stream = MakeStream();
  EXPECT_TRUE(HasContent(storage->memory, 1));
  SetDelay(2 * kSlow);
  Fill(storage->memory, 2, stream);
  middle.channel().Send(MessageOf(storage, strategy, stream));
  last.channel().Send(middle.channel().Receive<CudaIPCMessage>());
  last.AwaitDone();
}

// Sends many times, alternating between two streams: a reused event does not
// let a receiver continue too early.
void SendManyOnTwoStreams(SharingStrategy strategy, int count) {
  Peer receiver([&](const Channel& channel) {
    const Stream stream = MakeStream();
    channel.Signal();
    for (int i = 0; i < count; ++i) {
      const Storage storage =
          StorageOf(channel.Receive<CudaIPCMessage>(), stream);
      EXPECT_TRUE(HasContent(storage->memory, i, stream));
    }
    EXPECT_TRUE(SharesNothing());
  });
  receiver.channel().Await();
  const Stream streams[] = {MakeStream(), MakeStream()};
  SetDelay(2000);
  for (int i = 0; i < count; ++i) {
    const Storage storage = Allocate(4096);
    Fill(storage->memory, i, streams[i % 2]);
    receiver.channel().Send(MessageOf(storage, strategy, streams[i % 2]));
    EXPECT_LE(DeviceHeap().Stats().events, CudaIPCEvents::kMaxCreated);
  }
  receiver.AwaitDone();
  EXPECT_TRUE(Eventually(SharesNothing));
}

TEST_BOTH(CudaIPCTest, ManySendsOnTwoStreamsKeepTheirOrder) {
  SendManyOnTwoStreams(strategy, 150);
}

TEST_BOTH(CudaIPCTest, OneEventIsEnough) {
  NEEDS_STAND_IN;
  setenv("STAND_IN_EVENTS", "1", 1);
  SendManyOnTwoStreams(strategy, 20);
  EXPECT_EQ(DeviceHeap().Stats().events, 1);
}

TEST_BOTH(CudaIPCTest, WithoutEventsTheSenderWaitsForItsWork) {
  NEEDS_STAND_IN;
  setenv("STAND_IN_EVENTS", "0", 1);
  SendManyOnTwoStreams(strategy, 20);
  EXPECT_EQ(DeviceHeap().Stats().events, 0);
}

// Returns whether a message can be received, even by a slow receiver, while
// work that was submitted after it is still running. Also returns false if this
// process did not run for as long as the work takes.
bool IsReceivedBeforeLaterWork() {
  CudaIPCDriver& driver = CudaIPCDriver::Instance();
  const Stream later = MakeStream();
  const Stream stream = MakeStream();
  const auto done = driver.MakeEvent(0);
  const auto received = driver.MakeEvent(0);
  REQUIRE_TRUE(done);
  REQUIRE_TRUE(received);
  const Storage storage = AllocateFilled(kSize, 1);
  const Storage other = Allocate(4);
  const CudaIPCMessage early = MessageOf(storage, SharingStrategy::kFileSystem);
  // Otherwise the event would stay in use for its own work.
  EXPECT_TRUE(HasContent(storage->memory, 1));
  std::vector<CudaIPCMessage> late;
  auto send_on = [&] {
    for (int i = 0; i < 10; ++i) {
      late.push_back(MessageOf(other, SharingStrategy::kFileSystem, later));
    }
  };
  SetDelay(10 * kSlow);
  Fill(other->memory, 2, later);
  driver.Record(0, done->event, later);
  send_on();
  DeviceHeap().Receive(early, [&](int) {
    send_on();
    return stream;
  });
  driver.Record(0, received->event, stream);
  EXPECT_TRUE(Eventually([&] { return driver.IsDone(0, received->event); }));
  const bool before = !driver.IsDone(0, done->event);
  SetDelay(0);
  for (const CudaIPCMessage& message : late) StorageOf(message);
  return before;
}

ISOLATED_TEST(CudaIPCTest, AReceiverDoesNotWaitForWorkAfterItsMessage) {
  NEEDS_STAND_IN;
  int tries = 0;
  // A busy machine may take longer than the later work does.
  constexpr int kMostTries = 50;
  while (!IsReceivedBeforeLaterWork() && ++tries < kMostTries) {
  }
  EXPECT_LT(tries, kMostTries);
}

ISOLATED_TEST(CudaIPCTest, AMessageThatNobodyReceivesKeepsOnlyOneEvent) {
  const Storage storage = AllocateFilled(kSize, 1);
  MessageOf(storage, SharingStrategy::kFileSystem);
  for (int i = 0; i < 100; ++i) {
    const Storage sent = AllocateFilled(64, 1);
    StorageOf(MessageOf(sent, SharingStrategy::kFileSystem));
    EXPECT_TRUE(HasContent(sent->memory, 1));
  }
  EXPECT_LT(DeviceHeap().Stats().events, 10);
}

ISOLATED_TEST(CudaIPCTest, AnEventIsReusedOnceItsMessageIsReceived) {
  const Storage storage = AllocateFilled(kSize, 1);
  for (int i = 0; i < 100; ++i) {
    StorageOf(MessageOf(storage, SharingStrategy::kFileSystem));
    EXPECT_TRUE(HasContent(storage->memory, 1));
  }
  EXPECT_LT(DeviceHeap().Stats().events, 10);
}

ISOLATED_TEST(CudaIPCTest, TheOldestEventsOfOthersAreClosed) {
  static constexpr size_t kMessages = 50;  // each with its own event
  constexpr size_t kSenders = 1 + CudaIPCEvents::kMaxOpened / kMessages;
  std::vector<std::unique_ptr<Peer>> senders;
  for (size_t i = 0; i < kSenders; ++i) {
    senders.push_back(std::make_unique<Peer>([](const Channel& channel) {
      const Storage storage = AllocateFilled(4096, 1);
      for (size_t j = 0; j < kMessages; ++j) {
        channel.Send(MessageOf(storage, SharingStrategy::kFileSystem));
      }
      EXPECT_EQ(DeviceHeap().Stats().events, kMessages);
    }));
  }
  for (const auto& sender : senders) {
    std::vector<CudaIPCMessage> messages;
    for (size_t i = 0; i < kMessages; ++i) {
      messages.push_back(sender->channel().Receive<CudaIPCMessage>());
    }
    sender->AwaitDone();
    for (const CudaIPCMessage& message : messages) {
      EXPECT_TRUE(HasContent(StorageOf(message)->memory, 1));
    }
  }
  EXPECT_EQ(DeviceHeap().Stats().events, CudaIPCEvents::kMaxOpened);
  EXPECT_TRUE(SharesNothing());
}

TEST_BOTH(CudaIPCTest, AReceiverReleasesItsReferenceOnceItsWorkIsDone) {
  Peer receiver([](const Channel& channel) {
    const Stream stream = MakeStream();
    Storage storage = StorageOf(channel.Receive<CudaIPCMessage>(), stream);
    // This keeps the handle open: closing it would wait for the work.
    const Storage other = StorageOf(channel.Receive<CudaIPCMessage>(), stream);
    SetDelay(kSlow);
    Fill(storage->memory, 2, stream);
    storage.reset();
  });
  const CudaIPCMemory all = AllocateMemory(4096);
  Fill(all, 1);
  bool is_free = false;
  Storage storage = StorageIn(PartOf(all, 0, 1024), [&] {
    is_free = true;
    EXPECT_TRUE(HasContent(PartOf(all, 0, 1024), 2));
  });
  const Storage other = StorageIn(PartOf(all, 1024, 1024), [] {});
  receiver.Send(storage, strategy);
  receiver.Send(other, strategy);
  storage.reset();
  EXPECT_TRUE(Eventually([&] {
    DeviceHeap().Collect({});
    return is_free;
  }));
  receiver.AwaitDone();
}

ISOLATED_TEST(CudaIPCTest, AMissingDriverIsReportedAndHostMemoryIsShared) {
  if (std::getenv("LD_LIBRARY_PATH") != nullptr) {
    // A program reads the library path when it starts.
    Worker without([](const Channel&) {
      unsetenv("LD_LIBRARY_PATH");
      execl("/proc/self/exe",
            "cuda_ipc_test",
            "--gtest_filter=*WithoutADriver*",
            nullptr);
    });
    without.Finish();
    return;
  }
  static char host[64];
  const auto error = ErrorOf([] {
    DeviceHeap().Share(
        SharingStrategy::kFileSystem, {0, host, sizeof(host)}, {}, [] {});
  });
  if (!error) {
    std::printf("  skipped: this machine has a driver\n");
    return;
  }
  EXPECT_EQ(error->kind(), Kind::kUnavailable);
  EXPECT_TRUE(Says(error, "no CUDA or HIP driver"));
  EXPECT_TRUE(Says(error, "libcuda.so.1"));
  const SharedBlock block =
      AllocateFilled(SharingStrategy::kFileSystem, kMiB, 1);
  EXPECT_EQ(Heap().Receive(MessageOf(block)).block.data, block.data);
  EXPECT_TRUE(HasContent(block, 1));
}

TEST_BOTH(CudaIPCTest, AForkedChildCannotUseADeviceAndKeepsNothing) {
  Holder receiver;
  Storage storage = receiver.SendNew(strategy);
  Storage dropped = AllocateFilled(kSize, 1);
  const CudaIPCMessage message = MessageOf(dropped, strategy);
  dropped.reset();
  const uint64_t left = FreeBytes();
  Worker child([&](const Channel& channel) {
    char* address = storage->memory.data;
    EXPECT_FALSE(DeviceHeap().Send(address, nullptr));
    for (const auto& error : {ErrorOf([&] { Share(storage, strategy); }),
                              ErrorOf([&] { StorageOf(message); }),
                              ErrorOf([&] { CudaIPCDriver::Instance(); })}) {
      EXPECT_EQ(KindOf(error), Kind::kUnavailable);
      EXPECT_TRUE(Says(error, "spawn"));
    }
    const CudaIPCStats stats = DeviceHeap().Stats();
    EXPECT_EQ(stats.sent, 0);
    EXPECT_EQ(stats.limbo, 0);
    EXPECT_EQ(stats.received, 0);
    EXPECT_EQ(stats.handles, 0);
    EXPECT_EQ(stats.events, 0);
    EXPECT_TRUE(DeviceHeap().Describe().empty());
    // The child does not own the memory, and must not free it.
    EXPECT_FALSE(DeviceHeap().ReleaseOwned(address, [] { ADD_FAILURE(); }));
    channel.Signal();
    channel.Await();
    EndChild();
  });
  child.channel().Await();
  receiver.Drop();
  storage.reset();
  // The child's attempt has redeemed the ticket.
  EXPECT_TRUE(Eventually(SharesNothing));
  EXPECT_GE(FreeBytes(), left + 2 * kSize);
  storage = AllocateFilled(kSize, 1);
  EXPECT_EQ(StorageOf(MessageOf(storage, strategy)), storage);
  End(&child);
}

// Returns whether a thread of this process is waiting.
bool IsAsleep(pid_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
  std::string text;
  std::getline(file, text);
  const size_t state = text.rfind(") ");
  return state != std::string::npos && text[state + 2] == 'S';
}

ISOLATED_TEST(CudaIPCTest,
              AForkedChildCannotUseADeviceThatOneThreadFailedToUse) {
  NEEDS_STAND_IN;
  const auto use = [] { CudaIPCDriver::Instance(); };
  const int calls = CallsOf("cuInit");
  FailCall("cuInit", 1, kUnknown);
  HoldCalls("cuInit", true);
  std::thread first([&] { EXPECT_EQ(KindOf(use), Kind::kSystem); });
  EXPECT_TRUE(Eventually([&] { return CallsOf("cuInit") != calls; }));
  std::atomic<pid_t> number{0};
  std::thread second([&] {
    number = static_cast<pid_t>(syscall(SYS_gettid));
    EXPECT_FALSE(KindOf(use));
  });
  EXPECT_TRUE(Eventually([&] { return number != 0 && IsAsleep(number); }));
  HoldCalls("cuInit", false);
  first.join();
  second.join();
  Worker child([&](const Channel&) {
    EXPECT_EQ(KindOf(use), Kind::kUnavailable);
    EndChild();
  });
  child.Finish();
}

TEST_BOTH(CudaIPCTest, AForkedChildOfAReceiverKeepsNothing) {
  Peer receiver([](const Channel& channel) {
    Storage storage = StorageOf(channel.Receive<CudaIPCMessage>());
    Worker child([&](const Channel& child_channel) {
      child_channel.Signal();
      child_channel.Await();
      storage.reset();  // nothing happens
      EndChild();
    });
    child.channel().Await();
    storage.reset();
    channel.Signal();
    channel.Await();
    End(&child);
  });
  Storage storage = AllocateFilled(kSize, 1);
  receiver.Send(storage, strategy);
  receiver.channel().Await();
  storage.reset();
  EXPECT_TRUE(SharesNothing());
  receiver.Continue();
}

// Blocks that such a child inherits are kept permanently, but it inherits no
// record.
TEST_BOTH(CudaIPCTest, AForkedChildWithoutDescriptorsKeepsNothing) {
  Storage storage = AllocateFilled(kSize, 1);
  MessageOf(storage, strategy);
  Worker child(
      [](const Channel& channel) {
        channel.Await();
        EndChild();
      },
      true);
  DeviceHeap().Collect(0.0);
  storage.reset();
  EXPECT_TRUE(SharesNothing());
  End(&child);
}

// If one thread releases a tensor while another one forks, the child must not
// keep the tensor.
TEST_BOTH(CudaIPCTest, AForkWhileATensorIsReleasedKeepsNothing) {
  NEEDS_STAND_IN;
  Peer receiver([](const Channel& channel) {
    const Stream stream = MakeStream();
    Storage storage = StorageOf(channel.Receive<CudaIPCMessage>(), stream);
    SetDelay(10 * kSlow);
    Fill(storage->memory, 2, stream);
    const int calls = CallsOf("cuCtxSynchronize");
    std::thread drops([&] { storage.reset(); });
    EXPECT_TRUE(
        Eventually([&] { return CallsOf("cuCtxSynchronize") != calls; }));
    Worker child([&](const Channel& child_channel) {
      child_channel.Await();
      EndChild();
    });
    drops.join();
    channel.Signal();
    channel.Await();
    End(&child);
  });
  Storage storage = AllocateFilled(kSize, 1);
  receiver.Send(storage, strategy);
  receiver.channel().Await();
  storage.reset();
  EXPECT_TRUE(SharesNothing());
  receiver.Continue();
}

TEST_BOTH(CudaIPCTest, ForksAtAnyInstantKeepNothing) {
  constexpr int kTensors = 300;
  Peer receiver([](const Channel& channel) {
    std::atomic<int> received{0};
    std::thread receives([&] {
      for (; received < kTensors; ++received) {
        EXPECT_TRUE(HasContent(
            StorageOf(channel.Receive<CudaIPCMessage>())->memory, 1));
      }
    });
    std::vector<std::unique_ptr<Worker>> children;
    while (received < kTensors) {
      if (children.size() == 40) {
        std::this_thread::yield();
        continue;
      }
      children.push_back(std::make_unique<Worker>(
          [](const Channel& child_channel) { child_channel.Await(); }));
    }
    receives.join();
    EXPECT_TRUE(SharesNothing());
    channel.Signal();
    channel.Await();
    for (const auto& child : children) child->Kill();
  });
  for (int i = 0; i < kTensors; ++i) {
    const Storage storage = AllocateFilled(4096, 1);
    receiver.Send(storage, strategy);
  }
  receiver.channel().Await();
  EXPECT_TRUE(SharesNothing());
  receiver.Continue();
}

ISOLATED_TEST(CudaIPCTest, AForkWhileASenderWaitsForItsWorkDisturbsNobody) {
  NEEDS_STAND_IN;
  setenv("STAND_IN_EVENTS", "0", 1);
  const Storage storage = AllocateFilled(kSize, 1);
  SetDelay(10 * kSlow);
  Fill(storage->memory, 2);
  const int calls = CallsOf("cuCtxSynchronize");
  std::thread sends([&] {
    const auto message = MessageOf(storage, SharingStrategy::kFileSystem);
    EXPECT_EQ(StorageOf(message), storage);
  });
  EXPECT_TRUE(Eventually([&] { return CallsOf("cuCtxSynchronize") != calls; }));
  Worker child([&](const Channel&) {
    EXPECT_EQ(DeviceHeap().Stats().events, 0);
    EXPECT_EQ(DeviceHeap().Collect({}), 0);
    EndChild();
  });
  sends.join();
  child.Finish();
}

TEST_BOTH(CudaIPCTest, ADeviceThatTheReceiverCannotSeeIsNamed) {
  NEEDS_STAND_IN;
  Peer receiver([](const Channel& channel) {
    setenv("CUDA_VISIBLE_DEVICES", "1", 1);
    const auto error = ErrorOfReceiving(channel.Receive<CudaIPCMessage>());
    EXPECT_EQ(KindOf(error), Kind::kUnavailable);
    EXPECT_TRUE(Says(error, "GPU-7374616e-642d-696e-2047-505500000000"));
    EXPECT_TRUE(Says(error, "CUDA_VISIBLE_DEVICES"));
  });
  Storage storage = receiver.SendNew(strategy);
  receiver.AwaitDone();
  storage.reset();
  EXPECT_TRUE(SharesNothing());
}

ISOLATED_TEST(CudaIPCTest, ADeviceWithoutAccessToTheMemoryIsRefused) {
  NEEDS_STAND_IN;
  constexpr int kPeerAccessUnsupported = 217;
  Peer receiver([](const Channel& channel) {
    const auto message = channel.Receive<CudaIPCMessage>();
    FailCall("cuIpcOpenMemHandle", 1, kPeerAccessUnsupported);
    const auto error = ErrorOfReceiving(message);
    EXPECT_EQ(KindOf(error), Kind::kUnavailable);
    EXPECT_TRUE(Says(error, "no access"));
    EXPECT_TRUE(Says(error, "tensor.cpu()"));
  });
  const Storage storage = AllocateFilled(kSize, 1);
  receiver.Send(storage, SharingStrategy::kFileSystem);
  receiver.AwaitDone();
}

TEST_BOTH(CudaIPCTest, AReceiverThatSeesNoDeviceGetsTheReason) {
  Peer receiver([](const Channel& channel) {
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    const auto error = ErrorOfReceiving(channel.Receive<CudaIPCMessage>());
    EXPECT_EQ(KindOf(error), Kind::kUnavailable);
    EXPECT_TRUE(Says(error, "CUDA_VISIBLE_DEVICES"));
  });
  Storage storage = receiver.SendNew(strategy);
  receiver.AwaitDone();
  storage.reset();
  EXPECT_TRUE(SharesNothing());
}

TEST_BOTH(CudaIPCTest, ATensorArrivesOnItsDeviceWhateverItsNumber) {
  NEEDS_STAND_IN;
  Peer receiver([](const Channel& channel) {
    setenv("CUDA_VISIBLE_DEVICES", "1,0", 1);
    for (int device : {1, 0}) {
      const auto message = channel.Receive<CudaIPCMessage>();
      const auto received = DeviceHeap().Receive(message, [&](int asked_for) {
        EXPECT_EQ(asked_for, device);
        return nullptr;
      });
      EXPECT_EQ(received.data->memory.device, device);
      EXPECT_TRUE(HasContent(received.data->memory, device));
      DeviceHeap().Release(received.data);
    }
    EXPECT_TRUE(SharesNothing());
  });
  for (int device : {0, 1}) {
    const Storage storage = Allocate(4096, device);
    Fill(storage->memory, 1 - device);
    receiver.Send(storage, strategy);
  }
  receiver.AwaitDone();
  EXPECT_TRUE(SharesNothing());
}

TEST_BOTH(CudaIPCTest, MemoryThatHasNoHandleGetsNoRecord) {
  NEEDS_STAND_IN;
  setenv("STAND_IN_NOT_EXPORTABLE", "1", 1);
  const Storage storage = Allocate(4096);
  EXPECT_FALSE(Share(storage, strategy));
  EXPECT_FALSE(DeviceHeap().Send(storage->memory.data, nullptr));
  EXPECT_TRUE(SharesNothing());
}

// The receiver stays intact, whichever byte of the record is changed.
TEST_BOTH(CudaIPCTest, AnInvalidRecordIsRefused) {
  NEEDS_STAND_IN;
  Peer receiver([](const Channel& channel) {
    const auto message = channel.Receive<CudaIPCMessage>();
    const SharedBlock block = Heap().Receive(message.record).block;
    uint64_t invalid = 0;
    for (uint64_t i = 0; i < block.capacity; ++i) {
      block.data[i] ^= 0x40;
      const auto kind = KindOf([&] { StorageOf(message); });
      block.data[i] ^= 0x40;
      if (kind == Kind::kInvalid) ++invalid;
      // The first bytes identify a record.
      EXPECT_TRUE(i >= sizeof(uint64_t) || kind == Kind::kInvalid);
      EXPECT_FALSE(DeviceHeap().Stats().received);
      EXPECT_FALSE(DeviceHeap().Stats().handles);
      EXPECT_TRUE(HasContent(StorageOf(message)->memory, 1));
    }
    EXPECT_GT(invalid, 2 * sizeof(uint64_t));
    Heap().Release(block);
    EXPECT_TRUE(SharesNothing());
  });
  const Storage storage = AllocateFilled(4096, 1);
  receiver.Send(storage, strategy);
  receiver.AwaitDone();
}

// One record was overwritten with the other.
TEST_BOTH(CudaIPCTest, ASecondRecordOfTheSameMemoryIsRefused) {
  Peer receiver([](const Channel& channel) {
    const auto first = channel.Receive<CudaIPCMessage>();
    const auto second = channel.Receive<CudaIPCMessage>();
    const SharedBlock record = Heap().Receive(first.record).block;
    const SharedBlock overwritten = Heap().Receive(second.record).block;
    std::memcpy(overwritten.data, record.data, record.capacity);
    Storage storage = StorageOf(first);
    const auto error = ErrorOf([&] { StorageOf(second); });
    EXPECT_EQ(KindOf(error), Kind::kInvalid);
    EXPECT_TRUE(Says(error, "record of another tensor"));
    EXPECT_EQ(DeviceHeap().Stats().received, 1);
    EXPECT_TRUE(HasContent(storage->memory, 1));
    storage.reset();
    Heap().Release(record);
    Heap().Release(overwritten);
    EXPECT_TRUE(SharesNothing());
  });
  const std::array<Storage, 2> storages = {AllocateFilled(kSize, 1),
                                           AllocateFilled(kSize, 2)};
  for (const Storage& storage : storages) receiver.Send(storage, strategy);
  receiver.AwaitDone();
}

TEST_BOTH(CudaIPCTest, HostMemoryIsNotTakenForDeviceMemory) {
  Peer receiver([](const Channel& channel) {
    auto message = channel.Receive<CudaIPCMessage>();
    const auto error = ErrorOfReceiving(message);
    EXPECT_EQ(KindOf(error), Kind::kInvalid);
    EXPECT_TRUE(Says(error, "is not a valid record of such memory"));
  });
  for (uint64_t size : {1, 4096}) {
    const SharedBlock block = AllocateFilled(strategy, size, 1);
    CudaIPCMessage message = {MessageOf(block), {}, 0};
    // This process knows that the block is not a record.
    const auto storage = std::make_shared<int>(0);
    if (size > 1) Heap().Bind(block, storage, [] { return true; });
    const auto error = ErrorOf([&] { StorageOf(message); });
    EXPECT_EQ(KindOf(error), Kind::kInvalid);
    EXPECT_TRUE(Says(error,
                     size > 1 ? "in use by a tensor in host memory"
                              : "is not a valid record of such memory"));
    EXPECT_EQ(storage.use_count(), 1);
    if (size > 1) {
      message.record = MessageOf(block);
      receiver.channel().Send(message);
      receiver.AwaitDone();
    }
    Heap().Release(block);
    EXPECT_TRUE(SharesNothing());
  }
}

TEST_BOTH(CudaIPCTest, AThousandTensorsInLimboCauseOneWarning) {
  const int count = CudaIPCHeap::kCrowded;
  Peer receiver([&](const Channel& channel) {
    std::vector<Storage> storages;
    for (int i = 0; i < count; ++i) {
      storages.push_back(StorageOf(channel.Receive<CudaIPCMessage>()));
    }
    EXPECT_EQ(DeviceHeap().Stats().handles, 1);
    channel.Signal();
    channel.Await();
    storages.clear();
  });
  const CudaIPCMemory all = AllocateMemory((count + 2) * 1024);
  std::vector<std::string> warnings;
  DeviceHeap().SetWarning(
      [&](const std::string& text) { warnings.push_back(text); });
  std::vector<Storage> storages;
  for (int i = 0; i < count + 2; ++i) {
    storages.push_back(StorageIn(PartOf(all, i * 1024, 1024), [] {}));
    const CudaIPCMessage message = MessageOf(storages.back(), strategy);
    if (i < count) receiver.channel().Send(message);
  }
  receiver.channel().Await();
  storages.resize(count - 1);
  EXPECT_TRUE(warnings.empty());
  storages.clear();
  ASSERT_EQ(warnings.size(), 1);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "1000 tensors", warnings[0]);
  EXPECT_PRED_FORMAT2(
      ::testing::IsSubstring, std::to_string(receiver.pid()), warnings[0]);
  EXPECT_PRED_FORMAT2(
      ::testing::IsSubstring, "collect_shared_memory", warnings[0]);
  receiver.Continue();
  DeviceHeap().Collect(0.0);
  EXPECT_TRUE(SharesNothing());
  FreeMemory(all);
  DeviceHeap().SetWarning(nullptr);
}

TEST_BOTH(CudaIPCTest, DescribeListsTheHolders) {
  Holder receiver;
  const Storage storage = AllocateFilled(kSize, 1);
  EXPECT_TRUE(DeviceHeap().Describe().empty());
  receiver.Send(storage, strategy);
  receiver.AwaitReceived();
  const std::string holder = "process " + std::to_string(receiver.pid());
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, holder, DeviceHeap().Describe());
  EXPECT_PRED_FORMAT2(
      ::testing::IsSubstring, "not received: 0", DeviceHeap().Describe());
  MessageOf(storage, strategy);
  EXPECT_PRED_FORMAT2(
      ::testing::IsSubstring, "not received: 1", DeviceHeap().Describe());
  receiver.Drop();
  EXPECT_EQ(DeviceHeap().Describe().find(holder), std::string::npos);
  DeviceHeap().Collect(0.0);
  EXPECT_TRUE(DeviceHeap().Describe().empty());
}

// Destroyed after the driver has shut down.
std::vector<Storage> storages_at_exit;

TEST_BOTH(CudaIPCTest, AnExitingProcessMakesNoMoreDriverCalls) {
  Worker receiver([](const Channel& channel) {
    for (int i = 0; i < 3; ++i) {
      storages_at_exit.push_back(StorageOf(channel.Receive<CudaIPCMessage>()));
    }
    channel.Signal();
    channel.Await();
    storages_at_exit.pop_back();
    channel.Signal();
    channel.Await();
    DeviceHeap().Leave();
    storages_at_exit.pop_back();
  });
  std::vector<std::string> warnings;
  DeviceHeap().SetWarning(
      [&](const std::string& text) { warnings.push_back(text); });
  for (int i = 0; i < 3; ++i) {
    storages_at_exit.push_back(AllocateFilled(kSize, 1));
    receiver.channel().Send(MessageOf(storages_at_exit.back(), strategy));
  }
  receiver.channel().Await();
  storages_at_exit.pop_back();  // other processes still have it
  DeviceHeap().Leave();
  EXPECT_EQ(warnings.size(), 1);
  EXPECT_PRED_FORMAT2(
      ::testing::IsSubstring, std::to_string(receiver.pid()), warnings[0]);
  const int calls = HasStandIn() ? CallsOf("cuCtxPushCurrent") : 0;
  storages_at_exit.pop_back();
  receiver.channel().Signal();
  receiver.channel().Await();
  DeviceHeap().Collect(0.0);
  Heap().Collect(0.0);
  EXPECT_TRUE(!HasStandIn() || CallsOf("cuCtxPushCurrent") == calls);
  DeviceHeap().SetWarning(nullptr);
  End(&receiver);
}

ISOLATED_TEST(CudaIPCTest, AnExitingProcessSendsAndReceivesNothing) {
  const Storage storage = AllocateFilled(kSize, 1);
  const auto message = MessageOf(storage, SharingStrategy::kFileSystem);
  DeviceHeap().Leave();
  for (const auto& error :
       {ErrorOf([&] { MessageOf(storage, SharingStrategy::kFileSystem); }),
        ErrorOf([&] { StorageOf(message); })}) {
    EXPECT_EQ(KindOf(error), Kind::kUnavailable);
  }
}

TEST_BOTH(CudaIPCTest, SendingAndReceivingLeavesNothing) {
  // All in flight at the same time, so that each has an event.
  static constexpr int kMessages = 40;
  Peer receiver([](const Channel& channel) {
    std::optional<Possessions> before;
    for (int round = 0; round < 3; ++round) {
      std::vector<CudaIPCMessage> messages;
      for (int i = 0; i < kMessages; ++i) {
        messages.push_back(channel.Receive<CudaIPCMessage>());
      }
      channel.Await();
      for (int i = 0; i < kMessages; ++i) {
        EXPECT_TRUE(HasContent(StorageOf(messages[i])->memory, i));
      }
      EXPECT_TRUE(SharesNothing());
      EXPECT_EQ(DeviceHeap().Stats().events, kMessages);
      if (before) {
        EXPECT_EQ(Possessions::Now(), *before);
      }
      before = Possessions::Now();
      channel.Signal();
    }
  });
  std::optional<Possessions> before;
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < kMessages; ++i) {
      const Storage storage = AllocateFilled(4096, i);
      receiver.Send(storage, strategy);
    }
    receiver.channel().Signal();
    receiver.channel().Await();
    EXPECT_TRUE(SharesNothing());
    EXPECT_EQ(DeviceHeap().Stats().events, kMessages);
    if (before) {
      EXPECT_EQ(Possessions::Now(), *before);
    }
    before = Possessions::Now();
  }
}

}  // namespace
