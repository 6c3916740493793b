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

#include "paddle/phi/core/memory/allocation/cuda_ipc_driver.h"
#include "paddle/phi/core/memory/allocation/cuda_ipc_events.h"
#include "paddle/phi/core/memory/allocation/cuda_ipc_handles.h"
#include "paddle/phi/core/memory/allocation/shared_heap.h"
#include "paddle/phi/core/memory/allocation/shared_records.h"

namespace paddle {
namespace memory {
namespace allocation {

// Memory of a device that tensors are in.
struct CudaIPCMemory {
  int device;
  char* data;
  uint64_t size;
};

// What goes from process to process in place of a device's memory.
struct CudaIPCMessage {
  SharedMessage record;
  CudaIPCStamp stamp;
  uint64_t offset;  // in the memory
};

// A storage that this process uses and others may use too.
//
// What a block is in Part B (RFC.md), memory of the host that the ledger counts
// references of, is here a record: it says what memory of a device is meant.
// Who holds the record's block may use that memory.
//
// Invariant: this process has one user of the block (SharedHeap) as long as
// `uses` is not 0.
struct CudaIPCData {
  virtual ~CudaIPCData() = default;

  CudaIPCMemory memory;
  SharedBlock block;
  uint64_t uses;
};

// One that this process made. Its memory is freed at the end of the block, so
// never while another process holds it or a message carries it.
struct CudaIPCSentData : CudaIPCData {
  std::function<void()> free;  // once it is dropped here
  // Received by the process that made it, whose allocator does not know of what
  // is done with it since.
  bool received_here{false};
};

// One that another process made.
struct CudaIPCReceivedData : CudaIPCData {
  CudaIPCHandle base;
};

// What this process has dropped and others have not.
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
  uint64_t limbo;  // those of them that only others use
  uint64_t limbo_bytes;
  uint64_t received;  // storages of others
  uint64_t received_bytes;
  uint64_t handles;  // opened
  uint64_t events;   // made and opened
};

// The device memory that the calling process has in common with others.
//
// Thread-safe. No call of the driver, and nothing of a tensor's, runs under its
// mutex: a driver may wait for a callback that frees a tensor.
class CudaIPCHeap {
 public:
  // Past this many storages in limbo there is a warning, once.
  static constexpr uint64_t kCrowded = 1000;

  // Like SharedHeap's, never destroyed.
  static CudaIPCHeap& Instance();

  // Gives memory of this process a record, so that it can be sent. Its owner,
  // `storage`, has to call Drop before it is freed. `take_over` is where it
  // arranges for that; it is not called if another thread has been faster.
  // False if the memory has no handle of the driver's.
  bool Share(SharingStrategy strategy,
             const CudaIPCMemory& memory,
             std::weak_ptr<void> storage,
             const std::function<void()>& take_over);
  // A message for the memory that the address is in, of use when the work is
  // done that the stream has; without a stream, that all streams of this
  // process have on the device, which is waited for. None if it has no record.
  std::optional<CudaIPCMessage> Send(
      const void* address, std::optional<CudaIPCDriver::Stream> stream);

  struct Received {
    // What has the memory in this process, if something does; else its owner
    // is to be made, who calls Bind and, at last, Drop.
    std::shared_ptr<void> storage;
    std::shared_ptr<CudaIPCData> data;
  };
  // Makes the stream that `stream_of` names for a device wait until the memory
  // of the message may be used.
  Received Receive(const CudaIPCMessage& message,
                   const std::function<CudaIPCDriver::Stream(int)>& stream_of);
  void Bind(const CudaIPCData& data, std::weak_ptr<void> storage);

  // Ends one use. What others made is given back once all work of this process
  // on the device is done, which is waited for.
  void Drop(const std::shared_ptr<CudaIPCData>& data);
  // The same for the owner that Share was called by: `free` is called when
  // nobody else needs the memory any more, maybe at once. False in a child of
  // fork, which has nothing to do with it: then the caller frees.
  bool Drop(const void* data, std::function<void()> free);

  // Frees what nobody needs any more, of processes that died too. With a
  // timeout in seconds, messages sent longer ago are given up. Returns bytes.
  uint64_t Collect(std::optional<double> message_timeout);
  CudaIPCStats Stats();
  // What others have of this process's memory, for people; empty if nothing.
  std::string Describe();
  void SetWarning(std::function<void(const std::string&)> warn);
  // What to do around waiting for a device: give back the GIL, say.
  void SetWaiting(std::function<void(const std::function<void()>&)> around);
  // At the exit of the process: no call of the driver from now on.
  void Leave();

 private:
  // Segment, index and generation of a block.
  using BlockId = std::tuple<uint64_t, uint32_t, uint64_t>;

  CudaIPCHeap();

  static BlockId IdOf(const SharedBlock& block) {
    return {block.segment, block.index, block.generation};
  }
  // What is known of a block, if anything is; with the mutex held.
  std::shared_ptr<CudaIPCData> Known(const SharedBlock& block) const;
  std::shared_ptr<CudaIPCData> Find(const void* address);
  // When the work of this process on the memory is done.
  CudaIPCStamp Stamp(const CudaIPCData& data,
                     std::optional<CudaIPCDriver::Stream> stream);
  int DeviceOf(const SharedBlock& block);
  void Wait(const SharedBlock& block,
            int device,
            CudaIPCDriver::Stream stream,
            const CudaIPCStamp& stamp);
  // One more use of a block, for the user of it that the caller has.
  std::shared_ptr<CudaIPCData> Use(const SharedBlock& block);
  std::shared_ptr<CudaIPCData> UseOrOpen(const SharedBlock& block);
  std::shared_ptr<CudaIPCReceivedData> Open(const SharedBlock& block);
  // Does what may take as long as work on a device, in a way that lets others
  // go on. False, and nothing is done, if the process ends.
  bool Aside(const std::function<void()>& act);
  void GiveBack(const std::shared_ptr<CudaIPCData>& data);
  void GiveBackLate();
  // The same unless it was tried just now.
  void GiveBackLateInTime();
  void End(const CudaIPCSentData& data);
  void EnforceMakerLives(const SharedBlock& block);
  void EnforceNotLeaving();
  bool HasLimbo();
  void WarnIfCrowded();
  uint64_t Freed();
  // With the mutex held.
  std::string DescribeOthers() const;
  void ChildAfterFork();

  SharedHeap& shared_;
  SharedRecords records_;
  // A child of fork gets new ones: another thread may have had their mutexes.
  std::unique_ptr<CudaIPCEvents> events_;
  std::unique_ptr<CudaIPCOpenedHandles> handles_;
  std::vector<std::shared_ptr<void>> of_parent_;
  std::mutex mutex_;
  std::map<BlockId, std::shared_ptr<CudaIPCSentData>> sent_;
  std::map<BlockId, std::shared_ptr<CudaIPCReceivedData>> received_;
  std::map<const char*, std::shared_ptr<CudaIPCData>> by_address_;
  CudaIPCSentDataLimbo limbo_;
  // What the driver would not let go when it was dropped.
  std::vector<std::shared_ptr<CudaIPCData>> late_;
  std::chrono::steady_clock::time_point late_since_;
  std::function<void(const std::string&)> warn_;
  std::function<void(const std::function<void()>&)> around_waiting_;
  std::condition_variable came_back_;
  int aside_{0};  // threads that are at what may call the driver
  bool warned_{false};
  bool leaving_{false};
  uint64_t freed_{0};
};

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
