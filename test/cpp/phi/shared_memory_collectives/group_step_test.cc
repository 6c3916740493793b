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

// A rank is stopped or killed at each point where the other rank can observe
// its progress, while the other rank continues as far as it can.

#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>

#include "test/cpp/phi/shared_memory/stepped_process.h"
#include "test/cpp/phi/shared_memory_collectives/ranks.h"

namespace {

using namespace shared_memory_test;  // NOLINT(build/namespaces)
using CollectiveKind = CollectiveError::Kind;

class GroupStepTest : public shared_memory_test::SharedMemoryTestCase {
 protected:
  void SetUp() override {
    SharedMemoryTestCase::SetUp();
    if (!CanTrace()) GTEST_SKIP() << "Tracing is forbidden here.";
  }
};

// The ranks are processes that use no heap. Their message carries the id of a
// group.
constexpr auto kStrategy = SharingStrategy::kFileDescriptor;
constexpr int kNumbers = 20;  // more than a rank may be ahead

std::unique_ptr<GroupMemory> group;

void Create(ProcessState* state) {
  group = GroupMemory::Create(2);
  state->message = {};
  REQUIRE_TRUE(group->id().size() < sizeof(state->message));
  std::memcpy(&state->message, group->id().data(), group->id().size());
}

void Attach(ProcessState* state) {
  group = GroupMemory::Attach(
      std::string(reinterpret_cast<const char*>(&state->message)), 1);
}

void MeetOnce(ProcessState* state) { state->good = Sum(group.get(), 1) == 2; }

void LeaveGroup(ProcessState*) { group->Leave(); }

void DoNothing(ProcessState*) {}

bool IsOneOf(const Outcome& outcome,
             CollectiveKind first,
             CollectiveKind second) {
  return outcome.Is(first, 1) || outcome.Is(second, 1);
}

// The error that the first rank gets once the other one is gone.

void DetectDeath(ProcessState* state) {
  const Outcome outcome = OutcomeOf([] {
    for (;;) Sum(group.get(), 1);
  });
  EXPECT_TRUE(outcome.Is(CollectiveKind::kDied, 1)) << outcome;
  state->good = outcome.Says("was all_reduce number ");
}

void DetectDeathOrTimeout(ProcessState* state) {
  const Outcome outcome = OutcomeOf([] {
    for (;;) Sum(group.get(), 1, kSoon);
  });
  state->good =
      IsOneOf(outcome, CollectiveKind::kDied, CollectiveKind::kTimedOut);
}

void DetectDeathOrLeave(ProcessState* state) {
  const Outcome outcome = OutcomeOf([] {
    for (;;) Sum(group.get(), 1);
  });
  state->good = IsOneOf(outcome, CollectiveKind::kDied, CollectiveKind::kLeft);
}

// One rank publishes numbers, and does not wait until it is too far ahead.

void Give(int number) {
  Operation operation(group.get(), SomeOperation(), kNever);
  std::memcpy(operation.inline_data(group->rank()), &number, sizeof(number));
  operation.Publish(1);
  operation.End();
}

void GiveOne(ProcessState*) { Give(0); }

void GiveNumbers(ProcessState*) {
  for (int i = 0; i < kNumbers; ++i) Give(i);
}

bool Takes(int expected) {
  Operation operation(group.get(), SomeOperation(), kNever);
  operation.WaitFor(0, 1);
  int number;
  std::memcpy(&number, operation.inline_data(0), sizeof(number));
  operation.End();
  return number == expected;
}

void TakeTheFirst(ProcessState* state) { state->good = Takes(0); }

void TakeTheOthers(ProcessState* state) {
  for (int i = 1; i < kNumbers; ++i) state->good &= Takes(i);
}

// Creates a group in which both ranks have attached and met.
void MakeGroup(SteppedProcess* first, SteppedProcess* second) {
  second->Run(Attach, first->Run(Create).message);
  first->Start(MeetOnce);
  EXPECT_TRUE(second->Run(MeetOnce).good);
  EXPECT_TRUE(first->Wait().good);
}

ISOLATED_TEST(GroupStepTest, ARankKilledAnywhereInAnOperationFailsTheOther) {
  SteppedProcess first(kStrategy);
  AtEachStop(8, [&](Stop* stop) {
    SteppedProcess second(kStrategy);
    MakeGroup(&first, &second);
    first.Start(DetectDeath);
    stop->Begin(&second, MeetOnce);
    second.Kill();
    EXPECT_TRUE(first.Wait().good);
  });
}

ISOLATED_TEST(GroupStepTest, ARankKilledAnywhereAheadOfTheOtherFailsIt) {
  SteppedProcess first(kStrategy);
  AtEachStop(8, [&](Stop* stop) {
    SteppedProcess second(kStrategy);
    MakeGroup(&first, &second);
    stop->Begin(&second, GiveOne);
    second.Kill();
    EXPECT_TRUE(first.Run(DetectDeath).good);
  });
}

ISOLATED_TEST(GroupStepTest, ARankKilledAnywhereWhileItAttachesFailsTheOther) {
  SteppedProcess first(kStrategy);
  AtSomeStops(8, [&](Stop* stop) {
    SteppedProcess second(kStrategy);
    stop->Begin(&second, Attach, first.Run(Create).message);
    second.Kill();
    EXPECT_TRUE(first.Run(DetectDeathOrTimeout).good);
  });
}

ISOLATED_TEST(GroupStepTest, ARankKilledAnywhereWhileItLeavesFailsTheOther) {
  SteppedProcess first(kStrategy);
  AtEachStop(1, [&](Stop* stop) {
    SteppedProcess second(kStrategy);
    MakeGroup(&first, &second);
    first.Start(DetectDeathOrLeave);
    stop->Begin(&second, LeaveGroup);
    second.Kill();
    EXPECT_TRUE(first.Wait().good);
  });
}

ISOLATED_TEST(GroupStepTest, ARankStoppedAnywhereInAnOperationMeetsTheOther) {
  SteppedProcess first(kStrategy);
  SteppedProcess second(kStrategy);
  MakeGroup(&first, &second);
  AtEachStop(8, [&](Stop* stop) {
    first.Start(MeetOnce);
    stop->Begin(&second, MeetOnce);
    EXPECT_TRUE(stop->Complete().good);
    EXPECT_TRUE(first.Wait().good);
  });
}

ISOLATED_TEST(GroupStepTest, ARankStoppedAnywhereReadsNoDataOfLaterOperations) {
  SteppedProcess first(kStrategy);
  SteppedProcess second(kStrategy);
  AtEachStop(4, [&](Stop* stop) {
    MakeGroup(&first, &second);
    first.Start(GiveNumbers);
    stop->Begin(&second, TakeTheFirst);
    EXPECT_TRUE(stop->Complete().good);
    EXPECT_TRUE(second.Run(TakeTheOthers).good);
    first.Wait();
  });
}

ISOLATED_TEST(GroupStepTest, AnOperationThatOthersWaitInTakesFewSystemCalls) {
  SteppedProcess first(kStrategy);
  SteppedProcess second(kStrategy);
  MakeGroup(&first, &second);
  const int none = second.CountCalls(DoNothing);
  // When it publishes and when it ends, it may see that the other rank sleeps.
  constexpr int kWakeUps = 2;
  // At most one check whether the ranks are alive: two calls for the own
  // descriptor and the lock, and seven that read the status of a process.
  constexpr int kCheck = 9;
  first.Start(MeetOnce);
  ASSERT_TRUE(Eventually([&] { return first.IsInFutexCall(); }));
  EXPECT_LE(second.CountCalls(MeetOnce), none + kWakeUps + kCheck);
  EXPECT_TRUE(first.Wait().good);
}

}  // namespace
