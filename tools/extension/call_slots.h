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

#include <string_view>
#include <vector>

// Redirects calls between libraries that are already built. A library calls a
// function that another library may replace through a slot, which the dynamic
// linker fills in. Writing another address there redirects the calls.
//
// Slots and the linker. The linker fills a slot either before dlopen returns,
// when no thread can call through it yet, or at the first call ("lazy
// binding"). In the second case it may be about to store the address that it
// has looked up, on any thread and arbitrarily late after that thread read the
// slot, and such a store would undo ours. The content of the slot cannot rule
// that out, but the table that holds the slots can: its third entry is the
// address that an unfilled slot leads to, and the linker writes that entry,
// which is null in the file, only for a library that it binds lazily. Where the
// entry is null, no thread has ever been in the linker because of a slot, the
// linker writes to no slot any more, and ours stays. Where it is not, slots may
// be written only as long as no thread calls through them for the first time:
// RedirectLazyCalls does that, and RedirectCalls refuses to.
//
// Slots of calls are the only ones that are bound lazily; those that hold an
// address which code loads for itself are filled before dlopen returns.

struct Redirection {
  // The mangled name, in two parts: the qualified name and the types of the
  // arguments.
  std::string_view name;
  std::string_view arguments;
  void* function;
  // Receives the address of the redirected function, before any call can reach
  // `function`. Null if the address is not needed.
  void** original = nullptr;
  // Arguments of other overloads, whose calls stay as they are.
  std::vector<std::string_view> left_alone = {};
  // Whether the library that defines the function also calls it.
  bool called_where_defined = true;
};

// Redirects the calls of all loaded libraries, except the one that this is
// linked into. Looks only at libraries that were loaded since the last
// successful call.
//
// Throws std::runtime_error, without having written to any slot, if
// - no library calls one of the functions through a slot;
// - a library refers to a function of this name with other arguments;
// - some calls of a library cannot be redirected: those of the library that
//   defines the function go there directly, or an address is kept elsewhere
//   than in a slot; or
// - a library is bound lazily, and RedirectLazyCalls has not seen it.
//
// Not thread-safe. Requires: no other call of these functions at the same time.
void RedirectCalls(const std::vector<Redirection>& redirections);

// Redirects the calls of libraries that are bound lazily. Requires: no thread
// can call through them yet, which is so right after they were loaded.
//
// Throws std::runtime_error as RedirectCalls does, except for functions that no
// library calls.
//
// Not thread-safe. Requires: no other call of these functions at the same time.
void RedirectLazyCalls(const std::vector<Redirection>& redirections);
