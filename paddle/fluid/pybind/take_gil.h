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

#include <Python.h>

#if defined(__GLIBCXX__)
#include <cxxabi.h>
#include <unistd.h>
#endif

namespace paddle {
namespace pybind {

#if defined(__GLIBCXX__)
// Stops the calling thread forever. Thread-safe.
[[noreturn]] inline void StopThread() {
  while (true) pause();
}
#endif

// Acquires the GIL that PyEval_SaveThread has released, as
// PyEval_RestoreThread does. After the interpreter has exited, CPython ends a
// thread that acquires the GIL: it unwinds the stack, and destructors that need
// the GIL would run. This stops the thread instead.
//
// Thread-safe. Requires: `thread` is the calling thread's state.
inline void TakeGil(PyThreadState* thread) {
#if defined(__GLIBCXX__)
  try {
    PyEval_RestoreThread(thread);
  } catch (abi::__forced_unwind&) {
    StopThread();
  }
#else
  PyEval_RestoreThread(thread);
#endif
}

// Releases the GIL while it exists. Unlike py::gil_scoped_release, it can be
// destroyed on a thread that outlives the interpreter, as daemon threads do:
// see TakeGil.
//
// Requires: the GIL; created and destroyed on the same thread.
class ReleasedGil {
 public:
  ReleasedGil() : thread_(PyEval_SaveThread()) {}
  ~ReleasedGil() { TakeGil(thread_); }
  ReleasedGil(const ReleasedGil&) = delete;
  ReleasedGil& operator=(const ReleasedGil&) = delete;

 private:
  PyThreadState* const thread_;
};

}  // namespace pybind
}  // namespace paddle
