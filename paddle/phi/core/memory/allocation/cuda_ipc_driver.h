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

#include "paddle/phi/core/memory/allocation/file_descriptor.h"

namespace paddle {
namespace memory {
namespace allocation {

// Opaque: only the driver knows what the bytes mean.
using CudaIPCHandle = std::array<char, 64>;
using CudaDeviceUuid = std::array<char, 16>;

// Returns the form that the driver's tools print:
// "GPU-01234567-89ab-cdef-0123-456789abcdef".
std::string ToString(const CudaDeviceUuid& uuid);

// The calls of the GPU driver, CUDA's or HIP's, that share memory and events
// between processes.
//
// Invariant: every call acts on the primary context of its device, which is the
// one of the CUDA runtime and so of Paddle, and leaves the calling thread's
// current context as it was. Every failure is a SharedMemoryError.
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

  // How other processes find memory: a part of an allocation of the driver's.
  struct Exported {
    CudaIPCHandle handle;
    uint64_t offset;
    uint64_t size;  // of the allocation
  };

  // An allocation of the driver's, or a chunk that it has mapped.
  struct Allocation {
    char* base;
    uint64_t size;
  };

  // A chunk of the memory of a device, which is mapped at addresses of its own.
  struct Chunk {
    uint64_t size;
    int64_t fd;  // a descriptor that the driver has made for it
  };

  // Loads the driver at the first call; it is never unloaded, since streams and
  // tensors outlive static destructors. Throws where there is no driver, and in
  // a process that was forked from one that has used it.
  static CudaIPCDriver& Instance();

  const CudaDeviceUuid& Uuid(int device) const { return At(device).uuid; }
  // Returns the number of a device in this process; none if this process cannot
  // see the device.
  std::optional<int> FindDevice(const CudaDeviceUuid& uuid) const;
  // Returns the number of a received tensor's device. Throws if this process
  // cannot see the device.
  int DeviceOf(const CudaDeviceUuid& uuid) const;

  // Returns none for memory that has no handle: of the virtual-memory
  // allocator, or of a pool.
  std::optional<Exported> Export(int device, const void* address);
  // Requires: the handle is not open in this process, which did not export it.
  char* Open(int device, const CudaIPCHandle& handle);
  // Returns the allocation, or the chunk, that an address is in; none if the
  // driver knows of none there.
  std::optional<Allocation> AllocationAt(int device, const char* address);
  void Close(int device, char* base);

  // Makes a descriptor for the chunk that is mapped at an address. Returns none
  // for memory that is not in a chunk, for a chunk that was not created to be
  // exported, and if the driver has no chunks.
  std::optional<int> ExportChunk(int device, char* address);
  // Maps chunks of other processes one after the other, for this device, and
  // for others that the driver allows it for. `take` returns a descriptor of
  // this process for the `fd` of a chunk. Returns the first address.
  char* MapChunks(int device,
                  const std::vector<Chunk>& chunks,
                  const std::function<FileDescriptor(int64_t fd)>& take);
  // Ends the mapping of all chunks that were mapped together. Requires: no
  // device has more work on them.
  void UnmapChunks(int device, char* base, uint64_t size);

  // Makes an event that other processes can wait for; none if the driver makes
  // no more.
  std::optional<SharedEvent> MakeEvent(int device);
  Event OpenEvent(int device, const CudaIPCHandle& handle);
  void DestroyEvent(int device, Event event);
  void Record(int device, Event event, Stream stream);
  // Returns whether the work is done that was there when the event was
  // recorded.
  bool IsDone(int device, Event event);
  void Wait(int device, Stream stream, Event event);
  // Waits for all work that this process has given to the device. Do not hold a
  // lock meanwhile that the work, or a callback of it, could need.
  void Synchronize(int device);
  // Does so for each device that may work on chunks of other processes: those
  // that this process has used. Makes no context of another device.
  void SynchronizeChunks();

 private:
  struct Functions;
  struct ChunkFunctions;
  class Current;

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
  std::unique_ptr<ChunkFunctions> call_chunks_;  // empty if it has none
  std::vector<Device> devices_;
  std::mutex contexts_;
};

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
