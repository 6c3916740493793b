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

// The description of an operation that a rank publishes when it begins the
// operation. The ranks compare it, and error messages contain it. Names that
// are too long are truncated.
struct OperationInfo {
  // In an operation between two ranks, all fields except the name are compared.
  static OperationInfo Of(const std::string& name,
                          uint64_t bytes,
                          const std::string& element_type = "",
                          const std::string& reduction = "",
                          int root = -1);

  // Returns the text for messages, without the name:
  // "(4096 bytes, float32, sum)".
  std::string Details() const;

  // Null-terminated.
  char name[24];
  char element_type[16];
  char reduction[12];
  int32_t root;  // -1 if there is none
  uint64_t bytes;
};

// Where other ranks find a buffer of this rank during an operation. Operation
// and GroupMemory only pass it on to the other ranks.
struct BufferLocation {
  enum class Where : uint32_t {
    kNone,
    kInline,   // in the rank's inline data
    kStaging,  // in the rank's staging memory, window by window
    kShared,   // in the segment that `handle` names
  };

  Where where;
  // For kInline, the offset in the inline data. Otherwise, the address in the
  // rank's process.
  uint64_t address;
  uint64_t bytes;
  char handle[64];
};

}  // namespace distributed
}  // namespace phi
