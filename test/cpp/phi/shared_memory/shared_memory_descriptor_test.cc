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

// Descriptors and locks: when a descriptor is closed, and which one holds a
// lock.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

#include "paddle/phi/core/memory/allocation/shared_memory/file_descriptor.h"
#include "test/cpp/phi/shared_memory/workers.h"

namespace {

using namespace shared_memory_test;  // NOLINT(build/namespaces)
using paddle::memory::allocation::FileDescriptor;
using paddle::memory::allocation::IsLocked;
using paddle::memory::allocation::OpenFile;
using paddle::memory::allocation::RetryOnSignal;
using paddle::memory::allocation::SetLock;

class SharedMemoryDescriptorTest : public SharedMemoryTestCase {};

FileDescriptor NewFile() {
  FileDescriptor file(memfd_create("test", MFD_CLOEXEC));
  REQUIRE_TRUE(static_cast<bool>(file));
  return file;
}

// Opens a file again, with its own locks.
FileDescriptor Again(const FileDescriptor& file) {
  return OpenFile("/proc/self/fd/" + std::to_string(file.get()), O_RDWR);
}

bool IsOpen(int fd) { return fcntl(fd, F_GETFD) != -1; }

ISOLATED_TEST(SharedMemoryDescriptorTest, ADescriptorIsClosedWithItsObject) {
  int fd = -1;
  {
    const FileDescriptor file = NewFile();
    fd = file.get();
    EXPECT_TRUE(file.IsIntact());
    EXPECT_TRUE(IsOpen(fd));
  }
  EXPECT_FALSE(IsOpen(fd));
}

ISOLATED_TEST(SharedMemoryDescriptorTest, AMovedDescriptorHasOneOwner) {
  FileDescriptor first = NewFile();
  const int fd = first.get();
  {
    const FileDescriptor second = std::move(first);
    EXPECT_EQ(second.get(), fd);
    EXPECT_FALSE(static_cast<bool>(first));
  }
  EXPECT_FALSE(IsOpen(fd));
}

ISOLATED_TEST(SharedMemoryDescriptorTest,
              ANumberThatNowRefersToAnotherFileIsNotClosed) {
  FileDescriptor next;
  {
    const FileDescriptor lost = NewFile();
    close(lost.get());
    EXPECT_FALSE(lost.IsIntact());
    next = NewFile();
    ASSERT_EQ(next.get(), lost.get());
    EXPECT_FALSE(lost.IsIntact());
  }
  EXPECT_TRUE(next.IsIntact());
}

ISOLATED_TEST(SharedMemoryDescriptorTest, ALostDescriptorCanBeClosed) {
  FileDescriptor lost = NewFile();
  close(lost.get());
  const FileDescriptor next = NewFile();
  lost.Close();
  EXPECT_FALSE(static_cast<bool>(lost));
  EXPECT_TRUE(next.IsIntact());
}

ISOLATED_TEST(SharedMemoryDescriptorTest,
              ALostDescriptorIsReplacedByOneOfTheSameNumber) {
  const FileDescriptor other = NewFile();
  FileDescriptor file = Again(other);
  const int fd = file.get();
  close(fd);
  file = Again(other);
  EXPECT_EQ(file.get(), fd);
  EXPECT_TRUE(file.IsIntact());
  EXPECT_TRUE(file.SameFile(other));
}

ISOLATED_TEST(SharedMemoryDescriptorTest, FilesAreDistinguishedEvenOnceClosed) {
  FileDescriptor file = NewFile();
  const FileDescriptor again = Again(file);
  const FileDescriptor other = NewFile();
  EXPECT_TRUE(again.SameFile(file));
  EXPECT_FALSE(other.SameFile(file));
  file.Close();
  EXPECT_TRUE(again.SameFile(file));
  EXPECT_FALSE(other.SameFile(file));
  EXPECT_FALSE(file.SameFile(again));
}

ISOLATED_TEST(SharedMemoryDescriptorTest, ErrnoSaysWhyAFileCannotBeOpened) {
  EXPECT_FALSE(static_cast<bool>(OpenFile("/dev/shm/is/not/there", O_RDONLY)));
  EXPECT_EQ(errno, ENOENT);
}

ISOLATED_TEST(SharedMemoryDescriptorTest, StartedProgramsInheritNoDescriptor) {
  const FileDescriptor file = OpenFile("/dev/null", O_RDONLY);
  EXPECT_EQ(fcntl(file.get(), F_GETFD), FD_CLOEXEC);
}

ISOLATED_TEST(SharedMemoryDescriptorTest,
              ACallThatASignalInterruptsIsRepeated) {
  int calls = 0;
  auto call = [&calls] {
    errno = ++calls < 3 ? EINTR : EIO;
    return calls < 4 ? -1 : 5;
  };
  EXPECT_EQ(RetryOnSignal(call), -1);
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(errno, EIO);
  EXPECT_EQ(RetryOnSignal(call), 5);
}

ISOLATED_TEST(SharedMemoryDescriptorTest, ALockExcludesOtherDescriptions) {
  const FileDescriptor file = NewFile();
  const FileDescriptor again = Again(file);
  ASSERT_TRUE(SetLock(file.get(), F_WRLCK, 3, 2));
  EXPECT_FALSE(SetLock(again.get(), F_WRLCK, 4, 1));
  EXPECT_TRUE(errno == EAGAIN || errno == EACCES);
  EXPECT_TRUE(IsLocked(again.get(), 3));
  EXPECT_FALSE(IsLocked(again.get(), 5));
  EXPECT_FALSE(IsLocked(file.get(), 3)) << "one's own lock counts as none";
  ASSERT_TRUE(SetLock(file.get(), F_UNLCK, 3, 2));
  EXPECT_TRUE(SetLock(again.get(), F_WRLCK, 4, 1));
}

ISOLATED_TEST(SharedMemoryDescriptorTest, SeveralCanHoldAReadLock) {
  const FileDescriptor file = OpenFile("/dev/shm", O_RDONLY | O_DIRECTORY);
  const FileDescriptor again = OpenFile("/dev/shm", O_RDONLY | O_DIRECTORY);
  const int64_t byte = static_cast<int64_t>(TreeId() >> 2);
  EXPECT_TRUE(SetLock(file.get(), F_RDLCK, byte, 1));
  EXPECT_TRUE(SetLock(again.get(), F_RDLCK, byte, 1));
  EXPECT_TRUE(IsLocked(again.get(), byte));
}

ISOLATED_TEST(SharedMemoryDescriptorTest, ALockEndsWithAKilledProcess) {
  const FileDescriptor file = NewFile();
  Worker worker([&file](const Channel& channel) {
    const FileDescriptor again = Again(file);
    EXPECT_TRUE(SetLock(again.get(), F_WRLCK, 7, 1));
    channel.Signal();
    channel.Await();
  });
  worker.channel().Await();
  EXPECT_TRUE(IsLocked(file.get(), 7));
  worker.Kill();
  EXPECT_FALSE(IsLocked(file.get(), 7));
}

ISOLATED_TEST(SharedMemoryDescriptorTest, AnUnknownLockCountsAsHeld) {
  EXPECT_TRUE(IsLocked(-1, 0));
}

}  // namespace
