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

#include <chrono>
#include <memory>
#include <optional>

#include "paddle/fluid/distributed/collective/process_group_shm.h"
#include "paddle/fluid/distributed/collective/shared_tensor_resolver.h"
#include "pybind11/stl.h"

namespace py = pybind11;

namespace paddle {
namespace pybind {

using distributed::ProcessGroup;
using distributed::ProcessGroupIdMap;
using distributed::ProcessGroupShm;
using distributed::ProcessGroupShmOptions;
using distributed::SharedTensorResolver;
using memory::allocation::SharedLocator;

void BindProcessGroupShm(py::module* m) {
  py::class_<ProcessGroupShm, std::shared_ptr<ProcessGroupShm>, ProcessGroup>(
      *m, "ProcessGroupShm")
      .def_static(
          "create",
          [](const std::shared_ptr<phi::distributed::Store>& store,
             int rank,
             int world_size,
             int group_id,
             int64_t timeout_milliseconds,
             const std::optional<py::capsule>& locator) {
            ProcessGroupShmOptions options{};
            options.rank = rank;
            options.size = world_size;
            options.group_id = group_id;
            options.timeout = std::chrono::milliseconds(timeout_milliseconds);
            if (locator) {
              options.memory.resolver = std::make_shared<SharedTensorResolver>(
                  *locator->get_pointer<const SharedLocator>());
            }
            py::gil_scoped_release release;
            auto group = std::make_shared<ProcessGroupShm>(store, options);
            // Programs that were compiled find a group by its id as long as the
            // process lives, as with the other backends.
            ProcessGroupIdMap::GetInstance().emplace(group_id, group);
            return group;
          },
          py::arg("store"),
          py::arg("rank"),
          py::arg("world_size"),
          py::arg("group_id"),
          py::arg("timeout_milliseconds"),
          py::arg("locator"))
      .def("leave",
           &ProcessGroupShm::Leave,
           py::call_guard<py::gil_scoped_release>());
}

}  // namespace pybind
}  // namespace paddle
