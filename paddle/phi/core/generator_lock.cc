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

#include "paddle/phi/core/generator_lock.h"

#ifndef _WIN32
#include <pthread.h>
#endif

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <new>
#include <utility>

namespace phi {

struct alignas(64) GeneratorLock::Mutex {
  std::mutex mutex;
  // Tells which thread has locked it. Relaxed: only a thread itself stores its
  // value here, and removes it.
  std::atomic<const char*> owner{nullptr};
};

namespace {

using Mutex = GeneratorLock::Mutex;

// Several generators may have the same mutex: then their users wait for each
// other. Needs no initialization when the library is loaded, and on Linux no
// destruction: threads may still draw when the process exits.
constexpr uintptr_t kMutexes = 251;
std::array<Mutex, kMutexes> mutexes;

// Its address differs from thread to thread.
thread_local const char this_thread = 0;

void Unlock(Mutex* mutex) {
  mutex->owner.store(nullptr, std::memory_order_relaxed);
  mutex->mutex.unlock();
}

// Unlocks when an engine's pointer is dropped.
struct Unlocker {
  Mutex* mutex;
  // Kept until then, also if its generator is destroyed.
  std::shared_ptr<std::mt19937_64> engine;

  void operator()(std::mt19937_64* /*engine*/) const { Unlock(mutex); }
};

#ifndef _WIN32
// The forking thread does not lock them: it would wait for the end of a draw.
void ReplaceMutexes() {
  for (auto& mutex : mutexes) {
    if (mutex.owner.load(std::memory_order_relaxed) == &this_thread) continue;
    // A locked mutex must not be destroyed.
    new (&mutex) Mutex;
  }
}

[[maybe_unused]] const int at_fork =
    pthread_atfork(nullptr, nullptr, &ReplaceMutexes);
#endif

}  // namespace

GeneratorLock::GeneratorLock(const Generator* generator) {
  // Memory for objects of this size begins at a multiple of 16.
  const auto address = reinterpret_cast<uintptr_t>(generator);
  mutex_ = &mutexes[address / 16 % kMutexes];
  if (mutex_->owner.load(std::memory_order_relaxed) == &this_thread) {
    mutex_ = nullptr;
    return;
  }
  mutex_->mutex.lock();
  mutex_->owner.store(&this_thread, std::memory_order_relaxed);
}

GeneratorLock::~GeneratorLock() {
  if (mutex_ != nullptr) Unlock(mutex_);
}

std::shared_ptr<std::mt19937_64> GeneratorLock::KeepIn(
    std::shared_ptr<std::mt19937_64> engine) {
  if (mutex_ == nullptr) return engine;
  auto* const pointer = engine.get();
  // The constructor calls the deleter if it throws.
  auto* const mutex = std::exchange(mutex_, nullptr);
  return {pointer, Unlocker{mutex, std::move(engine)}};
}

}  // namespace phi
