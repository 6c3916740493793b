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

#include "paddle/fluid/pybind/predictor_onednn.h"

#include <string>
#include <utility>

#include "paddle/phi/core/device_context.h"
#ifdef PADDLE_WITH_DNNL
#include "paddle/phi/backends/onednn/onednn_context.h"
#endif

namespace paddle {
namespace pybind {
namespace {

// The state of the thread's newest guard that is not paused.
thread_local PredictorOneDnn* in_use = nullptr;

}  // namespace

#ifdef PADDLE_WITH_DNNL

struct PredictorOneDnn::Settings {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  size_t session = phi::OneDNNContextThreadLocals::kONEDNNSessionID_Default;
  std::string input_shape;
  int shape_capacity = 1;
  phi::DataLayout layout = phi::DataLayout::kNCHW;
  std::string key_suffix;
  // Primitives belong to the engine above, not to the thread that created them.
  bool has_thread_in_key = false;
  void* executor = nullptr;
};

void PredictorOneDnn::SwapSettings() {
  auto& thread = phi::OneDNNContext::tls();
  std::swap(settings_->engine, thread.cur_engine);
  std::swap(settings_->stream, thread.cur_stream);
  std::swap(settings_->session, thread.cur_onednn_session_id);
  std::swap(settings_->input_shape, thread.cur_input_shape_str);
  std::swap(settings_->shape_capacity, thread.cur_input_shape_cache_capacity);
  std::swap(settings_->layout, thread.cur_paddle_data_layout);
  std::swap(settings_->key_suffix, thread.key_suffix);
  std::swap(settings_->has_thread_in_key, thread.key_attach_thread_id);
  std::swap(settings_->executor, thread.exec_ptr_);
  // A thread that ends clears the primitives of its executor from the process's
  // cache; all primitives if it has none.
  if (thread.exec_ptr_ == nullptr) thread.exec_ptr_ = &in_use;
}

#else

struct PredictorOneDnn::Settings {};

void PredictorOneDnn::SwapSettings() {}

#endif

PredictorOneDnn::PredictorOneDnn()
    : settings_(std::make_unique<Settings>()),
      context_(phi::NewHostContext(nullptr, nullptr)) {}

PredictorOneDnn::~PredictorOneDnn() = default;

PredictorOneDnn::Pause::Pause() : paused_(std::exchange(in_use, nullptr)) {
  if (paused_ == nullptr) return;
  context_.emplace(nullptr);
  paused_->SwapSettings();
}

PredictorOneDnn::Pause::~Pause() {
  if (paused_ == nullptr) return;
  paused_->SwapSettings();
  in_use = paused_;
}

PredictorOneDnn::Guard::Guard(PredictorOneDnn* state) : state_(state) {
  if (state_ == nullptr) return;
  context_.emplace(state_->context_.get());
  state_->SwapSettings();
  in_use = state_;
}

PredictorOneDnn::Guard::~Guard() {
  if (state_ == nullptr) return;
  state_->SwapSettings();
  in_use = nullptr;
}

}  // namespace pybind
}  // namespace paddle
