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

#include <string>

namespace paddle {
namespace pybind {

// Check that this process has a device, for the constructors of places.
// Their errors name it and the devices that exist, in the words of the errors
// of device strings.

void CheckHasPluginDevice(const std::string& type, int index);
void CheckHasGpu(int index);
void CheckHasXpu(int index);
void CheckHasIpu();

}  // namespace pybind
}  // namespace paddle
