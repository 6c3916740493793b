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

#include "paddle/fluid/pybind/predictor_threads.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "paddle/fluid/inference/api/paddle_inference_api.h"
#include "paddle/fluid/pybind/predictor_onednn.h"
#include "paddle/fluid/pybind/work_without_gil.h"
#include "paddle/phi/api/include/api.h"
#include "paddle/phi/api/include/tensor.h"
#include "paddle/phi/backends/context_pool.h"
#include "paddle/phi/backends/thread_contexts.h"
#include "paddle/phi/common/bfloat16.h"
#include "paddle/phi/common/float16.h"
#include "paddle/phi/core/dense_tensor.h"
#include "paddle/phi/core/device_context.h"
#include "paddle/phi/core/kernel_factory.h"
#include "paddle/utils/pybind.h"
#include "pybind11/functional.h"
#include "pybind11/numpy.h"
#include "pybind11/stl.h"

#if defined(PADDLE_WITH_CUDA) || defined(PADDLE_WITH_HIP)
#include "paddle/phi/core/cuda_stream.h"
#endif
#ifdef PADDLE_WITH_CUSTOM_DEVICE
#include "paddle/phi/backends/custom/custom_context.h"
#include "paddle/phi/backends/event.h"
#include "paddle/phi/backends/stream.h"
#endif

namespace py = pybind11;

namespace paddle {
namespace pybind {
namespace {

using Predictor = paddle_infer::Predictor;
using Handle = paddle_infer::Tensor;

constexpr char kHowToFix[] =
    "Give each thread its own predictor with clone(), call "
    "PredictorPool.predict, or hold a lock from a request's first input to its "
    "last output.";

struct Thread {
  uint64_t id = 0;  // never reused for another thread
  uint64_t ident = 0;

  static Thread Current() {
    return {PyThreadState_GetID(PyThreadState_Get()),
            PyThread_get_thread_ident()};
  }
  bool operator==(const Thread& other) const { return id == other.id; }
  bool operator!=(const Thread& other) const { return id != other.id; }
  explicit operator bool() const { return id != 0; }

  std::string name() const {
    const auto threading = py::module_::import("threading");
    for (const py::handle thread : threading.attr("enumerate")()) {
      if (py::int_(ident).equal(thread.attr("ident"))) {
        return "thread " + std::string(py::repr(thread.attr("name")));
      }
    }
    return "a thread that has ended";
  }
};

[[noreturn]] void Fail(const std::string& method, const std::string& reason) {
  throw std::runtime_error(method + "() failed on " + Thread::Current().name() +
                           ": " + reason + ". " + kHowToFix);
}

// In a forked child, destroying contexts of the parent would wait for the work
// of threads that the child does not have.
template <typename Contexts>
void LeakInChild(Contexts contexts) {
  std::make_unique<Contexts>(std::move(contexts)).release();
}

#ifdef PADDLE_WITH_CUSTOM_DEVICE
std::shared_ptr<phi::stream::Stream> StreamOf(
    const phi::DeviceContext* context) {
  return static_cast<const phi::CustomContext*>(context)->GetStream();
}

const phi::DeviceContext* ContextOfProcess(const phi::Place& device) {
  const phi::ProcessContextsGuard guard;
  return phi::DeviceContextPool::Instance().Get(device);
}
#endif

// The contexts of a predictor, which it keeps in its instructions.
struct PredictorContexts {
  // The predictor's own context on its custom device, if it has one.
  phi::ThreadContexts devices;
  std::shared_ptr<PredictorOneDnn> onednn;  // null if it does not use oneDNN
  // Whether the predictor was created on the process's stream.
  bool follows_process = false;
  // The process to which the stream belongs.
  pid_t process = getpid();

  // The custom device on which the predictor runs, if it does.
  std::optional<phi::Place> Device() const {
    if (devices.empty()) return std::nullopt;
    return devices.begin()->first;
  }

#ifdef PADDLE_WITH_CUSTOM_DEVICE
  // Chooses the calling thread's stream. Requires: the GIL.
  void AddDevice(const phi::Place& custom_device) {
    const phi::DeviceContext* current = phi::FindThreadContext(custom_device);
    follows_process = current == nullptr;
    if (follows_process) current = ContextOfProcess(custom_device);
    devices.emplace(custom_device, phi::NewStreamContext(StreamOf(current)));
  }

  // Moves the predictor to the process's stream if it was created there and the
  // calling thread uses it: a call of the main thread runs on that thread's
  // current stream. Otherwise the predictor stays where it is, because the main
  // thread may set a stream while another thread runs the predictor.
  //
  // Requires: the GIL, which a thread that sets the process's stream holds, and
  // that no other thread runs the predictor.
  void FollowProcess() {
    if (!follows_process) return;
    const auto& [device, own] = *devices.begin();
    if (phi::FindThreadContext(device) != nullptr) return;
    auto stream = StreamOf(ContextOfProcess(device));
    auto earlier = StreamOf(own.get());
    if (stream->raw_stream() == earlier->raw_stream()) return;
    WorkWithoutGil::Run([&, place = device] {
      phi::event::Event earlier_work;
      earlier_work.Init(place);
      earlier_work.Record(earlier.get());
      stream->WaitEvent(&earlier_work);
    });
    static_cast<phi::CustomContext*>(own.get())->SetStream(std::move(stream));
    // A child must not destroy a stream of its parent.
    if (std::exchange(process, getpid()) != getpid()) {
      LeakInChild(std::move(earlier));
    }
  }

  // Returns contexts that stay on the present streams. Requires: the GIL.
  phi::ThreadContexts OnSameStreams() const {
    phi::ThreadContexts same;
    for (const auto& [device, own] : devices) {
      same.emplace(device, phi::NewStreamContext(StreamOf(own.get())));
    }
    return same;
  }
#else
  void AddDevice(const phi::Place&) {}
  void FollowProcess() {}
  phi::ThreadContexts OnSameStreams() const { return devices; }
#endif
};

// Returns the contexts of a predictor that the calling thread creates.
PredictorContexts ContextsForNewPredictor(
    const std::optional<phi::Place>& custom_device, bool uses_onednn) {
  PredictorContexts contexts;
  if (custom_device) contexts.AddDevice(*custom_device);
  if (uses_onednn) contexts.onednn = std::make_shared<PredictorOneDnn>();
  return contexts;
}

// Returns the calling thread's contexts, but `devices` for their places, and
// the process's for GPUs: there, handles copy on the process's contexts.
phi::ThreadContexts ContextsForCall(const phi::ThreadContexts& devices) {
  auto contexts = phi::CurrentContexts();
  for (auto entry = contexts.begin(); entry != contexts.end();) {
    const bool is_gpu = entry->first.GetType() == phi::AllocationType::GPU;
    entry = is_gpu ? contexts.erase(entry) : std::next(entry);
  }
  for (const auto& [place, context] : devices) {
    contexts.insert_or_assign(place, context);
  }
  return contexts;
}

// While the guard exists, its thread works on a predictor's contexts.
class ContextsGuard {
 public:
  explicit ContextsGuard(const PredictorContexts& contexts)
      : onednn_(contexts.onednn),
        devices_guard_(ContextsForCall(contexts.devices)),
        onednn_guard_(onednn_.get()) {}
  ContextsGuard(const ContextsGuard&) = delete;
  ContextsGuard& operator=(const ContextsGuard&) = delete;

 private:
  const std::shared_ptr<PredictorOneDnn> onednn_;
  const phi::OrderedContextsGuard devices_guard_;
  const PredictorOneDnn::Guard onednn_guard_;
};

// Dropped predictors of a model whose parameters they share with others. In
// Paddle 3.3.0 each predictor clears the parameters when it is destroyed. So
// they are destroyed together, when the program has dropped all of them.
class DroppedClones {
 public:
  DroppedClones() = default;
  DroppedClones(const DroppedClones&) = delete;
  DroppedClones& operator=(const DroppedClones&) = delete;
  // Requires: the GIL, and that the program has dropped all of them.
  ~DroppedClones() {
    if (process_ != getpid()) {  // see DestroyPredictor
      for (auto& entry : clones_) LeakInChild(std::move(entry.second));
      return;
    }
    // The parameters' memory returns to the stream on which they were loaded,
    // which is not ordered with work on other streams. That work may wait for
    // another Python thread.
    WorkWithoutGil::Run([this] {
      for (const auto& entry : clones_) WaitForWork(entry.second);
    });
    for (const auto& entry : clones_) {
      // The class that inference_api.cc has bound destroys it.
      py::cast(entry.first, py::return_value_policy::take_ownership);
    }
  }
  // Frees a predictor's tensors and its oneDNN primitives, and keeps the
  // predictor with the contexts of its devices.
  void Keep(Predictor* clone, PredictorContexts contexts) {
    contexts.onednn.reset();
    clones_.emplace_back(clone, std::move(contexts.devices));
    try {
      clone->ClearIntermediateTensor();
    } catch (const std::exception&) {
      // Paddle refuses this for PIR programs, which keep no intermediate
      // tensors after a run.
    }
  }

 private:
  static void WaitForWork(const phi::ThreadContexts& contexts) {
    for (const auto& [place, context] : contexts) {
      try {
        context->Wait();
        const phi::ProcessContextsGuard guard;
        phi::DeviceContextPool::Instance().Get(place)->Wait();
      } catch (...) {  // NOLINT
        // A destructor must not throw. A device that fails reports it again at
        // the next call that uses it.
      }
    }
  }

  const pid_t process_ = getpid();
  std::vector<std::pair<Predictor*, phi::ThreadContexts>> clones_;
};

// The outputs of a predictor. `run(inputs)` gives their memory to its caller.
// Used by one thread at a time, which calls the predictor.
class Outputs {
 public:
  // Requires: the GIL.
  explicit Outputs(Predictor* predictor) {
    for (const std::string& name : predictor->GetOutputNames()) {
      try {
        const py::object handle =
            py::cast(predictor->GetOutputHandle(name).release(),
                     py::return_value_policy::take_ownership);
        auto* const tensor = TensorOf(*handle.cast<const Handle*>());
        // ONNX Runtime has no such tensor. A parameter, for example, has memory
        // before the first run, and no run writes it again.
        if (tensor != nullptr && !tensor->IsInitialized()) {
          outputs_[name].tensor = tensor;
        }
      } catch (const std::exception&) {
        // The output is not a tensor, or does not exist before the first run.
      }
    }
  }
  Outputs(const Outputs&) = delete;
  Outputs& operator=(const Outputs&) = delete;

  // Calls `run`, which runs the predictor. Callers keep the memory that they
  // have: the run gets other memory, or allocates it.
  template <typename Run>
  void Overwrite(Run run) {
    const std::vector<Output*> replaced = ReplaceGiven();
    try {
      run();
    } catch (...) {
      // Handles still read the outputs of the last run.
      for (Output* const output : replaced) {
        output->tensor->MoveMemoryHolder();
        output->tensor->ResetHolder(output->spare);
        output->address = output->spare_address;
      }
      throw;
    }
  }

  // Gives the memory of an output of the last run to the caller, and returns
  // true. Returns false if the memory is not the output's alone: it may belong
  // to an input, to another output, or to a tensor that the predictor keeps.
  bool Give(const paddle::Tensor& returned) {
    const auto found = outputs_.find(returned.name());
    // On other devices, the caller would free the memory on the predictor's
    // stream while the caller's stream still uses it.
    if (found == outputs_.end() || !returned.is_cpu()) return false;
    const auto& memory = found->second.tensor->Holder();
    // An earlier run may have needed more memory. A small tensor must not keep
    // all of it.
    const size_t size = returned.numel() * phi::SizeOf(returned.dtype());
    if (memory == nullptr || memory->size() > 2 * size) return false;
    if (!BecomesUnshared(memory, size)) return false;
    found->second.address = memory->ptr();
    return true;
  }

  // Runs write an output to memory that the program has chosen.
  void Keep(const std::string& name) { outputs_.erase(name); }

  void FreeSpares() {
    for (auto& entry : outputs_) entry.second.spare.reset();
  }

 private:
  struct Output {
    phi::DenseTensor* tensor = nullptr;  // the predictor's
    // Of the memory that the caller of the last run has, or null.
    const void* address = nullptr;
    // Memory that an earlier caller has, or had. A program that drops a result
    // when it gets the next one would otherwise make each run allocate, and the
    // operating system's clearing of new memory takes longer than many models.
    std::shared_ptr<phi::Allocation> spare;
    const void* spare_address = nullptr;
  };

  // Returns the predictor's tensor to which a handle refers, or null.
  static phi::DenseTensor* TensorOf(const Handle& handle) {
    struct Access : Handle {
      static void* Tensor(const Handle& of) { return of.*(&Access::tensor_); }
    };
    handle.type();  // looks the tensor up
    return static_cast<phi::DenseTensor*>(Access::Tensor(handle));
  }

  // Returns whether nobody else uses memory that was given to a caller.
  static bool IsFree(const std::shared_ptr<phi::Allocation>& memory,
                     const void* address) {
    if (memory.use_count() > 1) return false;
    // The threads that have dropped the memory have used it before.
    std::atomic_thread_fence(std::memory_order_acquire);
    // A caller that sends it to other processes, which may still read it, has
    // moved it: runs do not allocate in shared memory.
    return memory == nullptr || memory->ptr() == address;
  }

  // Replaces the memory that callers have. It becomes the spare memory.
  std::vector<Output*> ReplaceGiven() {
    std::vector<Output*> replaced;
    for (auto& [name, output] : outputs_) {
      const void* const address = std::exchange(output.address, nullptr);
      if (address == nullptr) continue;
      if (IsFree(output.tensor->Holder(), address)) continue;
      auto memory = output.tensor->MoveMemoryHolder();
      std::swap(memory, output.spare);
      if (!IsFree(memory, std::exchange(output.spare_address, address))) {
        memory.reset();
      }
      output.tensor->ResetHolder(memory);
      replaced.push_back(&output);
    }
    return replaced;
  }

  // Returns whether only the predictor's tensor and the returned one have the
  // memory. The executor drops tensors that it does not need any more on a
  // thread of its own. This waits for it, but not as long as a copy takes.
  static bool BecomesUnshared(const std::shared_ptr<phi::Allocation>& memory,
                              size_t size) {
    constexpr size_t kWorthAWait = 128 << 10;
    constexpr size_t kBytesPerNs = 4;
    const auto end = std::chrono::steady_clock::now() +
                     std::chrono::nanoseconds(size / kBytesPerNs);
    while (memory.use_count() != 2) {
      if (size < kWorthAWait) return false;
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::yield();
    }
    return true;
  }

  std::unordered_map<std::string, Output> outputs_;  // by name
};

// Tracks which threads have set, run and read a predictor. Protected by the
// GIL.
//
// Any thread may set an input, run or read. A thread whose data another thread
// has overwritten is refused, because it would get the results of the other
// thread's request.
class PredictorState {
 public:
  explicit PredictorState(Predictor* predictor)
      : outputs(predictor),
        input_names_(predictor->GetInputNames()),
        output_names_(predictor->GetOutputNames()) {}
  PredictorState(const PredictorState&) = delete;
  PredictorState& operator=(const PredictorState&) = delete;
  ~PredictorState() {
    if (process != getpid()) {  // see DestroyPredictor
      LeakInChild(std::move(contexts));
    } else if (owned_ != nullptr) {
      Destroy(std::exchange(owned_, nullptr));
    }
  }

  // Takes a predictor whose Python object is gone, and destroys it with this
  // state: when no handle refers to it.
  void Own(Predictor* predictor) { owned_ = predictor; }
  void Destroy(Predictor* predictor) const {
    if (dropped_clones) {
      dropped_clones->Keep(predictor, contexts);
    } else {
      // The class that inference_api.cc has bound destroys it.
      py::cast(predictor, py::return_value_policy::take_ownership);
    }
  }

  // Makes a hook belong to this state, so that DropHooks can drop it.
  std::shared_ptr<const py::function> AddHook(py::function hook) {
    hooks_.push_back(std::make_shared<py::function>(std::move(hook)));
    return hooks_.back();
  }
  // Drops the Python functions, which the predictor never calls again.
  void DropHooks() {
    for (const auto& hook : std::exchange(hooks_, {})) {
      // Reentrant: what the function refers to may be destroyed here.
      const py::function dropped = std::exchange(*hook, py::function());
    }
  }

  // A call in progress, which other threads' calls must not overlap.
  class Call {
   public:
    Call(std::shared_ptr<PredictorState> of, const char* method)
        : of_(std::move(of)), me_(Thread::Current()) {
      if (of_->calls_ > 0 && of_->caller_ != me_) {
        Fail(method,
             of_->caller_.name() +
                 " is in a call of this predictor, and only one thread at a "
                 "time may use a predictor");
      }
      of_->caller_ = me_;
      ++of_->calls_;
      if (of_->calls_ > 1) return;
      try {
        of_->contexts.FollowProcess();
      } catch (...) {
        --of_->calls_;
        throw;
      }
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    ~Call() { --of_->calls_; }

    // Calls `work` on the predictor's contexts. It may run Python code only in
    // hooks and in py_func: programs that are built inside keep the contexts.
    // The guard is without the GIL, because it may wait for work on other
    // streams, and that work for another Python thread.
    template <typename Work>
    decltype(auto) OnContexts(Work work) const {
      struct Contexts {
        explicit Contexts(const PredictorContexts& contexts) {
          WorkWithoutGil::Run([&] { guard.emplace(contexts); });
        }
        ~Contexts() {
          WorkWithoutGil::Run([this] { guard.reset(); });
        }
        std::optional<ContextsGuard> guard;
      };
      const Contexts contexts(of_->contexts);
      return work();
    }
    // The same without the GIL.
    template <typename Work>
    void OnContextsWithoutGil(Work work) const {
      WorkWithoutGil::Run([&] {
        const ContextsGuard guard(of_->contexts);
        work();
      });
    }

    void SetInput(const std::string& name) {
      of_->Overwrite(name, me_);
      of_->writers_[name] = me_;
      of_->inputs_ = Inputs::kSet;
      Request* const mine = of_->Mine(me_);
      mine->overwritten.erase(name);
      mine->is_open = true;
      mine->has_run = false;
    }

    void SetAllInputs() {
      for (const std::string& name : of_->input_names_) SetInput(name);
    }

    // For a call that removes another thread's data from an input.
    void DropInput(const std::string& name) {
      if (!of_->Overwrite(name, me_)) return;
      of_->writers_.erase(name);
      if (of_->inputs_ == Inputs::kAsRun) of_->inputs_ = Inputs::kDropped;
    }

    void CheckMayRun() {
      const Request* const mine = of_->Find(me_);
      if (mine == nullptr || mine->overwritten.empty()) return;
      if (mine->is_open || !of_->MayRunInputsOfOthers(me_)) {
        of_->FailOverwritten("run", *mine);
      }
    }

    // The threads of the last run lose its unread outputs, unless this run is
    // for them too.
    void BeginRun() {
      runs_for_ = of_->ThreadsOfRun(me_);
      for (const uint64_t id : of_->last_run_for_) {
        Request* const request = of_->Find(id);
        if (request != nullptr && runs_for_.count(id) == 0) {
          request->lost.insert(of_->unread_.begin(), of_->unread_.end());
        }
      }
    }

    void EndRun() {
      for (const uint64_t id : runs_for_) {
        Request* const request = of_->Find(id);
        if (request == nullptr) continue;
        request->lost.clear();
        request->has_run = true;
      }
      of_->last_run_for_ = std::move(runs_for_);
      of_->last_runner_ = me_;
      of_->inputs_ = Inputs::kAsRun;
      of_->unread_.insert(of_->output_names_.begin(), of_->output_names_.end());
    }

    // Ends the request of the calling thread, which has its results.
    void EndRequest() { of_->Mine(me_)->is_open = false; }

    void CheckMayReadInput(const char* method, const std::string& name) {
      const Request* const mine = of_->Find(me_);
      if (of_->calls_ == 1 && mine != nullptr && mine->is_open &&
          mine->overwritten.count(name) > 0) {
        of_->FailOverwritten(method, *mine);
      }
    }

    void CheckMayReadOutput(const char* method, const std::string& name) {
      const Request* const mine = of_->Find(me_);
      // A hook reads while its thread runs.
      if (of_->calls_ > 1 || mine == nullptr) return;
      if (mine->lost.count(name) > 0) {
        Fail(method,
             of_->last_runner_.name() +
                 " has run this predictor since, which has overwritten output "
                 "'" +
                 name + "'");
      }
      if (!mine->is_open || mine->has_run) return;
      if (mine->WasOverwritten()) of_->FailOverwritten(method, *mine);
      if (!of_->last_run_for_.empty() &&
          of_->last_run_for_.count(me_.id) == 0) {
        Fail(
            method,
            "the outputs of this predictor belong to " +
                of_->last_runner_.name() +
                ", because this thread has not run the inputs that it has set");
      }
    }

    // Ends the requests that the last run was for: they have their results.
    void EndRead(const std::string& name) {
      of_->unread_.erase(name);
      for (const uint64_t id : of_->last_run_for_) {
        Request* const request = of_->Find(id);
        if (request != nullptr && request->has_run) request->is_open = false;
      }
    }

   private:
    const std::shared_ptr<PredictorState> of_;
    const Thread me_;
    std::unordered_set<uint64_t> runs_for_;
  };

  // The process that created the predictor.
  const pid_t process = getpid();
  PredictorContexts contexts;
  Outputs outputs;
  // Null if the predictor has its own parameters.
  std::shared_ptr<DroppedClones> dropped_clones;
  // The files that a clone loads.
  std::vector<std::string> files;

 private:
  // A thread's request: from setting inputs until their outputs are read.
  struct Request {
    uint64_t ident = 0;
    bool is_open = false;
    bool has_run = false;  // with the inputs that were set last
    // Inputs that the thread has set, and another thread has set since.
    std::unordered_set<std::string> overwritten;
    // Unread outputs that a run for other threads has overwritten.
    std::unordered_set<std::string> lost;

    bool WasOverwritten() const { return is_open && !overwritten.empty(); }
  };

  // What threads have done to the inputs since the last run.
  enum class Inputs {
    kAsRun,    // none has overwritten another thread's input
    kSet,      // a thread has set one
    kDropped,  // none was set, but a thread has removed another thread's data
  };

  Request* Find(uint64_t id) {
    const auto found = requests_.find(id);
    return found == requests_.end() ? nullptr : &found->second;
  }
  Request* Find(const Thread& thread) { return Find(thread.id); }

  Request* Mine(const Thread& me) {
    if (Request* const found = Find(me)) return found;
    if (requests_.size() >= most_requests_) ForgetEndedThreads();
    Request* const added = &requests_[me.id];
    added->ident = me.ident;
    return added;
  }

  // Removes the requests of ended threads. If a new thread reuses the `ident`
  // of an ended one, the request stays longer.
  void ForgetEndedThreads() {
    const py::dict running =
        py::module_::import("sys").attr("_current_frames")();
    for (auto entry = requests_.begin(); entry != requests_.end();) {
      entry = running.contains(py::int_(entry->second.ident))
                  ? std::next(entry)
                  : requests_.erase(entry);
    }
    most_requests_ = 2 * requests_.size() + kFewRequests;
  }

  // Returns whether a thread may run after its request has ended and other
  // threads have overwritten its inputs. Another thread may have handed it a
  // request that has not run yet. Otherwise the thread expects to repeat its
  // last run, so that run must have used the present inputs.
  bool MayRunInputsOfOthers(const Thread& me) const {
    switch (inputs_) {
      case Inputs::kSet:
        return true;
      case Inputs::kAsRun:
        return last_run_for_.count(me.id) > 0;
      default:
        return false;
    }
  }

  // Returns whether another thread had set the input.
  bool Overwrite(const std::string& name, const Thread& me) {
    const auto writer = writers_.find(name);
    if (writer == writers_.end() || writer->second == me) return false;
    if (Request* const request = Find(writer->second)) {
      request->overwritten.insert(name);
    }
    return true;
  }

  // Returns the thread that runs and the threads that have set inputs for it.
  std::unordered_set<uint64_t> ThreadsOfRun(const Thread& runner) {
    std::unordered_set<uint64_t> ids{runner.id};
    Mine(runner);
    for (const auto& [name, writer] : writers_) {
      const Request* const request = Find(writer);
      if (request != nullptr && request->is_open &&
          request->overwritten.empty()) {
        ids.insert(writer.id);
      }
    }
    return ids;
  }

  [[noreturn]] void FailOverwritten(const char* method,
                                    const Request& request) const {
    std::string names;
    std::string by = "another thread";
    for (const std::string& name : input_names_) {
      if (request.overwritten.count(name) == 0) continue;
      names += (names.empty() ? "'" : ", '") + name + "'";
      const auto writer = writers_.find(name);
      if (writer != writers_.end()) by = writer->second.name();
    }
    Fail(method,
         by + " has overwritten " + names +
             " of this predictor, which this thread had set");
  }

  static constexpr size_t kFewRequests = 16;

  const std::vector<std::string> input_names_;
  const std::vector<std::string> output_names_;
  std::unordered_map<std::string, Thread> writers_;  // by input
  std::unordered_map<uint64_t, Request> requests_;   // by thread
  size_t most_requests_ = kFewRequests;
  Inputs inputs_ = Inputs::kAsRun;
  std::unordered_set<uint64_t> last_run_for_;  // threads
  Thread last_runner_;
  std::unordered_set<std::string> unread_;  // outputs that no thread has read
  Thread caller_;
  int calls_ = 0;  // nested calls in progress
  std::vector<std::shared_ptr<py::function>> hooks_;
  Predictor* owned_ = nullptr;
};

// The predictor to which a handle belongs. A handle keeps the C++ predictor
// alive, but not its Python object: that object may refer to the handle, and
// Python's garbage collector would not see a cycle through this struct.
struct Bound {
  std::shared_ptr<PredictorState> state;
  std::string name;
  bool is_input;
};

// Keyed by C++ object. An entry is removed before a new object may get the same
// address.
//
// Never destroyed, because objects may be destroyed while the process exits.
using States =
    std::unordered_map<const Predictor*, std::shared_ptr<PredictorState>>;
using BoundHandles = std::unordered_map<const Handle*, Bound>;
auto& states = *std::make_unique<States>().release();
auto& bound_handles = *std::make_unique<BoundHandles>().release();

std::shared_ptr<PredictorState> StateOf(py::handle predictor) {
  auto* const object = predictor.cast<Predictor*>();
  const auto found = states.find(object);
  if (found != states.end()) return found->second;
  return states.emplace(object, std::make_shared<PredictorState>(object))
      .first->second;
}

const Bound* FindBound(const Handle* handle) {
  const auto found = bound_handles.find(handle);
  return found == bound_handles.end() ? nullptr : &found->second;
}

using Destroy = void (*)(py::detail::value_and_holder&);
// pybind11's original functions for the classes of inference_api.cc.
Destroy destroy_predictor;
Destroy destroy_handle;

// A forked child must not destroy its parent's predictors: that would wait for
// threads that the child does not have. It leaves them in its memory, which it
// shares with its parent copy-on-write. A fork handler could not do this for
// predictors in other threads' threading.local values, because CPython destroys
// those values before it calls the handlers.
void DestroyPredictor(py::detail::value_and_holder& predictor) {  // NOLINT
  auto* const object = predictor.value_ptr<Predictor>();
  const auto entry = states.extract(object);
  if (!entry) {
    destroy_predictor(predictor);
    return;
  }
  const auto& state = entry.mapped();
  if (state->process == getpid()) {
    // A hook may refer to a handle. Without its Python object, the predictor
    // does not run.
    state->DropHooks();
    const bool has_handles = state.use_count() > 1;
    if (!has_handles && !state->dropped_clones) {
      destroy_predictor(predictor);
      return;
    }
    if (has_handles) {
      state->Own(object);
    } else {
      state->Destroy(object);
    }
  }
  predictor.set_holder_constructed(false);
  predictor.value_ptr() = nullptr;
}

void DestroyHandle(py::detail::value_and_holder& handle) {  // NOLINT
  const auto entry = bound_handles.extract(handle.value_ptr<Handle>());
  destroy_handle(handle);
}

Destroy ReplaceDestroy(const py::object& type, Destroy destroy) {
  auto* const info =
      py::detail::get_type_info(reinterpret_cast<PyTypeObject*>(type.ptr()));
  return std::exchange(info->dealloc, destroy);
}

// The properties of a model that determine how it is cloned.
struct Model {
  // Clones share the predictor's parameters, unless the model is in PIR format.
  bool shares_parameters;
  // Clones of a model in PIR format load these files again.
  std::vector<std::string> files;
  bool uses_onednn;
  // The custom device on which the model runs, if it does.
  std::optional<phi::Place> device;

  explicit Model(const paddle_infer::Config& from) {
    const auto config = py::cast(&from, py::return_value_policy::reference);
    const auto text = [&](const char* name) {
      return config.attr(name)().cast<std::string>();
    };
    uses_onednn = config.attr("mkldnn_enabled")().cast<bool>();
    if (from.use_custom_device()) {
      device =
          phi::CustomPlace(from.custom_device_type(), from.custom_device_id());
    }
    shares_parameters = true;
    // Then the config's "files" are their contents.
    if (config.attr("model_from_memory")().cast<bool>()) return;
    const std::filesystem::path program = text("prog_file");
    if (program.empty() && text("model_dir").empty() &&
        text("params_file").empty()) {
      // Paddle would create a predictor whose first use crashes.
      throw py::value_error(
          "The config names no model. Pass its files, for example "
          "Config('model.json', 'model.pdiparams').");
    }
    shares_parameters =
        program.empty()
            ? !std::filesystem::exists(
                  std::filesystem::path(text("model_dir")) / "__model__.json")
            : program.extension() != ".json";
    if (!shares_parameters && !program.empty()) {
      for (const char* name : {"prog_file", "params_file"}) {
        // A model without parameters is saved without a parameter file.
        std::string file = text(name);
        if (std::filesystem::exists(file)) files.push_back(std::move(file));
      }
    }
  }
};

void SetModel(py::handle predictor, Model model, PredictorContexts contexts) {
  const auto state = StateOf(predictor);
  state->contexts = std::move(contexts);
  if (model.shares_parameters) {
    state->dropped_clones = std::make_shared<DroppedClones>();
  }
  state->files = std::move(model.files);
}

// Serializes the creation of predictors in a Paddle without the building lock
// of programs. Lock order: the GIL, then `making`. A thread never waits for the
// GIL while it holds `making`.
std::mutex making;

// Serializes the creation of predictors: the passes that optimize a program
// share registries.
//
// Creation builds programs, for which it needs the building lock of programs.
// So that lock serializes predictors, too: if creation had its own lock, a
// thread could hold that one while it waits for the building lock, which a fork
// holds, and a thread that keeps the GIL during the fork could wait for the
// first thread. The fork would never get the GIL.
//
// It is taken before the work begins: a fork waits for work, but not for
// threads that wait for the lock, without the GIL. PauseForFork and the
// building lock therefore never wait for each other:
//   - The forking thread holds no building lock while it waits for work. The
//     module programs.py pauses work before it takes the lock, whatever the
//     order of the fork handlers.
//   - It takes the lock only with the GIL. From then on, a thread that holds
//     the GIL waits only for the lock, and releases the GIL for that.
py::object LockCreation() {
  return py::module_::import("paddle.base.threads.programs")
      .attr("lock_building")();
}

template <typename Make>
std::unique_ptr<Predictor> MakeSerialized(const PredictorContexts& contexts,
                                          Make make) {
  const py::object building = LockCreation();
  std::unique_ptr<Predictor> made;
  WorkWithoutGil::Run([&] {
    const ContextsGuard guard(contexts);
    std::unique_lock<std::mutex> lock(making, std::defer_lock);
    if (building.is_none()) lock.lock();
    made = make();
  });
  return made;
}

// Constructs the predictor of a Python object.
void Construct(py::detail::value_and_holder& self,  // NOLINT
               const paddle_infer::Config& config) {
  Model model(config);
  auto contexts = ContextsForNewPredictor(model.device, model.uses_onednn);
  self.value_ptr() = MakeSerialized(contexts, [&] {
                       return std::make_unique<Predictor>(config);
                     }).release();
  SetModel(reinterpret_cast<PyObject*>(self.inst),
           std::move(model),
           std::move(contexts));
}

// `stream` is an execution stream of the device, or null.
py::object Clone(const py::object& predictor, void* stream) {
  const auto state = StateOf(predictor);
  for (const std::string& file : state->files) {
    // Without this check, the clone would have uninitialized parameters.
    if (!std::filesystem::exists(file)) {
      const std::string text =
          "clone() loads the model files again, but " + file +
          " does not exist. Keep the files as long as predictors are cloned.";
      PyErr_SetString(PyExc_FileNotFoundError, text.c_str());
      throw py::error_already_set();
    }
  }
  auto* const original = predictor.cast<Predictor*>();
  auto contexts = ContextsForNewPredictor(state->contexts.Device(),
                                          state->contexts.onednn != nullptr);
  // The clone may use the original's parameters, so order it after their work.
  // With the GIL, since another thread may move the original to another stream.
  const auto original_contexts = state->contexts.OnSameStreams();
  WorkWithoutGil::Run([&] {
    const phi::OrderedContextsGuard original_first(original_contexts);
  });
  std::unique_ptr<Predictor> made =
      MakeSerialized(contexts, [&] { return original->Clone(stream); });
  py::object clone =
      py::cast(made.release(), py::return_value_policy::take_ownership);
  const auto of_clone = StateOf(clone);
  of_clone->contexts = std::move(contexts);
  of_clone->dropped_clones = state->dropped_clones;
  of_clone->files = state->files;
  return clone;
}

void Run(const py::object& self) {
  const auto state = StateOf(self);
  PredictorState::Call call(state, "run");
  call.CheckMayRun();
  auto* const predictor = self.cast<Predictor*>();
  call.BeginRun();
  call.OnContextsWithoutGil(
      [&] { state->outputs.Overwrite([&] { predictor->Run(); }); });
  call.EndRun();
}

// Calls `visit` with a value of the type. Returns false without a call for a
// type that inference_api.cc refuses.
template <typename Visit>
bool VisitType(paddle_infer::DataType type, Visit visit) {
  switch (type) {
    case paddle_infer::DataType::FLOAT32:
      visit(float());
      return true;
    case paddle_infer::DataType::FLOAT64:
      visit(double());
      return true;
    case paddle_infer::DataType::FLOAT16:
      visit(phi::dtype::float16());
      return true;
    case paddle_infer::DataType::BFLOAT16:
      visit(phi::dtype::bfloat16());
      return true;
    case paddle_infer::DataType::INT64:
      visit(int64_t());
      return true;
    case paddle_infer::DataType::INT32:
      visit(int32_t());
      return true;
    case paddle_infer::DataType::INT8:
      visit(int8_t());
      return true;
    case paddle_infer::DataType::UINT8:
      visit(uint8_t());
      return true;
    case paddle_infer::DataType::BOOL:
      visit(bool());
      return true;
    default:
      return false;
  }
}

// Returns a copy in the layout of the model. A handle converts from a layout of
// oneDNN, which a copy of the tensor would not keep.
paddle::Tensor CopyFromOneDnn(const PredictorState::Call& call,
                              const Handle& handle,
                              const paddle::Tensor& output) {
  paddle::Tensor copy;
  call.OnContextsWithoutGil([&] {
    copy = paddle::experimental::empty(
        handle.shape(), output.dtype(), phi::CPUPlace());
    VisitType(handle.type(), [&](auto value) {
      handle.CopyToCpu(copy.data<decltype(value)>());
    });
  });
  return copy;
}

std::vector<paddle::Tensor> RunOn(const py::object& self,
                                  const std::vector<paddle::Tensor>& inputs) {
  const auto state = StateOf(self);
  PredictorState::Call call(state, "run");
  auto* const predictor = self.cast<Predictor*>();
  std::vector<paddle::Tensor> outputs;
  call.SetAllInputs();
  call.BeginRun();
  call.OnContextsWithoutGil([&] {
    state->outputs.Overwrite([&] { predictor->Run(inputs, &outputs); });
  });
  // The next run overwrites what the caller cannot have, so copy that.
  std::vector<paddle::Tensor> copies(outputs.size());
  const auto names = predictor->GetOutputNames();
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].layout() != paddle::DataLayout::ONEDNN) continue;
    const py::object handle = self.attr("get_output_handle")(names[i]);
    copies[i] = CopyFromOneDnn(call, *handle.cast<const Handle*>(), outputs[i]);
  }
  WorkWithoutGil::Run([&] {
    for (size_t i = 0; i < outputs.size(); ++i) {
      paddle::Tensor& output = outputs[i];
      if (!copies[i].defined() && state->outputs.Give(output)) continue;
      // A blocking copy. On a custom device, it runs on the caller's stream. On
      // a GPU, it uses the legacy default stream, which does not wait for work
      // on streams that were created as non-blocking.
      if (!copies[i].defined())
        copies[i] = output.copy_to(output.place(), true);
      copies[i].set_name(output.name());
      output = copies[i];
    }
  });
  call.EndRun();
  call.EndRequest();
  return outputs;
}

template <typename T>
bool CopyFrom(const PredictorState::Call& call,
              Handle* handle,
              const py::array& data) {
  const auto* const values = static_cast<const T*>(data.data());
  const std::vector<int> shape(data.shape(), data.shape() + data.ndim());
  call.OnContextsWithoutGil([&] {
    handle->Reshape(shape);
    handle->CopyFromCpu(values);
  });
  return true;
}

// Returns false without side effects for values that inference_api.cc converts
// or refuses.
bool CopyFromCpu(const PredictorState::Call& call,
                 Handle* handle,
                 const py::array& of) {
  if (!of.attr("dtype").attr("isnative").cast<bool>()) return false;
  // NumPy copies strided data without the GIL.
  const auto data = py::array::ensure(of, py::array::c_style);
  if (!data) throw std::bad_alloc();
  const auto size = data.itemsize();
  switch (data.dtype().kind()) {
    case 'f':
      if (size == 2) return CopyFrom<phi::dtype::float16>(call, handle, data);
      if (size == 4) return CopyFrom<float>(call, handle, data);
      return size == 8 && CopyFrom<double>(call, handle, data);
    case 'i':
      if (size == 1) return CopyFrom<int8_t>(call, handle, data);
      if (size == 4) return CopyFrom<int32_t>(call, handle, data);
      return size == 8 && CopyFrom<int64_t>(call, handle, data);
    case 'u':
      return size == 1 && CopyFrom<uint8_t>(call, handle, data);
    case 'b':
      return CopyFrom<bool>(call, handle, data);
    default:
      return false;
  }
}

// Returns the NumPy name, or null for a type that inference_api.cc refuses.
const char* NumpyName(paddle_infer::DataType type) {
  switch (type) {
    case paddle_infer::DataType::FLOAT32:
      return "float32";
    case paddle_infer::DataType::FLOAT64:
      return "float64";
    case paddle_infer::DataType::FLOAT16:
      return "float16";
    case paddle_infer::DataType::BFLOAT16:
      return "uint16";
    case paddle_infer::DataType::INT64:
      return "int64";
    case paddle_infer::DataType::INT32:
      return "int32";
    case paddle_infer::DataType::INT8:
      return "int8";
    case paddle_infer::DataType::UINT8:
      return "uint8";
    case paddle_infer::DataType::BOOL:
      return "bool";
    default:
      return nullptr;
  }
}

template <typename T>
py::object CopyTo(const PredictorState::Call& call, const Handle& handle) {
  const auto shape = handle.shape();
  py::array array(py::dtype(NumpyName(handle.type())),
                  py::array::ShapeContainer(shape.begin(), shape.end()));
  auto* const values = static_cast<T*>(array.mutable_data());
  call.OnContextsWithoutGil([&] { handle.CopyToCpu(values); });
  return std::move(array);
}

// Returns None without side effects for a type that inference_api.cc refuses.
py::object CopyToCpu(const PredictorState::Call& call, const Handle& handle) {
  py::object array = py::none();
  VisitType(handle.type(),
            [&](auto value) { array = CopyTo<decltype(value)>(call, handle); });
  return array;
}

std::map<std::string, std::string> InputTypes(Predictor* predictor) {
  std::map<std::string, std::string> names;
  try {
    for (const auto& [input, type] : predictor->GetInputTypes()) {
      if (const char* const name = NumpyName(type)) names[input] = name;
    }
  } catch (const std::exception&) {
    // Paddle throws for models with other types, such as strings.
  }
  return names;
}

// Replaces a method, except its docstring. `make` takes the old method and
// returns the new one.
template <typename Make>
void Replace(const py::object& type, const char* name, Make make) {
  if (!py::hasattr(type, name)) return;
  const py::object old = type.attr(name);
  const py::object doc = py::getattr(old, "__doc__", py::none());
  const auto text = doc.is_none() ? std::string() : doc.cast<std::string>();
  // The old docstring begins with the signature.
  py::options options;
  options.disable_function_signatures();
  type.attr(name) = py::cpp_function(
      make(old), py::name(name), py::is_method(type), py::doc(text.c_str()));
}

// Replaces a method that changes an input.
void ReplaceSetter(const py::object& type, const char* name, bool is_data) {
  Replace(type, name, [=](const py::object& old) {
    return [=](const py::object& self, const py::args& args) {
      const Bound* const found = FindBound(self.cast<Handle*>());
      if (found == nullptr) {
        old(self, *args);
        return;
      }
      const Bound bound = *found;
      PredictorState::Call call(bound.state, name);
      if (!bound.is_input) bound.state->outputs.Keep(bound.name);
      call.DropInput(bound.name);
      if (args.size() != 1 || !py::isinstance<py::array>(args[0]) ||
          std::string(name) != "_copy_from_cpu_bind" ||
          !CopyFromCpu(call, self.cast<Handle*>(), args[0].cast<py::array>())) {
        call.OnContexts([&] { old(self, *args); });
      }
      if (is_data) call.SetInput(bound.name);
    };
  });
}

// Replaces a method that reads an input or output: its data or its metadata.
void ReplaceReader(const py::object& type, const char* name, bool is_data) {
  Replace(type, name, [=](const py::object& old) {
    return [=](const py::object& self) -> py::object {
      const Bound* const found = FindBound(self.cast<Handle*>());
      if (found == nullptr) return old(self);
      const Bound bound = *found;
      PredictorState::Call call(bound.state, name);
      if (!is_data) return old(self);
      if (bound.is_input) {
        call.CheckMayReadInput(name, bound.name);
      } else {
        call.CheckMayReadOutput(name, bound.name);
      }
      py::object array = CopyToCpu(call, *self.cast<Handle*>());
      if (array.is_none()) {
        array = call.OnContexts([&] { return old(self); });
      }
      if (!bound.is_input) call.EndRead(bound.name);
      return array;
    };
  });
}

void ReplaceGetHandle(const py::object& type, const char* name, bool is_input) {
  Replace(type, name, [=](const py::object& old) {
    return [=](const py::object& self, const std::string& of) {
      py::object handle = old(self, of);
      bound_handles.insert_or_assign(handle.cast<const Handle*>(),
                                     Bound{StateOf(self), of, is_input});
      return handle;
    };
  });
}

// Replaces a method that is only checked for overlap with other threads' calls.
void ReplaceExclusive(const py::object& type, const char* name) {
  Replace(type, name, [=](const py::object& old) {
    return [=](const py::object& self, const py::args& args) -> py::object {
      const auto state = StateOf(self);
      const PredictorState::Call call(state, name);
      state->outputs.FreeSpares();
      return call.OnContexts([&] { return old(self, *args); });
    };
  });
}

// Returns a Python function that calls `hook`, which a run calls, and which may
// run other programs.
py::cpp_function OutsidePredictor(std::shared_ptr<const py::function> hook) {
  return py::cpp_function([hook](const py::args& args) -> py::object {
    const PredictorOneDnn::Pause pause;
    const py::function function = *hook;
    return function(*args);
  });
}

// Does the same for `__call__` of a class.
void CallOutsidePredictor(const py::object& type) {
  Replace(type, "__call__", [](const py::object& old) {
    return [old](const py::object& self, const py::args& args) -> py::object {
      const PredictorOneDnn::Pause pause;
      return old(self, *args);
    };
  });
}

void ReplaceRegisterHook(const py::object& type, const char* name) {
  Replace(type, name, [=](const py::object& old) {
    return [=](const py::object& self, const py::function& hook) {
      const auto state = StateOf(self);
      const PredictorState::Call call(state, name);
      old(self, OutsidePredictor(state->AddHook(hook)));
    };
  });
}

void ReplaceRun(const py::object& type) {
  const auto run =
      py::cpp_function(&Run,
                       py::name("run"),
                       py::is_method(type),
                       "Runs the model on the inputs that are set.");
  type.attr("run") = py::cpp_function(&RunOn,
                                      py::name("run"),
                                      py::is_method(type),
                                      py::sibling(run),
                                      py::arg("inputs"),
                                      "Runs the model on tensors and returns "
                                      "the outputs.");
}

void ReplaceClone(const py::object& type) {
  type.attr("clone") = py::cpp_function(
      [](const py::object& self) { return Clone(self, nullptr); },
      py::name("clone"),
      py::is_method(type),
      "Returns a predictor of the same model.");
#if defined(PADDLE_WITH_CUDA) || defined(PADDLE_WITH_HIP)
  type.attr("clone") = py::cpp_function(
      [](const py::object& self, const phi::CUDAStream& stream) {
        return Clone(self, stream.raw_stream());
      },
      py::name("clone"),
      py::is_method(type),
      py::sibling(type.attr("clone")),
      py::arg("stream"),
      "Returns a predictor of the same model that runs on a stream.");
#endif
}

}  // namespace

void BindPredictorThreads(py::module* core, py::module* module) {
  const py::object type = core->attr("PaddleInferPredictor");
  destroy_predictor = ReplaceDestroy(type, &DestroyPredictor);
  ReplaceRun(type);
  type.attr("__init__") =
      py::cpp_function(&Construct,
                       py::name("__init__"),
                       py::is_method(type),
                       py::detail::is_new_style_constructor(),
                       py::arg("config"));
  ReplaceClone(type);
  type.attr("_input_types") = py::cpp_function(
      &InputTypes,
      py::name("_input_types"),
      py::is_method(type),
      "Returns the known input types, as NumPy names, by input name.");
  type.attr("_input_shapes") = py::cpp_function(
      [](Predictor* self) { return self->GetInputTensorShape(); },
      py::name("_input_shapes"),
      py::is_method(type),
      "Returns the input shapes by input name, with -1 for any size.");
  ReplaceGetHandle(type, "get_input_handle", true);
  ReplaceGetHandle(type, "get_output_handle", false);
  for (const char* name : {"clear_intermediate_tensor", "try_shrink_memory"}) {
    ReplaceExclusive(type, name);
  }
  for (const char* name : {"register_input_hook", "register_output_hook"}) {
    ReplaceRegisterHook(type, name);
  }
  const py::object handle_type = core->attr("PaddleInferTensor");
  destroy_handle = ReplaceDestroy(handle_type, &DestroyHandle);
  for (const char* name : {"reshape", "set_lod"}) {
    ReplaceSetter(handle_type, name, false);
  }
  for (const char* name : {"_copy_from_cpu_bind",
                           "_share_external_data_bind",
                           "_share_external_data_paddle_tensor_bind",
                           "_share_external_data_by_ptr_name_bind"}) {
    ReplaceSetter(handle_type, name, true);
  }
  ReplaceReader(handle_type, "copy_to_cpu", true);
  for (const char* name : {"shape", "type", "lod"}) {
    ReplaceReader(handle_type, name, false);
  }

  core->attr("create_predictor") = py::cpp_function(
      [type](const paddle_infer::Config& config) {
        return type(py::cast(&config, py::return_value_policy::reference));
      },
      py::name("create_predictor"),
      py::arg("config"),
      "Creates a predictor. Other Python threads run meanwhile.");

  module->def("call_outside_predictor",
              &CallOutsidePredictor,
              "Makes calls of the class's instances independent of the "
              "predictor that runs.");

  module->def("pause_for_fork", &WorkWithoutGil::PauseForFork);
  const auto os = py::module_::import("os");
  if (py::hasattr(os, "register_at_fork")) {
    os.attr("register_at_fork")(
        py::arg("before") = py::cpp_function(&WorkWithoutGil::PauseForFork),
        py::arg("after_in_parent") =
            py::cpp_function(&WorkWithoutGil::ContinueInParent),
        py::arg("after_in_child") =
            py::cpp_function(&WorkWithoutGil::ContinueInChild));
  }
  py::module_::import("atexit").attr("register")(py::cpp_function([] {
    // Paddle's exit handler that drops all kernels was registered before this
    // one, so it runs later. The handlers in between may wait for threads that
    // work: WorkerThread, for example, waits for the threads that it stops.
    WorkWithoutGil::FinishAtExit(
        [] { return phi::KernelFactory::Instance().kernels().empty(); });
  }));
}

}  // namespace pybind
}  // namespace paddle
