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

namespace phi {
class DeviceContext;
}  // namespace phi

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
//
// Thread-compatible: only one thread at a time may use a state.
class PredictorOneDnn {
 public:
  PredictorOneDnn();
  ~PredictorOneDnn();
  PredictorOneDnn(const PredictorOneDnn&) = delete;
  PredictorOneDnn& operator=(const PredictorOneDnn&) = delete;

  // The CPU context that has the cache. A predictor keeps it in its
  // instructions, so the state must outlive the predictor.
  phi::DeviceContext* context() const { return context_.get(); }

 private:
  // What each thread has its own instance of.
  struct PerThread;

 public:
  // While the guard exists, oneDNN operators on its thread use the state, if
  // they run on its context. Guards may be nested. Requires: the guard is
  // destroyed on the thread that created it.
  class Guard {
   public:
    explicit Guard(PredictorOneDnn* state);
    ~Guard();
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    PredictorOneDnn* const state_;
    const std::unique_ptr<const PerThread> outer_;
  };

 private:
  const std::shared_ptr<phi::DeviceContext> context_;
  std::unique_ptr<PerThread> per_thread_;
};

}  // namespace pybind
}  // namespace paddle
