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

class SharedMemoryError : public std::runtime_error {
 public:
  enum class Kind {
    kExhausted,    // no memory, descriptors or places left
    kGone,         // what a message names does not exist (any more)
    kInvalid,      // what a message says cannot be
    kUnavailable,  // this machine or process cannot do it at all
    kSystem,       // the system refused something else
  };

  SharedMemoryError(Kind kind, const std::string& what)
      : std::runtime_error(what), kind_(kind) {}

  Kind kind() const { return kind_; }

 private:
  Kind kind_;
};

// All slots of a segment are those of living processes.
class SharedSlotsInUseError : public SharedMemoryError {
 public:
  explicit SharedSlotsInUseError(const std::string& what)
      : SharedMemoryError(Kind::kExhausted, what) {}
};

// Throws the error of a system call that failed, which errno names.
// `doing` says what it was to do.
[[noreturn]] void ThrowErrno(const std::string& doing);

// "8.0 MiB", for messages.
std::string HumanBytes(uint64_t bytes);

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
