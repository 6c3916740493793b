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

#include "paddle/fluid/pybind/process_group_shm.h"

#include <signal.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "paddle/fluid/distributed/collective/group_store.h"
#include "paddle/fluid/distributed/collective/process_group_shm.h"
#include "paddle/fluid/distributed/collective/shared_tensor_resolver.h"
#include "paddle/fluid/pybind/take_gil.h"
#include "paddle/phi/core/distributed/store/store.h"
#include "paddle/phi/core/enforce.h"
#include "paddle/utils/pybind.h"
#include "pybind11/chrono.h"
#include "pybind11/stl.h"

namespace py = pybind11;

namespace paddle {
namespace pybind {

using distributed::GroupStore;
using distributed::ProcessGroup;
using distributed::ProcessGroupIdMap;
using distributed::ProcessGroupShm;
using distributed::ProcessGroupShmOptions;
using distributed::ProcessStart;
using distributed::SharedTensorResolver;
using distributed::ShmTask;
using memory::allocation::SharedLocator;
using phi::distributed::Store;

namespace {

// Throws KeyboardInterrupt if SIGINT has arrived and has Python's own handler.
// Has no effect on other threads than the main thread. Does not run any other
// handler, which could call the group again while an operation is in flight;
// Python runs it when the operation has ended.
void RaiseKeyboardInterrupt() {
  const py::gil_scoped_acquire gil;
  // The module written in C: any Python code, even an import, could run the
  // handlers of signals that have arrived.
  const py::handle signals =
      PyDict_GetItemString(PyImport_GetModuleDict(), "_signal");
  if (signals &&
      signals.attr("getsignal")(SIGINT).is(
          signals.attr("default_int_handler")) &&
      PyOS_InterruptOccurred() != 0) {
    PyErr_SetNone(PyExc_KeyboardInterrupt);
    throw py::error_already_set();
  }
}

[[noreturn]] void ThrowNotDense(const paddle::Tensor& tensor) {
  if (tensor.defined() &&
      (tensor.is_sparse_coo_tensor() || tensor.is_sparse_csr_tensor())) {
    PADDLE_THROW(common::errors::InvalidArgument(
        "The backend shm got a sparse tensor (%s) of shape [%s], but works on "
        "dense tensors only. Pass tensor.to_dense().",
        tensor.is_sparse_coo_tensor() ? "COO" : "CSR",
        tensor.dims()));
  }
  if (tensor.defined() && tensor.is_selected_rows()) {
    PADDLE_THROW(common::errors::InvalidArgument(
        "The backend shm got selected rows of shape [%s], such as the gradient "
        "of an embedding with sparse=True, but works on dense tensors only. "
        "Build the embedding with sparse=False.",
        tensor.dims()));
  }
  PADDLE_THROW(common::errors::InvalidArgument(
      "The backend shm got a tensor that is not dense, or that has no memory "
      "yet. Pass dense tensors, for example paddle.empty(shape)."));
}

phi::DenseTensor DenseTensorOf(const paddle::Tensor& tensor) {
  const auto dense = std::dynamic_pointer_cast<phi::DenseTensor>(tensor.impl());
  if (!dense) ThrowNotDense(tensor);
  return *dense;
}

std::vector<phi::DenseTensor> DenseTensorsOf(const py::sequence& list) {
  std::vector<phi::DenseTensor> tensors;
  for (const auto& tensor : list.cast<std::vector<paddle::Tensor>>()) {
    tensors.push_back(DenseTensorOf(tensor));
  }
  return tensors;
}

// Throws if the argument is a tensor that is not dense, or a list of tensors
// that has one.
void EnforceDense(const py::handle& argument) {
  if (PyCheckTensor(argument.ptr())) {
    DenseTensorOf(argument.cast<paddle::Tensor>());
  } else if (py::isinstance<py::list>(argument) ||
             py::isinstance<py::tuple>(argument)) {
    for (const py::handle& item : argument) EnforceDense(item);
  }
}

// Makes the methods that a class inherits from ProcessGroup check their
// arguments: the bindings of ProcessGroup crash if a tensor is not dense.
void EnforceDenseArguments(const py::object& group) {
  const py::object own = group.attr("__dict__");
  const py::dict inherited(py::type::of<ProcessGroup>().attr("__dict__"));
  for (const auto& [key, method] : inherited) {
    const auto name = key.cast<std::string>();
    if (name[0] == '_' || name == "rank" || name == "size" || name == "name" ||
        own.contains(name)) {
      continue;
    }
    const auto text = py::str(method.attr("__doc__")).cast<std::string>();
    group.attr(name.c_str()) = py::cpp_function(
        [method = py::reinterpret_borrow<py::object>(method)](
            const py::args& args, const py::kwargs& kwargs) {
          for (const py::handle& argument : args) EnforceDense(argument);
          for (const auto& argument : kwargs) EnforceDense(argument.second);
          return method(*args, **kwargs);
        },
        py::name(name.c_str()),
        py::doc(text.c_str()),
        py::is_method(group));
  }
}

}  // namespace

void BindProcessGroupShm(py::module* m) {
  // Paddle's own binding of stores has no `check`.
  m->def(
      "has_key",
      [](Store& store, const std::string& key) { return store.check(key); },
      py::arg("store"),
      py::arg("key"),
      py::call_guard<ReleasedGil>());
  // Identifies this process for `has_ended`.
  m->def("this_process", [] {
    const ProcessStart start = distributed::StartOfThisProcess();
    return std::make_pair(start.process, start.ticks);
  });
  m->def("has_ended", [](uint32_t process, uint64_t ticks) {
    return distributed::HasEnded({process, ticks});
  });
  py::class_<GroupStore, std::shared_ptr<GroupStore>, Store>(*m, "GroupStore")
      .def(py::init([](std::shared_ptr<Store> store,
                       std::string prefix,
                       int64_t timeout_milliseconds) {
             return std::make_shared<GroupStore>(
                 std::move(store),
                 std::move(prefix),
                 std::chrono::milliseconds(timeout_milliseconds),
                 RaiseKeyboardInterrupt);
           }),
           py::arg("store"),
           py::arg("prefix"),
           py::arg("timeout_milliseconds"))
      .def("watch", &GroupStore::Watch)
      .def("raise_if_died",
           &GroupStore::AwaitDeath,
           py::call_guard<ReleasedGil>());
  // Paddle's own binding of `wait` rounds timeouts down to milliseconds, and
  // zero means no timeout. pybind11's conversion of a timedelta overflows after
  // 292,000 years.
  py::class_<ShmTask, std::shared_ptr<ShmTask>, ProcessGroup::Task>(*m,
                                                                    "ShmTask")
      .def(
          "wait",
          [](ShmTask& self, const py::object& timeout) {
            const py::object seconds = py::hasattr(timeout, "total_seconds")
                                           ? timeout.attr("total_seconds")()
                                           : timeout;
            ShmTask::Seconds duration = ShmTask::Seconds::zero();
            if (!seconds.is_none()) {
              try {
                duration = ShmTask::Seconds(seconds.cast<double>());
              } catch (const py::cast_error&) {
                throw py::type_error(
                    "The timeout of wait must be a datetime.timedelta or a "
                    "number of seconds, but is " +
                    py::repr(timeout).cast<std::string>() + ".");
              }
            }
            const ReleasedGil released;
            return self.WaitFor(duration);
          },
          py::arg("timeout") = 0.0);
  py::class_<ProcessGroupShm, std::shared_ptr<ProcessGroupShm>, ProcessGroup>
      group(*m, "ProcessGroupShm");
  group
      .def_static(
          "create",
          [](const std::shared_ptr<Store>& store,
             int rank,
             int world_size,
             int group_id,
             int64_t timeout_milliseconds,
             int64_t time_to_join_milliseconds,
             const std::optional<py::capsule>& locator) {
            ProcessGroupShmOptions options{};
            options.rank = rank;
            options.size = world_size;
            options.group_id = group_id;
            options.timeout = std::chrono::milliseconds(timeout_milliseconds);
            options.time_to_join =
                std::chrono::milliseconds(time_to_join_milliseconds);
            options.check_interrupt = RaiseKeyboardInterrupt;
            if (locator) {
              options.resolver = std::make_shared<SharedTensorResolver>(
                  *locator->get_pointer<const SharedLocator>());
            }
            const ReleasedGil released;
            auto group = std::make_shared<ProcessGroupShm>(store, options);
            // Compiled programs look up a group by its id until the process
            // exits, as with the other backends.
            ProcessGroupIdMap::GetInstance().emplace(group_id, group);
            return group;
          },
          py::arg("store"),
          py::arg("rank"),
          py::arg("world_size"),
          py::arg("group_id"),
          py::arg("timeout_milliseconds"),
          py::arg("time_to_join_milliseconds"),
          py::arg("locator"))
      .def(
          "all_gather",
          [](ProcessGroupShm& self,
             const py::sequence& out,
             const paddle::Tensor& in,
             bool sync_op) {
            const auto out_tensors = DenseTensorsOf(out);
            const phi::DenseTensor in_tensor = DenseTensorOf(in);
            const ReleasedGil released;
            return self.AllGatherIntoList(out_tensors, in_tensor, sync_op);
          },
          py::arg("out"),
          py::arg("in"),
          py::arg("sync_op"))
      .def(
          "all_gather",
          [](ProcessGroupShm& self,
             const paddle::Tensor& in,
             const paddle::Tensor& out) {
            phi::DenseTensor out_tensor = DenseTensorOf(out);
            const phi::DenseTensor in_tensor = DenseTensorOf(in);
            const ReleasedGil released;
            return self.AllGather(&out_tensor, in_tensor, /*sync_op=*/false);
          },
          py::arg("in"),
          py::arg("out"))
      .def(
          "gather",
          [](ProcessGroupShm& self,
             const paddle::Tensor& in,
             const py::sequence& out,
             int dst,
             bool sync_op,
             bool use_calc_stream) {
            const auto out_tensors = DenseTensorsOf(out);
            const phi::DenseTensor in_tensor = DenseTensorOf(in);
            const ReleasedGil released;
            return self.GatherIntoList(
                out_tensors, in_tensor, dst, sync_op, use_calc_stream);
          },
          py::arg("in"),
          py::arg("out"),
          py::arg("dst"),
          py::arg("sync_op"),
          py::arg("use_calc_stream") = false)
      .def(
          "scatter",
          [](ProcessGroupShm& self,
             const paddle::Tensor& out,
             const py::sequence& in,
             int src,
             bool sync_op) {
            const phi::DenseTensor out_tensor = DenseTensorOf(out);
            const auto in_tensors = DenseTensorsOf(in);
            const ReleasedGil released;
            return self.ScatterFromList(out_tensor, in_tensors, src, sync_op);
          },
          py::arg("out"),
          py::arg("in"),
          py::arg("src"),
          py::arg("sync_op"))
      .def(
          "scatter",
          [](ProcessGroupShm& self,
             const paddle::Tensor& in,
             const paddle::Tensor& out,
             int src) {
            phi::DenseTensor out_tensor = DenseTensorOf(out);
            const phi::DenseTensor in_tensor = DenseTensorOf(in);
            phi::distributed::ScatterOptions options;
            options.root_rank = src;
            const ReleasedGil released;
            return self.Scatter(
                &out_tensor, in_tensor, options, /*sync_op=*/false);
          },
          py::arg("in"),
          py::arg("out"),
          py::arg("src"))
      .def("leave", &ProcessGroupShm::Leave, py::call_guard<ReleasedGil>())
      .def("abort",
           &ProcessGroupShm::Abort,
           py::arg("reason"),
           py::call_guard<ReleasedGil>());
  EnforceDenseArguments(group);
}

}  // namespace pybind
}  // namespace paddle
