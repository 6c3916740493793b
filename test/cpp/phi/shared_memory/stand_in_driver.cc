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

// A stand-in for NVIDIA's driver, libcuda.so.1, for machines without a GPU.
// With it, tests check how the code that shares device memory between processes
// uses the driver. It does not emulate a GPU: it sets and copies memory, but
// computes nothing. A device pointer is a host address, so tests can inspect
// the memory. The address differs between processes.
//
// It enforces the driver's rules on which such code depends:
//  - The driver cannot be used in a forked child. Each thread needs a current
//    context for all calls except those about devices, contexts and error
//    names.
//  - A handle cannot be opened by the process that created it, twice in a
//    process, on another device, or after its memory or event is gone.
//  - Stream work is done later, by one thread per stream. Freeing memory waits
//    for all of it.
//  - An event that was never recorded is complete. A wait is for the last
//    record at the time of the call.
//  - A record whose process is killed before its work is done never becomes
//    complete, nor do later records of the event and their streams (seen on an
//    H200, driver 580.159.04). Here a record always waits for the one before
//    it.
//  - Memory in chunks lives as long as any process has it mapped or has a
//    descriptor of it. The descriptor itself has to be passed; a file that was
//    opened again through it is refused.
// It is as strict as the strictest driver version: calls that only some
// versions allow fail.
//
// Behavior that a driver leaves undefined ends the process with status 86 and a
// line on stderr, "stand-in: violation: ...". This happens if memory is freed,
// or an event is destroyed, while another process has it open, or if there is a
// call after the driver has shut down.
//
// Environment variables:
//  - STAND_IN_DEVICES: the number of devices, 2 by default; each has 8 GiB per
//    process.
//  - CUDA_VISIBLE_DEVICES: which devices are visible, by number, in this order.
//  - STAND_IN_EVENTS: how many events a process can create, 200 by default.
//  - STAND_IN_NOT_EXPORTABLE: memory allocated while it is 1 has no handle.
//  - STAND_IN_PEER_ACCESS: chunks mapped while it is 1 can be made accessible
//    for all devices, not only for their own.
//  - STAND_IN_FAIL: see the header.

#include "test/cpp/phi/shared_memory/stand_in_driver.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace stand_in {

struct Device;
class Event;
class Stream;

}  // namespace stand_in

using CUresult = int;
using CUdevice = int;
using CUdeviceptr = uintptr_t;
using CUcontext = stand_in::Device*;
using CUevent = stand_in::Event*;
using CUstream = stand_in::Stream*;
using CUmemGenericAllocationHandle = uint64_t;

struct CUuuid {
  char bytes[16];
};

// The handle of memory or of an event.
struct CUipcHandle {
  char bytes[64];
};

struct CUmemLocation {
  int type;
  int id;
};

struct CUmemAllocationProp {
  int type;
  int requestedHandleTypes;
  CUmemLocation location;
  void* win32HandleMetaData;
  char allocFlags[8];
};

struct CUmemAccessDesc {
  CUmemLocation location;
  int flags;
};

namespace stand_in {

// A device. It is also its own primary context, the only context that it has.
struct Device {
  int ordinal;
  int physical;  // the same in every process
  std::shared_ptr<Stream> default_stream;
  std::atomic<bool> has_context{false};
};

enum Code : CUresult {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kInvalidContext = 201,
  kAlreadyMapped = 208,
  kPeerAccessUnsupported = 217,
  kInvalidHandle = 400,
  kNotFound = 500,
  kNotReady = 600,
};

struct Error {
  Code code;
  const char* name;
  const char* text;
};

constexpr Error kErrors[] = {
    {kSuccess, "CUDA_SUCCESS", "all went well"},
    {kInvalidValue, "CUDA_ERROR_INVALID_VALUE", "an argument that cannot be"},
    {kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY", "nothing is left"},
    {kNotInitialized,
     "CUDA_ERROR_NOT_INITIALIZED",
     "the driver was not started here"},
    {kNoDevice, "CUDA_ERROR_NO_DEVICE", "no device can be seen"},
    {kInvalidDevice, "CUDA_ERROR_INVALID_DEVICE", "no device of that number"},
    {kInvalidContext,
     "CUDA_ERROR_INVALID_CONTEXT",
     "no context, or a wrong one"},
    {kAlreadyMapped,
     "CUDA_ERROR_ALREADY_MAPPED",
     "open in this process before"},
    {kPeerAccessUnsupported,
     "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
     "no access from one device to the other"},
    {kInvalidHandle,
     "CUDA_ERROR_INVALID_HANDLE",
     "a handle of nothing that exists"},
    {kNotFound, "CUDA_ERROR_NOT_FOUND", "nothing is there"},
    {kNotReady, "CUDA_ERROR_NOT_READY", "work is not done yet"},
};

// Returns null if there is no error with this code.
const Error* ErrorOf(CUresult code) {
  const Error* found = std::find_if(
      std::begin(kErrors), std::end(kErrors), [code](const Error& error) {
        return error.code == code;
      });
  return found == std::end(kErrors) ? nullptr : found;
}

enum EventFlag : unsigned {
  kBlockingSync = 1,
  kDisableTiming = 2,
  kInterprocess = 4,
};

constexpr unsigned kNonBlockingStream = 1;
constexpr unsigned kLazyPeerAccess = 1;
constexpr size_t kDeviceMemory = size_t{8} << 30;
constexpr size_t kPage = 4096;
constexpr size_t kGranularity = size_t{64} << 10;
constexpr int kPinned = 1;
constexpr int kOnDevice = 1;
constexpr int kPosixDescriptor = 1;
constexpr int kReadWrite = 3;

[[noreturn]] void Die(const std::string& message) {
  std::fprintf(stderr, "stand-in: %s\n", message.c_str());
  std::fflush(stderr);
  _exit(86);
}

[[noreturn]] void Violation(const std::string& message) {
  Die("violation: " + message + " (process " + std::to_string(getpid()) + ")");
}

int Number(const char* text, const std::string& what) {
  char* end = nullptr;
  int64_t number = std::strtol(text, &end, 10);
  if (end == text || *end != 0 || number < 0 || number > INT32_MAX) {
    Die(what + " is \"" + text + "\". Make it a number, 0 or more.");
  }
  return static_cast<int>(number);
}

int NumberFromEnvironment(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : Number(text, name);
}

uint64_t Random() {
  uint64_t number = 0;
  if (getrandom(&number, sizeof(number), 0) != sizeof(number)) {
    Die(std::string("getrandom failed: ") + std::strerror(errno));
  }
  return number;
}

// ---- Calls: counted, refused, or made to fail -------------------------------

struct Function {
  const char* name;
  std::atomic<int> calls{0};
  // The number of the call that will fail, if it has not happened yet.
  std::atomic<int> failing_call{0};
  std::atomic<CUresult> failure{kSuccess};
  std::atomic<bool> held{false};
};

Function functions[] = {
    {"cuInit"},
    {"cuDeviceGetCount"},
    {"cuDeviceGet"},
    {"cuDeviceGetUuid"},
    {"cuDevicePrimaryCtxRetain"},
    {"cuDevicePrimaryCtxGetState"},
    {"cuCtxPushCurrent"},
    {"cuCtxPopCurrent"},
    {"cuCtxSynchronize"},
    {"cuMemAlloc"},
    {"cuMemFree"},
    {"cuMemGetInfo"},
    {"cuMemGetAddressRange"},
    {"cuMemGetAllocationGranularity"},
    {"cuMemCreate"},
    {"cuMemRelease"},
    {"cuMemRetainAllocationHandle"},
    {"cuMemGetAllocationPropertiesFromHandle"},
    {"cuMemExportToShareableHandle"},
    {"cuMemImportFromShareableHandle"},
    {"cuMemAddressReserve"},
    {"cuMemAddressFree"},
    {"cuMemMap"},
    {"cuMemUnmap"},
    {"cuMemSetAccess"},
    {"cuIpcGetMemHandle"},
    {"cuIpcOpenMemHandle"},
    {"cuIpcCloseMemHandle"},
    {"cuIpcGetEventHandle"},
    {"cuIpcOpenEventHandle"},
    {"cuStreamCreate"},
    {"cuStreamSynchronize"},
    {"cuStreamWaitEvent"},
    {"cuEventCreate"},
    {"cuEventDestroy"},
    {"cuEventRecord"},
    {"cuEventQuery"},
    {"cuLaunchHostFunc"},
    {"cuMemsetD32Async"},
    {"cuMemcpyDtoHAsync"},
    {"cuMemcpyHtoDAsync"},
    {"cuGetErrorName"},
    {"cuGetErrorString"},
};

// Allocates nothing: in a forked child, the heap may be locked forever.
Function& FunctionNamed(std::string_view name) {
  for (Function& function : functions) {
    if (name == function.name) return function;
  }
  Die("there is no function \"" + std::string(name) +
      "\". Name one, without its version.");
}

// The requirements of a call.
enum class Needs { kNothing, kInitialization, kContext };

struct State;

// No lock guards these: a forked child has to be able to read them whatever
// other threads of its parent were doing.
std::atomic<pid_t> initialized_by{0};
std::atomic<State*> state{nullptr};
std::atomic<bool> shut_down{false};

// Trivially destructible, since calls come even after a thread's destructors.
struct ContextStack {
  static constexpr int kDepth = 64;
  Device* contexts[kDepth];
  int depth;
};
thread_local ContextStack stack = {};

// Set once the state exists.
State& Now() { return *state; }
Device* CurrentDevice() { return stack.contexts[stack.depth - 1]; }

// Every driver function calls this first. If the result is not 0, the function
// returns it.
CUresult Begin(std::string_view name, Needs needs) {
  Function& function = FunctionNamed(name.substr(0, name.rfind("_v2")));
  if (shut_down) {
    Violation(std::string(function.name) + ": call at shutdown");
  }
  const bool fails = ++function.calls == function.failing_call;
  while (function.held) std::this_thread::yield();
  if (fails) return function.failure;
  if (needs == Needs::kNothing) return kSuccess;
  if (state == nullptr || initialized_by != getpid()) return kNotInitialized;
  if (needs == Needs::kContext && stack.depth == 0) return kInvalidContext;
  return kSuccess;
}

// ---- Streams ----------------------------------------------------------------

class Stream : public std::enable_shared_from_this<Stream> {
 public:
  explicit Stream(Device* device) : device_(device) {}

  Device* device() const { return device_; }

  void Enqueue(std::function<void()> work) {
    std::lock_guard<std::mutex> guard(mutex_);
    queue_.push_back(std::move(work));
    ++submitted_;
    if (submitted_ == 1) {
      std::thread(&Stream::Run, shared_from_this()).detach();
    }
    changed_.notify_all();
  }

  // Waits for the work that was submitted so far.
  void Synchronize() {
    std::unique_lock<std::mutex> lock(mutex_);
    uint64_t wanted = submitted_;
    changed_.wait(lock, [&] { return completed_ >= wanted; });
  }

 private:
  void Run() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return !queue_.empty(); });
      std::function<void()> work = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      work();
      work = nullptr;
      lock.lock();
      ++completed_;
      changed_.notify_all();
    }
  }

  Device* const device_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  uint64_t submitted_{0};
  uint64_t completed_{0};
};

// ---- Regions: they contain memory or an event -------------------------------

enum class Kind : int32_t { kMemory, kEvent, kChunk };

struct Identity {
  uint64_t id;
  uint64_t size;
  int32_t device;  // its physical number; processes may see other numbers
  Kind kind;
};

struct Handle {
  Identity identity;
  int32_t pid;
  int32_t fd;
  char unused[32];
};
static_assert(sizeof(Handle) == sizeof(CUipcHandle));
static_assert(std::has_unique_object_representations_v<Identity>);

// The first page of a region.
struct Header {
  Identity identity;
  std::atomic<bool> freed;
};

// Held while a fork would give the child a descriptor that it must not have.
std::mutex no_fork;

// A file in memory, mapped by its creator and by processes that opened its
// handle. An opener has a read lock on the first byte as long as its mapping
// exists: only the mapping keeps the open file that has the lock, since the
// descriptor is closed and forked children do not inherit the mapping. So the
// lock is released even if the opener is killed.
class Region {
 public:
  // Returns null if the system has no more.
  static std::unique_ptr<Region> Make(Device* device,
                                      Kind kind,
                                      size_t size,
                                      bool exportable) {
    int fd = memfd_create("stand-in", MFD_CLOEXEC);
    if (fd == -1) return nullptr;
    Header* header = ftruncate(fd, kPage + size) == 0 ? Map(fd, size) : nullptr;
    if (header == nullptr) {
      close(fd);
      return nullptr;
    }
    header->identity = {Random(), size, device->physical, kind};
    return std::unique_ptr<Region>(new Region(device, fd, exportable, header));
  }

  // Opens a region of another process for the current context.
  static CUresult Open(const CUipcHandle& bytes,
                       Kind kind,
                       std::unique_ptr<Region>* opened) {
    Handle handle;
    std::memcpy(&handle, &bytes, sizeof(handle));
    if (handle.pid == getpid()) return kInvalidContext;
    std::string path = "/proc/" + std::to_string(handle.pid) + "/fd/" +
                       std::to_string(handle.fd);
    // A forked child must not get the descriptor, and with it the lock.
    std::lock_guard<std::mutex> guard(no_fork);
    int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (fd == -1) return kInvalidHandle;
    CUresult result = OpenFile(fd, handle.identity, kind, opened);
    close(fd);
    return result;
  }

  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  ~Region() {
    munmap(header_, kPage + size());
    if (own()) close(fd_);
  }

  Device* device() const { return device_; }
  bool own() const { return fd_ != -1; }
  bool exportable() const { return exportable_; }
  uint64_t id() const { return header_->identity.id; }
  size_t size() const { return header_->identity.size; }
  char* data() const { return reinterpret_cast<char*>(header_) + kPage; }
  CUdeviceptr address() const { return reinterpret_cast<CUdeviceptr>(data()); }

  CUipcHandle Export() const {
    Handle handle = {header_->identity, getpid(), fd_, {}};
    CUipcHandle bytes;
    std::memcpy(&bytes, &handle, sizeof(bytes));
    return bytes;
  }

  // Prevents other processes from opening a region that this process created.
  // Returns false if one of them has it open.
  bool ExcludeOpeners() {
    // Take the lock instead of only checking it, so that nobody opens the
    // region between the check and the end. The lock ends with the file.
    if (!Lock(fd_, F_WRLCK)) return false;
    header_->freed = true;
    return true;
  }

  // Frees memory that this process created. Returns false if another process
  // has it open.
  bool Free() {
    if (!ExcludeOpeners()) return false;
    // Overwrite only pages that were ever touched, which may be few.
    off_t at = kPage;
    while ((at = lseek(fd_, at, SEEK_DATA)) != -1) {
      off_t end = lseek(fd_, at, SEEK_HOLE);
      std::memset(reinterpret_cast<char*>(header_) + at, 0xDD, end - at);
      at = end;
    }
    return true;
  }

 private:
  Region(Device* device, int fd, bool exportable, Header* header)
      : device_(device), fd_(fd), exportable_(exportable), header_(header) {}

  static CUresult OpenFile(int fd,
                           const Identity& wanted,
                           Kind kind,
                           std::unique_ptr<Region>* opened) {
    Identity found = {};
    if (pread(fd, &found, sizeof(found), 0) != sizeof(found) ||
        std::memcmp(&found, &wanted, sizeof(found)) != 0 ||
        found.kind != kind) {
      return kInvalidHandle;
    }
    Device* device = CurrentDevice();
    if (found.device != device->physical) return kPeerAccessUnsupported;
    // The lock is refused while the memory is being freed.
    if (!Lock(fd, F_RDLCK)) return kInvalidHandle;
    Header* header = Map(fd, found.size);
    if (header == nullptr) return kOutOfMemory;
    opened->reset(new Region(device, -1, false, header));
    return header->freed ? kInvalidHandle : kSuccess;
  }

  static bool Lock(int fd, int16_t type) {
    struct flock lock = {};
    lock.l_type = type;
    lock.l_whence = SEEK_SET;
    lock.l_len = 1;
    return fcntl(fd, F_OFD_SETLK, &lock) == 0;
  }

  static Header* Map(int fd, size_t size) {
    // The hint makes addresses differ between processes, even if one was forked
    // from the other.
    uintptr_t hint = (uintptr_t{1} << 44) + (Random() >> 36) * 16 * kPage;
    void* mapped = mmap(reinterpret_cast<void*>(hint),
                        kPage + size,
                        PROT_READ | PROT_WRITE,
                        MAP_SHARED,
                        fd,
                        0);
    if (mapped == MAP_FAILED) return nullptr;
    madvise(mapped, kPage + size, MADV_DONTFORK);
    return static_cast<Header*>(mapped);
  }

  Device* const device_;
  const int fd_;
  const bool exportable_;
  Header* const header_;
};

// ---- Chunks: memory that is mapped at its own addresses ---------------------

// The file position of the descriptors that the driver creates for chunks. A
// file that is opened again through such a descriptor has position 0.
constexpr off_t kExportedAt = 4711;

// A file in memory, which lives as long as a process has it open or mapped.
class Chunk {
 public:
  // Returns null if the system has no more.
  static std::shared_ptr<Chunk> Make(int physical,
                                     size_t size,
                                     int exportable_as) {
    const int fd = memfd_create("stand-in chunk", MFD_CLOEXEC);
    if (fd == -1) return nullptr;
    std::shared_ptr<Chunk> made(new Chunk(
        fd, {Random(), size, physical, Kind::kChunk}, exportable_as, true));
    const Identity& identity = made->identity_;
    // The identity follows the memory, which has to start at a page.
    if (ftruncate(fd, size + sizeof(identity)) != 0 ||
        pwrite(fd, &identity, sizeof(identity), size) != sizeof(identity)) {
      return nullptr;
    }
    return made;
  }

  // Returns null if Export did not create the descriptor.
  static std::shared_ptr<Chunk> Import(int descriptor) {
    Identity identity = {};
    const off_t end = lseek(descriptor, 0, SEEK_CUR) == kExportedAt
                          ? FileSize(descriptor) - off_t{sizeof(identity)}
                          : -1;
    if (end < 0 ||
        pread(descriptor, &identity, sizeof(identity), end) !=
            sizeof(identity) ||
        identity.kind != Kind::kChunk ||
        identity.size != static_cast<size_t>(end)) {
      return nullptr;
    }
    const int fd = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
    if (fd == -1) return nullptr;
    return std::shared_ptr<Chunk>(
        new Chunk(fd, identity, kPosixDescriptor, false));
  }

  Chunk(const Chunk&) = delete;
  Chunk& operator=(const Chunk&) = delete;
  ~Chunk() { close(fd_); }

  size_t size() const { return identity_.size; }
  int physical() const { return identity_.device; }
  int exportable_as() const { return exportable_as_; }
  int fd() const { return fd_; }
  bool own() const { return own_; }

  // Returns -1 if the system has no more.
  int Export() const {
    const std::string path = "/proc/self/fd/" + std::to_string(fd_);
    const int fd = open(path.c_str(), O_RDWR);
    if (fd != -1) lseek(fd, kExportedAt, SEEK_SET);
    return fd;
  }

 private:
  Chunk(int fd, const Identity& identity, int exportable_as, bool own)
      : fd_(fd),
        identity_(identity),
        exportable_as_(exportable_as),
        own_(own) {}

  static off_t FileSize(int fd) {
    struct stat file = {};
    return fstat(fd, &file) == 0 ? file.st_size : -1;
  }

  const int fd_;
  const Identity identity_;
  const int exportable_as_;
  const bool own_;
};

struct ChunkHandle {
  std::shared_ptr<Chunk> chunk;
  int references;
};

struct MappedChunk {
  std::shared_ptr<Chunk> chunk;
  size_t size;
  std::set<const Device*> accessible_for;
};

// ---- Events -----------------------------------------------------------------

// The data of the region of an event. Its records are numbered from 1.
struct EventData {
  std::atomic<uint32_t> last;
  std::atomic<uint32_t> completed;
};

class Event {
 public:
  explicit Event(std::unique_ptr<Region> region) : region_(std::move(region)) {}

  const Region& region() const { return *region_; }
  // Requires: this process created the event.
  bool ExcludeOpeners() { return region_->ExcludeOpeners(); }

  uint32_t Last() const { return data().last; }

  uint32_t NextRecord() { return ++data().last; }

  void Complete(uint32_t record) {
    WaitFor(record - 1);
    data().completed = record;
  }

  bool IsComplete(uint32_t record) const { return data().completed >= record; }

  void WaitFor(uint32_t record) const {
    while (!IsComplete(record)) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }

 private:
  EventData& data() const {
    return *reinterpret_cast<EventData*>(region_->data());
  }

  const std::unique_ptr<Region> region_;
};

// ---- The state of a process -------------------------------------------------

// Created once and never destroyed: the stream threads outlive everything.
struct State {
  std::vector<std::unique_ptr<Device>> devices;
  int event_limit;

  std::mutex mutex;  // guards the members below
  std::map<CUdeviceptr, std::unique_ptr<Region>> memory;
  std::map<CUmemGenericAllocationHandle, ChunkHandle> chunk_handles;
  std::map<CUdeviceptr, size_t> reserved;
  std::map<CUdeviceptr, MappedChunk> mapped;
  std::map<CUevent, std::shared_ptr<Event>> events;
  std::map<CUstream, std::shared_ptr<Stream>> streams;
  // Including the default streams.
  std::vector<std::shared_ptr<Stream>> all_streams;

  std::shared_ptr<Stream> AddStream(Device* device) {
    auto stream = std::make_shared<Stream>(device);
    all_streams.push_back(stream);
    return stream;
  }
};

std::vector<int> VisibleDevices() {
  int count = NumberFromEnvironment("STAND_IN_DEVICES", 2);
  const char* list = std::getenv("CUDA_VISIBLE_DEVICES");
  std::vector<int> visible;
  if (list == nullptr) {
    for (int i = 0; i < count; ++i) visible.push_back(i);
    return visible;
  }
  // An invalid number hides all numbers after it, as in the driver.
  std::istringstream numbers(list);
  for (int number; numbers >> number && number >= 0 && number < count;) {
    visible.push_back(number);
    numbers.ignore(1, ',');
  }
  return visible;
}

State* MakeState(const std::vector<int>& visible) {
  auto* made = new State;
  made->event_limit = NumberFromEnvironment("STAND_IN_EVENTS", 200);
  for (int physical : visible) {
    auto device = std::make_unique<Device>();
    device->ordinal = static_cast<int>(made->devices.size());
    device->physical = physical;
    device->default_stream = made->AddStream(device.get());
    made->devices.push_back(std::move(device));
  }
  return made;
}

bool IsDevice(int ordinal) {
  return ordinal >= 0 && ordinal < static_cast<int>(Now().devices.size());
}

// Requires, for the functions below: the state's mutex is held.

Region* Containing(CUdeviceptr address) {
  auto next = Now().memory.upper_bound(address);
  if (next == Now().memory.begin()) return nullptr;
  Region* region = std::prev(next)->second.get();
  return address - region->address() < region->size() ? region : nullptr;
}

// Returns the chunk that is mapped at an address; `mapped.end()` if none is.
std::map<CUdeviceptr, MappedChunk>::iterator MappedAt(CUdeviceptr address) {
  auto& mapped = Now().mapped;
  auto next = mapped.upper_bound(address);
  if (next == mapped.begin()) return mapped.end();
  auto found = std::prev(next);
  return address - found->first < found->second.size ? found : mapped.end();
}

// Returns whether bytes are in one region, or in chunks that are accessible for
// a device.
bool IsMemory(CUdeviceptr address, size_t size, const Device* device) {
  if (Region* region = Containing(address)) {
    return size <= region->address() + region->size() - address;
  }
  const CUdeviceptr end = address + size;
  for (CUdeviceptr at = address; at < end;) {
    auto found = MappedAt(at);
    if (found == Now().mapped.end() ||
        found->second.accessible_for.count(device) == 0) {
      return false;
    }
    at = found->first + found->second.size;
  }
  return true;
}

// Returns the chunks that together are mapped at exactly these addresses; empty
// if there are none.
std::vector<CUdeviceptr> MappedExactly(CUdeviceptr address, size_t size) {
  std::vector<CUdeviceptr> found;
  const CUdeviceptr end = address + size;
  for (CUdeviceptr at = address; at < end;) {
    auto chunk = Now().mapped.find(at);
    if (chunk == Now().mapped.end()) return {};
    found.push_back(at);
    at += chunk->second.size;
    if (at > end) return {};
  }
  return found;
}

// Returns a handle of a chunk, with one reference for the caller. If the chunk
// already has a handle, returns that one.
CUmemGenericAllocationHandle HandleOf(const std::shared_ptr<Chunk>& chunk) {
  for (auto& [handle, known] : Now().chunk_handles) {
    if (known.chunk != chunk) continue;
    ++known.references;
    return handle;
  }
  CUmemGenericAllocationHandle handle = Random();
  Now().chunk_handles[handle] = {chunk, 1};
  return handle;
}

// Restores addresses to the state before a chunk was mapped: no memory.
bool Blank(CUdeviceptr address, size_t size) {
  return mmap(reinterpret_cast<void*>(address),
              size,
              PROT_NONE,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
              -1,
              0) != MAP_FAILED;
}

size_t FreeMemory(Device* device) {
  size_t left = kDeviceMemory;
  for (const auto& [address, region] : Now().memory) {
    if (region->own() && region->device() == device) left -= region->size();
  }
  std::set<const Chunk*> chunks;
  for (const auto& [handle, known] : Now().chunk_handles) {
    chunks.insert(known.chunk.get());
  }
  for (const auto& [address, mapped] : Now().mapped) {
    chunks.insert(mapped.chunk.get());
  }
  for (const Chunk* chunk : chunks) {
    if (chunk->own() && chunk->physical() == device->physical) {
      left -= chunk->size();
    }
  }
  return left;
}

CUevent AddEvent(std::unique_ptr<Region> region) {
  auto event = std::make_shared<Event>(std::move(region));
  Now().events[event.get()] = event;
  return event.get();
}

// Requires, for the functions below: the state's mutex is not held.

std::lock_guard<std::mutex> Guard() {
  return std::lock_guard<std::mutex>(Now().mutex);
}

// Returns null if there is no such stream or event. The default stream is null.

std::shared_ptr<Stream> StreamOf(CUstream stream) {
  if (stream == nullptr) return CurrentDevice()->default_stream;
  auto guard = Guard();
  auto found = Now().streams.find(stream);
  return found == Now().streams.end() ? nullptr : found->second;
}

std::shared_ptr<Event> EventOf(CUevent event) {
  auto guard = Guard();
  auto found = Now().events.find(event);
  return found == Now().events.end() ? nullptr : found->second;
}

void Synchronize(Device* device) {
  std::vector<std::shared_ptr<Stream>> streams;
  {
    auto guard = Guard();
    for (const std::shared_ptr<Stream>& stream : Now().all_streams) {
      if (stream->device() == device) streams.push_back(stream);
    }
  }
  for (const auto& stream : streams) stream->Synchronize();
}

// Waits until its device has no more work, and removes the memory at the
// address from the state. Returns null if the memory is not `own` (or opened)
// memory, as requested.
std::unique_ptr<Region> TakeMemory(CUdeviceptr base, bool own) {
  Device* device = nullptr;
  {
    auto guard = Guard();
    Region* region = Containing(base);
    if (region == nullptr) return nullptr;
    device = region->device();
  }
  Synchronize(device);
  auto guard = Guard();
  auto found = Now().memory.find(base);
  if (found == Now().memory.end() || found->second->own() != own) {
    return nullptr;
  }
  std::unique_ptr<Region> region = std::move(found->second);
  Now().memory.erase(found);
  return region;
}

// Submits work to the stream, on this many bytes of device memory at each
// address.
CUresult Submit(CUstream stream,
                std::initializer_list<CUdeviceptr> addresses,
                size_t size,
                const std::function<void()>& work) {
  std::shared_ptr<Stream> found = StreamOf(stream);
  if (found == nullptr) return kInvalidHandle;
  auto guard = Guard();
  for (CUdeviceptr address : addresses) {
    if (!IsMemory(address, size, found->device())) return kInvalidValue;
  }
  found->Enqueue(work);
  return kSuccess;
}

CUresult Copy(CUstream stream,
              CUdeviceptr to,
              CUdeviceptr from,
              size_t size,
              std::initializer_list<CUdeviceptr> of_devices) {
  return Submit(stream, of_devices, size, [=] {
    std::memmove(
        reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), size);
  });
}

// ---- The library ------------------------------------------------------------

__attribute__((constructor)) void Load() {
  if (const char* text = std::getenv("STAND_IN_FAIL")) {
    std::istringstream parts(text);
    std::string name, nth, code;
    std::getline(parts, name, ':');
    std::getline(parts, nth, ':');
    std::getline(parts, code);
    StandInFail(name.c_str(),
                Number(nth.c_str(), "The number of a call in STAND_IN_FAIL"),
                Number(code.c_str(), "The code in STAND_IN_FAIL"));
  }
  pthread_atfork([] { no_fork.lock(); },
                 [] { no_fork.unlock(); },
                 [] {
                   no_fork.unlock();
                   for (Function& function : functions) {
                     function.failing_call -= function.calls;
                     function.calls = 0;
                   }
                 });
}

}  // namespace stand_in

using namespace stand_in;  // NOLINT(build/namespaces)

extern "C" {

void StandInFail(const char* function, int nth, int code) {
  Function& wanted = FunctionNamed(function);
  wanted.failure = code;
  wanted.failing_call = wanted.calls + nth;
}

void StandInHold(const char* function, bool held) {
  FunctionNamed(function).held = held;
}

int StandInCalls(const char* function) { return FunctionNamed(function).calls; }

// ---- Devices and contexts ---------------------------------------------------

CUresult cuInit(unsigned flags) {
  if (CUresult code = Begin(__func__, Needs::kNothing)) return code;
  if (flags != 0) return kInvalidValue;
  pid_t nobody = 0;
  if (!initialized_by.compare_exchange_strong(nobody, getpid()) &&
      nobody != getpid()) {
    return kNotInitialized;
  }
  static std::mutex mutex;
  std::lock_guard<std::mutex> guard(mutex);
  if (state != nullptr) return kSuccess;
  std::vector<int> visible = VisibleDevices();
  if (visible.empty()) return kNoDevice;
  state = MakeState(visible);
  std::atexit([] { shut_down = true; });
  return kSuccess;
}

CUresult cuDeviceGetCount(int* count) {
  if (CUresult code = Begin(__func__, Needs::kInitialization)) return code;
  *count = static_cast<int>(Now().devices.size());
  return kSuccess;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  if (CUresult code = Begin(__func__, Needs::kInitialization)) return code;
  if (!IsDevice(ordinal)) return kInvalidDevice;
  *device = ordinal;
  return kSuccess;
}

CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  if (CUresult code = Begin(__func__, Needs::kInitialization)) return code;
  if (!IsDevice(device)) return kInvalidDevice;
  int32_t physical = Now().devices[device]->physical;
  std::memcpy(uuid->bytes, "stand-in GPU", 12);
  std::memcpy(uuid->bytes + 12, &physical, sizeof(physical));
  return kSuccess;
}

CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device)
    __attribute__((alias("cuDeviceGetUuid_v2")));

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  if (CUresult code = Begin(__func__, Needs::kInitialization)) return code;
  if (!IsDevice(device)) return kInvalidDevice;
  *context = Now().devices[device].get();
  Now().devices[device]->has_context = true;
  return kSuccess;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device,
                                    unsigned* flags,
                                    int* active) {
  if (CUresult code = Begin(__func__, Needs::kInitialization)) return code;
  if (!IsDevice(device)) return kInvalidDevice;
  *flags = 0;
  *active = Now().devices[device]->has_context;
  return kSuccess;
}

CUresult cuCtxPushCurrent_v2(CUcontext context) {
  if (CUresult code = Begin(__func__, Needs::kInitialization)) return code;
  for (const auto& device : Now().devices) {
    if (device.get() != context) continue;
    if (stack.depth == ContextStack::kDepth) {
      Violation("a thread pushes contexts and does not pop them");
    }
    stack.contexts[stack.depth++] = context;
    return kSuccess;
  }
  return kInvalidContext;
}

CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  if (CUresult code = Begin(__func__, Needs::kContext)) return code;
  if (context != nullptr) *context = CurrentDevice();
  --stack.depth;
  return kSuccess;
}

CUresult cuCtxSynchronize() {
  if (CUresult code = Begin(__func__, Needs::kContext)) return code;
  Synchronize(CurrentDevice());
  return kSuccess;
}

// ---- Memory -----------------------------------------------------------------

CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t size) {
  if (CUresult code = Begin(__func__, Needs::kContext)) return code;
  if (size == 0) return kInvalidValue;
  auto guard = Guard();
  if (size > FreeMemory(CurrentDevice())) return kOutOfMemory;
  bool exportable = NumberFromEnvironment("STAND_IN_NOT_EXPORTABLE", 0) == 0;
  auto region = Region::Make(CurrentDevice(), Kind::kMemory, size, exportable);
  if (region == nullptr) return kOutOfMemory;
  std::memset(region->data(), 0xA5, std::min(size, size_t{64}));
  *address = region->address();
  Now().memory[*address] = std::move(region);
  return kSuccess;
}

CUresult cuMemFree_v2(CUdeviceptr base) {
  if (CUresult code = Begin(__func__, Needs::kContext)) return code;
  std::unique_ptr<Region> region = TakeMemory(base, true);
  if (region == nullptr) return kInvalidValue;
  if (!region->Free()) {
    Violation("cuMemFree of memory that another process has open, " +
              std::to_string(region->size()) + " bytes");
  }
  return kSuccess;
}

CUresult cuMemGetInfo_v2(size_t* free, size_t* total) {
  if (CUresult code = Begin(__func__, Needs::kContext)) return code;
  auto guard = Guard();
  *free = FreeMemory(CurrentDevice());
  *total = kDeviceMemory;
  return kSuccess;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr* base,
                                 size_t* size,
                                 CUdeviceptr address) {
  if (CUresult code = Begin(__func__, Needs::kContext)) return code;
  auto guard = Guard();
  Region* region = Containing(address);
  auto chunk = MappedAt(address);
  if (region == nullptr && chunk == Now().mapped.end()) return kNotFound;
  if (base != nullptr) *base = region ? region->address() : chunk->first;
  if (size != nullptr) *size = region ? region->size() : chunk->second.size;
  return kSuccess;
}

CUresult cuIpcGetMemHandle(CUipcHandle* handle, CUdeviceptr address) {
  if (CUresult code = Begin(__func__, Needs::kContext)) return code;
  auto guard = Guard();
  Region* region = Containing(address);
  if (region == nullptr || !region->exportable()) return kInvalidValue;
  *handle = region->Export();
  return kSuccess;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* base,
                               CUipcHandle handle,
                               unsigned flags) {
  if (CUresult code = Begin(__func__, Needs::kContext)) return code;
  if (flags != kLazyPeerAccess) return kInvalidValue;
  // Hold the mutex to the end: of two threads, only one may open the handle.
  auto guard = Guard();
  auto& memory = Now().memory;
  std::unique_ptr<Region> region;
  CUresult result = Region::Open(handle, Kind::kMemory, &region);
  if (result != kSuccess) return result;
  for (const auto& [address, other] : memory) {
    if (other->id() == region->id()) return kAlreadyMapped;
  }
  *base = region->address();
  memory[*base] = std::move(region);
  return kSuccess;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr base) {
  if (CUresult code = Begin(__func__, Needs::kContext)) return code;
  return TakeMemory(base, false) == nullptr ? kInvalidValue : kSuccess;
}

CUresult cuLaunchHostFunc(CUstream stream, void (*call)(void*), void* data) {
  if (CUresult code = Begin(__func__, Needs::kContext)) return code;
  return Submit(stream, {}, 0, [=] { call(data); });
}

CUresult cuMemsetD32Async(CUdeviceptr address,
                          unsigned value,
                          size_t count,
                          CUstream stream) {
  if (CUresult code = Begin(__func__, Needs::kContext)) return code;
  if (address % sizeof(value) != 0 || count > SIZE_MAX / sizeof(value)) {
    return kInvalidValue;
  }
  auto* words = reinterpret_cast<unsigned*>(address);
  return Submit(stream, {address}, count * sizeof(value), [=] {
    std::fill_n(words, count, value);
  });
}

CUresult cuMemcpyDtoHAsync_v2(void* to,
                              CUdeviceptr from,
                              size_t size,
                              CUstream stream) {
  if (CUresult code = Begin(__func__, Needs::kContext)) return code;
  return Copy(stream, reinterpret_cast<CUdeviceptr>(to), from, size, {from});
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to,
                              const void* from,
                              size_t size,
                              CUstream stream) {
  if (CUresult code = Begin(__func__, Needs::kContext)) return code;
  return Copy(stream, to, reinterpret_cast<CUdeviceptr>(from), size, {to});
}

// ---- Chunks -----------------------------------------------------------------

CUresult cuMemGetAllocationGranularity(size_t* granularity,
                                       const CUmemAllocationProp* properties,
                                       int option) {
  if (CUresult code = Begin(__func__, Needs::kInitialization)) return code;
  if (properties->type != kPinned || option > 1) return kInvalidValue;
  *granularity = kGranularity;
  return kSuccess;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle,
                     size_t size,
                     const CUmemAllocationProp* properties,
                     uint64_t flags) {
  if (CUresult code = Begin(__func__, Needs::kInitialization)) return code;
  const CUmemLocation& location = properties->location;
  if (size == 0 || size % kGranularity != 0 || flags != 0 ||
      properties->type != kPinned || location.type != kOnDevice ||
      !IsDevice(location.id)) {
    return kInvalidValue;
  }
  auto guard = Guard();
  std::shared_ptr<Chunk> chunk =
      Chunk::Make(Now().devices[location.id]->physical,
                  size,
                  properties->requestedHandleTypes);
  if (chunk == nullptr) return kOutOfMemory;
  *handle = HandleOf(chunk);
  return kSuccess;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  if (CUresult code = Begin(__func__, Needs::kInitialization)) return code;
  auto guard = Guard();
  auto found = Now().chunk_handles.find(handle);
  if (found == Now().chunk_handles.end()) return kInvalidValue;
  if (--found->second.references == 0) Now().chunk_handles.erase(found);
  return kSuccess;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle,
                                     void* address) {
  if (CUresult code = Begin(__func__, Needs::kInitialization)) return code;
  auto guard = Guard();
  auto found = MappedAt(reinterpret_cast<CUdeviceptr>(address));
  if (found == Now().mapped.end()) return kInvalidValue;
  *handle = HandleOf(found->second.chunk);
  return kSuccess;
}

CUresult cuMemGetAllocationPropertiesFromHandle(
    CUmemAllocationProp* properties, CUmemGenericAllocationHandle handle) {
  if (CUresult code = Begin(__func__, Needs::kInitialization)) return code;
  auto guard = Guard();
  auto found = Now().chunk_handles.find(handle);
  if (found == Now().chunk_handles.end()) return kInvalidValue;
  *properties = {};
  properties->type = kPinned;
  properties->requestedHandleTypes = found->second.chunk->exportable_as();
  properties->location.type = kOnDevice;
  for (const auto& device : Now().devices) {
    if (device->physical == found->second.chunk->physical()) {
      properties->location.id = device->ordinal;
    }
  }
  return kSuccess;
}

CUresult cuMemExportToShareableHandle(void* fd,
                                      CUmemGenericAllocationHandle handle,
                                      int kind,
                                      uint64_t flags) {
  if (CUresult code = Begin(__func__, Needs::kInitialization)) return code;
  auto guard = Guard();
  auto found = Now().chunk_handles.find(handle);
  if (found == Now().chunk_handles.end() || kind != kPosixDescriptor ||
      flags != 0 || !(found->second.chunk->exportable_as() & kind)) {
    return kInvalidValue;
  }
  const int made = found->second.chunk->Export();
  if (made == -1) return kOutOfMemory;
  std::memcpy(fd, &made, sizeof(made));
  return kSuccess;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle,
                                        void* fd,
                                        int kind) {
  if (CUresult code = Begin(__func__, Needs::kInitialization)) return code;
  if (kind != kPosixDescriptor) return kInvalidValue;
  std::shared_ptr<Chunk> chunk =
      Chunk::Import(static_cast<int>(reinterpret_cast<intptr_t>(fd)));
  if (chunk == nullptr) return kInvalidValue;
  const auto& devices = Now().devices;
  if (std::none_of(devices.begin(), devices.end(), [&](const auto& device) {
        return device->physical == chunk->physical();
      })) {
    return kInvalidDevice;
  }
  auto guard = Guard();
  *handle = HandleOf(chunk);
  return kSuccess;
}

CUresult cuMemAddressReserve(CUdeviceptr* base,
                             size_t size,
                             size_t alignment,
                             CUdeviceptr wanted,
                             uint64_t flags) {
  if (CUresult code = Begin(__func__, Needs::kInitialization)) return code;
  if (size == 0 || size % kGranularity != 0 || alignment != 0 || wanted != 0 ||
      flags != 0) {
    return kInvalidValue;
  }
  auto guard = Guard();
  // Addresses differ between processes, see Region::Map.
  const uintptr_t hint =
      (uintptr_t{1} << 45) + (Random() >> 36) * 16 * kGranularity;
  void* reserved = mmap(reinterpret_cast<void*>(hint),
                        size,
                        PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                        -1,
                        0);
  if (reserved == MAP_FAILED) return kOutOfMemory;
  *base = reinterpret_cast<CUdeviceptr>(reserved);
  Now().reserved[*base] = size;
  return kSuccess;
}

CUresult cuMemAddressFree(CUdeviceptr base, size_t size) {
  if (CUresult code = Begin(__func__, Needs::kInitialization)) return code;
  auto guard = Guard();
  auto found = Now().reserved.find(base);
  if (found == Now().reserved.end() || found->second != size) {
    return kInvalidValue;
  }
  auto chunk = Now().mapped.lower_bound(base);
  if (chunk != Now().mapped.end() && chunk->first < base + size) {
    Violation("cuMemAddressFree of addresses that a chunk is mapped at");
  }
  munmap(reinterpret_cast<void*>(base), size);
  Now().reserved.erase(found);
  return kSuccess;
}

CUresult cuMemMap(CUdeviceptr address,
                  size_t size,
                  size_t offset,
                  CUmemGenericAllocationHandle handle,
                  uint64_t flags) {
  if (CUresult code = Begin(__func__, Needs::kInitialization)) return code;
  auto guard = Guard();
  auto found = Now().chunk_handles.find(handle);
  auto after = Now().reserved.upper_bound(address);
  if (found == Now().chunk_handles.end() || size == 0 ||
      size % kGranularity != 0 || size > found->second.chunk->size() ||
      offset != 0 || flags != 0 || after == Now().reserved.begin()) {
    return kInvalidValue;
  }
  const auto& [base, reserved] = *std::prev(after);
  const size_t start = address - base;
  if (start % kGranularity != 0 || start > reserved ||
      size > reserved - start) {
    return kInvalidValue;
  }
  auto next = Now().mapped.lower_bound(address);
  if (MappedAt(address) != Now().mapped.end() ||
      (next != Now().mapped.end() && next->first < address + size)) {
    return kAlreadyMapped;
  }
  void* mapped = mmap(reinterpret_cast<void*>(address),
                      size,
                      PROT_NONE,
                      MAP_SHARED | MAP_FIXED,
                      found->second.chunk->fd(),
                      0);
  if (mapped == MAP_FAILED) return kOutOfMemory;
  madvise(mapped, size, MADV_DONTFORK);
  Now().mapped[address] = {found->second.chunk, size, {}};
  return kSuccess;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t size) {
  if (CUresult code = Begin(__func__, Needs::kInitialization)) return code;
  auto guard = Guard();
  const std::vector<CUdeviceptr> chunks = MappedExactly(address, size);
  if (chunks.empty()) return kInvalidValue;
  if (!Blank(address, size)) return kOutOfMemory;
  for (CUdeviceptr chunk : chunks) Now().mapped.erase(chunk);
  return kSuccess;
}

CUresult cuMemSetAccess(CUdeviceptr address,
                        size_t size,
                        const CUmemAccessDesc* access,
                        size_t count) {
  if (CUresult code = Begin(__func__, Needs::kInitialization)) return code;
  auto guard = Guard();
  const std::vector<CUdeviceptr> chunks = MappedExactly(address, size);
  if (chunks.empty()) return kInvalidValue;
  for (size_t i = 0; i < count; ++i) {
    if (access[i].location.type != kOnDevice || access[i].flags != kReadWrite ||
        !IsDevice(access[i].location.id)) {
      return kInvalidValue;
    }
    const Device* device = Now().devices[access[i].location.id].get();
    for (CUdeviceptr chunk : chunks) {
      MappedChunk& mapped = Now().mapped[chunk];
      if (mapped.chunk->physical() != device->physical &&
          NumberFromEnvironment("STAND_IN_PEER_ACCESS", 0) == 0) {
        return kPeerAccessUnsupported;
      }
      mprotect(
          reinterpret_cast<void*>(chunk), mapped.size, PROT_READ | PROT_WRITE);
      mapped.accessible_for.insert(device);
    }
  }
  return kSuccess;
}

// ---- Streams and events -----------------------------------------------------

CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
  if (CUresult code = Begin(__func__, Needs::kContext)) return code;
  if (flags > kNonBlockingStream) return kInvalidValue;
  auto guard = Guard();
  std::shared_ptr<Stream> made = Now().AddStream(CurrentDevice());
  *stream = made.get();
  Now().streams[*stream] = std::move(made);
  return kSuccess;
}

CUresult cuStreamSynchronize(CUstream stream) {
  if (CUresult code = Begin(__func__, Needs::kContext)) return code;
  std::shared_ptr<Stream> kept = StreamOf(stream);
  if (kept == nullptr) return kInvalidHandle;
  kept->Synchronize();
  return kSuccess;
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
  if (CUresult code = Begin(__func__, Needs::kContext)) return code;
  if (flags != 0) return kInvalidValue;
  std::shared_ptr<Stream> waiting = StreamOf(stream);
  std::shared_ptr<Event> awaited = EventOf(event);
  if (waiting == nullptr || awaited == nullptr) return kInvalidHandle;
  uint32_t record = awaited->Last();
  waiting->Enqueue([awaited, record] { awaited->WaitFor(record); });
  return kSuccess;
}

CUresult cuEventCreate(CUevent* event, unsigned flags) {
  if (CUresult code = Begin(__func__, Needs::kContext)) return code;
  bool interprocess = flags & kInterprocess;
  if ((flags & ~(kBlockingSync | kDisableTiming | kInterprocess)) != 0 ||
      (interprocess && !(flags & kDisableTiming))) {
    return kInvalidValue;
  }
  auto guard = Guard();
  const auto& events = Now().events;
  int64_t made = std::count_if(
      events.begin(), events.end(), [](const auto& handle_and_event) {
        return handle_and_event.second->region().own();
      });
  if (made >= Now().event_limit) return kOutOfMemory;
  auto region = Region::Make(
      CurrentDevice(), Kind::kEvent, sizeof(EventData), interprocess);
  if (region == nullptr) return kOutOfMemory;
  *event = AddEvent(std::move(region));
  return kSuccess;
}

CUresult cuEventDestroy_v2(CUevent event) {
  if (CUresult code = Begin(__func__, Needs::kContext)) return code;
  auto guard = Guard();
  auto found = Now().events.find(event);
  if (found == Now().events.end()) return kInvalidHandle;
  if (found->second->region().own() && !found->second->ExcludeOpeners()) {
    Violation("cuEventDestroy of an event that another process has open");
  }
  // Work that was submitted before still uses the event.
  Now().events.erase(found);
  return kSuccess;
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
  if (CUresult code = Begin(__func__, Needs::kContext)) return code;
  std::shared_ptr<Event> recorded = EventOf(event);
  std::shared_ptr<Stream> recorder = StreamOf(stream);
  if (recorded == nullptr || recorder == nullptr ||
      recorded->region().device() != recorder->device()) {
    return kInvalidHandle;
  }
  // A record waits for the one before it, so their order in a stream must be
  // that of their numbers.
  auto guard = Guard();
  uint32_t record = recorded->NextRecord();
  recorder->Enqueue([recorded, record] { recorded->Complete(record); });
  return kSuccess;
}

CUresult cuEventQuery(CUevent event) {
  if (CUresult code = Begin(__func__, Needs::kContext)) return code;
  std::shared_ptr<Event> kept = EventOf(event);
  if (kept == nullptr) return kInvalidHandle;
  return kept->IsComplete(kept->Last()) ? kSuccess : kNotReady;
}

CUresult cuIpcGetEventHandle(CUipcHandle* handle, CUevent event) {
  if (CUresult code = Begin(__func__, Needs::kContext)) return code;
  std::shared_ptr<Event> found = EventOf(event);
  if (found == nullptr || !found->region().exportable()) return kInvalidHandle;
  *handle = found->region().Export();
  return kSuccess;
}

CUresult cuIpcOpenEventHandle(CUevent* event, CUipcHandle handle) {
  if (CUresult code = Begin(__func__, Needs::kContext)) return code;
  auto guard = Guard();
  std::unique_ptr<Region> region;
  CUresult result = Region::Open(handle, Kind::kEvent, &region);
  if (result != kSuccess) return result;
  *event = AddEvent(std::move(region));
  return kSuccess;
}

// ---- Errors -----------------------------------------------------------------

CUresult cuGetErrorName(CUresult code, const char** name) {
  if (CUresult refusal = Begin(__func__, Needs::kNothing)) return refusal;
  const Error* error = ErrorOf(code);
  *name = error == nullptr ? nullptr : error->name;
  return error == nullptr ? kInvalidValue : kSuccess;
}

CUresult cuGetErrorString(CUresult code, const char** text) {
  if (CUresult refusal = Begin(__func__, Needs::kNothing)) return refusal;
  const Error* error = ErrorOf(code);
  *text = error == nullptr ? nullptr : error->text;
  return error == nullptr ? kInvalidValue : kSuccess;
}

}  // extern "C"
