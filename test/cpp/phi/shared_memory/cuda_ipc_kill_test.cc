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

// Processes receive memory of one device, check it, forward it and drop it, and
// are killed at any instant. The memory must not be freed while any process
// uses it (the stand-in driver then ends the process), and in the end all of it
// must be freed. If the owner itself is killed, its messages are gone, and
// nothing else happens to the other processes.

#include <array>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "test/cpp/phi/shared_memory/devices.h"
#include "test/cpp/phi/shared_memory/stress.h"

namespace {

using namespace shared_memory_test;  // NOLINT(build/namespaces)

class CudaIPCKillTest : public shared_memory_test::SharedMemoryTestCase {};

constexpr int kProcesses = 4;  // the first is never killed
constexpr size_t kMostHeld = 8;

struct Mail {
  CudaIPCMessage message;
  uint32_t word;
  int sender;
};

using Mailboxes = std::array<ProcessMailbox<Mail>, kProcesses>;

struct Held {
  Storage storage;
  uint32_t word;
};

class Sharer {
 public:
  Sharer(Board* board,
         Mailboxes* mailboxes,
         SharingStrategy strategy,
         int owner,
         int index,
         uint64_t life)
      : board_(board),
        mailboxes_(mailboxes),
        strategy_(strategy),
        owner_(owner),
        index_(index),
        random_(Seed() + life * kProcesses + index),
        stream_(MakeStream()) {}

  void Run() {
    const auto drain = [&] {
      while (const auto mail = Mine().Take()) Receive(*mail);
      while (!held_.empty()) Drop(0);
    };
    TakePart(
        board_,
        [&] { Step(); },
        drain,
        [] {
          DeviceHeap().Collect(0.0);
          return SharesNothing();
        });
    EXPECT_TRUE(!OwnerIsKilled() || board_->gone > 0);
  }

 private:
  uint64_t Below(uint64_t end) { return random_() % end; }
  ProcessMailbox<Mail>& Mine() { return (*mailboxes_)[index_]; }
  bool OwnerIsKilled() const { return owner_ != 0; }
  bool MayBeGone(const Mail& mail) const {
    // A descriptor ends with the process that sent it; a file does not.
    return OwnerIsKilled() ||
           (strategy_ == SharingStrategy::kFileDescriptor && mail.sender != 0);
  }
  void Check(const Storage& storage, uint32_t word) const {
    // A real driver promises nothing about memory whose owner has ended.
    if (OwnerIsKilled() && !HasStandIn()) return;
    EXPECT_TRUE(HasContent(storage->memory, word, stream_));
  }

  void Step() {
    const uint64_t choice = Below(100);
    if (choice < 20) {
      if (index_ == owner_) Make();
    } else if (choice < 60) {
      if (const auto mail = Mine().Take()) Receive(*mail);
    } else if (choice < 85) {
      if (!held_.empty()) Send(held_[Below(held_.size())]);
    } else if (choice < 98) {
      if (!held_.empty()) Drop(Below(held_.size()));
    } else {
      DeviceHeap().Collect({});
    }
    while (held_.size() > kMostHeld) Drop(Below(held_.size()));
  }

  void Make() {
    const uint32_t word = Below(UINT32_MAX);
    const Storage storage = Below(2) == 0 ? Allocate(4 * (1 + Below(5000)))
                                          : AllocateInChunks({1, 1});
    Fill(storage->memory, word, stream_);
    // A process that expects a tensor from a killed process need not wait.
    EXPECT_TRUE(HasContent(storage->memory, word, stream_));
    held_.push_back({storage, word});
  }

  void Send(const Held& held) {
    (*mailboxes_)[Below(kProcesses)].Put(
        {MessageOf(held.storage, strategy_, stream_), held.word, index_});
  }

  void Receive(const Mail& mail) {
    try {
      const Storage storage = StorageOf(mail.message, stream_);
      Check(storage, mail.word);
      held_.push_back({storage, mail.word});
      ++board_->received;
    } catch (const SharedMemoryError& error) {
      if (!MayBeGone(mail) || error.kind() != Kind::kGone) throw;
      ++board_->gone;
    }
  }

  void Drop(size_t i) {
    Check(held_[i].storage, held_[i].word);
    std::swap(held_[i], held_.back());
    held_.pop_back();
  }

  Board* board_;
  Mailboxes* mailboxes_;
  const SharingStrategy strategy_;
  const int owner_;  // of all memory
  const int index_;
  std::mt19937_64 random_;
  const Stream stream_;
  std::vector<Held> held_;
};

void ShareAndKill(SharingStrategy strategy, int owner) {
  Mailboxes mailboxes;
  const auto share = [&](Board* board, int index, uint64_t life) {
    Sharer(board, &mailboxes, strategy, owner, index, life).Run();
  };
  RunWithRandomKills(kProcesses, share);
}

TEST_BOTH(CudaIPCKillTest, MemoryIsFreedWhenNobodyUsesItWhoeverIsKilled) {
  ShareAndKill(strategy, 0);
}

TEST_BOTH(CudaIPCKillTest, MessagesOfAKilledOwnerAreGoneAndDisturbNobody) {
  ShareAndKill(strategy, 1);
}

}  // namespace
