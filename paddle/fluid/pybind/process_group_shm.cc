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
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "paddle/fluid/distributed/collective/process_group_shm.h"
#include "paddle/fluid/distributed/collective/shared_tensor_resolver.h"
#include "paddle/fluid/pybind/take_gil.h"
#include "paddle/phi/core/distributed/shared_memory/collective_error.h"
#include "paddle/phi/core/distributed/shared_memory/group_memory.h"
#include "paddle/phi/core/distributed/store/store.h"
#include "paddle/phi/core/enforce.h"
#include "paddle/phi/core/memory/allocation/shared_memory/process_status.h"
#include "paddle/utils/pybind.h"
#include "pybind11/chrono.h"
#include "pybind11/stl.h"

namespace py = pybind11;

namespace paddle {
namespace pybind {

using distributed::ProcessGroup;
using distributed::ProcessGroupIdMap;
using distributed::ProcessGroupShm;
using distributed::ProcessGroupShmOptions;
using distributed::SharedTensorResolver;
using distributed::ShmTask;
using memory::allocation::ProcessStat;
using memory::allocation::SharedLocator;
using phi::distributed::CollectiveError;
using phi::distributed::Store;

namespace {

// A process and when it started, in clock ticks since the machine booted: a
// later process may have the same ID. The ID is 0 if the process is unknown.
//
// The kernel shifts the time by an offset of the reader's time namespace, so
// only processes of one time namespace may compare it.
struct ProcessStart {
  uint32_t process = 0;
  uint64_t ticks = 0;
};

// Returns whether /proc shows the processes of this process's PID namespace.
bool SeesItsProcesses() {
  char text[16] = {};
  return readlink("/proc/self", text, sizeof(text) - 1) > 0 &&
         std::to_string(getpid()) == text;
}

ProcessStart StartOfThisProcess() {
  if (!SeesItsProcesses()) return {};
  const std::optional<ProcessStat> stat =
      memory::allocation::ReadProcessStat("/proc/self");
  if (!stat || stat->start == 0) return {};
  return {static_cast<uint32_t>(getpid()), stat->start};
}

// Returns whether a process has ended, or is ending; false if that is unknown.
bool HasEnded(const ProcessStart& start) {
  if (start.process == 0) return false;
  if (memory::allocation::HasEnded(start.process)) return true;
  if (!SeesItsProcesses()) return false;
  const std::optional<ProcessStat> stat = memory::allocation::ReadProcessStat(
      "/proc/" + std::to_string(start.process));
  if (!stat) return false;
  if (stat->start != start.ticks) return true;
  return stat->IsExiting() && phi::distributed::IsGoneOrExiting(start.process);
}

// A rank and its process.
using WatchedRank = std::tuple<int, uint32_t, uint64_t>;

// A store that prefixes the keys of one group, because gloo uses the same keys
// in every group.
//
// It waits for keys until a deadline, which is `timeout` after its creation, or
// until it finds that a watched rank has died. As thread-safe as the underlying
// store.
class GroupStore : public Store {
 public:
  GroupStore(std::shared_ptr<Store> store,
             std::string prefix,
             std::chrono::milliseconds timeout)
      : store_(std::move(store)),
        prefix_(std::move(prefix)),
        timeout_(timeout),
        deadline_(std::chrono::steady_clock::now() + timeout) {}

  // Watches these ranks, and no others, from now on. They must be in processes
  // of this machine.
  void Watch(std::vector<WatchedRank> ranks) {
    std::lock_guard<std::mutex> lock(mutex_);
    ranks_ = std::move(ranks);
  }

  // Throws CollectiveError if one of the watched ranks has died. Called after
  // an error, whose cause may be a death that is not visible yet: the
  // connections and the memory of a process may be closed before it ends. So
  // waits for a second if no watched rank has died.
  void AwaitDeath() {
    constexpr int kTries = 100;
    constexpr std::chrono::milliseconds kPause{10};
    for (int i = 0; i < kTries && ThrowIfDied(); ++i) {
      std::this_thread::sleep_for(kPause);
    }
  }

  int64_t add(const std::string& key, int64_t value) override {
    return NameDead([&] { return store_->add(prefix_ + key, value); });
  }

  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    NameDead([&] { store_->set(prefix_ + key, value); });
  }

  // If the key is not set, throws CollectiveError if it finds that a watched
  // rank has died. A call looks at one of the ranks, which takes about 10 us,
  // and the next call at the next one.
  bool check(const std::string& key) override {
    const bool is_set = NameDead([&] { return store_->check(prefix_ + key); });
    if (is_set) return true;
    std::lock_guard<std::mutex> lock(mutex_);
    if (!ranks_.empty()) ThrowIfDied(ranks_[next_++ % ranks_.size()]);
    return false;
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
    return NameDead([&] { return store_->get(prefix_ + key); });
  }

 private:
  static void ThrowIfDied(const WatchedRank& watched) {
    const auto [rank, process, ticks] = watched;
    if (!HasEnded({process, ticks})) return;
    throw CollectiveError(CollectiveError::Kind::kDied,
                          rank,
                          "Rank " + std::to_string(rank) + " (process " +
                              std::to_string(process) +
                              ") has died: it was killed, or it ended before "
                              "all ranks had joined the group. See its output, "
                              "and start all ranks again.");
  }

  // Looks at all watched ranks. Returns false if there are none.
  bool ThrowIfDied() {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const WatchedRank& rank : ranks_) ThrowIfDied(rank);
    return !ranks_.empty();
  }

  // Calls the underlying store, whose own errors name no rank. If the call
  // fails, throws CollectiveError.
  template <typename Call>
  auto NameDead(const Call& call) -> decltype(call()) {
    try {
      return call();
    } catch (const std::exception& error) {
      AwaitDeath();
      throw CollectiveError(
          CollectiveError::Kind::kUnavailable,
          -1,
          "Cannot use the store through which the ranks of a group find each "
          "other. The process that has it, usually rank 0, may have died: see "
          "its output. " +
              std::string(error.what()));
    }
  }

  const std::shared_ptr<Store> store_;
  const std::string prefix_;
  const std::chrono::milliseconds timeout_;
  const std::chrono::steady_clock::time_point deadline_;
  std::mutex mutex_;
  std::vector<WatchedRank> ranks_;  // guarded by mutex_
  size_t next_ = 0;                 // guarded by mutex_
};

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

phi::DenseTensor DenseTensorOf(const paddle::Tensor& tensor) {
  const auto dense = std::dynamic_pointer_cast<phi::DenseTensor>(tensor.impl());
  PADDLE_ENFORCE_NOT_NULL(dense,
                          common::errors::InvalidArgument(
                              "The backend shm got a tensor that is not dense, "
                              "or that has no memory yet. Pass dense tensors, "
                              "for example paddle.empty(shape)."));
  return *dense;
}

std::vector<phi::DenseTensor> DenseTensorsOf(const py::sequence& list) {
  std::vector<phi::DenseTensor> tensors;
  for (const auto& tensor : list.cast<std::vector<paddle::Tensor>>()) {
    tensors.push_back(DenseTensorOf(tensor));
  }
  return tensors;
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
    const ProcessStart start = StartOfThisProcess();
    return std::make_pair(start.process, start.ticks);
  });
  m->def("has_ended", [](uint32_t process, uint64_t ticks) {
    return HasEnded({process, ticks});
  });
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
           py::arg("timeout_milliseconds"))
      .def("watch", &GroupStore::Watch)
      .def("raise_if_died",
           &GroupStore::AwaitDeath,
           py::call_guard<ReleasedGil>());
  // Paddle's own binding of `wait` rounds timeouts down to milliseconds, and
  // zero means no timeout.
  py::class_<ShmTask, std::shared_ptr<ShmTask>, ProcessGroup::Task>(*m,
                                                                    "ShmTask")
      .def("wait",
           &ShmTask::WaitFor,
           py::arg("timeout") = ShmTask::Seconds::zero(),
           py::call_guard<ReleasedGil>());
  py::class_<ProcessGroupShm, std::shared_ptr<ProcessGroupShm>, ProcessGroup>(
      *m, "ProcessGroupShm")
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
      .def("leave", &ProcessGroupShm::Leave, py::call_guard<ReleasedGil>());
}

}  // namespace pybind
}  // namespace paddle
