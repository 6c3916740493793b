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

// For a wheel, whose libraries are built already: makes them ask
// phi/backends/thread_contexts.h where Paddle's own tree, patched, does: when
// they look up a device context, allocate, or run the backward pass of a
// program.
//
// Calls that a library makes to what another might replace go through slots,
// which the dynamic linker fills in. This writes the address of a function of
// ours into those slots of all libraries that are loaded; calls from this
// module reach Paddle's own. Does nothing when no library was loaded since the
// last time; one that is loaded later, such as that of a custom operator, needs
// another call.
//
// Throws std::runtime_error when no library has such a slot.
void RedirectLookUps();
