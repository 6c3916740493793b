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

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

// Calls of the GPU driver, real or stand-in, that the tests need but the code
// under test does not.
namespace driver_calls {

inline void* Library() {
  static void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  return library;
}

inline bool HasStandIn() {
  return Library() != nullptr && dlsym(Library(), "StandInFail") != nullptr;
}

// The arguments must have exactly the types of the function's parameters.
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

// Makes the context of a device current as long as this object exists.
// Requires: the driver is initialized.
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

// CUmemLocation, CUmemAllocationProp and CUmemAccessDesc of the driver.
struct Location {
  int type;
  int id;
};
struct ChunkProperties {
  int type;
  int exported_as;
  Location location;
  void* windows_metadata;
  char flags[8];
};
struct Access {
  Location location;
  int flags;
};

inline ChunkProperties PropertiesOfChunk(int device, bool exportable) {
  constexpr int kPinned = 1;
  constexpr int kPosixDescriptor = 1;
  constexpr int kOnDevice = 1;
  const int exported_as = exportable ? kPosixDescriptor : 0;
  return {kPinned, exported_as, {kOnDevice, device}, nullptr, {}};
}

// Returns the size of which chunk sizes are multiples. Requires, like the
// functions below: the context of the device is current.
inline size_t Granule(int device) {
  const ChunkProperties properties = PropertiesOfChunk(device, true);
  size_t granule = 0;
  Call("cuMemGetAllocationGranularity", &granule, &properties, 0);
  return granule;
}

// Lets a device use mapped chunks of any device to which it has access.
inline void MakeAccessible(char* base, size_t size, int device) {
  constexpr int kReadWrite = 3;
  const Access access = {PropertiesOfChunk(device, true).location, kReadWrite};
  Call("cuMemSetAccess", base, size, &access, size_t{1});
}

// Creates chunks of these sizes, in bytes, and maps them at consecutive
// addresses, as the virtual-memory allocator does. Returns the first address.
inline char* AllocateChunks(int device,
                            const std::vector<size_t>& sizes,
                            bool exportable) {
  const ChunkProperties properties = PropertiesOfChunk(device, exportable);
  const size_t all = std::accumulate(sizes.begin(), sizes.end(), size_t{0});
  const uint64_t none = 0;
  char* base = nullptr;
  Call("cuMemAddressReserve", &base, all, size_t{0}, none, none);
  char* end = base;
  for (const size_t size : sizes) {
    uint64_t handle = 0;
    Call("cuMemCreate", &handle, size, &properties, none);
    Call("cuMemMap", end, size, size_t{0}, handle, none);
    Call("cuMemRelease", handle);
    end += size;
  }
  MakeAccessible(base, all, device);
  return base;
}

inline void FreeChunks(char* base, size_t size) {
  // Unlike cuMemFree, the driver does not wait for work on the memory.
  Call("cuCtxSynchronize");
  Call("cuMemUnmap", base, size);
  Call("cuMemAddressFree", base, size);
}

}  // namespace driver_calls
