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

// Threads act as processes that share one ledger, each with its own slot. The
// content of a block is plain memory, so the thread sanitizer checks that the
// ledger alone establishes happens-before between uses of a block.

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "paddle/phi/core/memory/allocation/shared_memory/shared_ledger.h"
#include "test/cpp/phi/shared_memory/shared_memory_test_case.h"

namespace {

using paddle::memory::allocation::SharedLedger;
using paddle::memory::allocation::SharedTicket;
using shared_memory_test::Seed;

class SharedLedgerStressTest : public shared_memory_test::SharedMemoryTestCase {
};

constexpr uint32_t kOwner = SharedLedger::kOwnerSlot;
constexpr uint32_t kPlayers = 4;
constexpr uint32_t kBlocks = 16;
constexpr int kRounds = 8000;

// These slots are in different words of a block's holders.
constexpr std::array<uint32_t, kPlayers> kSlots = {2, 3, 100, 511};

struct Letter {
  uint32_t block;
  uint64_t generation;
  SharedTicket ticket;
};

class Inbox {
 public:
  void Put(const Letter& letter) {
    const std::lock_guard<std::mutex> guard(mutex_);
    letters_.push_back(letter);
  }

  std::optional<Letter> Take() {
    const std::lock_guard<std::mutex> guard(mutex_);
    if (letters_.empty()) return std::nullopt;
    const Letter letter = letters_.front();
    letters_.pop_front();
    return letter;
  }

  bool Full() {
    const std::lock_guard<std::mutex> guard(mutex_);
    return letters_.size() >= 64;
  }

 private:
  std::mutex mutex_;
  std::deque<Letter> letters_;
};

struct Content {
  uint64_t stamp;                         // the generation, by the owner
  std::array<uint64_t, kPlayers> traces;  // the generation, by each holder
};

struct alignas(64) Line {
  std::array<uint64_t, 8> words;
};

struct World {
  explicit World(bool troubles)
      : troubles(troubles),
        memory((SharedLedger::HeaderBytes(SharedLedger::kMinReserve) +
                kBlocks * SharedLedger::BlockBytes()) /
               sizeof(Line)),
        ledger(memory.data(), SharedLedger::kMinReserve) {
    ledger.Format(1, 2);
    for (uint32_t i = 0; i < kBlocks; ++i) ledger.AppendBlock(i * 64, 64);
  }

  // Whether processes die, messages are loaded twice or expire. If not,
  // every message must arrive.
  const bool troubles;
  std::vector<Line> memory;
  SharedLedger ledger;
  std::array<Content, kBlocks> contents{};
  std::array<Inbox, kPlayers> inboxes;
  std::atomic<uint64_t> clock{1};
  std::atomic<bool> stopping{false};
  std::atomic<uint32_t> senders{kPlayers + 1};
};

class Random {
 public:
  explicit Random(uint32_t stream) : engine_(Seed() * 16 + stream) {}
  uint32_t Below(uint32_t end) { return engine_() % end; }
  bool OneIn(uint32_t n) { return Below(n) == 0; }

 private:
  std::mt19937_64 engine_;
};

void Post(World* world, Random* random, uint32_t block, uint64_t generation) {
  Inbox& inbox = world->inboxes[random->Below(kPlayers)];
  if (inbox.Full()) return;
  const Letter letter = {
      block,
      generation,
      world->ledger.IssueTicket(
          block, 1 + random->Below(UINT32_MAX), world->clock.fetch_add(1))};
  inbox.Put(letter);
  if (world->troubles && random->OneIn(20)) {
    world->inboxes[random->Below(kPlayers)].Put(letter);
  }
}

// A process that receives, uses, forwards and drops blocks.
class Player {
 public:
  Player(World* world, uint32_t number)
      : world_(world),
        ledger_(world->ledger),
        number_(number),
        slot_(kSlots[number]),
        random_(number) {}

  void Run() {
    ledger_.SetSlot(slot_, SharedLedger::kTaken, number_);
    while (!world_->stopping) Step();
    --world_->senders;
    while (world_->senders != 0) std::this_thread::yield();
    while (const auto letter = Inbox().Take()) Receive(*letter);
    while (!held_.empty()) Drop(held_.begin()->first);
  }

 private:
  ::Inbox& Inbox() { return world_->inboxes[number_]; }

  void Step() {
    if (const auto letter = Inbox().Take()) Receive(*letter);
    if (held_.empty()) {
      std::this_thread::yield();
    } else {
      auto held = std::next(held_.begin(), random_.Below(held_.size()));
      Use(held->first, held->second);
      if (random_.OneIn(3)) {
        Post(world_, &random_, held->first, held->second);
      }
      if (random_.OneIn(2)) Drop(held->first);
    }
    if (world_->troubles && random_.OneIn(50)) Die();
  }

  void Receive(const Letter& letter) {
    const auto held = held_.find(letter.block);
    if (held != held_.end() && held->second == letter.generation) {
      EXPECT_TRUE(ledger_.RedeemTicket(letter.block, letter.ticket) ||
                  world_->troubles);
      return;
    }
    if (held != held_.end()) {
      EXPECT_TRUE(world_->troubles);
      return;
    }
    ledger_.AddHolder(letter.block, slot_);
    if (world_->troubles && random_.OneIn(100)) return Die();
    const bool redeemed = ledger_.RedeemTicket(letter.block, letter.ticket);
    if (world_->troubles && random_.OneIn(100)) return Die();
    EXPECT_TRUE(redeemed || world_->troubles);
    if (redeemed ? ledger_.generation(letter.block) == letter.generation
                 : ledger_.HasGeneration(letter.block, letter.generation)) {
      held_[letter.block] = letter.generation;
      world_->contents[letter.block].traces[number_] = letter.generation;
      Use(letter.block, letter.generation);
    } else {
      EXPECT_TRUE(world_->troubles);
      ledger_.ReleaseHolder(letter.block, slot_);
    }
  }

  void Use(uint32_t block, uint64_t generation) {
    EXPECT_EQ(ledger_.generation(block), generation);
    EXPECT_EQ(world_->contents[block].stamp, generation);
    EXPECT_EQ(world_->contents[block].traces[number_], generation);
  }

  void Drop(uint32_t block) {
    Use(block, held_.at(block));
    held_.erase(block);
    ledger_.ReleaseHolder(block, slot_);
  }

  // Leaves the slot as it is; the next process takes it.
  void Die() {
    held_.clear();
    ledger_.ReapSlot(slot_);
    ledger_.SetSlot(slot_, SharedLedger::kTaken, number_);
  }

  World* world_;
  SharedLedger& ledger_;
  uint32_t number_;
  uint32_t slot_;
  Random random_;
  std::map<uint32_t, uint64_t> held_;
};

// The owner of the segment.
class Owner {
 public:
  explicit Owner(World* world)
      : world_(world), ledger_(world->ledger), random_(kPlayers) {
    for (uint32_t i = 0; i < kBlocks; ++i) free_.push_back(i);
  }

  void Run() {
    for (int round = 0; round < kRounds; ++round) {
      FreeReleased();
      if (world_->troubles && random_.OneIn(100)) {
        ledger_.ExpireTickets(random_.Below(kBlocks), world_->clock - 20);
      }
      if (free_.empty()) {
        std::this_thread::yield();
      } else {
        SendNew();
      }
    }
    world_->stopping = true;
    --world_->senders;
  }

  // Frees blocks that were released; the marks must suffice to find them.
  void FreeReleased() {
    const uint64_t count = ledger_.release_count();
    if (count == seen_) return;
    seen_ = count;
    const uint64_t released = ledger_.TakeReleased(0);
    for (uint32_t block = 0; block < kBlocks; ++block) {
      const bool in_use =
          std::find(free_.begin(), free_.end(), block) == free_.end();
      if ((released >> block & 1) && in_use && ledger_.TryFree(block)) {
        free_.push_front(block);
      }
    }
  }

  bool AllAreFree() const { return free_.size() == kBlocks; }

 private:
  void SendNew() {
    const uint32_t block = free_.front();
    free_.pop_front();
    ledger_.AddHolder(block, kOwner);
    const uint64_t generation = ledger_.generation(block);
    Content& content = world_->contents[block];
    content.stamp = generation;
    content.traces.fill(0);
    for (uint32_t i = random_.Below(12); i > 0; --i) {
      Post(world_, &random_, block, generation);
    }
    EXPECT_EQ(content.stamp, generation);
    ledger_.ReleaseHolder(block, kOwner);
  }

  World* world_;
  SharedLedger& ledger_;
  Random random_;
  std::deque<uint32_t> free_;
  uint64_t seen_{0};
};

void Play(bool troubles) {
  const auto world = std::make_unique<World>(troubles);
  Owner owner(world.get());
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < kPlayers; ++i) {
    threads.emplace_back([&world, i] { Player(world.get(), i).Run(); });
  }
  owner.Run();
  for (std::thread& thread : threads) thread.join();
  for (uint32_t block = 0; block < kBlocks; ++block) {
    if (troubles) world->ledger.ExpireTickets(block, UINT64_MAX);
    EXPECT_EQ(world->ledger.TicketCount(block), 0);
  }
  owner.FreeReleased();
  EXPECT_TRUE(owner.AllAreFree());
}

// Repeats `body` in another thread, while this thread runs the other function.
void Against(const std::function<void()>& body,
             const std::function<void()>& other) {
  constexpr int kTimes = 1000000;
  std::atomic<bool> ended{false};
  std::thread thread([&] {
    while (!ended) body();
  });
  for (int i = 0; i < kTimes; ++i) other();
  ended = true;
  thread.join();
}

// The ledger is read word by word. A reference must not escape by moving from a
// word that was not read yet to a word that was already read.
ISOLATED_TEST(SharedLedgerStressTest, AReferenceThatMovesIsAlwaysSeen) {
  World world(false);
  SharedLedger& ledger = world.ledger;
  const uint64_t generation = ledger.generation(0);
  const auto try_to_free = [&] { EXPECT_FALSE(ledger.TryFree(0)); };
  ledger.AddHolder(0, 2);
  Against(try_to_free, [&] {  // as a message does
    const SharedTicket ticket = ledger.IssueTicket(0, 1, 1);
    ledger.ReleaseHolder(0, 2);
    ledger.AddHolder(0, 2);
    EXPECT_TRUE(ledger.RedeemTicket(0, ticket));
  });
  Against(try_to_free, [&] {  // as a fork does
    ledger.AddHolder(0, 511);
    ledger.ReleaseHolder(0, 2);
    ledger.AddHolder(0, 2);
    ledger.ReleaseHolder(0, 511);
  });
  EXPECT_EQ(ledger.generation(0), generation);
}

// One process sets a bit without a ticket while another one frees the block.
ISOLATED_TEST(SharedLedgerStressTest, ABlockStaysAsItIsOnceItHasTheGeneration) {
  World world(false);
  SharedLedger& ledger = world.ledger;
  Content& content = world.contents[0];
  std::atomic<uint64_t> current{ledger.generation(0)};
  content.stamp = current;
  Against(
      [&] {
        if (!ledger.TryFree(0)) return;
        content.stamp = ledger.generation(0);
        current = ledger.generation(0);
      },
      [&] {
        const uint64_t generation = current;
        ledger.AddHolder(0, 2);
        if (ledger.HasGeneration(0, generation)) {
          EXPECT_EQ(content.stamp, generation);
        }
        ledger.ReleaseHolder(0, 2);
      });
}

ISOLATED_TEST(SharedLedgerStressTest,
              EveryMessageArrivesAndEveryBlockIsFreeInTheEnd) {
  Play(false);
}

ISOLATED_TEST(
    SharedLedgerStressTest,
    NoHeldBlockIsFreedWhenProcessesDieAndMessagesAreLoadedTwiceOrGivenUp) {
  Play(true);
}

}  // namespace
