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
// Invariant: while the newest Guard of a thread is not paused, the thread has
// the settings of the guard's predictor, and the thread's own are stored here.
// All other states have their own settings.
//
// Thread-compatible: only one thread at a time may use a state.
class PredictorOneDnn {
 public:
  PredictorOneDnn();
  ~PredictorOneDnn();
  PredictorOneDnn(const PredictorOneDnn&) = delete;
  PredictorOneDnn& operator=(const PredictorOneDnn&) = delete;

  // While the pause exists, operators on its thread do not use the state of its
  // newest guard. For code that may run other programs: they would keep the
  // state's context longer than the predictor. Requires: pauses and guards are
  // destroyed on the thread that created them, the newest first.
  class Pause {
   public:
    Pause();
    ~Pause();
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    PredictorOneDnn* const paused_;  // may be null
    std::optional<phi::HostContextGuard> context_;
  };

  // While the guard exists, operators on the CPU that its thread runs use the
  // state, or none for null. Pauses the thread's older guards. A predictor
  // keeps the state's CPU context in its instructions, so the state must
  // outlive the predictor's last run.
  class Guard {
   public:
    explicit Guard(PredictorOneDnn* state);
    ~Guard();
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    const Pause older_;
    PredictorOneDnn* const state_;  // may be null
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
