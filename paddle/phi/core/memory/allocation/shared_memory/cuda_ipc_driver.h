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

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "paddle/phi/core/memory/allocation/shared_memory/file_descriptor.h"

namespace paddle {
namespace memory {
namespace allocation {

// Opaque: only the driver knows the meaning of the bytes.
using CudaIPCHandle = std::array<char, 64>;
using CudaDeviceUuid = std::array<char, 16>;

// Returns the UUID in the form that the driver's tools print:
// "GPU-01234567-89ab-cdef-0123-456789abcdef".
std::string ToString(const CudaDeviceUuid& uuid);

// The calls of the GPU driver (CUDA or HIP) that share memory and events
// between processes.
//
// Invariant: every call acts on the primary context of its device, which the
// CUDA runtime, and so Paddle, also uses, and leaves the calling thread's
// current context unchanged. Every failure is a SharedMemoryError.
//
// Thread-safe.
class CudaIPCDriver {
 public:
  using Stream = void*;
  using Event = void*;

  struct SharedEvent {
    Event event;
    CudaIPCHandle handle;
  };

  // How other processes find memory: as a part of a driver allocation.
  struct Exported {
    CudaIPCHandle handle;
    uint64_t offset;
    uint64_t size;  // of the allocation
  };

  // A driver allocation, or a chunk that the driver has mapped.
  struct Allocation {
    char* base;
    uint64_t size;
  };

  // A chunk of device memory, which is mapped at its own addresses.
  struct Chunk {
    uint64_t size;
    int64_t fd;  // a descriptor that the driver has created for it
  };

  // Loads the driver at the first call. The driver is never unloaded, since
  // streams and tensors outlive static destructors. Throws if there is no
  // driver, or if this process was forked from a process that has used it.
  static CudaIPCDriver& Instance();

  const CudaDeviceUuid& Uuid(int device) const { return At(device).uuid; }
  // Returns the number of a device in this process; none if this process cannot
  // see the device.
  std::optional<int> FindDevice(const CudaDeviceUuid& uuid) const;
  // Returns the number of a received tensor's device. Throws if this process
  // cannot see the device.
  int DeviceOf(const CudaDeviceUuid& uuid) const;

  // Returns none for memory without a handle: memory of the virtual-memory
  // allocator, or of a pool.
  std::optional<Exported> Export(int device, const void* address);
  // Requires: the handle is not open in this process, which did not export it.
  char* Open(int device, const CudaIPCHandle& handle);
  // Returns the allocation, or the chunk, that contains an address; none if the
  // driver knows of none.
  std::optional<Allocation> AllocationAt(int device, const char* address);
  void Close(int device, char* base);

  // Creates a descriptor for the chunk that is mapped at an address. Returns
  // none for memory that is not in a chunk, for a chunk that was not created to
  // be exported, and if the driver does not support chunks.
  std::optional<int> ExportChunk(int device, char* address);
  // Maps chunks of other processes at consecutive addresses, for this device
  // and for all others to which the driver grants access. `take` returns a
  // descriptor of this process for the `fd` of a chunk. Returns the first
  // address.
  char* MapChunks(int device,
                  const std::vector<Chunk>& chunks,
                  const std::function<FileDescriptor(int64_t fd)>& take);
  // Unmaps all chunks that one call of MapChunks has mapped. Requires: no
  // device has unfinished work on them.
  void UnmapChunks(int device, char* base, uint64_t size);

  // Creates an event that other processes can wait for; none if the driver
  // cannot create more.
  std::optional<SharedEvent> MakeEvent(int device);
  Event OpenEvent(int device, const CudaIPCHandle& handle);
  void DestroyEvent(int device, Event event);
  void Record(int device, Event event, Stream stream);
  // Returns whether the work that was submitted before the event was recorded
  // is done.
  bool IsDone(int device, Event event);
  void Wait(int device, Stream stream, Event event);
  // Waits for all work that this process has submitted to the device. Requires:
  // the caller holds no lock that this work, or a callback of it, could need.
  void Synchronize(int device);
  // Synchronizes each device that may work on chunks of other processes, that
  // is, each device that this process has used. Creates no context on any other
  // device.
  void SynchronizeChunks();

 private:
  struct Functions;
  struct ChunkFunctions;
  class ContextGuard;

  struct Device {
    int id;
    CudaDeviceUuid uuid;
    void* context{nullptr};
  };

  CudaIPCDriver();
  void Enforce(int code, const char* doing) const;
  const Device& At(int device) const;
  void* ContextOf(int device);

  std::unique_ptr<Functions> call_;
  std::unique_ptr<ChunkFunctions> call_chunks_;  // empty without chunks
  std::vector<Device> devices_;
  std::mutex contexts_;
};

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
