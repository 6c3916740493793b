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
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "paddle/fluid/distributed/collective/process_group_shm.h"
#include "paddle/fluid/distributed/collective/shared_tensor_resolver.h"
#include "paddle/phi/core/distributed/store/store.h"
#include "paddle/phi/core/enforce.h"
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
using phi::distributed::Store;

namespace {

// A store that prefixes the keys of one group, because gloo uses the same keys
// in every group.
//
// It waits for keys until a deadline, which is `timeout` after its creation. As
// thread-safe as the underlying store.
class GroupStore : public Store {
 public:
  GroupStore(std::shared_ptr<Store> store,
             std::string prefix,
             std::chrono::milliseconds timeout)
      : store_(std::move(store)),
        prefix_(std::move(prefix)),
        timeout_(timeout),
        deadline_(std::chrono::steady_clock::now() + timeout) {}

  int64_t add(const std::string& key, int64_t value) override {
    return store_->add(prefix_ + key, value);
  }

  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    store_->set(prefix_ + key, value);
  }

  bool check(const std::string& key) override {
    return store_->check(prefix_ + key);
  }

  void wait(const std::string& key) override {
    while (!check(key)) {
      if (std::chrono::steady_clock::now() > deadline_) {
        PADDLE_THROW(common::errors::ExecutionTimeout(
            "No rank set %s%s within %d ms: another rank of the group has "
            "failed or did not arrive. Look for its error, or pass a longer "
            "timeout.",
            prefix_,
            key,
            timeout_.count()));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }

  std::vector<uint8_t> get(const std::string& key) override {
    wait(key);
    return store_->get(prefix_ + key);
  }

 private:
  const std::shared_ptr<Store> store_;
  const std::string prefix_;
  const std::chrono::milliseconds timeout_;
  const std::chrono::steady_clock::time_point deadline_;
};

}  // namespace

void BindProcessGroupShm(py::module* m) {
  // Paddle's own binding of stores has no `check`.
  m->def(
      "has_key",
      [](Store& store, const std::string& key) { return store.check(key); },
      py::arg("store"),
      py::arg("key"),
      py::call_guard<py::gil_scoped_release>());
  py::class_<GroupStore, std::shared_ptr<GroupStore>, Store>(*m, "GroupStore")
      .def(py::init([](std::shared_ptr<Store> store,
                       std::string prefix,
                       int64_t timeout_milliseconds) {
             return std::make_shared<GroupStore>(
                 std::move(store),
                 std::move(prefix),
                 std::chrono::milliseconds(timeout_milliseconds));
           }),
           py::arg("store"),
           py::arg("prefix"),
           py::arg("timeout_milliseconds"));
  py::class_<ProcessGroupShm, std::shared_ptr<ProcessGroupShm>, ProcessGroup>(
      *m, "ProcessGroupShm")
      .def_static(
          "create",
          [](const std::shared_ptr<Store>& store,
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
              options.resolver = std::make_shared<SharedTensorResolver>(
                  *locator->get_pointer<const SharedLocator>());
            }
            py::gil_scoped_release release;
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
          py::arg("locator"))
      .def("leave",
           &ProcessGroupShm::Leave,
           py::call_guard<py::gil_scoped_release>());
}

}  // namespace pybind
}  // namespace paddle
