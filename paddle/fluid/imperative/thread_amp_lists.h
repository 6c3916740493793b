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

#include <memory>
#include <string>
#include <unordered_set>

namespace paddle::imperative {

using AmpOpList = std::shared_ptr<std::unordered_set<std::string>>;

// The operator lists that amp.auto_cast sets for the calling thread: those that
// compute in lower precision, and those that do not. Both are empty at first.
// Operators read them without the GIL, so no thread may read the lists of
// another.
//
// Thread-safe.
AmpOpList ThreadAllowOps();
AmpOpList ThreadBlockOps();

}  // namespace paddle::imperative
