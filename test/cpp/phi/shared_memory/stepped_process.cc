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

#include "test/cpp/phi/shared_memory/stepped_process.h"

#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstdint>
#include <exception>
#include <fstream>
#include <string>

namespace shared_memory_test {

namespace {

constexpr size_t kRunsOnOneCourse = 8;
// AtSomeStops takes every kStride-th stop.
constexpr size_t kStride = 8;

struct Request {
  Action action;
  SharedMessage message;
  bool stepped;
};

void ActAsTold(const Channel& channel, SharingStrategy strategy) {
  ProcessState state = {};
  state.strategy = strategy;
  while (channel.SaysMore()) {
    const auto request = channel.Receive<Request>();
    state.message = request.message;
    state.good = true;
    if (request.stepped) {
      ASSERT_EQ(ptrace(PTRACE_TRACEME, 0, nullptr, nullptr), 0);
      raise(SIGSTOP);
    }
    request.action(&state);
    if (request.stepped) raise(SIGSTOP);
    channel.Send(Answer{state.message, state.good});
  }
}

// Keeps this thread and another process on one CPU as long as the object
// exists, if the system allows it. Each single step of a process on another CPU
// would wake up that CPU, which takes longer than the step.
class OnOneCPU {
 public:
  explicit OnOneCPU(pid_t other) : other_(other) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    is_set_ = sched_getaffinity(0, sizeof(before_), &before_) == 0;
    if (is_set_) Set(one);
  }
  ~OnOneCPU() {
    if (is_set_) Set(before_);
  }
  OnOneCPU(const OnOneCPU&) = delete;
  OnOneCPU& operator=(const OnOneCPU&) = delete;

 private:
  void Set(const cpu_set_t& cpus) {
    sched_setaffinity(0, sizeof(cpus), &cpus);
    sched_setaffinity(other_, sizeof(cpus), &cpus);
  }

  pid_t other_;
  cpu_set_t before_;
  bool is_set_;
};

void GoThrough(size_t first,
               size_t stride,
               size_t more_than,
               const std::function<void(Stop*)>& run) {
  size_t number = first;
  for (InstructionTrace trace; !trace.is_whole; number += stride) {
    Stop stop(number, &trace);
    run(&stop);
  }
  EXPECT_GT(number, more_than);
}

}  // namespace

SteppedProcess::SteppedProcess(SharingStrategy strategy)
    : worker_([strategy](const Channel& channel) {
        ActAsTold(channel, strategy);
      }) {}

SteppedProcess::~SteppedProcess() noexcept(false) {
  if (worker_.pid() > 0 && std::uncaught_exceptions() == 0) worker_.Finish();
}

Answer SteppedProcess::Run(Action action, const SharedMessage& message) {
  Start(action, message);
  return Wait();
}

void SteppedProcess::Start(Action action, const SharedMessage& message) {
  worker_.channel().Send(Request{action, message, false});
}

Answer SteppedProcess::Wait() { return worker_.channel().Receive<Answer>(); }

int SteppedProcess::CountCalls(Action action, const SharedMessage& message) {
  worker_.channel().Send(Request{action, message, true});
  REQUIRE_EQ(StopSignal(), SIGSTOP);
  int stops = 0;  // one before and one after each call
  for (Go(PTRACE_SYSCALL); StopSignal() != SIGSTOP; Go(PTRACE_SYSCALL)) ++stops;
  EXPECT_TRUE(End().good);
  return stops / 2;
}

bool SteppedProcess::IsInFutexCall() const {
  std::ifstream file("/proc/" + std::to_string(worker_.pid()) + "/syscall");
  int64_t call;  // A process that runs has a word there.
  return file >> call && call == SYS_futex;
}

bool SteppedProcess::Begin(Action action,
                           const SharedMessage& message,
                           size_t n,
                           InstructionTrace* trace) {
  OnOneCPU here(worker_.pid());
  std::vector<uint64_t>& known = trace->instructions;
  // Breakpoints miss instructions that an action executes only sometimes, for
  // example the first time. So some runs single-step from the start.
  if (trace->runs++ % kRunsOnOneCourse == 0) known.clear();
  worker_.channel().Send(Request{action, message, true});
  REQUIRE_EQ(StopSignal(), SIGSTOP);
  for (size_t i = 0; i < known.size() && i <= n; ++i) {
    if (RunTo(known[i])) continue;
    known.clear();  // the action has taken another trace in this run
    return false;
  }
  while (known.size() <= n) {
    do {
      if (!Step()) {
        trace->is_whole = true;
        return false;
      }
    } while (!IsAtVisibleInstruction());
    known.push_back(Registers().rip);
  }
  return true;
}

void SteppedProcess::Complete() {
  Go(PTRACE_CONT);
  ASSERT_EQ(StopSignal(), SIGSTOP);
}

Answer SteppedProcess::End() {
  Go(PTRACE_DETACH);
  return worker_.channel().Receive<Answer>();
}

int SteppedProcess::StopSignal() {
  const int status = worker_.AwaitChange();
  REQUIRE_TRUE(WIFSTOPPED(status));
  return WSTOPSIG(status);
}

user_regs_struct SteppedProcess::Registers() {
  user_regs_struct registers;
  REQUIRE_EQ(ptrace(PTRACE_GETREGS, worker_.pid(), nullptr, &registers), 0);
  return registers;
}

uint64_t SteppedProcess::CodeAt(uint64_t instruction) {
  errno = 0;
  const uint64_t code =
      ptrace(PTRACE_PEEKTEXT, worker_.pid(), instruction, nullptr);
  REQUIRE_EQ(errno, 0);
  return code;
}

void SteppedProcess::SetCodeAt(uint64_t instruction, uint64_t code) {
  ASSERT_EQ(ptrace(PTRACE_POKETEXT, worker_.pid(), instruction, code), 0);
}

// Returns whether the next instruction is an atomic one, as in the ledger's
// operations, or a system call.
bool SteppedProcess::IsAtVisibleInstruction() {
  const uint64_t code = CodeAt(Registers().rip);
  const bool has_prefix = (code & 0xf0) == 0x40;
  const uint64_t opcode = (has_prefix ? code >> 8 : code) & 0xff;
  return (code & 0xff) == 0xf0 ||    // lock
         opcode == 0x87 ||           // xchg
         (code & 0xffff) == 0x050f;  // syscall
}

// Executes one instruction. Returns false if it was the last one of the action.
bool SteppedProcess::Step() {
  Go(PTRACE_SINGLESTEP);
  return StopSignal() != SIGSTOP;
}

// Executes one or more instructions, until `instruction` is the next one.
// Returns false if the action ends before that.
bool SteppedProcess::RunTo(uint64_t instruction) {
  if (!Step()) return false;
  user_regs_struct registers = Registers();
  if (registers.rip == instruction) return true;
  constexpr uint64_t kBreakpoint = 0xcc;
  const uint64_t code = CodeAt(instruction);
  SetCodeAt(instruction, (code & ~uint64_t{0xff}) | kBreakpoint);
  Go(PTRACE_CONT);
  const bool is_there = StopSignal() != SIGSTOP;
  SetCodeAt(instruction, code);
  if (!is_there) return false;
  registers = Registers();
  --registers.rip;  // it points behind the breakpoint
  REQUIRE_EQ(registers.rip, instruction);
  REQUIRE_EQ(ptrace(PTRACE_SETREGS, worker_.pid(), nullptr, &registers), 0);
  return true;
}

void SteppedProcess::Go(__ptrace_request how) {
  ASSERT_EQ(ptrace(how, worker_.pid(), nullptr, nullptr), 0);
}

void Stop::Begin(SteppedProcess* process,
                 Action action,
                 const SharedMessage& message) {
  process_ = process;
  is_amid_ = process->Begin(action, message, number_, trace_);
}

Answer Stop::Complete() {
  if (is_amid_) process_->Complete();
  return process_->End();
}

void AtEachStop(size_t more_than, const std::function<void(Stop*)>& run) {
  GoThrough(0, 1, more_than, run);
}

void AtSomeStops(size_t more_than, const std::function<void(Stop*)>& run) {
  GoThrough(isolated_test::Seed() % kStride, kStride, more_than, run);
}

bool CanTrace() {
  Worker worker([](const Channel& channel) {
    channel.Send(ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) == 0);
    channel.Await();
  });
  return worker.channel().Receive<bool>();
}

}  // namespace shared_memory_test
