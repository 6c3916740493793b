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

#include "paddle/phi/core/distributed/shared_memory/operation_info.h"

#include <algorithm>

namespace phi {
namespace distributed {

namespace {

template <size_t kBytes>
void CopyText(const std::string& text, char (&to)[kBytes]) {
  std::fill(to, to + kBytes, 0);
  text.copy(to, kBytes - 1);
}

}  // namespace

OperationInfo OperationInfo::Of(const std::string& name,
                                uint64_t bytes,
                                const std::string& element_type,
                                const std::string& reduction,
                                int root) {
  OperationInfo info = {};
  CopyText(name, info.name);
  CopyText(element_type, info.element_type);
  CopyText(reduction, info.reduction);
  info.root = root;
  info.bytes = bytes;
  return info;
}

std::string OperationInfo::Details() const {
  std::string text = "(" + std::to_string(bytes) + " bytes";
  if (element_type[0]) text += std::string(", ") + element_type;
  if (reduction[0]) text += std::string(", ") + reduction;
  if (root >= 0) text += ", root " + std::to_string(root);
  return text + ")";
}

}  // namespace distributed
}  // namespace phi
