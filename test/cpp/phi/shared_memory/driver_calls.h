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

#include <dlfcn.h>

#include <stdexcept>
#include <string>

// Calls of the driver of a GPU, whichever is there, that the code under test
// has no use for.
namespace driver_calls {

inline void* Library() {
  static void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  return library;
}

// The arguments have to be of the function's own types.
template <typename Result, typename... Arguments>
Result CallFunction(const std::string& name, Arguments... arguments) {
  void* const function = Library() ? dlsym(Library(), name.c_str()) : nullptr;
  if (function == nullptr) throw std::runtime_error("There is no " + name);
  return reinterpret_cast<Result (*)(Arguments...)>(function)(arguments...);
}

template <typename... Arguments>
void Call(const std::string& name, Arguments... arguments) {
  const int code = CallFunction<int>(name, arguments...);
  if (code != 0) {
    throw std::runtime_error(name + " returned " + std::to_string(code));
  }
}

// Makes the context of a device current, as long as this lives. The driver was
// started before.
class Context {
 public:
  explicit Context(int device) {
    int id = 0;
    void* context = nullptr;
    Call("cuDeviceGet", &id, device);
    Call("cuDevicePrimaryCtxRetain", &context, id);
    Call("cuCtxPushCurrent_v2", context);
  }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  ~Context() {
    void* context = nullptr;
    CallFunction<int>("cuCtxPopCurrent_v2", &context);
  }
};

}  // namespace driver_calls
