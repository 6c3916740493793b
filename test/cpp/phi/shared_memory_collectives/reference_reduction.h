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
#include <random>
#include <string>
#include <vector>

#include "paddle/phi/core/distributed/shared_memory/collective_types.h"

// Simple reference reductions, one element at a time, and elements to reduce.
namespace shared_memory_test {

using phi::distributed::ElementType;
using phi::distributed::Reduction;
using Buffer = std::vector<char>;
using Random = std::mt19937_64;

// Returns all supported pairs of type and reduction.
struct TypeAndReduction {
  ElementType type;
  Reduction reduction;
};
std::vector<TypeAndReduction> AllReductions();

// Returns elements that include special ones: zeros of both signs, the largest
// and the smallest numbers and, unless the type is complex, infinities and
// NaNs.
Buffer RandomElements(ElementType type, uint64_t count, Random* random);

// Returns the reduction of the inputs in their order.
Buffer ReferenceReduction(const std::vector<Buffer>& inputs,
                          ElementType type,
                          Reduction reduction);

// Describes the first difference between two buffers of elements; empty if
// there is none. Any two NaNs count as equal.
std::string Difference(const Buffer& actual,
                       const Buffer& expected,
                       ElementType type);

// Return the values of 16-bit types.
double ValueOfFloat16(uint16_t bits);
double ValueOfBFloat16(uint16_t bits);

}  // namespace shared_memory_test
