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
#include <stdexcept>
#include <string>

namespace paddle {
namespace memory {
namespace allocation {

// An error of the core, which knows nothing of Paddle's own errors. Its text
// says what failed, why, and how to fix it.
class SharedMemoryError : public std::runtime_error {
 public:
  enum class Kind {
    kExhausted,    // out of memory, descriptors or slots
    kGone,         // a message refers to memory that no longer exists
    kInvalid,      // a message, or the memory it refers to, is malformed
    kUnavailable,  // this machine or process cannot do it at all
    kSystem,       // any other error of a system call or driver
  };

  SharedMemoryError(Kind kind, const std::string& what)
      : std::runtime_error(what), kind_(kind) {}

  Kind kind() const { return kind_; }

 private:
  Kind kind_;
};

// All slots of a segment belong to living processes. This error has its own
// type because freeing memory in the receiver would not help.
class SharedSlotsInUseError : public SharedMemoryError {
 public:
  explicit SharedSlotsInUseError(const std::string& what)
      : SharedMemoryError(Kind::kExhausted, what) {}
};

// Throws an error for a failed system call, from errno. `doing` says what the
// call was for: "Mapping 1 MiB".
//
// Thread-safe.
[[noreturn]] void ThrowErrno(const std::string& doing);

// Returns a size as text for messages: "8.0 MiB".
//
// Thread-safe.
std::string HumanBytes(uint64_t bytes);

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
