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
// Does nothing when no library was loaded since the last time; one that is
// loaded later, such as that of a custom operator, needs another call. Calls
// from this module reach Paddle's own. See call_slots.h for how.
//
// Throws std::runtime_error, and changes nothing, where not all calls can be
// redirected.
//
// Not thread-safe: the caller holds the GIL.
void RedirectLookUps();

// The same for libraries that are bound lazily, right after they were loaded.
void RedirectLazyLookUps();
