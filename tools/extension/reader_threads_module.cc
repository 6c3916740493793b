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

// For a wheel: the threads of a BufferedReader use the contexts that are
// current where the reader is created, as in a patched Paddle. The reader is
// part of a prebuilt library, so this module intervenes where that library
// starts threads. _thread_contexts loads it.

#include <dlfcn.h>
#include <pybind11/pybind11.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "call_redirection.h"
#include "paddle/phi/backends/thread_contexts.h"

namespace py = pybind11;

namespace {

using State = std::unique_ptr<std::thread::_State>;
// The member function of std::thread that starts a thread.
using Start = void (*)(std::thread*, State, void (*)());
constexpr char kStart[] = "_ZNSt6thread15_M_start_threadE";
constexpr char kStartArguments[] =
    "St10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE";

// The function in libstdc++.
Start start_thread = nullptr;

using Contexts = std::unique_ptr<const phi::ThreadContexts>;

// While the calling thread creates a reader: the contexts for its threads.
thread_local const phi::ThreadContexts* contexts_of_reader = nullptr;

// What a thread that a reader has started does.
class ReaderWork final : public std::thread::_State {
 public:
  // Requires: `contexts` outlives the thread.
  ReaderWork(State work, const phi::ThreadContexts* contexts)
      : work_(std::move(work)), contexts_(contexts) {}

  void _M_run() override {
    const phi::WorkerContextsGuard guard(contexts_);
    work_->_M_run();
  }

 private:
  const State work_;
  const phi::ThreadContexts* const contexts_;
};

void StartThread(std::thread* thread, State work, void (*depend)()) {
  if (const auto* contexts = contexts_of_reader) {
    work = std::make_unique<ReaderWork>(std::move(work), contexts);
  }
  start_thread(thread, std::move(work), depend);
}

class CreatingReader {
 public:
  explicit CreatingReader(const phi::ThreadContexts* contexts) {
    contexts_of_reader = contexts;
  }
  ~CreatingReader() { contexts_of_reader = nullptr; }
  CreatingReader(const CreatingReader&) = delete;
  CreatingReader& operator=(const CreatingReader&) = delete;
};

// Calls a function of libpaddle that creates a reader.
py::object CreateReader(const py::function& create, const py::args& args) {
  Contexts contexts = phi::WorkerContexts();
  const auto* const in_use = contexts.get();
  // Before the reader exists, so that it is destroyed after the reader, whose
  // destructor joins the threads.
  py::capsule owner(in_use, [](void* pointer) {
    const Contexts dropped(static_cast<const phi::ThreadContexts*>(pointer));
  });
  contexts.release();
  const CreatingReader creating(in_use);
  py::object reader = create(*args);
  py::detail::keep_alive_impl(reader, owner);
  return reader;
}

void RedirectThreadStarts() {
  const std::string name = std::string(kStart) + kStartArguments;
  start_thread = reinterpret_cast<Start>(dlsym(RTLD_DEFAULT, name.c_str()));
  if (start_thread == nullptr) throw std::runtime_error(dlerror());
  static const std::vector<Redirection> redirections = {
      {kStart,
       kStartArguments,
       reinterpret_cast<void*>(&StartThread),
       nullptr,
       // Older versions of libstdc++ have these.
       {"St10shared_ptrINS_10_Impl_baseEE",
        "St10shared_ptrINS_10_Impl_baseEEPFvvE"}}};
  RedirectCalls(redirections, PackageFolder());
}

}  // namespace

PYBIND11_MODULE(_reader_threads, module) {
  module.doc() = "Threads of readers on the contexts of the readers' creators.";
  RedirectThreadStarts();
  module.def("create_reader", &CreateReader);
}
