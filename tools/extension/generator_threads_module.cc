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

// For a wheel: threads draw from the CPU engine of a generator one at a time,
// as in a patched Paddle. The kernels that draw are part of a prebuilt library,
// so this module intervenes where they get the engine. _thread_contexts loads
// it when Paddle is imported, because any later moment could be too late: also
// threads that Paddle starts itself draw.

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <random>
#include <stdexcept>
#include <vector>

#include "call_redirection.h"
#include "paddle/phi/backends/cpu/cpu_context.h"
#include "paddle/phi/core/dense_tensor.h"
#include "paddle/phi/core/generator.h"
#include "paddle/phi/core/generator_lock.h"

namespace py = pybind11;

namespace {

using Engine = std::shared_ptr<std::mt19937_64>;
using phi::CPUContext;
using phi::DenseTensor;
using phi::Generator;
using phi::GeneratorLock;
using State = Generator::GeneratorState;

void* get_engine = nullptr;
void* get_random_engine = nullptr;
void* binomial_of_floats = nullptr;
void* binomial_of_doubles = nullptr;

// A member function that returns an object is called like this function.
Engine GetEngine(Generator* generator) {
  GeneratorLock lock(generator);
  return lock.KeepIn(
      reinterpret_cast<decltype(&GetEngine)>(get_engine)(generator));
}

Engine GetRandomEngine(uint64_t seed) {
  const auto original =
      reinterpret_cast<decltype(&GetRandomEngine)>(get_random_engine);
  if (seed != 0) return original(seed);
  // Some callers keep the engine. Its pointer locks nothing, because the
  // generator is locked already.
  const GeneratorLock lock(phi::DefaultCPUGenerator().get());
  return original(seed);
}

uint64_t Random(Generator* generator) {
  const GeneratorLock lock(generator);
  return generator->Random64();
}

void SetSeed(Generator* generator, uint64_t seed) {
  const GeneratorLock lock(generator);
  generator->SetCurrentSeed(seed);
}

// A kernel that gets the engine for each number. Locks the generator once.
template <void** kernel>
void Binomial(const CPUContext& context,
              const DenseTensor& count,
              const DenseTensor& probability,
              DenseTensor* out) {
  const auto original = reinterpret_cast<decltype(&Binomial<kernel>)>(*kernel);
  const GeneratorLock lock(context.GetGenerator());
  original(context, count, probability, out);
}

// Throws std::runtime_error like RedirectCalls.
void RedirectCallsOfKernels() {
  constexpr char kKernelArguments[] = "RKNS_11DenseTensorES7_PS5_";
  const std::vector<Redirection> redirections = {
      // Before GetCPUEngine, which it calls: nothing may keep a locked engine.
      {"_ZN3phi18GetCPURandomEngineE",
       "m",
       reinterpret_cast<void*>(&GetRandomEngine),
       &get_random_engine},
      {"_ZN3phi9Generator8Random64E", "v", reinterpret_cast<void*>(&Random)},
      {"_ZN3phi9Generator14SetCurrentSeedE",
       "m",
       reinterpret_cast<void*>(&SetSeed)},
      {"_ZN3phi14BinomialKernelIfNS_10CPUContextEEEvRKT0_",
       kKernelArguments,
       reinterpret_cast<void*>(&Binomial<&binomial_of_floats>),
       &binomial_of_floats},
      {"_ZN3phi14BinomialKernelIdNS_10CPUContextEEEvRKT0_",
       kKernelArguments,
       reinterpret_cast<void*>(&Binomial<&binomial_of_doubles>),
       &binomial_of_doubles},
      {"_ZN3phi9Generator12GetCPUEngineE",
       "v",
       reinterpret_cast<void*>(&GetEngine),
       &get_engine}};
  RedirectCalls(redirections, PackageFolder());
}

// Replaces a method of generators by one that locks the generator. libpaddle
// has the addresses of the methods' functions since its import, so their calls
// cannot be redirected.
template <typename Result, typename... Arguments>
void ReplaceMethod(const py::object& type,
                   const char* name,
                   Result (Generator::*method)(Arguments...)) {
  type.attr(name) = py::cpp_function(
      [method](Generator* self, Arguments... arguments) -> Result {
        const GeneratorLock lock(self);
        return (self->*method)(arguments...);
      },
      py::name(name),
      py::is_method(type));
}

// Like libpaddle's get_state, without a copy that takes longer here.
std::shared_ptr<State> GetState(Generator* self) {
  const GeneratorLock lock(self);
  return std::shared_ptr<State>(new State(self->GetState()));
}

void ReplaceMethods() {
  const py::object type =
      py::module_::import("paddle.base.core").attr("Generator");
  type.attr("get_state") =
      py::cpp_function(&GetState, py::name("get_state"), py::is_method(type));
  ReplaceMethod(type, "set_state", &Generator::SetState);
  ReplaceMethod(type, "set_state_index", &Generator::SetStateIndex);
  ReplaceMethod(type, "register_state_index", &Generator::RegisterStateIndex);
  ReplaceMethod(type, "seed", &Generator::Seed);
  ReplaceMethod(type, "random", &Generator::Random64);
}

}  // namespace

PYBIND11_MODULE(_generator_threads, module) {
  module.doc() = "Random numbers of a generator for one thread at a time.";
  try {
    RedirectCallsOfKernels();
  } catch (const std::runtime_error& error) {
    // Must not prevent an import of Paddle. Threads then share engines as
    // before.
    module.attr("error") = error.what();
    return;
  }
  ReplaceMethods();
}
