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

// The heap of one process: its blocks, their costs, and what can be sent.

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "paddle/phi/core/memory/allocation/shared_memory_limit.h"
#include "processes.h"  // NOLINT(build/include_subdir)

namespace {

using namespace shared_memory_test;  // NOLINT(build/namespaces)
using paddle::memory::allocation::MemoryOfMachineOrContainer;

TEST_BOTH(ABlockHasTheSizeThatWasAskedForOrALittleMore) {
  for (uint64_t size : {0, 1, 63, 64, 65, 4095, 4096, 4097, 1000003}) {
    const SharedBlock block = AllocateFilled(strategy, size, size);
    const uint64_t unit = size < 4096 ? 64 : 4096;
    CHECK(block.capacity >= size);
    CHECK(block.capacity <= size + std::max(size / 4, unit));
    CHECK(reinterpret_cast<uintptr_t>(block.data) % 64 == 0);
    CHECK(HasContent(block, size));
    Heap().Release(block);
  }
}

TEST_BOTH(BlocksDoNotOverlap) {
  std::vector<SharedBlock> blocks;
  for (uint64_t i = 0; i < 600; ++i) {
    blocks.push_back(AllocateFilled(strategy, 1 + i * i * 7 % 20000, i));
  }
  for (uint64_t i = 0; i < blocks.size(); ++i) {
    CHECK(HasContent(blocks[i], i));
  }
}

TEST_BOTH(AReleasedBlockIsUsedAgain) {
  for (uint64_t size : {100, 5000, 3000000}) {
    const SharedBlock first = Heap().Allocate(strategy, size);
    Heap().Release(first);
    const SharedBlock second = Heap().Allocate(strategy, size);
    CHECK(second.data == first.data);
    Heap().Release(second);
  }
}

TEST_BOTH(StrategiesHaveSegmentsOfTheirOwn) {
  const SharedBlock block = Heap().Allocate(strategy, 100);
  const SharedBlock other =
      Heap().Allocate(strategy == SharingStrategy::kFileSystem
                          ? SharingStrategy::kFileDescriptor
                          : SharingStrategy::kFileSystem,
                      100);
  CHECK(block.segment != other.segment);
  CHECK(MessageOf(block).id.strategy == strategy);
  CHECK(MessageOf(other).id.strategy != strategy);
  CHECK(Heap().Stats().segments == 2);
}

TEST_BOTH(TheAddressesOfABlockAreKnownAsLongAsItIsHeld) {
  const SharedBlock block = Heap().Allocate(strategy, 4096);
  CHECK(Heap().Has(block.data) && Heap().Has(block.data + 4095));
  CHECK(!Heap().Has(block.data + block.capacity) && !Heap().Has(&block));
  Heap().Release(block);
  CHECK(!Heap().Has(block.data));
}

TEST_BOTH(AnAddressInABlockIsSentWithItsOffset) {
  const SharedBlock before = Heap().Allocate(strategy, 4096);
  const SharedBlock block = Heap().Allocate(strategy, 4096);
  const auto message = Heap().Send(block.data + 4095);
  REQUIRE(message.has_value());
  CHECK(message->offset == 4095);
  CHECK(message->block == block.index && block.index != before.index);
  CHECK(MessageOf(block).offset == 0);
}

TEST_BOTH(AnAddressInNoHeldBlockIsNotSent) {
  const int here = 0;
  CHECK(!Heap().Send(&here));
  CHECK(!Heap().Send(nullptr));
  const SharedBlock block = Heap().Allocate(strategy, 4096);
  CHECK(!Heap().Send(block.data + block.capacity));
  CHECK(!Heap().Send(block.data - 1));
  CHECK(!Heap().Send(&here));
  Heap().Release(block);
  CHECK(!Heap().Send(block.data));
}

TEST_BOTH(AMessageToOneselfFindsWhatIsBoundToTheBlock) {
  const SharedBlock block = Heap().Allocate(strategy, 100);
  const auto storage = std::make_shared<int>(1);
  CHECK(Heap().Bind(block, storage, [] { return true; }));
  const auto received = Heap().Receive(MessageOf(block));
  CHECK(received.storage == storage);
  CHECK(received.block.data == block.data);
  Heap().Release(block);
  CHECK(Heap().Stats().used == 0);
}

TEST_BOTH(WhatRefusesToBeBoundIsNotFound) {
  const SharedBlock block = Heap().Allocate(strategy, 100);
  const auto storage = std::make_shared<int>(1);
  CHECK(!Heap().Bind(block, storage, [] { return false; }));
  CHECK(Heap().Receive(MessageOf(block)).storage == nullptr);
}

TEST_BOTH(AMessageToOneselfIsAUserMoreOnceNothingIsBound) {
  const SharedBlock block = AllocateFilled(strategy, 100, 1);
  const auto received = Heap().Receive(MessageOf(block));
  CHECK(received.storage == nullptr);
  Heap().Release(block);
  CHECK(Heap().Stats().blocks == 1);
  CHECK(HasContent(received.block, 1));
  Heap().Release(received.block);
  CHECK(Heap().Stats().blocks == 0);
}

TEST_BOTH(TheFiguresTellWhatIsInUseAndWhatIsKept) {
  const SharedBlock large = Heap().Allocate(strategy, kMiB);
  const SharedBlock small = Heap().Allocate(strategy, 64);
  MessageOf(large);
  MessageOf(large);
  SharedHeapStats stats = Heap().Stats();
  CHECK(stats.used == large.capacity + small.capacity);
  CHECK(stats.blocks == 2);
  CHECK(stats.messages == 2);
  CHECK(stats.segments == 1 && stats.attached == 0);
  CHECK(stats.cached == stats.reserved - stats.used);
  Heap().Release(small);
  stats = Heap().Stats();
  CHECK(stats.used == large.capacity && stats.blocks == 1);
  CHECK(stats.reserved > stats.used);
}

TEST_BOTH(CollectingGivesIdleMemoryToTheSystem) {
  const SharedBlock kept = AllocateFilled(strategy, 100, 1);
  const std::string path = PathOf(MessageOf(kept));
  const uint64_t before = BytesOfFile(path);
  const SharedBlock large = AllocateFilled(strategy, 8 * kMiB, 2);
  CHECK(BytesOfFile(path) >= before + 8 * kMiB);
  Heap().Release(large);
  CHECK(Heap().Stats().cached >= 8 * kMiB);
  Heap().Collect({});
  CHECK(BytesOfFile(path) <= before);
  CHECK(Heap().Stats().cached < kMiB);
  CHECK(HasContent(kept, 1));
  const SharedBlock again = AllocateFilled(strategy, 8 * kMiB, 3);
  CHECK(again.data == large.data && HasContent(again, 3));
}

TEST_BOTH(ABlockInFlightIsNotGivenToTheSystem) {
  const SharedBlock block = AllocateFilled(strategy, kMiB, 1);
  const SharedMessage message = MessageOf(block);
  Heap().Release(block);
  Heap().Collect({});
  Heap().Collect(1000.0);
  CHECK(Heap().Stats().used == block.capacity);
  CHECK(HasContent(Heap().Receive(message).block, 1));
}

TEST_BOTH(AMessageThatIsGivenUpIsGone) {
  const SharedBlock block = AllocateFilled(strategy, kMiB, 1);
  const SharedMessage message = MessageOf(block);
  Heap().Release(block);
  Heap().Collect(0.0);
  CHECK(Heap().Stats().used == 0 && Heap().Stats().reserved == 0);
  CHECK(KindOf([&] { Heap().Receive(message); }) == Kind::kGone);
  CHECK(Heap().Stats().used == 0);
}

TEST_BOTH(TheLimitIsKeptAndNamed) {
  Heap().SetLimit(4 * kMiB);
  const SharedBlock block = Heap().Allocate(strategy, 3 * kMiB);
  MessageOf(block);
  const SharedHeapStats before = Heap().Stats();
  const auto error = ErrorOf([&] { Heap().Allocate(strategy, 2 * kMiB); });
  REQUIRE(error.has_value());
  CHECK(error->kind() == Kind::kExhausted);
  const std::string text = error->what();
  CHECK(text.find("the limit is 4.0 MiB") != std::string::npos);
  CHECK(text.find("2.0 MiB") != std::string::npos);
  CHECK(text.find("1 messages") != std::string::npos);
  CHECK(Heap().Stats().reserved == before.reserved);
  CHECK(Heap().Stats().used == before.used);
  Heap().SetLimit(6 * kMiB);
  Heap().Release(Heap().Allocate(strategy, 2 * kMiB));
  CHECK(Heap().Stats().limit == 6 * kMiB);
}

TEST_BOTH(IdleMemoryMakesRoomUnderTheLimit) {
  Heap().SetLimit(4 * kMiB);
  for (uint64_t size : {3 * kMiB, kMiB, 2 * kMiB, 4 * kMiB}) {
    Heap().Release(AllocateFilled(strategy, size, size));
  }
  CHECK(Heap().Stats().reserved <= 4 * kMiB);
}

TEST_BOTH(ASizeThatNoMachineHasIsRefused) {
  for (uint64_t size : {uint64_t{1} << 45, uint64_t{1} << 62, UINT64_MAX}) {
    CHECK(KindOf([&] { Heap().Allocate(strategy, size); }) == Kind::kExhausted);
  }
  Heap().Release(AllocateFilled(strategy, 100, 1));
}

TEST_BOTH(ManySmallBlocksFillMoreThanOneSegment) {
  // More blocks than the largest ledger has entries for.
  constexpr uint64_t kCount = (1 << 18) + 1000;
  std::vector<SharedBlock> blocks;
  blocks.reserve(kCount);
  for (uint64_t i = 0; i < kCount; ++i) {
    blocks.push_back(Heap().Allocate(strategy, 64));
  }
  CHECK(Heap().Stats().segments > 1 && Heap().Stats().segments < 6);
  CHECK(Heap().Stats().blocks == kCount);
  for (const SharedBlock& block : blocks) Heap().Release(block);
  CHECK(Heap().Stats().blocks == 0);
  Heap().Collect({});
  CHECK(Heap().Stats().reserved == 0);
}

// A folder with the files that a process reads about its control groups.
class Root {
 public:
  explicit Root(const std::string& groups) {
    char folder[] = "/tmp/shared_memory_testXXXXXX";
    REQUIRE(mkdtemp(folder) != nullptr);
    path_ = folder;
    Write("/proc/self/cgroup", groups);
  }
  ~Root() { std::filesystem::remove_all(path_); }
  Root(const Root&) = delete;
  Root& operator=(const Root&) = delete;

  void Write(const std::string& name, const std::string& text) const {
    const std::filesystem::path file = path_ + name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  uint64_t Memory() const { return MemoryOfMachineOrContainer(path_); }

 private:
  std::string path_;
};

const uint64_t kMachine =
    static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);

TEST(WithoutControlGroupsTheMachinesMemoryIsTheLimit) {
  CHECK(Root("").Memory() == kMachine);
  CHECK(Root("no line of this kind\n::\n").Memory() == kMachine);
  CHECK(Root("0::/a/b\n4:memory:/a\n").Memory() == kMachine);
}

TEST(TheLeastLimitOfAControlGroupAndThoseAboveItCounts) {
  const Root root("0::/above/own\n");
  root.Write("/sys/fs/cgroup/above/own/memory.max", "max\n");
  CHECK(root.Memory() == kMachine);
  root.Write("/sys/fs/cgroup/above/memory.max", "4194304\n");
  CHECK(root.Memory() == 4 * kMiB);
  root.Write("/sys/fs/cgroup/above/own/memory.max", "8388608\n");
  CHECK(root.Memory() == 4 * kMiB);
  root.Write("/sys/fs/cgroup/memory.max", "1048576\n");
  CHECK(root.Memory() == kMiB);
  root.Write("/sys/fs/cgroup/above/own/other/memory.max", "4096\n");
  CHECK(root.Memory() == kMiB);
}

TEST(ALimitOfTheFirstVersionOfControlGroupsCounts) {
  const Root root("5:cpu,cpuacct:/cpu\n4:hugetlb,memory:/docker/own\n0::/\n");
  const std::string memory = "/sys/fs/cgroup/memory";
  root.Write(memory + "/docker/own/memory.limit_in_bytes",
             "9223372036854771712\n");
  CHECK(root.Memory() == kMachine);
  // Inside a container, the group's folder is where the root's would be.
  root.Write(memory + "/memory.limit_in_bytes", "3145728\n");
  CHECK(root.Memory() == 3 * kMiB);
  root.Write(memory + "/cpu/memory.limit_in_bytes", "4096\n");
  CHECK(root.Memory() == 3 * kMiB);
}

}  // namespace
