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

#include <string>
#include <vector>

namespace shared_memory_test {

// A program that is linked with this has its calls of some functions of the
// system pass through here, where they can be made to fail.

// Their names.
const std::vector<std::string>& FunctionsThatCanFail();

enum class Failing { kOnce, kFromThenOn };

// Makes the n-th call of a function, counted from 1 and from now on, fail with
// the error. One at a time.
class FailingCall {
 public:
  FailingCall(const std::string& function, int n, int error, Failing failing);
  ~FailingCall();
  FailingCall(const FailingCall&) = delete;
  FailingCall& operator=(const FailingCall&) = delete;

  // Whether there was such a call.
  bool Happened() const;
};

}  // namespace shared_memory_test
