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
#include <optional>
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

// One current stream a thread: which device context a thread looks up.
//
// Invariant: a context that is made here is bound to its stream before any
// look-up can find it, and never to another one, since what it has made for
// itself meanwhile (handles of BLAS and DNN, workspaces) belongs to that
// stream. So no context that two threads use ever changes, but the process's
// own, which the main thread alone binds to the stream that it sets.
//
// A look-up finds, in this order, unless a ProcessContextsGuard is alive:
//   - the context that the calling thread has chosen for the place, the host
//     included, which has no streams;
//   - where the main thread has ever set a stream, and on other threads of the
//     application, the one that is bound to the place's default stream;
//   - the context of the process.
using ThreadContexts = std::map<Place, std::shared_ptr<DeviceContext>>;

// Returns a new context on the stream, which has to exist as long as the
// context is used. It shares the generators and the memory of the host with the
// context of the process, and has the allocator of its stream.
#if defined(PADDLE_WITH_CUDA) || defined(PADDLE_WITH_HIP)
PADDLE_API std::shared_ptr<DeviceContext> NewStreamContext(CUDAStream* stream);
#endif
#ifdef PADDLE_WITH_CUSTOM_DEVICE
PADDLE_API std::shared_ptr<DeviceContext> NewStreamContext(
    std::shared_ptr<stream::Stream> stream);
#endif

// Gives the context of the process the allocator of a stream that it is about
// to be bound to. Streams of CUDA leave that to the caller, who then would
// share memory with those that stay on the stream of before. Does nothing while
// the thread captures a CUDA graph.
#if defined(PADDLE_WITH_CUDA) || defined(PADDLE_WITH_HIP)
PADDLE_API void UseMemoryOf(const CUDAStream& stream);
#endif
#ifdef PADDLE_WITH_CUSTOM_DEVICE
PADDLE_API void UseMemoryOf(const stream::Stream& stream);
#endif

// Returns a new context of the host. Operators on it allocate from `allocator`,
// which is never destroyed, and draw random numbers from `generator`; null:
// what the context of the process has.
PADDLE_API std::shared_ptr<DeviceContext> NewHostContext(
    Allocator* allocator, std::shared_ptr<Generator> generator);

// Makes the calling thread find `context` for the host until it calls this
// again or ends. Null: that of the process.
PADDLE_API void UseHostContext(DeviceContext* context);

// Makes the calling thread find what is in `contexts`, which has to stay as it
// is until the thread calls this again or ends. Null: nothing of its own.
PADDLE_API void UseThreadContexts(const ThreadContexts* contexts);

// Whether the calling thread captures a CUDA graph: then no context can be
// made.
PADDLE_API bool IsCapturing();

// Makes the calling thread the one that always finds the context of the process
// where it has chosen none. To be called by the main thread before it binds
// that context to another stream than the default one, and by the forking
// thread in its child.
PADDLE_API void BecomeMainThread();

// Makes threads other than the main one find `context`, the one of the place's
// default stream, until the process ends. Only threads for which `is_follower`
// holds when they look: a worker of the executor works for the thread that
// waits for it, and finds the context of the process.
PADDLE_API void KeepDefaultContext(const Place& place,
                                   std::shared_ptr<DeviceContext> context,
                                   bool (*is_follower)());

// Returns what the calling thread finds before the context of the process, or
// null. Takes no lock.
DeviceContext* FindThreadContext(const Place& place);

// Returns the allocator of the stream that the calling thread's work goes to,
// or null where no thread has ever set one: what is freed goes back to the
// memory of its stream, where no other one takes it while work on it may be
// under way. Null too while the thread captures a CUDA graph, which has its
// memory from a pool of its own.
PADDLE_API Allocator* FindThreadAllocator(const Place& place);

// Returns a number for the set of contexts that the calling thread finds, 0
// where they are all those of the process. For what keeps contexts, and so has
// to be found again for the same ones only: the set, and what its pointers
// keep, stays until the process ends.
PADDLE_API int64_t NumberOfThreadContexts();

// While one is alive, its thread finds the contexts of the process only: for
// what keeps contexts that it has looked up, and is used by several threads.
class PADDLE_API ProcessContextsGuard {
 public:
  ProcessContextsGuard();
  ~ProcessContextsGuard();
  ProcessContextsGuard(const ProcessContextsGuard&) = delete;
  ProcessContextsGuard& operator=(const ProcessContextsGuard&) = delete;

 private:
  const bool outer_;
};

// The places where the thread's work goes to another stream than the process's.
PADDLE_API std::vector<Place> PlacesApart();

// A ProcessContextsGuard for work in order: on each device it comes after what
// the thread has started before, and before what it starts afterwards. The
// thread has to keep its contexts meanwhile. Does nothing while the thread
// captures a CUDA graph, which is a matter of its own context.
class PADDLE_API OrderedProcessContextsGuard {
 public:
  OrderedProcessContextsGuard();
  ~OrderedProcessContextsGuard();
  OrderedProcessContextsGuard(const OrderedProcessContextsGuard&) = delete;
  OrderedProcessContextsGuard& operator=(const OrderedProcessContextsGuard&) =
      delete;

 private:
  // The thread's contexts and the process's.
  const std::vector<std::pair<DeviceContext*, DeviceContext*>> apart_;
  const std::optional<ProcessContextsGuard> guard_;
};

}  // namespace phi
