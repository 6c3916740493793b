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

// The device contexts that each thread looks up: one current stream per thread.
//
// Invariant: a context that is made here is bound to its stream before a lookup
// can find it, and never to another stream, because the handles of BLAS and DNN
// and the workspaces that it creates belong to that stream. So a context that
// two threads use never changes. The exception is the context of the process,
// which the main thread binds to the stream that it sets.
//
// A lookup returns, in this order, unless the newest ProcessContextsGuard or
// OrderedContextsGuard of the thread says otherwise:
//   - the context of the thread's newest ThreadContextGuard for the place;
//   - the context that the calling thread has chosen for the place, which may
//     be the CPU, although that has no streams;
//   - on threads of the application other than the main one, if the main thread
//     has ever set a stream: the context bound to the place's default stream;
//   - the context of the process.
//
// All functions are thread-safe. Those that act on "the calling thread" read
// and write the state of that thread only.
using ThreadContexts = std::map<Place, std::shared_ptr<DeviceContext>>;
using ContextPairs = std::vector<
    std::pair<std::shared_ptr<DeviceContext>, std::shared_ptr<DeviceContext>>>;

// Returns a new context on the stream. It shares the generators and the host
// allocators with the context of the process, and has the allocator of its
// stream. Requires: the stream outlives the context. Throws PreconditionNotMet
// while the calling thread captures a CUDA graph.
#if defined(PADDLE_WITH_CUDA) || defined(PADDLE_WITH_HIP)
PADDLE_API std::shared_ptr<DeviceContext> NewStreamContext(CUDAStream* stream);
#endif
#ifdef PADDLE_WITH_CUSTOM_DEVICE
PADDLE_API std::shared_ptr<DeviceContext> NewStreamContext(
    std::shared_ptr<stream::Stream> stream);
#endif

// Gives the context of the process the allocator of the stream that it is about
// to be bound to. Without this, binding it to a CUDA stream would leave it with
// the allocator of the previous stream, which threads on that stream use. Does
// nothing while the calling thread captures a CUDA graph. Requires: the calling
// thread is the main one.
#if defined(PADDLE_WITH_CUDA) || defined(PADDLE_WITH_HIP)
PADDLE_API void UseMemoryOf(const CUDAStream& stream);
#endif
#ifdef PADDLE_WITH_CUSTOM_DEVICE
PADDLE_API void UseMemoryOf(const stream::Stream& stream);
#endif

// Returns a new context for the CPU, on which operators allocate from
// `allocator` and draw random numbers from `generator`. A null argument stands
// for that of the context of the process. Requires: `allocator` is never
// destroyed.
PADDLE_API std::shared_ptr<DeviceContext> NewHostContext(
    Allocator* allocator, std::shared_ptr<Generator> generator);

// Makes the calling thread find `context` for the CPU, or the context of the
// process if it is null. Requires: `context` outlives this use, which ends when
// the thread calls this again or ends.
PADDLE_API void UseHostContext(DeviceContext* context);

// Makes the calling thread find the contexts in `contexts`, or none of its own
// if it is null. Requires: `contexts` stays unchanged until the thread calls
// this again or ends.
PADDLE_API void UseThreadContexts(const ThreadContexts* contexts);

// While an object exists, its thread finds `context` for the place of that
// context. Requires: destroyed on the thread that made it. The place is not the
// CPU.
class PADDLE_API ThreadContextGuard {
 public:
  explicit ThreadContextGuard(std::shared_ptr<DeviceContext> context);
  ~ThreadContextGuard();
  ThreadContextGuard(const ThreadContextGuard&) = delete;
  ThreadContextGuard& operator=(const ThreadContextGuard&) = delete;

  const std::shared_ptr<DeviceContext>& Context() const { return context_; }
  const ThreadContextGuard* Older() const { return older_; }

 private:
  const std::shared_ptr<DeviceContext> context_;
  ThreadContextGuard* older_;
};

// Throws PreconditionNotMet if the calling thread has a ThreadContextGuard for
// the place, which would hide a context that is set otherwise.
PADDLE_API void EnforceNoContextGuard(const Place& place);

// Returns whether the calling thread captures a CUDA graph. No context can be
// made meanwhile.
PADDLE_API bool IsCapturing();

// Makes the calling thread find the context of the process wherever it has
// chosen none. Requires: called by the main thread, before it binds that
// context to another stream than the default one, or by the forking thread in
// its child.
PADDLE_API void BecomeMainThread();

// Makes threads other than the main one find `context`, which is on the default
// stream of the place, until the process ends. This applies to threads for
// which `is_python_thread` returns true during the lookup. A worker thread of
// the executor, for example, works for the thread that waits for it, and so
// finds the context of the process.
PADDLE_API void KeepDefaultContext(const Place& place,
                                   std::shared_ptr<DeviceContext> context,
                                   bool (*is_python_thread)());

// Returns the context that the calling thread finds before the context of the
// process, or null. Lock-free.
DeviceContext* FindThreadContext(const Place& place);

// Returns the context that the calling thread finds, which is that of the
// process where FindThreadContext returns null. Requires: the place is not the
// CPU.
PADDLE_API std::shared_ptr<DeviceContext> CurrentContext(const Place& place);

// Makes later work on the stream of `waiting` wait for the work that the stream
// of `other` has been given by now.
PADDLE_API void WaitForStream(const DeviceContext* waiting,
                              const DeviceContext* other);

// Returns the allocator of the stream that the calling thread is on, or null if
// no thread has ever set a stream for the place. Memory that is freed goes back
// to the allocator of its stream, so that no other stream reuses it while work
// on it may be pending. Returns null, too, while the thread captures a CUDA
// graph, which has a memory pool of its own.
PADDLE_API Allocator* FindThreadAllocator(const Place& place);

// Returns a number for the set of contexts that the calling thread finds, 0 if
// all of them are the process's. It is a key for objects that keep contexts and
// may be reused only with the same ones. The set, and everything that its
// pointers own, is kept until the process ends. Takes a lock.
PADDLE_API int64_t NumberOfThreadContexts();

// While an object exists, its thread finds the contexts of the process only.
// Requires: destroyed on the thread that made it.
class PADDLE_API ProcessContextsGuard {
 public:
  ProcessContextsGuard();
  ~ProcessContextsGuard();
  ProcessContextsGuard(const ProcessContextsGuard&) = delete;
  ProcessContextsGuard& operator=(const ProcessContextsGuard&) = delete;

 private:
  const ThreadContexts* const outer_;
};

// Returns the places where the calling thread is on another stream than the
// context of the process.
PADDLE_API std::vector<Place> PlacesOnOtherStreams();

// Returns all contexts that the calling thread finds before those of the
// process, but for that of the CPU.
PADDLE_API ThreadContexts CurrentContexts();

// While an object exists, its thread finds `contexts`, and those of the process
// for all other places, the CPU included. It orders the work: on each device,
// the work inside comes after the work that the thread has started before, and
// before the work that it starts afterwards. Does nothing while the thread
// captures a CUDA graph, which belongs to the thread's own context.
//
// Requires: destroyed on the thread that made it.
class PADDLE_API OrderedContextsGuard {
 public:
  explicit OrderedContextsGuard(ThreadContexts contexts);
  ~OrderedContextsGuard();
  OrderedContextsGuard(const OrderedContextsGuard&) = delete;
  OrderedContextsGuard& operator=(const OrderedContextsGuard&) = delete;

 private:
  const ThreadContexts contexts_;
  // The thread's context and the one inside, per place where they differ in
  // their stream. The thread may set another stream meanwhile.
  const ContextPairs pairs_;
  const ThreadContexts* const outer_;
};

// For code that keeps the contexts that it looks up and that several threads
// run.
class OrderedProcessContextsGuard : public OrderedContextsGuard {
 public:
  OrderedProcessContextsGuard() : OrderedContextsGuard({}) {}
};

}  // namespace phi
