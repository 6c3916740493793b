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

#include <pthread.h>
#include <pybind11/pybind11.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "call_slots.h"
#include "paddle/phi/api/include/tensor.h"
#include "paddle/phi/common/place.h"
#include "paddle/pir/include/core/program.h"

// Makes the programs of to_static and jit.load safe to run on several threads.
//
// A program runs in a scope, in that scope's interpreter. The official
// libpaddle lets two threads use the same scope, and does not lock its map of
// interpreters. So some of its calls are redirected:
//   - A taken scope stays taken until its last variable is freed: at the end of
//     a forward pass without a backward pass, of a backward pass, or of a graph
//     whose backward pass never ran.
//   - The map is locked while it is read or changed.
//   - Only one interpreter at a time is built, because building reads and
//     rewrites programs that threads share.
// Programs run in parallel.

// Paddle's wheel has no headers for these.
namespace pir {
class Block;
}  // namespace pir

namespace paddle::framework {
class BlockDesc;
class Scope;

std::unique_ptr<::pir::Program> ApplyIrPass(
    ::pir::Program* program,
    phi::Place place,
    const std::set<std::string>& no_need_buffer_names);

std::unique_ptr<::pir::Program> ConstructForwardIrProgram(
    const BlockDesc* forward,
    const BlockDesc* backward,
    const std::vector<std::string>& output_names,
    const std::vector<paddle::Tensor>& inputs,
    const std::vector<std::string>& input_names,
    const std::vector<paddle::Tensor>& parameters,
    const phi::Place& place);

std::unique_ptr<::pir::Program> ConstructBackwardIrProgram(
    const BlockDesc* backward,
    const std::vector<paddle::Tensor>& output_gradients,
    const std::vector<paddle::Tensor*>& input_gradients,
    const std::vector<paddle::Tensor*>& parameter_gradients,
    const Scope* scope,
    const phi::Place& place);

std::unique_ptr<::pir::Program> ApplyRemoveShadowFeedPass(
    std::unique_ptr<::pir::Program> program,
    const ::pir::Block* block,
    const phi::Place& place,
    const Scope* scope);
}  // namespace paddle::framework

namespace py = pybind11;

namespace {

using paddle::framework::BlockDesc;
using paddle::framework::Scope;
using pir::Program;

// Protects the map of interpreters, whose elements never move.
std::mutex map_mutex;  // NOLINT

// Held by the thread that builds an interpreter. Not a recursive mutex, because
// a forked child could not unlock it. Never destroyed, because threads may
// still build while the process exits.
auto* build_mutex =  // NOLINT
    std::make_unique<std::timed_mutex>().release();
thread_local int build_depth = 0;
// Whether the thread holds build_mutex for a fork.
thread_local bool is_locked_for_fork = false;

// Whether the run in a taken scope has begun.
enum class Taken { kForRun, kByRun };

// The taken scopes, by address.
std::mutex taken_mutex;                             // NOLINT
std::unordered_map<uintptr_t, Taken> taken_scopes;  // NOLINT

// Releases the GIL while waiting, because the holder may need it to unlock.
void WaitForBuildMutex() {
  if (build_mutex->try_lock()) return;
  if (PyGILState_Check() != 0) {
    const py::gil_scoped_release release;
    build_mutex->lock();
  } else {
    build_mutex->lock();
  }
}

class BuildGuard {
 public:
  BuildGuard() {
    if (build_depth == 0) WaitForBuildMutex();
    ++build_depth;
  }
  ~BuildGuard() {
    --build_depth;
    if (build_depth == 0) build_mutex->unlock();
  }
  BuildGuard(const BuildGuard&) = delete;
  BuildGuard& operator=(const BuildGuard&) = delete;
};

// Returns false if the scope is taken already. Thread-safe.
bool TakeScope(uintptr_t scope) {
  const std::lock_guard<std::mutex> guard(taken_mutex);
  return taken_scopes.emplace(scope, Taken::kForRun).second;
}

bool IsTakenForRun(uintptr_t scope) {
  const std::lock_guard<std::mutex> guard(taken_mutex);
  const auto found = taken_scopes.find(scope);
  return found != taken_scopes.end() && found->second == Taken::kForRun;
}

// Returns a scope that was taken for a call that failed before its run began,
// or None. Only the list still refers to such a scope; it now belongs to the
// caller. Thread-safe, because nothing here releases the GIL.
py::object TakeAbandonedScope(const py::list& scopes) {
  for (const py::handle scope : scopes) {
    if (Py_REFCNT(scope.ptr()) == 1 &&
        IsTakenForRun(scope.attr("raw_address")().cast<uintptr_t>())) {
      return py::reinterpret_borrow<py::object>(scope);
    }
  }
  return py::none();
}

void BeginRun(const Scope* scope) {
  const std::lock_guard<std::mutex> guard(taken_mutex);
  taken_scopes[reinterpret_cast<uintptr_t>(scope)] = Taken::kByRun;
}

void ReturnScope(const Scope* scope) {
  const std::lock_guard<std::mutex> guard(taken_mutex);
  taken_scopes.erase(reinterpret_cast<uintptr_t>(scope));
}

// The redirected functions. Arguments whose types are in no header are passed
// on as untyped pointers.
void* has = nullptr;
void* get_mutable = nullptr;
void* free_variables = nullptr;
void* run_program = nullptr;
void* run_legacy_program = nullptr;
void* make_interpreter = nullptr;
void* build_instructions = nullptr;
void* analyze = nullptr;

// The number of paddle.grad calls that the thread is in.
thread_local int gradient_depth = 0;
// Whether the thread is in a program's run, forward or backward, whose scope is
// not freed yet.
thread_local bool is_in_run = false;

// The first call of each run.
bool Has(const void* cache, const void* key) {
  is_in_run = true;
  const std::lock_guard<std::mutex> guard(map_mutex);
  return reinterpret_cast<decltype(&Has)>(has)(cache, key);
}

void* GetMutable(void* cache, const void* key) {
  const std::lock_guard<std::mutex> guard(map_mutex);
  return reinterpret_cast<decltype(&GetMutable)>(get_mutable)(cache, key);
}

// Returns whether the scope to be freed belongs to a copy of a node that
// paddle.grad has made but not run. The original node still needs the scope.
// Copies are destroyed in the engine, without the GIL; a node that is destroyed
// in a hook is not a copy.
bool BelongsToCopiedNode() {
  return gradient_depth > 0 && !is_in_run && PyGILState_Check() == 0;
}

void FreeVariables(Scope* scope, const void* kept) {
  if (BelongsToCopiedNode()) return;
  is_in_run = false;
  reinterpret_cast<decltype(&FreeVariables)>(free_variables)(scope, kept);
  ReturnScope(scope);
}

// A failed run leaves its inputs in its scope.
void FreeVariablesOfFailedRun(Scope* scope) {
  const std::unordered_set<std::string_view> kept;
  reinterpret_cast<decltype(&FreeVariables)>(free_variables)(scope, &kept);
  ReturnScope(scope);
}

// RAII guard: inside, the thread begins outside any run; afterwards, the
// previous state is restored.
class OutsideRuns {
 public:
  OutsideRuns() : was_in_run_(is_in_run) { is_in_run = false; }
  ~OutsideRuns() { is_in_run = was_in_run_; }
  OutsideRuns(const OutsideRuns&) = delete;
  OutsideRuns& operator=(const OutsideRuns&) = delete;

 private:
  bool was_in_run_;
};

// Calls a gradient function of paddle.grad. Thread-safe.
py::object CallGradient(const py::object& function, const py::args& arguments) {
  const OutsideRuns outside;
  struct Depth {
    Depth() { ++gradient_depth; }
    ~Depth() { --gradient_depth; }
  } const depth;
  return function(*arguments);
}

std::vector<paddle::Tensor> RunProgram(const void* inputs,
                                       const void* parameters,
                                       const std::vector<Scope*>& scopes,
                                       bool requires_gradient,
                                       const void* attributes,
                                       const void* cuda_graph_attributes,
                                       const int64_t& key) {
  const OutsideRuns outside;
  BeginRun(scopes.front());
  try {
    return reinterpret_cast<decltype(&RunProgram)>(run_program)(
        inputs,
        parameters,
        scopes,
        requires_gradient,
        attributes,
        cuda_graph_attributes,
        key);
  } catch (...) {
    FreeVariablesOfFailedRun(scopes.front());
    throw;
  }
}

void RunLegacyProgram(const void* inputs,
                      const void* parameters,
                      void* outputs,
                      const std::vector<Scope*>& scopes,
                      bool requires_gradient,
                      const void* attributes,
                      const int64_t& key) {
  const OutsideRuns outside;
  BeginRun(scopes.front());
  try {
    reinterpret_cast<decltype(&RunLegacyProgram)>(run_legacy_program)(
        inputs,
        parameters,
        outputs,
        scopes,
        requires_gradient,
        attributes,
        key);
  } catch (...) {
    FreeVariablesOfFailedRun(scopes.front());
    throw;
  }
}

std::unique_ptr<Program> Lower(
    Program* program,
    phi::Place place,  // NOLINT: the original signature.
    const std::set<std::string>& no_need_buffer_names) {
  const BuildGuard guard;
  return paddle::framework::ApplyIrPass(program, place, no_need_buffer_names);
}

std::unique_ptr<Program> RemoveShadowFeeds(std::unique_ptr<Program> program,
                                           const pir::Block* block,
                                           const phi::Place& place,
                                           const Scope* scope) {
  const BuildGuard guard;
  return paddle::framework::ApplyRemoveShadowFeedPass(
      std::move(program), block, place, scope);
}

// For models in .pdmodel files.
std::unique_ptr<Program> TranslateForward(
    const BlockDesc* forward,
    const BlockDesc* backward,
    const std::vector<std::string>& output_names,
    const std::vector<paddle::Tensor>& inputs,
    const std::vector<std::string>& input_names,
    const std::vector<paddle::Tensor>& parameters,
    const phi::Place& place) {
  const BuildGuard guard;
  return paddle::framework::ConstructForwardIrProgram(
      forward, backward, output_names, inputs, input_names, parameters, place);
}

std::unique_ptr<Program> TranslateBackward(
    const BlockDesc* backward,
    const std::vector<paddle::Tensor>& output_gradients,
    const std::vector<paddle::Tensor*>& input_gradients,
    const std::vector<paddle::Tensor*>& parameter_gradients,
    const Scope* scope,
    const phi::Place& place) {
  const BuildGuard guard;
  return paddle::framework::ConstructBackwardIrProgram(backward,
                                                       output_gradients,
                                                       input_gradients,
                                                       parameter_gradients,
                                                       scope,
                                                       place);
}

void MakeInterpreter(void* self,
                     const phi::Place& place,
                     const void* fetched,
                     const pir::Block* block,
                     Scope* scope,
                     const void* config) {
  const BuildGuard guard;
  reinterpret_cast<decltype(&MakeInterpreter)>(make_interpreter)(
      self, place, fetched, block, scope, config);
}

void BuildInstructions(void* self) {
  const BuildGuard guard;
  reinterpret_cast<decltype(&BuildInstructions)>(build_instructions)(self);
}

void Analyze(void* self) {
  const BuildGuard guard;
  reinterpret_cast<decltype(&Analyze)>(analyze)(self);
}

// Redirects the calls, which is necessary to run programs on several threads.
// Returns immediately if no library was loaded since the last call. Throws
// std::runtime_error like RedirectCalls.
void EnforceThreadSafe() {
  static const std::vector<Redirection> redirections = {
      {"_ZNK6paddle9framework24InterpreterCoreInfoCache3HasE",
       "RKNS0_27InterpreterCoreInfoCacheKeyE",
       reinterpret_cast<void*>(&Has),
       &has},
      {"_ZN6paddle9framework24InterpreterCoreInfoCache10GetMutableE",
       "RKNS0_27InterpreterCoreInfoCacheKeyE",
       reinterpret_cast<void*>(&GetMutable),
       &get_mutable},
      {"_ZN3egr9to_static7details7GcScopeE",
       "PN6paddle9framework5ScopeERKSt13unordered_setISt17basic_string_viewIcS"
       "t11char_traitsIcEESt4hashISA_ESt8equal_toISA_ESaISA_EE",
       reinterpret_cast<void*>(&FreeVariables),
       &free_variables},
      {"_ZN3egr9to_static14RunProgramImplE",
       "RKSt6vectorIN6paddle6TensorESaIS3_EES7_RS1_IPNS2_9framework5ScopeESaIS"
       "A_EEbRKSt13unordered_mapINSt7__cxx1112basic_stringIcSt11char_traitsIcE"
       "SaIcEEENS2_7variantIJNS2_5blankEifSK_S1_IiSaIiEES1_IfSaIfEES1_ISK_SaIS"
       "K_EEbS1_IbSaIbEEPNS8_9BlockDescElS1_ISW_SaISW_EES1_IlSaIlEES1_IdSaIdEE"
       "PNS8_7VarDescES1_IS14_SaIS14_EEdNS2_12experimental10ScalarBaseIS3_EES1"
       "_IS19_SaIS19_EEPN3pir5BlockES1_INS1C_5ValueESaIS1F_EESt10shared_ptrINS"
       "1C_7ProgramEEEEESt4hashISK_ESt8equal_toISK_ESaISt4pairIKSK_S1L_EEES1W_"
       "RKl",
       reinterpret_cast<void*>(&RunProgram),
       &run_program},
      {"_ZN3egr9to_static20LegacyRunProgramImplE",
       "RKSt6vectorIN6paddle6TensorESaIS3_EES7_RS1_IPS3_SaIS8_EERS1_IPNS2_9fra"
       "mework5ScopeESaISE_EEbRKSt13unordered_mapINSt7__cxx1112basic_stringIcS"
       "t11char_traitsIcESaIcEEENS2_7variantIJNS2_5blankEifSO_S1_IiSaIiEES1_If"
       "SaIfEES1_ISO_SaISO_EEbS1_IbSaIbEEPNSC_9BlockDescElS1_IS10_SaIS10_EES1_"
       "IlSaIlEES1_IdSaIdEEPNSC_7VarDescES1_IS18_SaIS18_EEdNS2_12experimental1"
       "0ScalarBaseIS3_EES1_IS1D_SaIS1D_EEPN3pir5BlockES1_INS1G_5ValueESaIS1J_"
       "EESt10shared_ptrINS1G_7ProgramEEEEESt4hashISO_ESt8equal_toISO_ESaISt4p"
       "airIKSO_S1P_EEERKl",
       reinterpret_cast<void*>(&RunLegacyProgram),
       &run_legacy_program},
      {"_ZN6paddle9framework11ApplyIrPassE",
       "PN3pir7ProgramEN3phi5PlaceERKSt3setINSt7__cxx1112basic_stringIcSt11cha"
       "r_traitsIcESaIcEEESt4lessISC_ESaISC_EE",
       reinterpret_cast<void*>(&Lower)},
      {"_ZN6paddle9framework25ConstructForwardIrProgramE",
       "PKNS0_9BlockDescES3_RKSt6vectorINSt7__cxx1112basic_stringIcSt11char_tr"
       "aitsIcESaIcEEESaISA_EERKS4_INS_6TensorESaISF_EESE_SJ_RKN3phi5PlaceE",
       reinterpret_cast<void*>(&TranslateForward)},
      {"_ZN6paddle9framework26ConstructBackwardIrProgramE",
       "PKNS0_9BlockDescERKSt6vectorINS_6TensorESaIS5_EERKS4_IPS5_SaISA_EESE_P"
       "KNS0_5ScopeERKN3phi5PlaceE",
       reinterpret_cast<void*>(&TranslateBackward)},
      {"_ZN6paddle9framework25ApplyRemoveShadowFeedPassE",
       "St10unique_ptrIN3pir7ProgramESt14default_deleteIS3_EEPKNS2_5BlockERKN3"
       "phi5PlaceEPKNS0_5ScopeE",
       reinterpret_cast<void*>(&RemoveShadowFeeds)},
      {"_ZN6paddle9framework14PirInterpreterC1E",
       "RKN3phi5PlaceERKSt6vectorINSt7__cxx1112basic_stringIcSt11char_traitsIc"
       "ESaIcEEESaISC_EEPKN3pir5BlockEPNS0_5ScopeERKNS0_11interpreter15Executi"
       "onConfigE",
       reinterpret_cast<void*>(&MakeInterpreter),
       &make_interpreter,
       // The constructor for an interpreter inside another one, which is being
       // built.
       {"RKN3phi5PlaceERKSt6vectorINSt7__cxx1112basic_stringIcSt11char_traitsI"
        "cESaIcEEESaISC_EEPKN3pir5BlockEPNS0_5ScopeESt10shared_ptrINS0_18ValueE"
        "xecutionInfoEERKNS0_11interpreter15ExecutionConfigE"}},
      {"_ZN6paddle9framework14PirInterpreter16BuildInstructionE",
       "v",
       reinterpret_cast<void*>(&BuildInstructions),
       &build_instructions},
      {"_ZN6paddle9framework14PirInterpreter11PreAnalysisE",
       "v",
       reinterpret_cast<void*>(&Analyze),
       &analyze}};
  RedirectCalls(redirections);
}

// Called by Python before a fork, so that nothing is half built in the child,
// unless the building thread takes longer than `seconds`. Requires: the GIL.
void LockBuilding(double seconds) {
  if (build_depth > 0) return;
  const py::gil_scoped_release release;
  is_locked_for_fork =
      build_mutex->try_lock_for(std::chrono::duration<double>(seconds));
}

// Called by the same thread after the fork, in the parent and in the child.
// Returns false if another thread was building.
bool UnlockBuilding() {
  if (build_depth > 0) return true;
  if (!is_locked_for_fork) return false;
  is_locked_for_fork = false;
  build_mutex->unlock();
  return true;
}

// Called in the child if another thread was building. The child does not have
// that thread, so its mutex is never unlocked and must not be destroyed.
void ReplaceBuildingLock() {
  if (build_depth > 0) return;
  build_mutex = std::make_unique<std::timed_mutex>().release();
}

// Called inside fork() itself, because no Python code may run while these two
// are locked: a thread may wait for them while it holds the GIL. Their holders
// never wait for the GIL.
void LockMapAndScopes() {
  map_mutex.lock();
  taken_mutex.lock();
}

void UnlockMapAndScopes() {
  taken_mutex.unlock();
  map_mutex.unlock();
}

}  // namespace

PYBIND11_MODULE(_program_cache, module) {
  module.def("enforce_thread_safe", &EnforceThreadSafe);
  module.def("take_scope", &TakeScope);
  module.def("take_abandoned_scope", &TakeAbandonedScope);
  module.def("call_gradient", &CallGradient);
  module.def("lock_building", &LockBuilding);
  module.def("unlock_building", &UnlockBuilding);
  module.def("replace_building_lock", &ReplaceBuildingLock);
  pthread_atfork(&LockMapAndScopes, &UnlockMapAndScopes, &UnlockMapAndScopes);
}
