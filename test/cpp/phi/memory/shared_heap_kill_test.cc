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

// Processes that send, receive and send on, and are killed at any instant.
// Those that live must not notice, and in the end nothing may be left.

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "processes.h"  // NOLINT(build/include_subdir)

namespace {

using namespace shared_memory_test;  // NOLINT(build/namespaces)

constexpr int kWorkers = 4;  // the first is never killed
constexpr auto kDuration = std::chrono::seconds(4);
constexpr int kLongestLifeMicroseconds = 8000;

struct Mail {
  SharedMessage message;
  uint64_t seed;
};

// A queue that processes share and that the death of one leaves intact: a pipe,
// since it takes and gives each mail as a whole.
class Mailbox {
 public:
  Mailbox() {
    REQUIRE(pipe2(ends_, O_NONBLOCK | O_CLOEXEC) == 0);
    REQUIRE(fcntl(ends_[1], F_SETPIPE_SZ, 4096) > 0);
  }

  // What does not fit is lost, as messages can be.
  void Put(const Mail& mail) {
    const ssize_t written = write(ends_[1], &mail, sizeof(mail));
    CHECK(written == sizeof(mail) || written == -1);
  }

  std::optional<Mail> Take() {
    Mail mail;
    const ssize_t got = read(ends_[0], &mail, sizeof(mail));
    if (got == -1) return std::nullopt;
    CHECK(got == sizeof(mail));
    return mail;
  }

 private:
  int ends_[2];
};

enum Stage { kSharing, kDraining, kCollecting, kLeaving };

// What all processes of the test see.
struct Board {
  std::atomic<int> stage{kSharing};
  std::atomic<int> drained{0};
  std::atomic<int> collected{0};
};

struct Held {
  SharedBlock block;
  uint64_t seed;
};

class Sharer {
 public:
  Sharer(Board* board,
         std::array<Mailbox, kWorkers>* mailboxes,
         SharingStrategy strategy,
         int index,
         uint64_t life)
      : board_(board),
        mailboxes_(mailboxes),
        strategy_(strategy),
        index_(index),
        random_(Seed() + life * kWorkers + index) {}

  void Run() {
    while (board_->stage == kSharing) Step();
    while (const auto mail = (*mailboxes_)[index_].Take()) Receive(*mail);
    while (!held_.empty()) Drop(0);
    ++board_->drained;
    CHECK(Eventually([&] { return board_->stage == kCollecting; }));
    CHECK(Eventually([] {
      Heap().Collect(0.0);
      return Heap().Stats().used == 0;
    }));
    CHECK(Heap().Stats().messages == 0 && Heap().Stats().reserved == 0);
    ++board_->collected;
    CHECK(Eventually([&] { return board_->stage == kLeaving; }));
  }

 private:
  uint64_t Below(uint64_t end) { return random_() % end; }

  void Step() {
    const uint64_t choice = Below(100);
    if (choice < 35) {
      Allocate();
    } else if (choice < 65) {
      if (const auto mail = (*mailboxes_)[index_].Take()) Receive(*mail);
    } else if (choice < 90) {
      if (!held_.empty()) Send(held_[Below(held_.size())]);
    } else if (choice < 98) {
      if (!held_.empty()) Drop(Below(held_.size()));
    } else if (choice == 98) {
      Heap().Collect({});
    } else {
      Fork();
    }
    while (held_.size() > 12) Drop(Below(held_.size()));
  }

  void Allocate() {
    const uint64_t size = Below(4) == 0 ? Below(200000) : Below(3000);
    const uint64_t seed = random_();
    held_.push_back({AllocateFilled(strategy_, size, seed), seed});
  }

  void Send(const Held& held) {
    (*mailboxes_)[Below(kWorkers)].Put({MessageOf(held.block), held.seed});
  }

  void Receive(const Mail& mail) {
    try {
      const SharedBlock block = Heap().Receive(mail.message).block;
      CHECK(HasContent(block, mail.seed));
      held_.push_back({block, mail.seed});
    } catch (const SharedMemoryError& error) {
      // A descriptor is gone with the process that sent it; a file is not.
      if (strategy_ == SharingStrategy::kFileDescriptor &&
          error.kind() == Kind::kGone) {
        return;
      }
      throw;
    }
  }

  void Drop(size_t i) {
    CHECK(HasContent(held_[i].block, held_[i].seed));
    Heap().Release(held_[i].block);
    std::swap(held_[i], held_.back());
    held_.pop_back();
  }

  // A child that looks at all it has, and perhaps does not get far.
  void Fork() {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      bool good = true;
      for (const Held& held : held_) good &= HasContent(held.block, held.seed);
      if (!held_.empty()) Send(held_[0]);
      _exit(good ? 0 : 1);
    }
    const bool killed = Below(2) == 0;
    if (killed) kill(child, SIGKILL);
    int status = -1;
    waitpid(child, &status, 0);
    CHECK(status == 0 || (killed && WIFSIGNALED(status)));
  }

  Board* board_;
  std::array<Mailbox, kWorkers>* mailboxes_;
  SharingStrategy strategy_;
  int index_;
  std::mt19937_64 random_;
  std::vector<Held> held_;
};

Board* MakeBoard() {
  void* page = mmap(nullptr,
                    sizeof(Board),
                    PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS,
                    -1,
                    0);
  REQUIRE(page != MAP_FAILED);
  return new (page) Board;
}

// A process that ends by itself has failed.
bool Ended(pid_t pid) {
  siginfo_t info = {};
  waitid(P_PID, pid, &info, WEXITED | WNOHANG | WNOWAIT);
  return info.si_pid != 0;
}

TEST_BOTH(ProcessesThatAreKilledDisturbNobodyAndLeaveNothing) {
  Board* board = MakeBoard();
  std::array<Mailbox, kWorkers> mailboxes;
  uint64_t life = 0;
  auto start = [&](int index) {
    ++life;
    return std::make_unique<Worker>([&, index](const Channel&) {
      Sharer(board, &mailboxes, strategy, index, life).Run();
    });
  };
  std::array<std::unique_ptr<Worker>, kWorkers> workers;
  for (int i = 0; i < kWorkers; ++i) workers[i] = start(i);
  std::mt19937_64 random(Seed());
  const auto end = std::chrono::steady_clock::now() + kDuration;
  while (std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(
        std::chrono::microseconds(random() % kLongestLifeMicroseconds));
    const int victim = 1 + random() % (kWorkers - 1);
    for (const auto& worker : workers) CHECK(!Ended(worker->pid()));
    workers[victim]->Kill();
    workers[victim] = start(victim);
  }
  board->stage = kDraining;
  CHECK(Eventually([&] { return board->drained == kWorkers; }));
  board->stage = kCollecting;
  CHECK(Eventually([&] { return board->collected == kWorkers; }));
  board->stage = kLeaving;
  for (const auto& worker : workers) worker->Finish();
  CHECK(Files().empty());
}

}  // namespace
