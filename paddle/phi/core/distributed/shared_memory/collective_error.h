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

// An error in a group of processes that run collective operations in shared
// memory. The text says what failed, why, and how to fix it.
//
// The group has failed after an error of any kind except kInvalid, kForked and
// kUnavailable: every rank gets an error with the same kind, rank and text from
// an in-flight operation that still waits, and from all later ones.
class CollectiveError : public std::runtime_error {
 public:
  enum class Kind {
    kDied,         // a rank's process exited without leaving the group
    kLeft,         // a rank has left the group
    kTimedOut,     // a rank did not arrive before the timeout
    kMismatched,   // two ranks called different operations
    kAborted,      // a rank aborted an operation, or the group
    kClosed,       // other code closed a rank's descriptor of the group
    kInvalid,      // an argument is invalid
    kForked,       // this process was forked from the one that joined the group
    kUnavailable,  // this machine or process cannot create or join a group
  };

  CollectiveError(Kind kind, int rank, const std::string& what)
      : std::runtime_error(what), kind_(kind), rank_(rank) {}

  Kind kind() const { return kind_; }
  // The rank that the error concerns, or -1.
  int rank() const { return rank_; }

 private:
  Kind kind_;
  int rank_;
};

}  // namespace distributed
}  // namespace phi
