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

#include "paddle/phi/backends/thread_contexts.h"
#include "paddle/phi/core/device_context.h"
#ifdef PADDLE_WITH_DNNL
#include "paddle/phi/backends/onednn/onednn_context.h"
#endif

namespace paddle {
namespace pybind {

#ifdef PADDLE_WITH_DNNL

struct PredictorOneDnn::PerThread {
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

  PerThread() = default;

  // Copies the calling thread's values.
  template <typename ThreadLocals>
  explicit PerThread(const ThreadLocals& thread)
      : engine(thread.cur_engine),
        stream(thread.cur_stream),
        session(thread.cur_onednn_session_id),
        input_shape(thread.cur_input_shape_str),
        shape_capacity(thread.cur_input_shape_cache_capacity),
        layout(thread.cur_paddle_data_layout),
        key_suffix(thread.key_suffix),
        has_thread_in_key(thread.key_attach_thread_id),
        executor(thread.exec_ptr_) {}

  void Use() const {
    auto& thread = phi::OneDNNContext::tls();
    thread.cur_engine = engine;
    thread.cur_stream = stream;
    thread.cur_onednn_session_id = session;
    thread.cur_input_shape_str = input_shape;
    thread.cur_input_shape_cache_capacity = shape_capacity;
    thread.cur_paddle_data_layout = layout;
    thread.key_suffix = key_suffix;
    thread.key_attach_thread_id = has_thread_in_key;
    thread.exec_ptr_ = executor;
  }

  static std::unique_ptr<PerThread> Current() {
    return std::make_unique<PerThread>(phi::OneDNNContext::tls());
  }
};

#else

struct PredictorOneDnn::PerThread {
  void Use() const {}
  static std::unique_ptr<PerThread> Current() {
    return std::make_unique<PerThread>();
  }
};

#endif

PredictorOneDnn::PredictorOneDnn()
    : context_(phi::NewHostContext(nullptr, nullptr)),
      per_thread_(std::make_unique<PerThread>()) {}

PredictorOneDnn::~PredictorOneDnn() = default;

PredictorOneDnn::Guard::Guard(PredictorOneDnn* state)
    : state_(state), outer_(PerThread::Current()) {
  state_->per_thread_->Use();
}

PredictorOneDnn::Guard::~Guard() {
  state_->per_thread_ = PerThread::Current();
  outer_->Use();
}

}  // namespace pybind
}  // namespace paddle
