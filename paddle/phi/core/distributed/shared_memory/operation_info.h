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
#include <string>

namespace phi {
namespace distributed {

// What a rank says about the operation that it begins. The ranks compare it,
// and it is what error messages say about the operation. Names that are too
// long are cut.
struct OperationInfo {
  // For an operation between two ranks, the name alone is not compared.
  static OperationInfo Of(const std::string& name,
                          uint64_t bytes,
                          const std::string& element_type = "",
                          const std::string& reduction = "",
                          int root = -1);

  // Returns all but the name, for messages: "(4096 bytes, float32, sum)".
  std::string Details() const;

  // Ends with a 0 each.
  char name[24];
  char element_type[16];
  char reduction[12];
  int32_t root;  // -1 if there is none
  uint64_t bytes;
};

// Where others find a buffer of this rank during an operation. The core only
// carries it from one rank to the others.
struct BufferLocation {
  enum class Where : uint32_t {
    kNone,
    kInline,   // in the rank's inline data
    kStaging,  // in the rank's staging memory, window by window
    kShared,   // in a segment that `handle` names, at `address`
    kPrivate,  // in the rank's process, at `address`
  };

  Where where;
  uint64_t address;
  uint64_t bytes;
  char handle[64];
};

}  // namespace distributed
}  // namespace phi
