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

#include <pybind11/pybind11.h>

#include <memory>
#include <vector>

#include "paddle/common/flags.h"
#include "paddle/fluid/pybind/process_group_shm.h"
#include "paddle/phi/backends/device_manager.h"

COMMON_DECLARE_bool(use_stream_safe_cuda_allocator);

namespace {

using paddle::distributed::AllreduceOptions;
using paddle::distributed::ProcessGroupShm;
using paddle::distributed::ProcessGroupShmOptions;

// Whether the EagerReducer of the installed libpaddle uses the result of
// AllReduce before it has waited for the task: it counts on streams, which host
// memory does not have. (The patch on reducer.cc mends that in a build of
// Paddle.) It also asks for the strategy auto_growth, which is the default.
bool ReducerUsesResultsAtOnce() { return FLAGS_use_stream_safe_cuda_allocator; }

// Has EagerReducer wait for the tasks, if the flag, which is about the memory
// of devices, has no other effect in this process.
void HaveReducerWait() {
#ifndef PADDLE_WITH_CUDA
  if (phi::DeviceManager::GetAllCustomDeviceTypes().empty()) {
    FLAGS_use_stream_safe_cuda_allocator = false;
  }
#endif
}

class GroupForInstalledReducer : public ProcessGroupShm {
 public:
  using ProcessGroupShm::AllReduce;
  using ProcessGroupShm::ProcessGroupShm;

  // EagerReducer alone calls this overload.
  TaskPointer AllReduce(std::vector<phi::DenseTensor>& inputs,   // NOLINT
                        std::vector<phi::DenseTensor>& outputs,  // NOLINT
                        const AllreduceOptions& options) override {
    return AllReduce(outputs.data(),
                     inputs.front(),
                     options,
                     /*sync_op=*/ReducerUsesResultsAtOnce());
  }
};

}  // namespace

PYBIND11_MODULE(_process_group_shm, module) {
  // Has the class that the group is derived from.
  pybind11::module_::import("paddle.base.core");
  paddle::pybind::BindProcessGroupShm(
      &module,
      [](const std::shared_ptr<phi::distributed::Store>& store,
         const ProcessGroupShmOptions& options) {
        HaveReducerWait();
        return std::make_shared<GroupForInstalledReducer>(store, options);
      });
}
