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

#include "paddle/fluid/pybind/shared_storage.h"

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "paddle/common/flags.h"
#include "paddle/fluid/pybind/take_gil.h"
#include "paddle/phi/core/enforce.h"
#include "paddle/phi/core/memory/allocation/shared_memory/cuda_ipc_heap.h"
#include "paddle/phi/core/memory/allocation/shared_memory/cuda_ipc_storage.h"
#include "paddle/phi/core/memory/allocation/shared_memory/random_bits.h"
#include "paddle/phi/core/memory/allocation/shared_memory/shared_handle.h"
#include "paddle/phi/core/memory/allocation/shared_memory/shared_heap.h"
#include "paddle/phi/core/memory/allocation/shared_memory/shared_storage.h"
#include "paddle/phi/core/sparse_coo_tensor.h"
#include "paddle/utils/pybind.h"
#include "pybind11/numpy.h"
#include "pybind11/stl.h"

namespace py = pybind11;

COMMON_DECLARE_bool(dataloader_use_file_descriptor);

namespace paddle {
namespace pybind {

namespace {

using memory::allocation::CudaIPCDriver;
using memory::allocation::CudaIPCHeap;
using memory::allocation::CudaStreamOf;
using memory::allocation::EnforceHasSize;
using memory::allocation::IsInSharedMemory;
using memory::allocation::IsOnHost;
using memory::allocation::MessageLife;
using memory::allocation::MoveIntoSharedMemory;
using memory::allocation::RaisingPaddleErrors;
using memory::allocation::RebuildDenseTensor;
using memory::allocation::RebuildViews;
using memory::allocation::ShareCudaTensor;
using memory::allocation::SharedAllocator;
using memory::allocation::ShareDenseTensor;
using memory::allocation::SharedHeap;
using memory::allocation::SharedView;
using memory::allocation::SharingStrategy;

// For smaller tensors, reacquiring the GIL costs more than the copy.
constexpr size_t kCopyWithoutGil = size_t{1} << 20;

// Wraps the Python function that returns a device's current stream. The result
// must not outlive it, and needs the GIL.
CudaStreamOf StreamOf(const py::function& stream_of) {
  return [&stream_of](int device) {
    return reinterpret_cast<void*>(stream_of(device).cast<uintptr_t>());
  };
}

bool HasGil() {
  // PyGILState_Check always returns 1 once there has been a subinterpreter.
#if PY_VERSION_HEX >= 0x030D0000
  PyThreadState* current = PyThreadState_GetUnchecked();
#else
  PyThreadState* current = _PyThreadState_UncheckedGet();
#endif
  return Py_IsInitialized() && current != nullptr &&
         current == PyGILState_GetThisThreadState();
}

bool IsFinalizing() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing();
#else
  return _Py_IsFinalizing();
#endif
}

// Runs a call that may wait for a device, without the GIL: the device may wait
// for work that another Python thread has not submitted yet. Thread-safe, with
// or without the GIL.
void WaitWithoutGil(const std::function<void()>& wait) {
  if (!HasGil() || IsFinalizing()) return wait();
  const ReleasedGil released;
  wait();
}

// Raises the exception of a signal handler, such as KeyboardInterrupt.
void RaisePendingSignal() {
  if (HasGil() && PyErr_CheckSignals() != 0) throw py::error_already_set();
}

// Runs a call that may copy the storage of a tensor, without the GIL if the
// storage is large. Requires: the calling thread holds the GIL.
template <typename Call>
void WithoutGilIfLarge(const phi::DenseTensor& tensor, const Call& call) {
  std::optional<ReleasedGil> released;
  if (tensor.Holder() && tensor.Holder()->size() >= kCopyWithoutGil) {
    released.emplace();
  }
  call();
}

// `tensor` is a copy, since other threads run while the GIL is released.
py::bytes ShareOnHost(phi::DenseTensor tensor) {
  std::string handle;
  WithoutGilIfLarge(tensor, [&] {
    handle = ShareDenseTensor(std::move(tensor), CurrentSharingStrategy());
  });
  return py::bytes(handle);
}

// Returns the handle of a tensor, or None if it must be sent in another way.
// `tensor` is a copy, since other threads may run while Python looks up the
// stream.
py::object Share(phi::DenseTensor tensor, const py::function& stream_of) {
  if (!tensor.Holder() || IsOnHost(tensor.place())) {
    return ShareOnHost(std::move(tensor));
  }
  if (!phi::is_gpu_place(tensor.place())) return py::none();
  auto number =
      stream_of(tensor.place().GetDeviceId()).cast<std::optional<uintptr_t>>();
  std::optional<CudaIPCDriver::Stream> stream;
  if (number) stream = reinterpret_cast<void*>(*number);  // NOLINT
  std::optional<std::string> handle =
      ShareCudaTensor(std::move(tensor), CurrentSharingStrategy(), stream);
  if (!handle) return py::none();
  return py::bytes(*handle);
}

const phi::DenseTensor& DenseTensorOf(const paddle::Tensor& tensor) {
  static const phi::DenseTensor uninitialized;
  if (!tensor.impl()) return uninitialized;
  auto* dense = dynamic_cast<phi::DenseTensor*>(tensor.impl().get());
  PADDLE_ENFORCE_NOT_NULL(
      dense,
      common::errors::Unimplemented(
          "Only dense tensors can be sent to another process, but received "
          "another kind. Send the dense tensors that it consists of."));
  return *dense;
}

// Creates a Python tensor whose name is its kind and a number.
py::object ToPython(phi::DenseTensor dense, const char* kind) {
  paddle::Tensor tensor(std::make_shared<phi::DenseTensor>(std::move(dense)));
  // Optimizers and to_static identify tensors by name. Relaxed, because the
  // number only has to be unique.
  static std::atomic<uint64_t> count{0};
  tensor.set_name(
      kind + std::to_string(count.fetch_add(1, std::memory_order_relaxed)));
  return py::reinterpret_steal<py::object>(ToPyObject(tensor));
}

// Returns an uninitialized tensor in shared memory.
phi::DenseTensor Empty(const std::vector<int64_t>& shape,
                       phi::DataType dtype,
                       SharingStrategy strategy) {
  phi::DenseTensorMeta meta(dtype, common::make_ddim(shape));
  EnforceHasSize(meta);
  return phi::DenseTensor(SharedAllocator(strategy), meta);
}

// Returns the bytes of a tensor. The array and its views keep the storage
// alive.
py::array_t<uint8_t> ArrayOf(const phi::DenseTensor& tensor) {
  PADDLE_ENFORCE_EQ(
      IsOnHost(tensor.place()) && tensor.meta().is_contiguous(),
      true,
      common::errors::InvalidArgument(
          "The tensor must be contiguous and in host memory, but it is on %s "
          "with strides [%s]. Pass tensor.cpu().contiguous().",
          tensor.place(),
          tensor.strides()));
  using Holder = std::shared_ptr<phi::Allocation>;
  auto holder = std::make_unique<Holder>(tensor.Holder());
  py::capsule kept(holder.get(), [](void* pointer) {
    std::unique_ptr<Holder> dropped(static_cast<Holder*>(pointer));
  });
  holder.release();
  return py::array_t<uint8_t>(tensor.numel() * phi::SizeOf(tensor.dtype()),
                              static_cast<const uint8_t*>(tensor.data()),
                              kept);
}

// The name of the capsules that KeepAlive makes.
constexpr const char* kImplCapsule = "paddle.TensorImpl";

// Keeps the implementation of a Tensor alive as long as the Python object
// `dense`, which refers to it, as the result of get_tensor does.
//
// Registers as a side effect in pybind11's internal list of patients. This is
// the list that py::keep_alive uses, but here per object and not per binding.
// Searches the list first, so that a second call adds nothing. The list may
// have capsules of other code, which have other names.
//
// This needs no change to Paddle's binding of get_tensor; alternatively,
// get_tensor could return a DenseTensor that owns a shared_ptr of the Tensor's
// implementation.
// Requires: the calling thread holds the GIL.
void KeepAlive(py::handle dense, const paddle::Tensor& tensor) {
  using Impl = std::shared_ptr<phi::TensorBase>;
  auto& patients = py::detail::get_internals().patients;
  auto kept = patients.find(dense.ptr());
  if (kept != patients.end()) {
    for (PyObject* patient : kept->second) {
      if (PyCapsule_IsValid(patient, kImplCapsule) &&
          *static_cast<Impl*>(PyCapsule_GetPointer(patient, kImplCapsule)) ==
              tensor.impl()) {
        return;
      }
    }
  }
  auto impl = std::make_unique<Impl>(tensor.impl());
  py::capsule capsule(impl.get(), kImplCapsule, [](void* pointer) {
    std::unique_ptr<Impl> dropped(static_cast<Impl*>(pointer));
  });
  impl.release();
  py::detail::keep_alive_impl(dense, capsule);
}

}  // namespace

SharingStrategy CurrentSharingStrategy() {
  return FLAGS_dataloader_use_file_descriptor ? SharingStrategy::kFileDescriptor
                                              : SharingStrategy::kFileSystem;
}

void BindSharedStorage(py::module* m) {
  // Importing Paddle runs this function: it must not create the heaps. Python
  // calls `join` before any other function that uses the heap of GPU memory.
  m->def("share_tensor",
         [](const paddle::Tensor& tensor, const py::function& stream_of) {
           return Share(DenseTensorOf(tensor), stream_of);
         });
  // The message of this handle ends with this process, if it owns the memory.
  m->def("share_while_alive", [](const paddle::Tensor& tensor) {
    return py::bytes(ShareDenseTensor(DenseTensorOf(tensor),
                                      CurrentSharingStrategy(),
                                      MessageLife::kUntilOwnerEnds));
  });
  m->def("share_dense_tensor",
         [](const phi::DenseTensor& tensor, const py::function& stream_of) {
           return Share(tensor, stream_of);
         });
  m->def("move", [](const paddle::Tensor& tensor, bool trim) {
    // A copy, since other threads run while the GIL is released.
    phi::DenseTensor dense = DenseTensorOf(tensor);
    WithoutGilIfLarge(dense, [&] {
      MoveIntoSharedMemory(std::move(dense), CurrentSharingStrategy(), trim);
    });
  });
  // Paddle's Python API has only a getter.
  m->def("set_coalesced", [](const paddle::Tensor& tensor, bool coalesced) {
    auto* sparse = dynamic_cast<phi::SparseCooTensor*>(tensor.impl().get());
    PADDLE_ENFORCE_NOT_NULL(
        sparse,
        common::errors::InvalidArgument(
            "Only sparse tensors in coordinate format can be coalesced, but "
            "received another kind of tensor. Pass a sparse COO tensor."));
    sparse->SetCoalesced(coalesced);
  });
  m->def("is_shared", [](const paddle::Tensor& tensor) {
    return IsInSharedMemory(DenseTensorOf(tensor));
  });
  m->def(
      "empty",
      [](const std::vector<int64_t>& shape,
         phi::DataType dtype,
         bool file_descriptor) {
        SharingStrategy strategy = file_descriptor
                                       ? SharingStrategy::kFileDescriptor
                                       : CurrentSharingStrategy();
        return ToPython(Empty(shape, dtype, strategy), "shared_tensor_");
      },
      py::arg("shape"),
      py::arg("dtype"),
      py::arg("file_descriptor") = false);
  m->def("array_of", [](const paddle::Tensor& tensor) {
    return ArrayOf(DenseTensorOf(tensor));
  });
  // In the form that HostContext of thread_contexts.cc accepts.
  m->def("allocator", [] {
    return py::capsule(SharedAllocator(CurrentSharingStrategy()),
                       "phi::Allocator");
  });
  // For process groups, which another module may bind.
  m->def("locator", [] {
    static const memory::allocation::SharedLocator locate =
        [](const void* address) {
          return SharedHeap::Instance().Locate(address);
        };
    return py::capsule(&locate, "SharedLocator");
  });
  m->def("is_in_own_file", &memory::allocation::IsInOwnFile);
  m->def("rebuild_dense_tensor",
         [](const std::string& handle, const py::function& stream_of) {
           return RebuildDenseTensor(handle, StreamOf(stream_of));
         });
  m->def("rebuild_tensor",
         [](const std::string& handle, const py::function& stream_of) {
           return ToPython(RebuildDenseTensor(handle, StreamOf(stream_of)),
                           "received_tensor_");
         });
  m->def(
      "rebuild_views",
      [](const std::string& handle,
         const std::vector<
             std::tuple<phi::DataType, std::vector<int64_t>, uint64_t>>& of) {
        std::vector<SharedView> views;
        views.reserve(of.size());
        for (const auto& [dtype, dims, offset] : of) {
          views.push_back({dtype, dims, offset});
        }
        return RebuildViews(handle, views);
      });
  m->def("keep_alive", [](py::handle dense, const paddle::Tensor& tensor) {
    if (tensor.impl()) KeepAlive(dense, tensor);
  });
  m->def("join", [](uint64_t tree) {
    const uint64_t joined =
        RaisingPaddleErrors([&] { return SharedHeap::Instance().Join(tree); });
    CudaIPCHeap::Instance().SetBlockingCallWrapper(WaitWithoutGil);
    CudaIPCHeap::Instance().SetInterruptionCheck(RaisePendingSignal);
    return joined;
  });
  m->def("leave", [] { SharedHeap::Instance().Leave(); });
  m->def("leave_cuda", [] {
    const ReleasedGil released;
    CudaIPCHeap::Instance().Leave();
  });
  m->def("can_make_segments", &memory::allocation::CanMakeSegments);
  m->def("random_bits", [] {
    return RaisingPaddleErrors([] { return memory::allocation::RandomBits(); });
  });
  m->def("collect", [](std::optional<double> message_timeout) {
    const ReleasedGil released;
    RaisingPaddleErrors(
        [&] { SharedHeap::Instance().Collect(message_timeout); });
  });
  m->def("collect_dead", [] {
    const ReleasedGil released;
    RaisingPaddleErrors([] { SharedHeap::Instance().CollectDead(); });
  });
  m->def("collect_cuda", [] {
    const ReleasedGil released;
    RaisingPaddleErrors([] { CudaIPCHeap::Instance().Collect({}); });
  });
  m->def("set_limit",
         [](uint64_t bytes) { SharedHeap::Instance().SetLimit(bytes); });
  m->def("stats", [] {
    memory::allocation::SharedHeapStats stats = SharedHeap::Instance().Stats();
    py::dict figures;
    figures["reserved"] = stats.reserved;
    figures["used"] = stats.used;
    figures["cached"] = stats.cached;
    figures["blocks"] = stats.blocks;
    figures["messages"] = stats.messages;
    figures["segments"] = stats.segments;
    figures["attached"] = stats.attached;
    figures["detached"] = stats.detached;
    figures["limit"] = stats.limit;
    return figures;
  });
  m->def("cuda_stats", [] {
    memory::allocation::CudaIPCStats stats = CudaIPCHeap::Instance().Stats();
    py::dict figures;
    figures["sent"] = stats.sent;
    figures["sent_bytes"] = stats.sent_bytes;
    figures["limbo"] = stats.limbo;
    figures["limbo_bytes"] = stats.limbo_bytes;
    figures["received"] = stats.received;
    figures["received_bytes"] = stats.received_bytes;
    figures["handles"] = stats.handles;
    figures["events"] = stats.events;
    return figures;
  });
  m->def("cuda_users", [] { return CudaIPCHeap::Instance().Describe(); });
}

}  // namespace pybind
}  // namespace paddle
