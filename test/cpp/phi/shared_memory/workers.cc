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

#include "test/cpp/phi/shared_memory/workers.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <vector>

namespace shared_memory_test {

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

void LookStartedWith(const std::string& variable) {
  // The fields of `stat` that follow the name. Two of them are the limits of
  // the memory that the kernel shows as the initial environment.
  constexpr size_t kStart = 47;
  constexpr size_t kEnd = 48;
  std::ifstream file("/proc/self/stat");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  std::istringstream rest(text.substr(text.rfind(')') + 1));
  const std::vector<std::string> fields{
      std::istream_iterator<std::string>(rest), {}};
  REQUIRE_TRUE(fields.size() > kEnd);
  const uint64_t start = std::strtoull(fields[kStart].c_str(), nullptr, 10);
  const uint64_t end = std::strtoull(fields[kEnd].c_str(), nullptr, 10);
  REQUIRE_TRUE(start != 0 && end - start > variable.size());
  std::memcpy(
      reinterpret_cast<char*>(start), variable.c_str(), variable.size() + 1);
}

}  // namespace shared_memory_test
