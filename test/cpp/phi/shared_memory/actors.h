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

// The state of an acting process: its blocks, its input, and its answer.
struct Scene {
  SharingStrategy strategy;
  SharedMessage message;
  SharedBlock block;
  bool has_block;
  bool good;
};

// All processes are forked from one process, so a function address is valid in
// each of them.
using Act = void (*)(Scene*);

struct Answer {
  SharedMessage message;
  bool good;
};

// The instructions of an act whose effect other processes can see, in their
// order, as far as they are known from earlier runs of the act.
struct Course {
  std::vector<uint64_t> instructions;
  bool is_whole = false;  // a run has reached the end of the act
  int runs = 0;
};

// A process that executes acts for a test, which can single-step it. Stepping
// works only on x86-64, whose instructions it partly decodes.
class Actor {
 public:
  explicit Actor(SharingStrategy strategy);
  // Finishes it, unless it has ended or the test has failed.
  ~Actor() noexcept(false);
  Actor(const Actor&) = delete;
  Actor& operator=(const Actor&) = delete;

  Answer Do(Act act, const SharedMessage& message = {});
  // The two halves of Do: other processes may act in between.
  void Ask(Act act, const SharedMessage& message = {});
  Answer Hear();
  // Does the act and counts its system calls.
  int CountCalls(Act act, const SharedMessage& message = {});

  // Does the act up to its n-th visible instruction, counted from 0: one whose
  // effect other processes can see. Returns false if there is no such
  // instruction; then the act is done. Uses breakpoints as far as the course is
  // known, and adds new instructions to the course.
  bool Begin(Act act, const SharedMessage& message, size_t n, Course* course);
  // Does the rest of the act.
  void Complete();
  Answer End();

  void Finish() { worker_.Finish(); }
  void Kill() { worker_.Kill(); }

 private:
  int StopSignal();
  user_regs_struct Registers();
  uint64_t CodeAt(uint64_t instruction);
  void SetCodeAt(uint64_t instruction, uint64_t code);
  bool IsAtVisibleInstruction();
  bool Step();
  bool RunTo(uint64_t instruction);
  void Go(__ptrace_request how);

  Worker worker_;
};

// One stop of an act. A test runs once for each stop.
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
  bool is_amid_ = false;  // the actor has stopped within the act
};

// Calls `run` for every stop of the act that `run` begins, and once more for
// the whole act. `run` sets up a situation, begins the act, lets other
// processes interfere, and completes the act or kills its actor. Fails if there
// are not more stops than `more_than`.
void AtEachStop(size_t more_than, const std::function<void(Stop*)>& run);
// Like AtEachStop, for only some of the stops of a long act. The choice differs
// from run to run of the program.
void AtSomeStops(size_t more_than, const std::function<void(Stop*)>& run);

// Returns whether processes can be traced; some containers forbid it.
bool CanTrace();

}  // namespace shared_memory_test
