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

#include "actors.h"  // NOLINT(build/include_subdir)

#include <signal.h>
#include <sys/user.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>

namespace shared_memory_test {

namespace {

struct Request {
  Act act;
  SharedMessage message;
  bool stepped;
};

void ActAsTold(const Channel& channel, SharingStrategy strategy) {
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

}  // namespace

Actor::Actor(SharingStrategy strategy)
    : worker_([strategy](const Channel& channel) {
        ActAsTold(channel, strategy);
      }) {}

Answer Actor::Do(Act act, const SharedMessage& message) {
  Ask(act, message);
  return Hear();
}

void Actor::Ask(Act act, const SharedMessage& message) {
  worker_.channel().Send(Request{act, message, false});
}

Answer Actor::Hear() { return worker_.channel().Receive<Answer>(); }

int Actor::CountCalls(Act act, const SharedMessage& message) {
  worker_.channel().Send(Request{act, message, true});
  REQUIRE(StopSignal() == SIGSTOP);
  int stops = 0;  // one before and one after each call
  for (Go(PTRACE_SYSCALL); StopSignal() != SIGSTOP; Go(PTRACE_SYSCALL)) ++stops;
  CHECK(End().good);
  return stops / 2;
}

bool Actor::Begin(Act act, const SharedMessage& message, int n) {
  worker_.channel().Send(Request{act, message, true});
  REQUIRE(StopSignal() == SIGSTOP);
  for (;;) {
    if (CanBeSeen() && n-- == 0) return true;
    Go(PTRACE_SINGLESTEP);
    if (StopSignal() == SIGSTOP) return false;
  }
}

void Actor::Complete() {
  Go(PTRACE_CONT);
  REQUIRE(StopSignal() == SIGSTOP);
}

Answer Actor::End() {
  Go(PTRACE_DETACH);
  return worker_.channel().Receive<Answer>();
}

int Actor::StopSignal() {
  const int status = worker_.AwaitChange();
  REQUIRE(WIFSTOPPED(status));
  return WSTOPSIG(status);
}

// Whether the next instruction is an atomic one, which the ledger is made of,
// or a call to the system.
bool Actor::CanBeSeen() {
  user_regs_struct registers;
  REQUIRE(ptrace(PTRACE_GETREGS, worker_.pid(), nullptr, &registers) == 0);
  errno = 0;
  const uint64_t code =
      ptrace(PTRACE_PEEKTEXT, worker_.pid(), registers.rip, nullptr);
  REQUIRE(errno == 0);
  const bool has_prefix = (code & 0xf0) == 0x40;
  const uint64_t opcode = (has_prefix ? code >> 8 : code) & 0xff;
  return (code & 0xff) == 0xf0 ||    // lock
         opcode == 0x87 ||           // xchg
         (code & 0xffff) == 0x050f;  // syscall
}

void Actor::Go(__ptrace_request how) {
  REQUIRE(ptrace(how, worker_.pid(), nullptr, nullptr) == 0);
}

bool CanTrace() {
  Worker worker([](const Channel& channel) {
    channel.Send(ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) == 0);
    channel.Await();
  });
  const bool can = worker.channel().Receive<bool>();
  if (!can) std::printf("  skipped: tracing is forbidden\n");
  return can;
}

}  // namespace shared_memory_test
