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

// One process stops after an instruction, whichever it is, while another does
// what could hurt it; or it is killed there. The kernel's tracing does the
// stepping, so nothing in the code under test knows of it.

#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <random>

#include "processes.h"  // NOLINT(build/include_subdir)

namespace {

using namespace shared_memory_test;  // NOLINT(build/namespaces)

constexpr uint64_t kSize = 4096;
// What a test may cost. The instructions to stop after are chosen accordingly.
constexpr int64_t kSteps = 25000;

// What a process has, and what it is asked and answers.
struct Scene {
  SharingStrategy strategy;
  SharedMessage message;
  SharedBlock block;
  bool has_block;
  bool good;
};

// All processes are forked from one, so that an address is good in each.
using Act = void (*)(Scene*);

struct Request {
  Act act;
  SharedMessage message;
  bool stepped;
};

struct Answer {
  SharedMessage message;
  bool good;
};

void Make(Scene* scene) {
  scene->block = AllocateFilled(scene->strategy, kSize, 1);
  scene->message = MessageOf(scene->block);
  scene->has_block = true;
}

void Release(Scene* scene) {
  if (scene->has_block) Heap().Release(scene->block);
  scene->has_block = false;
}

void MakeAndRelease(Scene* scene) {
  Make(scene);
  Release(scene);
}

// A message that cannot be received any more is a good answer, too.
void Receive(Scene* scene) {
  try {
    scene->block = Heap().Receive(scene->message).block;
    scene->has_block = true;
  } catch (const SharedMemoryError& error) {
    scene->good = error.kind() == Kind::kGone;
  }
}

void CheckAndRelease(Scene* scene) {
  scene->good = scene->has_block && HasContent(scene->block, 1);
  Release(scene);
}

// Whatever was received is as it was.
void CheckIfAny(Scene* scene) {
  if (scene->has_block) CheckAndRelease(scene);
}

void Forward(Scene* scene) {
  scene->message = MessageOf(scene->block);
  Release(scene);
}

void FreeWhatNobodyHas(Scene*) { Heap().Stats(); }

void Overwrite(Scene* scene) {
  SharedBlock blocks[3];
  for (SharedBlock& block : blocks) {
    block = AllocateFilled(scene->strategy, kSize, 2);
  }
  for (const SharedBlock& block : blocks) Heap().Release(block);
}

void ReleaseAndOverwrite(Scene* scene) {
  Release(scene);
  Overwrite(scene);
}

void ReceiveAndRelease(Scene* scene) {
  Receive(scene);
  Release(scene);
}

void CheckThatNothingIsUsed(Scene* scene) {
  scene->good = Heap().Stats().used == 0;
}

// After the death of another.
void CollectUntilNothingIsUsed(Scene* scene) {
  scene->good = Eventually([] {
    Heap().Collect(0.0);
    return Heap().Stats().used == 0;
  });
}

// A process that acts as it is told, and that the test can step through.
class Actor {
 public:
  explicit Actor(SharingStrategy strategy)
      : worker_(
            [strategy](const Channel& channel) { Run(channel, strategy); }) {}

  Answer Do(Act act, const SharedMessage& message = {}) {
    worker_.channel().Send(Request{act, message, false});
    return worker_.channel().Receive<Answer>();
  }

  // Does as many instructions of the act as that; false if it has no more.
  bool Begin(Act act, const SharedMessage& message, int64_t instructions) {
    worker_.channel().Send(Request{act, message, true});
    REQUIRE(StopSignal() == SIGSTOP);
    for (done_ = 0; done_ < instructions; ++done_) {
      Go(PTRACE_SINGLESTEP);
      if (StopSignal() == SIGSTOP) return false;
    }
    return true;
  }

  // Does the rest.
  void Complete() {
    Go(PTRACE_CONT);
    REQUIRE(StopSignal() == SIGSTOP);
  }

  Answer End() {
    Go(PTRACE_DETACH);
    return worker_.channel().Receive<Answer>();
  }

  int64_t done() const { return done_; }
  void Finish() { worker_.Finish(); }
  void Kill() { worker_.Kill(); }

 private:
  static void Run(const Channel& channel, SharingStrategy strategy) {
    Scene scene = {};
    scene.strategy = strategy;
    while (channel.SaysMore()) {
      const auto request = channel.Receive<Request>();
      scene.message = request.message;
      scene.good = true;
      if (request.stepped) {
        REQUIRE(ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) == 0);
        raise(SIGSTOP);
      }
      request.act(&scene);
      if (request.stepped) raise(SIGSTOP);
      channel.Send(Answer{scene.message, scene.good});
    }
  }

  int StopSignal() {
    int status = 0;
    REQUIRE(waitpid(worker_.pid(), &status, 0) == worker_.pid());
    REQUIRE(WIFSTOPPED(status));
    return WSTOPSIG(status);
  }

  void Go(__ptrace_request how) {
    REQUIRE(ptrace(how, worker_.pid(), nullptr, nullptr) == 0);
  }

  Worker worker_;
  int64_t done_ = 0;
};

// Calls `stop_after` with numbers of instructions from all over an act, others
// for another seed.
void ForStops(int64_t instructions,
              const std::function<void(int64_t)>& stop_after) {
  const int64_t stride = instructions * instructions / (2 * kSteps) + 1;
  std::mt19937_64 random(Seed());
  for (int64_t start = 0; start < instructions; start += stride) {
    stop_after(start + random() % stride);
  }
}

// Where tracing is forbidden, as in some containers, there is no stepping.
bool CanTrace() {
  Worker worker([](const Channel& channel) {
    channel.Send(ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) == 0);
    channel.Await();
  });
  const bool can = worker.channel().Receive<bool>();
  if (!can) std::printf("  skipped: tracing is forbidden\n");
  return can;
}

// Prepares an act of an actor and lets it stop somewhere in there, interferes,
// and lets it end; again and again. `settle` sees to it that all is as it was.
void StopEverywhere(Actor* actor,
                    Act act,
                    const std::function<SharedMessage()>& prepare,
                    const std::function<void()>& interfere,
                    const std::function<void(const Answer&)>& settle) {
  REQUIRE(!actor->Begin(act, prepare(), INT64_MAX));
  interfere();
  settle(actor->End());
  ForStops(actor->done(), [&](int64_t instructions) {
    const bool stopped = actor->Begin(act, prepare(), instructions);
    interfere();
    if (stopped) actor->Complete();
    settle(actor->End());
  });
}

TEST_BOTH(AReceiverStoppedAnywhereGetsWhatWasSent) {
  if (!CanTrace()) return;
  Actor owner(strategy);
  Actor receiver(strategy);
  StopEverywhere(
      &receiver,
      Receive,
      [&] { return owner.Do(MakeAndRelease).message; },
      [&] { owner.Do(Overwrite); },
      [&](const Answer& answer) {
        CHECK(answer.good);
        owner.Do(Overwrite);
        CHECK(receiver.Do(CheckAndRelease).good);
      });
  receiver.Finish();
  owner.Finish();
}

TEST_BOTH(ASecondReceiverStoppedAnywhereGetsWhatWasSentOrNothing) {
  if (!CanTrace()) return;
  Actor owner(strategy);
  Actor receiver(strategy);
  SharedMessage message;
  StopEverywhere(
      &receiver,
      Receive,
      [&] {
        message = owner.Do(Make).message;
        CHECK(receiver.Do(Receive, message).good);
        CHECK(receiver.Do(CheckAndRelease).good);
        return message;  // has been received, and the owner holds the block
      },
      [&] { owner.Do(ReleaseAndOverwrite); },
      [&](const Answer& answer) {
        CHECK(answer.good);
        owner.Do(ReleaseAndOverwrite);
        CHECK(receiver.Do(CheckIfAny).good);
      });
  receiver.Finish();
  owner.Finish();
}

TEST_BOTH(ASenderStoppedAnywhereLosesNoMessage) {
  if (!CanTrace()) return;
  Actor owner(strategy);
  Actor middle(strategy);
  Actor last(strategy);
  StopEverywhere(
      &middle,
      Forward,
      [&] {
        CHECK(middle.Do(Receive, owner.Do(MakeAndRelease).message).good);
        return SharedMessage{};
      },
      [&] { owner.Do(Overwrite); },
      [&](const Answer& answer) {
        owner.Do(Overwrite);
        CHECK(last.Do(Receive, answer.message).good);
        owner.Do(Overwrite);
        CHECK(last.Do(CheckAndRelease).good);
      });
  for (Actor* actor : {&last, &middle, &owner}) actor->Finish();
}

TEST_BOTH(AnOwnerStoppedAnywhereFreesNothingThatIsReceivedMeanwhile) {
  if (!CanTrace()) return;
  Actor owner(strategy);
  Actor receiver(strategy);
  SharedMessage message;
  StopEverywhere(
      &owner,
      FreeWhatNobodyHas,
      [&] {
        message = owner.Do(MakeAndRelease).message;
        return message;
      },
      [&] { CHECK(receiver.Do(Receive, message).good); },
      [&](const Answer&) {
        owner.Do(Overwrite);
        CHECK(receiver.Do(CheckAndRelease).good);
        CHECK(owner.Do(CheckThatNothingIsUsed).good);
      });
  receiver.Finish();
  owner.Finish();
}

TEST_BOTH(WhatAReceiverStoppedAnywhereReleasesIsFree) {
  if (!CanTrace()) return;
  Actor owner(strategy);
  Actor receiver(strategy);
  StopEverywhere(
      &receiver,
      Release,
      [&] {
        CHECK(receiver.Do(Receive, owner.Do(MakeAndRelease).message).good);
        return SharedMessage{};
      },
      [&] { owner.Do(FreeWhatNobodyHas); },
      [&](const Answer&) { CHECK(owner.Do(CheckThatNothingIsUsed).good); });
  receiver.Finish();
  owner.Finish();
}

TEST_BOTH(AReceiverKilledAnywhereLeavesNothingInUse) {
  if (!CanTrace()) return;
  Actor owner(strategy);
  int64_t instructions = 0;
  {
    Actor receiver(strategy);
    receiver.Do(ReceiveAndRelease, owner.Do(MakeAndRelease).message);
    receiver.Begin(
        ReceiveAndRelease, owner.Do(MakeAndRelease).message, INT64_MAX);
    instructions = receiver.done();
  }
  ForStops(instructions, [&](int64_t stop_after) {
    Actor receiver(strategy);
    receiver.Do(ReceiveAndRelease, owner.Do(MakeAndRelease).message);
    receiver.Begin(
        ReceiveAndRelease, owner.Do(MakeAndRelease).message, stop_after);
    receiver.Kill();
    CHECK(owner.Do(CollectUntilNothingIsUsed).good);
  });
  owner.Finish();
}

}  // namespace
