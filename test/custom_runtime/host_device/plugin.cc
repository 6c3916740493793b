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

// The plugin that Paddle loads: it implements C_DeviceInterface with the parts
// in host_device.h. For operators without a kernel in kernels.cc, Paddle copies
// the operands to the host and runs its CPU kernels. Paddle has no such
// fallback for strided views, so programs that use them must set
// FLAGS_use_stride_kernel=0.
//
// Each stream runs its work on its own thread; events make streams wait for
// each other. Calls without a stream run immediately, on the calling thread,
// and wait for no stream, as in CUDA for streams that were created with
// cudaStreamNonBlocking. As in CUDA, freeing memory waits for all work of its
// device.
//
// A copy on a stream, an event record and a kernel launch are complete when the
// call returns, unless the stream has other work or a delay. They still run on
// the stream's thread. Paddle 3.3 copies from one device to another without
// waiting for the source's streams: only a fast device hides this bug, and only
// a delay exposes it each time.
//
// As in CUDA, there are two kinds of host memory. With memory from
// host_memory_allocate, copies on streams are asynchronous. With all other host
// memory, the caller may reuse or read it as soon as the call returns: a copy
// to the device stages the bytes first, and a copy from the device waits until
// it is complete.
//
// Work on a stream must not call functions that wait for streams; such calls
// fail.
//
// InitPlugin reads three environment variables:
//   HOST_DEVICE_COUNT   the number of devices, 1 to 16; default 4;
//   HOST_DEVICE_MEMORY  the bytes of memory per device; default 1 GiB;
//   HOST_DEVICE_DELAY   the microseconds that each operation on a stream sleeps
//                       before it runs, at most 10 s; default 0.

#include <pthread.h>

#include <charconv>
#include <cstring>
#include <iostream>
#include <numeric>
#include <optional>
#include <sstream>
#include <system_error>
#include <type_traits>

#include "test/custom_runtime/host_device/host_device.h"

namespace {

using host_device::Event;
using host_device::HandleTable;
using host_device::Memory;
using host_device::Position;
using host_device::Runtime;
using host_device::Stream;

constexpr uint64_t kMaxDelay = 10'000'000;  // In microseconds.

char device_type[] = "custom_cpu";  // Paddle takes it as non-const.

// Set by InitPlugin before Paddle can call anything that reads it.
std::unique_ptr<Runtime> runtime;

// As in the CUDA runtime, each thread has its own current device.
thread_local int current_device = 0;

// Prints one line, with a single write, so that lines of several threads do not
// mix.
template <typename... Parts>
void PrintError(const Parts&... parts) {
  std::ostringstream line;
  line << device_type << ": ";
  (line << ... << parts) << '\n';
  std::cerr << line.str();
}

// Prints an error and returns null if the device does not exist.
Runtime::Device* FindDevice(C_Device device) {
  const auto index = static_cast<size_t>(device->id);
  if (index < runtime->devices.size()) return &runtime->devices[index];
  PrintError("there is no device ", device->id);
  return nullptr;
}

Memory* FindMemory(C_Device device) {
  Runtime::Device* const found = FindDevice(device);
  return found == nullptr ? nullptr : &found->memory;
}

// Pins the device's live block that contains [ptr, ptr + size). Prints an error
// and returns null if there is none.
std::shared_ptr<void> Pin(C_Device device, const void* ptr, size_t size) {
  Memory* const memory = FindMemory(device);
  if (memory == nullptr) return nullptr;
  auto block = memory->Pin(ptr, size);
  if (block == nullptr) {
    PrintError("device ",
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

// Prints an error and returns null if the device has no such object.
template <typename Object>
std::shared_ptr<Object> Find(C_Device device, typename Object::Handle handle) {
  auto object = Table<Object>().Find(handle);
  if (object != nullptr && object->Device() == device->id) return object;
  const char* const kind =
      std::is_same_v<Object, Stream> ? "stream " : "event ";
  PrintError("device ", device->id, " has no live ", kind, handle);
  return nullptr;
}

template <typename Object>
C_Status Create(C_Device device, typename Object::Handle* handle) {
  if (FindDevice(device) == nullptr) return C_ERROR;
  *handle = Table<Object>().Create(device->id);
  return C_SUCCESS;
}

C_Status DestroyStream(C_Device device, C_Stream handle) {
  if (Find<Stream>(device, handle) == nullptr) return C_ERROR;
  // Of several threads that find the stream, one destroys it.
  auto stream = Table<Stream>().Destroy(handle);
  if (stream == nullptr) return C_ERROR;
  runtime->Retire(std::move(stream));
  return C_SUCCESS;
}

C_Status DestroyEvent(C_Device device, C_Event handle) {
  if (Find<Event>(device, handle) == nullptr) return C_ERROR;
  return Table<Event>().Destroy(handle) == nullptr ? C_ERROR : C_SUCCESS;
}

template <typename Object>
C_Status Query(C_Device device, typename Object::Handle handle) {
  const auto object = Find<Object>(device, handle);
  if (object == nullptr) return C_ERROR;
  return object->Last().Complete() ? C_SUCCESS : C_FAILED;
}

// Prints an error and returns false if this thread must not wait: it runs work
// of a stream, and could wait for this work.
bool MayWait() {
  if (!host_device::is_worker) return true;
  PrintError(
      "work on a stream must not wait for streams or events, free memory or "
      "copy to the host; do it in another thread");
  return false;
}

C_Status SynchronizeEvent(C_Device device, C_Event handle) {
  const auto event = Find<Event>(device, handle);
  if (event == nullptr || !MayWait()) return C_ERROR;
  event->Last().Wait();
  return C_SUCCESS;
}

// Waits for a stream and returns its first failure since the last wait, if any.
C_Status Finish(Stream* stream) {
  stream->Last().Wait();
  return stream->TakeFailure();
}

C_Status SynchronizeStream(C_Device device, C_Stream handle) {
  const auto stream = Find<Stream>(device, handle);
  if (stream == nullptr || !MayWait()) return C_ERROR;
  return Finish(stream.get());
}

// Waits for all streams of the device and returns the first failure, if any.
C_Status SynchronizeDevice(C_Device device) {
  if (FindDevice(device) == nullptr || !MayWait()) return C_ERROR;
  C_Status status = C_SUCCESS;
  for (const auto& stream : runtime->Streams()) {
    if (stream->Device() != device->id) continue;
    const C_Status failure = Finish(stream.get());
    if (status == C_SUCCESS) status = failure;
  }
  return status;
}

uint64_t Now() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

std::chrono::microseconds DelayOf(const Stream& stream) {
  return std::chrono::microseconds(runtime->devices[stream.Device()].delay +
                                   stream.delay);
}

// Submits work that the trace records with `kind`. If `work` returns a status
// other than C_SUCCESS, the stream fails.
template <typename Work>
Position Submit(C_Stream handle, Stream* stream, const char* kind, Work work) {
  const int device = stream->Device();
  const std::chrono::microseconds delay = DelayOf(*stream);
  // The stream outlives its work, and so does the runtime.
  return stream->Submit([=, trace = &runtime->trace] {
    const uint64_t begin = Now();
    if (delay.count() > 0) std::this_thread::sleep_for(delay);
    const C_Status status = work();
    trace->Add({0, device, handle, kind, begin, Now()});
    if (status != C_SUCCESS) stream->Fail(status);
  });
}

// Submits work that never waits. Waits for it if no earlier work or delay
// blocks it.
template <typename Work>
Position SubmitShort(C_Stream handle,
                     Stream* stream,
                     const char* kind,
                     Work work) {
  const Position done = Submit(handle, stream, kind, std::move(work));
  if (DelayOf(*stream).count() == 0 && done.IsNext()) done.Wait();
  return done;
}

C_Status AddCallback(C_Device device,
                     C_Stream handle,
                     C_Callback callback,
                     void* data) {
  const auto stream = Find<Stream>(device, handle);
  if (stream == nullptr) return C_ERROR;
  // A separate C_Device_st, since the caller's may no longer exist then.
  const auto call = [callback, id = device->id, handle, data] {
    C_Device_st own{id};
    C_Status status = C_SUCCESS;
    callback(&own, handle, data, &status);
    return status;
  };
  Submit(handle, stream.get(), "stream_add_callback", call);
  return C_SUCCESS;
}

C_Status WaitEvent(C_Device device, C_Stream handle, C_Event event_handle) {
  // Not Find: the event may belong to another device.
  const auto event = Table<Event>().Find(event_handle);
  if (event == nullptr) {
    PrintError("there is no live event ", event_handle, " to wait for");
    return C_ERROR;
  }
  const auto stream = Find<Stream>(device, handle);
  if (stream == nullptr) return C_ERROR;
  Submit(handle, stream.get(), "stream_wait_event", [last = event->Last()] {
    last.Wait();
    return C_SUCCESS;
  });
  return C_SUCCESS;
}

C_Status RecordEvent(C_Device device, C_Stream handle, C_Event event_handle) {
  const auto stream = Find<Stream>(device, handle);
  const auto event = Find<Event>(device, event_handle);
  if (stream == nullptr || event == nullptr) return C_ERROR;
  event->Record(SubmitShort(
      handle, stream.get(), "record_event", [] { return C_SUCCESS; }));
  return C_SUCCESS;
}

C_Status SetDevice(C_Device device) {
  if (FindDevice(device) == nullptr) return C_ERROR;
  current_device = device->id;
  return C_SUCCESS;
}

C_Status GetDevice(C_Device device) {
  device->id = current_device;
  return C_SUCCESS;
}

C_Status GetDeviceCount(size_t* count) {
  *count = runtime->devices.size();
  return C_SUCCESS;
}

C_Status GetDeviceList(size_t* devices) {
  std::iota(devices, devices + runtime->devices.size(), 0);
  return C_SUCCESS;
}

C_Status Allocate(C_Device device, void** ptr, size_t size) {
  Memory* const memory = FindMemory(device);
  if (memory == nullptr) return C_ERROR;
  *ptr = memory->Allocate(size);
  if (*ptr != nullptr) return C_SUCCESS;
  PrintError("device ",
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

// Waits for all work of the device, since kernels may use the block without the
// plugin's knowledge, and for copies of other devices, which pin the block.
C_Status Deallocate(C_Device device, void* ptr, size_t size) {
  Memory* const memory = FindMemory(device);
  if (memory == nullptr || !MayWait()) return C_ERROR;
  for (const auto& stream : runtime->Streams()) {
    if (stream->Device() == device->id) stream->Last().Wait();
  }
  if (memory->Free(ptr, size)) return C_SUCCESS;
  PrintError(
      "device ", device->id, " has no live block of ", size, " bytes at ", ptr);
  return C_ERROR;
}

C_Status AllocateHost(C_Device device, void** ptr, size_t size) {
  if (FindDevice(device) == nullptr) return C_ERROR;
  *ptr = runtime->host.Allocate(size);
  if (*ptr != nullptr) return C_SUCCESS;
  PrintError("the host cannot allocate ", size, " bytes");
  return C_FAILED;
}

// Waits for the copies that use the block.
C_Status DeallocateHost(C_Device device, void* ptr, size_t size) {
  if (FindDevice(device) == nullptr || !MayWait()) return C_ERROR;
  if (runtime->host.Free(ptr, size)) return C_SUCCESS;
  PrintError("the host has no live block of ", size, " bytes at ", ptr);
  return C_ERROR;
}

C_Status GetMemoryStats(C_Device device, size_t* total, size_t* free) {
  const Memory* const memory = FindMemory(device);
  if (memory == nullptr) return C_ERROR;
  *total = memory->Total();
  *free = memory->Available();
  return C_SUCCESS;
}

// Paddle aligns tensors within an allocation to this size.
C_Status GetMinChunkSize(C_Device, size_t* size) {
  *size = host_device::kAlignment;
  return C_SUCCESS;
}

// An empty copy may have a null pointer, which memcpy does not allow.
void Copy(void* dst, const void* src, size_t size) {
  if (size > 0) std::memcpy(dst, src, size);
}

C_Status SetMemory(C_Device device,
                   void* ptr,
                   unsigned char value,
                   size_t size) {
  const auto block = Pin(device, ptr, size);
  if (block == nullptr) return C_ERROR;
  std::memset(ptr, value, size);
  return C_SUCCESS;
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

// Keeps the memory of a copy alive until the copy is complete.
using Block = std::shared_ptr<const void>;

// Submits a copy, and keeps its source and destination blocks.
Position SubmitCopy(C_Stream handle,
                    Stream* stream,
                    const char* kind,
                    void* dst,
                    const void* src,
                    size_t size,
                    const std::array<Block, 2>& blocks) {
  return SubmitShort(handle, stream, kind, [dst, src, size, blocks] {
    Copy(dst, src, size);
    return C_SUCCESS;
  });
}

C_Status AsyncH2D(
    C_Device device, C_Stream handle, void* dst, const void* src, size_t size) {
  const auto stream = Find<Stream>(device, handle);
  const Block dst_block = Pin(device, dst, size);
  if (stream == nullptr || dst_block == nullptr) return C_ERROR;
  Block src_block = runtime->host.Pin(src, size);
  if (src_block == nullptr) {
    const std::shared_ptr<unsigned char[]> bytes(new unsigned char[size]);
    Copy(bytes.get(), src, size);
    src = bytes.get();
    src_block = bytes;
  }
  SubmitCopy(handle,
             stream.get(),
             "async_memory_copy_h2d",
             dst,
             src,
             size,
             {dst_block, src_block});
  return C_SUCCESS;
}

C_Status AsyncD2H(
    C_Device device, C_Stream handle, void* dst, const void* src, size_t size) {
  const auto stream = Find<Stream>(device, handle);
  const Block src_block = Pin(device, src, size);
  if (stream == nullptr || src_block == nullptr) return C_ERROR;
  const Block dst_block = runtime->host.Pin(dst, size);
  if (dst_block == nullptr && !MayWait()) return C_ERROR;
  const Position copied = SubmitCopy(handle,
                                     stream.get(),
                                     "async_memory_copy_d2h",
                                     dst,
                                     src,
                                     size,
                                     {dst_block, src_block});
  if (dst_block == nullptr) copied.Wait();
  return C_SUCCESS;
}

C_Status SubmitDeviceCopy(C_Device to,
                          C_Device from,
                          C_Stream handle,
                          const char* kind,
                          void* dst,
                          const void* src,
                          size_t size) {
  const auto stream = Find<Stream>(to, handle);
  const Block dst_block = Pin(to, dst, size);
  const Block src_block = Pin(from, src, size);
  if (stream == nullptr || dst_block == nullptr || src_block == nullptr) {
    return C_ERROR;
  }
  SubmitCopy(
      handle, stream.get(), kind, dst, src, size, {dst_block, src_block});
  return C_SUCCESS;
}

C_Status AsyncD2D(
    C_Device device, C_Stream stream, void* dst, const void* src, size_t size) {
  return SubmitDeviceCopy(
      device, device, stream, "async_memory_copy_d2d", dst, src, size);
}

// Paddle passes a stream of the destination device.
C_Status AsyncP2P(C_Device to,
                  C_Device from,
                  C_Stream stream,
                  void* dst,
                  const void* src,
                  size_t size) {
  return SubmitDeviceCopy(
      to, from, stream, "async_memory_copy_p2p", dst, src, size);
}

void FillInterface(C_DeviceInterface* interface) {
  interface->set_device = SetDevice;
  interface->get_device = GetDevice;
  interface->get_device_count = GetDeviceCount;
  interface->get_device_list = GetDeviceList;
  interface->synchronize_device = SynchronizeDevice;
  interface->create_stream = Create<Stream>;
  interface->destroy_stream = DestroyStream;
  interface->query_stream = Query<Stream>;
  interface->synchronize_stream = SynchronizeStream;
  interface->stream_add_callback = AddCallback;
  interface->stream_wait_event = WaitEvent;
  interface->create_event = Create<Event>;
  interface->destroy_event = DestroyEvent;
  interface->query_event = Query<Event>;
  interface->synchronize_event = SynchronizeEvent;
  interface->record_event = RecordEvent;
  interface->device_memory_allocate = Allocate;
  interface->device_memory_deallocate = Deallocate;
  interface->device_memory_set = SetMemory;
  interface->host_memory_allocate = AllocateHost;
  interface->host_memory_deallocate = DeallocateHost;
  interface->device_memory_stats = GetMemoryStats;
  interface->device_min_chunk_size = GetMinChunkSize;
  interface->memory_copy_h2d = CopyH2D;
  interface->memory_copy_d2h = CopyD2H;
  interface->memory_copy_d2d = CopyD2D;
  interface->memory_copy_p2p = CopyP2P;
  interface->async_memory_copy_h2d = AsyncH2D;
  interface->async_memory_copy_d2h = AsyncD2H;
  interface->async_memory_copy_d2d = AsyncD2D;
  interface->async_memory_copy_p2p = AsyncP2P;
}

// Prints an error and returns nullopt if the variable is set but is not a
// decimal number from `min` to `max`.
std::optional<size_t> ReadVariable(const char* name,
                                   size_t fallback,
                                   size_t min,
                                   size_t max) {
  const char* const text = std::getenv(name);
  if (text == nullptr) return fallback;
  const char* const end = text + std::strlen(text);
  size_t value = 0;
  const auto [rest, error] = std::from_chars(text, end, value);
  const bool is_number = error == std::errc() && rest == end;
  if (is_number && min <= value && value <= max) return value;
  PrintError("no devices: ",
             name,
             " is \"",
             text,
             "\", not a number from ",
             min,
             " to ",
             max);
  return std::nullopt;
}

void LockState() { host_device::state_mutex.lock(); }

void UnlockState() { host_device::state_mutex.unlock(); }

void ResetInChild() {
  if (runtime != nullptr) runtime->ResetInChild();
  UnlockState();
}

}  // namespace

// Paddle ignores a plugin that sets no device type.
[[gnu::visibility("default")]] void InitPlugin(CustomRuntimeParams* params) {
  PADDLE_CUSTOM_RUNTIME_CHECK_VERSION(params);
  const auto count = ReadVariable("HOST_DEVICE_COUNT", 4, 1, 16);
  const auto memory = ReadVariable(
      "HOST_DEVICE_MEMORY", size_t{1} << 30, 1, host_device::kMaxMemory);
  const auto delay = ReadVariable("HOST_DEVICE_DELAY", 0, 0, kMaxDelay);
  if (!count || !memory || !delay) return;
  // Only once, although tests call this function repeatedly.
  static const int fork_handlers =
      pthread_atfork(LockState, UnlockState, ResetInChild);
  if (fork_handlers != 0) {
    PrintError("no devices: pthread_atfork fails with error ", fork_handlers);
    return;
  }
  runtime = std::make_unique<Runtime>(*count, *memory, *delay);
  FillInterface(params->interface);
  params->device_type = device_type;
  params->sub_device_type = device_type;
}

C_Status HostDeviceSetDelay(int32_t device,
                            C_Stream stream,
                            uint64_t microseconds) {
  if (microseconds > kMaxDelay) {
    PrintError("a delay of ",
               microseconds,
               " microseconds is more than the longest one, ",
               kMaxDelay);
    return C_ERROR;
  }
  C_Device_st handle{device};
  Runtime::Device* const whole = FindDevice(&handle);
  if (whole == nullptr) return C_ERROR;
  if (stream == nullptr) {
    whole->delay = microseconds;
    return C_SUCCESS;
  }
  const auto found = Find<Stream>(&handle, stream);
  if (found == nullptr) return C_ERROR;
  found->delay = microseconds;
  return C_SUCCESS;
}

C_Status HostDeviceLaunch(C_Stream stream,
                          const char* kind,
                          void (*function)(void* argument),
                          void* argument) {
  if (function == nullptr) {
    PrintError("there is no function to launch as ", kind);
    return C_ERROR;
  }
  const auto found = Table<Stream>().Find(stream);
  if (found == nullptr) {
    PrintError("there is no live stream ", stream, " to launch ", kind, " on");
    return C_ERROR;
  }
  SubmitShort(stream, found.get(), kind, [=] {
    function(argument);
    return C_SUCCESS;
  });
  return C_SUCCESS;
}

size_t HostDeviceTakeTrace(HostDeviceOperation* operations, size_t capacity) {
  return runtime->trace.Take(operations, capacity);
}
