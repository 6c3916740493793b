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

#include "paddle/phi/backends/thread_contexts.h"

#include <atomic>
#include <future>
#include <list>
#include <mutex>
#include <utility>

#include "paddle/phi/backends/context_pool.h"
#include "paddle/phi/common/memory_utils.h"
#include "paddle/phi/core/device_context.h"
#include "paddle/phi/core/enforce.h"
#include "paddle/phi/core/generator.h"
#if defined(PADDLE_WITH_CUDA) || defined(PADDLE_WITH_HIP)
#include "paddle/phi/api/profiler/event.h"
#include "paddle/phi/backends/gpu/gpu_context.h"
#include "paddle/phi/core/cuda_stream.h"
#if defined(PADDLE_WITH_CUDA)
#include "paddle/phi/backends/gpu/cuda/cuda_graph.h"
#else
#include "paddle/phi/backends/gpu/rocm/hip_graph.h"
#endif
#endif
#ifdef PADDLE_WITH_CUSTOM_DEVICE
#include "paddle/phi/backends/custom/custom_context.h"
#include "paddle/phi/backends/event.h"
#include "paddle/phi/backends/stream.h"
#endif

namespace phi {
namespace {

// The contexts of the default streams.
struct Defaults {
  ThreadContexts contexts;
  bool (*is_python_thread)();
};

// Trivially destructible: while its thread-local objects are destroyed, a
// thread may still free tensors and so look up contexts.
struct Thread {
  ThreadContextGuard* newest_guard = nullptr;
  // The number of the last ThreadContextGuard, which may have ended.
  uint64_t last_guard = 0;
  // If set by a guard: lookups ignore the ThreadContextGuards up to this
  // number. Not a pointer, since a hidden guard may end first.
  uint64_t hidden_guards = 0;
  const ThreadContexts* own = nullptr;
  DeviceContext* host = nullptr;
  bool is_main = false;
  // Set by a WorkerContextsGuard.
  bool is_worker = false;
  // If set by a guard: the only contexts that take precedence over the
  // process's contexts on this thread.
  const ThreadContexts* only = nullptr;
  // If set by a guard: the context for the CPU.
  DeviceContext* guarded_host = nullptr;
};

thread_local Thread this_thread;

// Never destroyed: threads may look up contexts while the process exits.
const ThreadContexts& kNone = *std::make_unique<ThreadContexts>().release();

// The newest Defaults. A lookup may still read an older one, so none is ever
// destroyed. At most one is created per device.
std::atomic<const Defaults*> last_defaults{nullptr};

// The result of a lookup; null if no context was found.
using Found = const std::shared_ptr<DeviceContext>*;

Found Find(const ThreadContexts& contexts, const Place& place) {
  const auto found = contexts.find(place);
  return found == contexts.end() ? nullptr : &found->second;
}

// Searches the guards with numbers above `hidden`, the newest one first.
Found FindInGuards(const Thread& thread, uint64_t hidden, const Place& place) {
  for (const auto* guard = thread.newest_guard;
       guard != nullptr && guard->Number() > hidden;
       guard = guard->Older()) {
    if (guard->Context()->GetPlace() == place) return &guard->Context();
  }
  return nullptr;
}

// Returns the contexts that the thread uses where it has set none, or null.
const Defaults* DefaultsOf(const Thread& thread) {
  // Acquire, paired with the release in KeepDefaultContext: makes the whole map
  // visible.
  const auto* defaults = last_defaults.load(std::memory_order_acquire);
  if (defaults == nullptr || thread.is_main) return nullptr;
  return thread.is_worker || defaults->is_python_thread() ? defaults : nullptr;
}

// Returns all contexts that take precedence over the process's on the thread.
ThreadContexts AllContextsOf(const Thread& thread) {
  // In the order of precedence: emplace and insert keep existing entries.
  ThreadContexts all;
  for (const auto* guard = thread.newest_guard;
       guard != nullptr && guard->Number() > thread.hidden_guards;
       guard = guard->Older()) {
    all.emplace(guard->Context()->GetPlace(), guard->Context());
  }
  if (thread.only != nullptr) {
    all.insert(thread.only->begin(), thread.only->end());
    return all;
  }
  if (thread.own != nullptr) all.insert(thread.own->begin(), thread.own->end());
  if (const auto* defaults = DefaultsOf(thread)) {
    all.insert(defaults->contexts.begin(), defaults->contexts.end());
  }
  return all;
}

// Like FindThreadContext, for places other than the CPU.
Found FindDeviceContext(const Thread& thread, const Place& place) {
  if (const auto found = FindInGuards(thread, thread.hidden_guards, place)) {
    return found;
  }
  if (thread.only != nullptr) return Find(*thread.only, place);
  if (thread.own != nullptr) {
    if (const auto found = Find(*thread.own, place)) return found;
  }
  const auto* defaults = DefaultsOf(thread);
  return defaults == nullptr ? nullptr : Find(defaults->contexts, place);
}

// Returns the stream of a context, or null if its device has none. Only streams
// of one place can be compared.
const void* StreamOf(const DeviceContext& context) {
  switch (context.GetPlace().GetType()) {
#if defined(PADDLE_WITH_CUDA) || defined(PADDLE_WITH_HIP)
    case AllocationType::GPU:
      return static_cast<const GPUContext&>(context).stream();
#endif
#ifdef PADDLE_WITH_CUSTOM_DEVICE
    case AllocationType::CUSTOM:
      return static_cast<const CustomContext&>(context).stream();
#endif
    default:
      return nullptr;
  }
}

std::shared_ptr<DeviceContext> ProcessContext(const Place& place) {
  const ProcessContextsGuard guard;
  // It lives until the process ends.
  return {std::shared_ptr<void>(), DeviceContextPool::Instance().Get(place)};
}

// Returns the pairs of contexts, by place, whose streams differ. For a place
// that one map lacks, the pair has the process's context.
ContextPairs OnDifferentStreams(const ThreadContexts& ones,
                                const ThreadContexts& others) {
  ContextPairs pairs;
  const auto compare = [&](const Place& place) {
    const Found one = Find(ones, place);
    const Found other = Find(others, place);
    if (one != nullptr && other != nullptr && *one == *other) return;
    auto of_one = one == nullptr ? ProcessContext(place) : *one;
    auto of_other = other == nullptr ? ProcessContext(place) : *other;
    if (StreamOf(*of_one) != StreamOf(*of_other)) {
      pairs.emplace_back(std::move(of_one), std::move(of_other));
    }
  };
  for (const auto& entry : ones) compare(entry.first);
  for (const auto& entry : others) {
    if (Find(ones, entry.first) == nullptr) compare(entry.first);
  }
  return pairs;
}

std::shared_ptr<DeviceContext> NewContext(const Place& place) {
  // Create the process's context first, if it does not exist yet: the first
  // context of a place gives the allocator its default stream.
  DeviceContextPool::Instance().Get(place);
  std::map<Place, std::shared_future<std::unique_ptr<DeviceContext>>> made;
  memory_utils::EmplaceDeviceContexts(
      &made,
      {place},
      /*disable_setting_default_stream_for_allocator=*/true,
      /*stream_priority=*/0);
  const auto context = made.begin()->second;
  return {context.get().get(), [context](DeviceContext*) {}};
}

}  // namespace

// A build may support GPUs and custom devices, so the place decides.
void WaitForStream([[maybe_unused]] const DeviceContext* waiting,
                   const DeviceContext* other) {
  [[maybe_unused]] const Place place = other->GetPlace();
#if defined(PADDLE_WITH_CUDA) || defined(PADDLE_WITH_HIP)
  if (place.GetType() == AllocationType::GPU) {
    const backends::gpu::GPUDeviceGuard guard(place.GetDeviceId());
    CudaEvent event;
    event.Record(static_cast<const GPUContext*>(other)->stream());
    static_cast<const GPUContext*>(waiting)->cuda_stream()->WaitEvent(
        event.GetRawCudaEvent());
  }
#endif
#ifdef PADDLE_WITH_CUSTOM_DEVICE
  if (place.GetType() == AllocationType::CUSTOM) {
    event::Event event;
    event.Init(place);
    event.Record(static_cast<const CustomContext*>(other)->GetStream().get());
    static_cast<const CustomContext*>(waiting)->GetStream()->WaitEvent(&event);
  }
#endif
}

bool IsCapturing() {
#if defined(PADDLE_WITH_CUDA) || defined(PADDLE_WITH_HIP)
  return backends::gpu::CUDAGraph::IsThisThreadCapturing();
#else
  return false;
#endif
}

#if defined(PADDLE_WITH_CUDA) || defined(PADDLE_WITH_HIP)
std::shared_ptr<DeviceContext> NewStreamContext(CUDAStream* stream) {
  const Place place = stream->place();
  PADDLE_ENFORCE_EQ(
      IsCapturing(),
      false,
      common::errors::PreconditionNotMet(
          "A stream of %s cannot be set on a thread for the first time while "
          "the thread captures a CUDA graph. Set it before the capture begins.",
          place));
  auto context = NewContext(place);
  // clear: destroy the context's initial stream.
  static_cast<GPUContext*>(context.get())
      ->SetCUDAStream(stream, /*clear=*/true);
  return context;
}
#endif

#ifdef PADDLE_WITH_CUSTOM_DEVICE
std::shared_ptr<DeviceContext> NewStreamContext(
    std::shared_ptr<stream::Stream> stream) {
  auto context = NewContext(stream->GetPlace());
  static_cast<CustomContext*>(context.get())->SetStream(std::move(stream));
  return context;
}
#endif

std::shared_ptr<DeviceContext> NewHostContext(
    Allocator* allocator, std::shared_ptr<Generator> generator) {
  auto context = NewContext(CPUPlace());
  if (allocator != nullptr) {
    context->SetAllocator(allocator);
    context->SetHostAllocator(allocator);
  }
  if (generator == nullptr) return context;
  context->SetGenerator(generator.get());
  context->SetHostGenerator(generator.get());
  auto* const kept = context.get();
  return {kept, [context, generator](DeviceContext*) {}};
}

void UseHostContext(DeviceContext* context) { this_thread.host = context; }

void UseThreadContexts(const ThreadContexts* contexts) {
  this_thread.own = contexts;
}

ThreadContextGuard::ThreadContextGuard(std::shared_ptr<DeviceContext> context)
    : context_(std::move(context)),
      number_(++this_thread.last_guard),
      older_(std::exchange(this_thread.newest_guard, this)) {}

ThreadContextGuard::~ThreadContextGuard() {
  auto** link = &this_thread.newest_guard;
  while (*link != this) link = &(*link)->older_;
  *link = older_;
}

void EnforceNoContextGuard(const Place& place) {
  PADDLE_ENFORCE_EQ(
      FindInGuards(this_thread, 0, place),
      nullptr,
      common::errors::PreconditionNotMet(
          "The stream of %s cannot be set on this thread: C++ code is inside a "
          "guard that has set another stream. Set the stream before calling "
          "that code, or with a C++ guard.",
          place));
}

void BecomeMainThread() { this_thread.is_main = true; }

void KeepDefaultContext(const Place& place,
                        std::shared_ptr<DeviceContext> context,
                        bool (*is_python_thread)()) {
  static std::mutex mutex;
  // Leaked on purpose, see last_defaults.
  static auto& all = *std::make_unique<std::list<Defaults>>().release();
  const std::lock_guard<std::mutex> lock(mutex);
  Defaults next{{}, is_python_thread};
  if (!all.empty()) next.contexts = all.back().contexts;
  next.contexts.insert_or_assign(place, std::move(context));
  all.push_back(std::move(next));
  // Release, paired with the acquire in DefaultsOf: publishes the whole map.
  last_defaults.store(&all.back(), std::memory_order_release);
}

DeviceContext* FindThreadContext(const Place& place) {
  const Thread& thread = this_thread;
  if (place.GetType() == AllocationType::CPU) {
    return thread.guarded_host == nullptr && thread.only == nullptr
               ? thread.host
               : thread.guarded_host;
  }
  const auto found = FindDeviceContext(thread, place);
  return found == nullptr ? nullptr : found->get();
}

std::shared_ptr<DeviceContext> CurrentContext(const Place& place) {
  if (const auto found = FindDeviceContext(this_thread, place)) return *found;
  return ProcessContext(place);
}

Allocator* FindThreadAllocator(const Place& place) {
  const auto* context = FindThreadContext(place);
  if (context == nullptr) {
    // Acquire: as in DefaultsOf.
    const auto* defaults = last_defaults.load(std::memory_order_acquire);
    if (defaults == nullptr || Find(defaults->contexts, place) == nullptr) {
      return nullptr;
    }
    // The main thread may have bound the process's context to a stream other
    // than the default one.
    context = DeviceContextPool::Instance().Get(place);
  }
  if (IsCapturing()) return nullptr;
  return const_cast<Allocator*>(&context->GetAllocator());
}

int64_t ThreadContextsId() {
  ThreadContexts found = AllContextsOf(this_thread);
  if (found.empty()) return 0;
  static std::mutex mutex;
  // Leaked on purpose: threads may call this while the process exits.
  static auto& ids =
      *std::make_unique<std::map<ThreadContexts, int64_t>>().release();
  const std::lock_guard<std::mutex> lock(mutex);
  return ids.emplace(std::move(found), ids.size() + 1).first->second;
}

ProcessContextsGuard::ProcessContextsGuard()
    : outer_(std::exchange(this_thread.only, &kNone)),
      outer_hidden_guards_(
          std::exchange(this_thread.hidden_guards, this_thread.last_guard)),
      outer_host_(std::exchange(this_thread.guarded_host, nullptr)) {}

ProcessContextsGuard::~ProcessContextsGuard() {
  this_thread.only = outer_;
  this_thread.hidden_guards = outer_hidden_guards_;
  this_thread.guarded_host = outer_host_;
}

std::vector<Place> PlacesOnOtherStreams() {
  std::vector<Place> places;
  for (const auto& pair : OnDifferentStreams(CurrentContexts(), {})) {
    places.push_back(pair.first->GetPlace());
  }
  return places;
}

ThreadContexts CurrentContexts() { return AllContextsOf(this_thread); }

std::unique_ptr<const ThreadContexts> WorkerContexts() {
  const Thread& thread = this_thread;
  // Acquire: as in DefaultsOf.
  const auto* defaults = last_defaults.load(std::memory_order_acquire);
  const bool is_cpp_thread =
      defaults != nullptr && !defaults->is_python_thread();
  if (thread.is_main || thread.only != nullptr || is_cpp_thread) return nullptr;
  return std::make_unique<const ThreadContexts>(AllContextsOf(thread));
}

WorkerContextsGuard::WorkerContextsGuard(const ThreadContexts* contexts)
    : outer_(this_thread.own), outer_is_worker_(this_thread.is_worker) {
  if (contexts == nullptr) return;
  this_thread.own = contexts;
  this_thread.is_worker = true;
}

WorkerContextsGuard::~WorkerContextsGuard() {
  this_thread.own = outer_;
  this_thread.is_worker = outer_is_worker_;
}

OrderedContextsGuard::OrderedContextsGuard(ThreadContexts contexts)
    : contexts_(std::move(contexts)),
      pairs_(IsCapturing() ? ContextPairs()
                           : OnDifferentStreams(CurrentContexts(), contexts_)),
      outer_(this_thread.only),
      outer_hidden_guards_(this_thread.hidden_guards),
      outer_host_(this_thread.guarded_host) {
  for (const auto& [own, inside] : pairs_) {
    WaitForStream(inside.get(), own.get());
  }
  if (IsCapturing()) return;
  this_thread.only = &contexts_;
  this_thread.hidden_guards = this_thread.last_guard;
  this_thread.guarded_host = nullptr;
}

OrderedContextsGuard::~OrderedContextsGuard() {
  this_thread.only = outer_;
  this_thread.hidden_guards = outer_hidden_guards_;
  this_thread.guarded_host = outer_host_;
  for (const auto& [own, inside] : pairs_) {
    try {
      WaitForStream(own.get(), inside.get());
    } catch (...) {  // NOLINT
      // A destructor must not throw. A failed device reports the error again at
      // the thread's next call.
    }
  }
}

HostContextGuard::HostContextGuard(DeviceContext* context)
    : outer_(std::exchange(this_thread.guarded_host, context)) {}

HostContextGuard::~HostContextGuard() { this_thread.guarded_host = outer_; }

}  // namespace phi
