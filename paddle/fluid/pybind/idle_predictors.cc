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

#include "paddle/fluid/pybind/idle_predictors.h"

#include <pythread.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>
#include <new>
#include <optional>
#include <utility>

#include "paddle/fluid/pybind/work_without_gil.h"
#include "pybind11/stl.h"

namespace py = pybind11;

namespace paddle {
namespace pybind {
namespace {

// A pool's predictors that no thread has taken, by number.
//
// This is C++ so that no predictor is lost: a KeyboardInterrupt may occur
// between two steps of Python code, but not between two steps of C++. The GIL
// protects everything, so there is no lock that a fork could leave locked.
class IdlePredictors {
 public:
  struct Predictor {
    int number;
    bool has_failed;
  };

  explicit IdlePredictors(int size) : size_(size) {
    for (int number = 0; number < size; ++number) {
      idle_.push_back({number, false});
    }
  }
  IdlePredictors(const IdlePredictors&) = delete;
  IdlePredictors& operator=(const IdlePredictors&) = delete;

  // Returns nullopt if no predictor became idle within `timeout` seconds, or if
  // none is left. Without a timeout, waits without a limit.
  std::optional<Predictor> Take(std::optional<double> timeout);

  void Give(Predictor predictor) {
    ResetInChild();
    if (!waiters_.empty()) {
      Waiter* const waiter = waiters_.front();
      waiters_.pop_front();
      waiter->given = predictor;
      waiter->Release();
    } else if (predictor.has_failed) {
      idle_.push_back(predictor);
    } else {
      // Reuse the most recent one first: it may still be in the CPU's caches.
      idle_.push_front(predictor);
    }
  }

  // Removes a predictor from the pool. Returns nullopt if a thread has taken
  // it, and otherwise whether its last run failed, again for each later call.
  std::optional<bool> Remove(int number) {
    ResetInChild();
    const auto is_wanted = [number](const Predictor& predictor) {
      return predictor.number == number;
    };
    const auto idle = std::find_if(idle_.begin(), idle_.end(), is_wanted);
    if (idle != idle_.end()) {
      removed_.push_back(*idle);
      idle_.erase(idle);
      --size_;
    }
    const auto found =
        std::find_if(removed_.begin(), removed_.end(), is_wanted);
    if (found == removed_.end()) return std::nullopt;
    return found->has_failed;
  }

  // Returns the number of predictors, idle or taken.
  int size() {
    ResetInChild();
    return size_;
  }
  // Returns the process to which the currently taken predictors belong.
  pid_t process() const { return process_; }

 private:
  // A thread that waits until it is released, once. Requires: the GIL.
  class Waiter {
   public:
    Waiter() : lock_(PyThread_allocate_lock()) {
      if (lock_ == nullptr) throw std::bad_alloc();
      PyThread_acquire_lock(lock_, NOWAIT_LOCK);
    }
    Waiter(const Waiter&) = delete;
    Waiter& operator=(const Waiter&) = delete;
    ~Waiter() { PyThread_free_lock(lock_); }

    // Negative: without a limit. A signal also ends the wait.
    PyLockStatus Wait(PY_TIMEOUT_T microseconds) {
      return WorkWithoutGil::Wait(
          [&] { return PyThread_acquire_lock_timed(lock_, microseconds, 1); });
    }
    void Release() { PyThread_release_lock(lock_); }

    std::optional<Predictor> given;

   private:
    const PyThread_type_lock lock_;
  };

  // In a forked child, the parent's threads cannot return the predictors that
  // they have taken.
  void ResetInChild() {
    if (process_ == getpid()) return;
    process_ = getpid();
    waiters_.clear();
    size_ = static_cast<int>(idle_.size());
  }

  std::deque<Predictor> idle_;
  std::deque<Predictor> removed_;
  std::deque<Waiter*> waiters_;
  int size_;
  pid_t process_ = getpid();
};

// Returns the remaining microseconds, or a negative value for no limit.
PY_TIMEOUT_T TimeLeft(std::optional<double> timeout,
                      std::chrono::steady_clock::time_point begin) {
  constexpr double kCentury = 3e9;
  if (!timeout || *timeout > kCentury) return -1;
  const std::chrono::duration<double> waited =
      std::chrono::steady_clock::now() - begin;
  return static_cast<PY_TIMEOUT_T>(1e6 *
                                   std::max(0., *timeout - waited.count()));
}

std::optional<IdlePredictors::Predictor> IdlePredictors::Take(
    std::optional<double> timeout) {
  ResetInChild();
  if (!idle_.empty()) {
    const Predictor predictor = idle_.front();
    idle_.pop_front();
    return predictor;
  }
  if (size_ == 0) return std::nullopt;
  Waiter waiter;
  waiters_.push_back(&waiter);
  const auto begin = std::chrono::steady_clock::now();
  PyLockStatus status = PY_LOCK_INTR;
  while (status == PY_LOCK_INTR && !PyErr_Occurred()) {
    status = waiter.Wait(TimeLeft(timeout, begin));
    if (status == PY_LOCK_INTR) PyErr_CheckSignals();
  }
  const auto found = std::find(waiters_.begin(), waiters_.end(), &waiter);
  if (found != waiters_.end()) waiters_.erase(found);
  if (PyErr_Occurred()) {
    if (waiter.given) Give(*waiter.given);
    throw py::error_already_set();
  }
  return waiter.given;
}

// A predictor that one thread has taken. It is returned when the lease is
// released or destroyed.
class Lease {
 public:
  Lease(std::shared_ptr<IdlePredictors> from,
        IdlePredictors::Predictor predictor)
      : predictor(predictor),
        process_(from->process()),
        from_(std::move(from)) {}
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  ~Lease() { Release(); }

  void Release() {
    const auto from = std::move(from_);
    // A forked child does not return its parent's predictor.
    if (from && process_ == getpid()) from->Give(predictor);
  }

  IdlePredictors::Predictor predictor;

 private:
  const pid_t process_;
  std::shared_ptr<IdlePredictors> from_;
};

}  // namespace

void BindIdlePredictors(py::module* m) {
  py::class_<Lease>(*m, "Lease")
      .def_property_readonly(
          "number", [](const Lease& self) { return self.predictor.number; })
      .def_property(
          "has_failed",
          [](const Lease& self) { return self.predictor.has_failed; },
          [](Lease& self, bool value) { self.predictor.has_failed = value; })
      .def("release", &Lease::Release);
  py::class_<IdlePredictors, std::shared_ptr<IdlePredictors>>(*m,
                                                              "IdlePredictors")
      .def(py::init<int>())
      .def("take",
           [](const std::shared_ptr<IdlePredictors>& self,
              std::optional<double> timeout) -> std::unique_ptr<Lease> {
             const auto predictor = self->Take(timeout);
             return predictor ? std::make_unique<Lease>(self, *predictor)
                              : nullptr;
           })
      .def("remove", &IdlePredictors::Remove)
      .def_property_readonly("size", &IdlePredictors::size);
}

}  // namespace pybind
}  // namespace paddle
