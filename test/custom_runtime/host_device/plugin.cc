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

// The plugin that Paddle loads: C_DeviceInterface over the parts in
// host_device.h. It brings no kernels, so Paddle copies operands to the host
// and runs its CPU kernels on them. Paddle has no such fallback
// for strided views, so programs that use them want FLAGS_use_stride_kernel=0.
//
// InitPlugin reads two variables of the environment:
//   HOST_DEVICE_COUNT   the number of devices, 1 to 16; 4 by default;
//   HOST_DEVICE_MEMORY  the bytes of memory of each; 1 GiB by default.

#include <charconv>
#include <cstring>
#include <iostream>
#include <numeric>
#include <optional>
#include <sstream>
#include <system_error>
#include <type_traits>

#include "host_device.h"

namespace {

using host_device::Event;
using host_device::HandleTable;
using host_device::Memory;
using host_device::Runtime;
using host_device::Stream;

char device_type[] = "custom_cpu";  // Paddle takes it as non-const.

// Set by InitPlugin before Paddle can call anything that reads it.
std::unique_ptr<Runtime> runtime;

// As in a CUDA runtime, each thread has a current device of its own.
thread_local int current_device = 0;

// Prints one line. It goes out in one piece, so that lines of several threads
// do not mix.
template <typename... Parts>
void Complain(const Parts&... parts) {
  std::ostringstream line;
  line << device_type << ": ";
  (line << ... << parts) << '\n';
  std::cerr << line.str();
}

// Returns null, having said so, when there is no such device.
Memory* FindMemory(C_Device device) {
  const auto index = static_cast<size_t>(device->id);
  if (index < runtime->memory.size()) return &runtime->memory[index];
  Complain("there is no device ", device->id);
  return nullptr;
}

// Returns the block that holds [ptr, ptr + size), or null, having said so, when
// no live block of the device does.
std::shared_ptr<void> Pin(C_Device device, const void* ptr, size_t size) {
  const Memory* const memory = FindMemory(device);
  if (memory == nullptr) return nullptr;
  auto block = memory->Pin(ptr, size);
  if (block == nullptr) {
    Complain("device ",
             device->id,
             " has no live memory that holds ",
             size,
             " bytes at ",
             ptr);
  }
  return block;
}

template <typename Object>
HandleTable<Object>& Table() {
  return std::get<HandleTable<Object>>(runtime->tables);
}

// Returns null, having said so, when the device has no such object.
template <typename Object>
std::shared_ptr<Object> Find(C_Device device, typename Object::Handle handle) {
  auto object = Table<Object>().Find(handle);
  if (object != nullptr && object->Device() == device->id) return object;
  const char* const kind =
      std::is_same_v<Object, Stream> ? "stream " : "event ";
  Complain("device ", device->id, " has no live ", kind, handle);
  return nullptr;
}

template <typename Object>
C_Status Create(C_Device device, typename Object::Handle* handle) {
  if (FindMemory(device) == nullptr) return C_ERROR;
  *handle = Table<Object>().Create(device->id);
  return C_SUCCESS;
}

template <typename Object>
C_Status Destroy(C_Device device, typename Object::Handle handle) {
  if (Find<Object>(device, handle) == nullptr) return C_ERROR;
  // Of several threads that have found it, one destroys it.
  return Table<Object>().Destroy(handle) ? C_SUCCESS : C_ERROR;
}

template <typename Object>
C_Status Query(C_Device device, typename Object::Handle handle) {
  const auto object = Find<Object>(device, handle);
  if (object == nullptr) return C_ERROR;
  return object->Complete() ? C_SUCCESS : C_FAILED;
}

template <typename Object>
C_Status Synchronize(C_Device device, typename Object::Handle handle) {
  const auto object = Find<Object>(device, handle);
  if (object == nullptr) return C_ERROR;
  object->Synchronize();
  return C_SUCCESS;
}

template <typename Work>
C_Status Submit(C_Device device, C_Stream handle, const Work& work) {
  const auto stream = Find<Stream>(device, handle);
  return stream == nullptr ? C_ERROR : stream->Run(work);
}

C_Status AddCallback(C_Device device,
                     C_Stream stream,
                     C_Callback callback,
                     void* data) {
  return Submit(device, stream, [=] {
    C_Status status = C_SUCCESS;
    callback(device, stream, data, &status);
    return status;
  });
}

C_Status WaitEvent(C_Device device, C_Stream stream, C_Event handle) {
  // Not Find: to wait for another device is to wait for an event of its own.
  const auto event = Table<Event>().Find(handle);
  if (event == nullptr) {
    Complain("there is no live event ", handle, " to wait for");
    return C_ERROR;
  }
  return Submit(device, stream, [&] {
    event->Synchronize();
    return C_SUCCESS;
  });
}

C_Status RecordEvent(C_Device device, C_Stream stream, C_Event event) {
  const auto found_stream = Find<Stream>(device, stream);
  const auto found_event = Find<Event>(device, event);
  if (found_stream == nullptr || found_event == nullptr) return C_ERROR;
  found_event->Record(found_stream);
  return C_SUCCESS;
}

C_Status SynchronizeDevice(C_Device device) {
  if (FindMemory(device) == nullptr) return C_ERROR;
  for (const auto& stream : Table<Stream>().All()) {
    if (stream->Device() == device->id) stream->Synchronize();
  }
  return C_SUCCESS;
}

C_Status SetDevice(C_Device device) {
  if (FindMemory(device) == nullptr) return C_ERROR;
  current_device = device->id;
  return C_SUCCESS;
}

C_Status GetDevice(C_Device device) {
  device->id = current_device;
  return C_SUCCESS;
}

C_Status GetDeviceCount(size_t* count) {
  *count = runtime->memory.size();
  return C_SUCCESS;
}

C_Status GetDeviceList(size_t* devices) {
  std::iota(devices, devices + runtime->memory.size(), 0);
  return C_SUCCESS;
}

C_Status Allocate(C_Device device, void** ptr, size_t size) {
  Memory* const memory = FindMemory(device);
  if (memory == nullptr) return C_ERROR;
  *ptr = memory->Allocate(size);
  if (*ptr != nullptr) return C_SUCCESS;
  Complain("device ",
           device->id,
           " cannot allocate ",
           size,
           " bytes: ",
           memory->Available(),
           " of ",
           memory->Total(),
           " are free");
  return C_FAILED;
}

C_Status Deallocate(C_Device device, void* ptr, size_t size) {
  Memory* const memory = FindMemory(device);
  if (memory == nullptr) return C_ERROR;
  if (memory->Free(ptr, size)) return C_SUCCESS;
  Complain(
      "device ", device->id, " has no live block of ", size, " bytes at ", ptr);
  return C_ERROR;
}

C_Status GetMemoryStats(C_Device device, size_t* total, size_t* free) {
  const Memory* const memory = FindMemory(device);
  if (memory == nullptr) return C_ERROR;
  *total = memory->Total();
  *free = memory->Available();
  return C_SUCCESS;
}

// Paddle aligns the tensors that it places in one allocation to this.
C_Status GetMinChunkSize(C_Device, size_t* size) {
  *size = host_device::kAlignment;
  return C_SUCCESS;
}

// A copy of nothing may come without a pointer, which memcpy does not take.
void Copy(void* dst, const void* src, size_t size) {
  if (size > 0) std::memcpy(dst, src, size);
}

C_Status CopyH2D(C_Device device, void* dst, const void* src, size_t size) {
  const auto block = Pin(device, dst, size);
  if (block == nullptr) return C_ERROR;
  Copy(dst, src, size);
  return C_SUCCESS;
}

C_Status CopyD2H(C_Device device, void* dst, const void* src, size_t size) {
  const auto block = Pin(device, src, size);
  if (block == nullptr) return C_ERROR;
  Copy(dst, src, size);
  return C_SUCCESS;
}

C_Status CopyP2P(
    C_Device to, C_Device from, void* dst, const void* src, size_t size) {
  const auto dst_block = Pin(to, dst, size);
  return dst_block == nullptr ? C_ERROR : CopyD2H(from, dst, src, size);
}

C_Status CopyD2D(C_Device device, void* dst, const void* src, size_t size) {
  return CopyP2P(device, device, dst, src, size);
}

template <C_Status (*copy)(C_Device, void*, const void*, size_t)>
C_Status Async(
    C_Device device, C_Stream stream, void* dst, const void* src, size_t size) {
  return Submit(device, stream, [=] { return copy(device, dst, src, size); });
}

// Paddle passes a stream of the device that it copies to.
C_Status AsyncP2P(C_Device to,
                  C_Device from,
                  C_Stream stream,
                  void* dst,
                  const void* src,
                  size_t size) {
  return Submit(to, stream, [=] { return CopyP2P(to, from, dst, src, size); });
}

void FillInterface(C_DeviceInterface* interface) {
  interface->set_device = SetDevice;
  interface->get_device = GetDevice;
  interface->get_device_count = GetDeviceCount;
  interface->get_device_list = GetDeviceList;
  interface->synchronize_device = SynchronizeDevice;
  interface->create_stream = Create<Stream>;
  interface->destroy_stream = Destroy<Stream>;
  interface->query_stream = Query<Stream>;
  interface->synchronize_stream = Synchronize<Stream>;
  interface->stream_add_callback = AddCallback;
  interface->stream_wait_event = WaitEvent;
  interface->create_event = Create<Event>;
  interface->destroy_event = Destroy<Event>;
  interface->query_event = Query<Event>;
  interface->synchronize_event = Synchronize<Event>;
  interface->record_event = RecordEvent;
  interface->device_memory_allocate = Allocate;
  interface->device_memory_deallocate = Deallocate;
  interface->device_memory_stats = GetMemoryStats;
  interface->device_min_chunk_size = GetMinChunkSize;
  interface->memory_copy_h2d = CopyH2D;
  interface->memory_copy_d2h = CopyD2H;
  interface->memory_copy_d2d = CopyD2D;
  interface->memory_copy_p2p = CopyP2P;
  interface->async_memory_copy_h2d = Async<CopyH2D>;
  interface->async_memory_copy_d2h = Async<CopyD2H>;
  interface->async_memory_copy_d2d = Async<CopyD2D>;
  interface->async_memory_copy_p2p = AsyncP2P;
}

// Returns nothing, having said so, when the variable is set to anything other
// than a decimal number from 1 to `max`.
std::optional<size_t> ReadVariable(const char* name,
                                   size_t fallback,
                                   size_t max) {
  const char* const text = std::getenv(name);
  if (text == nullptr) return fallback;
  const char* const end = text + std::strlen(text);
  size_t value = 0;
  const auto [rest, error] = std::from_chars(text, end, value);
  const bool is_number = error == std::errc() && rest == end;
  if (is_number && 1 <= value && value <= max) return value;
  Complain(
      "no devices: ", name, " is \"", text, "\", not a number from 1 to ", max);
  return std::nullopt;
}

}  // namespace

// Paddle leaves out a plugin that sets no device type.
[[gnu::visibility("default")]] void InitPlugin(CustomRuntimeParams* params) {
  PADDLE_CUSTOM_RUNTIME_CHECK_VERSION(params);
  const auto count = ReadVariable("HOST_DEVICE_COUNT", 4, 16);
  const auto memory =
      ReadVariable("HOST_DEVICE_MEMORY", size_t{1} << 30, size_t{1} << 40);
  if (!count || !memory) return;
  runtime = std::make_unique<Runtime>(*count, *memory);
  FillInterface(params->interface);
  params->device_type = device_type;
  params->sub_device_type = device_type;
}
