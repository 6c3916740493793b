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

// Declares the parts of paddle_inference_api.h that the extension uses, because
// Paddle's wheel does not contain that header. libpaddle defines these classes
// and creates all their objects.

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace paddle {

class Tensor;

class AnalysisConfig {
 public:
  AnalysisConfig() = delete;

  // Inline in Paddle, so that libpaddle does not export them.
  // predictor_threads_module.cc defines them.
  bool use_custom_device() const;
  int custom_device_id() const;
  std::string custom_device_type() const;
};

}  // namespace paddle

namespace paddle_infer {

using Config = paddle::AnalysisConfig;

enum DataType {
  FLOAT32,
  INT64,
  INT32,
  UINT8,
  INT8,
  FLOAT16,
  BOOL,
  FLOAT64,
  BFLOAT16
};

class Tensor {
 public:
  Tensor() = delete;

  void Reshape(const std::vector<int>& shape);
  std::vector<int> shape() const;
  DataType type() const;
  template <typename T>
  void CopyFromCpu(const T* data);
  template <typename T>
  void CopyToCpu(T* data) const;

 protected:
  // The first members. There are others.
  std::string name_;
  mutable void* tensor_;
};

class Predictor {
 public:
  explicit Predictor(const Config& config);
  Predictor(const Predictor&) = delete;
  // libpaddle destroys the predictors.
  ~Predictor() {}

  std::vector<std::string> GetInputNames();
  std::vector<std::string> GetOutputNames();
  std::map<std::string, std::vector<int64_t>> GetInputTensorShape();
  std::map<std::string, DataType> GetInputTypes();
  // libpaddle has to destroy the handle.
  std::unique_ptr<Tensor> GetOutputHandle(const std::string& name);
  bool Run();
  bool Run(const std::vector<paddle::Tensor>& inputs,
           std::vector<paddle::Tensor>* outputs);
  std::unique_ptr<Predictor> Clone(void* stream = nullptr);
  void ClearIntermediateTensor();

 private:
  // Stands for the class's only member, a pointer.
  void* predictor_ = nullptr;
};

}  // namespace paddle_infer
