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

#include "paddle/fluid/pybind/thread_contexts.h"
#include "paddle/phi/api/include/device_guards.h"
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

constexpr char kPredictorThreads[] = "paddle.base._predictor_threads";

// Loads _predictor_threads, then calls `target`: a function, or a pair of an
// object and the name of its function, which that module replaces.
PyObject* LoadAndCall(PyObject* target, PyObject* args, PyObject* kwargs) {
  PyObject* const module = PyImport_ImportModule(kPredictorThreads);
  if (module == nullptr) return nullptr;
  Py_DECREF(module);
  if (!PyTuple_Check(target)) return PyObject_Call(target, args, kwargs);
  PyObject* const function = PyObject_GetAttr(PyTuple_GET_ITEM(target, 0),
                                              PyTuple_GET_ITEM(target, 1));
  if (function == nullptr) return nullptr;
  PyObject* const result = PyObject_Call(function, args, kwargs);
  Py_DECREF(function);
  return result;
}

// Loads _predictor_threads in the parent, so that a forked child never finds it
// partially loaded. An import error, such as too many open files, must not
// prevent a fork.
PyObject* LoadBeforeFork(PyObject* /*self*/, PyObject* /*no_arguments*/) {
  PyObject* const module = PyImport_ImportModule(kPredictorThreads);
  if (module != nullptr) {
    Py_DECREF(module);
  } else if (PyErr_ExceptionMatches(PyExc_ImportError) ||
             PyErr_ExceptionMatches(PyExc_OSError)) {
    PyErr_Clear();
  } else {
    return nullptr;
  }
  Py_RETURN_NONE;
}

// Makes the functions that create predictors load _predictor_threads, which
// replaces predictor methods. This keeps `import paddle` fast; so does avoiding
// pybind11 functions here. Does nothing without that module, which the first
// patches of the series do not have.
void LoadPredictorThreadsLazily() {
  const auto find_spec =
      py::module_::import("importlib.util").attr("find_spec");
  if (find_spec(kPredictorThreads).is_none()) return;
  static PyMethodDef definition = {
      "make_predictor",
      reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&LoadAndCall)),
      METH_VARARGS | METH_KEYWORDS,
      "Creates a predictor, or a pool of predictors."};
  const auto load_and_call = [](const py::object& target) {
    return py::reinterpret_steal<py::object>(
        PyCFunction_New(&definition, target.ptr()));
  };
  const auto as_method = [](const py::object& function) {
    return py::reinterpret_steal<py::object>(
        PyInstanceMethod_New(function.ptr()));
  };
  const auto core = py::module_::import("paddle.base.core");
  core.attr("create_predictor") =
      load_and_call(py::make_tuple(core, "create_predictor"));
  const py::object type = core.attr("PaddleInferPredictor");
  type.attr("__init__") =
      as_method(load_and_call(py::make_tuple(type, "__init__")));
  const py::object pool = core.attr("PredictorPool");
  pool.attr("__init__") = as_method(load_and_call(pool.attr("__init__")));
  static PyMethodDef before_fork = {
      "load_before_fork", &LoadBeforeFork, METH_NOARGS, nullptr};
  py::module_::import("os").attr("register_at_fork")(
      py::arg("before") = py::reinterpret_steal<py::object>(
          PyCFunction_New(&before_fork, nullptr)));
}

// The operations of C++ guards. Redirects calls before a guard sets its first
// stream, so that lookups find it.
class Devices final : public paddle::ThreadDevices {
 public:
  std::shared_ptr<void> UseStreams(
      const std::vector<std::shared_ptr<phi::DeviceContext>>& streams)
      override {
    RedirectLookups();
    return ThreadDevices::UseStreams(streams);
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
  void* const pointer =
      library == nullptr ? nullptr : dlsym(library, "paddle_thread_devices");
  if (pointer == nullptr) throw std::runtime_error(dlerror());
  *static_cast<paddle::ThreadDevices**>(pointer) = &devices;
}

}  // namespace

PYBIND11_MODULE(_thread_contexts, module) {
  RedirectLazyLookups();
  RedirectAfterLoadingOperators();
  LoadPredictorThreadsLazily();
  ExportDeviceGuards();
  paddle::pybind::BindThreadContexts(&module);
  module.def("redirect_lookups", &RedirectLookups);
  // Created for each change of a thread's contexts, before the thread uses
  // them.
  RedirectBefore<py::object>(module, "ThreadContexts");
  RedirectBefore<py::object, py::object>(module, "HostContext");
  // Called on the main thread.
  RedirectBefore<py::object>(module, "keep_default_context");
  RedirectBefore<py::object>(module, "use_memory_of");
}
