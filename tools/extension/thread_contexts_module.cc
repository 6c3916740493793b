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

#include <dlfcn.h>
#include <pybind11/pybind11.h>

#include <filesystem>
#include <memory>
#include <stdexcept>
#include <vector>

#include "device_waits.h"
#include "paddle/fluid/pybind/thread_contexts.h"
#include "paddle/phi/api/include/device_guards.h"
#include "paddle/phi/backends/thread_contexts.h"
#include "paddle/phi/common/place.h"
#include "redirected_lookups.h"

namespace py = pybind11;

namespace {

// Paddle loads custom operator libraries with lazy binding. Redirects their
// calls before any thread can call one of the operators.
void RedirectAfterLoadingOperators() {
  const auto core = py::module_::import("paddle.base.core");
  constexpr char kLoad[] = "load_op_meta_info_and_register_op";
  const py::object load = core.attr(kLoad);
  core.attr(kLoad) =
      py::cpp_function([load](const py::args& args, const py::kwargs& kwargs) {
        const py::object operators = load(*args, **kwargs);
        RedirectLazyLookups();
        return operators;
      });
}

// Wraps a module function that takes `Arguments`, so that it redirects calls
// first: from then on, lookups may have to find the contexts that it sets. If
// redirecting throws, the function is not called.
template <typename... Arguments>
void RedirectBefore(const py::module_& module, const char* name) {
  const py::object function = module.attr(name);
  module.attr(name) =
      py::cpp_function([function](const Arguments&... arguments) -> py::object {
        RedirectLookups();
        return function(arguments...);
      });
}

// Does the same for the function that changes a thread's contexts, if it adds
// any.
void RedirectBeforeFirstContexts(const py::module_& module) {
  constexpr char kName[] = "use_thread_contexts";
  const py::object function = module.attr(kName);
  module.attr(kName) = py::cpp_function(
      [function](const py::object& owner, const py::dict& by_place) {
        if (!by_place.empty()) RedirectLookups();
        function(owner, by_place);
      });
}

// Returns whether the module exists. The first patches of the series have no
// _predictor_threads, and a Paddle without oneDNN no _onednn_scratchpads.
bool Import(const char* name) {
  try {
    py::module_::import(name);
  } catch (const py::error_already_set& error) {
    if (!error.matches(PyExc_ModuleNotFoundError) ||
        !py::str(name).equal(error.value().attr("name"))) {
      throw;
    }
    return false;
  }
  return true;
}

constexpr char kPredictorThreads[] = "paddle.base._predictor_threads";
constexpr char kOneDnnScratchpads[] = "paddle.base._onednn_scratchpads";
constexpr char kGeneratorThreads[] = "paddle.base._generator_threads";
constexpr char kReaderThreads[] = "paddle.base._reader_threads";
// A method of configs. This module keeps libpaddle's function under this name,
// for _predictor_threads.
constexpr char kEnableCustomDevice[] = "enable_custom_device";

// Calls a function that makes predictors, or that chooses their device.
// `target` is a tuple: the object whose function _predictor_threads replaces,
// the function's name, and the function of libpaddle.
PyObject* LoadAndCall(PyObject* target, PyObject* args, PyObject* kwargs) {
  try {
    // Whatever the config says, because a model may contain oneDNN operators.
    Import(kOneDnnScratchpads);
    const bool is_loaded = Import(kPredictorThreads);
    const auto parts = py::reinterpret_borrow<py::tuple>(target);
    const py::object owner = parts[0];
    py::object function = parts[2];
    if (is_loaded) function = owner.attr(parts[1]);
    return PyObject_Call(function.ptr(), args, kwargs);
  } catch (py::error_already_set& error) {
    error.restore();
    return nullptr;
  }
}

// Loads _predictor_threads in the parent, and waits for a thread that loads
// another module lazily, so that a forked child never finds them partially
// loaded. An import error, such as too many open files, must not prevent a
// fork.
PyObject* LoadBeforeFork(PyObject* /*self*/, PyObject* /*no_arguments*/) {
  try {
    Import(kPredictorThreads);
    const auto modules = py::module_::import("sys").attr("modules");
    for (const char* name : {kOneDnnScratchpads, kReaderThreads}) {
      if (modules.contains(name)) Import(name);
    }
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_ImportError) && !error.matches(PyExc_OSError)) {
      error.restore();
      return nullptr;
    }
  }
  Py_RETURN_NONE;
}

// Makes the functions that create predictors, or choose their device, load
// _predictor_threads, which replaces predictor methods. This keeps `import
// paddle` fast; so does avoiding pybind11 functions here.
void LoadPredictorThreadsLazily(py::module_* module) {
  static PyMethodDef definition = {
      "make_predictor",
      reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&LoadAndCall)),
      METH_VARARGS | METH_KEYWORDS,
      "Creates predictors, or chooses their device."};
  const auto load_and_call = [](const py::object& owner,
                                const char* name,
                                const py::object& function) {
    return py::reinterpret_steal<py::object>(PyCFunction_New(
        &definition, py::make_tuple(owner, name, function).ptr()));
  };
  const auto replace_method = [&](const py::object& type,
                                  const char* name,
                                  const py::object& owner) {
    const py::object function = load_and_call(owner, name, type.attr(name));
    type.attr(name) =
        py::reinterpret_steal<py::object>(PyInstanceMethod_New(function.ptr()));
  };
  const auto core = py::module_::import("paddle.base.core");
  core.attr("create_predictor") =
      load_and_call(core, "create_predictor", core.attr("create_predictor"));
  const py::object type = core.attr("PaddleInferPredictor");
  replace_method(type, "__init__", type);
  const py::object config = core.attr("AnalysisConfig");
  module->attr(kEnableCustomDevice) = config.attr(kEnableCustomDevice);
  replace_method(config, kEnableCustomDevice, config);
  static PyMethodDef before_fork = {
      "load_before_fork", &LoadBeforeFork, METH_NOARGS, nullptr};
  py::module_::import("os").attr("register_at_fork")(
      py::arg("before") = py::reinterpret_steal<py::object>(
          PyCFunction_New(&before_fork, nullptr)));
}

bool HasDevice(const py::handle& places) {
  for (const auto& place : places) {
    if (place.cast<const phi::Place&>().GetType() != phi::AllocationType::CPU) {
      return true;
    }
  }
  return false;
}

// Makes the function that creates readers use _reader_threads. That is loaded
// for the first reader that copies batches to a device for another thread than
// the main one.
void LoadReaderThreadsLazily() {
  const auto core = py::module_::import("paddle.base.core");
  constexpr char kCreate[] = "create_py_reader";
  constexpr size_t kPlaces = 5;
  const py::object create = core.attr(kCreate);
  core.attr(kCreate) =
      py::cpp_function([create](const py::args& args) -> py::object {
        if (!HasDevice(args[kPlaces]) || phi::WorkerContexts() == nullptr) {
          return create(*args);
        }
        py::object module;
        try {
          RedirectLookups();
          module = py::module_::import(kReaderThreads);
        } catch (const std::exception&) {
          // A thread without its own streams needs neither.
          if (!phi::CurrentContexts().empty()) throw;
          return create(*args);
        }
        return module.attr("create_reader")(create, *args);
      });
}

// The operations of C++ guards. Redirects calls before a guard sets its first
// stream, so that lookups find it.
class Devices final : public paddle::DeviceGuardBackend {
 public:
  std::shared_ptr<void> UseStreams(
      const std::vector<std::shared_ptr<phi::DeviceContext>>& streams)
      override {
    RedirectLookups();
    return DeviceGuardBackend::UseStreams(streams);
  }
};

// Makes the function that guards call visible to libraries that are loaded
// later. It is in a separate library: this module's dependencies must not
// become globally visible with it.
void ExportDeviceGuards() {
  static Devices devices;
  Dl_info module;
  dladdr(reinterpret_cast<void*>(&ExportDeviceGuards), &module);
  const auto path = std::filesystem::path(module.dli_fname)
                        .replace_filename("libpaddle_device_guards.so");
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  void* const pointer = library == nullptr
                            ? nullptr
                            : dlsym(library, "paddle_device_guard_backend");
  if (pointer == nullptr) throw std::runtime_error(dlerror());
  *static_cast<paddle::DeviceGuardBackend**>(pointer) = &devices;
}

}  // namespace

PYBIND11_MODULE(_thread_contexts, module) {
  RedirectLazyLookups();
  RedirectAfterLoadingOperators();
  LoadPredictorThreadsLazily(&module);
  ExportDeviceGuards();
  WaitForDevicesWithoutGil();
  LoadReaderThreadsLazily();
  // Now, because any thread may draw, also one of an executor.
  Import(kGeneratorThreads);
  paddle::pybind::BindThreadContexts(&module);
  module.def("redirect_lookups", &RedirectLookups);
  module.def("load_onednn_scratchpads", [] { Import(kOneDnnScratchpads); });
  RedirectBeforeFirstContexts(module);
  RedirectBefore<py::object, py::object>(module, "HostContext");
  // Called on the main thread.
  RedirectBefore<py::object>(module, "keep_default_context");
}
