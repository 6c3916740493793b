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

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "paddle/phi/core/memory/allocation/shared_memory/cuda_ipc_chunks.h"
#include "paddle/phi/core/memory/allocation/shared_memory/cuda_ipc_driver.h"
#include "paddle/phi/core/memory/allocation/shared_memory/cuda_ipc_events.h"
#include "paddle/phi/core/memory/allocation/shared_memory/cuda_ipc_handles.h"
#include "paddle/phi/core/memory/allocation/shared_memory/shared_heap.h"
#include "paddle/phi/core/memory/allocation/shared_memory/shared_records.h"

namespace paddle {
namespace memory {
namespace allocation {

// The memory of a storage on a GPU.
struct CudaIPCMemory {
  int device;
  char* data;
  uint64_t size;
};

// The message that goes from process to process in place of GPU memory.
struct CudaIPCMessage {
  SharedMessage record;
  CudaIPCReadyEvent ready;
  uint64_t offset;  // in the memory
};

// A GPU storage that this process uses and other processes may use too.
//
// Its record (SharedRecords) is a block in host memory that says where the GPU
// memory is. A process that holds the record may use the GPU memory.
//
// Invariant: this process is a user of the record as long as `uses` is not 0.
struct CudaIPCData {
  virtual ~CudaIPCData() = default;

  CudaIPCMemory memory;
  SharedBlock block;  // the record
  uint64_t uses;
  // Whether the memory is in chunks, to which several devices may have access.
  bool in_chunks{false};
};

// A storage that this process owns. Its memory is freed when its record is
// freed, so never while another process holds it or a message carries it.
struct CudaIPCSentData : CudaIPCData {
  std::function<void()> free;  // set once it is released here
  // Whether this process has received its own storage in a message. Paddle's
  // allocator does not know the streams that have used the storage since.
  bool received_here{false};
  // For memory in chunks: the descriptors by which others map the chunks.
  std::vector<std::shared_ptr<FileDescriptor>> descriptors;
};

// A storage that another process owns.
struct CudaIPCReceivedData : CudaIPCData {
  CudaIPCHandle base;
};

// The storages that this process owns and has released, but others still use.
//
// Not thread-safe. Requires, for all functions: the mutex of CudaIPCHeap is
// held.
class CudaIPCSentDataLimbo {
 public:
  void Add(const CudaIPCData* data);
  void Remove(const CudaIPCData* data);

  uint64_t blocks() const { return data_.size(); }
  uint64_t bytes() const { return bytes_; }

 private:
  std::set<const CudaIPCData*> data_;
  uint64_t bytes_{0};
};

struct CudaIPCStats {
  uint64_t sent;  // storages of this process that were sent
  uint64_t sent_bytes;
  uint64_t limbo;  // of those, storages that only other processes use
  uint64_t limbo_bytes;
  uint64_t received;  // storages of other owners
  uint64_t received_bytes;
  uint64_t handles;  // opened
  uint64_t events;   // created and opened
};

// The GPU memory that the calling process shares with others. SharedHeap has
// the table of verbs (Release, Free, Collect, ...) that is used here too.
//
// Invariant: a received storage is in `received_` exactly as long as this
// process needs its record. A sent storage is in `sent_` exactly as long as any
// process or message needs its record. The key is the record's identity.
//
// Thread-safe. No driver call and no code of a tensor runs while the mutex is
// held, since the driver may wait for a callback that frees a tensor. Lock
// order: this mutex before SharedHeap's, never the other way round.
class CudaIPCHeap {
 public:
  // The number of storages in limbo that causes a warning, once per process.
  static constexpr uint64_t kCrowded = 1000;

  // Returns the heap of the calling process, which is never destroyed.
  //
  // Thread-safe. The first call registers handlers for fork.
  static CudaIPCHeap& Instance();

  // Creates a record for memory of this process, so that it can be sent.
  // `take_over` arranges that ReleaseOwned is called before `storage` frees the
  // memory; it is not called if another thread has already created the record.
  // Returns false if the driver does not export the memory.
  //
  // Thread-safe. Requires: the caller keeps `storage` alive meanwhile.
  bool Share(SharingStrategy strategy,
             const CudaIPCMemory& memory,
             std::weak_ptr<void> storage,
             const std::function<void()>& take_over);
  // Returns a message for the memory at an address. The receiver waits for the
  // work that is queued on `stream` at the time of this call. Without a stream,
  // and for memory of another process, this call itself waits for the work of
  // all streams of this process on the device. Returns none if the memory has
  // no record.
  //
  // Thread-safe. Requires: the caller keeps the memory alive meanwhile.
  std::optional<CudaIPCMessage> Send(
      const void* address, std::optional<CudaIPCDriver::Stream> stream);

  struct Received {
    // The storage that has the memory in this process. If it is empty, the
    // caller creates one for `data` and calls Bind, and calls Release when that
    // storage ends.
    std::shared_ptr<void> storage;
    std::shared_ptr<CudaIPCData> data;
  };
  // Receives a message, and waits until the memory is ready. If this process
  // sent the message, only the stream that `stream_of` returns for the device
  // waits.
  //
  // Why streams do not wait for other processes: a driver never completes an
  // event whose recorder was killed before its work was done, and a stream that
  // waits for one is stuck forever.
  //
  // Thread-safe. Requires: the caller holds no lock, as this may block.
  Received Receive(const CudaIPCMessage& message,
                   const std::function<CudaIPCDriver::Stream(int)>& stream_of);
  // Thread-safe.
  void Bind(const CudaIPCData& data, std::weak_ptr<void> storage);

  // Releases one use of received memory. After the last use, waits for all work
  // of this process on the device (for chunks: on all devices) and releases the
  // record.
  //
  // Thread-safe. Requires: the caller submits no more work on the memory.
  void Release(const std::shared_ptr<CudaIPCData>& data);
  // Releases memory for which Share has created a record. `free` is called once
  // no other process or message needs the memory, perhaps immediately. In a
  // forked child, which does not have the record, returns false and ignores
  // `free`; then the caller frees the memory.
  //
  // Thread-safe.
  bool ReleaseOwned(const void* data, std::function<void()> free);

  // Collects records and calls `free` of storages that nobody needs any more.
  // Messages sent longer ago than the timeout, in seconds, expire. Returns the
  // number of bytes that were freed.
  //
  // Thread-safe.
  uint64_t Collect(std::optional<double> message_timeout);
  // Thread-safe.
  CudaIPCStats Stats();
  // Returns a text about who uses this process's memory, empty if nobody does.
  //
  // Thread-safe.
  std::string Describe();
  // Sets the function that prints warnings. Thread-safe.
  void SetWarning(std::function<void(const std::string&)> warn);
  // Sets the wrapper for driver calls that may block. It must run the call; it
  // may release the GIL. Thread-safe.
  void SetBlockingCallWrapper(
      std::function<void(const std::function<void()>&)> wrap);
  // Sets a function that throws if the user has interrupted the program, which
  // ends a call of Receive that is waiting. Thread-safe.
  void SetInterruptionCheck(std::function<void()> check);
  // Runs `call`, which calls the driver. If it may wait for work on a device
  // (`may_block`), it runs in the wrapper of SetBlockingCallWrapper, in Python
  // without the GIL. Once the process is leaving, returns false and does not
  // run `call`.
  //
  // Thread-safe. Requires: the caller holds no lock if the call may block.
  bool CallDriver(const std::function<void()>& call, bool may_block = true);
  // Announces that this process is about to exit. From then on, sends and
  // receives throw, and releases have no effect, since the driver may shut
  // down. Waits a few seconds for driver calls that are in progress.
  //
  // Thread-safe.
  void Leave();

 private:
  // Segment, index and generation of a block.
  using BlockId = std::tuple<uint64_t, uint32_t, uint64_t>;

  CudaIPCHeap();

  static BlockId IdOf(const SharedBlock& block) {
    return {block.segment, block.index, block.generation};
  }
  // Returns the storage of a record; null if it is unknown. Requires: the mutex
  // is held.
  std::shared_ptr<CudaIPCData> Known(const SharedBlock& block) const;
  std::shared_ptr<CudaIPCData> Find(const void* address);
  // Returns the event after this process's work on the memory.
  CudaIPCReadyEvent RecordReadyEvent(
      const CudaIPCData& data, std::optional<CudaIPCDriver::Stream> stream);
  int DeviceOf(const SharedBlock& block);
  void Wait(const SharedBlock& block,
            int device,
            CudaIPCDriver::Stream stream,
            const CudaIPCReadyEvent& ready);
  // Turns the caller's use of the record into a use of its known storage.
  // Returns null if the record is unknown.
  std::shared_ptr<CudaIPCData> Use(const SharedBlock& block);
  std::shared_ptr<CudaIPCData> UseOrOpen(const SharedBlock& block);
  std::shared_ptr<CudaIPCReceivedData> Open(const SharedBlock& block);
  // Completes Release after the last use. If the driver fails, keeps the
  // storage in `deferred_`.
  void FinishRelease(const std::shared_ptr<CudaIPCData>& data);
  // Retries the releases in which the driver failed.
  void RetryDeferred();
  // Like RetryDeferred, unless the last attempt was a moment ago: each attempt
  // may wait for a device.
  void RetryDeferredIfDue();
  // Frees the GPU memory of a record that was freed.
  void Free(const CudaIPCSentData& data);
  void EnforceOwnerAlive(const SharedBlock& block);
  void EnforceNotLeaving();
  void CheckInterruption();
  bool HasLimbo();
  void WarnIfCrowded();
  uint64_t Freed();
  // Requires: the mutex is held.
  std::string DescribeOthers() const;
  // Requires: the mutex is held, and this forked child has only one thread.
  void ChildAfterFork();

  SharedHeap& shared_;
  SharedRecords records_;
  // A forked child gets new objects: another thread of the parent may have held
  // their mutexes.
  std::unique_ptr<CudaIPCEvents> events_;
  std::unique_ptr<CudaIPCOpenedHandles> handles_;
  std::vector<std::shared_ptr<void>> parents_objects_;
  CudaIPCChunkExports chunks_;
  std::mutex mutex_;
  std::map<BlockId, std::shared_ptr<CudaIPCSentData>> sent_;
  std::map<BlockId, std::shared_ptr<CudaIPCReceivedData>> received_;
  std::map<const char*, std::shared_ptr<CudaIPCData>> by_address_;
  CudaIPCSentDataLimbo limbo_;
  // Releases in which the driver failed.
  std::vector<std::shared_ptr<CudaIPCData>> deferred_;
  std::chrono::steady_clock::time_point deferred_since_;
  std::function<void(const std::string&)> warn_;
  std::function<void(const std::function<void()>&)> wrap_blocking_call_;
  std::function<void()> check_interruption_;
  std::condition_variable driver_call_done_;
  int driver_calls_{0};  // that are in progress
  bool warned_{false};
  bool leaving_{false};
  uint64_t freed_{0};
};

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
