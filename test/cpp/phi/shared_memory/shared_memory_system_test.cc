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

// System information that the core uses: files, processes, errors, random bits,
// and the amount of memory.

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <system_error>
#include <thread>

#include "paddle/phi/core/memory/allocation/shared_memory/default_memory_limit.h"
#include "paddle/phi/core/memory/allocation/shared_memory/file_descriptor.h"
#include "paddle/phi/core/memory/allocation/shared_memory/process_status.h"
#include "paddle/phi/core/memory/allocation/shared_memory/random_bits.h"
#include "test/cpp/phi/shared_memory/workers.h"

namespace {

using namespace shared_memory_test;  // NOLINT(build/namespaces)
using paddle::memory::allocation::DefaultMemoryLimit;
using paddle::memory::allocation::EffectiveUserOf;
using paddle::memory::allocation::FileDescriptor;
using paddle::memory::allocation::HasEnded;
using paddle::memory::allocation::HumanBytes;
using paddle::memory::allocation::OpenFile;
using paddle::memory::allocation::RandomBits;
using paddle::memory::allocation::ReadFile;
using paddle::memory::allocation::ReadProcessStat;
using paddle::memory::allocation::ThrowErrno;

class SharedMemorySystemTest : public SharedMemoryTestCase {};

// A folder with files like those of the system.
class Folder {
 public:
  Folder() {
    char folder[] = "/tmp/shared_memory_testXXXXXX";
    REQUIRE_TRUE(mkdtemp(folder) != nullptr);
    path_ = folder;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::string& path() const { return path_; }
  void Write(const std::string& name, const std::string& text) const {
    const std::filesystem::path file = path_ + name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }

 private:
  std::string path_;
};

std::string FolderOf(pid_t process) {
  return "/proc/" + std::to_string(process);
}

ISOLATED_TEST(SharedMemorySystemTest, AFileOfAnySizeIsReadCompletely) {
  const Folder folder;
  for (size_t size : {0, 1, 4096, 10000}) {
    folder.Write("/file", std::string(size, 'x'));
    EXPECT_EQ(ReadFile(folder.path() + "/file"), std::string(size, 'x'));
  }
  EXPECT_FALSE(ReadFile(folder.path() + "/none").has_value());
  EXPECT_EQ(errno, ENOENT);
}

ISOLATED_TEST(SharedMemorySystemTest, AProcessThatRunsIsNotDead) {
  // The name is in the same line, before the state.
  prctl(PR_SET_NAME, ") Z (");
  const auto stat = ReadProcessStat(FolderOf(getpid()));
  ASSERT_TRUE(stat.has_value());
  EXPECT_EQ(stat->state, "R");
  EXPECT_FALSE(stat->IsDead());
  EXPECT_FALSE(stat->IsExiting());
  EXPECT_FALSE(stat->IsKernelThread());
  EXPECT_TRUE(stat->has_environment);
}

ISOLATED_TEST(SharedMemorySystemTest, AProcessThatHasEndedIsDead) {
  const pid_t process = fork();
  if (process == 0) _exit(0);
  siginfo_t info = {};
  ASSERT_EQ(waitid(P_PID, process, &info, WEXITED | WNOWAIT), 0);
  const auto stat = ReadProcessStat(FolderOf(process));
  ASSERT_TRUE(stat.has_value());
  EXPECT_TRUE(stat->IsDead());
  EXPECT_FALSE(HasEnded(process));
  ASSERT_EQ(waitpid(process, nullptr, 0), process);
  EXPECT_TRUE(HasEnded(process));
  EXPECT_FALSE(ReadProcessStat(FolderOf(process)).has_value());
  EXPECT_FALSE(EffectiveUserOf(process).has_value());
}

ISOLATED_TEST(SharedMemorySystemTest, TheFlagsOfAProcessAreRead) {
  const Folder folder;
  auto with_flags = [&folder](uint32_t flags) {
    folder.Write("/stat",
                 "7 (name) S 1 1 1 0 -1 " + std::to_string(flags) + " 0 0\n");
    const auto stat = ReadProcessStat(folder.path());
    REQUIRE_TRUE(stat.has_value());
    return *stat;
  };
  EXPECT_TRUE(with_flags(0x4).IsExiting());
  EXPECT_FALSE(with_flags(0x4).IsKernelThread());
  EXPECT_TRUE(with_flags(0x200000).IsKernelThread());
  EXPECT_FALSE(with_flags(0x200000).IsExiting());
}

ISOLATED_TEST(SharedMemorySystemTest, TheStartOfAProcessIsRead) {
  const Folder folder;
  const std::string first = "7 (name) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0";
  folder.Write("/stat", first + " 123456789012 0\n");
  EXPECT_EQ(ReadProcessStat(folder.path())->start, 123456789012);
  folder.Write("/stat", first);
  EXPECT_EQ(ReadProcessStat(folder.path())->start, 0);
}

ISOLATED_TEST(SharedMemorySystemTest, ATruncatedStatusIsUnknown) {
  const Folder folder;
  for (const char* text : {"", "7 (name", "7 (name) S 1 1"}) {
    folder.Write("/stat", text);
    EXPECT_FALSE(ReadProcessStat(folder.path()).has_value()) << text;
  }
}

ISOLATED_TEST(SharedMemorySystemTest, TheUserOfAProcessIsTheEffectiveOne) {
  EXPECT_EQ(EffectiveUserOf(getpid()), geteuid());
  if (geteuid() != 0) return;  // only root can change its user
  const uint32_t nobody = 65534;
  ASSERT_EQ(seteuid(nobody), 0);
  EXPECT_EQ(EffectiveUserOf(getpid()), nobody);
  // A sanitizer inspects the memory of its process at exit.
  ASSERT_EQ(seteuid(0), 0);
  prctl(PR_SET_DUMPABLE, 1);
}

std::string TextOf(int error) {
  errno = error;
  return ErrorOf([] { ThrowErrno("Reading the stars"); })->what();
}

ISOLATED_TEST(SharedMemorySystemTest, AnErrorSaysWhatFailedAndWhy) {
  EXPECT_EQ(TextOf(EIO),
            "Reading the stars failed: " + std::string(std::strerror(EIO)) +
                " (errno " + std::to_string(EIO) + ").");
}

ISOLATED_TEST(SharedMemorySystemTest, AnErrorThatHasARemedyNamesIt) {
  EXPECT_NE(TextOf(EMFILE).find("ulimit -n, now "), std::string::npos);
  EXPECT_NE(TextOf(ENOMEM).find("ulimit -v, now "), std::string::npos);
  EXPECT_NE(TextOf(EOPNOTSUPP).find("set_sharing_strategy"), std::string::npos);
}

ISOLATED_TEST(SharedMemorySystemTest,
              ExhaustionIsDistinguishedFromOtherErrors) {
  auto kind = [](int error) {
    return KindOf([error] {
      errno = error;
      ThrowErrno("");
    });
  };
  for (int error : {ENOSPC, ENOMEM, EMFILE, ENFILE, EDQUOT, EFBIG}) {
    EXPECT_EQ(kind(error), Kind::kExhausted) << std::strerror(error);
  }
  for (int error : {EIO, EACCES, EINVAL}) {
    EXPECT_EQ(kind(error), Kind::kSystem) << std::strerror(error);
  }
}

ISOLATED_TEST(SharedMemorySystemTest, SizesAreWrittenForPeople) {
  EXPECT_EQ(HumanBytes(0), "0 B");
  EXPECT_EQ(HumanBytes(1023), "1023 B");
  EXPECT_EQ(HumanBytes(1536), "1.5 KiB");
  EXPECT_EQ(HumanBytes(8 * kMiB), "8.0 MiB");
  EXPECT_EQ(HumanBytes(uint64_t{5000} << 40), "5000.0 TiB");
}

ISOLATED_TEST(SharedMemorySystemTest, RandomBitsDiffer) {
  std::set<uint64_t> drawn;
  for (int i = 0; i < 1000; ++i) drawn.insert(RandomBits());
  EXPECT_EQ(drawn.size(), 1000);
  EXPECT_EQ(drawn.count(0), 0);
}

// The files in which a process finds the limits of its control groups.
class Root : public Folder {
 public:
  explicit Root(const std::string& groups) {
    Write("/proc/self/cgroup", groups);
  }
  uint64_t Memory() const { return DefaultMemoryLimit(path()); }
};

const uint64_t kMachine =
    static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);

ISOLATED_TEST(SharedMemorySystemTest,
              WithoutControlGroupsTheMachinesMemoryIsTheLimit) {
  EXPECT_EQ(Root("").Memory(), kMachine);
  EXPECT_EQ(Root("no line of this kind\n::\n").Memory(), kMachine);
  EXPECT_EQ(Root("0::/a/b\n4:memory:/a\n").Memory(), kMachine);
}

ISOLATED_TEST(SharedMemorySystemTest,
              AProgramThatStartsMeanwhileInheritsNoFileOfControlGroups) {
  const Root root("");
  const std::string groups = root.path() + "/proc/self/cgroup";
  ASSERT_EQ(unlink(groups.c_str()), 0);
  ASSERT_EQ(mkfifo(groups.c_str(), 0600), 0);
  // Reading a pipe lasts until its other end is closed.
  std::thread reader([&] { EXPECT_EQ(root.Memory(), kMachine); });
  FileDescriptor writer = OpenFile(groups, O_WRONLY);
  const auto is_reader = [&](int fd) {
    const std::string link = "/proc/self/fd/" + std::to_string(fd);
    std::error_code error;
    return fd != writer.get() &&
           std::filesystem::read_symlink(link, error) == groups;
  };
  int fd = 0;
  EXPECT_TRUE(Eventually([&] {
    for (fd = 0; fd < 100; ++fd) {
      if (is_reader(fd)) return true;
    }
    return false;
  }));
  EXPECT_NE(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
  writer.Close();
  reader.join();
}

ISOLATED_TEST(SharedMemorySystemTest,
              TheLowestLimitOfAControlGroupAndItsParentsCounts) {
  const Root root("0::/above/own\n");
  root.Write("/sys/fs/cgroup/above/own/memory.max", "max\n");
  EXPECT_EQ(root.Memory(), kMachine);
  root.Write("/sys/fs/cgroup/above/own/memory.max", "0\n");
  EXPECT_EQ(root.Memory(), kMachine);
  root.Write("/sys/fs/cgroup/above/memory.max", "4194304\n");
  EXPECT_EQ(root.Memory(), 4 * kMiB);
  root.Write("/sys/fs/cgroup/above/own/memory.max", "8388608\n");
  EXPECT_EQ(root.Memory(), 4 * kMiB);
  root.Write("/sys/fs/cgroup/memory.max", "1048576\n");
  EXPECT_EQ(root.Memory(), kMiB);
  root.Write("/sys/fs/cgroup/above/own/other/memory.max", "4096\n");
  EXPECT_EQ(root.Memory(), kMiB);
  root.Write("/sys/fs/cgroup/above/own/memory.max", "65536\n");
  EXPECT_EQ(root.Memory(), 65536);
}

ISOLATED_TEST(SharedMemorySystemTest,
              ALimitOfTheFirstVersionOfControlGroupsCounts) {
  const Root root("5:cpu,cpuacct:/cpu\n4:hugetlb,memory:/docker/own\n0::/\n");
  const std::string memory = "/sys/fs/cgroup/memory";
  root.Write(memory + "/docker/own/memory.limit_in_bytes",
             "9223372036854771712\n");
  EXPECT_EQ(root.Memory(), kMachine);
  // Inside a container, the group's folder is where the root's would be.
  root.Write(memory + "/memory.limit_in_bytes", "3145728\n");
  EXPECT_EQ(root.Memory(), 3 * kMiB);
  root.Write(memory + "/cpu/memory.limit_in_bytes", "4096\n");
  EXPECT_EQ(root.Memory(), 3 * kMiB);
}

}  // namespace
