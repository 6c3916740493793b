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

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "paddle/phi/core/distributed/shared_memory/collective_error.h"
#include "paddle/phi/core/distributed/shared_memory/group_layout.h"
#include "paddle/phi/core/memory/allocation/shared_memory/shared_segment_file.h"

namespace phi {
namespace distributed {

struct GroupOptions {
  // The staging memory of one rank. Rounded up to whole pages.
  uint64_t staging_bytes = 1 << 20;
  // How long a waiting rank polls before it sleeps. Ranks poll only if there is
  // a core for each of them.
  std::chrono::microseconds spin{50};
};

// Returns whether a process has exited, or is exiting with all of its threads;
// false if that is unknown. Unmapping its memory may take a second, and its
// locks are released only afterwards. They are never released if a child that
// was created without running fork handlers holds the descriptors.
//
// Thread-safe.
bool IsGoneOrExiting(uint32_t process);

// The shared memory of one group, and this rank's membership in the group.
//
// Invariant: a rank that has attached and has not left is alive as long as it
// holds the kernel lock on its byte of the file. The lock belongs to an open
// file description that only this object references, through its descriptor and
// its mapping. So the kernel releases the lock however the process ends, and
// not before. A process that has exited, or is exiting, counts as dead even if
// the lock is still held. A failed group stays failed, and all ranks get the
// same reason with the same message.
//
// The file is a memfd, so a killed process cannot leave a file name behind. Its
// size is sealed, and its memory is reserved before it is used: transfer memory
// by the rank that writes to it, everything else on creation. So accessing the
// memory cannot fail. A child of fork inherits neither the mapping nor the
// descriptor; using the object there is an error, and destroying it has no
// effect. A process that calls exit() leaves its groups.
//
// Thread-safe, except that no operation may be in flight on destruction.
class GroupMemory {
 public:
  // Creates a group with the caller as rank 0. Throws CollectiveError.
  static std::unique_ptr<GroupMemory> Create(int size,
                                             const GroupOptions& options = {});
  // Joins the group with rank 0's id(); rank 0 must not have left. A rank can
  // join only once, even if it has left. Throws CollectiveError.
  static std::unique_ptr<GroupMemory> Attach(const std::string& id, int rank);
  // Leaves.
  ~GroupMemory();
  GroupMemory(const GroupMemory&) = delete;
  GroupMemory& operator=(const GroupMemory&) = delete;

  // A short text that other processes of this machine pass to Attach. The same
  // on all ranks.
  const std::string& id() const { return id_; }
  int rank() const { return rank_; }
  int size() const { return layout_.size(); }

  // Return a rank's process ID, and the address of the group's memory in that
  // process; both are 0 before the rank has attached. The group's random number
  // is at random_number_offset() from there, and identifies the right process.
  uint32_t process_of(int rank) const;
  uint64_t base_of(int rank) const;
  uint64_t random_number() const { return random_number_; }
  static constexpr uint64_t random_number_offset() {
    return offsetof(GroupStart, random_number);
  }

  // Sets a function that threads call once per interval while they wait in an
  // operation. It may throw, which aborts the operation. Requires: no operation
  // is in flight.
  void set_check_interrupt(std::function<void()> check_interrupt) {
    check_interrupt_ = std::move(check_interrupt);
  }
  static constexpr std::chrono::milliseconds kInterruptInterval{100};

  // Leaves the group. Operations that need this rank fail, including operations
  // in which other threads of this process wait. Later calls have no effect.
  void Leave();
  // Fails the group, with a reason that concerns `rank`. Has no effect if the
  // group has already failed. Throws CollectiveError in a child of fork.
  void Abort(int rank, const std::string& reason);
  // Throws CollectiveError if the group has failed, this rank has left, or this
  // process is a child of the one that joined.
  void ThrowIfUnusable() const;

 private:
  friend class Operation;
  friend class OpenGroups;
  using Clock = std::chrono::steady_clock;

  // This rank's private state of a channel. Guarded by the mutex, which an
  // operation holds from its beginning to its end.
  struct ChannelState {
    std::mutex mutex;
    uint64_t sequence = 0;
    // The last operation in which this rank used its staging memory.
    uint64_t staged = 0;
    // The number of unsuccessful spins since the last successful one, and the
    // number of upcoming waits that do not spin.
    int failed_spins = 0;
    int spins_to_skip = 0;
    // Per member, the last operation whose OperationInfo was compared.
    std::vector<uint64_t> compared;
  };

  // A block of this rank's transfer memory, and the last transfer that took it.
  struct TransferBlock {
    uint32_t channel;
    uint64_t sequence;
  };

  // How often a waiting rank checks whether the others are alive.
  static constexpr std::chrono::milliseconds kCheckInterval{5};

  GroupMemory(paddle::memory::allocation::FileDescriptor file,
              const GroupStart& start,
              const std::string& id,
              int rank);
  void TakeRank();
  void AddCores();
  // Runs in the child after a fork.
  void Forget();

  GroupHeader* header() const;
  RankState* rank_state(int rank) const;
  ChannelMember* member(uint32_t channel, int member) const;
  OperationEntry* entry(uint32_t channel, int member, uint64_t sequence) const;
  char* At(uint64_t offset) const {
    return static_cast<char*>(mapping_.base()) + offset;
  }
  // Requires: this rank is a member of the channel.
  ChannelState* channel_state(uint32_t channel);

  // Takes a block of this rank's transfer memory for a transfer from it.
  // Returns the block's number, from 1, or 0 if there is none: all blocks are
  // in use, or the system has no memory for another one. A block is in use
  // until both ranks have ended the transfer.
  uint64_t TakeTransferBlock(uint32_t channel, uint64_t sequence);
  bool IsInUse(const TransferBlock& block) const;

  // Returns whether there is a core for each rank.
  bool MaySpin() const;
  bool HasLeft(int rank) const;
  bool IsDead(int rank, bool check_process) const;
  // Fails the group if a member of the channel died or left before it ended the
  // operation `sequence`, or if a rank that is not a member has died. Without
  // `check_process`, a rank counts as dead only when its lock was released.
  void CheckAlive(uint32_t channel,
                  uint64_t sequence,
                  bool check_process = true);
  // Calls CheckAlive, unless the last call was less than kCheckInterval ago.
  void CheckAliveIfDue(uint32_t channel, uint64_t sequence);

  void Fail(CollectiveError::Kind kind, int rank, const std::string& text);
  // Requires: the group has failed.
  [[noreturn]] void ThrowFailure() const;
  void FailDeadOrLeft(int rank);
  void WakeAll();

  // For messages: a rank, an operation, and an operation as a rank recorded it.
  std::string Describe(int rank) const;
  std::string Describe(uint32_t channel,
                       uint64_t sequence,
                       const OperationInfo& info) const;
  std::string Describe(uint32_t channel, int rank, uint64_t sequence) const;
  std::string LastOperationOf(int rank) const;

  paddle::memory::allocation::FileDescriptor file_;
  GroupLayout layout_;
  paddle::memory::allocation::Mapping mapping_;
  std::string id_;
  uint64_t random_number_;
  std::chrono::microseconds spin_;
  int rank_;
  std::function<void()> check_interrupt_;
  std::vector<ChannelState> channels_;
  std::mutex transfers_mutex_;                  // guards transfer_blocks_
  std::vector<TransferBlock> transfer_blocks_;  // the reserved ones
  // Serializes the failure reports of this rank's threads.
  std::mutex report_mutex_;
  std::atomic<bool> left_{false};  // set after this rank's RankState
  // Relaxed: no other data is published through them.
  std::atomic<bool> forked_{false};
  std::atomic<Clock::rep> last_check_{0};
  std::atomic<uint32_t> checks_{0};
};

}  // namespace distributed
}  // namespace phi
