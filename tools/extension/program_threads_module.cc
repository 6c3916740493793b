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

#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "call_redirection.h"
#include "paddle/common/enforce.h"
#include "paddle/common/flags.h"
#include "paddle/fluid/framework/new_executor/program_threads.h"
#include "paddle/fluid/pybind/program_threads.h"
#include "paddle/phi/api/include/tensor.h"
#include "paddle/phi/common/place.h"
#include "paddle/phi/common/scalar.h"
#include "paddle/pir/include/core/program.h"
#include "paddle/pir/include/core/value.h"
#include "paddle/utils/blank.h"
#include "paddle/utils/variant.h"

// Redirects calls of a libpaddle that is already built to where
// program_threads.h is used. In a libpaddle that is built with the series, the
// functions below use it themselves.

COMMON_DECLARE_bool(parameters_persistent_mode_in_dy2st);

// Paddle's wheel has no headers for these.
namespace pir {
class Block;
}  // namespace pir

namespace paddle::framework {
class BlockDesc;
class Scope;
class VarDesc;

// The mangled names of RunProgramImpl and the other functions below have the
// same types, in the same order.
using Attribute = paddle::variant<paddle::blank,
                                  int,
                                  float,
                                  std::string,
                                  std::vector<int>,
                                  std::vector<float>,
                                  std::vector<std::string>,
                                  bool,
                                  std::vector<bool>,
                                  BlockDesc*,
                                  int64_t,
                                  std::vector<BlockDesc*>,
                                  std::vector<int64_t>,
                                  std::vector<double>,
                                  VarDesc*,
                                  std::vector<VarDesc*>,
                                  double,
                                  paddle::experimental::Scalar,
                                  std::vector<paddle::experimental::Scalar>,
                                  ::pir::Block*,
                                  std::vector<::pir::Value>,
                                  std::shared_ptr<::pir::Program>>;
using AttributeMap = std::unordered_map<std::string, Attribute>;

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

using paddle::framework::AttributeMap;
using paddle::framework::BlockDesc;
using paddle::framework::InterpreterMapGuard;
using paddle::framework::ProgramBuildGuard;
using paddle::framework::ProgramRun;
using paddle::framework::ReturnScope;
using paddle::framework::Scope;
using pir::Program;

// The redirected functions. Arguments whose types are in no header are passed
// on as untyped pointers.
void* has = nullptr;
void* get_mutable = nullptr;
void* free_variables = nullptr;
void* run_program = nullptr;
void* run_legacy_program = nullptr;
void* differentiate_program = nullptr;
void* differentiate_legacy_program = nullptr;
void* make_interpreter = nullptr;
void* build_instructions = nullptr;
void* analyze = nullptr;

// Numbers the forward runs. The number of a run is also in the attributes of
// its backward node, and so in the copies that paddle.grad makes of the node.
// So a node whose run has ended is noticed, even if another run has the scope
// by now. Thread-safe.
class RunNumbers {
 public:
  // Begins a run in a scope. Its node will copy the attributes.
  void Begin(const Scope* scope, AttributeMap* attributes) {
    const std::lock_guard<std::mutex> guard(mutex_);
    runs_[scope] = {++last_, /*is_in_backward=*/false};
    (*attributes)[kAttribute] = last_;
  }
  // Begins the backward pass of a node. Returns false if the node's run no
  // longer has the scope, or is in a backward pass.
  bool BeginBackward(const Scope* scope, const AttributeMap& attributes) {
    const auto number = attributes.find(kAttribute);
    // The forward pass ran before this module was loaded.
    if (number == attributes.end()) return true;
    const std::lock_guard<std::mutex> guard(mutex_);
    const auto run = runs_.find(scope);
    if (run == runs_.end() || run->second.is_in_backward ||
        run->second.number != paddle::get<int64_t>(number->second)) {
      return false;
    }
    run->second.is_in_backward = true;
    return true;
  }
  // Lets the backward pass, which has failed, begin again.
  void CancelBackward(const Scope* scope) {
    const std::lock_guard<std::mutex> guard(mutex_);
    const auto run = runs_.find(scope);
    if (run != runs_.end()) run->second.is_in_backward = false;
  }
  // Ends the run that has the scope, if any.
  void End(const Scope* scope) {
    const std::lock_guard<std::mutex> guard(mutex_);
    runs_.erase(scope);
  }

  // Around a fork, so that the child does not inherit the lock from a thread
  // that it lacks. Holders of the lock never wait for another one.
  void Lock() { mutex_.lock(); }
  void Unlock() { mutex_.unlock(); }

 private:
  struct Run {
    int64_t number;
    bool is_in_backward;
  };

  static constexpr char kAttribute[] = "run_number";

  std::mutex mutex_;
  std::unordered_map<const Scope*, Run> runs_;
  int64_t last_ = 0;
};

// Never destroyed, as threads may still run programs when the process exits.
RunNumbers* run_numbers() {
  static RunNumbers* const numbers = std::make_unique<RunNumbers>().release();
  return numbers;
}

[[maybe_unused]] const int at_fork =
    pthread_atfork([] { run_numbers()->Lock(); },
                   [] { run_numbers()->Unlock(); },
                   [] { run_numbers()->Unlock(); });

// The number of paddle.grad calls that the thread is in.
thread_local int gradient_depth = 0;
// Whether the thread is in a program's run, forward or backward.
thread_local bool is_in_run = false;

bool Has(const void* cache, const void* key) {
  const InterpreterMapGuard guard;
  return reinterpret_cast<decltype(&Has)>(has)(cache, key);
}

void* GetMutable(void* cache, const void* key) {
  const InterpreterMapGuard guard;
  return reinterpret_cast<decltype(&GetMutable)>(get_mutable)(cache, key);
}

// Returns whether the scope to be freed belongs to a copy of a node that
// paddle.grad has made but not run. The original node still needs the scope.
// Copies are destroyed in the engine, without the GIL; a node that is destroyed
// in a hook is not a copy.
bool BelongsToCopiedNode() {
  return gradient_depth > 0 && !is_in_run && PyGILState_Check() == 0;
}

void EndRun(Scope* scope, const void* kept) {
  reinterpret_cast<decltype(&EndRun)>(free_variables)(scope, kept);
  run_numbers()->End(scope);
  ReturnScope(scope);
}

void FreeVariables(Scope* scope, const void* kept) {
  if (!BelongsToCopiedNode()) EndRun(scope, kept);
}

// A failed run leaves its inputs in its scope. In the mode of the flag, later
// runs in the scope need its parameters, which only the first one puts there:
// so the scope stays taken, as it does in official Paddle.
void FreeVariablesOfFailedRun(Scope* scope) {
  if (FLAGS_parameters_persistent_mode_in_dy2st) return;
  const std::unordered_set<std::string_view> kept;
  EndRun(scope, &kept);
}

// RAII guard: sets whether the thread is in a run; restores it afterwards.
class InRun {
 public:
  explicit InRun(bool in_run) : was_in_run_(is_in_run) { is_in_run = in_run; }
  ~InRun() { is_in_run = was_in_run_; }
  InRun(const InRun&) = delete;
  InRun& operator=(const InRun&) = delete;

 private:
  bool was_in_run_;
};

// Replaces the function that paddle.grad calls. The engine copies nodes there,
// and the copies must not free the scopes that they share with the originals.
void CountCallsOfPaddleGrad(const py::object& eager) {
  constexpr char kFunction[] = "run_partial_grad";
  const py::object function = eager.attr(kFunction);
  eager.attr(kFunction) = py::cpp_function(
      [function](const py::args& arguments, const py::kwargs& named) {
        const InRun in_run(false);
        struct Depth {
          Depth() { ++gradient_depth; }
          ~Depth() { --gradient_depth; }
        } const depth;
        return function(*arguments, **named);
      });
}

// The attributes of the program are shared by its runs; those of the CUDA graph
// were made for this run.
std::vector<paddle::Tensor> RunProgram(
    const void* inputs,
    const void* parameters,
    const std::vector<Scope*>& scopes,
    bool requires_gradient,
    const void* attributes,
    const AttributeMap& cuda_graph_attributes,
    const int64_t& key) {
  const InRun in_run(true);
  const ProgramRun run(scopes.front(), &FreeVariablesOfFailedRun);
  run_numbers()->Begin(scopes.front(),
                       const_cast<AttributeMap*>(&cuda_graph_attributes));
  return reinterpret_cast<decltype(&RunProgram)>(run_program)(
      inputs,
      parameters,
      scopes,
      requires_gradient,
      attributes,
      cuda_graph_attributes,
      key);
}

// The attributes were made for this run.
void RunLegacyProgram(const void* inputs,
                      const void* parameters,
                      void* outputs,
                      const std::vector<Scope*>& scopes,
                      bool requires_gradient,
                      const AttributeMap& attributes,
                      const int64_t& key) {
  const InRun in_run(true);
  const ProgramRun run(scopes.front(), &FreeVariablesOfFailedRun);
  run_numbers()->Begin(scopes.front(), const_cast<AttributeMap*>(&attributes));
  reinterpret_cast<decltype(&RunLegacyProgram)>(run_legacy_program)(
      inputs, parameters, outputs, scopes, requires_gradient, attributes, key);
}

// The backward pass of a node. The constructor throws if there was one before:
// then the scope has no intermediate results, or those of another run.
class BackwardRun {
 public:
  BackwardRun(const Scope* scope, const AttributeMap& attributes)
      : scope_(scope), exceptions_(std::uncaught_exceptions()) {
    if (!run_numbers()->BeginBackward(scope, attributes)) {
      PADDLE_THROW(common::errors::PreconditionNotMet(
          "%s", paddle::framework::kSecondBackwardPass));
    }
  }
  ~BackwardRun() {
    if (std::uncaught_exceptions() > exceptions_) {
      run_numbers()->CancelBackward(scope_);
    }
  }
  BackwardRun(const BackwardRun&) = delete;
  BackwardRun& operator=(const BackwardRun&) = delete;

 private:
  const InRun in_run_{true};
  const Scope* const scope_;
  const int exceptions_;
};

void DifferentiateProgram(const void* output_gradients,
                          const std::vector<Scope*>& scopes,
                          const void* attributes,
                          const AttributeMap& cuda_graph_attributes,
                          std::vector<paddle::Tensor>* input_gradients,
                          std::vector<paddle::Tensor>* parameter_gradients,
                          const int64_t& key) {
  // The pass would do nothing, however often it runs.
  if (input_gradients->empty() && parameter_gradients->empty()) return;
  const BackwardRun run(scopes.front(), cuda_graph_attributes);
  reinterpret_cast<decltype(&DifferentiateProgram)>(differentiate_program)(
      output_gradients,
      scopes,
      attributes,
      cuda_graph_attributes,
      input_gradients,
      parameter_gradients,
      key);
}

void DifferentiateLegacyProgram(
    const void* output_gradients,
    const std::vector<Scope*>& scopes,
    const AttributeMap& attributes,
    const std::vector<paddle::Tensor*>& input_gradients,
    const std::vector<paddle::Tensor*>& parameter_gradients,
    const int64_t& key) {
  if (input_gradients.empty() && parameter_gradients.empty()) return;
  const BackwardRun run(scopes.front(), attributes);
  reinterpret_cast<decltype(&DifferentiateLegacyProgram)>(
      differentiate_legacy_program)(output_gradients,
                                    scopes,
                                    attributes,
                                    input_gradients,
                                    parameter_gradients,
                                    key);
}

std::unique_ptr<Program> Lower(
    Program* program,
    phi::Place place,  // NOLINT: the original signature.
    const std::set<std::string>& no_need_buffer_names) {
  const ProgramBuildGuard guard;
  return paddle::framework::ApplyIrPass(program, place, no_need_buffer_names);
}

std::unique_ptr<Program> RemoveShadowFeeds(std::unique_ptr<Program> program,
                                           const pir::Block* block,
                                           const phi::Place& place,
                                           const Scope* scope) {
  const ProgramBuildGuard guard;
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
  const ProgramBuildGuard guard;
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
  const ProgramBuildGuard guard;
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
  const ProgramBuildGuard guard;
  reinterpret_cast<decltype(&MakeInterpreter)>(make_interpreter)(
      self, place, fetched, block, scope, config);
}

void BuildInstructions(void* self) {
  const ProgramBuildGuard guard;
  reinterpret_cast<decltype(&BuildInstructions)>(build_instructions)(self);
}

void Analyze(void* self) {
  const ProgramBuildGuard guard;
  reinterpret_cast<decltype(&Analyze)>(analyze)(self);
}

// Throws std::runtime_error like RedirectCalls.
void RedirectCallsOfPrograms() {
  const std::vector<Redirection> redirections = {
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
      {"_ZN3egr9to_static18RunProgramGradImplE",
       "RKSt6vectorIN6paddle6TensorESaIS3_EERKS1_IPNS2_9framework5ScopeESaIS"
       "A_EERKSt13unordered_mapINSt7__cxx1112basic_stringIcSt11char_traitsIc"
       "ESaIcEEENS2_7variantIJNS2_5blankEifSL_S1_IiSaIiEES1_IfSaIfEES1_ISL_S"
       "aISL_EEbS1_IbSaIbEEPNS8_9BlockDescElS1_ISX_SaISX_EES1_IlSaIlEES1_IdS"
       "aIdEEPNS8_7VarDescES1_IS15_SaIS15_EEdNS2_12experimental10ScalarBaseI"
       "S3_EES1_IS1A_SaIS1A_EEPN3pir5BlockES1_INS1D_5ValueESaIS1G_EESt10shar"
       "ed_ptrINS1D_7ProgramEEEEESt4hashISL_ESt8equal_toISL_ESaISt4pairIKSL_"
       "S1M_EEES1X_PS5_S1Y_RKl",
       reinterpret_cast<void*>(&DifferentiateProgram),
       &differentiate_program},
      {"_ZN3egr9to_static24LegacyRunProgramGradImplE",
       "RKSt6vectorIN6paddle6TensorESaIS3_EERKS1_IPNS2_9framework5ScopeESaIS"
       "A_EERKSt13unordered_mapINSt7__cxx1112basic_stringIcSt11char_traitsIc"
       "ESaIcEEENS2_7variantIJNS2_5blankEifSL_S1_IiSaIiEES1_IfSaIfEES1_ISL_S"
       "aISL_EEbS1_IbSaIbEEPNS8_9BlockDescElS1_ISX_SaISX_EES1_IlSaIlEES1_IdS"
       "aIdEEPNS8_7VarDescES1_IS15_SaIS15_EEdNS2_12experimental10ScalarBaseI"
       "S3_EES1_IS1A_SaIS1A_EEPN3pir5BlockES1_INS1D_5ValueESaIS1G_EESt10shar"
       "ed_ptrINS1D_7ProgramEEEEESt4hashISL_ESt8equal_toISL_ESaISt4pairIKSL_"
       "S1M_EEERS1_IPS3_SaIS1Y_EES21_RKl",
       reinterpret_cast<void*>(&DifferentiateLegacyProgram),
       &differentiate_legacy_program},
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

}  // namespace

PYBIND11_MODULE(_program_threads, module) {
  const py::object eager =
      py::module_::import("paddle.base.core").attr("eager");
  RedirectCallsOfPrograms();
  CountCallsOfPaddleGrad(eager);
  paddle::pybind::BindProgramThreads(&module);
}
