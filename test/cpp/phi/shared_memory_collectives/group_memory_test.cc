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

// How groups are created and joined, and which resources they release.

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "test/cpp/phi/shared_memory_collectives/ranks.h"

namespace {

using namespace shared_memory_test;  // NOLINT(build/namespaces)
using CollectiveKind = CollectiveError::Kind;

class GroupMemoryTest : public shared_memory_test::SharedMemoryTestCase {};

ISOLATED_TEST(GroupMemoryTest, AGroupOfOneRankNeedsNoOther) {
  const auto group = GroupMemory::Create(1);
  EXPECT_EQ(group->rank(), 0);
  EXPECT_EQ(group->size(), 1);
  for (uint64_t i = 0; i < 100; ++i) EXPECT_EQ(Sum(group.get(), i), i);
}

ISOLATED_TEST(GroupMemoryTest, AllRanksHaveTheSameIdAndRandomNumber) {
  const auto group = GroupInOneProcess(3);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(group[rank]->rank(), rank);
    EXPECT_EQ(group[rank]->size(), 3);
    EXPECT_EQ(group[rank]->id(), group[0]->id());
    EXPECT_EQ(group[rank]->random_number(), group[0]->random_number());
    EXPECT_EQ(group[0]->process_of(rank), static_cast<uint32_t>(getpid()));
  }
  const auto other = GroupMemory::Create(2);
  EXPECT_NE(group[0]->random_number(), other->random_number());
  EXPECT_EQ(other->process_of(1), 0);
  EXPECT_EQ(other->base_of(1), 0);
}

ISOLATED_TEST(GroupMemoryTest, TheRandomNumberIsInTheMemoryOfEveryRank) {
  Ranks ranks(2, [](GroupMemory* group, const Channel&) {
    Meet(group);
    for (int rank = 0; rank < 2; ++rank) {
      uint64_t number = 0;
      const iovec to = {&number, sizeof(number)};
      const iovec from = {
          reinterpret_cast<void*>(  // NOLINT
              group->base_of(rank) + GroupMemory::random_number_offset()),
          sizeof(number)};
      const auto got =
          process_vm_readv(group->process_of(rank), &to, 1, &from, 1, 0);
      // Some containers forbid process_vm_readv.
      if (got != -1) {
        EXPECT_EQ(number, group->random_number());
      }
    }
    Meet(group);
  });
  ranks.Finish();
}

ISOLATED_TEST(GroupMemoryTest, AnUnsupportedGroupSizeIsAnError) {
  const int most = phi::distributed::GroupLayout::kMaxRanks;
  for (int size : {-1, 0, most + 1}) {
    const Outcome outcome = OutcomeOf([&] { GroupMemory::Create(size); });
    EXPECT_TRUE(outcome.Is(CollectiveKind::kInvalid, -1)) << outcome;
    EXPECT_TRUE(outcome.Says(" " + std::to_string(size) + " ranks"));
  }
}

ISOLATED_TEST(GroupMemoryTest, ALargeGroupMeets) {
  const auto group = GroupInOneProcess(64);
  std::vector<std::thread> threads;
  for (const auto& rank : group) {
    threads.emplace_back([&] { EXPECT_EQ(Sum(rank.get(), 1), 64); });
  }
  for (std::thread& thread : threads) thread.join();
}

// Limits the size of the files of this process.
class FilesUpTo {
 public:
  explicit FilesUpTo(uint64_t bytes) : limited_(RLIMIT_FSIZE, bytes) {
    signal(SIGXFSZ, SIG_IGN);
  }

 private:
  Limited limited_;
};

ISOLATED_TEST(GroupMemoryTest, MemoryThatTheMachineDoesNotHaveIsNotReserved) {
  const FilesUpTo limited(kMiB);
  const Possessions before = Possessions::Now();
  for (uint64_t bytes : {uint64_t{1} << 50, ~uint64_t{0}}) {
    GroupOptions options;
    options.staging_bytes = bytes;
    const Outcome outcome = OutcomeOf([&] { GroupMemory::Create(2, options); });
    EXPECT_TRUE(outcome.Is(CollectiveKind::kUnavailable, -1)) << outcome;
    EXPECT_TRUE(outcome.Says("more than half of the memory")) << outcome;
  }
  EXPECT_EQ(Possessions::Now(), before);
}

ISOLATED_TEST(GroupMemoryTest, MemoryThatTheSystemRefusesIsAnError) {
  const FilesUpTo limited(kMiB);
  const Possessions before = Possessions::Now();
  const Outcome outcome = OutcomeOf([] { GroupMemory::Create(2); });
  EXPECT_TRUE(outcome.Is(CollectiveKind::kUnavailable, -1)) << outcome;
  EXPECT_TRUE(outcome.Says("Cannot reserve ")) << outcome;
  EXPECT_EQ(Possessions::Now(), before);
}

ISOLATED_TEST(GroupMemoryTest, WithoutDescriptorsThereIsAnError) {
  const auto group = GroupMemory::Create(2);
  const FewDescriptors none(0);
  const Outcome create = OutcomeOf([&] { GroupMemory::Create(2); });
  EXPECT_TRUE(create.Is(CollectiveKind::kUnavailable, -1)) << create;
  const Outcome attach =
      OutcomeOf([&] { GroupMemory::Attach(group->id(), 1); });
  EXPECT_TRUE(attach.Is(CollectiveKind::kUnavailable, -1)) << attach;
}

ISOLATED_TEST(GroupMemoryTest, AnInvalidIdIsNamed) {
  const auto group = GroupMemory::Create(2);
  for (const std::string& id : {std::string(),
                                std::string("12"),
                                std::string("1-2-0"),
                                group->id() + " ",
                                "x" + group->id()}) {
    const Outcome outcome = OutcomeOf([&] { GroupMemory::Attach(id, 1); });
    EXPECT_TRUE(outcome.Is(CollectiveKind::kInvalid, -1)) << outcome;
    EXPECT_TRUE(outcome.Says("\"" + id + "\" is not the id"));
  }
}

ISOLATED_TEST(GroupMemoryTest, ARankOutsideTheGroupCannotAttach) {
  const auto group = GroupMemory::Create(2);
  const Possessions before = Possessions::Now();
  for (int rank : {-1, 0, 2}) {
    const Outcome outcome =
        OutcomeOf([&] { GroupMemory::Attach(group->id(), rank); });
    EXPECT_TRUE(outcome.Is(CollectiveKind::kInvalid, rank)) << outcome;
  }
  EXPECT_EQ(Possessions::Now(), before);
}

ISOLATED_TEST(GroupMemoryTest, ARankIsTakenOnlyOnce) {
  const auto group = GroupMemory::Create(3);
  auto attach_again = [&] {
    const Outcome outcome =
        OutcomeOf([&] { GroupMemory::Attach(group->id(), 1); });
    EXPECT_TRUE(outcome.Is(CollectiveKind::kInvalid, 1)) << outcome;
  };
  {
    const auto first = GroupMemory::Attach(group->id(), 1);
    attach_again();
  }
  attach_again();
  GroupMemory::Attach(group->id(), 2);
}

// Returns the outcome of attaching with this id.
Outcome Attempt(const std::string& id) {
  return OutcomeOf([&] { GroupMemory::Attach(id, 1); });
}

ISOLATED_TEST(GroupMemoryTest, AGroupWhoseFirstRankIsGoneCannotBeJoined) {
  Ranks ranks(1, [](GroupMemory* group, const Channel& channel) {
    channel.Send(OutcomeOf([&] {
      group->Abort(0, group->id());
      group->ThrowIfUnusable();
    }));
    channel.Await();
  });
  const std::string id = ranks.ReceiveOutcome(0).text;
  ranks[0].Kill();
  const Outcome outcome = Attempt(id);
  EXPECT_TRUE(outcome.Is(CollectiveKind::kUnavailable, -1)) << outcome;
  EXPECT_TRUE(outcome.Says("of rank 0 (process "));
  EXPECT_TRUE(outcome.Says("one PID namespace"));
}

std::string IdWith(int fd, uint64_t number) {
  char id[64];
  std::snprintf(id,
                sizeof(id),
                "%d-%d-%llx",
                getpid(),
                fd,
                static_cast<unsigned long long>(number));  // NOLINT
  return id;
}

ISOLATED_TEST(GroupMemoryTest, AnotherFileIsNotTakenForAGroup) {
  const auto group = GroupMemory::Create(2);
  const uint64_t number = group->random_number();
  const Possessions before = Possessions::Now();
  FILE* const file = std::tmpfile();
  const int other = fileno(file);
  // No file, a device, a file that is too short, a file that is not sealed, and
  // a group with another number.
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int fd : {1000, null, other}) {
    const Outcome outcome = Attempt(IdWith(fd, number));
    EXPECT_TRUE(outcome.Is(CollectiveKind::kUnavailable, -1)) << outcome;
  }
  std::string content(reinterpret_cast<const char*>(group->base_of(0)),
                      1 << 20);
  ASSERT_EQ(write(other, content.data(), content.size()),
            static_cast<ssize_t>(content.size()));
  const Outcome damaged = Attempt(IdWith(other, number));
  EXPECT_TRUE(damaged.Is(CollectiveKind::kUnavailable, -1)) << damaged;
  EXPECT_TRUE(damaged.Says("damaged")) << damaged;
  std::string id = group->id();
  id.back() = id.back() == '1' ? '2' : '1';
  const Outcome of_another = Attempt(id);
  EXPECT_TRUE(of_another.Is(CollectiveKind::kUnavailable, -1)) << of_another;
  EXPECT_TRUE(of_another.Says("not this group's")) << of_another;
  std::fclose(file);
  close(null);
  EXPECT_EQ(Possessions::Now(), before);
}

// Returns the outcome of joining a copy of a group's memory.
Outcome AttemptWithCopy(uint64_t more_bytes, bool sealed) {
  const auto group = GroupMemory::Create(2);
  uint32_t process = 0;
  int fd = -1;
  REQUIRE_EQ(std::sscanf(group->id().c_str(), "%" SCNu32 "-%d", &process, &fd),
             2);
  struct stat file = {};
  REQUIRE_EQ(fstat(fd, &file), 0);
  const int copy = memfd_create("copy", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  const auto bytes = static_cast<size_t>(file.st_size);
  const void* const base = reinterpret_cast<const void*>(group->base_of(0));
  REQUIRE_EQ(write(copy, base, bytes), file.st_size);
  REQUIRE_EQ(ftruncate(copy, file.st_size + more_bytes), 0);
  if (sealed) {
    const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    REQUIRE_EQ(fcntl(copy, F_ADD_SEALS, seals), 0);
  }
  return Attempt(IdWith(copy, group->random_number()));
}

ISOLATED_TEST(GroupMemoryTest, MemoryOfAnotherLengthOrNotSealedIsDamaged) {
  EXPECT_FALSE(AttemptWithCopy(0, true).failed);
  EXPECT_TRUE(AttemptWithCopy(0, false).Says("damaged"));
  EXPECT_TRUE(AttemptWithCopy(4096, true).Says("damaged"));
}

ISOLATED_TEST(GroupMemoryTest, AGroupLeavesNeitherDescriptorsNorMappings) {
  const Possessions before = Possessions::Now();
  for (int i = 0; i < 3; ++i) {
    const auto group = GroupInOneProcess(3);
    EXPECT_NE(Possessions::Now(), before);
    group[0]->Abort(0, "a reason");
  }
  EXPECT_EQ(Possessions::Now(), before);
}

ISOLATED_TEST(GroupMemoryTest, AnInvalidPairOfRanksIsAnError) {
  const auto group = GroupInOneProcess(3);
  for (const auto& pair : {std::make_pair(0, 0),
                           std::make_pair(1, 2),
                           std::make_pair(0, 3),
                           std::make_pair(-1, 0)}) {
    const Outcome outcome = OutcomeOf([&] {
      Operation(
          group[0].get(), SomeOperation(), pair.first, pair.second, kSoon);
    });
    EXPECT_TRUE(outcome.Is(CollectiveKind::kInvalid, 0)) << outcome;
  }
  SendNumber(group[0].get(), 1, 2);
  EXPECT_EQ(ReceiveNumber(group[2].get(), 0), 1);
}

}  // namespace
