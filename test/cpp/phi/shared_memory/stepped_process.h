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

// The state of a process that runs actions: its block, the input of the action,
// and its answer.
struct ProcessState {
  SharingStrategy strategy;
  SharedMessage message;
  SharedBlock block;
  bool has_block;
  bool good;
};

// All processes are forked from one process, so a function address is valid in
// each of them.
using Action = void (*)(ProcessState*);

struct Answer {
  SharedMessage message;
  bool good;
};

// The instructions of an action whose effect other processes can see, in their
// order, as far as earlier runs of the action have shown them.
struct InstructionTrace {
  std::vector<uint64_t> instructions;
  bool is_whole = false;  // a run has reached the end of the action
  int runs = 0;
};

// A process that runs actions for a test, which can single-step it. Stepping
// works only on x86-64, whose instructions it partly decodes.
class SteppedProcess {
 public:
  explicit SteppedProcess(SharingStrategy strategy);
  // Finishes it, unless it has ended or the test has failed.
  ~SteppedProcess() noexcept(false);
  SteppedProcess(const SteppedProcess&) = delete;
  SteppedProcess& operator=(const SteppedProcess&) = delete;

  Answer Run(Action action, const SharedMessage& message = {});
  // The two halves of Run: other processes may run actions in between.
  void Start(Action action, const SharedMessage& message = {});
  Answer Wait();
  // Runs the action and counts its system calls.
  int CountCalls(Action action, const SharedMessage& message = {});
  // Returns whether the process is in a futex call.
  bool IsInFutexCall() const;

  // Runs the action up to its n-th visible instruction, counted from 0: one
  // whose effect other processes can see. Returns false if there is no such
  // instruction; then the action is done. Uses breakpoints as far as the trace
  // is known, and adds new instructions to the trace.
  bool Begin(Action action,
             const SharedMessage& message,
             size_t n,
             InstructionTrace* trace);
  // Runs the rest of the action.
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

// One stop of an action. A test runs once for each stop.
class Stop {
 public:
  Stop(size_t number, InstructionTrace* trace)
      : number_(number), trace_(trace) {}

  // The process runs the action up to this stop.
  void Begin(SteppedProcess* process,
             Action action,
             const SharedMessage& message = {});
  // The process runs the rest of the action.
  Answer Complete();

 private:
  size_t number_;
  InstructionTrace* trace_;
  SteppedProcess* process_ = nullptr;
  bool is_amid_ = false;  // the process has stopped within the action
};

// Calls `run` for every stop of the action that `run` begins, and once more for
// the whole action. `run` sets up a situation, begins the action, lets other
// processes interfere, and completes the action or kills its process. Fails if
// there are not more stops than `more_than`.
void AtEachStop(size_t more_than, const std::function<void(Stop*)>& run);
// Like AtEachStop, for only some of the stops of a long action. The choice
// differs from run to run of the program.
void AtSomeStops(size_t more_than, const std::function<void(Stop*)>& run);

// Returns whether processes can be traced; some containers forbid it.
bool CanTrace();

}  // namespace shared_memory_test
