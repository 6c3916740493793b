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

// Processes send, receive and forward blocks, and are killed at any instant.
// The surviving processes must not be disturbed, and in the end nothing may be
// left.

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "test/cpp/phi/shared_memory/stress.h"

namespace {

using namespace shared_memory_test;  // NOLINT(build/namespaces)

class SharedHeapKillTest : public shared_memory_test::SharedMemoryTestCase {};

constexpr int kWorkers = 4;  // the first is never killed
constexpr int kForkedChild = kWorkers;

struct Mail {
  SharedMessage message;
  uint64_t seed;
  int sender;  // the index of a worker, or kForkedChild
};

using Mailboxes = std::array<ProcessMailbox<Mail>, kWorkers>;

struct Held {
  SharedBlock block;
  uint64_t seed;
};

class Sharer {
 public:
  Sharer(Board* board,
         Mailboxes* mailboxes,
         SharingStrategy strategy,
         int index,
         uint64_t life)
      : board_(board),
        mailboxes_(mailboxes),
        strategy_(strategy),
        index_(index),
        random_(Seed() + life * kWorkers + index) {}

  void Run() {
    const auto drain = [&] {
      while (const auto mail = (*mailboxes_)[index_].Take()) Receive(*mail);
      while (!held_.empty()) Drop(0);
    };
    TakePart(
        board_,
        [&] { Step(); },
        drain,
        [] {
          Heap().Collect(0.0);
          return Heap().Stats().reserved == 0;
        });
    EXPECT_EQ(Heap().Stats().messages, 0);
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
    (*mailboxes_)[Below(kWorkers)].Put(
        {MessageOf(held.block), held.seed, index_});
  }

  void Receive(const Mail& mail) {
    try {
      const SharedBlock block = Heap().Receive(mail.message).block;
      EXPECT_TRUE(HasContent(block, mail.seed));
      held_.push_back({block, mail.seed});
      ++board_->received;
    } catch (const SharedMemoryError& error) {
      // A descriptor ends with the process that sent it; a file does not.
      if (strategy_ == SharingStrategy::kFileDescriptor && mail.sender != 0 &&
          error.kind() == Kind::kGone) {
        return;
      }
      throw;
    }
  }

  void Drop(size_t i) {
    EXPECT_TRUE(HasContent(held_[i].block, held_[i].seed));
    Heap().Release(held_[i].block);
    std::swap(held_[i], held_.back());
    held_.pop_back();
  }

  // Forks a child that checks all blocks it has, if it is not killed before.
  void Fork() {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      index_ = kForkedChild;
      bool good = true;
      for (const Held& held : held_) good &= HasContent(held.block, held.seed);
      if (!held_.empty()) Send(held_[0]);
      _exit(good ? 0 : 1);
    }
    const bool killed = Below(2) == 0;
    if (killed) kill(child, SIGKILL);
    int status = -1;
    waitpid(child, &status, 0);
    EXPECT_TRUE(status == 0 || (killed && WIFSIGNALED(status)));
  }

  Board* board_;
  Mailboxes* mailboxes_;
  SharingStrategy strategy_;
  int index_;
  std::mt19937_64 random_;
  std::vector<Held> held_;
};

TEST_BOTH(SharedHeapKillTest,
          ProcessesThatAreKilledDisturbNobodyAndLeaveNothing) {
  Mailboxes mailboxes;
  const auto share = [&](Board* board, int index, uint64_t life) {
    Sharer(board, &mailboxes, strategy, index, life).Run();
  };
  RunWithRandomKills(kWorkers, share);
}

}  // namespace
