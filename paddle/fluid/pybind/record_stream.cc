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

#include "paddle/fluid/pybind/record_stream.h"

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "paddle/phi/core/dense_tensor.h"
#include "paddle/phi/core/memory/allocation/recorded_storage.h"
#include "paddle/utils/pybind.h"
#if defined(PADDLE_WITH_CUDA) || defined(PADDLE_WITH_HIP)
#include "paddle/phi/core/cuda_stream.h"
#endif

namespace py = pybind11;

namespace paddle {
namespace pybind {
namespace {

#if defined(PADDLE_WITH_CUDA) || defined(PADDLE_WITH_HIP)
using Stream = phi::CUDAStream;
#elif defined(PADDLE_WITH_CUSTOM_DEVICE)
using Stream = phi::stream::Stream;
#endif

// Python objects dropped by threads without the GIL. Thread-safe.
class DroppedObjects {
 public:
  // Leaked on purpose: threads may drop objects while the process exits.
  static DroppedObjects& Instance() {
    static auto& all = *std::make_unique<DroppedObjects>().release();
    return all;
  }

  // Returns a shared owner of an object, which may be dropped without the GIL.
  static std::shared_ptr<void> Keep(const py::object& object) {
    return {object.inc_ref().ptr(),
            [](PyObject* dropped) { Instance().Add(dropped); }};
  }

  // Requires: the GIL is held.
  void Release() {
    std::vector<PyObject*> released;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      released.swap(objects_);
    }
    // Not under the lock: destroying an object may run arbitrary code.
    for (PyObject* object : released) py::handle(object).dec_ref();
  }

 private:
  void Add(PyObject* object) {
    const std::lock_guard<std::mutex> lock(mutex_);
    objects_.push_back(object);
  }

  std::mutex mutex_;
  std::vector<PyObject*> objects_;
};

}  // namespace

void BindRecordStream(py::module* m) {
#if defined(PADDLE_WITH_CUDA) || defined(PADDLE_WITH_HIP) || \
    defined(PADDLE_WITH_CUSTOM_DEVICE)
  // Requires: the tensor is dense, on the stream's device, and has memory.
  m->def("record_stream",
         [](const paddle::Tensor& tensor, const py::object& stream) {
           DroppedObjects::Instance().Release();
           const auto& dense = dynamic_cast<phi::DenseTensor&>(*tensor.impl());
           memory::allocation::RecordStream(
               dense.Holder(),
               stream.cast<const Stream&>().raw_stream(),
               DroppedObjects::Keep(stream));
         });
#endif
}

}  // namespace pybind
}  // namespace paddle
