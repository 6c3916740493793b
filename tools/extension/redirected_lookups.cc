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

#include "redirected_lookups.h"

#include <pthread.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "call_redirection.h"
#include "paddle/phi/api/include/context_pool.h"
#include "paddle/phi/backends/context_pool.h"
#include "paddle/phi/backends/thread_contexts.h"
#include "paddle/phi/core/memory/allocation/allocator_facade.h"

namespace {

using paddle::memory::allocation::AllocationPtr;
using paddle::memory::allocation::AllocatorFacade;
using ExperimentalPool = paddle::experimental::DeviceContextPool;

// Returns the contexts that lookups use on threads without their own contexts
// from DeviceContextPool::SetDeviceContexts. The caller may have its own.
const auto* ProcessContexts(const phi::DeviceContextPool& pool) {
  const auto* const in_use = &pool.device_contexts();
  phi::DeviceContextPool::SetDeviceContexts(nullptr);
  const auto* const of_process = &pool.device_contexts();
  if (in_use != of_process) phi::DeviceContextPool::SetDeviceContexts(in_use);
  return of_process;
}

phi::DeviceContext* Get(phi::DeviceContextPool* pool, const phi::Place& place) {
  static const auto* const of_process = ProcessContexts(*pool);
  auto* const context = phi::FindThreadContext(place);
  if (context == nullptr) return pool->Get(place);
  // Contexts set by SetDeviceContexts take precedence.
  const auto& set = pool->device_contexts();
  return &set != of_process && set.count(place) > 0 ? pool->Get(place)
                                                    : context;
}

const phi::DeviceContext* ExperimentalGet(ExperimentalPool* pool,
                                          const phi::Place& place) {
  if (const auto* context = phi::FindThreadContext(place)) return context;
  // All threads read the pool's map, so only the process's contexts may go
  // into it.
  const phi::ProcessContextsGuard guard;
  return pool->Get(place);
}

void SyncDeviceContext(ExperimentalPool* pool, const phi::Place& place) {
  const phi::ProcessContextsGuard guard;
  pool->SyncDeviceContext(place);
}

AllocationPtr Alloc(AllocatorFacade* facade,
                    const phi::Place& place,
                    size_t size) {
  auto* allocator = size > 0 ? phi::FindThreadAllocator(place) : nullptr;
  return allocator == nullptr ? facade->Alloc(place, size)
                              : allocator->Allocate(size);
}

// Paddle has no header for the backward pass of programs, so these functions
// pass the arguments on untyped. The interpreter keeps the contexts of its
// first run, whichever thread runs it.
using RunGradient =
    void (*)(void*, void*, void*, void*, void*, void*, const int64_t&);
using RunLegacyGradient =
    void (*)(void*, void*, void*, void*, void*, const int64_t&);

void* run_gradient = nullptr;
void* run_legacy_gradient = nullptr;

void RunGradientOfThread(void* output_gradients,
                         void* scopes,
                         void* attributes,
                         void* cuda_graph_attributes,
                         void* input_gradients,
                         void* parameter_gradients,
                         const int64_t& key) {
  const phi::OrderedProcessContextsGuard guard;
  reinterpret_cast<RunGradient>(run_gradient)(output_gradients,
                                              scopes,
                                              attributes,
                                              cuda_graph_attributes,
                                              input_gradients,
                                              parameter_gradients,
                                              key);
}

void RunLegacyGradientOfThread(void* output_gradients,
                               void* scopes,
                               void* attributes,
                               void* input_gradients,
                               void* parameter_gradients,
                               const int64_t& key) {
  const phi::OrderedProcessContextsGuard guard;
  reinterpret_cast<RunLegacyGradient>(run_legacy_gradient)(output_gradients,
                                                           scopes,
                                                           attributes,
                                                           input_gradients,
                                                           parameter_gradients,
                                                           key);
}

// The mangled types of a program's gradients, scopes and attributes.
constexpr char kProgramArguments[] =
    "RKSt6vectorIN6paddle6TensorESaIS3_EERKS1_IPNS2_9framework5ScopeESaISA_"
    "EERKSt13unordered_mapINSt7__cxx1112basic_stringIcSt11char_traitsIcESaI"
    "cEEENS2_7variantIJNS2_5blankEifSL_S1_IiSaIiEES1_IfSaIfEES1_ISL_SaISL_E"
    "EbS1_IbSaIbEEPNS8_9BlockDescElS1_ISX_SaISX_EES1_IlSaIlEES1_IdSaIdEEPNS"
    "8_7VarDescES1_IS15_SaIS15_EEdNS2_12experimental10ScalarBaseIS3_EES1_IS"
    "1A_SaIS1A_EEPN3pir5BlockES1_INS1D_5ValueESaIS1G_EESt10shared_ptrINS1D_"
    "7ProgramEEEEESt4hashISL_ESt8equal_toISL_ESaISt4pairIKSL_S1M_EEE";

// The redirected functions, by their mangled names.
const std::vector<Redirection>& Redirections() {
  static const std::string program = kProgramArguments;
  static const std::string run_arguments = program + "S1X_PS5_S1Y_RKl";
  static const std::string legacy_arguments =
      program + "RS1_IPS3_SaIS1Y_EES21_RKl";
  static const std::vector<Redirection> redirections = {
      {"_ZN3phi17DeviceContextPool3GetE",
       "RKNS_5PlaceE",
       reinterpret_cast<void*>(&Get)},
      {"_ZN6paddle12experimental17DeviceContextPool3GetE",
       "RKN3phi5PlaceE",
       reinterpret_cast<void*>(&ExperimentalGet)},
      {"_ZN6paddle12experimental17DeviceContextPool17SyncDeviceContextE",
       "RKN3phi5PlaceE",
       reinterpret_cast<void*>(&SyncDeviceContext),
       nullptr,
       {},
       /*called_where_defined=*/false},
      // The other overload takes a stream from the caller.
      {"_ZN6paddle6memory10allocation15AllocatorFacade5AllocE",
       "RKN3phi5PlaceEm",
       reinterpret_cast<void*>(&Alloc),
       nullptr,
       {"RKN3phi5PlaceEmRKNS3_6StreamE"}},
      {"_ZN3egr9to_static18RunProgramGradImplE",
       run_arguments,
       reinterpret_cast<void*>(&RunGradientOfThread),
       &run_gradient},
      {"_ZN3egr9to_static24LegacyRunProgramGradImplE",
       legacy_arguments,
       reinterpret_cast<void*>(&RunLegacyGradientOfThread),
       &run_legacy_gradient}};
  return redirections;
}

// Held while slots are found and written. Never destroyed, as threads may still
// set streams when the process ends.
auto* slots_mutex = std::make_unique<std::mutex>().release();  // NOLINT

// Prevents a forked child from finding the mutex locked by another thread.
[[maybe_unused]] const int at_fork =
    pthread_atfork([] { slots_mutex->lock(); },
                   [] { slots_mutex->unlock(); },
                   [] { slots_mutex->unlock(); });

// Calls `redirect`; an error says that per-thread streams do not work.
template <typename Redirect>
void RedirectFor(const Redirect& redirect) {
  const std::lock_guard<std::mutex> lock(*slots_mutex);
  try {
    redirect(Redirections());
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(
        std::string("Threads cannot have their own streams: ") + error.what());
  }
}

}  // namespace

void RedirectLookups() {
  RedirectFor([](const auto& redirections) { RedirectCalls(redirections); });
}

void RedirectLazyLookups() { RedirectFor(RedirectLazyCalls); }
