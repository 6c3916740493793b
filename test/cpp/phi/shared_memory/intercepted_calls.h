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

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace shared_memory_test {

// In a program that is linked with this file, calls of some system functions
// pass through it. A test can make such a call fail, or act just before it.

// Returns the names of these functions. A call of fallocate that frees memory
// is "punch". The list is without "opendir", because the number of its calls
// depends on the other processes of the system.
const std::vector<std::string>& InterceptedFunctions();

enum class Calls { kOne, kAllFromThenOn };

// Runs an action at the n-th call of a function, counted from 1 and from now
// on. If the action returns an error, the call fails with it; if it returns 0,
// the call is made. There is one interception at a time; a forked child
// inherits it.
class Interception {
 public:
  Interception(const std::string& function,
               int n,
               Calls calls,
               const std::function<int()>& action);
  ~Interception();
  Interception(const Interception&) = delete;
  Interception& operator=(const Interception&) = delete;

  // Returns whether there was such a call.
  bool Happened() const;
};

// Simulates pages of 64 KiB, which some systems have, in a range of addresses.
// As long as this object exists, calls about that range are subject to the
// rules of such a system: they need the start of a page, and take effect up to
// the end of a page. There is one such range at a time.
class LargePages {
 public:
  static constexpr size_t kBytes = size_t{64} << 10;

  // `start` counts as the start of a page.
  LargePages(const char* start, size_t length);
  ~LargePages();
  LargePages(const LargePages&) = delete;
  LargePages& operator=(const LargePages&) = delete;
};

}  // namespace shared_memory_test
