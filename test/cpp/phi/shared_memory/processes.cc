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

#include "test/cpp/phi/shared_memory/processes.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>

namespace shared_memory_test {

namespace {

// Returns a word for a place that differs between neighbours and seeds.
uint64_t WordAt(uint64_t seed, uint64_t index) {
  return (seed + 1) * 0x9e3779b97f4a7c15 ^ index * 0xff51afd7ed558ccd;
}

std::vector<std::string> SharedMappings() {
  std::vector<std::string> mappings;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("/dev/shm/") != std::string::npos ||
        line.find("/memfd:") != std::string::npos) {
      mappings.push_back(line);
    }
  }
  return mappings;
}

}  // namespace

SharedHeap& Heap() {
  static SharedHeap& heap = [&]() -> SharedHeap& {
    SharedHeap& instance = SharedHeap::Instance();
    instance.Join(Family());
    std::atexit([] { SharedHeap::Instance().Leave(); });
    return instance;
  }();
  return heap;
}

bool UsesNothing() {
  Heap().Collect({});
  return Heap().Stats().used == 0;
}

void Fill(const SharedBlock& block, uint64_t seed) {
  for (uint64_t i = 0; i < block.capacity / sizeof(uint64_t); ++i) {
    reinterpret_cast<uint64_t*>(block.data)[i] = WordAt(seed, i);
  }
}

bool HasContent(const SharedBlock& block, uint64_t seed) {
  for (uint64_t i = 0; i < block.capacity / sizeof(uint64_t); ++i) {
    if (reinterpret_cast<uint64_t*>(block.data)[i] != WordAt(seed, i)) {
      return false;
    }
  }
  return true;
}

SharedBlock AllocateFilled(SharingStrategy strategy,
                           uint64_t size,
                           uint64_t seed) {
  const SharedBlock block = Heap().Allocate(strategy, size);
  Fill(block, seed);
  return block;
}

SharedMessage MessageOf(const SharedBlock& block) {
  const std::optional<SharedMessage> message = Heap().Send(block.data);
  REQUIRE_TRUE(message.has_value());
  return *message;
}

std::string PathOf(const SharedMessage& message) {
  if (message.id.strategy == SharingStrategy::kFileDescriptor) {
    return "/proc/" + std::to_string(message.id.pid) + "/fd/" +
           std::to_string(message.id.fd);
  }
  char name[80];
  std::snprintf(name,
                sizeof(name),
                "/dev/shm/paddle-%u-%016" PRIx64 "-%016" PRIx64,
                geteuid(),
                message.id.family,
                message.id.segment);
  return name;
}

uint64_t BytesOfFile(const std::string& path) {
  struct stat file = {};
  REQUIRE_EQ(stat(path.c_str(), &file), 0);
  return file.st_blocks * 512;
}

std::optional<SharedMemoryError> ErrorOf(const std::function<void()>& call) {
  try {
    call();
  } catch (const SharedMemoryError& error) {
    return error;
  }
  return std::nullopt;
}

std::optional<Kind> KindOf(const std::function<void()>& call) {
  return KindOf(ErrorOf(call));
}

std::optional<Kind> KindOf(const std::optional<SharedMemoryError>& error) {
  return error ? std::optional<Kind>(error->kind()) : std::nullopt;
}

Possessions Possessions::Now() {
  Possessions now{0, SharedMappings(), Files()};
  for (int fd = 0; fd < kLastDescriptor; ++fd) {
    if (fcntl(fd, F_GETFD) != -1) ++now.descriptors;
  }
  std::sort(now.files.begin(), now.files.end());
  return now;
}

bool Possessions::operator==(const Possessions& other) const {
  return descriptors == other.descriptors && mappings == other.mappings &&
         files == other.files;
}

std::ostream& operator<<(std::ostream& out, const Possessions& possessions) {
  out << possessions.descriptors << " descriptors";
  for (const auto& mapping : possessions.mappings) out << ", " << mapping;
  for (const auto& file : possessions.files) out << ", /dev/shm/" << file;
  return out;
}

void Channel::SendBytes(const void* bytes, size_t size) const {
  ASSERT_EQ(send(fd_, bytes, size, MSG_NOSIGNAL), static_cast<ssize_t>(size));
}

void Channel::ReceiveBytes(void* bytes, size_t size) const {
  pollfd readable = {fd_, POLLIN, 0};
  ASSERT_EQ(poll(&readable, 1, patience_), 1);
  ASSERT_EQ(recv(fd_, bytes, size, MSG_TRUNC), static_cast<ssize_t>(size));
}

bool Channel::HasMore() const {
  pollfd readable = {fd_, POLLIN, 0};
  return poll(&readable, 1, 0) == 1;
}

bool Channel::SaysMore() const {
  pollfd readable = {fd_, POLLIN, 0};
  REQUIRE_EQ(poll(&readable, 1, patience_), 1);
  char byte;
  return recv(fd_, &byte, 1, MSG_PEEK) > 0;
}

void CloseAllBut(int kept) {
  for (int fd = kFirstDescriptor; fd < kLastDescriptor; ++fd) {
    if (fd != kept) close(fd);
  }
}

Limited::Limited(int resource, uint64_t limit) : resource_(resource) {
  REQUIRE_EQ(getrlimit(resource_, &before_), 0);
  const rlimit lowered = {limit, before_.rlim_max};
  REQUIRE_EQ(setrlimit(resource_, &lowered), 0);
}

Limited::~Limited() { setrlimit(resource_, &before_); }

FewDescriptors::FewDescriptors(int spare)
    : limited_(RLIMIT_NOFILE, kLastDescriptor) {
  for (int fd = 0; fd >= 0;) {
    fd = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0);
    if (fd >= 0) fillers_.push_back(fd);
  }
  for (; spare > 0; --spare) {
    close(fillers_.back());
    fillers_.pop_back();
  }
}

FewDescriptors::~FewDescriptors() {
  for (int fd : fillers_) close(fd);
}

Worker::Worker(const std::function<void(const Channel&)>& body, bool starved) {
  int ends[2];
  REQUIRE_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  rlimit before = {};
  REQUIRE_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none = {0, before.rlim_max};
  if (starved) setrlimit(RLIMIT_NOFILE, &none);
  pid_ = fork();
  setrlimit(RLIMIT_NOFILE, &before);
  REQUIRE_TRUE(pid_ >= 0);
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(ends[0]);
    std::exit(isolated_test::RunToExitStatus(
        [&] { body(Channel(ends[1], Channel::kNoEnd)); }));
  }
  close(ends[1]);
  channel_ = Channel(ends[0]);
}

Worker::~Worker() {
  if (pid_ > 0) Kill();
  close(channel_.fd());
}

int Worker::AwaitChange() {
  int status = 0;
  REQUIRE_EQ(waitpid(pid_, &status, 0), pid_);
  if (!WIFSTOPPED(status)) pid_ = 0;
  return status;
}

void Worker::Finish() {
  shutdown(channel_.fd(), SHUT_WR);
  int status = 0;
  ASSERT_GT(pid_, 0);
  ASSERT_TRUE(Eventually([&] { return waitpid(pid_, &status, WNOHANG) != 0; }));
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  pid_ = 0;
}

void Worker::Kill() {
  ASSERT_GT(pid_, 0);  // other values mean other processes
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = 0;
}

}  // namespace shared_memory_test
