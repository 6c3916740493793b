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

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "paddle/phi/core/memory/allocation/cuda_ipc_heap.h"
#include "test/cpp/phi/shared_memory/processes.h"

// How tests use GPU memory: through the driver, as a program that uses the GPU
// would, and through the heap under test, as Paddle does.
//
// A process that uses a device must not be forked from one that has used it. So
// a test makes all of its workers first.
namespace shared_memory_test {

using paddle::memory::allocation::CudaIPCData;
using paddle::memory::allocation::CudaIPCDriver;
using paddle::memory::allocation::CudaIPCEvents;
using paddle::memory::allocation::CudaIPCHeap;
using paddle::memory::allocation::CudaIPCMemory;
using paddle::memory::allocation::CudaIPCMessage;
using paddle::memory::allocation::CudaIPCStats;
using Stream = CudaIPCDriver::Stream;

// Ends a test that needs the driver to do what a real one cannot be made to do.
#define NEEDS_STAND_IN                                \
  do {                                                \
    if (!::shared_memory_test::HasStandIn()) {        \
      std::printf("  skipped: needs the stand-in\n"); \
      return;                                         \
    }                                                 \
  } while (false)

bool HasStandIn();
// See stand_in_driver.h.
void FailCall(const std::string& function, int nth, int code);
int CallsOf(const std::string& function);
void HoldCalls(const std::string& function, bool held);
// Makes the streams of this process take so long for each fill. Has no effect
// without the stand-in.
void SetDelay(int microseconds);

// The heap of this process, which leaves it before the driver shuts down.
CudaIPCHeap& DeviceHeap();
// Returns whether, after a collection, this process shares nothing with others.
bool SharesNothing();

// Makes a non-blocking stream that lives as long as the process.
Stream MakeStream(int device = 0);
uint64_t FreeBytes(int device = 0);

// Memory that is not a tensor's.
CudaIPCMemory AllocateMemory(uint64_t size, int device = 0);
void FreeMemory(const CudaIPCMemory& memory);
// Memory as the virtual-memory allocator makes it: in chunks, which are mapped
// one after the other, each of so many granules of the driver's.
CudaIPCMemory AllocateChunks(const std::vector<int>& granules,
                             bool exportable = true);
void FreeChunks(const CudaIPCMemory& memory);
uint64_t Granule();
CudaIPCMemory PartOf(const CudaIPCMemory& memory,
                     uint64_t offset,
                     uint64_t size);
// Fills the memory later, on the stream.
void Fill(const CudaIPCMemory& memory, uint32_t word, Stream stream = nullptr);
// Returns whether the stream sees the content after its work so far.
bool HasContent(const CudaIPCMemory& memory,
                uint32_t word,
                Stream stream = nullptr);

// The storage of a tensor. Its memory is freed or released with it, or later if
// others still need it.
class DeviceStorage {
 public:
  explicit DeviceStorage(const CudaIPCMemory& memory) : memory(memory) {}
  virtual ~DeviceStorage() = default;
  DeviceStorage(const DeviceStorage&) = delete;
  DeviceStorage& operator=(const DeviceStorage&) = delete;

  const CudaIPCMemory memory;
};
using Storage = std::shared_ptr<DeviceStorage>;

Storage Allocate(uint64_t size, int device = 0);
Storage AllocateFilled(uint64_t size, uint32_t word);
Storage AllocateInChunks(const std::vector<int>& granules);
// Makes a storage in memory of the caller, who says how to free it.
Storage StorageIn(const CudaIPCMemory& memory,
                  const std::function<void()>& free);
// Gives memory of this process a record; false if it cannot have one.
bool Share(const Storage& storage, SharingStrategy strategy);
// Returns a message for the byte at the offset, ready once the stream's work is
// done.
CudaIPCMessage MessageOf(const Storage& storage,
                         SharingStrategy strategy,
                         std::optional<Stream> stream = nullptr,
                         uint64_t offset = 0);
// Receives the storage of a message, for use on the stream.
Storage StorageOf(const CudaIPCMessage& message, Stream stream = nullptr);

}  // namespace shared_memory_test
