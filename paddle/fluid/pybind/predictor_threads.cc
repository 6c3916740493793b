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

#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "paddle/fluid/inference/api/paddle_inference_api.h"
#include "paddle/fluid/pybind/work_without_gil.h"
#include "paddle/phi/api/include/tensor.h"
#include "paddle/phi/common/bfloat16.h"
#include "paddle/phi/common/float16.h"
#include "paddle/utils/pybind.h"
#include "pybind11/functional.h"
#include "pybind11/numpy.h"
#include "pybind11/stl.h"

namespace py = pybind11;

namespace paddle {
namespace pybind {
namespace {

using Predictor = paddle_infer::Predictor;
using Handle = paddle_infer::Tensor;

constexpr char kHowToFix[] =
    "Set the inputs, run and read the outputs of a request on one thread, and "
    "give each thread a predictor of its own with clone(), or call "
    "PredictorPool.predict.";

struct Thread {
  uint64_t id = 0;  // never that of another thread
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
        return py::repr(thread.attr("name"));
      }
    }
    return "a thread that has ended";
  }
};

[[noreturn]] void Fail(const std::string& method, const std::string& reason) {
  throw std::runtime_error(method + "() failed on thread " +
                           Thread::Current().name() + ": " + reason + ". " +
                           kHowToFix);
}

// A predictor and its clones, of a model whose parameters they share. In Paddle
// 3.3.0 each clears the parameters when it is destroyed. So they are destroyed
// together, when the program has dropped all.
class Clones {
 public:
  Clones() = default;
  Clones(const Clones&) = delete;
  Clones& operator=(const Clones&) = delete;
  // Requires: the GIL, and that no Python object of a clone is alive.
  ~Clones() {
    for (Predictor* clone : clones_) {
      // The class that inference_api.cc has bound destroys it.
      py::cast(clone, py::return_value_policy::take_ownership);
    }
  }
  void Keep(std::unique_ptr<Predictor> clone) {
    clones_.push_back(clone.release());
  }

 private:
  std::vector<Predictor*> clones_;
};

// Whose inputs and outputs a predictor has. The GIL protects it.
class Ownership {
 public:
  explicit Ownership(Predictor* predictor)
      : input_names_(predictor->GetInputNames()) {}
  Ownership(const Ownership&) = delete;
  Ownership& operator=(const Ownership&) = delete;

  // A call, which calls of other threads must not overlap.
  class Call {
   public:
    Call(std::shared_ptr<Ownership> of, const char* method)
        : of_(std::move(of)), me_(Thread::Current()) {
      if (of_->calls_ > 0 && of_->caller_ != me_) {
        Fail(method,
             "thread " + of_->caller_.name() +
                 " is in a call of this "
                 "predictor, which works for one thread at a time");
      }
      of_->caller_ = me_;
      ++of_->calls_;
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    ~Call() { --of_->calls_; }

    // Makes the predictor that of the calling thread. Another one that set its
    // inputs or ran it before has lost them.
    void TakeOver() {
      if (of_->owner_ == me_) return;
      of_->was_taken_over_ = static_cast<bool>(of_->owner_);
      of_->owner_ = me_;
      of_->inputs_.clear();
      of_->has_run_ = false;
    }

    void SetInput(const std::string& name) { of_->inputs_.insert(name); }

    void SetAllInputs() {
      of_->inputs_.insert(of_->input_names_.begin(), of_->input_names_.end());
    }

    void CheckMayRun() {
      if (!of_->owner_ || of_->input_names_.empty()) TakeOver();
      if (of_->owner_ == me_ && !of_->was_taken_over_) return;
      std::string missing;
      for (const std::string& name : of_->input_names_) {
        if (of_->owner_ != me_ || of_->inputs_.count(name) == 0) {
          missing += (missing.empty() ? "'" : ", '") + name + "'";
        }
      }
      if (missing.empty()) return;
      Fail("run",
           "it has not set " + missing +
               " of this predictor since another thread used it" +
               of_->NameOwner(me_));
    }

    void BeginRun() {
      if (of_->was_taken_over_) of_->has_run_ = false;
    }

    void EndRun() { of_->has_run_ = true; }

    void CheckMayRead(const char* method, bool is_input) {
      // A hook reads while its thread runs.
      if (of_->calls_ > 1 || !of_->owner_) return;
      if (of_->owner_ != me_) {
        Fail(method,
             "the inputs and outputs of this predictor are another thread's" +
                 of_->NameOwner(me_));
      }
      if (!is_input && of_->was_taken_over_ && !of_->has_run_) {
        Fail(method,
             "the outputs of this predictor are another thread's, since this "
             "thread has not run it");
      }
    }

   private:
    const std::shared_ptr<Ownership> of_;
    const Thread me_;
  };

  // Nothing where the predictor has parameters of its own.
  std::shared_ptr<Clones> clones;
  // That a clone loads.
  std::vector<std::string> files;
  // Whether its work keeps the GIL, as in Paddle 3.3.0. With oneDNN it does:
  // all predictors share a cache of primitives, and what one of them evicts or
  // clears another one may be about to use.
  bool keeps_gil = true;

 private:
  std::string NameOwner(const Thread& me) const {
    return owner_ == me ? "" : ", " + owner_.name();
  }

  const std::vector<std::string> input_names_;
  Thread owner_;
  // Whether the owner is not the first one.
  bool was_taken_over_ = false;
  std::unordered_set<std::string> inputs_;  // that the owner has set
  bool has_run_ = false;                    // for the owner, as it has set it
  Thread caller_;
  int calls_ = 0;  // that are under way, one in the other
};

// What a handle belongs to.
struct Bound {
  std::shared_ptr<Ownership> ownership;
  std::string name;
  bool is_input;
};

// By the objects in C++. An entry goes with the Python object.
template <typename Value>
class ByObject {
 public:
  Value* Find(const void* object) {
    const auto found = values_.find(object);
    return found == values_.end() ? nullptr : &found->second;
  }
  Value* Add(const void* object, py::handle owner, Value value) {
    Value* const added =
        &values_.insert_or_assign(object, std::move(value)).first->second;
    struct Entry {
      ByObject* in;
      const void* object;
    };
    const py::capsule entry(
        std::make_unique<Entry>(Entry{this, object}).release(), [](void* data) {
          const std::unique_ptr<Entry> gone(static_cast<Entry*>(data));
          gone->in->values_.erase(gone->object);
        });
    py::detail::keep_alive_impl(owner, entry);
    return added;
  }

 private:
  std::unordered_map<const void*, Value> values_;
};

// Never destroyed: objects may go while the process exits.
auto& ownerships =
    *std::make_unique<ByObject<std::shared_ptr<Ownership>>>().release();
auto& bound_handles = *std::make_unique<ByObject<Bound>>().release();

std::shared_ptr<Ownership> OwnershipOf(py::handle predictor) {
  auto* const object = predictor.cast<Predictor*>();
  if (auto* const found = ownerships.Find(object)) return *found;
  return *ownerships.Add(
      object, predictor, std::make_shared<Ownership>(object));
}

// What a clone is made of.
struct Model {
  // Except for a model in PIR's format, clones use the parameters of the
  // predictor.
  bool shares_parameters;
  // Those in PIR's format load the files again.
  std::vector<std::string> files;
  bool uses_onednn;

  explicit Model(const py::object& config) {
    const auto text = [&](const char* name) {
      return config.attr(name)().cast<std::string>();
    };
    uses_onednn = config.attr("mkldnn_enabled")().cast<bool>();
    const std::filesystem::path program = text("prog_file");
    shares_parameters =
        config.attr("model_from_memory")().cast<bool>() ||
        (program.empty()
             ? !std::filesystem::exists(
                   std::filesystem::path(text("model_dir")) / "__model__.json")
             : program.extension() != ".json");
    if (!shares_parameters && !program.empty()) {
      files = {text("prog_file"), text("params_file")};
    }
  }
};

void SetModel(py::handle predictor, Model model) {
  const auto ownership = OwnershipOf(predictor);
  if (model.shares_parameters) ownership->clones = std::make_shared<Clones>();
  ownership->files = std::move(model.files);
  ownership->keeps_gil = model.uses_onednn;
}

// Calls `work`, without the GIL where that is safe.
template <typename Work>
void Do(const Ownership& ownership, Work work) {
  if (ownership.keeps_gil) {
    work();
  } else {
    WorkWithoutGil::Run(work);
  }
}

// Calls `make` without the GIL. One predictor is made at a time: the passes
// that optimize a program share registries.
template <typename Make>
std::unique_ptr<Predictor> MakeWithoutGil(Make make) {
  static std::mutex making;
  std::unique_ptr<Predictor> made;
  WorkWithoutGil::Run([&] {
    const std::lock_guard<std::mutex> lock(making);
    made = make();
  });
  return made;
}

py::object CreatePredictor(const paddle_infer::Config& config) {
  Model model(py::cast(&config, py::return_value_policy::reference));
  py::object predictor = py::cast(MakeWithoutGil([&] {
                                    return std::make_unique<Predictor>(config);
                                  }).release(),
                                  py::return_value_policy::take_ownership);
  SetModel(predictor, std::move(model));
  return predictor;
}

py::object Clone(const py::object& predictor) {
  const auto ownership = OwnershipOf(predictor);
  for (const std::string& file : ownership->files) {
    // Paddle 3.3.0 makes a clone of uninitialized parameters.
    if (!file.empty() && !std::filesystem::exists(file)) {
      const std::string text =
          "clone() loads the files of the model again, but " + file +
          " does not exist. Keep the files as long as predictors are cloned.";
      PyErr_SetString(PyExc_FileNotFoundError, text.c_str());
      throw py::error_already_set();
    }
  }
  auto* const original = predictor.cast<Predictor*>();
  std::unique_ptr<Predictor> made =
      ownership->keeps_gil ? original->Clone()
                           : MakeWithoutGil([&] { return original->Clone(); });
  Predictor* const pointer = made.get();
  if (!ownership->clones) {
    py::object clone =
        py::cast(made.release(), py::return_value_policy::take_ownership);
    const auto of_clone = OwnershipOf(clone);
    of_clone->files = ownership->files;
    of_clone->keeps_gil = ownership->keeps_gil;
    return clone;
  }
  ownership->clones->Keep(std::move(made));
  py::object clone = py::cast(pointer, py::return_value_policy::reference);
  const auto of_clone = OwnershipOf(clone);
  of_clone->clones = ownership->clones;
  of_clone->keeps_gil = ownership->keeps_gil;
  py::detail::keep_alive_impl(clone, predictor);
  return clone;
}

void Run(const py::object& self) {
  const auto ownership = OwnershipOf(self);
  Ownership::Call call(ownership, "run");
  call.CheckMayRun();
  call.BeginRun();
  auto* const predictor = self.cast<Predictor*>();
  Do(*ownership, [&] { predictor->Run(); });
  call.EndRun();
}

std::vector<paddle::Tensor> RunOn(const py::object& self,
                                  const std::vector<paddle::Tensor>& inputs) {
  const auto ownership = OwnershipOf(self);
  Ownership::Call call(ownership, "run");
  call.TakeOver();
  call.BeginRun();
  auto* const predictor = self.cast<Predictor*>();
  std::vector<paddle::Tensor> outputs;
  Do(*ownership, [&] {
    predictor->Run(inputs, &outputs);
    // The next run writes into the outputs of this one.
    for (paddle::Tensor& output : outputs) {
      paddle::Tensor copy = output.copy_to(output.place(), true);
      copy.set_name(output.name());
      output = std::move(copy);
    }
  });
  call.SetAllInputs();
  call.EndRun();
  return outputs;
}

template <typename T>
bool CopyFrom(const Ownership& ownership,
              Handle* handle,
              const py::array& data) {
  const auto* const values = static_cast<const T*>(data.data());
  const std::vector<int> shape(data.shape(), data.shape() + data.ndim());
  Do(ownership, [&] {
    handle->Reshape(shape);
    handle->CopyFromCpu(values);
  });
  return true;
}

// Returns false, having done nothing, for values that inference_api.cc converts
// or refuses.
bool CopyFromCpu(const Ownership& ownership,
                 Handle* handle,
                 const py::array& data) {
  if ((data.flags() & py::array::c_style) == 0 ||
      !data.attr("dtype").attr("isnative").cast<bool>()) {
    return false;
  }
  const auto size = data.itemsize();
  switch (data.dtype().kind()) {
    case 'f':
      if (size == 2)
        return CopyFrom<phi::dtype::float16>(ownership, handle, data);
      if (size == 4) return CopyFrom<float>(ownership, handle, data);
      return size == 8 && CopyFrom<double>(ownership, handle, data);
    case 'i':
      if (size == 1) return CopyFrom<int8_t>(ownership, handle, data);
      if (size == 4) return CopyFrom<int32_t>(ownership, handle, data);
      return size == 8 && CopyFrom<int64_t>(ownership, handle, data);
    case 'u':
      return size == 1 && CopyFrom<uint8_t>(ownership, handle, data);
    case 'b':
      return CopyFrom<bool>(ownership, handle, data);
    default:
      return false;
  }
}

template <typename T>
py::object CopyTo(const Ownership& ownership,
                  const Handle& handle,
                  const char* dtype) {
  const auto shape = handle.shape();
  py::array array(py::dtype(dtype),
                  py::array::ShapeContainer(shape.begin(), shape.end()));
  auto* const values = static_cast<T*>(array.mutable_data());
  Do(ownership, [&] { handle.CopyToCpu(values); });
  return std::move(array);
}

// Returns None, having done nothing, for a type that inference_api.cc refuses.
py::object CopyToCpu(const Ownership& ownership, const Handle& handle) {
  switch (handle.type()) {
    case paddle_infer::DataType::FLOAT32:
      return CopyTo<float>(ownership, handle, "float32");
    case paddle_infer::DataType::FLOAT64:
      return CopyTo<double>(ownership, handle, "float64");
    case paddle_infer::DataType::FLOAT16:
      return CopyTo<phi::dtype::float16>(ownership, handle, "float16");
    case paddle_infer::DataType::BFLOAT16:
      return CopyTo<phi::dtype::bfloat16>(ownership, handle, "uint16");
    case paddle_infer::DataType::INT64:
      return CopyTo<int64_t>(ownership, handle, "int64");
    case paddle_infer::DataType::INT32:
      return CopyTo<int32_t>(ownership, handle, "int32");
    case paddle_infer::DataType::INT8:
      return CopyTo<int8_t>(ownership, handle, "int8");
    case paddle_infer::DataType::UINT8:
      return CopyTo<uint8_t>(ownership, handle, "uint8");
    case paddle_infer::DataType::BOOL:
      return CopyTo<bool>(ownership, handle, "bool");
    default:
      return py::none();
  }
}

// Replaces a method. `make` gets the old one and returns the new one.
template <typename Make>
void Replace(const py::object& type, const char* name, Make make) {
  if (!py::hasattr(type, name)) return;
  const py::object old = type.attr(name);
  type.attr(name) = py::cpp_function(
      make(old), py::name(name), py::is_method(type), py::doc("See Paddle."));
}

// A call that changes an input.
void ReplaceSetter(const py::object& type, const char* name, bool is_data) {
  Replace(type, name, [=](const py::object& old) {
    return [=](const py::object& self, const py::args& args) {
      const Bound* const found = bound_handles.Find(self.cast<Handle*>());
      if (found == nullptr) {
        old(self, *args);
        return;
      }
      const Bound bound = *found;
      Ownership::Call call(bound.ownership, name);
      call.TakeOver();
      if (args.size() != 1 || !py::isinstance<py::array>(args[0]) ||
          std::string(name) != "_copy_from_cpu_bind" ||
          !CopyFromCpu(*bound.ownership,
                       self.cast<Handle*>(),
                       args[0].cast<py::array>())) {
        old(self, *args);
      }
      if (is_data) call.SetInput(bound.name);
    };
  });
}

// A call that reads an input or output.
void ReplaceReader(const py::object& type, const char* name) {
  Replace(type, name, [=](const py::object& old) {
    return [=](const py::object& self) -> py::object {
      const Bound* const found = bound_handles.Find(self.cast<Handle*>());
      if (found == nullptr) return old(self);
      const Bound bound = *found;
      Ownership::Call call(bound.ownership, name);
      call.CheckMayRead(name, bound.is_input);
      if (std::string(name) != "copy_to_cpu") return old(self);
      py::object array = CopyToCpu(*bound.ownership, *self.cast<Handle*>());
      return array.is_none() ? old(self) : array;
    };
  });
}

void ReplaceGetHandle(const py::object& type, const char* name, bool is_input) {
  Replace(type, name, [=](const py::object& old) {
    return [=](const py::object& self, const std::string& of) {
      py::object handle = old(self, of);
      bound_handles.Add(handle.cast<Handle*>(),
                        handle,
                        Bound{OwnershipOf(self), of, is_input});
      py::detail::keep_alive_impl(handle, self);
      return handle;
    };
  });
}

// A call that changes what a predictor has.
void ReplaceChange(const py::object& type, const char* name) {
  Replace(type, name, [=](const py::object& old) {
    return [=](const py::object& self, const py::args& args) -> py::object {
      Ownership::Call call(OwnershipOf(self), name);
      call.TakeOver();
      return old(self, *args);
    };
  });
}

void ReplaceRun(const py::object& type) {
  const auto run = py::cpp_function(&Run,
                                    py::name("run"),
                                    py::is_method(type),
                                    "Runs the inputs that were set.");
  type.attr("run") = py::cpp_function(&RunOn,
                                      py::name("run"),
                                      py::is_method(type),
                                      py::sibling(run),
                                      py::arg("inputs"),
                                      "Runs tensors and returns the outputs.");
}

}  // namespace

void BindPredictorThreads(py::module* core) {
  const py::object type = core->attr("PaddleInferPredictor");
  ReplaceRun(type);
  Replace(type, "__init__", [](const py::object& old) {
    return [=](const py::object& self, const py::object& config) {
      Model model(config);
      old(self, config);
      SetModel(self, std::move(model));
    };
  });
  Replace(type, "clone", [](const py::object& old) {
    return [=](const py::object& self, const py::args& stream) {
      return stream.empty() ? Clone(self) : old(self, *stream);
    };
  });
  ReplaceGetHandle(type, "get_input_handle", true);
  ReplaceGetHandle(type, "get_output_handle", false);
  for (const char* name : {"clear_intermediate_tensor",
                           "try_shrink_memory",
                           "register_input_hook",
                           "register_output_hook"}) {
    ReplaceChange(type, name);
  }
  const py::object handle_type = core->attr("PaddleInferTensor");
  for (const char* name : {"reshape", "set_lod"}) {
    ReplaceSetter(handle_type, name, false);
  }
  for (const char* name : {"_copy_from_cpu_bind",
                           "_share_external_data_bind",
                           "_share_external_data_paddle_tensor_bind",
                           "_share_external_data_by_ptr_name_bind"}) {
    ReplaceSetter(handle_type, name, true);
  }
  for (const char* name : {"copy_to_cpu", "shape", "type", "lod"}) {
    ReplaceReader(handle_type, name);
  }

  core->attr("create_predictor") = py::cpp_function(
      &CreatePredictor,
      py::name("create_predictor"),
      py::arg("config"),
      "Makes a predictor. Other Python threads run meanwhile.");

  const auto os = py::module_::import("os");
  if (py::hasattr(os, "register_at_fork")) {
    os.attr("register_at_fork")(
        py::arg("before") = py::cpp_function(&WorkWithoutGil::PauseForFork),
        py::arg("after_in_parent") =
            py::cpp_function(&WorkWithoutGil::ContinueInParent),
        py::arg("after_in_child") =
            py::cpp_function(&WorkWithoutGil::ContinueInChild));
  }
  py::module_::import("atexit").attr("register")(
      py::cpp_function(&WorkWithoutGil::FinishAtExit));
}

}  // namespace pybind
}  // namespace paddle
