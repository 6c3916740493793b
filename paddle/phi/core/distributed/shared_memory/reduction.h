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

#include <cstdint>
#include <vector>

#include "paddle/phi/core/distributed/shared_memory/collective_types.h"

namespace phi {
namespace distributed {

// All functions of this file are thread-safe.

// Returns whether a reduction is defined for elements of a type.
bool CanReduce(ElementType type, Reduction reduction);

// Reduces `count` elements of each input into `out`, in the order of the
// inputs. The result depends only on the inputs, not on the thread's rounding
// mode. The addresses need no alignment. `out` may equal one of the inputs, and
// must not overlap them otherwise.
//
// Requires: CanReduce(type, reduction), and at least one input.
void ReduceElements(const std::vector<const char*>& inputs,
                    char* out,
                    uint64_t count,
                    ElementType type,
                    Reduction reduction);

}  // namespace distributed
}  // namespace phi
