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

#include "paddle/fluid/imperative/thread_amp_lists.h"

namespace paddle::imperative {

namespace {

AmpOpList NewList() {
  return std::make_shared<std::unordered_set<std::string>>();
}

}  // namespace

AmpOpList ThreadAllowOps() {
  static thread_local const AmpOpList ops = NewList();
  return ops;
}

AmpOpList ThreadBlockOps() {
  static thread_local const AmpOpList ops = NewList();
  return ops;
}

}  // namespace paddle::imperative
