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

// A library with the function whose calls are redirected.

namespace call_redirection_test {

// The attribute keeps the compiler from using what the function returns.
__attribute__((noipa)) int Target(int value) { return value; }

__attribute__((noipa)) int Target(int value, int other) {
  return value + other;
}

}  // namespace call_redirection_test

extern "C" {

int CallFromWhereItIsDefined(int value) {
  return call_redirection_test::Target(value);
}

// Where a library leaves a function that has no symbol.
int (*call_without_symbol)(int) = nullptr;
}
