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

#pragma once

#include <sys/ptrace.h>
#include <sys/user.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "test/cpp/phi/shared_memory/processes.h"

namespace shared_memory_test {

// What a process that acts has, is asked and answers.
struct Scene {
  SharingStrategy strategy;
  SharedMessage message;
  SharedBlock block;
  bool has_block;
  bool good;
};

// All processes are forked from one, so that an address is good in each.
using Act = void (*)(Scene*);

struct Answer {
  SharedMessage message;
  bool good;
};

// The instructions of an act that others can see the effect of, in their order,
// as far as they are known from runs of it.
struct Course {
  std::vector<uint64_t> instructions;
  bool is_whole = false;  // a run of it came to its end
  int runs = 0;
};

// A process that acts as it is told, and that a test can step through. The
// stepping is for processors of the x86-64 kind, of which it knows a little.
class Actor {
 public:
  explicit Actor(SharingStrategy strategy);
  // Finishes it, unless it has ended or the test has failed.
  ~Actor() noexcept(false);
  Actor(const Actor&) = delete;
  Actor& operator=(const Actor&) = delete;

  Answer Do(Act act, const SharedMessage& message = {});
  // The two halves of it: others may act in between.
  void Ask(Act act, const SharedMessage& message = {});
  Answer Hear();
  // Does the act and counts its system calls.
  int CountCalls(Act act, const SharedMessage& message = {});

  // Does the act up to its n-th instruction, counted from 0, that others can
  // see the effect of; false if it has no such instruction and is done. Runs by
  // breakpoints as far as the course is known, and notes what it learns.
  bool Begin(Act act, const SharedMessage& message, size_t n, Course* course);
  // Does the rest.
  void Complete();
  Answer End();

  void Finish() { worker_.Finish(); }
  void Kill() { worker_.Kill(); }

 private:
  int StopSignal();
  user_regs_struct Registers();
  uint64_t CodeAt(uint64_t instruction);
  void SetCodeAt(uint64_t instruction, uint64_t code);
  bool IsAtWhatOthersSee();
  bool Step();
  bool RunTo(uint64_t instruction);
  void Go(__ptrace_request how);

  Worker worker_;
};

// One stop of an act, which a test goes to in one run of its own.
class Stop {
 public:
  Stop(size_t number, Course* course) : number_(number), course_(course) {}

  // The actor does the act up to this stop.
  void Begin(Actor* actor, Act act, const SharedMessage& message = {});
  // The actor does the rest of the act.
  Answer Complete();

 private:
  size_t number_;
  Course* course_;
  Actor* actor_ = nullptr;
  bool is_amid_ = false;  // the act has this stop
};

// Calls `run` for every stop of the act that it begins, and once more, for the
// whole act. It stages a situation, begins the act, does what could hurt, and
// completes the act or kills its actor. Fails if there are not more stops than
// `more_than`.
void AtEachStop(size_t more_than, const std::function<void(Stop*)>& run);
// The same for some of the stops of a long act, which differ from run to run of
// the program.
void AtSomeStops(size_t more_than, const std::function<void(Stop*)>& run);

// Whether there can be any stepping; some containers forbid it.
bool CanTrace();

}  // namespace shared_memory_test
