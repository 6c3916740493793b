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

namespace phi {
namespace distributed {

// The type of the elements that a collective operation reduces.
enum class ElementType : uint8_t {
  kBool,
  kInt8,
  kUInt8,
  kInt16,
  kInt32,
  kInt64,
  kFloat16,
  kBFloat16,
  kFloat32,
  kFloat64,
  kComplex64,
  kComplex128,
};
constexpr int kElementTypes = 12;

// How a collective operation reduces the elements of all ranks to one.
//
// Booleans are reduced as C++ adds and multiplies them: the sum and the maximum
// are a logical OR, the product and the minimum a logical AND. Integers wrap
// around. Complex numbers are not ordered, so they have no minimum and no
// maximum. Integers and booleans have no average. float16 and bfloat16 are
// reduced as float32 and rounded once. The minimum or maximum of a NaN and a
// number is the NaN.
enum class Reduction : uint8_t { kSum, kAverage, kProduct, kMinimum, kMaximum };
constexpr int kReductions = 5;

// All functions of this file are thread-safe.

// Returns the number of bytes of one element.
uint64_t SizeOf(ElementType type);
// Return the names for messages: "float32", "sum".
const char* NameOf(ElementType type);
const char* NameOf(Reduction reduction);

}  // namespace distributed
}  // namespace phi
