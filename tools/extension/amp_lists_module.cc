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

// For a wheel: the operator lists of auto_cast belong to the thread, as in a
// patched Paddle. The functions that return them are part of a prebuilt
// library, so this module redirects their calls. amp_setters.py loads it.

#include <pybind11/pybind11.h>

#include "call_redirection.h"
#include "paddle/fluid/imperative/thread_amp_lists.h"

namespace {

using paddle::imperative::AmpOpList;

// Member functions of paddle::imperative::AmpOperators, whose object these do
// not use.
AmpOpList AllowOps(void*) { return paddle::imperative::ThreadAllowOps(); }
AmpOpList BlockOps(void*) { return paddle::imperative::ThreadBlockOps(); }

}  // namespace

PYBIND11_MODULE(_amp_lists, module) {
  module.doc() = "Operator lists of auto_cast per thread.";
  RedirectCalls({{"_ZN6paddle10imperative12AmpOperators"
                  "18GetMutableAllowOpsB5cxx11E",
                  "v",
                  reinterpret_cast<void*>(&AllowOps)},
                 {"_ZN6paddle10imperative12AmpOperators"
                  "18GetMutableBlockOpsB5cxx11E",
                  "v",
                  reinterpret_cast<void*>(&BlockOps)}},
                PackageFolder());
}
