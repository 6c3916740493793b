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

// Returns whether elements of a type can be reduced like that.
bool CanReduce(ElementType type, Reduction reduction);

// Reduces `count` elements of each input to `out`, in the order of inputs. The
// result depends on the inputs alone, not on how the thread is set to round.
// The addresses need no alignment. `out` may be one of the inputs, and does not
// overlap them otherwise.
//
// Requires: CanReduce(type, reduction), and at least one input.
void ReduceElements(const std::vector<const char*>& inputs,
                    char* out,
                    uint64_t count,
                    ElementType type,
                    Reduction reduction);

}  // namespace distributed
}  // namespace phi
