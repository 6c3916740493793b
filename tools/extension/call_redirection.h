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
#include <string_view>
#include <vector>

// Redirects calls between prebuilt libraries. A library calls a function that
// another library may replace through a slot (a GOT entry), which the dynamic
// linker fills in. Writing another address there redirects the calls.
//
// Races with the linker. The linker fills a slot either before dlopen returns,
// when no thread can call through it yet, or at the first call ("lazy
// binding"). With lazy binding, any thread may be about to store the address
// that it has looked up, arbitrarily late after it read the slot; such a store
// would undo ours. The content of the slot cannot rule this out, but the table
// of the slots can: its third entry is the address that unfilled slots lead to.
// The entry is null in the file, and the linker writes it only for a library
// that it binds lazily. If the entry is null, no thread has ever entered the
// linker through a slot, the linker no longer writes to slots, and our write
// stays. Otherwise, slots may only be written while no thread can make a first
// call through them: RedirectLazyCalls does this, and RedirectCalls refuses to.
//
// Only the slots of calls are bound lazily; slots that hold an address which
// code loads directly are filled before dlopen returns.

struct Redirection {
  // The mangled name, in two parts: the qualified name and the argument types.
  std::string_view name;
  std::string_view arguments;
  void* function;
  // Receives what the calls reach without `function`, before any of them can
  // reach `function`: the redirected function, or the function of another
  // module that has redirected it before. So modules may redirect the same
  // function, if each of them gives `original` and calls what it receives. Null
  // if neither is needed.
  void** original = nullptr;
  // Argument types of overloads whose calls are not redirected.
  std::vector<std::string_view> left_alone = {};
  // Whether the library that defines the function also calls it.
  bool called_where_defined = true;
};

// Redirects the calls of all loaded libraries in `folder` or below it, except
// the library that this file is linked into. Checks only libraries that were
// loaded since the last successful call. Writes the slots of the first
// redirection first.
//
// Throws std::runtime_error, without writing to any slot, if
// - no library calls one of the functions through a slot;
// - a library refers to a function of this name with other argument types;
// - some calls of a library cannot be redirected: the library that defines the
//   function calls it directly, or a library stores its address outside of a
//   slot; or
// - a library is bound lazily, and RedirectLazyCalls has not processed it.
//
// Not thread-safe. Requires: no concurrent call of these functions.
void RedirectCalls(const std::vector<Redirection>& redirections,
                   const std::string& folder = "");

// Returns the folder of Paddle, with a slash at the end. Requires: the library
// that this file is linked into is in Paddle's folder base.
std::string PackageFolder();

// Redirects the calls of lazily bound libraries. Requires: no thread can call
// through them yet, for example right after they were loaded.
//
// Throws std::runtime_error like RedirectCalls, except for functions that no
// library calls.
//
// Not thread-safe. Requires: no concurrent call of these functions.
void RedirectLazyCalls(const std::vector<Redirection>& redirections);
