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

#include "paddle/fluid/pybind/thread_contexts.h"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "paddle/phi/backends/thread_contexts.h"
#include "paddle/phi/core/device_context.h"
#include "paddle/phi/core/generator.h"
#include "pybind11/stl.h"
#if defined(PADDLE_WITH_CUDA) || defined(PADDLE_WITH_HIP)
#include "paddle/phi/core/cuda_stream.h"
#endif
#ifdef PADDLE_WITH_CUSTOM_DEVICE
#include "paddle/phi/backends/stream.h"
#endif

namespace py = pybind11;

namespace paddle {
namespace pybind {
namespace {

// The Python object that keeps a context alive.
struct StreamContext {
  std::shared_ptr<phi::DeviceContext> context;
};

// A context together with the Python object of its stream, which keeps the
// stream alive.
struct KeptStream {
  KeptStream(py::object stream, std::shared_ptr<phi::DeviceContext> context)
      : stream(std::move(stream)), context(std::move(context)) {}
  ~KeptStream() {
    // The last reference may be dropped by C++ code on a thread without the
    // GIL, or after the interpreter was finalized.
    if (Py_IsInitialized() == 0) {
      stream.release();
      return;
    }
    // Do not acquire the GIL if this thread has it: while Python drops a
    // thread's state, that thread must not acquire it again.
    std::optional<py::gil_scoped_acquire> gil;
    if (PyGILState_Check() == 0) gil.emplace();
    context = nullptr;
    stream = py::object();
  }
  KeptStream(const KeptStream&) = delete;
  KeptStream& operator=(const KeptStream&) = delete;

  py::object stream;
  std::shared_ptr<phi::DeviceContext> context;
};

// The Python object that keeps a context for the CPU alive.
struct HostContext {
  std::shared_ptr<phi::DeviceContext> context;
};

// Returns a Python object that owns the contexts.
py::capsule Keep(std::unique_ptr<phi::ThreadContexts> contexts) {
  py::capsule kept(contexts.get(), [](void* pointer) {
    std::unique_ptr<phi::ThreadContexts> dropped(
        static_cast<phi::ThreadContexts*>(pointer));
  });
  contexts.release();
  return kept;
}

// Returns whether the calling thread has a Python thread state, unlike a C++
// worker thread that works for another thread. Thread-safe.
bool IsPythonThread() { return PyGILState_GetThisThreadState() != nullptr; }

}  // namespace

void BindThreadContexts(py::module* m) {
  // The stream types that a context can be bound to.
  py::list stream_types;
#if defined(PADDLE_WITH_CUDA) || defined(PADDLE_WITH_HIP)
  stream_types.append(py::type::of<phi::CUDAStream>());
#endif
#ifdef PADDLE_WITH_CUSTOM_DEVICE
  stream_types.append(py::type::of<phi::stream::Stream>());
#endif
  m->attr("stream_types") = py::tuple(stream_types);

  py::class_<StreamContext> stream_context(*m, "StreamContext");
#if defined(PADDLE_WITH_CUDA) || defined(PADDLE_WITH_HIP)
  stream_context.def(py::init([](phi::CUDAStream* stream) {
                       return StreamContext{phi::NewStreamContext(stream)};
                     }),
                     py::arg("stream").none(false));
#endif
#ifdef PADDLE_WITH_CUSTOM_DEVICE
  stream_context.def(
      py::init([](std::shared_ptr<phi::stream::Stream> stream) {
        return StreamContext{phi::NewStreamContext(std::move(stream))};
      }),
      py::arg("stream").none(false));
#endif

  py::class_<HostContext>(*m, "HostContext")
      .def(py::init([](const std::optional<py::capsule>& allocator,
                       std::shared_ptr<phi::Generator> generator) {
             return HostContext{phi::NewHostContext(
                 allocator ? allocator->get_pointer<phi::Allocator>() : nullptr,
                 std::move(generator))};
           }),
           py::arg("allocator"),
           py::arg("generator"));

  // The caller keeps the passed object alive while the thread uses it.
  m->def("use_host_context", [](const HostContext* host) {
    phi::UseHostContext(host == nullptr ? nullptr : host->context.get());
  });
  // Makes the contexts of `by_place`, a dictionary of pairs of a stream and its
  // StreamContext, the calling thread's own. `owner`, a Python object that
  // lives as long as the thread's state, keeps the contexts and streams alive.
  // All of this is one call, so that an exception that another thread raises in
  // this one (PyThreadState_SetAsyncExc) cannot interrupt it.
  m->def("use_thread_contexts",
         [](const py::object& owner, const py::dict& by_place) {
           auto contexts = std::make_unique<phi::ThreadContexts>();
           for (const auto& entry : by_place) {
             const auto pair = py::cast<py::tuple>(entry.second);
             auto kept = std::make_shared<KeptStream>(
                 pair[0], pair[1].cast<StreamContext&>().context);
             phi::DeviceContext* const context = kept->context.get();
             contexts->insert_or_assign(
                 context->GetPlace(),
                 std::shared_ptr<phi::DeviceContext>(std::move(kept), context));
           }
           const auto* const used =
               contexts->empty() ? nullptr : contexts.get();
           py::object kept = py::none();
           if (used != nullptr) kept = Keep(std::move(contexts));
           // Lookups use the previous contexts until UseThreadContexts returns.
           const py::object previous = owner.attr("_in_use");
           owner.attr("_in_use") = kept;
           phi::UseThreadContexts(used);
           owner.attr("by_place") = by_place;
         });
  m->def("enforce_no_context_guard", &phi::EnforceNoContextGuard);
  m->def("thread_contexts_id", &phi::ThreadContextsId);
  m->def("become_main_thread", &phi::BecomeMainThread);
  m->def("keep_default_context", [](const StreamContext& kept) {
    phi::KeepDefaultContext(
        kept.context->GetPlace(), kept.context, &IsPythonThread);
  });
  m->def("with_process_contexts",
         [](const py::function& function,
            const py::args& args,
            const py::kwargs& kwargs) -> py::object {
           const phi::OrderedProcessContextsGuard guard;
           return function(*args, **kwargs);
         });
  m->def("is_capturing", &phi::IsCapturing);
  m->def("keep_forever", [](const py::object& kept) { kept.inc_ref(); });
  m->def("places_on_other_streams", &phi::PlacesOnOtherStreams);
}

}  // namespace pybind
}  // namespace paddle
