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

#include "paddle/phi/core/memory/allocation/shared_memory/cuda_ipc_driver.h"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <utility>

#include "paddle/phi/core/memory/allocation/shared_memory/shared_memory_error.h"

namespace paddle {
namespace memory {
namespace allocation {

namespace {

using Kind = SharedMemoryError::Kind;

// The numbers are the same in CUDA and HIP.
enum Code : int {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kNoDevice = 100,
  kPeerAccessUnsupported = 217,
  kInvalidHandle = 400,
  kNotFound = 500,
  kNotReady = 600,
  kNotPermitted = 800,
  kNotSupported = 801,
};
constexpr unsigned kLazyPeerAccess = 1;
constexpr unsigned kEventDisableTiming = 2;
constexpr unsigned kEventInterprocess = 4;
constexpr int kPosixDescriptor = 1;
constexpr int kOnDevice = 1;
constexpr int kReadWrite = 3;

// Relaxed is enough: the forking thread itself has written or read `in_use`
// before, and the child has one thread when its handler writes
// `used_before_fork`.
std::atomic<bool> in_use{false};
std::atomic<bool> used_before_fork{false};

[[noreturn]] void ThrowForked() {
  throw SharedMemoryError(
      Kind::kUnavailable,
      "Cannot use a GPU: this process was forked from one that has used a GPU, "
      "which no driver supports. Start it with "
      "paddle.incubate.multiprocessing.get_context('spawn'), or call "
      "set_start_method('spawn') first.");
}

// A driver's library: its file names, and its names for the functions, in the
// order of CudaIPCDriver::Functions.
//
// Why not phi::dynload: its wrappers include the headers of a GPU toolkit, so
// they exist only in a Paddle that is built for GPUs, and they have none of the
// IPC calls. There is one set per vendor, chosen at compile time. They also do
// not check whether the library and its functions were found, but sharing has
// to report that as an error. Here one table, filled at first use, serves every
// build of Paddle, both vendors, and the stand-in driver of tests without
// Paddle.
struct Library {
  std::array<const char*, 2> names;
  std::array<const char*, 21> functions;
  // In the order of CudaIPCDriver::ChunkFunctions. Empty if they are not used;
  // older drivers have none.
  std::array<const char*, 11> chunk_functions;
};

constexpr Library kLibraries[] = {
    {{"libcuda.so.1", "libcuda.so"},
     {"cuInit",
      "cuDeviceGetCount",
      "cuDeviceGet",
      "cuDeviceGetUuid_v2",
      "cuDevicePrimaryCtxRetain",
      "cuCtxPushCurrent_v2",
      "cuCtxPopCurrent_v2",
      "cuCtxSynchronize",
      "cuMemGetAddressRange_v2",
      "cuIpcGetMemHandle",
      "cuIpcOpenMemHandle_v2",
      "cuIpcCloseMemHandle",
      "cuIpcGetEventHandle",
      "cuIpcOpenEventHandle",
      "cuEventCreate",
      "cuEventRecord",
      "cuEventQuery",
      "cuEventDestroy_v2",
      "cuStreamWaitEvent",
      "cuGetErrorName",
      "cuGetErrorString"},
     {"cuMemRetainAllocationHandle",
      "cuMemGetAllocationPropertiesFromHandle",
      "cuMemExportToShareableHandle",
      "cuMemImportFromShareableHandle",
      "cuMemAddressReserve",
      "cuMemMap",
      "cuMemSetAccess",
      "cuMemUnmap",
      "cuMemRelease",
      "cuMemAddressFree",
      "cuDevicePrimaryCtxGetState"}},
    {{"libamdhip64.so", "libamdhip64.so.6"},
     {"hipInit",
      "hipGetDeviceCount",
      "hipDeviceGet",
      "hipDeviceGetUuid",
      "hipDevicePrimaryCtxRetain",
      "hipCtxPushCurrent",
      "hipCtxPopCurrent",
      "hipDeviceSynchronize",
      "hipMemGetAddressRange",
      "hipIpcGetMemHandle",
      "hipIpcOpenMemHandle",
      "hipIpcCloseMemHandle",
      "hipIpcGetEventHandle",
      "hipIpcOpenEventHandle",
      "hipEventCreateWithFlags",
      "hipEventRecord",
      "hipEventQuery",
      "hipEventDestroy",
      "hipStreamWaitEvent",
      "hipDrvGetErrorName",
      "hipDrvGetErrorString"},
     // HIP before ROCm 7.1 takes a pointer to the descriptor when it imports a
     // chunk; later versions take its number. Neither has been run, so chunks
     // are not supported.
     {}},
};

}  // namespace

std::string ToString(const CudaDeviceUuid& uuid) {
  std::string text = "GPU";
  for (size_t i = 0; i < uuid.size(); ++i) {
    char digits[4];
    bool new_group = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;
    std::snprintf(digits,
                  sizeof(digits),
                  new_group ? "-%02x" : "%02x",
                  static_cast<unsigned char>(uuid[i]));
    text += digits;
  }
  return text;
}

struct CudaIPCDriver::Functions {
  int (*Init)(unsigned flags);
  int (*DeviceGetCount)(int* count);
  int (*DeviceGet)(int* id, int ordinal);
  int (*DeviceGetUuid)(CudaDeviceUuid* uuid, int id);
  int (*PrimaryContextRetain)(void** context, int id);
  int (*ContextPush)(void* context);
  int (*ContextPop)(void** context);
  int (*ContextSynchronize)();
  int (*MemGetAddressRange)(char** base, size_t* size, const void* address);
  int (*IpcGetMemHandle)(CudaIPCHandle* handle, const void* address);
  int (*IpcOpenMemHandle)(char** base, CudaIPCHandle handle, unsigned flags);
  int (*IpcCloseMemHandle)(void* base);
  int (*IpcGetEventHandle)(CudaIPCHandle* handle, Event event);
  int (*IpcOpenEventHandle)(Event* event, CudaIPCHandle handle);
  int (*EventCreate)(Event* event, unsigned flags);
  int (*EventRecord)(Event event, Stream stream);
  int (*EventQuery)(Event event);
  int (*EventDestroy)(Event event);
  int (*StreamWaitEvent)(Stream stream, Event event, unsigned flags);
  int (*GetErrorName)(int code, const char** name);
  int (*GetErrorString)(int code, const char** text);
};

// Functions for chunks, with the types of CUDA.
struct CudaIPCDriver::ChunkFunctions {
  using Handle = uint64_t;
  struct Location {
    int type;
    int id;
  };
  struct Properties {
    int type;
    int exported_as;  // the kinds of handles to which it can be exported
    Location location;
    void* windows_metadata;
    char flags[8];
  };
  struct Access {
    Location location;
    int flags;
  };

  int (*Retain)(Handle* handle, void* address);
  int (*GetProperties)(Properties* properties, Handle handle);
  int (*Export)(void* fd, Handle handle, int kind, uint64_t flags);
  int (*Import)(Handle* handle, void* fd, int kind);
  int (*Reserve)(
      char** base, size_t size, size_t alignment, char* wanted, uint64_t flags);
  int (*Map)(
      char* address, size_t size, size_t offset, Handle handle, uint64_t flags);
  int (*SetAccess)(char* base, size_t size, const Access* access, size_t count);
  int (*Unmap)(char* base, size_t size);
  int (*Release)(Handle handle);
  int (*Unreserve)(char* base, size_t size);
  int (*PrimaryContextState)(int id, unsigned* flags, int* exists);
};

// Makes a device's context current for the calling thread, and restores the
// previous one.
class CudaIPCDriver::ContextGuard {
 public:
  ContextGuard(CudaIPCDriver* driver, int device) : call_(*driver->call_) {
    if (used_before_fork.load(std::memory_order_relaxed)) ThrowForked();
    driver->Enforce(call_.ContextPush(driver->ContextOf(device)),
                    "Making the context of a device current");
  }
  ContextGuard(const ContextGuard&) = delete;
  ContextGuard& operator=(const ContextGuard&) = delete;
  ~ContextGuard() {
    void* context = nullptr;
    call_.ContextPop(&context);
  }

 private:
  const Functions& call_;
};

CudaIPCDriver& CudaIPCDriver::Instance() {
  static const int handler = pthread_atfork(nullptr, nullptr, [] {
    used_before_fork.store(in_use.load(std::memory_order_relaxed),
                           std::memory_order_relaxed);
  });
  if (handler != 0) throw std::bad_alloc();
  if (used_before_fork.load(std::memory_order_relaxed)) ThrowForked();
  static CudaIPCDriver& driver = *[] {
    // Set the flag before the driver starts: a child that is forked meanwhile
    // cannot use the driver. Only one thread at a time runs this, so a thread
    // that fails cannot reset the flag after another one has started the
    // driver.
    in_use.store(true, std::memory_order_relaxed);
    try {
      return std::unique_ptr<CudaIPCDriver>(new CudaIPCDriver).release();
    } catch (...) {
      in_use.store(false, std::memory_order_relaxed);
      throw;
    }
  }();
  return driver;
}

CudaIPCDriver::CudaIPCDriver()
    : call_(std::make_unique<Functions>()),
      call_chunks_(std::make_unique<ChunkFunctions>()) {
  std::string load_errors;
  const Library* found = nullptr;
  void* library = nullptr;
  for (const Library& candidate : kLibraries) {
    for (const char* name : candidate.names) {
      if (found != nullptr) break;
      library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
      if (library != nullptr) found = &candidate;
      if (library == nullptr) load_errors += std::string(" ") + dlerror() + ".";
    }
  }
  if (found == nullptr) {
    throw SharedMemoryError(
        Kind::kUnavailable,
        "Cannot send or receive GPU memory or events: no CUDA or HIP driver "
        "found." +
            load_errors +
            " Install one. Without it, send tensor.cpu(), and call an event's "
            "synchronize() before you tell another process.");
  }
  static_assert(sizeof(Functions) == sizeof(Library::functions));
  void** function = reinterpret_cast<void**>(call_.get());
  for (const char* name : found->functions) {
    *function = dlsym(library, name);
    if (*function++ == nullptr) {
      throw SharedMemoryError(Kind::kUnavailable,
                              std::string("The GPU driver ") + found->names[0] +
                                  " is too old: it has no " + name +
                                  ". Update it, or send tensor.cpu() instead.");
    }
  }
  static_assert(sizeof(ChunkFunctions) == sizeof(Library::chunk_functions));
  function = reinterpret_cast<void**>(call_chunks_.get());
  for (const char* name : found->chunk_functions) {
    *function = name ? dlsym(library, name) : nullptr;
    if (*function++ == nullptr) {
      call_chunks_.reset();
      break;
    }
  }
  Enforce(call_->Init(0), "Starting the GPU driver");
  int count = 0;
  Enforce(call_->DeviceGetCount(&count), "Counting the GPUs");
  for (int i = 0; i < count; ++i) {
    Device device;
    Enforce(call_->DeviceGet(&device.id, i), "Finding a GPU");
    Enforce(call_->DeviceGetUuid(&device.uuid, device.id),
            "Asking for the UUID of a GPU");
    devices_.push_back(device);
  }
}

void CudaIPCDriver::Enforce(int code, const char* doing) const {
  if (code == kSuccess) return;
  const char* name = nullptr;
  const char* text = nullptr;
  call_->GetErrorName(code, &name);
  call_->GetErrorString(code, &text);
  std::string failure =
      std::string(doing) + " failed: " + (name ? name : "unknown") + " (" +
      std::to_string(code) + "), " + (text ? text : "no description") + ".";
  switch (code) {
    case kOutOfMemory:
      throw SharedMemoryError(Kind::kExhausted, failure);
    case kInvalidHandle:
      throw SharedMemoryError(Kind::kGone, failure);
    case kNotInitialized:
      throw SharedMemoryError(
          Kind::kUnavailable,
          failure +
              " A process that was forked from one that has used a GPU cannot "
              "use it; start it with 'spawn' instead.");
    case kNoDevice:
      throw SharedMemoryError(
          Kind::kUnavailable,
          failure +
              " This process sees no GPU; change CUDA_VISIBLE_DEVICES if it "
              "hides them, or send tensor.cpu() instead.");
    case kPeerAccessUnsupported:
      throw SharedMemoryError(
          Kind::kUnavailable,
          failure +
              " The GPU of this process has no access to the memory of the "
              "sender's GPU; send tensor.cpu() instead.");
    default:
      throw SharedMemoryError(Kind::kSystem, failure);
  }
}

const CudaIPCDriver::Device& CudaIPCDriver::At(int device) const {
  if (device < 0 || device >= static_cast<int>(devices_.size())) {
    throw SharedMemoryError(Kind::kInvalid,
                            "There is no GPU " + std::to_string(device) +
                                ": this process sees " +
                                std::to_string(devices_.size()) +
                                ". Use a lower number, or change "
                                "CUDA_VISIBLE_DEVICES.");
  }
  return devices_[device];
}

void* CudaIPCDriver::ContextOf(int device) {
  int id = At(device).id;
  std::lock_guard<std::mutex> guard(contexts_);
  void*& context = devices_[device].context;
  if (context == nullptr) {
    Enforce(call_->PrimaryContextRetain(&context, id),
            "Using the context of a device");
  }
  return context;
}

std::optional<int> CudaIPCDriver::FindDevice(const CudaDeviceUuid& uuid) const {
  for (size_t i = 0; i < devices_.size(); ++i) {
    if (devices_[i].uuid == uuid) return static_cast<int>(i);
  }
  return std::nullopt;
}

int CudaIPCDriver::DeviceOf(const CudaDeviceUuid& uuid) const {
  if (std::optional<int> device = FindDevice(uuid)) return *device;
  throw SharedMemoryError(
      Kind::kUnavailable,
      "A received tensor is on " + ToString(uuid) +
          ", which this process cannot see: CUDA_VISIBLE_DEVICES or the "
          "container hides it. Make it visible, or send tensor.cpu() instead.");
}

std::optional<CudaIPCDriver::Exported> CudaIPCDriver::Export(
    int device, const void* address) {
  ContextGuard current(this, device);
  char* base = nullptr;
  size_t size = 0;
  Exported exported;
  int code = call_->MemGetAddressRange(&base, &size, address);
  if (code == kSuccess) code = call_->IpcGetMemHandle(&exported.handle, base);
  if (code == kInvalidValue) return std::nullopt;
  Enforce(code, "Making a handle of GPU memory");
  exported.offset = static_cast<const char*>(address) - base;
  exported.size = size;
  return exported;
}

char* CudaIPCDriver::Open(int device, const CudaIPCHandle& handle) {
  ContextGuard current(this, device);
  char* base = nullptr;
  Enforce(call_->IpcOpenMemHandle(&base, handle, kLazyPeerAccess),
          "Opening GPU memory of another process");
  return base;
}

std::optional<CudaIPCDriver::Allocation> CudaIPCDriver::AllocationAt(
    int device, const char* address) {
  ContextGuard current(this, device);
  char* base = nullptr;
  size_t size = 0;
  const int code = call_->MemGetAddressRange(&base, &size, address);
  if (code == kInvalidValue || code == kNotFound) return std::nullopt;
  Enforce(code, "Finding an allocation of GPU memory");
  return Allocation{base, size};
}

void CudaIPCDriver::Close(int device, char* base) {
  ContextGuard current(this, device);
  Enforce(call_->IpcCloseMemHandle(base),
          "Closing GPU memory of another process");
}

std::optional<int> CudaIPCDriver::ExportChunk(int device, char* address) {
  if (!call_chunks_) return std::nullopt;
  ContextGuard current(this, device);
  ChunkFunctions::Handle handle = 0;
  int code = call_chunks_->Retain(&handle, address);
  if (code == kInvalidValue || code == kNotPermitted || code == kNotSupported) {
    return std::nullopt;
  }
  Enforce(code, "Finding a chunk of GPU memory");
  ChunkFunctions::Properties properties = {};
  code = call_chunks_->GetProperties(&properties, handle);
  const bool is_exportable = properties.exported_as & kPosixDescriptor;
  int fd = -1;
  if (code == kSuccess && is_exportable) {
    code = call_chunks_->Export(&fd, handle, kPosixDescriptor, 0);
  }
  // The descriptor and the mapping keep the chunk alive.
  call_chunks_->Release(handle);
  Enforce(code, "Making a descriptor of GPU memory");
  return is_exportable ? std::optional(fd) : std::nullopt;
}

char* CudaIPCDriver::MapChunks(
    int device,
    const std::vector<Chunk>& chunks,
    const std::function<FileDescriptor(int64_t fd)>& take) {
  if (!call_chunks_) {
    throw SharedMemoryError(
        Kind::kUnavailable,
        "Cannot map GPU memory of another process: the GPU driver is too old "
        "to map memory. Update it, or send tensor.cpu() instead.");
  }
  const ChunkFunctions& call = *call_chunks_;
  uint64_t size = 0;
  for (const Chunk& chunk : chunks) size += chunk.size;
  ContextGuard current(this, device);
  char* base = nullptr;
  Enforce(call.Reserve(&base, size, 0, nullptr, 0),
          "Reserving addresses for GPU memory of another process");
  uint64_t mapped = 0;
  try {
    for (const Chunk& chunk : chunks) {
      const FileDescriptor descriptor = take(chunk.fd);
      // The driver takes the descriptor number itself in place of a pointer.
      void* fd = reinterpret_cast<void*>(intptr_t{descriptor.get()});
      ChunkFunctions::Handle handle = 0;
      Enforce(call.Import(&handle, fd, kPosixDescriptor),
              "Importing GPU memory of another process");
      const int code = call.Map(base + mapped, chunk.size, 0, handle, 0);
      // The mapping keeps the chunk alive.
      call.Release(handle);
      Enforce(code, "Mapping GPU memory of another process");
      mapped += chunk.size;
    }
    for (const Device& other : devices_) {
      const ChunkFunctions::Access access = {{kOnDevice, other.id}, kReadWrite};
      const int code = call.SetAccess(base, size, &access, 1);
      if (other.id == At(device).id) {
        Enforce(code, "Accessing GPU memory of another process");
      }
    }
  } catch (...) {
    if (mapped != 0) call.Unmap(base, mapped);
    call.Unreserve(base, size);
    throw;
  }
  return base;
}

void CudaIPCDriver::UnmapChunks(int device, char* base, uint64_t size) {
  ContextGuard current(this, device);
  Enforce(call_chunks_->Unmap(base, size),
          "Unmapping GPU memory of another process");
  // If this fails, only addresses are lost; the memory is no longer mapped.
  call_chunks_->Unreserve(base, size);
}

std::optional<CudaIPCDriver::SharedEvent> CudaIPCDriver::MakeEvent(int device) {
  ContextGuard current(this, device);
  SharedEvent made = {};
  unsigned flags = kEventDisableTiming | kEventInterprocess;
  if (call_->EventCreate(&made.event, flags) != kSuccess) return std::nullopt;
  if (call_->IpcGetEventHandle(&made.handle, made.event) != kSuccess) {
    call_->EventDestroy(made.event);
    return std::nullopt;
  }
  return made;
}

CudaIPCDriver::Event CudaIPCDriver::OpenEvent(int device,
                                              const CudaIPCHandle& handle) {
  ContextGuard current(this, device);
  Event event = nullptr;
  Enforce(call_->IpcOpenEventHandle(&event, handle),
          "Opening an event of another process");
  return event;
}

void CudaIPCDriver::DestroyEvent(int device, Event event) {
  ContextGuard current(this, device);
  Enforce(call_->EventDestroy(event), "Destroying an event");
}

void CudaIPCDriver::Record(int device, Event event, Stream stream) {
  ContextGuard current(this, device);
  Enforce(call_->EventRecord(event, stream), "Recording an event");
}

bool CudaIPCDriver::IsDone(int device, Event event) {
  ContextGuard current(this, device);
  int code = call_->EventQuery(event);
  if (code == kNotReady) return false;
  Enforce(code, "Asking for the state of an event");
  return true;
}

void CudaIPCDriver::Wait(int device, Stream stream, Event event) {
  ContextGuard current(this, device);
  Enforce(call_->StreamWaitEvent(stream, event, 0),
          "Making a stream wait for an event");
}

void CudaIPCDriver::Synchronize(int device) {
  ContextGuard current(this, device);
  Enforce(call_->ContextSynchronize(), "Waiting for a GPU");
}

void CudaIPCDriver::SynchronizeChunks() {
  for (size_t i = 0; i < devices_.size(); ++i) {
    unsigned flags = 0;
    int exists = 0;
    Enforce(call_chunks_->PrimaryContextState(devices_[i].id, &flags, &exists),
            "Asking whether a GPU is in use");
    // A device without a context has no work. Creating one would take memory.
    if (exists) Synchronize(static_cast<int>(i));
  }
}

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
