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

// Runs the reference counts in the executions that their memory orders allow,
// except those that weak_memory.h leaves out. This is the code of
// shared_ledger.cc with replaced atomics. The processor on which tests run may
// order accesses more strongly than the code requires.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "test/cpp/phi/shared_memory/shared_memory_test_case.h"
#include "test/cpp/phi/shared_memory/weak_memory.h"

namespace std {
template <typename T>
using explored_atomic = weak_memory::Atomic<T>;
}  // namespace std

#define atomic explored_atomic
#define SharedLedger ExploredLedger
#include "paddle/phi/core/memory/allocation/shared_memory/shared_ledger.cc"  // NOLINT
#undef SharedLedger
#undef atomic

namespace {

using paddle::memory::allocation::ExploredLedger;
using paddle::memory::allocation::SharedTicket;
using weak_memory::Atomic;
using weak_memory::Explorer;

class SharedLedgerOrderTest : public shared_memory_test::SharedMemoryTestCase {
};

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr auto kAcquire = std::memory_order_acquire;
constexpr auto kRelease = std::memory_order_release;
constexpr auto kSeqCst = std::memory_order_seq_cst;

// Returns whether some execution of two threads leads to the outcome.
bool CanBe(const std::function<void()>& prepare,
           const std::function<void()>& first,
           const std::function<void()>& second,
           const std::function<bool()>& outcome) {
  bool can_be = false;
  Explorer::Explore(prepare, {first, second}, [&] { can_be |= outcome(); });
  return can_be;
}

// Two atomics, and the values that were read from them.
struct Litmus {
  Atomic<uint64_t> x{};
  Atomic<uint64_t> y{};
  uint64_t read_x{};
  uint64_t read_y{};
  void Reset() { *this = Litmus(); }
};

bool APassedMessageCanBeStale(std::memory_order write, std::memory_order read) {
  Litmus t;
  return CanBe([&] { t.Reset(); },
               [&] {
                 t.x.store(1, kSeqCst);
                 t.y.fetch_or(1, write);
               },
               [&] {
                 t.read_y = t.y.exchange(0, read);
                 t.read_x = t.x.load(kSeqCst);
               },
               [&] { return t.read_y == 1 && t.read_x == 0; });
}

ISOLATED_TEST(SharedLedgerOrderTest,
              TheExplorerKnowsThatAReleaseSynchronizesWithAnAcquire) {
  EXPECT_FALSE(APassedMessageCanBeStale(kRelease, kAcquire));
  EXPECT_FALSE(APassedMessageCanBeStale(kSeqCst, kSeqCst));
  EXPECT_TRUE(APassedMessageCanBeStale(kRelaxed, kAcquire));
  EXPECT_TRUE(APassedMessageCanBeStale(kRelease, kRelaxed));
}

bool BothCanMissTheOther(std::memory_order order) {
  Litmus t;
  return CanBe([&] { t.Reset(); },
               [&] {
                 t.x.store(1, order);
                 t.read_y = t.y.load(order);
               },
               [&] {
                 t.y.store(1, order);
                 t.read_x = t.x.load(order);
               },
               [&] { return t.read_x == 0 && t.read_y == 0; });
}

ISOLATED_TEST(SharedLedgerOrderTest,
              TheExplorerKnowsThatOfTwoSeqCstWritersOneSeesTheOther) {
  EXPECT_FALSE(BothCanMissTheOther(kSeqCst));
  EXPECT_TRUE(BothCanMissTheOther(kRelaxed));
}

// The first writer of y publishes x. The second writer replaces its mark in y.
// Returns whether a thread that acquires both marks may miss x.
bool AReplacedMarkCanBeStale(const std::function<void(Litmus*)>& replace) {
  Litmus t;
  bool can_be = false;
  Explorer::Explore([&] { t.Reset(); },
                    {[&] {
                       t.x.store(1, kRelaxed);
                       t.y.fetch_or(1, kRelease);
                     },
                     [&] { replace(&t); },
                     [&] {
                       t.read_y = t.y.load(kAcquire);
                       t.read_x = t.x.load(kRelaxed);
                     }},
                    [&] { can_be |= t.read_y == 3 && t.read_x == 0; });
  return can_be;
}

ISOLATED_TEST(
    SharedLedgerOrderTest,
    TheExplorerKnowsThatOnlyAReadModifyWriteContinuesAReleaseSequence) {
  EXPECT_FALSE(
      AReplacedMarkCanBeStale([](Litmus* t) { t->y.fetch_or(2, kRelaxed); }));
  EXPECT_TRUE(
      AReplacedMarkCanBeStale([](Litmus* t) { t->y.store(3, kRelease); }));
}

constexpr uint32_t kOwner = ExploredLedger::kOwnerSlot;
constexpr uint32_t kOther = 7;
constexpr uint32_t kThird = 9;
constexpr uint32_t kPlaces = 8;  // for tickets
constexpr uint64_t kReserve = ExploredLedger::kMinReserve;

// A ledger of one block, always in the same memory, and its owner's operations.
class Scene {
 public:
  Scene()
      : memory_((ExploredLedger::HeaderBytes(kReserve) +
                 ExploredLedger::BlockBytes()) /
                sizeof(Line)) {}
  Scene(const Scene&) = delete;
  Scene& operator=(const Scene&) = delete;

  void Reset() {
    std::fill(memory_.begin(), memory_.end(), Line());
    ledger = ExploredLedger(memory_.data(), kReserve);
    ledger.Format(1, 2);
    ledger.AppendBlock(0, 64);
    seen_releases_ = 0;
    freed = 0;
  }

  // Like SharedBlocks::FreeReleased.
  void FreeReleased() {
    uint64_t releases = ledger.release_count();
    if (releases == seen_releases_) return;
    seen_releases_ = releases;
    bool released = (ledger.TakeReleased(0) & 1) != 0;
    if (released && freed == 0 && ledger.TryFree(0)) ++freed;
  }

  ExploredLedger ledger;
  int freed{0};

 private:
  struct alignas(64) Line {
    std::array<char, 64> bytes;
  };
  std::vector<Line> memory_;
  uint64_t seen_releases_{0};
};

ISOLATED_TEST(SharedLedgerOrderTest, ADroppedBlockIsFreedOnceItsMarkIsTaken) {
  Scene s;
  Explorer::Explore(
      [&] {
        s.Reset();
        s.ledger.AddHolder(0, kOther);
      },
      {[&] { s.ledger.ReleaseHolder(0, kOther); }, [&] { s.FreeReleased(); }},
      [&] {
        s.FreeReleased();
        EXPECT_EQ(s.freed, 1);
      });
}

ISOLATED_TEST(SharedLedgerOrderTest,
              ABlockDroppedByTwoIsFreedOnceTheLastMarkIsTaken) {
  Scene s;
  Explorer::Explore(
      [&] {
        s.Reset();
        s.ledger.AddHolder(0, kOther);
        s.ledger.AddHolder(0, kThird);
      },
      {[&] { s.ledger.ReleaseHolder(0, kOther); },
       [&] { s.ledger.ReleaseHolder(0, kThird); },
       [&] { s.FreeReleased(); }},
      [&] {
        s.FreeReleased();
        EXPECT_EQ(s.freed, 1);
      });
}

ISOLATED_TEST(SharedLedgerOrderTest,
              ABlockIsFreedWhileOneHolderIsReapedAndAnotherDropsIt) {
  Scene s;
  Explorer::Explore(
      [&] {
        s.Reset();
        s.ledger.SetSlot(kThird, ExploredLedger::kTaken, 1);
        s.ledger.AddHolder(0, kOther);
        s.ledger.AddHolder(0, kThird);
      },
      {[&] { s.ledger.ReleaseHolder(0, kOther); },
       [&] { s.ledger.ReapSlot(kThird); },
       [&] { s.FreeReleased(); }},
      [&] {
        s.FreeReleased();
        EXPECT_EQ(s.freed, 1);
      });
}

ISOLATED_TEST(SharedLedgerOrderTest,
              ABlockIsNotFreedWhileItsMessageIsReceived) {
  Scene s;
  SharedTicket ticket{};
  bool received = false;
  Explorer::Explore(
      [&] {
        s.Reset();
        s.ledger.AddHolder(0, kOwner);
        ticket = s.ledger.IssueTicket(0, 1, 1);
        received = false;
      },
      {[&] {
         s.ledger.AddHolder(0, kOther);
         received = s.ledger.RedeemTicket(0, ticket);
       },
       [&] {
         s.ledger.ReleaseHolder(0, kOwner);
         s.FreeReleased();
       }},
      [&] {
        EXPECT_TRUE(received);
        EXPECT_EQ(s.freed, 0);
        s.ledger.ReleaseHolder(0, kOther);
        s.FreeReleased();
        EXPECT_EQ(s.freed, 1);
      });
}

// A file is removed if it has no message and no attached process, in this
// order.
ISOLATED_TEST(SharedLedgerOrderTest,
              AProcessThatFindsNoMessageSeesTheSlotOfTheReceiver) {
  Scene s;
  SharedTicket ticket{};
  bool is_needed = false;
  Explorer::Explore(
      [&] {
        s.Reset();
        ticket = s.ledger.IssueTicket(0, 1, 1);
      },
      {[&] {
         s.ledger.SetSlot(kOther, ExploredLedger::kTaken, 1);
         s.ledger.RedeemTicket(0, ticket);
       },
       [&] {
         is_needed = s.ledger.HasMessages() ||
                     (s.ledger.slot_limit() > kOther &&
                      s.ledger.slot_state(kOther) == ExploredLedger::kTaken);
       }},
      [&] { EXPECT_TRUE(is_needed); });
}

// The word of the shared ticket may have its old value again (ABA).
ISOLATED_TEST(SharedLedgerOrderTest,
              AMessageThatSharesAnOldTicketDoesNotExpireWithIt) {
  Scene s;
  SharedTicket old{};
  SharedTicket fresh{};
  Explorer::Explore(
      [&] {
        s.Reset();
        s.ledger.AddHolder(0, kOwner);
        old = s.ledger.IssueTicket(0, 1, 100);
        for (uint32_t nonce = 2; nonce <= kPlaces; ++nonce) {
          s.ledger.IssueTicket(0, nonce, 101);
        }
      },
      {[&] { s.ledger.ExpireTickets(0, 100); },
       [&] {
         fresh = s.ledger.IssueTicket(0, kPlaces, 101);  // in the first place
         s.ledger.RedeemTicket(0, old);
       }},
      [&] { EXPECT_TRUE(s.ledger.RedeemTicket(0, fresh)); });
}

ISOLATED_TEST(SharedLedgerOrderTest,
              AnOldMessageExpiresUnlessItIsReceivedMeanwhile) {
  Scene s;
  SharedTicket ticket{};
  bool received = false;
  Explorer::Explore(
      [&] {
        s.Reset();
        ticket = s.ledger.IssueTicket(0, 1, 100);
        received = false;
      },
      {[&] { s.ledger.ExpireTickets(0, 100); },
       [&] { received = s.ledger.RedeemTicket(0, ticket); }},
      [&] {
        EXPECT_FALSE(s.ledger.RedeemTicket(0, ticket));
        EXPECT_FALSE(s.ledger.Referenced(0));
        // A receiver that is done releases its hold, which sets the mark.
        EXPECT_TRUE(received || s.ledger.TakeReleased(0) == 1);
      });
}

}  // namespace
