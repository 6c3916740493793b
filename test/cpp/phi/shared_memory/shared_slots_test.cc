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

// The files of segments, the slots of their processes, and process trees.

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "paddle/phi/core/memory/allocation/shared_memory/process_status.h"
#include "paddle/phi/core/memory/allocation/shared_memory/process_tree.h"
#include "paddle/phi/core/memory/allocation/shared_memory/shared_segment_file.h"
#include "paddle/phi/core/memory/allocation/shared_memory/shared_slots.h"
#include "paddle/phi/core/memory/allocation/shared_memory/starting_processes.h"
#include "test/cpp/phi/shared_memory/workers.h"

namespace {

using namespace shared_memory_test;          // NOLINT(build/namespaces)
using namespace paddle::memory::allocation;  // NOLINT(build/namespaces)

class SharedSlotsTest : public SharedMemoryTestCase {};

constexpr uint64_t kReserve = SharedLedger::kMinReserve;
constexpr uint32_t kOwner = SharedLedger::kOwnerSlot;
constexpr uint32_t kFirst = kOwner + 1;

// The file of a segment, and the ledger in it.
class Book {
 public:
  explicit Book(FileDescriptor file)
      : file_(Resized(std::move(file))),
        mapping_(file_.get(), SharedLedger::LedgerBytes(kReserve)),
        ledger_(mapping_.base(), kReserve) {
    if (!ReadLedgerStart(fd()).Valid()) ledger_.Format(TreeId(1), 1);
  }

  int fd() const { return file_.get(); }
  SharedLedger& ledger() { return ledger_; }
  SharedSlots slots() { return SharedSlots(fd(), &ledger_); }
  // Opens the file again, as another process does.
  Book Again() const {
    return Book(OpenFile("/proc/self/fd/" + std::to_string(fd()), O_RDWR));
  }

 private:
  static FileDescriptor Resized(FileDescriptor file) {
    REQUIRE_EQ(ftruncate(file.get(), SharedLedger::LedgerBytes(kReserve)), 0);
    REQUIRE_EQ(fchmod(file.get(), 0600), 0);
    return file;
  }

  FileDescriptor file_;
  Mapping mapping_;
  SharedLedger ledger_;
};

Book NewBook() { return Book(MakeMemfd("test")); }

// Returns a file of the process tree TreeId(1) that other processes see.
Book NamedBook() {
  return Book(OpenFile(SegmentPath(SegmentName(TreeId(1), 1)),
                       O_RDWR | O_CREAT | O_EXCL));
}

bool Found(const std::string& name) {
  const std::vector<std::string> names = SegmentFilesOfUser();
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Returns the body of a worker that takes a slot, holds block 0 and waits.
auto Taking(const Book& book, uint32_t first) {
  return [&book, first](const Channel& channel) {
    Book again = book.Again();
    const auto slot = again.slots().TakeSlot(first, getpid(), "test");
    REQUIRE_TRUE(slot.has_value());
    again.ledger().AddHolder(0, *slot);
    channel.Send(*slot);
    channel.Await();
  };
}

ISOLATED_TEST(SharedSlotsTest, AFileNameContainsItsTree) {
  const std::string name = SegmentName(TreeId(), 7);
  EXPECT_EQ(TreeInName(name), TreeId());
  const std::string user = std::to_string(geteuid());
  const std::string other =
      "paddle-" + std::to_string(geteuid() + 1) + name.substr(7 + user.size());
  for (const std::string& wrong :
       {name + "0", name + ".tmp", name.substr(1), other, std::string()}) {
    EXPECT_EQ(TreeInName(wrong), 0) << wrong;
  }
}

ISOLATED_TEST(SharedSlotsTest, TheFilesOfTheUserAreFound) {
  const std::string name = SegmentName(TreeId(), 7);
  EXPECT_FALSE(Found(name));
  OpenFile(SegmentPath(name), O_RDWR | O_CREAT);
  EXPECT_TRUE(Found(name));
  unlink(SegmentPath(name).c_str());
}

ISOLATED_TEST(SharedSlotsTest, OnlyAMemfdIsOpenedByItsNumber) {
  const FileDescriptor memfd = MakeMemfd("test");
  EXPECT_TRUE(OpenMemfdOf(getpid(), memfd.get()).SameFile(memfd));
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  EXPECT_FALSE(static_cast<bool>(OpenMemfdOf(getpid(), ends[0])));
  EXPECT_EQ(errno, ENOENT);
  EXPECT_FALSE(static_cast<bool>(OpenMemfdOf(getpid(), 999)));
  EXPECT_EQ(errno, ENOENT);
}

ISOLATED_TEST(SharedSlotsTest, WhyUnfitNamesTheReason) {
  auto why = [](const FileDescriptor& file) {
    return WhyUnfit(file.get(), SharingStrategy::kFileDescriptor);
  };
  EXPECT_EQ(why(OpenFile("/dev/null", O_RDWR)), "it is not a regular file");
  const FileDescriptor memfd = MakeMemfd("test");
  ASSERT_EQ(fchmod(memfd.get(), 0640), 0);
  EXPECT_EQ(why(memfd), "other users have access to it");
  ASSERT_EQ(fchmod(memfd.get(), 0600), 0);
  EXPECT_EQ(why(memfd), "it is too small");
  ASSERT_EQ(ftruncate(memfd.get(), kReserve), 0);
  EXPECT_EQ(why(memfd), "it can be truncated");
  ASSERT_EQ(fcntl(memfd.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  EXPECT_EQ(why(memfd), "");
}

ISOLATED_TEST(SharedSlotsTest, TheStartOfALedgerIsReadFromTheFile) {
  const FileDescriptor empty = MakeMemfd("test");
  EXPECT_FALSE(ReadLedgerStart(empty.get()).Valid());
  const Book book = NewBook();
  EXPECT_TRUE(ReadLedgerStart(book.fd()).Valid());
  EXPECT_EQ(ReadLedgerStart(book.fd()).tree, TreeId(1));
}

ISOLATED_TEST(SharedSlotsTest, TrimmedRangesTakeNoMemoryAndKeepTheirAddresses) {
  const FileDescriptor file = MakeMemfd("test");
  ASSERT_TRUE(ReserveFile(file.get(), 0, 4 * kSharedPage));
  TrimFile(file.get(), kSharedPage, 2 * kSharedPage);
  struct stat after = {};
  ASSERT_EQ(fstat(file.get(), &after), 0);
  EXPECT_EQ(after.st_blocks * 512, 2 * kSharedPage);
  EXPECT_EQ(after.st_size, 4 * kSharedPage);
}

ISOLATED_TEST(SharedSlotsTest, AFailedMappingIsEmpty) {
  const Mapping mapping(-1, kSharedPage);
  EXPECT_FALSE(static_cast<bool>(mapping));
  EXPECT_EQ(errno, EBADF);
}

ISOLATED_TEST(SharedSlotsTest, EachProcessTakesItsOwnSlot) {
  Book book = NewBook();
  book.ledger().AppendBlock(0, 64);
  Worker worker(Taking(book, kFirst));
  EXPECT_EQ(worker.channel().Receive<uint32_t>(), kFirst);
  EXPECT_EQ(book.slots().TakeSlot(kFirst, getpid(), "test"), kFirst + 1);
  EXPECT_EQ(book.ledger().slot_pid(kFirst), worker.pid());
  EXPECT_EQ(book.ledger().slot_pid(kFirst + 1), getpid());
  EXPECT_TRUE(IsLocked(book.fd(), kFirst));
  EXPECT_FALSE(IsLocked(book.fd(), kFirst + 2));
}

ISOLATED_TEST(SharedSlotsTest, TheSlotOfAKilledProcessIsTakenAgain) {
  Book book = NewBook();
  book.ledger().AppendBlock(0, 64);
  Worker worker(Taking(book, kFirst));
  EXPECT_EQ(worker.channel().Receive<uint32_t>(), kFirst);
  EXPECT_TRUE(book.ledger().Holds(0, kFirst));
  worker.Kill();
  EXPECT_EQ(book.slots().TakeSlot(kFirst, getpid(), "test"), kFirst);
  EXPECT_FALSE(book.ledger().Holds(0, kFirst));
}

ISOLATED_TEST(SharedSlotsTest, AProcessIsReapedOnceItIsDead) {
  Book book = NewBook();
  book.ledger().AppendBlock(0, 64);
  Worker worker(Taking(book, kFirst));
  worker.channel().Receive<uint32_t>();
  EXPECT_FALSE(book.slots().ReapIfDead(kFirst));
  EXPECT_TRUE(book.ledger().Holds(0, kFirst));
  worker.Kill();
  EXPECT_TRUE(book.slots().ReapIfDead(kFirst));
  EXPECT_FALSE(book.ledger().Holds(0, kFirst));
  EXPECT_FALSE(book.ledger().orphaned());
  EXPECT_FALSE(book.slots().ReapIfDead(kFirst));
}

ISOLATED_TEST(SharedSlotsTest, ADeadOwnerLeavesTheSegmentOrphaned) {
  Book book = NewBook();
  book.ledger().AppendBlock(0, 64);
  Worker owner(Taking(book, kOwner));
  EXPECT_EQ(owner.channel().Receive<uint32_t>(), kOwner);
  owner.Kill();
  EXPECT_TRUE(book.slots().ReapIfDead(kOwner));
  EXPECT_TRUE(book.ledger().orphaned());
}

ISOLATED_TEST(SharedSlotsTest, AReusedProcessNumberKeepsNoSlot) {
  Book book = NewBook();
  // As if this process had the number of a process that has ended.
  book.ledger().SetSlot(kFirst, SharedLedger::kTaken, getpid());
  EXPECT_TRUE(book.slots().ReapIfDead(kFirst));
}

ISOLATED_TEST(SharedSlotsTest, OfSeveralLocksAllOrNoneAreTaken) {
  Book book = NewBook();
  Book other = book.Again();
  ASSERT_TRUE(other.slots().TryLock(9, 10));
  EXPECT_FALSE(book.slots().TryLock(0, SharedLedger::kSlots));
  EXPECT_FALSE(IsLocked(other.fd(), 0));
  other.slots().Unlock(9, 10);
  EXPECT_TRUE(book.slots().TryLock(0, SharedLedger::kSlots));
  EXPECT_TRUE(IsLocked(other.fd(), 0));
}

ISOLATED_TEST(SharedSlotsTest, WhenNoSlotIsLeftTheErrorNamesTheMemory) {
  Book book = NewBook();
  Book other = book.Again();
  ASSERT_TRUE(other.slots().TryLock(kFirst, SharedLedger::kSlots));
  const auto error =
      ErrorOf([&] { book.slots().TakeSlot(kFirst, getpid(), "NAME"); });
  ASSERT_EQ(KindOf(error), Kind::kExhausted);
  EXPECT_EQ(std::string(error->what()).rfind("All 510 process slots", 0), 0);
  EXPECT_NE(std::strstr(error->what(), "NAME"), nullptr);
}

ISOLATED_TEST(SharedSlotsTest, ADetachedSegmentGivesNoSlot) {
  Book book = NewBook();
  TrimFile(book.fd(), 0, kSharedPage);
  EXPECT_EQ(book.slots().TakeSlot(kFirst, getpid(), "test"), std::nullopt);
}

ISOLATED_TEST(SharedSlotsTest, AProcessThatAnnouncesItsExitOrIsDeadIsLeaving) {
  Book book = NewBook();
  book.ledger().AppendBlock(0, 64);
  Worker worker(Taking(book, kFirst));
  worker.channel().Receive<uint32_t>();
  EXPECT_FALSE(book.slots().AllLeaving());
  book.ledger().SetSlot(kFirst, SharedLedger::kLeaving, worker.pid());
  EXPECT_TRUE(book.slots().AllLeaving());
  book.ledger().SetSlot(kFirst, SharedLedger::kTaken, worker.pid());
  worker.Kill();
  EXPECT_TRUE(book.slots().AllLeaving());
}

ISOLATED_TEST(SharedSlotsTest, AFileStaysAsLongAsItsTreeLives) {
  NamedBook();
  Worker relative([](const Channel& channel) {
    const ProcessTree tree(TreeId(1));
    channel.Signal();
    channel.Await();
  });
  relative.channel().Await();
  ProcessTree mine(TreeId());
  mine.RemoveAbandoned(0);
  EXPECT_EQ(FilesOf(TreeId(1)).size(), 1);
  relative.Kill();
  mine.RemoveAbandoned(0);
  EXPECT_TRUE(FilesOf(TreeId(1)).empty());
}

ISOLATED_TEST(SharedSlotsTest, AFileThatAProcessIsAttachedToStays) {
  Book book = NamedBook();
  Book other = book.Again();
  ASSERT_TRUE(other.slots().TryLock(kFirst, kFirst + 1));
  ProcessTree(TreeId()).RemoveAbandoned(0);
  EXPECT_EQ(FilesOf(TreeId(1)).size(), 1);
  other.slots().Unlock(kFirst, kFirst + 1);
  ProcessTree(TreeId()).RemoveAbandoned(0);
  EXPECT_TRUE(FilesOf(TreeId(1)).empty());
}

ISOLATED_TEST(SharedSlotsTest, AFileOfTheTreeStaysUntilItsMessagesExpire) {
  Book book = NamedBook();
  book.ledger().AppendBlock(0, 64);
  book.ledger().AddHolder(0, kOwner);
  book.ledger().IssueTicket(0, 5, 100);
  ProcessTree tree(TreeId(1));
  tree.RemoveAbandoned(99);
  EXPECT_EQ(FilesOf(TreeId(1)).size(), 1);
  tree.RemoveAbandoned(100);
  EXPECT_TRUE(FilesOf(TreeId(1)).empty());
}

ISOLATED_TEST(SharedSlotsTest, ALockThatOtherCodeReleasedIsTakenAgain) {
  ProcessTree tree(TreeId());
  // The lock's descriptor has the number before the next free one.
  const int fd = OpenFile("/dev/null", O_RDONLY).get() - 1;
  ASSERT_EQ(close(fd), 0);
  tree.EnsureLocked();
  const FileDescriptor folder = OpenFile("/dev/shm", O_RDONLY | O_DIRECTORY);
  EXPECT_TRUE(IsLocked(folder.get(), static_cast<int64_t>(TreeId() >> 2)));
}

ISOLATED_TEST(SharedSlotsTest, TheLastToLeaveATreeRemovesItsFiles) {
  NamedBook();
  ProcessTree first(TreeId(1));
  ProcessTree last(TreeId(1));
  first.Leave();
  EXPECT_EQ(FilesOf(TreeId(1)).size(), 1);
  last.Leave();
  EXPECT_TRUE(FilesOf(TreeId(1)).empty());
}

// Starts a program that has a process tree in its environment, and has a folder
// open this many times. The destructor ends it.
class Program {
 public:
  Program(const std::string& tree, int folder, int count) {
    const std::string variable = "PADDLE_SHARED_MEMORY_TREE=" + tree;
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      for (; count > 0; --count) dup(folder);
      const char* words[] = {"sleep", "1000", nullptr};
      const char* variables[] = {"A=1", variable.c_str(), "B=2", nullptr};
      execve("/bin/sleep",
             const_cast<char**>(words),
             const_cast<char**>(variables));
      _exit(1);
    }
    // Until the program has started, it has the environment of this process.
    const std::string file = "/proc/" + std::to_string(pid_) + "/environ";
    REQUIRE_TRUE(Eventually([&] {
      return ReadFile(file).value_or("").find(variable) != std::string::npos;
    }));
  }
  ~Program() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

 private:
  pid_t pid_;
};

std::string TreeName() {
  char name[32];
  std::snprintf(name, sizeof(name), "%" PRIx64, TreeId());
  return name;
}

ISOLATED_TEST(SharedSlotsTest, AProgramMayJoinTheTreeItWasStartedWith) {
  const FileDescriptor folder = OpenFile("/dev/shm", O_RDONLY | O_DIRECTORY);
  for (int count : {0, 1}) {
    const Program program(TreeName(), folder.get(), count);
    EXPECT_TRUE(StartingProcesses(folder.get()).MayJoin(TreeId()));
    EXPECT_FALSE(StartingProcesses(folder.get()).MayJoin(TreeId(1)));
  }
  EXPECT_FALSE(StartingProcesses(folder.get()).MayJoin(TreeId()));
}

ISOLATED_TEST(SharedSlotsTest, AProgramThatLeftItsTreeMayNotJoinItAgain) {
  Worker program([](const Channel& channel) {
    LookStartedWith("PADDLE_SHARED_MEMORY_TREE=" + TreeName());
    channel.Signal();
    channel.Await();
    ProcessTree tree(TreeId());
    tree.Leave();
    channel.Signal();
    channel.Await();
  });
  // Opened only now, so that the program does not inherit it.
  const FileDescriptor folder = OpenFile("/dev/shm", O_RDONLY | O_DIRECTORY);
  program.channel().Await();
  EXPECT_TRUE(StartingProcesses(folder.get()).MayJoin(TreeId()));
  program.channel().Signal();
  program.channel().Await();
  EXPECT_FALSE(StartingProcesses(folder.get()).MayJoin(TreeId()));
}

// A process that joins its tree lists the folder, as every process may. So it
// has the folder open twice, like a process that has left.
ISOLATED_TEST(SharedSlotsTest,
              AProgramWithTheLockKeepsFilesHoweverOftenItLists) {
  Book book = NamedBook();
  book.ledger().AppendBlock(0, 64);
  book.ledger().AddHolder(0, kOwner);
  book.ledger().IssueTicket(0, 5, 100);
  Worker program([](const Channel& channel) {
    const ProcessTree tree(TreeId(1));
    const FileDescriptor again = OpenFile("/dev/shm", O_RDONLY | O_DIRECTORY);
    channel.Signal();
    channel.Await();
  });
  program.channel().Await();
  ProcessTree(TreeId()).RemoveAbandoned(0);
  ProcessTree(TreeId(1)).Leave();
  EXPECT_EQ(FilesOf(TreeId(1)).size(), 1);
  program.Kill();
  ProcessTree(TreeId()).RemoveAbandoned(0);
  EXPECT_TRUE(FilesOf(TreeId(1)).empty());
}

}  // namespace
