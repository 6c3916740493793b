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

#include "paddle/phi/core/memory/allocation/shared_memory/cuda_interprocess_event.h"

#include <pthread.h>

#include <atomic>
#include <cstring>
#include <map>
#include <new>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "paddle/phi/core/memory/allocation/shared_memory/cuda_ipc_heap.h"

namespace paddle {
namespace memory {
namespace allocation {

namespace {

using Kind = SharedMemoryError::Kind;

constexpr uint64_t kEventMagic = 0x3254564544444450;  // "PDDDEVT2"
constexpr uint64_t kOwner = 0;

// The fixed content of a record.
struct EventDescription {
  uint64_t magic;
  CudaDeviceUuid uuid;
  CudaIPCHandle handle;
};

// The content of a record.
struct EventRecord {
  EventDescription description;
  // The process that recorded the event last: kOwner, or its SharedHolder.
  std::atomic<uint64_t> recorder;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

SharedRecords Records() { return SharedRecords(&SharedHeap::Instance()); }

std::atomic<uint64_t>& RecorderIn(const SharedBlock& record) {
  return reinterpret_cast<EventRecord*>(record.data)->recorder;
}

uint64_t ToWord(const SharedHolder& holder) {
  return uint64_t{holder.slot} << 32 | holder.process;
}

SharedHolder ToHolder(uint64_t word) {
  return {static_cast<uint32_t>(word >> 32), static_cast<uint32_t>(word)};
}

[[noreturn]] void ThrowOwnerEnded() {
  throw SharedMemoryError(
      Kind::kGone,
      "Cannot use a received event: the process that made it has ended, and "
      "the event with it. Keep a process that sends events alive until no "
      "process uses them any more.");
}

void EnforceOwnerAlive(const SharedBlock& record) {
  if (!Records().OwnerIsAlive(record)) ThrowOwnerEnded();
}

[[noreturn]] void ThrowLeaving() {
  throw SharedMemoryError(Kind::kUnavailable,
                          "Cannot use an event of a GPU: this process is "
                          "exiting. Do so before the interpreter's exit "
                          "handlers run.");
}

// Destroys an event if the driver may still be called. If the driver fails, the
// event stays as long as this process, which is safe for other processes that
// use it.
void Destroy(int device, CudaIPCDriver::Event event) {
  try {
    CudaIPCHeap::Instance().CallDriver(
        [&] { CudaIPCDriver::Instance().DestroyEvent(device, event); }, false);
  } catch (const SharedMemoryError&) {
  }
}

EventDescription ReadDescription(const SharedBlock& block) {
  EventDescription description = {};
  if (block.capacity >= sizeof(EventRecord)) {
    std::memcpy(&description, block.data, sizeof(description));
  }
  if (description.magic != kEventMagic) {
    throw SharedMemoryError(
        Kind::kInvalid,
        "The handle of an event does not refer to an event: its block is not a "
        "valid event record. It was damaged, or made by another version of "
        "Paddle; call ipc_handle() again.");
  }
  return description;
}

int DeviceOf(const EventDescription& description) {
  std::optional<int> device =
      CudaIPCDriver::Instance().FindDevice(description.uuid);
  if (device) return *device;
  throw SharedMemoryError(
      Kind::kUnavailable,
      "A received event is on " + ToString(description.uuid) +
          ", which this process cannot see: CUDA_VISIBLE_DEVICES or the "
          "container hides it. Make it visible.");
}

SharedHeap::Received ReceiveRecord(const SharedMessage& message) {
  SharedHeap::Received received;
  try {
    received = Records().Receive(message);
  } catch (const SharedMemoryError& error) {
    if (error.kind() != Kind::kGone) throw;
    throw SharedMemoryError(
        Kind::kGone,
        "The event of a handle does not exist any more: it was dropped after "
        "the handle was opened, the handle has expired, or the process that "
        "made the event has ended. Keep the event until each handle is opened, "
        "or call ipc_handle() again.");
  }
  if (!received.storage) return received;
  throw SharedMemoryError(Kind::kInvalid,
                          "The handle of an event refers to the memory of a "
                          "tensor. It was damaged; call ipc_handle() again.");
}

}  // namespace

// The events of this process that have a record.
//
// Thread-safe. Lock order: this mutex before SharedHeap's, never the other way
// round.
class CudaInterprocessEvent::Registry {
 public:
  using Pointer = std::shared_ptr<CudaInterprocessEvent>;

  // Never destroyed: events may be dropped after static destructors ran. The
  // first call registers handlers for fork.
  static Registry& Instance() {
    static Registry& registry =
        *std::unique_ptr<Registry>(new Registry).release();
    return registry;
  }

  // Requires: the caller holds the record and is its owner.
  void AddMade(const SharedBlock& record, const Pointer& event) {
    std::lock_guard<std::mutex> guard(mutex_);
    events_[IdOf(record)] = {event, 1, Made{event->device_, event->event_}};
    // When the record is freed, no other process has the event open any more.
    Records().OnFree(record, [this, id = IdOf(record)] {
      Made made = Remove(id);
      Destroy(made.device, made.event);
    });
  }

  // Returns the object of a record; null if the record is unknown. If this
  // process created the event and has dropped its object, returns a new object,
  // which takes over the caller's use of the record.
  Pointer Find(const SharedBlock& record, bool* is_new) {
    std::lock_guard<std::mutex> guard(mutex_);
    auto known = events_.find(IdOf(record));
    *is_new = false;
    if (known == events_.end()) return nullptr;
    Pointer event = known->second.object.lock();
    if (event || !known->second.made) return event;
    const Made& made = *known->second.made;
    event.reset(
        new CudaInterprocessEvent(made.device, made.event, false, record));
    known->second.object = event;
    ++known->second.objects;
    *is_new = true;
    return event;
  }

  // Adds a received event, unless another thread was faster. Returns the
  // registered event.
  Pointer AddReceived(const SharedBlock& record, const Pointer& event) {
    std::lock_guard<std::mutex> guard(mutex_);
    Entry& entry = events_[IdOf(record)];
    ++entry.objects;
    Pointer known = entry.object.lock();
    if (known) return known;
    entry.object = event;
    return event;
  }

  // Notes that an object ends. Returns false in a forked child, which does not
  // have the record.
  bool EndObject(const SharedBlock& record) {
    std::lock_guard<std::mutex> guard(mutex_);
    auto known = events_.find(IdOf(record));
    if (known == events_.end()) return false;
    --known->second.objects;
    if (known->second.objects == 0 && !known->second.made) events_.erase(known);
    return true;
  }

 private:
  // Segment, index and generation of a record.
  using Id = std::tuple<uint64_t, uint32_t, uint64_t>;

  struct Made {
    int device;
    CudaIPCDriver::Event event;
  };
  struct Entry {
    std::weak_ptr<CudaInterprocessEvent> object;
    // Objects that have not ended: this one, and others that are just ending.
    size_t objects = 0;
    std::optional<Made> made;  // if this process created the event
  };

  Registry() {
    // Register SharedHeap's fork handlers first. Handlers that prepare a fork
    // run in reverse order, so SharedHeap's mutex is locked after this one.
    SharedHeap::Instance();
    int error = pthread_atfork([] { Instance().mutex_.lock(); },
                               [] { Instance().mutex_.unlock(); },
                               [] {
                                 Instance().events_.clear();
                                 Instance().mutex_.unlock();
                               });
    if (error != 0) throw std::bad_alloc();
  }

  static Id IdOf(const SharedBlock& record) {
    return {record.segment, record.index, record.generation};
  }

  Made Remove(const Id& id) {
    std::lock_guard<std::mutex> guard(mutex_);
    auto ended = events_.find(id);
    Made made = *ended->second.made;
    events_.erase(ended);
    return made;
  }

  std::mutex mutex_;
  std::map<Id, Entry> events_;
};

CudaInterprocessEvent::CudaInterprocessEvent(
    int device, const CudaIPCDriver::SharedEvent& made)
    : device_(device),
      event_(made.event),
      is_received_(false),
      handle_(made.handle) {}

CudaInterprocessEvent::CudaInterprocessEvent(int device,
                                             CudaIPCDriver::Event event,
                                             bool is_received,
                                             const SharedBlock& record)
    : device_(device),
      event_(event),
      is_received_(is_received),
      record_(record) {}

std::shared_ptr<CudaInterprocessEvent> CudaInterprocessEvent::Make(int device) {
  std::optional<CudaIPCDriver::SharedEvent> made;
  auto make = [&] { made = CudaIPCDriver::Instance().MakeEvent(device); };
  CudaIPCHeap& heap = CudaIPCHeap::Instance();
  if (!heap.CallDriver(make, false)) ThrowLeaving();
  if (!made) {
    // Other processes may have dropped some.
    heap.Collect({});
    heap.CallDriver(make, false);
  }
  if (!made) {
    throw SharedMemoryError(
        Kind::kExhausted,
        "Cannot make an event on GPU " + std::to_string(device) +
            ": the driver cannot create more interprocess events. Drop some, "
            "also in the processes that have received them.");
  }
  return Registry::Pointer(new CudaInterprocessEvent(device, *made));
}

std::shared_ptr<CudaInterprocessEvent> CudaInterprocessEvent::Receive(
    const SharedMessage& message, std::optional<int> device) {
  SharedBlock record = ReceiveRecord(message).block;
  bool is_elsewhere = false;
  Registry::Pointer event;
  try {
    EventDescription content = ReadDescription(record);
    int found = DeviceOf(content);
    is_elsewhere = device && *device != found;
    if (is_elsewhere) {
      throw SharedMemoryError(
          Kind::kInvalid,
          "Cannot open an event for GPU " + std::to_string(*device) +
              ": it is on GPU " + std::to_string(found) +
              " of this process. Pass that one; the handle is still valid.");
    }
    event = Open(record, found, content.handle);
  } catch (...) {
    // The message will not be received again.
    if (!is_elsewhere) Records().RedeemTicket(message);
    SharedHeap::Instance().Release(record);
    throw;
  }
  Records().RedeemTicket(message);
  return event;
}

std::shared_ptr<CudaInterprocessEvent> CudaInterprocessEvent::Open(
    const SharedBlock& record, int device, const CudaIPCHandle& handle) {
  Registry& registry = Registry::Instance();
  bool is_new = false;
  if (Registry::Pointer known = registry.Find(record, &is_new)) {
    if (!is_new) SharedHeap::Instance().Release(record);
    return known;
  }
  EnforceOwnerAlive(record);
  CudaIPCDriver::Event opened = nullptr;
  auto open = [&] {
    opened = CudaIPCDriver::Instance().OpenEvent(device, handle);
  };
  try {
    if (!CudaIPCHeap::Instance().CallDriver(open, false)) ThrowLeaving();
  } catch (const SharedMemoryError&) {
    // Drivers report in many ways that an event does not exist any more.
    EnforceOwnerAlive(record);
    throw;
  }
  Registry::Pointer event(
      new CudaInterprocessEvent(device, opened, true, record));
  // If another thread was faster, `event` ends here, and its use of the record
  // with it.
  return registry.AddReceived(record, event);
}

CudaInterprocessEvent::~CudaInterprocessEvent() {
  if (!record_) {
    Destroy(device_, event_);
    return;
  }
  if (!Registry::Instance().EndObject(*record_)) return;
  if (is_received_) {
    CudaIPCDriver& driver = CudaIPCDriver::Instance();
    auto close = [&] {
      for (int device : used_on_) driver.Synchronize(device);
      driver.DestroyEvent(device_, event_);
    };
    try {
      if (!CudaIPCHeap::Instance().CallDriver(close)) return;
    } catch (const SharedMemoryError&) {
      // Streams may still use the event, so this process stays a holder.
      return;
    }
  }
  SharedHeap::Instance().Release(*record_);
  if (!is_received_) Records().Collect({});
}

template <typename Call>
void CudaInterprocessEvent::CallDriver(const Call& call) {
  CudaIPCDriver& driver = CudaIPCDriver::Instance();
  if (is_received_) EnforceOwnerAlive(*record_);
  if (!CudaIPCHeap::Instance().CallDriver([&] { call(&driver); }, false)) {
    ThrowLeaving();
  }
}

void CudaInterprocessEvent::EnsureRecord(SharingStrategy strategy) {
  std::lock_guard<std::mutex> guard(mutex_);
  if (record_) return;
  // Making the registry may fail, so make it before the record.
  Registry& registry = Registry::Instance();
  // A forked child cannot use the event, so it must not keep it either.
  SharedBlock record = Records().Allocate(strategy, sizeof(EventRecord));
  EventDescription content = {
      kEventMagic, CudaIPCDriver::Instance().Uuid(device_), *handle_};
  std::memcpy(record.data, &content, sizeof(content));
  RecorderIn(record) = kOwner;
  record_ = record;
  registry.AddMade(record, shared_from_this());
}

SharedMessage CudaInterprocessEvent::Send(SharingStrategy strategy) {
  // Also finds out whether the event still exists and the driver works.
  CallDriver([](CudaIPCDriver*) {});
  EnsureRecord(strategy);
  auto message = SharedHeap::Instance().Send(record_->data);
  if (!message) ThrowOwnerEnded();
  return *message;
}

void CudaInterprocessEvent::NoteUseOn(int device) {
  if (!is_received_) return;
  std::lock_guard<std::mutex> guard(mutex_);
  used_on_.insert(device);
}

CudaInterprocessEvent::Recorders CudaInterprocessEvent::NoteRecorder() {
  std::lock_guard<std::mutex> guard(mutex_);
  if (!record_) return {};
  uint64_t self = kOwner;
  if (is_received_) {
    std::optional<SharedHolder> holder = Records().Self(*record_);
    if (!holder) ThrowOwnerEnded();
    self = ToWord(*holder);
  }
  // Release: the process took its holder bit before.
  return {RecorderIn(*record_).exchange(self, std::memory_order_release), self};
}

void CudaInterprocessEvent::RestoreRecorder(Recorders noted) {
  std::lock_guard<std::mutex> guard(mutex_);
  if (!record_) return;
  // Unless another process has recorded the event meanwhile. Release: as above.
  RecorderIn(*record_).compare_exchange_strong(
      noted.self, noted.previous, std::memory_order_release);
}

bool CudaInterprocessEvent::RecorderIsGone() {
  std::lock_guard<std::mutex> guard(mutex_);
  if (!record_) return false;
  // Acquire: see NoteRecorder.
  uint64_t recorder = RecorderIn(*record_).load(std::memory_order_acquire);
  // The owner is alive, since CallDriver did not throw.
  return recorder != kOwner &&
         !Records().IsHeldBy(*record_, ToHolder(recorder));
}

void CudaInterprocessEvent::Record(Stream stream) {
  CallDriver([&](CudaIPCDriver* driver) {
    if (RecorderIsGone() && !driver->IsDone(device_, event_)) {
      throw SharedMemoryError(Kind::kGone,
                              "Cannot record an event: the process that "
                              "recorded it last was killed "
                              "before its work was done. The driver would "
                              "never complete the event, "
                              "nor the stream. Create a new event.");
    }
    NoteUseOn(device_);
    // Before the driver's call: a process that is killed between the two counts
    // as the recorder. So no process waits for it forever, but none waits any
    // longer for the recorder before it, either.
    Recorders noted = NoteRecorder();
    try {
      driver->Record(device_, event_, stream);
    } catch (const SharedMemoryError&) {
      RestoreRecorder(noted);
      throw;
    }
  });
}

void CudaInterprocessEvent::Wait(int device, Stream stream) {
  CallDriver([&](CudaIPCDriver* driver) {
    // The stream would wait forever for a process that was killed.
    if (RecorderIsGone()) return;
    NoteUseOn(device);
    driver->Wait(device, stream, event_);
  });
}

bool CudaInterprocessEvent::IsDone() {
  bool is_done = false;
  CallDriver([&](CudaIPCDriver* driver) {
    // The driver would never report that a killed process's work is over.
    is_done = driver->IsDone(device_, event_) || RecorderIsGone();
  });
  return is_done;
}

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
