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

#include "paddle/phi/core/memory/allocation/shared_memory/shared_heap.h"
#include "pybind11/pybind11.h"

namespace paddle {
namespace pybind {

// Returns the strategy that the flag dataloader_use_file_descriptor selects.
// Thread-safe.
memory::allocation::SharingStrategy CurrentSharingStrategy();

// Binds the shared memory functions that Python needs in the module
// `_shared_storage`. Requires: the GIL is held.
void BindSharedStorage(pybind11::module* m);

}  // namespace pybind
}  // namespace paddle
