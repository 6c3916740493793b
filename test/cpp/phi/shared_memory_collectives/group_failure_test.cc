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

// How a group fails: all ranks get the same error, with the reason.

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "test/cpp/phi/shared_memory_collectives/ranks.h"

namespace {

using namespace shared_memory_test;  // NOLINT(build/namespaces)
using CollectiveKind = CollectiveError::Kind;

class GroupFailureTest : public shared_memory_test::SharedMemoryTestCase {};

constexpr int kSurvivors = 2;
constexpr int kVictim = 2;  // the last rank

// All ranks meet twice. Then the last rank runs `victim`, and the others keep
// meeting until that fails, and try once more.
Ranks RanksThatLoseOne(const Ranks::Body& victim,
                       Milliseconds timeout = kNever) {
  return Ranks(kSurvivors + 1, [&](GroupMemory* group, const Channel& channel) {
    Meet(group);
    Meet(group);
    if (group->rank() == kVictim) return victim(group, channel);
    auto meet_forever = [&] {
      for (;;) Meet(group, timeout);
    };
    channel.Send(OutcomeOf(meet_forever));
    channel.Send(OutcomeOf([&] { Meet(group); }));
  });
}

// Expects that each survivor gets this error from the operation in flight, and
// from the next one.
void ExpectOfSurvivors(Ranks* ranks,
                       CollectiveKind kind,
                       const std::vector<std::string>& parts,
                       int about = kVictim) {
  std::string text;
  for (int rank = 0; rank < kSurvivors; ++rank) {
    for (int time = 0; time < 2; ++time) {
      const Outcome outcome = ranks->ReceiveOutcome(rank);
      EXPECT_TRUE(outcome.Is(kind, about)) << outcome;
      for (const std::string& part : parts) {
        EXPECT_TRUE(outcome.Says(part)) << part << " is not in: " << outcome;
      }
      if (text.empty()) text = outcome.text;
      EXPECT_EQ(outcome.text, text);
    }
    (*ranks)[rank].Finish();
  }
}

void AwaitDeath(GroupMemory*, const Channel& channel) {
  channel.Signal();
  channel.Await();
}

std::string ProcessOf(Ranks* ranks, int rank) {
  return "(process " + std::to_string((*ranks)[rank].pid()) + ")";
}

ISOLATED_TEST(GroupFailureTest, ARankThatIsKilledFailsTheOthers) {
  Ranks ranks = RanksThatLoseOne(AwaitDeath);
  ranks.channel(kVictim).Await();
  const std::string process = ProcessOf(&ranks, kVictim);
  ranks[kVictim].Kill();
  ExpectOfSurvivors(&ranks,
                    CollectiveKind::kDied,
                    {"Rank 2 " + process + " has died: it was killed",
                     "The last operation that it began was all_reduce number 2 "
                     "(4096 bytes, float32, sum). Start"});
}

ISOLATED_TEST(GroupFailureTest, TheErrorNamesTheOperationOfAKilledRank) {
  Ranks ranks =
      RanksThatLoseOne([](GroupMemory* group, const Channel& channel) {
        Operation operation(group, OperationInfo::Of("barrier", 0), kNever);
        AwaitDeath(group, channel);
      });
  ranks.channel(kVictim).Await();
  ranks[kVictim].Kill();
  ExpectOfSurvivors(&ranks,
                    CollectiveKind::kDied,
                    {"The last operation that it began, and did not end, was "
                     "barrier number 3 (0 bytes)"});
}

ISOLATED_TEST(GroupFailureTest, ARankThatIsKilledBeforeAllOperationsIsNamed) {
  Ranks ranks(2, [](GroupMemory* group, const Channel& channel) {
    if (group->rank() == 1) return AwaitDeath(group, channel);
    MeetUntilItFails(group, channel);
  });
  ranks.channel(1).Await();
  ranks[1].Kill();
  const Outcome outcome = ranks.ReceiveOutcome(0);
  EXPECT_TRUE(outcome.Is(CollectiveKind::kDied, 1)) << outcome;
  EXPECT_TRUE(outcome.Says("It had begun no operation")) << outcome;
}

ISOLATED_TEST(GroupFailureTest, RankZeroIsARankLikeTheOthers) {
  Ranks ranks(3, [](GroupMemory* group, const Channel& channel) {
    Meet(group);
    if (group->rank() == 0) return AwaitDeath(group, channel);
    MeetUntilItFails(group, channel);
  });
  ranks.channel(0).Await();
  ranks[0].Kill();
  for (int rank : {1, 2}) {
    const Outcome outcome = ranks.ReceiveOutcome(rank);
    EXPECT_TRUE(outcome.Is(CollectiveKind::kDied, 0)) << outcome;
  }
}

ISOLATED_TEST(GroupFailureTest, TwoRanksKilledTogetherCauseOneFailure) {
  Ranks ranks(4, [](GroupMemory* group, const Channel& channel) {
    Meet(group);
    if (group->rank() >= 2) return AwaitDeath(group, channel);
    MeetUntilItFails(group, channel);
  });
  for (int rank : {2, 3}) ranks.channel(rank).Await();
  for (int rank : {2, 3}) ranks[rank].Kill();
  const Outcome first = ranks.ReceiveOutcome(0);
  const Outcome second = ranks.ReceiveOutcome(1);
  EXPECT_EQ(first.kind, CollectiveKind::kDied);
  EXPECT_GE(first.rank, 2);
  EXPECT_STREQ(first.text, second.text);
}

ISOLATED_TEST(GroupFailureTest, AProcessThatEndsWithoutLeavingHasDied) {
  Ranks ranks =
      RanksThatLoseOne([](GroupMemory*, const Channel&) { _exit(0); });
  ExpectOfSurvivors(&ranks, CollectiveKind::kDied, {"ended without leaving"});
}

ISOLATED_TEST(GroupFailureTest, AProcessThatExitsHasLeft) {
  Ranks ranks =
      RanksThatLoseOne([](GroupMemory*, const Channel&) { std::exit(0); });
  const std::string process = ProcessOf(&ranks, kVictim);
  ExpectOfSurvivors(
      &ranks,
      CollectiveKind::kLeft,
      {"Rank 2 " + process + " has left the group", "all_reduce number 2"});
}

ISOLATED_TEST(GroupFailureTest, ARankThatDestroysItsGroupHasLeft) {
  Ranks ranks = RanksThatLoseOne([](GroupMemory*, const Channel&) {});
  ExpectOfSurvivors(&ranks, CollectiveKind::kLeft, {"has left the group"});
}

ISOLATED_TEST(GroupFailureTest, ARankThatLeavesFailsItsOwnThreads) {
  const auto group = GroupInOneProcess(2);
  Outcome outcome = {};
  std::thread waiting(
      [&] { outcome = OutcomeOf([&] { Meet(group[0].get()); }); });
  group[0]->Leave();
  waiting.join();
  EXPECT_TRUE(outcome.Is(CollectiveKind::kLeft, 0)) << outcome;
}

ISOLATED_TEST(GroupFailureTest, OperationsThatARankEndedBeforeItLeftComplete) {
  const auto group = GroupInOneProcess(2);
  {
    Operation operation(group[1].get(), SomeOperation(), kNever);
    operation.Publish(1);
    operation.End();
  }
  group[1]->Leave();
  Meet(group[0].get());
  const Outcome outcome = OutcomeOf([&] { Meet(group[0].get()); });
  EXPECT_TRUE(outcome.Is(CollectiveKind::kLeft, 1)) << outcome;
}

ISOLATED_TEST(GroupFailureTest, ARankThatAbortsAnOperationFailsTheOthers) {
  Ranks ranks = RanksThatLoseOne([](GroupMemory* group, const Channel&) {
    try {
      Operation operation(group, SomeOperation(), kNever);
      throw std::runtime_error("an error of the rank's own");
    } catch (const std::runtime_error&) {
    }
    const Outcome outcome = OutcomeOf([&] { Meet(group); });
    EXPECT_TRUE(outcome.Is(CollectiveKind::kAborted, kVictim)) << outcome;
  });
  ExpectOfSurvivors(&ranks,
                    CollectiveKind::kAborted,
                    {"aborted all_reduce number 3 (4096 bytes, float32, sum)"});
}

ISOLATED_TEST(GroupFailureTest, ARankMayAbortTheGroupForAReason) {
  Ranks ranks = RanksThatLoseOne([](GroupMemory* group, const Channel&) {
    group->Abort(0, "the reason");
  });
  ExpectOfSurvivors(&ranks, CollectiveKind::kAborted, {"The reason"}, 0);
}

ISOLATED_TEST(GroupFailureTest, ARankThatIsStoppedFailsTheOthersAtTheTimeout) {
  Ranks ranks = RanksThatLoseOne(
      [](GroupMemory* group, const Channel& channel) {
        AwaitDeath(group, channel);
        // Later operations of the stopped rank fail, like those of the others.
        channel.Send(OutcomeOf([&] { Meet(group); }));
      },
      kSoon);
  ranks.channel(kVictim).Await();
  kill(ranks[kVictim].pid(), SIGSTOP);
  const std::string process = ProcessOf(&ranks, kVictim);
  ExpectOfSurvivors(&ranks,
                    CollectiveKind::kTimedOut,
                    {" waited 50 ms in all_reduce number 3 ",
                     "for rank 2 " + process,
                     "The last operation that it began was all_reduce number "
                     "2 (4096 bytes, float32, sum)"});
  kill(ranks[kVictim].pid(), SIGCONT);
  ranks.channel(kVictim).Signal();
  const Outcome own = ranks.ReceiveOutcome(kVictim);
  EXPECT_TRUE(own.Is(CollectiveKind::kTimedOut, kVictim)) << own;
}

ISOLATED_TEST(GroupFailureTest,
              ARankThatNeverAttachesFailsTheOthersAtTheTimeout) {
  const auto group = GroupMemory::Create(2);
  const Outcome outcome = OutcomeOf([&] { Meet(group.get(), kSoon); });
  EXPECT_TRUE(outcome.Is(CollectiveKind::kTimedOut, 1)) << outcome;
  EXPECT_TRUE(outcome.Says("rank 1 (which has not attached)")) << outcome;
}

ISOLATED_TEST(GroupFailureTest, TheErrorOfDifferentOperationsDescribesBoth) {
  const OperationInfo others[] = {
      OperationInfo::Of("broadcast", 4096, "float32", "sum"),
      OperationInfo::Of("all_reduce", 4095, "float32", "sum"),
      OperationInfo::Of("all_reduce", 4096, "float16", "sum"),
      OperationInfo::Of("all_reduce", 4096, "float32", "max"),
      OperationInfo::Of("all_reduce", 4096, "float32", "sum", 0),
  };
  const std::string process = "(process " + std::to_string(getpid()) + ")";
  for (const OperationInfo& other : others) {
    const auto group = GroupInOneProcess(2);
    Operation first(group[0].get(), SomeOperation(), kNever);
    Operation second(group[1].get(), other, kNever);
    first.Publish(1);
    second.Publish(1);
    const Outcome of_second = OutcomeOf([&] { second.WaitFor(0, 1); });
    const Outcome of_first = OutcomeOf([&] { first.WaitFor(1, 1); });
    EXPECT_TRUE(of_second.Is(CollectiveKind::kMismatched, 0)) << of_second;
    EXPECT_STREQ(of_first.text, of_second.text);
    EXPECT_TRUE(of_first.Says(
        "Rank 1 " + process + " called " + std::string(other.name) +
        " number 1 " + other.Details() + ", but rank 0 " + process +
        " called all_reduce number 1 " + SomeOperation().Details()))
        << of_first;
  }
}

ISOLATED_TEST(GroupFailureTest, TheErrorOfDifferentMessageSizesDescribesBoth) {
  const auto group = GroupInOneProcess(2);
  Operation send(group[0].get(), OperationInfo::Of("send", 8), 0, 1, kNever);
  Operation receive(group[1].get(), OperationInfo::Of("recv", 9), 0, 1, kNever);
  send.Publish(1);
  const Outcome outcome = OutcomeOf([&] { receive.WaitFor(0, 1); });
  EXPECT_TRUE(outcome.Is(CollectiveKind::kMismatched, 0)) << outcome;
  EXPECT_TRUE(outcome.Says("called recv number 1 from rank 0 to rank 1 (9"))
      << outcome;
  EXPECT_TRUE(outcome.Says("called send number 1 from rank 0 to rank 1 (8"))
      << outcome;
}

ISOLATED_TEST(GroupFailureTest, APairDetectsTheDeathOfAnotherRank) {
  Ranks ranks(3, [](GroupMemory* group, const Channel& channel) {
    Meet(group);
    if (group->rank() == 2) return AwaitDeath(group, channel);
    if (group->rank() == 1) return channel.Await();
    channel.Send(OutcomeOf([&] { ReceiveNumber(group, 1); }));
  });
  ranks.channel(2).Await();
  ranks[2].Kill();
  const Outcome outcome = ranks.ReceiveOutcome(0);
  EXPECT_TRUE(outcome.Is(CollectiveKind::kDied, 2)) << outcome;
}

ISOLATED_TEST(GroupFailureTest, APairDoesNotNeedARankThatHasLeft) {
  const auto group = GroupInOneProcess(3);
  group[2]->Leave();
  Outcome outcome = {};
  std::thread receiver([&] {
    outcome =
        OutcomeOf([&] { EXPECT_EQ(ReceiveNumber(group[1].get(), 0), 5); });
  });
  // By then the receiver has checked whether the others are alive.
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  SendNumber(group[0].get(), 5, 1);
  receiver.join();
  EXPECT_FALSE(outcome.failed) << outcome;
}

// A sender of small data waits for no other rank.
ISOLATED_TEST(GroupFailureTest, ARankThatNeverWaitsDetectsADeath) {
  Ranks ranks(2, [](GroupMemory* group, const Channel& channel) {
    Meet(group);
    if (group->rank() == 1) return AwaitDeath(group, channel);
    channel.Await();
    // Longer than the interval between two checks of the others.
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    channel.Send(OutcomeOf([&] { SendNumber(group, 1, 1); }));
  });
  ranks.channel(1).Await();
  ranks[1].Kill();
  ranks.channel(0).Signal();
  const Outcome outcome = ranks.ReceiveOutcome(0);
  EXPECT_TRUE(outcome.Is(CollectiveKind::kDied, 1)) << outcome;
}

ISOLATED_TEST(GroupFailureTest, ARankWhoseDescriptorIsClosedReportsThis) {
  Ranks ranks =
      RanksThatLoseOne([](GroupMemory* group, const Channel& channel) {
        CloseAllBut(channel.fd());
        MeetUntilItFails(group, channel);
      });
  const Outcome outcome = ranks.ReceiveOutcome(kVictim);
  EXPECT_TRUE(outcome.Is(CollectiveKind::kClosed, kVictim)) << outcome;
  ExpectOfSurvivors(&ranks, CollectiveKind::kClosed, {"closed the group's"});
  ranks[kVictim].Finish();
}

ISOLATED_TEST(GroupFailureTest, UnreadableMemoryOfADeadRankReportsItsDeath) {
  Ranks ranks(2, [](GroupMemory* group, const Channel& channel) {
    Meet(group);
    if (group->rank() == 1) return AwaitDeath(group, channel);
    Operation operation(group, SomeOperation(), kNever);
    channel.Signal();
    channel.Await();
    channel.Send(OutcomeOf([&] { operation.ThrowUnreadable(1, "why"); }));
  });
  ranks.channel(0).Await();
  ranks.channel(1).Await();
  ranks[1].Kill();
  ranks.channel(0).Signal();
  const Outcome outcome = ranks.ReceiveOutcome(0);
  EXPECT_TRUE(outcome.Is(CollectiveKind::kDied, 1)) << outcome;
}

ISOLATED_TEST(GroupFailureTest, UnreadableMemoryOfALivingRankAbortsTheGroup) {
  const auto group = GroupInOneProcess(2);
  Operation operation(group[0].get(), SomeOperation(), kSoon);
  const Outcome outcome =
      OutcomeOf([&] { operation.ThrowUnreadable(1, "the reason"); });
  EXPECT_TRUE(outcome.Is(CollectiveKind::kAborted, 1)) << outcome;
  EXPECT_TRUE(outcome.Says("the reason")) << outcome;
}

}  // namespace
