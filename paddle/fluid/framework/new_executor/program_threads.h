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

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>

namespace paddle {
namespace framework {

class Scope;

// Lets several threads run the programs of to_static and jit.load.
//
// Invariants:
//   - The map of interpreters is read and changed under InterpreterMapGuard.
//   - At most one thread builds an interpreter, or lowers a program for one,
//     under ProgramBuildGuard: building reads and rewrites programs that
//     threads share. Interpreters run concurrently.
//   - A scope that TakeScope() has taken is used by one run only, until
//     ReturnScope(), which follows the release of the last variable in it.
//
// All functions are thread-safe.

// Locks the map of interpreters. The map's elements never move, so references
// to them stay valid without the lock.
class InterpreterMapGuard {
 public:
  InterpreterMapGuard();

 private:
  std::lock_guard<std::mutex> lock_;
};

// Makes the calling thread the only one that builds. May be nested.
class ProgramBuildGuard {
 public:
  ProgramBuildGuard();
  ~ProgramBuildGuard();
  ProgramBuildGuard(const ProgramBuildGuard&) = delete;
  ProgramBuildGuard& operator=(const ProgramBuildGuard&) = delete;
};

// Sets the function that locks the mutex of ProgramBuildGuard while another
// thread holds it. Python's binding sets one that releases the GIL, because the
// building thread may need the GIL.
void SetWaitForBuilder(void (*wait)(std::timed_mutex* mutex));

// Locks building before a fork, so that the child inherits no half-built
// program. Gives up after `timeout` and returns false: the building thread may
// itself be waiting for the fork. Has no effect on a thread that builds.
// Requires: the thread has not locked building already.
bool LockBuilding(std::chrono::duration<double> timeout);
// Ends LockBuilding() on the same thread, in the parent and in the child.
// Returns false if building could not be locked in time.
bool UnlockBuilding();
// Replaces the lock in a child for which UnlockBuilding() has returned false:
// the thread that holds the lock does not exist in the child.
void ReplaceBuildingLock();

// Takes a scope for a run. Returns false if it is taken already.
bool TakeScope(const Scope* scope);
// Returns whether a scope is taken and its run has not begun.
bool IsTakenBeforeRun(const Scope* scope);
// Makes a scope available to later runs. Has no effect if it is not taken.
void ReturnScope(const Scope* scope);

// Returns whether no other node shares the state of a backward node, such as a
// copy that paddle.grad has made. The fence pairs with the release of the nodes
// that are destroyed already, so that the caller sees what they wrote.
template <typename T>
bool IsLastOwner(const std::shared_ptr<T>& state) {
  if (state.use_count() != 1) return false;
  std::atomic_thread_fence(std::memory_order_acquire);
  return true;
}

// The error of a second backward pass through one call of a program. The scope
// was returned after the first pass, so another run may have taken it.
inline constexpr char kSecondBackwardPass[] =
    "A second backward pass through one call of a to_static or loaded layer is "
    "not possible: its intermediate results are freed after the first pass, "
    "even with retain_graph=True. Call the layer again.";

// A backward run. The nodes that share `executed` have one backward run, also
// if several threads begin one at once.
class BackwardRun {
 public:
  // Requires: a run sets `*executed` before the end of its BackwardRun, unless
  // it throws.
  explicit BackwardRun(std::shared_ptr<const bool> executed);
  ~BackwardRun();
  BackwardRun(const BackwardRun&) = delete;
  BackwardRun& operator=(const BackwardRun&) = delete;

  // Returns whether no other run has ended, or is under way.
  bool IsFirst() const { return is_first_; }

 private:
  const std::shared_ptr<const bool> executed_;
  const bool is_first_;
};

// The forward run of a program in a scope, which may have been taken.
class ProgramRun {
 public:
  // `free_variables` releases the variables of the scope and then returns the
  // scope. It is called if the run throws. Otherwise that happens at the end of
  // a forward run without a backward run, or after the backward run.
  ProgramRun(Scope* scope, void (*free_variables)(Scope* scope));
  ~ProgramRun();
  ProgramRun(const ProgramRun&) = delete;
  ProgramRun& operator=(const ProgramRun&) = delete;

 private:
  Scope* const scope_;
  void (*const free_variables_)(Scope* scope);
  const int exceptions_;
};

}  // namespace framework
}  // namespace paddle
