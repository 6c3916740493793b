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
#include <pthread.h>
#include <pybind11/pybind11.h>

#include <memory>
#include <mutex>
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

// Whether the calling thread is creating a reader.
thread_local bool creates_reader = false;

// The contexts of threads that have ended. A context may keep a Python stream
// alive, so destroying it needs the GIL, which the thread that joins the ending
// thread may hold.
//
// Never destroyed: threads may end while the process exits.
struct EndedThreads {
  std::mutex mutex;
  std::vector<Contexts> contexts;
};
auto& ended_threads = *std::make_unique<EndedThreads>().release();

// Prevents a forked child from finding the mutex locked by another thread.
[[maybe_unused]] const int fork_handlers =
    pthread_atfork([] { ended_threads.mutex.lock(); },
                   [] { ended_threads.mutex.unlock(); },
                   [] { ended_threads.mutex.unlock(); });

void DestroyContextsOfEndedThreads() {
  std::vector<Contexts> contexts;
  const std::lock_guard<std::mutex> lock(ended_threads.mutex);
  contexts.swap(ended_threads.contexts);
}

// What a thread that a reader has started does.
class ReaderWork final : public std::thread::_State {
 public:
  explicit ReaderWork(State work) : work_(std::move(work)) {}
  ~ReaderWork() override {
    const std::lock_guard<std::mutex> lock(ended_threads.mutex);
    ended_threads.contexts.push_back(std::move(contexts_));
  }

  void _M_run() override {
    const phi::WorkerContextsGuard guard(contexts_.get());
    work_->_M_run();
  }

 private:
  Contexts contexts_ = phi::WorkerContexts();
  const State work_;
};

void StartThread(std::thread* thread, State work, void (*depend)()) {
  if (creates_reader) work = std::make_unique<ReaderWork>(std::move(work));
  start_thread(thread, std::move(work), depend);
}

class CreatingReader {
 public:
  CreatingReader() { creates_reader = true; }
  ~CreatingReader() { creates_reader = false; }
};

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
  // Calls a function of libpaddle that creates a reader.
  module.def(
      "create_reader",
      [](const py::function& create, const py::args& args) -> py::object {
        DestroyContextsOfEndedThreads();
        const CreatingReader creating;
        return create(*args);
      });
}
