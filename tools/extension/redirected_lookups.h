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

// For a wheel, whose libraries are prebuilt: makes them call
// phi/backends/thread_contexts.h in the same places as a patched Paddle, when
// they look up a device context, allocate, or run a program's backward pass.
//
// Does nothing if no library was loaded since the last call. A library that is
// loaded later, such as a custom operator library, needs another call. Calls
// from this module reach the original functions. See call_redirection.h.
//
// Throws std::runtime_error, and changes nothing, if some calls cannot be
// redirected.
//
// Thread-safe.
void RedirectLookups();

// The same for lazily bound libraries, right after they were loaded.
void RedirectLazyLookups();
