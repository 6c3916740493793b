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

#include "paddle/phi/core/memory/allocation/shared_memory/cuda_ipc_heap.h"
#include "test/cpp/phi/shared_memory/processes.h"

// How tests use GPU memory: through the driver, as a program that uses the GPU
// would, and through the heap under test, as Paddle does.
//
// A process that uses a device must not be forked from a process that has used
// it. So a test starts all of its workers first.
namespace shared_memory_test {

using paddle::memory::allocation::CudaIPCData;
using paddle::memory::allocation::CudaIPCDriver;
using paddle::memory::allocation::CudaIPCEvents;
using paddle::memory::allocation::CudaIPCHeap;
using paddle::memory::allocation::CudaIPCMemory;
using paddle::memory::allocation::CudaIPCMessage;
using paddle::memory::allocation::CudaIPCStats;
using Stream = CudaIPCDriver::Stream;

// Ends a test that needs behavior that a real driver cannot be made to show.
#define NEEDS_STAND_IN                     \
  if (!::shared_memory_test::HasStandIn()) \
  GTEST_SKIP() << "It needs the stand-in driver."

bool HasStandIn();
// See stand_in_driver.h.
void FailCall(const std::string& function, int nth, int code);
int CallsOf(const std::string& function);
void HoldCalls(const std::string& function, bool held);
// Makes the streams of this process take this long for each fill.
void SetDelay(int microseconds);
constexpr int kForever = 1000000000;  // longer than any test waits

// The heap of this process. The process calls Leave before the driver shuts
// down.
CudaIPCHeap& DeviceHeap();
// Returns whether, after a collection, this process shares nothing with others.
bool SharesNothing();

// Creates a non-blocking stream that lives as long as the process.
Stream MakeStream(int device = 0);
// Tests that compare this need a device that no other program uses.
uint64_t FreeBytes(int device = 0);

// Allocates memory that does not belong to a tensor.
CudaIPCMemory AllocateMemory(uint64_t size, int device = 0);
void FreeMemory(const CudaIPCMemory& memory);
// Allocates memory as the virtual-memory allocator does: in chunks of these
// numbers of driver granules, mapped at consecutive addresses.
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

// The storage of a tensor. Its memory is freed or released with this object, or
// later if other processes still need it.
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
// Creates a storage in memory of the caller, which `free` frees.
Storage StorageIn(const CudaIPCMemory& memory,
                  const std::function<void()>& free);
// Creates a record for memory of this process; false if that is not possible.
bool Share(const Storage& storage, SharingStrategy strategy);
// Returns a message for the byte at the offset. The memory is ready once the
// stream's work is done.
CudaIPCMessage MessageOf(const Storage& storage,
                         SharingStrategy strategy,
                         std::optional<Stream> stream = nullptr,
                         uint64_t offset = 0);
// Receives the storage of a message, for use on the stream.
Storage StorageOf(const CudaIPCMessage& message, Stream stream = nullptr);

}  // namespace shared_memory_test
