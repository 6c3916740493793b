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

#include <stdexcept>
#include <string>

namespace phi {
namespace distributed {

// An error of a group of processes that run collective operations in shared
// memory. Its text says what failed, why, and how to fix it.
//
// After all kinds but kInvalid, kForked and kUnavailable the group has failed:
// every rank gets an error of the same kind, rank and text, from its pending
// operation and from all later ones.
class CollectiveError : public std::runtime_error {
 public:
  enum class Kind {
    kDied,         // a rank's process has ended and had not left the group
    kLeft,         // a rank has left the group
    kTimedOut,     // a rank did not come in time
    kMismatched,   // two ranks called different operations
    kAborted,      // a rank gave up an operation, or the group
    kClosed,       // a rank's descriptor of the group was closed by other code
    kInvalid,      // an argument is wrong
    kForked,       // this process is a child of the one that joined the group
    kUnavailable,  // this machine, or this process, cannot make or join a group
  };

  CollectiveError(Kind kind, int rank, const std::string& what)
      : std::runtime_error(what), kind_(kind), rank_(rank) {}

  Kind kind() const { return kind_; }
  // The rank that the error is about, -1 if there is none.
  int rank() const { return rank_; }

 private:
  Kind kind_;
  int rank_;
};

}  // namespace distributed
}  // namespace phi
