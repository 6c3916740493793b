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

// Which files stay in /dev/shm, and which are removed.

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "paddle/phi/core/memory/allocation/shared_memory/shared_slots.h"
#include "test/cpp/phi/shared_memory/intercepted_calls.h"
#include "test/cpp/phi/shared_memory/processes.h"

namespace {

using namespace shared_memory_test;  // NOLINT(build/namespaces)
using paddle::memory::allocation::FileDescriptor;
using paddle::memory::allocation::MakeMemfd;
using paddle::memory::allocation::Mapping;
using paddle::memory::allocation::OpenFile;
using paddle::memory::allocation::SharedLedger;
using paddle::memory::allocation::SharedSlots;

class SharedHeapProcessTreeTest
    : public shared_memory_test::SharedMemoryTestCase {};

void Join(int tree) {
  SharedHeap::Instance().Join(TreeId(tree));
  Heap();
}

// Sends one message and then releases its block.
void SendOnce(const Channel& channel, int tree) {
  Join(tree);
  const SharedBlock block =
      AllocateFilled(SharingStrategy::kFileSystem, kMiB, 1);
  channel.Send(MessageOf(block));
  Heap().Release(block);
  channel.Await();
}

void JoinAndWait(const Channel& channel, int tree) {
  Join(tree);
  channel.Signal();
  channel.Await();
}

ISOLATED_TEST(SharedHeapProcessTreeTest, JoiningAgainReturnsTheFirstTree) {
  SharedHeap& heap = SharedHeap::Instance();
  EXPECT_EQ(heap.Join(TreeId(1)), TreeId(1));
  EXPECT_EQ(heap.Join(TreeId(2)), TreeId(1));
}

ISOLATED_TEST(SharedHeapProcessTreeTest, JoiningRemovesTheFilesOfADeadTree) {
  Worker sender([](const Channel& channel) { SendOnce(channel, 1); });
  sender.channel().Receive<SharedMessage>();
  EXPECT_EQ(FilesOf(TreeId(1)).size(), 1);
  sender.Kill();
  EXPECT_TRUE(Eventually([] {
    Heap().Collect({});  // the kernel may need a moment to end a process
    return FilesOf(TreeId(1)).empty();
  }));
}

ISOLATED_TEST(SharedHeapProcessTreeTest, JoiningLeavesTheFilesOfALivingTree) {
  Worker sender([](const Channel& channel) { SendOnce(channel, 1); });
  Worker relative([](const Channel& channel) {
    JoinAndWait(channel, 1);
    const auto received = Heap().Receive(channel.Receive<SharedMessage>());
    EXPECT_TRUE(HasContent(received.block, 1));
  });
  relative.channel().Await();
  const auto message = sender.channel().Receive<SharedMessage>();
  sender.Kill();
  Heap().Collect(0.0);
  EXPECT_EQ(FilesOf(TreeId(1)).size(), 1);
  relative.channel().Signal();
  relative.channel().Send(message);
  relative.Finish();
  EXPECT_TRUE(FilesOf(TreeId(1)).empty());
}

ISOLATED_TEST(SharedHeapProcessTreeTest, TheLastToLeaveATreeRemovesItsFiles) {
  Worker first([](const Channel& channel) { SendOnce(channel, 1); });
  Worker second([](const Channel& channel) { JoinAndWait(channel, 1); });
  second.channel().Await();
  first.channel().Receive<SharedMessage>();
  first.channel().Signal();
  first.Finish();
  EXPECT_EQ(FilesOf(TreeId(1)).size(), 1);
  second.channel().Signal();
  second.Finish();
  EXPECT_TRUE(FilesOf(TreeId(1)).empty());
}

ISOLATED_TEST(SharedHeapProcessTreeTest, LeavingRemovesNoFileOfAnotherTree) {
  Worker sender([](const Channel& channel) { SendOnce(channel, 1); });
  Worker other([](const Channel& channel) { JoinAndWait(channel, 2); });
  sender.channel().Receive<SharedMessage>();
  other.channel().Await();
  other.channel().Signal();
  other.Finish();
  EXPECT_EQ(FilesOf(TreeId(1)).size(), 1);
  sender.channel().Signal();
  sender.Finish();
  EXPECT_TRUE(Files().empty());
}

ISOLATED_TEST(SharedHeapProcessTreeTest,
              CollectRemovesAnUnneededFileOfTheTree) {
  Worker sender([](const Channel& channel) { SendOnce(channel, 0); });
  sender.channel().Receive<SharedMessage>();
  Heap();
  sender.Kill();
  Heap().Collect({});
  Heap().Collect(1000.0);
  EXPECT_EQ(Files().size(), 1);  // for the message
  EXPECT_TRUE(Eventually([] {
    Heap().Collect(0.0);
    return Files().empty();
  }));
}

// Another program, which never joins a process tree. It runs until it is
// killed.
class Program {
 public:
  explicit Program(std::string variable) {
    std::string name = "sleep";
    std::string forever = "infinity";
    std::array<char*, 3> arguments = {name.data(), forever.data(), nullptr};
    std::array<char*, 2> environment = {variable.data(), nullptr};
    if (variable.empty()) environment[0] = nullptr;
    int ends[2];
    REQUIRE_EQ(pipe2(ends, O_CLOEXEC), 0);
    const int error = posix_spawnp(&pid_,
                                   name.c_str(),
                                   nullptr,
                                   nullptr,
                                   arguments.data(),
                                   environment.data());
    close(ends[1]);
    REQUIRE_EQ(error, 0);
    // Wait like Python's subprocess: until the new program has replaced the
    // forked copy of this one. Its environment may be set a little later.
    char none;
    EXPECT_EQ(read(ends[0], &none, 1), 0);
    close(ends[0]);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program() {
    Kill();
    waitpid(pid_, nullptr, 0);
  }

  // Leaves a zombie.
  void Kill() const {
    kill(pid_, SIGKILL);
    siginfo_t end = {};
    waitid(P_PID, pid_, &end, WEXITED | WNOWAIT);
  }

 private:
  pid_t pid_{0};
};

std::string VariableOf(uint64_t tree) {
  char variable[64];
  std::snprintf(variable,
                sizeof(variable),
                "PADDLE_SHARED_MEMORY_TREE=%016" PRIx64,
                tree);
  return variable;
}

// Sends a message from a process that exits afterwards.
SharedMessage SendAndLeave(int tree) {
  Worker sender([&](const Channel& channel) { SendOnce(channel, tree); });
  const auto message = sender.channel().Receive<SharedMessage>();
  sender.channel().Signal();
  sender.Finish();
  return message;
}

void SendAndBeKilled(int tree) {
  Worker sender([&](const Channel& channel) { SendOnce(channel, tree); });
  sender.channel().Receive<SharedMessage>();
  sender.Kill();
}

ISOLATED_TEST(SharedHeapProcessTreeTest,
              AMessageOutlivesItsSenderForAProcessThatMayStillJoin) {
  const Program program(VariableOf(TreeId(1)));
  const SharedMessage message = SendAndLeave(1);
  EXPECT_EQ(FilesOf(TreeId(1)).size(), 1);
  Worker late([&](const Channel&) {
    Join(1);
    EXPECT_TRUE(HasContent(Heap().Receive(message).block, 1));
  });
  late.Finish();
}

ISOLATED_TEST(SharedHeapProcessTreeTest,
              AFileKeptForAProcessIsRemovedOnceTheProcessHasEnded) {
  const Program program(VariableOf(TreeId(1)));
  SendAndLeave(1);
  Heap().Collect({});
  EXPECT_EQ(FilesOf(TreeId(1)).size(), 1);
  program.Kill();
  EXPECT_TRUE(Eventually([] {
    Heap().Collect({});
    return FilesOf(TreeId(1)).empty();
  }));
}

ISOLATED_TEST(SharedHeapProcessTreeTest,
              AFileOfAKilledProcessStaysForAProcessThatMayStillJoin) {
  const Program program(VariableOf(TreeId(1)));
  SendAndBeKilled(1);
  for (int i = 0; i < 20; ++i) Heap().Collect({});
  EXPECT_EQ(FilesOf(TreeId(1)).size(), 1);
  program.Kill();
  EXPECT_TRUE(Eventually([] {
    Heap().Collect({});
    return FilesOf(TreeId(1)).empty();
  }));
}

ISOLATED_TEST(SharedHeapProcessTreeTest,
              AFileStaysForAProcessThatIsJustBeingStarted) {
  // Uses a separate process, so that senders inherit no process tree.
  Worker collector([](const Channel& channel) {
    Heap();
    while (channel.SaysMore()) {
      channel.Await();
      Heap().Collect({});
      channel.Signal();
    }
  });
  const auto collect = [&] {
    collector.channel().Signal();
    collector.channel().Await();
  };
  for (int round = 0; round < 20; ++round) {
    // The sender lives until the program has started: any process of the user,
    // even outside this test, removes the files of a tree without processes.
    Worker sender([](const Channel& channel) { SendOnce(channel, 1); });
    sender.channel().Receive<SharedMessage>();
    const Program program(VariableOf(TreeId(1)));
    sender.Kill();
    for (int i = 0; i < 5; ++i) collect();
    EXPECT_EQ(FilesOf(TreeId(1)).size(), 1);
    program.Kill();
    EXPECT_TRUE(Eventually([&] {
      collect();
      return FilesOf(TreeId(1)).empty();
    }));
  }
  collector.Finish();
}

// Joins tree 1 when the test signals it, and receives a message. Meanwhile it
// looks like a process that still lists the folder: it has the lock, and it has
// the folder open twice, like a process that has left.
void JoinLate(const Channel& channel) {
  LookStartedWith(VariableOf(TreeId(1)));
  channel.Signal();
  channel.Await();
  Join(1);
  const FileDescriptor folder = OpenFile("/dev/shm", O_RDONLY | O_DIRECTORY);
  channel.Signal();
  const auto message = channel.Receive<SharedMessage>();
  EXPECT_TRUE(HasContent(Heap().Receive(message).block, 1));
}

// A process lists the files before it inspects the other processes.
constexpr int kCallThatListsProcesses = 2;

ISOLATED_TEST(SharedHeapProcessTreeTest,
              AFileStaysForAProcessThatJoinsWhileProcessesAreInspected) {
  Worker sender([](const Channel& channel) { SendOnce(channel, 1); });
  Worker late(JoinLate);
  const auto message = sender.channel().Receive<SharedMessage>();
  late.channel().Await();
  Heap();
  sender.Kill();
  {
    const Interception listing(
        "opendir", kCallThatListsProcesses, Calls::kOne, [&] {
          late.channel().Signal();
          late.channel().Await();
          return 0;
        });
    Heap().Collect({});
    EXPECT_TRUE(listing.Happened());
  }
  EXPECT_EQ(FilesOf(TreeId(1)).size(), 1);
  late.channel().Send(message);
  late.Finish();
  EXPECT_TRUE(FilesOf(TreeId(1)).empty());
}

ISOLATED_TEST(SharedHeapProcessTreeTest,
              TheLastToLeaveKeepsAFileForAProcessThatJoinsMeanwhile) {
  Worker last([](const Channel& channel) {
    Join(1);
    const SharedBlock block =
        AllocateFilled(SharingStrategy::kFileSystem, kMiB, 1);
    channel.Send(MessageOf(block));
    Heap().Release(block);
    channel.Await();
    const Interception listing(
        "opendir", kCallThatListsProcesses, Calls::kOne, [&] {
          channel.Signal();
          channel.Await();
          return 0;
        });
    Heap().Leave();
    EXPECT_TRUE(listing.Happened());
  });
  Worker late(JoinLate);
  const auto message = last.channel().Receive<SharedMessage>();
  late.channel().Await();
  last.channel().Signal();
  last.channel().Await();
  late.channel().Signal();
  late.channel().Await();
  last.channel().Signal();
  last.Finish();
  EXPECT_EQ(FilesOf(TreeId(1)).size(), 1);
  late.channel().Send(message);
  late.Finish();
  EXPECT_TRUE(FilesOf(TreeId(1)).empty());
}

// A process that leaves maps a file to look for attached processes, and again
// to look for messages.
constexpr int kCallThatMapsForMessages = 2;

// The last process of tree 1 leaves a file with messages. After it has looked
// for attached processes, a process of `tree` receives one of the messages.
void ReceiveWhileTheLastLeaves(int messages, int tree) {
  Worker last([messages](const Channel& channel) {
    Join(1);
    const SharedBlock block =
        AllocateFilled(SharingStrategy::kFileSystem, kMiB, 1);
    for (int i = 0; i < messages; ++i) channel.Send(MessageOf(block));
    Heap().Release(block);
    channel.Await();
    const Interception mapping(
        "mmap", kCallThatMapsForMessages, Calls::kOne, [&] {
          channel.Signal();
          channel.Await();
          return 0;
        });
    Heap().Leave();
    EXPECT_TRUE(mapping.Happened());
  });
  Worker late([tree](const Channel& channel) {
    const auto message = channel.Receive<SharedMessage>();
    Join(tree);
    EXPECT_TRUE(HasContent(Heap().Receive(message).block, 1));
    channel.Signal();
    channel.Await();
  });
  const auto message = last.channel().Receive<SharedMessage>();
  for (int i = 1; i < messages; ++i) last.channel().Receive<SharedMessage>();
  last.channel().Signal();
  last.channel().Await();
  late.channel().Send(message);
  late.channel().Await();
  last.channel().Signal();
  last.Finish();
  EXPECT_EQ(FilesOf(TreeId(1)).size(), 1);
  late.channel().Signal();
  late.Finish();
  Heap().Collect({});
  EXPECT_TRUE(FilesOf(TreeId(1)).empty());
}

ISOLATED_TEST(SharedHeapProcessTreeTest,
              TheLastToLeaveKeepsAFileWhoseLastMessageIsReceivedMeanwhile) {
  ReceiveWhileTheLastLeaves(1, 1);
}

// This process cannot be found by the tree of the file.
ISOLATED_TEST(SharedHeapProcessTreeTest,
              TheLastToLeaveKeepsAFileThatAProcessOfAnotherTreeAttachesTo) {
  ReceiveWhileTheLastLeaves(2, 2);
}

ISOLATED_TEST(SharedHeapProcessTreeTest,
              AProcessThatTakesTheSlotOfADeadOneMeanwhileIsNotLeaving) {
  constexpr uint64_t kReserve = SharedLedger::kMinReserve;
  constexpr uint32_t kSlot = SharedLedger::kOwnerSlot + 1;
  const FileDescriptor file = MakeMemfd("test");
  ASSERT_EQ(ftruncate(file.get(), SharedLedger::LedgerBytes(kReserve)), 0);
  const Mapping mapping(file.get(), SharedLedger::LedgerBytes(kReserve));
  SharedLedger ledger(mapping.base(), kReserve);
  ledger.Format(TreeId(1), 1);
  const auto take = [&](const Channel& channel) {
    channel.Await();
    const FileDescriptor again =
        OpenFile("/proc/self/fd/" + std::to_string(file.get()), O_RDWR);
    EXPECT_EQ(
        SharedSlots(again.get(), &ledger).TakeSlot(kSlot, getpid(), "test"),
        kSlot);
    channel.Signal();
    channel.Await();
  };
  Worker dead(take);
  dead.channel().Signal();
  dead.channel().Await();
  Worker next(take);
  dead.Kill();
  const Interception locking("fcntl", 1, Calls::kOne, [&] {
    next.channel().Signal();
    next.channel().Await();
    return 0;
  });
  EXPECT_FALSE(SharedSlots(file.get(), &ledger).AllLeaving());
  EXPECT_TRUE(locking.Happened());
  next.channel().Signal();
  next.Finish();
}

ISOLATED_TEST(SharedHeapProcessTreeTest,
              ExpiredMessagesKeepNoFileForAProcessThatMayStillJoin) {
  const Program program(VariableOf(TreeId(1)));
  SendAndLeave(1);
  EXPECT_TRUE(Eventually([] {
    Heap().Collect(0.0);
    return FilesOf(TreeId(1)).empty();
  }));
}

ISOLATED_TEST(SharedHeapProcessTreeTest,
              AFileWithoutMessagesIsRemovedEvenIfAProcessMayStillJoin) {
  const Program program(VariableOf(TreeId(1)));
  Worker sender([](const Channel&) {
    Join(1);
    Heap().Release(AllocateFilled(SharingStrategy::kFileSystem, kMiB, 1));
  });
  sender.Finish();
  EXPECT_TRUE(FilesOf(TreeId(1)).empty());
}

ISOLATED_TEST(SharedHeapProcessTreeTest, ProcessesOfOtherTreesKeepNoFile) {
  const Program other(VariableOf(TreeId(2)));
  const Program none("");
  const Program longer("NOT_" + VariableOf(TreeId(1)));
  const Program zombie(VariableOf(TreeId(1)));
  zombie.Kill();
  SendAndLeave(1);
  EXPECT_TRUE(FilesOf(TreeId(1)).empty());
}

ISOLATED_TEST(SharedHeapProcessTreeTest, OnlyItsUserHasAccessToAFile) {
  const SharedBlock block = Heap().Allocate(SharingStrategy::kFileSystem, 1);
  struct stat file = {};
  ASSERT_EQ(stat(PathOf(MessageOf(block)).c_str(), &file), 0);
  EXPECT_EQ((file.st_mode & 0777), 0600);
}

ISOLATED_TEST(SharedHeapProcessTreeTest, AFileThatOthersMayWriteIsRefused) {
  Worker sender([](const Channel& channel) { SendOnce(channel, 0); });
  const auto message = sender.channel().Receive<SharedMessage>();
  Heap();
  const Possessions before = Possessions::Now();
  ASSERT_EQ(chmod(PathOf(message).c_str(), 0666), 0);
  EXPECT_EQ(Kind::kInvalid, KindOf([&] { Heap().Receive(message); }));
  EXPECT_EQ(Possessions::Now(), before);
  ASSERT_EQ(chmod(PathOf(message).c_str(), 0600), 0);
  EXPECT_TRUE(HasContent(Heap().Receive(message).block, 1));
  sender.channel().Signal();
  sender.Finish();
}

std::string NameOf(uint64_t tree, const std::string& rest) {
  char name[80];
  std::snprintf(name,
                sizeof(name),
                "/dev/shm/paddle-%u-%016" PRIx64 "-",
                geteuid(),
                tree);
  return name + rest;
}

void WriteFile(const std::string& name, const std::string& bytes) {
  const int file = open(name.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
  EXPECT_EQ(write(file, bytes.data(), bytes.size()),
            static_cast<ssize_t>(bytes.size()));
  close(file);
}

// Files of a dead process tree, and of this one.
ISOLATED_TEST(SharedHeapProcessTreeTest,
              FilesThatOnlyHaveNamesLikeOursDoNoHarm) {
  for (uint64_t tree : {TreeId(1), TreeId()}) {
    const std::string digits = "000000000000000";
    const std::string large = NameOf(tree, digits + "1");
    const std::string small = NameOf(tree, digits + "2");
    const std::string pipe = NameOf(tree, digits + "3");
    const std::string link = NameOf(tree, digits + "4");
    const std::string others[] = {NameOf(tree, "5"),
                                  NameOf(tree, digits + "6.txt")};
    WriteFile(large, std::string(1 << 16, '\xff'));
    WriteFile(small, "small");
    EXPECT_EQ(mkfifo(pipe.c_str(), 0600), 0);
    EXPECT_EQ(symlink("/dev/zero", link.c_str()), 0);
    for (const std::string& name : others) WriteFile(name, "none of ours");
    Heap().Collect(0.0);
    for (const std::string& name : others) {
      EXPECT_EQ(access(name.c_str(), F_OK), 0);
      unlink(name.c_str());
    }
    for (const auto& name : {large, small, pipe, link}) unlink(name.c_str());
  }
}

ISOLATED_TEST(SharedHeapProcessTreeTest,
              AFileOfAnotherLayoutStaysAsLongAsItsTreeLives) {
  const std::string name = NameOf(TreeId(), "0000000000000001");
  WriteFile(name, std::string(1 << 16, '\0'));
  Heap().Collect(0.0);
  EXPECT_EQ(access(name.c_str(), F_OK), 0);
  unlink(name.c_str());
}

// The header counts more blocks than the file has room for.
ISOLATED_TEST(SharedHeapProcessTreeTest, ATruncatedFileDoesNoHarm) {
  std::string header(SharedLedger::HeaderBytes(SharedLedger::kMinReserve), ' ');
  Worker sender([&](const Channel& channel) {
    for (int i = 0; i < 2000; ++i) {
      Heap().Allocate(SharingStrategy::kFileSystem, 4096);
    }
    const SharedBlock last = Heap().Allocate(SharingStrategy::kFileSystem, 1);
    channel.Send(MessageOf(last));
    channel.Await();
  });
  const auto message = sender.channel().Receive<SharedMessage>();
  const int file = open(PathOf(message).c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_EQ(pread(file, header.data(), header.size(), 0),
            static_cast<ssize_t>(header.size()));
  const std::string copy = NameOf(TreeId(), "0000000000000001");
  WriteFile(copy, header);
  Heap().Collect(0.0);
  unlink(copy.c_str());
  sender.channel().Signal();
  sender.Finish();
}

// A process that checks holds the locks of all slots for a moment.
ISOLATED_TEST(SharedHeapProcessTreeTest,
              AReceiverFindsASlotWhileAnotherChecksIfTheFileCanBeRemoved) {
  static constexpr int kMessages = 300;
  Worker sender([](const Channel& channel) {
    const SharedBlock block =
        AllocateFilled(SharingStrategy::kFileSystem, 64, 1);
    for (int i = 0; i < kMessages; ++i) channel.Send(MessageOf(block));
    channel.Await();
  });
  std::vector<SharedMessage> messages;
  for (int i = 0; i < kMessages; ++i) {
    messages.push_back(sender.channel().Receive<SharedMessage>());
  }
  Worker looker([](const Channel& channel) {
    Heap();
    channel.Signal();
    while (!channel.HasMore()) Heap().Collect({});
  });
  looker.channel().Await();
  sender.Kill();
  for (const SharedMessage& message : messages) {
    Worker receiver([&](const Channel&) {
      EXPECT_TRUE(HasContent(Heap().Receive(message).block, 1));
    });
    receiver.Finish();
  }
  looker.channel().Signal();
  looker.Finish();
}

// So tests that make calls fail, here and in other programs, remove no files of
// concurrent processes.
ISOLATED_TEST(SharedHeapProcessTreeTest,
              AFileStaysIfInspectingAProcessFailsForAnUnusualReason) {
  const Program program(VariableOf(TreeId(1)));
  SendAndBeKilled(1);
  Heap();
  for (int error : {EPERM, ENOSPC, EMFILE, EIO}) {
    bool happened = true;
    for (int n = 1; happened; ++n) {
      const Interception failing(
          "open", n, Calls::kOne, [error] { return error; });
      Heap().Collect({});
      happened = failing.Happened();
      ASSERT_EQ(FilesOf(TreeId(1)).size(), 1) << "call " << n << ", " << error;
    }
  }
  program.Kill();
  EXPECT_TRUE(Eventually([] {
    Heap().Collect({});
    return FilesOf(TreeId(1)).empty();
  }));
}

ISOLATED_TEST(SharedHeapProcessTreeTest,
              AStarvedChildThatEndsKeepsTheTreeOfItsParentAlive) {
  Worker sender([](const Channel& channel) { SendOnce(channel, 0); });
  Worker stranger([](const Channel& channel) {
    channel.Await();
    JoinAndWait(channel, 1);
  });
  const auto message = sender.channel().Receive<SharedMessage>();
  Heap();
  sender.Kill();
  Worker child([](const Channel&) { Heap().Collect({}); }, true);
  child.Finish();
  stranger.channel().Signal();
  stranger.channel().Await();
  EXPECT_TRUE(HasContent(Heap().Receive(message).block, 1));
  stranger.channel().Signal();
  stranger.Finish();
}

}  // namespace
