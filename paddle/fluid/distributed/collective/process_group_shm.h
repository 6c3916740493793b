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
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "paddle/fluid/distributed/collective/process_group.h"
#include "paddle/phi/core/distributed/shared_memory/collectives.h"
#include "paddle/phi/core/distributed/shared_memory/group_memory.h"
#include "paddle/phi/core/distributed/shared_memory/operation_queue.h"
#include "paddle/phi/core/distributed/store/store.h"

namespace paddle {
namespace distributed {

struct ProcessGroupShmOptions {
  int rank;
  int size;
  int group_id;
  // How long an operation waits for the other ranks.
  std::chrono::milliseconds timeout;
  std::chrono::milliseconds time_to_join;  // how long joining waits for them
  // Finds tensors in shared memory. May be null, on all ranks.
  std::shared_ptr<phi::distributed::SharedMemoryResolver> resolver;
  // Called several times per second while the thread that joins waits in an
  // operation or for one. May throw, which ends the wait, and must not use the
  // group. May be empty.
  std::function<void()> check_interrupt;
};

// An operation that is in flight or complete. Thread-safe.
class ShmTask : public ProcessGroup::Task {
 public:
  using Seconds = std::chrono::duration<double>;

  // A synchronous operation must be complete. `check_interrupt` is called while
  // a thread waits, and may be empty.
  ShmTask(int rank,
          phi::distributed::CommType type,
          bool sync_op,
          std::function<void()> check_interrupt);

  // The operation has ended, with an error unless it is null.
  void EndWith(std::exception_ptr error);

  bool IsCompleted() override;
  // Waits until the operation has ended, and throws its error. Returns false
  // after the timeout, if that is not zero. After that, and after an exception
  // of `check_interrupt`, the operation continues.
  bool WaitFor(Seconds timeout);
  bool Wait(std::chrono::milliseconds timeout) override {
    static_assert(kWaitTimeout == std::chrono::milliseconds::zero());
    return WaitFor(timeout);
  }
  void Synchronize() override { WaitFor(Seconds::zero()); }

 private:
  void EnforceNotForked() const;

  const int process_;
  const std::function<void()> check_interrupt_;
  std::condition_variable completed_;
  std::exception_ptr error_;
};

// A group of processes of one machine that communicate through shared memory.
// It works on contiguous tensors in host memory.
//
// With sync_op, an operation runs on the calling thread and is complete when
// the call returns. Otherwise it runs on a group thread, in call order. Sends
// to a rank and receives from a rank have separate queues, so both directions
// can be in flight concurrently. The task keeps the tensors alive until the
// operation completes. Its Wait raises the operation's error. With a timeout,
// Wait returns whether the operation has completed; the operation continues if
// it has not.
//
// The first rank that dies, leaves, or arrives after the timeout fails the
// group: in-flight and later operations of all ranks raise an error that names
// this rank. The first operation that differs between ranks also fails the
// group.
//
// Thread-safe, except for the destructor. In a child of fork all operations
// raise an error.
class ProcessGroupShm : public ProcessGroup {
 public:
  using TaskPointer = std::shared_ptr<ProcessGroup::Task>;

  // Waits for all ranks, which find each other through the store, under keys
  // that begin with the group's id. If the store throws CollectiveError while
  // rank 0 waits for the others, the error fails the group.
  ProcessGroupShm(const std::shared_ptr<phi::distributed::Store>& store,
                  const ProcessGroupShmOptions& options);
  // Leaves.
  ~ProcessGroupShm() override;

  std::string GetBackendName() const override { return "SHM"; }

  // Leaves the group: this rank takes no part in later operations, and
  // operations in flight fail. Frees the group's memory. Later calls, and calls
  // in a child of fork, have no effect.
  void Leave();
  // Fails the group for this reason, unless it has already failed: operations
  // in flight and later ones raise it on all ranks. Has no effect after Leave
  // and in a child of fork.
  void Abort(const std::string& reason);

  phi::DeviceContext* GetDeviceContext(const phi::Place& place) const override;
  phi::DeviceContext* GetDeviceContext(const phi::Place& place,
                                       bool use_calc_stream) const override;

  using ProcessGroup::AllGather;
  using ProcessGroup::AllReduce;
  using ProcessGroup::AllToAll;
  using ProcessGroup::Broadcast;
  using ProcessGroup::Gather;
  using ProcessGroup::Recv;
  using ProcessGroup::Reduce;
  using ProcessGroup::ReduceScatter;
  using ProcessGroup::Scatter;
  using ProcessGroup::Send;

  TaskPointer AllReduce(phi::DenseTensor* out_tensor,
                        const phi::DenseTensor& in_tensor,
                        const AllreduceOptions& opts,
                        bool sync_op) override;
  // Only EagerReducer calls this. It uses the results without waiting for the
  // task, because it relies on stream order, which host memory does not have.
  // So the operation is complete when this returns.
  TaskPointer AllReduce(std::vector<phi::DenseTensor>& inputs,   // NOLINT
                        std::vector<phi::DenseTensor>& outputs,  // NOLINT
                        const AllreduceOptions& opts) override;
  TaskPointer Reduce(phi::DenseTensor* out_tensor,
                     const phi::DenseTensor& in_tensor,
                     const ReduceOptions& opts,
                     bool sync_op) override;
  TaskPointer ReduceScatter(phi::DenseTensor* out_tensor,
                            const phi::DenseTensor& in_tensor,
                            const ReduceScatterOptions& opts,
                            bool sync_op) override;
  TaskPointer Broadcast(phi::DenseTensor* out_tensor,
                        const phi::DenseTensor& in_tensor,
                        const BroadcastOptions& opts,
                        bool sync_op) override;
  TaskPointer AllGather(phi::DenseTensor* out_tensor,
                        const phi::DenseTensor& in_tensor,
                        bool sync_op) override;
  TaskPointer AllGather(phi::DenseTensor* out_tensor,
                        const phi::DenseTensor& in_tensor,
                        int64_t offset,
                        int64_t numel,
                        bool sync_op) override;
  TaskPointer Gather(phi::DenseTensor* out_tensor,
                     const phi::DenseTensor& in_tensor,
                     const GatherOptions& opts,
                     bool sync_op,
                     bool use_calc_stream) override;
  // Operations on one tensor per rank. Paddle's own bindings would join the
  // tensors, and after the call split the result, which is wrong for an
  // asynchronous operation and not supported for all types.
  TaskPointer AllGatherIntoList(
      const std::vector<phi::DenseTensor>& out_tensors,
      const phi::DenseTensor& in_tensor,
      bool sync_op);
  // Only the root's `out_tensors` are used.
  TaskPointer GatherIntoList(const std::vector<phi::DenseTensor>& out_tensors,
                             const phi::DenseTensor& in_tensor,
                             int root,
                             bool sync_op,
                             bool use_calc_stream);
  // Only the root's `in_tensors` are used.
  TaskPointer ScatterFromList(const phi::DenseTensor& out_tensor,
                              const std::vector<phi::DenseTensor>& in_tensors,
                              int root,
                              bool sync_op);
  TaskPointer Scatter(phi::DenseTensor* out_tensor,
                      const phi::DenseTensor& in_tensor,
                      const ScatterOptions& opts,
                      bool sync_op) override;
  // Sizes are in rows of the tensors. Empty sizes mean equal parts.
  TaskPointer AllToAll(phi::DenseTensor* out_tensor,
                       const phi::DenseTensor& in_tensor,
                       const std::vector<int64_t>& out_size_each_rank,
                       const std::vector<int64_t>& in_size_each_rank,
                       bool sync_op) override;
  TaskPointer AllToAll(std::vector<phi::DenseTensor>* out_tensors,
                       const std::vector<phi::DenseTensor>& in_tensors,
                       bool sync_op) override;
  TaskPointer Send(const phi::DenseTensor& tensor,
                   int dst_rank,
                   bool sync_op) override;
  TaskPointer Send(const phi::DenseTensor& tensor,
                   int dst_rank,
                   int64_t offset,
                   int64_t numel,
                   bool sync_op) override;
  TaskPointer Recv(phi::DenseTensor* tensor,
                   int src_rank,
                   bool sync_op) override;
  TaskPointer Recv(phi::DenseTensor* tensor,
                   int src_rank,
                   int64_t offset,
                   int64_t numel,
                   bool sync_op) override;
  TaskPointer Barrier(const BarrierOptions& opts = BarrierOptions()) override;

 private:
  // The state that operations use. It lives until the last one completes.
  struct JoinedGroup {
    std::unique_ptr<phi::distributed::GroupMemory> memory;
    std::unique_ptr<phi::distributed::Collectives> collectives;
  };
  using Milliseconds = std::chrono::milliseconds;
  using Operation =
      std::function<void(phi::distributed::Collectives*, Milliseconds)>;

  bool IsForked() const;
  // Throws if this rank has left.
  std::shared_ptr<JoinedGroup> joined() const;
  // Returns the queue of sends to, or of receives from, a rank.
  phi::distributed::OperationQueue* PairQueue(CommType type, int peer);
  // Runs an operation on this thread if `sync_op`, else on the queue's thread.
  TaskPointer Submit(phi::distributed::OperationQueue* queue,
                     CommType type,
                     bool sync_op,
                     Operation operation);
  // Called while an operation waits for its turn. If `check_interrupt_` throws,
  // the operation does not run, and the group fails.
  void CheckInterruptWhileQueued(CommType type,
                                 phi::distributed::GroupMemory* memory) const;
  void EnforceRank(CommType type, int rank) const;

  const int process_;  // the process that created the group
  const std::chrono::milliseconds timeout_;
  const std::function<void()> check_interrupt_;
  mutable std::mutex mutex_;
  std::shared_ptr<JoinedGroup> joined_;  // guarded by mutex_; null after Leave
  // The queue of collective operations.
  std::unique_ptr<phi::distributed::OperationQueue> queue_;
  // The queues of point-to-point operations, by direction and peer. Guarded by
  // mutex_.
  std::map<std::pair<CommType, int>,
           std::unique_ptr<phi::distributed::OperationQueue>>
      pair_queues_;
};

}  // namespace distributed
}  // namespace paddle
