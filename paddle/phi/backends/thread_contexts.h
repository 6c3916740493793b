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

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "paddle/common/macros.h"
#include "paddle/phi/common/place.h"

namespace phi {

class Allocator;
class CUDAStream;
class DeviceContext;
class Generator;

namespace stream {
class Stream;
}  // namespace stream

// Per-thread lookup of device contexts: each thread has its own current stream.
//
// Invariant: a context that is created here is bound to its stream before a
// lookup can find it, and never rebound, because its BLAS and DNN handles and
// its workspaces belong to that stream. So a context that several threads use
// never changes. The exception is the process's context, which the main thread
// binds to the stream that it sets.
//
// A lookup returns the first of these. A ProcessContextsGuard or
// OrderedContextsGuard hides all of them except the ThreadContextGuards created
// inside it. For the CPU, a HostContextGuard overrides the lookup:
//   - the context of the thread's newest ThreadContextGuard for the place;
//   - the context that the calling thread has set for the place. The place may
//     be the CPU, although the CPU has no streams;
//   - on Python threads other than the main one, and inside a
//     WorkerContextsGuard, if the main thread has ever set a stream: the
//     context bound to the place's default stream;
//   - the process's context.
//
// All functions are thread-safe. Those that act on "the calling thread" read
// and write the state of that thread only.
using ThreadContexts = std::map<Place, std::shared_ptr<DeviceContext>>;
using ContextPairs = std::vector<
    std::pair<std::shared_ptr<DeviceContext>, std::shared_ptr<DeviceContext>>>;

// Returns a new context on the stream. It shares the generators and the host
// allocators with the process's context. Like each context that is bound to a
// stream, it allocates from the stream's memory. Requires: the stream outlives
// the context. Throws PreconditionNotMet while the calling thread captures a
// CUDA graph.
#if defined(PADDLE_WITH_CUDA) || defined(PADDLE_WITH_HIP)
PADDLE_API std::shared_ptr<DeviceContext> NewStreamContext(CUDAStream* stream);
#endif
#ifdef PADDLE_WITH_CUSTOM_DEVICE
PADDLE_API std::shared_ptr<DeviceContext> NewStreamContext(
    std::shared_ptr<stream::Stream> stream);
#endif

// Returns a new context for the CPU, on which operators allocate from
// `allocator` and draw random numbers from `generator`. For a null argument,
// the process's allocator or generator is used. Requires: `allocator` is never
// destroyed.
PADDLE_API std::shared_ptr<DeviceContext> NewHostContext(
    Allocator* allocator, std::shared_ptr<Generator> generator);

// Makes `context` the calling thread's context for the CPU; null selects the
// process's context. Requires: `context` stays alive until the thread calls
// this again or ends.
PADDLE_API void UseHostContext(DeviceContext* context);

// Makes `contexts` the calling thread's own contexts; null removes them.
// Requires: `contexts` does not change until the thread calls this again or
// ends.
PADDLE_API void UseThreadContexts(const ThreadContexts* contexts);

// While the guard exists, its thread's lookups find `context` for the context's
// place, unless a newer guard overrides it. Requires: the guard is destroyed on
// the thread that created it. The place is not the CPU.
class PADDLE_API ThreadContextGuard {
 public:
  explicit ThreadContextGuard(std::shared_ptr<DeviceContext> context);
  ~ThreadContextGuard();
  ThreadContextGuard(const ThreadContextGuard&) = delete;
  ThreadContextGuard& operator=(const ThreadContextGuard&) = delete;

  const std::shared_ptr<DeviceContext>& Context() const { return context_; }
  const ThreadContextGuard* Older() const { return older_; }
  // Greater for newer guards of the thread.
  uint64_t Number() const { return number_; }

 private:
  const std::shared_ptr<DeviceContext> context_;
  const uint64_t number_;
  ThreadContextGuard* older_;
};

// Throws PreconditionNotMet if the calling thread has a ThreadContextGuard for
// the place, which would hide a context that is set in another way.
PADDLE_API void EnforceNoContextGuard(const Place& place);

// Returns whether the calling thread captures a CUDA graph. During a capture,
// no context can be created.
PADDLE_API bool IsCapturing();

// Makes the calling thread the main one: where it has set no context, its
// lookups find the process's context. Requires: called by the main thread
// before another function of this file needs to know it, or by the forking
// thread in its child.
PADDLE_API void BecomeMainThread();

// Makes lookups of threads other than the main one find `context`, which is on
// the place's default stream, until the process ends. This applies to threads
// for which `is_python_thread` returns true during the lookup, and to those
// inside a WorkerContextsGuard. Other threads, such as executor workers, work
// for a thread that waits for them, and find the process's context.
PADDLE_API void KeepDefaultContext(const Place& place,
                                   std::shared_ptr<DeviceContext> context,
                                   bool (*is_python_thread)());

// Returns the context that takes precedence over the process's context on the
// calling thread, or null. Lock-free.
DeviceContext* FindThreadContext(const Place& place);

// Returns the calling thread's context: the process's context where
// FindThreadContext returns null. Requires: the place is not the CPU.
PADDLE_API std::shared_ptr<DeviceContext> CurrentContext(const Place& place);

// Makes later work on the stream of `waiting` wait for the work enqueued on the
// stream of `other` so far.
PADDLE_API void WaitForStream(const DeviceContext* waiting,
                              const DeviceContext* other);

// Returns the allocator of the calling thread's current stream, or null if no
// thread has ever set a stream for the place. Freed memory goes back to the
// allocator of its stream, so that no other stream reuses it while work on it
// may be pending. Also returns null while the thread captures a CUDA graph,
// which has its own memory pool.
PADDLE_API Allocator* FindThreadAllocator(const Place& place);

// Returns an id of the set of contexts that the calling thread's lookups find;
// 0 if all of them are the process's. It is a key for objects that keep
// contexts and may only be reused with the same contexts. The set, and
// everything that its pointers own, is kept until the process ends. Takes a
// lock.
PADDLE_API int64_t ThreadContextsId();

// While the guard exists, its thread's lookups find the process's contexts
// only, except for the places of newer ThreadContextGuards. Requires: the guard
// is destroyed on the thread that created it.
class PADDLE_API ProcessContextsGuard {
 public:
  ProcessContextsGuard();
  ~ProcessContextsGuard();
  ProcessContextsGuard(const ProcessContextsGuard&) = delete;
  ProcessContextsGuard& operator=(const ProcessContextsGuard&) = delete;

 private:
  const ThreadContexts* const outer_;
  const uint64_t outer_hidden_guards_;
  DeviceContext* const outer_host_;
};

// Returns the places where the calling thread's stream is not the stream of the
// process's context.
PADDLE_API std::vector<Place> PlacesOnOtherStreams();

// Returns all contexts that take precedence over the process's contexts on the
// calling thread, except the CPU's.
PADDLE_API ThreadContexts CurrentContexts();

// Returns the contexts for C++ threads that work for the calling thread, such
// as those of a reader. Null if they use the process's contexts: on the main
// thread, on C++ threads, and inside a guard that overrides the lookups.
PADDLE_API std::unique_ptr<const ThreadContexts> WorkerContexts();

// While the guard exists, its thread works for the thread for which
// WorkerContexts has returned `contexts`: its lookups find them and, for all
// other places, what those of a Python thread find that has set no stream. Does
// nothing if `contexts` is null. Requires: the guard is destroyed on the thread
// that created it. `contexts` outlives the guard.
class PADDLE_API WorkerContextsGuard {
 public:
  explicit WorkerContextsGuard(const ThreadContexts* contexts);
  ~WorkerContextsGuard();
  WorkerContextsGuard(const WorkerContextsGuard&) = delete;
  WorkerContextsGuard& operator=(const WorkerContextsGuard&) = delete;

 private:
  const ThreadContexts* const outer_;
  const bool outer_is_worker_;
};

// While the guard exists, its thread's lookups find `contexts`, and the
// process's contexts for all other places, the CPU included, except for the
// places of newer ThreadContextGuards. The guard orders
// the work on each device: the work inside runs after the thread's earlier work
// and before its later work. Does nothing while the thread captures a CUDA
// graph, which belongs to the thread's own context.
//
// Requires: the guard is destroyed on the thread that created it.
class PADDLE_API OrderedContextsGuard {
 public:
  explicit OrderedContextsGuard(ThreadContexts contexts);
  ~OrderedContextsGuard();
  OrderedContextsGuard(const OrderedContextsGuard&) = delete;
  OrderedContextsGuard& operator=(const OrderedContextsGuard&) = delete;

 private:
  const ThreadContexts contexts_;
  // For each place where the streams differ: the thread's context and the
  // context inside the guard. Stored, since the thread may set another stream
  // meanwhile.
  const ContextPairs pairs_;
  const ThreadContexts* const outer_;
  const uint64_t outer_hidden_guards_;
  DeviceContext* const outer_host_;
};

// While the guard exists, its thread's lookups find `context` for the CPU,
// unless a newer ProcessContextsGuard or OrderedContextsGuard overrides it.
// Null undoes an older guard. Requires: the guard is destroyed on the thread
// that created it, and before `context` is destroyed.
class PADDLE_API HostContextGuard {
 public:
  explicit HostContextGuard(DeviceContext* context);
  ~HostContextGuard();
  HostContextGuard(const HostContextGuard&) = delete;
  HostContextGuard& operator=(const HostContextGuard&) = delete;

 private:
  DeviceContext* const outer_;
};

// Uses the process's contexts, in order with the thread's work. For code that
// keeps the contexts that it looks up and that several threads run.
class OrderedProcessContextsGuard : public OrderedContextsGuard {
 public:
  OrderedProcessContextsGuard() : OrderedContextsGuard({}) {}
};

}  // namespace phi
