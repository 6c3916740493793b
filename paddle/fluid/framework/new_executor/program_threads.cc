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

#include "paddle/fluid/framework/new_executor/program_threads.h"

#ifndef _WIN32
#include <pthread.h>
#endif

#include <atomic>
#include <exception>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace paddle {
namespace framework {

namespace {

// Whether the run for which a scope was taken has begun.
enum class ScopeUse { kTaken, kRunning };

// Never destroyed, as threads may still run programs when the process exits.
struct State {
  std::mutex map_mutex;
  // Not a recursive mutex, which the child of a fork could not unlock.
  std::timed_mutex* build_mutex =
      std::make_unique<std::timed_mutex>().release();
  std::mutex scopes_mutex;
  std::unordered_map<const Scope*, ScopeUse> scopes;
  std::mutex backward_mutex;
  // The `executed` of the backward runs that are under way.
  std::unordered_set<const bool*> backward_runs;
  // Relaxed: the function publishes no data.
  std::atomic<void (*)(std::timed_mutex*)> wait_for_builder{
      [](std::timed_mutex* mutex) { mutex->lock(); }};
};

State* state() {
  static State* const state = std::make_unique<State>().release();
  return state;
}

thread_local int build_depth = 0;
thread_local bool has_locked_for_fork = false;

#ifndef _WIN32
void LockAll() {
  state()->map_mutex.lock();
  state()->scopes_mutex.lock();
  state()->backward_mutex.lock();
}

void UnlockAll() {
  state()->backward_mutex.unlock();
  state()->scopes_mutex.unlock();
  state()->map_mutex.unlock();
}

// No child of a fork finds these mutexes locked by a thread that it lacks.
// Their holders never wait for another lock.
[[maybe_unused]] const int at_fork =
    pthread_atfork(&LockAll, &UnlockAll, &UnlockAll);
#endif

}  // namespace

InterpreterMapGuard::InterpreterMapGuard() : lock_(state()->map_mutex) {}

ProgramBuildGuard::ProgramBuildGuard() {
  if (build_depth == 0 && !state()->build_mutex->try_lock()) {
    state()->wait_for_builder.load(std::memory_order_relaxed)(
        state()->build_mutex);
  }
  ++build_depth;
}

ProgramBuildGuard::~ProgramBuildGuard() {
  --build_depth;
  if (build_depth == 0) state()->build_mutex->unlock();
}

void SetWaitForBuilder(void (*wait)(std::timed_mutex* mutex)) {
  state()->wait_for_builder.store(wait, std::memory_order_relaxed);
}

bool LockBuilding(std::chrono::duration<double> timeout) {
  if (build_depth > 0) return true;
  has_locked_for_fork = state()->build_mutex->try_lock_for(timeout);
  return has_locked_for_fork;
}

bool UnlockBuilding() {
  if (build_depth > 0) return true;
  if (!has_locked_for_fork) return false;
  has_locked_for_fork = false;
  state()->build_mutex->unlock();
  return true;
}

void ReplaceBuildingLock() {
  if (build_depth > 0) return;
  // The old mutex stays locked, so it must not be destroyed.
  state()->build_mutex = std::make_unique<std::timed_mutex>().release();
}

bool TakeScope(const Scope* scope) {
  const std::lock_guard<std::mutex> guard(state()->scopes_mutex);
  return state()->scopes.emplace(scope, ScopeUse::kTaken).second;
}

bool IsTakenBeforeRun(const Scope* scope) {
  const std::lock_guard<std::mutex> guard(state()->scopes_mutex);
  const auto found = state()->scopes.find(scope);
  return found != state()->scopes.end() && found->second == ScopeUse::kTaken;
}

void ReturnScope(const Scope* scope) {
  const std::lock_guard<std::mutex> guard(state()->scopes_mutex);
  state()->scopes.erase(scope);
}

namespace {

bool BeginBackwardRun(const bool* executed) {
  const std::lock_guard<std::mutex> guard(state()->backward_mutex);
  // A run that is under way may write `*executed`, so look for it first.
  return state()->backward_runs.count(executed) == 0 && !*executed &&
         state()->backward_runs.insert(executed).second;
}

}  // namespace

BackwardRun::BackwardRun(std::shared_ptr<const bool> executed)
    : executed_(std::move(executed)),
      is_first_(BeginBackwardRun(executed_.get())) {}

BackwardRun::~BackwardRun() {
  if (!is_first_) return;
  const std::lock_guard<std::mutex> guard(state()->backward_mutex);
  state()->backward_runs.erase(executed_.get());
}

ProgramRun::ProgramRun(Scope* scope, void (*free_variables)(Scope* scope))
    : scope_(scope),
      free_variables_(free_variables),
      exceptions_(std::uncaught_exceptions()) {
  const std::lock_guard<std::mutex> guard(state()->scopes_mutex);
  const auto found = state()->scopes.find(scope);
  if (found != state()->scopes.end()) found->second = ScopeUse::kRunning;
}

ProgramRun::~ProgramRun() {
  if (std::uncaught_exceptions() > exceptions_) free_variables_(scope_);
}

}  // namespace framework
}  // namespace paddle
