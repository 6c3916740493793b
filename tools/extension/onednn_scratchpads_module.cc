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

// Makes the oneDNN library of a wheel execute primitives with scratchpads of
// the executing thread, in place of those of the thread that created the
// primitive. So any thread may execute and destroy a primitive, as if oneDNN
// had been built with DNNL_ENABLE_CONCURRENT_EXEC.
//
// By default, some primitives (recurrent layers, convolutions by GEMM) share
// one scratchpad per thread. Its memory and its reference count are
// thread-local, so such a primitive crashes on a thread that has created none,
// and frees other primitives' scratchpad when another thread destroys it.
//
// Only Paddle's own calls are redirected. Attributes that existed before keep
// their mode, and so do oneDNN's default attributes, which other libraries of
// the process share: only gradients of convolutions use both them and the
// thread's scratchpad, and predictors compute no gradients.
//
// Idea: oneDNN's developer guide, "Primitive attributes: scratchpad".

#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "call_redirection.h"

// The parts of oneDNN's interface that are used here, because a wheel does
// not contain the headers that its dnnl.h includes.
extern "C" {

struct dnnl_engine;
struct dnnl_memory;
struct dnnl_memory_desc;
struct dnnl_primitive;
struct dnnl_primitive_attr;
struct dnnl_primitive_desc;
struct dnnl_stream;

struct dnnl_exec_arg_t {
  int arg;
  dnnl_memory* memory;
};

int dnnl_primitive_attr_create(dnnl_primitive_attr** attr);
int dnnl_primitive_attr_set_scratchpad_mode(dnnl_primitive_attr* attr,
                                            int mode);
int dnnl_primitive_execute(const dnnl_primitive* primitive,
                           dnnl_stream* stream,
                           int nargs,
                           const dnnl_exec_arg_t* args);
int dnnl_primitive_get_primitive_desc(const dnnl_primitive* primitive,
                                      const dnnl_primitive_desc** desc);
const dnnl_memory_desc* dnnl_primitive_desc_query_md(
    const dnnl_primitive_desc* desc, int what, int index);
size_t dnnl_memory_desc_get_size(const dnnl_memory_desc* desc);
int dnnl_stream_get_engine(const dnnl_stream* stream, dnnl_engine** engine);
int dnnl_memory_create(dnnl_memory** memory,
                       const dnnl_memory_desc* desc,
                       dnnl_engine* engine,
                       void* handle);
int dnnl_memory_destroy(dnnl_memory* memory);

// An inline function of dnnl.hpp, which libphi_core exports.
const void* DefaultAttributes() asm(
    "_ZN4dnnl19primitive_desc_base12default_attrEv");

}  // extern "C"

namespace {

constexpr int kSuccess = 0;
constexpr int kOutOfMemory = 1;
constexpr int kScratchpadModeUser = 1;
constexpr int kQueryScratchpad = 136;
constexpr int kScratchpadArgument = 80;

// Memory of one thread, which grows to the largest size asked for. Operators on
// the CPU are finished when a call returns, so the next one may use the memory.
class Scratchpad {
 public:
  // Returns null if there is no memory.
  void* OfSize(size_t size) {
    if (size > size_) {
      constexpr size_t kPage = 4096;
      size_ = 0;
      memory_.reset();
      memory_.reset(
          std::aligned_alloc(kPage, (size + kPage - 1) / kPage * kPage));
      if (memory_ != nullptr) size_ = size;
    }
    return memory_.get();
  }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };

  std::unique_ptr<void, Free> memory_;
  size_t size_ = 0;
};

thread_local Scratchpad this_threads_scratchpad;

struct DestroyMemory {
  void operator()(dnnl_memory* memory) const { dnnl_memory_destroy(memory); }
};

int CreateAttributes(dnnl_primitive_attr** attributes) {
  const int status = dnnl_primitive_attr_create(attributes);
  return status == kSuccess ? dnnl_primitive_attr_set_scratchpad_mode(
                                  *attributes, kScratchpadModeUser)
                            : status;
}

int Execute(const dnnl_primitive* primitive,
            dnnl_stream* stream,
            int number,
            const dnnl_exec_arg_t* arguments) {
  const auto* const end = arguments + number;
  const bool has_scratchpad = std::any_of(arguments, end, [](const auto& one) {
    return one.arg == kScratchpadArgument;
  });
  if (has_scratchpad) {
    return dnnl_primitive_execute(primitive, stream, number, arguments);
  }
  const dnnl_primitive_desc* desc = nullptr;
  if (const int status = dnnl_primitive_get_primitive_desc(primitive, &desc)) {
    return status;
  }
  const auto* const scratchpad_desc =
      dnnl_primitive_desc_query_md(desc, kQueryScratchpad, 0);
  const size_t size = dnnl_memory_desc_get_size(scratchpad_desc);
  if (size == 0) {
    return dnnl_primitive_execute(primitive, stream, number, arguments);
  }
  void* const memory = this_threads_scratchpad.OfSize(size);
  if (memory == nullptr) return kOutOfMemory;
  dnnl_engine* engine = nullptr;
  if (const int status = dnnl_stream_get_engine(stream, &engine)) return status;
  dnnl_memory* created = nullptr;
  if (const int status =
          dnnl_memory_create(&created, scratchpad_desc, engine, memory)) {
    return status;
  }
  const std::unique_ptr<dnnl_memory, DestroyMemory> scratchpad(created);
  std::vector<dnnl_exec_arg_t> all(arguments, end);
  all.push_back({kScratchpadArgument, created});
  return dnnl_primitive_execute(
      primitive, stream, static_cast<int>(all.size()), all.data());
}

}  // namespace

PYBIND11_MODULE(_onednn_scratchpads, module) {
  module.doc() = "Scratchpads of the executing thread for oneDNN.";
  // Creates them, before attributes get another mode.
  DefaultAttributes();
  // In this order: primitives without a scratchpad must not be executed by
  // oneDNN's function.
  static const std::vector<Redirection> redirections = {
      {"dnnl_primitive_execute",
       "",
       reinterpret_cast<void*>(&Execute),
       nullptr,
       {},
       /*called_where_defined=*/false},
      {"dnnl_primitive_attr_create",
       "",
       reinterpret_cast<void*>(&CreateAttributes),
       nullptr,
       {},
       /*called_where_defined=*/false}};
  RedirectCalls(redirections, PackageFolder());
}
