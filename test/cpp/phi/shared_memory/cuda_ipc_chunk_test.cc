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

// Memory that is mapped in chunks, as by the virtual-memory allocator, between
// processes. Each test checks one property.

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "paddle/phi/core/memory/allocation/shared_memory/cuda_ipc_chunks.h"
#include "test/cpp/phi/shared_memory/devices.h"
#include "test/cpp/phi/shared_memory/driver_calls.h"

namespace {

using namespace shared_memory_test;  // NOLINT(build/namespaces)
using paddle::memory::allocation::CudaIPCChunkExports;
using paddle::memory::allocation::MapChunks;

class CudaIPCChunkTest : public shared_memory_test::SharedMemoryTestCase {};

constexpr int kSlow = 30000;  // microseconds

// Returns granule `n` of the memory.
CudaIPCMemory GranuleOf(const CudaIPCMemory& memory, int n) {
  return PartOf(memory, n * Granule(), Granule());
}

// Receives a message, checks the content, and holds the tensor until the test
// signals.
void Hold(const Channel& channel) {
  Storage storage = StorageOf(channel.Receive<CudaIPCMessage>());
  channel.Send(HasContent(storage->memory, 1));
  channel.Await();
  EXPECT_TRUE(HasContent(storage->memory, 1));
  storage.reset();
  EXPECT_TRUE(SharesNothing());
  channel.Signal();
  channel.Await();
}

void AwaitHeld(const Worker& holder) {
  EXPECT_TRUE(holder.channel().Receive<bool>());
}

void LetDrop(const Worker& holder) {
  holder.channel().Signal();
  holder.channel().Await();
}

void End(Worker* worker) {
  worker->channel().Signal();
  worker->Finish();
}

Storage AllocateFilledInChunks(const std::vector<int>& granules) {
  const Storage storage = AllocateInChunks(granules);
  Fill(storage->memory, 1);
  return storage;
}

TEST_BOTH(CudaIPCChunkTest, ATensorInSeveralChunksArrivesAndBothSeeWrites) {
  Worker receiver([](const Channel& channel) {
    const Storage storage = StorageOf(channel.Receive<CudaIPCMessage>());
    const CudaIPCMemory& memory = storage->memory;
    EXPECT_EQ(memory.size, 4 * Granule());
    for (int n = 0; n < 4; ++n)
      EXPECT_TRUE(HasContent(GranuleOf(memory, n), n));
    Fill(memory, 7);
    EXPECT_TRUE(HasContent(memory, 7));
    channel.Signal();
    channel.Await();
  });
  const Storage storage = AllocateInChunks({1, 2, 1});
  for (int n = 0; n < 4; ++n) Fill(GranuleOf(storage->memory, n), n);
  receiver.channel().Send(MessageOf(storage, strategy));
  receiver.channel().Await();
  EXPECT_TRUE(HasContent(storage->memory, 7));
  End(&receiver);
}

TEST_BOTH(CudaIPCChunkTest, APartOfTheChunksArrivesAndOnlyItsChunksAreMapped) {
  Worker receiver([](const Channel& channel) {
    const Storage storage = StorageOf(channel.Receive<CudaIPCMessage>());
    EXPECT_EQ(storage->memory.size, 2 * Granule());
    EXPECT_TRUE(HasContent(storage->memory, 1));
    Fill(storage->memory, 2);
    EXPECT_TRUE(HasContent(storage->memory, 2));
    if (HasStandIn()) {
      EXPECT_EQ(CallsOf("cuMemMap"), 2);
    }
    channel.Signal();
    channel.Await();
  });
  const CudaIPCMemory all = AllocateChunks({1, 2, 1, 1});
  Fill(all, 3);
  // From the second granule of the second chunk to the end of the third one.
  const Storage storage =
      StorageIn(PartOf(all, 2 * Granule(), 2 * Granule()), [] {});
  Fill(storage->memory, 1);
  receiver.channel().Send(MessageOf(storage, strategy));
  receiver.channel().Await();
  EXPECT_TRUE(HasContent(PartOf(all, 0, 2 * Granule()), 3));
  EXPECT_TRUE(HasContent(storage->memory, 2));
  EXPECT_TRUE(HasContent(GranuleOf(all, 4), 3));
  End(&receiver);
}

TEST_BOTH(CudaIPCChunkTest, TensorsInOneChunkMapItOnceAndTheLastOneUnmapsIt) {
  Worker receiver([](const Channel& channel) {
    std::array<Storage, 3> storages;
    for (Storage& storage : storages) {
      storage = StorageOf(channel.Receive<CudaIPCMessage>());
      EXPECT_EQ(DeviceHeap().Stats().handles, 1);
    }
    EXPECT_EQ(storages[2]->memory.data - storages[0]->memory.data, 2048);
    storages[0].reset();
    storages[2].reset();
    EXPECT_TRUE(HasContent(storages[1]->memory, 1));
    if (HasStandIn()) {
      EXPECT_EQ(CallsOf("cuMemUnmap"), 0);
    }
    storages[1].reset();
    EXPECT_TRUE(SharesNothing());
    if (HasStandIn()) {
      EXPECT_EQ(CallsOf("cuMemMap"), 1);
      EXPECT_EQ(CallsOf("cuMemUnmap"), 1);
      EXPECT_EQ(CallsOf("cuMemAddressFree"), 1);
    }
    channel.Signal();
    channel.Await();
  });
  const CudaIPCMemory all = AllocateChunks({1});
  Fill(all, 1);
  std::array<Storage, 3> storages;
  for (int i = 0; i < 3; ++i) {
    storages[i] = StorageIn(PartOf(all, i * 1024, 1024), [] {});
    receiver.channel().Send(MessageOf(storages[i], strategy));
  }
  receiver.channel().Await();
  if (HasStandIn()) {
    EXPECT_EQ(CallsOf("cuMemExportToShareableHandle"), 1);
  }
  End(&receiver);
}

TEST_BOTH(CudaIPCChunkTest, MemoryDroppedByItsOwnerLivesAsLongAsAReceiver) {
  Worker receiver(Hold);
  const Storage first = AllocateFilledInChunks({1});
  MessageOf(first, strategy, {});  // makes what all tensors need
  const Possessions before = Possessions::Now();
  Storage storage = AllocateFilledInChunks({1, 2});
  receiver.channel().Send(MessageOf(storage, strategy, {}));
  AwaitHeld(receiver);
  // From here on, the device has the contexts of both processes.
  const uint64_t left = FreeBytes();
  storage.reset();
  EXPECT_EQ(DeviceHeap().Collect(0.0), 0);
  EXPECT_EQ(DeviceHeap().Stats().limbo_bytes, 3 * Granule());
  EXPECT_EQ(FreeBytes(), left);
  LetDrop(receiver);
  EXPECT_EQ(DeviceHeap().Collect({}), 3 * Granule());
  EXPECT_EQ(FreeBytes(), left + 3 * Granule());
  EXPECT_EQ(Possessions::Now().descriptors, before.descriptors);
  End(&receiver);
}

TEST_BOTH(CudaIPCChunkTest, MemoryOfAKilledReceiverIsReclaimed) {
  Worker receiver(Hold);
  Storage storage = AllocateFilledInChunks({1, 1});
  receiver.channel().Send(MessageOf(storage, strategy));
  AwaitHeld(receiver);
  storage.reset();
  receiver.Kill();
  // On a GPU, the context of the process is freed, too, maybe later.
  const uint64_t left = FreeBytes();
  EXPECT_TRUE(Eventually(SharesNothing));
  EXPECT_GE(FreeBytes(), left + 2 * Granule());
  EXPECT_TRUE(!HasStandIn() || FreeBytes() == left + 2 * Granule());
}

// Unlike memory that the driver has a handle for.
TEST_BOTH(CudaIPCChunkTest, AReceiverKeepsTheMemoryOfAKilledOwner) {
  Worker owner([&](const Channel& channel) {
    const Storage storage = AllocateFilledInChunks({1, 1});
    channel.Send(MessageOf(storage, strategy));
    channel.Send(MessageOf(AllocateFilledInChunks({1}), strategy));
    channel.Await();
    channel.Await();
  });
  Storage storage = StorageOf(owner.channel().Receive<CudaIPCMessage>());
  const auto late = owner.channel().Receive<CudaIPCMessage>();
  // The owner's work is done, which would end with it.
  EXPECT_TRUE(HasContent(storage->memory, 1));
  owner.Kill();
  EXPECT_TRUE(HasContent(storage->memory, 1));
  Fill(storage->memory, 2);
  EXPECT_TRUE(HasContent(storage->memory, 2));
  EXPECT_EQ(KindOf([&] { StorageOf(late); }), Kind::kGone);
  storage.reset();
  EXPECT_TRUE(SharesNothing());
}

TEST_BOTH(CudaIPCChunkTest, AReceiverForwardsATensorAndReturnsItToItsOwner) {
  Worker last([](const Channel& channel) {
    Storage storage = StorageOf(channel.Receive<CudaIPCMessage>());
    EXPECT_TRUE(HasContent(storage->memory, 1));
    Fill(storage->memory, 2);
    channel.Send(MessageOf(storage, SharingStrategy::kFileSystem));
    storage.reset();
    EXPECT_TRUE(SharesNothing());
    channel.Await();
  });
  Worker middle([](const Channel& channel) {
    Storage storage = StorageOf(channel.Receive<CudaIPCMessage>());
    channel.Send(MessageOf(storage, SharingStrategy::kFileSystem));
    storage.reset();
    EXPECT_TRUE(SharesNothing());
    channel.Await();
  });
  Storage storage = AllocateFilledInChunks({1, 1});
  const char* data = storage->memory.data;
  middle.channel().Send(MessageOf(storage, strategy));
  storage.reset();
  last.channel().Send(middle.channel().Receive<CudaIPCMessage>());
  storage = StorageOf(last.channel().Receive<CudaIPCMessage>());
  EXPECT_EQ(storage->memory.data, data);
  EXPECT_TRUE(HasContent(storage->memory, 2));
  storage.reset();
  EXPECT_TRUE(Eventually(SharesNothing));
  End(&last);
  End(&middle);
}

TEST_BOTH(CudaIPCChunkTest, AReceiverWaitsForUnfinishedWorkOfTheSender) {
  Worker receiver([](const Channel& channel) {
    const Stream stream = MakeStream();
    const Storage storage =
        StorageOf(channel.Receive<CudaIPCMessage>(), stream);
    channel.Send(HasContent(storage->memory, 5, stream));
    channel.Await();
  });
  const Storage storage = AllocateInChunks({1, 1});
  MessageOf(storage, strategy);  // makes the record
  const Stream stream = MakeStream();
  SetDelay(30000);
  Fill(storage->memory, 5, stream);
  receiver.channel().Send(MessageOf(storage, strategy, stream));
  EXPECT_TRUE(receiver.channel().Receive<bool>());
  End(&receiver);
}

// Returns memory of GPU 0 for use in work on GPU 1.
CudaIPCMemory OnOtherDevice(const CudaIPCMemory& memory) {
  return {1, memory.data, memory.size};
}

TEST_BOTH(CudaIPCChunkTest, AReceiverDropsChunksWhenAllItsDevicesAreDone) {
  NEEDS_STAND_IN;
  Worker receiver([](const Channel& channel) {
    setenv("STAND_IN_PEER_ACCESS", "1", 1);
    std::array<Storage, 2> storages;
    for (Storage& storage : storages) {
      storage = StorageOf(channel.Receive<CudaIPCMessage>());
    }
    const CudaIPCMemory used = OnOtherDevice(storages[0]->memory);
    const CudaIPCMemory unmapped = OnOtherDevice(storages[1]->memory);
    const Stream stream = MakeStream(1);
    SetDelay(kSlow);
    Fill(used, 2, stream);
    // It unmaps nothing, but its owner may use the memory again.
    storages[0].reset();
    channel.Signal();
    channel.Await();
    Fill(unmapped, 3, stream);
    storages[1].reset();
    EXPECT_EQ(CallsOf("cuMemUnmap"), 1);
    channel.Signal();
    channel.Await();
  });
  const CudaIPCMemory all = AllocateChunks({1});
  Fill(all, 1);
  std::array<Storage, 2> storages;
  for (int i = 0; i < 2; ++i) {
    storages[i] = StorageIn(PartOf(all, i * 1024, 1024), [] {});
    receiver.channel().Send(MessageOf(storages[i], strategy));
  }
  for (int i = 0; i < 2; ++i) {
    receiver.channel().Await();
    EXPECT_TRUE(HasContent(storages[i]->memory, i + 2));
    receiver.channel().Signal();
  }
  receiver.Finish();
}

TEST_BOTH(CudaIPCChunkTest, ReturnedChunksAreFreedWhenAllDevicesAreDone) {
  NEEDS_STAND_IN;
  setenv("STAND_IN_PEER_ACCESS", "1", 1);
  Storage storage = AllocateFilledInChunks({1});
  const CudaIPCMemory used = OnOtherDevice(storage->memory);
  driver_calls::MakeAccessible(used.data, used.size, used.device);
  const CudaIPCMessage message = MessageOf(storage, strategy);
  storage.reset();
  storage = StorageOf(message);
  const Stream stream = MakeStream(1);
  SetDelay(kSlow);
  Fill(used, 2, stream);
  storage.reset();
  EXPECT_TRUE(SharesNothing());
  // Unfinished work would end this process: the stand-in unmaps without
  // waiting.
  CudaIPCDriver::Instance().Synchronize(1);
}

TEST_BOTH(CudaIPCChunkTest, DroppingChunksDoesNotUseUnusedDevices) {
  NEEDS_STAND_IN;
  Worker receiver([](const Channel& channel) {
    Storage storage = StorageOf(channel.Receive<CudaIPCMessage>());
    const int contexts = CallsOf("cuDevicePrimaryCtxRetain");
    storage.reset();
    EXPECT_EQ(CallsOf("cuMemUnmap"), 1);
    EXPECT_EQ(CallsOf("cuCtxSynchronize"), 1);
    EXPECT_EQ(CallsOf("cuDevicePrimaryCtxRetain"), contexts);
    channel.Signal();
    channel.Await();
  });
  const Storage storage = AllocateFilledInChunks({1});
  receiver.channel().Send(MessageOf(storage, strategy));
  receiver.channel().Await();
  End(&receiver);
}

TEST_BOTH(CudaIPCChunkTest, NonExportableChunksGetNoRecord) {
  const CudaIPCMemory memory = AllocateChunks({1, 1}, false);
  const Storage storage = StorageIn(memory, [] {});
  const Possessions before = Possessions::Now();
  EXPECT_FALSE(Share(storage, strategy));
  EXPECT_EQ(DeviceHeap().Stats().sent, 0);
  EXPECT_EQ(Possessions::Now().descriptors, before.descriptors);
  FreeChunks(memory);
}

TEST_BOTH(CudaIPCChunkTest, MemoryBeyondTheChunksGetsNoRecord) {
  const CudaIPCMemory chunks = AllocateChunks({1});
  const Storage storage = StorageIn({0, chunks.data, chunks.size + 1}, [] {});
  EXPECT_FALSE(Share(storage, strategy));
  EXPECT_EQ(DeviceHeap().Stats().sent, 0);
  FreeChunks(chunks);
}

TEST_BOTH(CudaIPCChunkTest, AForkedChildKeepsNoDescriptorOfAChunk) {
  const Storage first = AllocateFilledInChunks({1});
  const Storage storage = AllocateFilledInChunks({1, 1, 1});
  MessageOf(first, strategy, {});  // makes what all tensors need
  const int before = Possessions::Now().descriptors;
  MessageOf(storage, strategy, {});
  EXPECT_EQ(Possessions::Now().descriptors, before + 3);
  const pid_t child = fork();
  if (child == 0) {
    // It has none of the first tensor either, nor the file with its identity.
    _exit(Possessions::Now().descriptors == before - 2 ? 0 : 1);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// The tensor has no record any more through which the child could find its
// descriptors.
TEST_BOTH(CudaIPCChunkTest, AForkedChildKeepsNoDescriptorOfAReturnedTensor) {
  const Storage first = AllocateFilledInChunks({1});
  Storage storage = AllocateFilledInChunks({1, 1, 1});
  MessageOf(first, strategy, {});  // makes what all tensors need
  const int before = Possessions::Now().descriptors;
  const CudaIPCMessage message = MessageOf(storage, strategy, {});
  storage.reset();
  const Storage home = StorageOf(message);
  EXPECT_EQ(Possessions::Now().descriptors, before + 3);
  const pid_t child = fork();
  if (child == 0) {
    // It has none of the first tensor either, nor the file with its identity.
    _exit(Possessions::Now().descriptors == before - 2 ? 0 : 1);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(Possessions::Now().descriptors, before + 3);
  EXPECT_TRUE(HasContent(home->memory, 1));
}

TEST_BOTH(CudaIPCChunkTest, AStartedProgramInheritsNoDescriptor) {
  const Storage storage = AllocateFilledInChunks({1});
  const auto inherited = [] {
    std::vector<int> found;
    for (int fd = 0; fd < kLastDescriptor; ++fd) {
      if (fcntl(fd, F_GETFD) == 0) found.push_back(fd);
    }
    return found;
  };
  const std::vector<int> before = inherited();
  const CudaIPCMessage message = MessageOf(storage, strategy);
  EXPECT_TRUE(inherited() == before);
  EXPECT_EQ(StorageOf(message), storage);
}

ISOLATED_TEST(CudaIPCChunkTest, AnotherProcessWithTheOwnersNumberIsRefused) {
  Worker receiver([](const Channel& channel) {
    DeviceHeap();
    auto handle = channel.Receive<paddle::memory::allocation::CudaIPCHandle>();
    auto chunk = channel.Receive<CudaIPCDriver::Chunk>();
    handle[8] ^= 1;  // the random bits of the owner
    const auto error = ErrorOf([&] { MapChunks(0, handle, {chunk}); });
    EXPECT_EQ(KindOf(error), Kind::kGone);
    EXPECT_PRED_FORMAT2(::testing::IsSubstring,
                        "does not own it. Its owner has ended",
                        std::string(error ? error->what() : ""));
    handle[8] ^= 1;
    char* base = MapChunks(0, handle, {chunk});
    EXPECT_TRUE(HasContent({0, base, chunk.size}, 1));
    CudaIPCDriver::Instance().UnmapChunks(0, base, chunk.size);
    channel.Signal();
    channel.Await();
  });
  const CudaIPCMemory memory = AllocateChunks({1});
  Fill(memory, 1);
  EXPECT_TRUE(HasContent(memory, 1));
  CudaIPCChunkExports exports;
  const auto exported = exports.Export(0, memory.data, memory.size);
  REQUIRE_TRUE(exported.has_value());
  receiver.channel().Send(exported->range.handle);
  receiver.channel().Send(exported->chunks[0]);
  receiver.channel().Await();
  End(&receiver);
}

ISOLATED_TEST(CudaIPCChunkTest, AClosedDescriptorOfTheOwnerIsGone) {
  Worker receiver([](const Channel& channel) {
    DeviceHeap();
    auto handle = channel.Receive<paddle::memory::allocation::CudaIPCHandle>();
    auto chunk = channel.Receive<CudaIPCDriver::Chunk>();
    MakeStream();  // creates the context, which has descriptors
    const Possessions before = Possessions::Now();
    EXPECT_EQ(KindOf([&] { MapChunks(0, handle, {chunk}); }), Kind::kGone);
    EXPECT_EQ(Possessions::Now(), before);
    channel.Signal();
    channel.Await();
  });
  const CudaIPCMemory memory = AllocateChunks({1});
  CudaIPCChunkExports exports;
  auto exported = exports.Export(0, memory.data, memory.size);
  REQUIRE_TRUE(exported.has_value());
  exported->descriptors.clear();
  receiver.channel().Send(exported->range.handle);
  receiver.channel().Send(exported->chunks[0]);
  receiver.channel().Await();
  End(&receiver);
}

// This happens if code closes all descriptors of its process.
ISOLATED_TEST(CudaIPCChunkTest, ADescriptorClosedByOtherCodeIsCreatedAgain) {
  DeviceHeap();
  const CudaIPCMemory memory = AllocateChunks({1});
  CudaIPCChunkExports exports;
  const auto before = exports.Export(0, memory.data, memory.size);
  REQUIRE_TRUE(before.has_value());
  const int fd = static_cast<int>(before->chunks[0].fd);
  const int other = open("/dev/null", O_RDONLY | O_CLOEXEC);
  EXPECT_EQ(dup3(other, fd, O_CLOEXEC), fd);
  const auto after = exports.Export(0, memory.data, memory.size);
  REQUIRE_TRUE(after.has_value());
  EXPECT_NE(after->chunks[0].fd, fd);
  EXPECT_TRUE(after->descriptors[0]->IsIntact());
  close(fd);
  close(other);
  FreeChunks(memory);
}

// A range is mapped once, with the size in the first record.
TEST_BOTH(CudaIPCChunkTest, ARecordWithAnotherSizeThanTheMappingIsRefused) {
  // The offsets, in a record, of the size of the range and of its first chunk.
  constexpr std::array<uint64_t, 2> kSizes = {96, 120};
  Worker receiver([&](const Channel& channel) {
    const Storage first = StorageOf(channel.Receive<CudaIPCMessage>());
    const auto message = channel.Receive<CudaIPCMessage>();
    const SharedBlock block = Heap().Receive(message.record).block;
    const auto grow = [&](uint64_t bytes) {
      for (const uint64_t start : kSizes) {
        uint64_t size = 0;
        std::memcpy(&size, block.data + start, sizeof(size));
        size += bytes;
        std::memcpy(block.data + start, &size, sizeof(size));
      }
    };
    grow(Granule());
    EXPECT_EQ(KindOf([&] { StorageOf(message); }), Kind::kInvalid);
    grow(-Granule());
    EXPECT_EQ(DeviceHeap().Stats().handles, 1);
    EXPECT_TRUE(HasContent(StorageOf(message)->memory, 1));
    Heap().Release(block);
    channel.Signal();
    channel.Await();
  });
  const CudaIPCMemory all = AllocateChunks({1});
  Fill(all, 1);
  std::array<Storage, 2> storages;
  for (int i = 0; i < 2; ++i) {
    storages[i] = StorageIn(PartOf(all, i * 1024, 1024), [] {});
    receiver.channel().Send(MessageOf(storages[i], strategy));
  }
  receiver.channel().Await();
  End(&receiver);
}

// The receiver stays intact, whichever byte of the record is changed.
TEST_BOTH(CudaIPCChunkTest, AnInvalidRecordIsRefused) {
  NEEDS_STAND_IN;
  // The offsets, in a record, of the number of chunks, the size of the first
  // one, and the size of the second one.
  constexpr std::array<uint64_t, 3> kChecked = {112, 120, 136};
  constexpr uint64_t kRecord = 152;
  Worker receiver([&](const Channel& channel) {
    const auto message = channel.Receive<CudaIPCMessage>();
    const SharedBlock block = Heap().Receive(message.record).block;
    REQUIRE_TRUE(kRecord <= block.capacity);
    for (uint64_t i = 0; i < kRecord; ++i) {
      block.data[i] ^= 0x40;
      const auto kind = KindOf([&] { StorageOf(message); });
      block.data[i] ^= 0x40;
      for (const uint64_t start : kChecked) {
        if (start <= i && i < start + sizeof(uint64_t)) {
          EXPECT_EQ(kind, Kind::kInvalid);
        }
      }
      EXPECT_FALSE(DeviceHeap().Stats().received);
      EXPECT_FALSE(DeviceHeap().Stats().handles);
      EXPECT_TRUE(HasContent(StorageOf(message)->memory, 1));
    }
    Heap().Release(block);
    EXPECT_TRUE(SharesNothing());
    channel.Signal();
    channel.Await();
  });
  const Storage storage = AllocateFilledInChunks({1, 1});
  receiver.channel().Send(MessageOf(storage, strategy));
  receiver.channel().Await();
  End(&receiver);
}

}  // namespace
