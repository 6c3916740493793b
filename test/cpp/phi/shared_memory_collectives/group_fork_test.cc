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

// A fork does not affect a group, and the child is not a member of it.

#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "test/cpp/phi/shared_memory_collectives/ranks.h"

namespace {

using namespace shared_memory_test;  // NOLINT(build/namespaces)
using CollectiveKind = CollectiveError::Kind;

class GroupForkTest : public shared_memory_test::SharedMemoryTestCase {};

// Runs the body in a forked child, and waits for the child.
void InChild(const std::function<void()>& body) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  // Without a check for leaks: it would report memory that only another thread
  // of the parent refers to.
  if (child == 0) _exit(isolated_test::RunToExitStatus(body));
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

ISOLATED_TEST(GroupForkTest, AChildIsNotAMemberOfTheGroup) {
  auto group = GroupInOneProcess(2);
  InChild([&] {
    const Outcome meet = OutcomeOf([&] { Meet(group[0].get()); });
    EXPECT_TRUE(meet.Is(CollectiveKind::kForked, 0)) << meet;
    const Outcome abort = OutcomeOf([&] { group[1]->Abort(0, "no"); });
    EXPECT_TRUE(abort.Is(CollectiveKind::kForked, 1)) << abort;
    group[0]->Leave();
    for (const std::string& mapping : Possessions::Now().mappings) {
      ADD_FAILURE() << mapping;
    }
    group.clear();
  });
  std::thread other([&] { Meet(group[1].get()); });
  Meet(group[0].get());
  other.join();
}

ISOLATED_TEST(GroupForkTest, AChildHasNoDescriptorOfTheGroup) {
  const int before = Possessions::Now().descriptors;
  const auto group = GroupInOneProcess(2);
  InChild([&] { EXPECT_EQ(Possessions::Now().descriptors, before); });
}

ISOLATED_TEST(GroupForkTest, AChildMayCreateItsOwnGroup) {
  const auto group = GroupInOneProcess(2);
  InChild([] {
    const auto own = GroupInOneProcess(2);
    std::thread other([&] { Meet(own[1].get()); });
    Meet(own[0].get());
    other.join();
  });
}

ISOLATED_TEST(GroupForkTest, AnOperationInFlightBelongsToTheParentOnly) {
  const auto group = GroupInOneProcess(2);
  auto operation =
      std::make_unique<Operation>(group[0].get(), SomeOperation(), kNever);
  // The child destroys its copy of the operation, which must not abort it.
  InChild([&] { operation.reset(); });
  operation->Publish(1);
  operation->End();
  Meet(group[1].get());
}

ISOLATED_TEST(GroupForkTest, ForksDoNotDisturbThreadsThatMeet) {
  Ranks ranks(2, [](GroupMemory* group, const Channel&) {
    std::thread meeting([&] {
      for (int i = 0; i < 3000; ++i) Meet(group);
    });
    for (int i = 0; i < 30; ++i) {
      InChild([&] {
        const Outcome outcome = OutcomeOf([&] { Meet(group); });
        EXPECT_TRUE(outcome.Is(CollectiveKind::kForked, group->rank()));
      });
    }
    meeting.join();
  });
  ranks.Finish();
}

ISOLATED_TEST(GroupForkTest, AChildDoesNotKeepItsDeadParentAlive) {
  Ranks ranks(2, [](GroupMemory* group, const Channel& channel) {
    Meet(group);
    if (group->rank() == 0) return MeetUntilItFails(group, channel);
    if (fork() == 0) {
      channel.Signal();
      channel.SaysMore();  // until the test ends
      _exit(0);
    }
    channel.Await();
  });
  ranks.channel(1).Await();
  ranks[1].Kill();
  const Outcome outcome = ranks.ReceiveOutcome(0);
  EXPECT_TRUE(outcome.Is(CollectiveKind::kDied, 1)) << outcome;
}

// No fork handler runs for a raw clone, so the child keeps the descriptor.
ISOLATED_TEST(GroupForkTest, AChildOfCloneDoesNotKeepItsDeadParentAlive) {
  Ranks ranks(2, [](GroupMemory* group, const Channel& channel) {
    Meet(group);
    if (group->rank() == 0) return MeetUntilItFails(group, channel);
    if (syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) == 0) {
      channel.Signal();
      channel.SaysMore();  // until the test ends
      _exit(0);
    }
    channel.Await();
  });
  ranks.channel(1).Await();
  ranks[1].Kill();
  const Outcome outcome = ranks.ReceiveOutcome(0);
  EXPECT_TRUE(outcome.Is(CollectiveKind::kDied, 1)) << outcome;
}

ISOLATED_TEST(GroupForkTest, AChildThatExitsDoesNotLeaveForItsParent) {
  const auto group = GroupInOneProcess(2);
  InChild([] {});  // calls exit, which runs all handlers
  std::thread other([&] { Meet(group[1].get()); });
  Meet(group[0].get());
  other.join();
}

}  // namespace
