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

#pragma once

#include <memory>
#include <optional>

#include "paddle/phi/backends/thread_contexts.h"

namespace paddle {
namespace pybind {

// oneDNN's state of one predictor: the primitives that its operators cache, the
// engine and the stream that they belong to, and the settings of Paddle's
// oneDNN operators.
//
// In Paddle 3.3.0, the process has one cache, and each thread has its own
// engine, stream and settings. So a predictor evicts primitives that another
// one is about to use, and a cached primitive may outlive its engine, which is
// destroyed when the thread ends. A predictor with its own state shares nothing
// with other predictors, and all threads that run it use the same primitives.
// This requires primitives that any thread may execute, as oneDNN has them with
// DNNL_ENABLE_CONCURRENT_EXEC.
//
// Invariant: while a Guard exists that is not paused, its thread has the
// settings of the predictor, and the thread's own are stored here.
//
// Thread-compatible: only one thread at a time may use a state.
class PredictorOneDnn {
 public:
  PredictorOneDnn();
  ~PredictorOneDnn();
  PredictorOneDnn(const PredictorOneDnn&) = delete;
  PredictorOneDnn& operator=(const PredictorOneDnn&) = delete;

  // While the guard exists, operators on the CPU that its thread runs use the
  // state. Does nothing for null, or within another guard of the state that is
  // not paused. A predictor keeps the state's CPU context in its instructions,
  // so the state must outlive the predictor's last run. Requires: guards are
  // destroyed on the thread that created them, the newest first.
  class Guard {
   public:
    explicit Guard(PredictorOneDnn* state);
    ~Guard();
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    PredictorOneDnn* const state_;  // null if the guard does nothing
    PredictorOneDnn* const outer_;
    std::optional<phi::HostContextGuard> context_;
  };

  // While the pause exists, operators on its thread do not use the state of its
  // newest guard. For code that may run other programs: they would keep the
  // state's context longer than the predictor.
  class Pause {
   public:
    Pause();
    ~Pause();
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    PredictorOneDnn* const paused_;
    std::optional<phi::HostContextGuard> context_;
  };

 private:
  // What each thread has its own instance of.
  struct Settings;

  void SwapSettings();

  // The primitives in `context_` belong to the engine in `settings_`.
  const std::unique_ptr<Settings> settings_;
  const std::shared_ptr<phi::DeviceContext> context_;
};

}  // namespace pybind
}  // namespace paddle
