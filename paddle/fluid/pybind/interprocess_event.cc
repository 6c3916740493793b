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

#include "paddle/fluid/pybind/interprocess_event.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "paddle/fluid/pybind/shared_storage.h"
#include "paddle/phi/common/place.h"
#include "paddle/phi/core/memory/allocation/shared_memory/cuda_interprocess_event.h"
#include "paddle/phi/core/memory/allocation/shared_memory/shared_handle.h"
#include "pybind11/stl.h"

namespace py = pybind11;

namespace paddle {
namespace pybind {

namespace {

using memory::allocation::CudaInterprocessEvent;
using memory::allocation::DecodeEvent;
using memory::allocation::EncodeEvent;
using memory::allocation::RaisingPaddleErrors;

CudaInterprocessEvent::Stream StreamAt(uintptr_t address) {
  return reinterpret_cast<void*>(address);  // NOLINT
}

}  // namespace

void BindInterprocessEvent(py::module* m) {
  // Streams are passed as the addresses that CUDAStream.cuda_stream returns.
  py::class_<CudaInterprocessEvent, std::shared_ptr<CudaInterprocessEvent>>(
      *m, "InterprocessEvent")
      .def(py::init([](int device) {
        return RaisingPaddleErrors(
            [&] { return CudaInterprocessEvent::Make(device); });
      }))
      .def_static("from_ipc_handle",
                  [](const std::string& handle, std::optional<int> device) {
                    return RaisingPaddleErrors([&] {
                      return CudaInterprocessEvent::Receive(DecodeEvent(handle),
                                                            device);
                    });
                  })
      .def_property_readonly("place",
                             [](const CudaInterprocessEvent& event) {
                               return phi::GPUPlace(event.device());
                             })
      .def("ipc_handle",
           [](CudaInterprocessEvent& event) {
             return py::bytes(RaisingPaddleErrors([&] {
               return EncodeEvent(event.Send(CurrentSharingStrategy()));
             }));
           })
      .def("record",
           [](CudaInterprocessEvent& event, uintptr_t stream) {
             RaisingPaddleErrors([&] { event.Record(StreamAt(stream)); });
           })
      .def("wait",
           [](CudaInterprocessEvent& event, int device, uintptr_t stream) {
             RaisingPaddleErrors([&] { event.Wait(device, StreamAt(stream)); });
           })
      .def("query", [](CudaInterprocessEvent& event) {
        return RaisingPaddleErrors([&] { return event.IsDone(); });
      });
}

}  // namespace pybind
}  // namespace paddle
