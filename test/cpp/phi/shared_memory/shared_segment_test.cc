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

// Segments: attaching to them, and their lifetime.

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "paddle/phi/core/memory/allocation/shared_memory/shared_segment.h"
#include "test/cpp/phi/shared_memory/workers.h"

namespace {

using namespace shared_memory_test;  // NOLINT(build/namespaces)
using paddle::memory::allocation::kSharedPage;
using paddle::memory::allocation::SegmentId;
using paddle::memory::allocation::SegmentPath;
using paddle::memory::allocation::SharedLedger;
using paddle::memory::allocation::SharedSegment;
using paddle::memory::allocation::SharingStrategy;

class SharedSegmentTest : public SharedMemoryTestCase {};

constexpr SharingStrategy kFile = SharingStrategy::kFileSystem;
constexpr SharingStrategy kMemfd = SharingStrategy::kFileDescriptor;
constexpr uint64_t kReserve = SharedLedger::kMinReserve;
// A page for values, after the ledger.
const uint64_t kPage = SharedLedger::LedgerBytes(kReserve);

// Creates a segment with one block, the page for values, which this process
// holds.
std::unique_ptr<SharedSegment> NewSegment(SharingStrategy strategy) {
  auto segment = SharedSegment::Create(strategy, TreeId(), kReserve);
  const uint64_t header = SharedLedger::HeaderBytes(kReserve);
  segment->Reserve(segment->fd(), header, kPage + kSharedPage - header);
  segment->ledger().AppendBlock(kPage, kSharedPage);
  segment->AddHolder(0);
  return segment;
}

int& ValueIn(const SharedSegment& segment) {
  return *reinterpret_cast<int*>(segment.base() + kPage);
}

// Returns a worker body: it attaches to a segment, holds its block and waits.
auto Attaching(const SharedSegment& segment) {
  return [id = segment.id()](const Channel& channel) {
    auto attached = SharedSegment::Open(id);
    attached->AddHolder(0);
    channel.Signal();
    channel.Await();
  };
}

ISOLATED_TEST(SharedSegmentTest, AnotherProcessAttachesByTheIdentity) {
  for (SharingStrategy strategy : {kFile, kMemfd}) {
    auto segment = NewSegment(strategy);
    ValueIn(*segment) = 5;
    Worker worker([id = segment->id()](const Channel&) {
      auto attached = SharedSegment::Open(id);
      EXPECT_EQ(ValueIn(*attached), 5);
      EXPECT_TRUE(attached->OwnerIsAlive());
      ValueIn(*attached) = 6;
    });
    worker.Finish();
    EXPECT_EQ(ValueIn(*segment), 6);
    EXPECT_TRUE(segment->RemoveIfAlone());
  }
}

ISOLATED_TEST(SharedSegmentTest, OnlyAFileHasAName) {
  auto memfd = NewSegment(kMemfd);
  EXPECT_TRUE(Files().empty());
  auto file = NewSegment(kFile);
  EXPECT_EQ(Files(), std::vector<std::string>{file->name()});
  EXPECT_TRUE(file->RemoveIfAlone());
  EXPECT_TRUE(Files().empty());
}

ISOLATED_TEST(SharedSegmentTest, ASegmentThatOthersNeedIsNotRemoved) {
  auto segment = NewSegment(kFile);
  Worker worker(Attaching(*segment));
  worker.channel().Await();
  EXPECT_FALSE(segment->RemoveIfAlone());
  worker.Kill();
  const auto ticket = segment->ledger().IssueTicket(0, 5, 100);
  EXPECT_FALSE(segment->RemoveIfAlone()) << "a message carries the block";
  EXPECT_TRUE(segment->ledger().RedeemTicket(0, ticket));
  EXPECT_TRUE(segment->RemoveIfAlone());
}

ISOLATED_TEST(SharedSegmentTest, ASegmentThatIsGoneCannotBeOpened) {
  for (SharingStrategy strategy : {kFile, kMemfd}) {
    auto segment = NewSegment(strategy);
    SegmentId id = segment->id();
    ++id.tree;
    EXPECT_EQ(KindOf([&] { SharedSegment::Open(id); }), Kind::kGone);
    segment->RemoveIfAlone();
    id = segment->id();
    segment.reset();
    EXPECT_EQ(KindOf([&] { SharedSegment::Open(id); }), Kind::kGone);
  }
}

ISOLATED_TEST(SharedSegmentTest, AFileThatWasChangedIsRefusedAndNamed) {
  auto segment = NewSegment(kFile);
  const SegmentId id = segment->id();
  const std::string path = SegmentPath(segment->name());
  auto refused = [&](const std::string& reason) {
    const auto error = ErrorOf([&] { SharedSegment::Open(id); });
    REQUIRE_EQ(KindOf(error), Kind::kInvalid);
    const std::string text = error->what();
    EXPECT_NE(text.find(segment->name()), std::string::npos);
    EXPECT_NE(text.find(reason), std::string::npos) << text;
  };
  chmod(path.c_str(), 0644);
  refused("other users have access");
  chmod(path.c_str(), 0600);
  EXPECT_NO_THROW(SharedSegment::Open(id));
  ASSERT_EQ(truncate(path.c_str(), SharedLedger::HeaderBytes(kReserve)), 0);
  refused("smaller than its ledger");
  unlink(path.c_str());
}

ISOLATED_TEST(SharedSegmentTest, AttachedProcessesSeeTheDeathOfTheOwner) {
  Worker owner([](const Channel& channel) {
    auto segment = NewSegment(kFile);
    channel.Send(segment->id());
    channel.Await();
  });
  auto attached = SharedSegment::Open(owner.channel().Receive<SegmentId>());
  EXPECT_TRUE(attached->OwnerIsAlive());
  EXPECT_FALSE(attached->ReapOwnerIfDead());
  owner.Kill();
  EXPECT_FALSE(attached->OwnerIsAlive());
  EXPECT_TRUE(attached->ReapOwnerIfDead());
  EXPECT_TRUE(attached->OwnerIsLeaving());
  EXPECT_FALSE(attached->ledger().Referenced(0));
  EXPECT_TRUE(attached->RemoveIfAlone());
}

ISOLATED_TEST(SharedSegmentTest, TheHoldersOfABlockAreKnownUntilTheyAreReaped) {
  auto segment = NewSegment(kMemfd);
  Worker worker(Attaching(*segment));
  worker.channel().Await();
  const uint32_t process = worker.pid();
  EXPECT_EQ(segment->OtherHolders(0), std::vector<uint32_t>{process});
  segment->ReapDead();
  EXPECT_EQ(segment->OtherHolders(0), std::vector<uint32_t>{process});
  worker.Kill();
  segment->ReapDead();
  EXPECT_TRUE(segment->OtherHolders(0).empty());
}

ISOLATED_TEST(SharedSegmentTest, ASegmentEndsWithItsFileOrItsAddresses) {
  auto segment = NewSegment(kMemfd);
  EXPECT_TRUE(segment->Contains(kPage, kSharedPage));
  EXPECT_FALSE(segment->Contains(kPage, kSharedPage + 1));
  EXPECT_FALSE(segment->Contains(kReserve, 1));
  EXPECT_FALSE(segment->Contains(1, UINT64_MAX));
}

ISOLATED_TEST(SharedSegmentTest, MemoryThatCannotBeReservedIsAnError) {
  auto segment = NewSegment(kMemfd);
  signal(SIGXFSZ, SIG_IGN);
  const rlimit most = {kReserve, kReserve};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &most), 0);
  const auto error =
      ErrorOf([&] { segment->Reserve(segment->fd(), kReserve, kSharedPage); });
  ASSERT_EQ(KindOf(error), Kind::kExhausted);
  EXPECT_NE(std::strstr(error->what(), "4.0 KiB"), nullptr);
  EXPECT_NE(std::strstr(error->what(), "ulimit -f"), nullptr);
}

ISOLATED_TEST(SharedSegmentTest, AClosedDescriptorIsOpenedAgainByTheName) {
  auto file = NewSegment(kFile);
  close(file->fd());
  EXPECT_THROW(file->fd(), SharedMemoryError);
  EXPECT_TRUE(file->Usable());
  EXPECT_TRUE(file->RemoveIfAlone());
  auto memfd = NewSegment(kMemfd);
  close(memfd->fd());
  EXPECT_FALSE(memfd->Usable());
  EXPECT_FALSE(memfd->CanBeOpened());
}

ISOLATED_TEST(SharedSegmentTest, ADetachedSegmentLeavesThePagesThatAreKept) {
  auto segment = NewSegment(kFile);
  const SegmentId id = segment->id();
  int& value = ValueIn(*segment);
  value = 5;
  EXPECT_TRUE(segment->Detach({{kPage, kSharedPage}}));
  EXPECT_TRUE(Files().empty());
  EXPECT_EQ(value, 5);
  EXPECT_EQ(KindOf([&] { SharedSegment::Open(id); }), Kind::kGone);
}

ISOLATED_TEST(SharedSegmentTest, AForkedChildHoldsABlockWithItsOwnSlot) {
  auto segment = NewSegment(kMemfd);
  segment->PrepareFork({0});
  Worker child([&](const Channel& channel) {
    segment->ChildAfterFork({0});
    channel.Send(segment->OwnerIsAlive());
    channel.Await();
  });
  segment->ParentAfterFork();
  EXPECT_TRUE(child.channel().Receive<bool>());
  segment->ReleaseHolder(0);
  segment->ReapDead();
  EXPECT_TRUE(segment->ledger().Referenced(0));
  const uint32_t process = child.pid();
  EXPECT_EQ(segment->OtherHolders(0), std::vector<uint32_t>{process});
  child.Kill();
  segment->ReapDead();
  EXPECT_FALSE(segment->ledger().Referenced(0));
}

// The child shares the locks of its parent, so the kernel does not show them.
ISOLATED_TEST(SharedSegmentTest, AChildWithoutASlotKnowsWhetherItsParentLives) {
  auto segment = NewSegment(kMemfd);
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none = {0, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  segment->PrepareFork({0});
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  Worker child([&](const Channel& channel) {
    segment->ChildAfterFork({0});
    EXPECT_TRUE(segment->has_permanent_slot());
    channel.Send(segment->OwnerIsAlive());
    channel.Await();
    channel.Send(segment->OwnerIsAlive());
  });
  segment->ParentAfterFork();
  EXPECT_TRUE(child.channel().Receive<bool>());
  // As if the owner had been another process, which has ended.
  Worker dead([](const Channel&) {});
  const uint32_t process = dead.pid();
  dead.Finish();
  segment->ledger().SetSlot(
      SharedLedger::kOwnerSlot, SharedLedger::kTaken, process);
  child.channel().Signal();
  EXPECT_FALSE(child.channel().Receive<bool>());
  child.Finish();
}

}  // namespace
