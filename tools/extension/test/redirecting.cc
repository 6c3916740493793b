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

#include "tools/extension/call_redirection.h"

#include <vector>

namespace {

using Function = int (*)(int);

void* original = nullptr;

int Doubled(int value) {
  return 2 * reinterpret_cast<Function>(original)(value);
}

}  // namespace

// Doubles the results of the target's calls.
extern "C" __attribute__((visibility("default"))) int Redirect(int) {
  static const std::vector<Redirection> redirections = {
      {"_ZN21call_redirection_test6TargetE",
       "i",
       reinterpret_cast<void*>(&Doubled),
       &original}};
  RedirectCalls(redirections);
  return 0;
}
