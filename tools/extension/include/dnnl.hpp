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

// Declares the parts of oneDNN's dnnl.hpp that the extension and Paddle's
// headers use, because a wheel does not contain the headers that its dnnl.hpp
// includes. The classes have the layout of oneDNN 3: a shared pointer to an
// object of the C library, which libpaddle has loaded.

#pragma once

#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>

extern "C" {
struct dnnl_engine;
struct dnnl_stream;
struct dnnl_memory_desc;
int dnnl_engine_create(dnnl_engine** engine, int kind, size_t index);
int dnnl_engine_destroy(dnnl_engine* engine);
int dnnl_stream_create(dnnl_stream** stream,
                       dnnl_engine* engine,
                       unsigned flags);
int dnnl_stream_destroy(dnnl_stream* stream);
}

namespace dnnl {

template <typename Object>
class handle {
 public:
  Object* get() const { return object_.get(); }

 protected:
  // Calls a function of the C library, which sets its first argument.
  template <typename Create, typename... Arguments>
  handle(int (*destroy)(Object*), Create create, Arguments... arguments) {
    Object* object = nullptr;
    if (const int status = create(&object, arguments...)) {
      throw std::runtime_error("oneDNN failed with status " +
                               std::to_string(status));
    }
    object_.reset(object, destroy);
  }

 private:
  std::shared_ptr<Object> object_;
};

struct engine : handle<dnnl_engine> {
  enum class kind { cpu = 1 };
  engine(kind of, size_t index)
      : handle(&dnnl_engine_destroy,
               &dnnl_engine_create,
               static_cast<int>(of),
               index) {}
};

struct stream : handle<dnnl_stream> {
  explicit stream(const engine& of)
      : handle(&dnnl_stream_destroy,
               &dnnl_stream_create,
               of.get(),
               /*flags: in order*/ 1U) {}
};

// Paddle's headers mention these; the extension does not use them.
struct memory {
  enum class data_type { undef = 0 };
  enum class format_tag { undef = 0 };
  struct desc {
    std::shared_ptr<dnnl_memory_desc> object;
  };
};

}  // namespace dnnl
