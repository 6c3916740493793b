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
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "paddle/phi/core/distributed/shared_memory/collective_error.h"
#include "paddle/phi/core/distributed/shared_memory/group_layout.h"
#include "paddle/phi/core/memory/allocation/shared_segment_file.h"

namespace phi {
namespace distributed {

struct GroupOptions {
  // The staging memory of one rank. Rounded up to whole pages.
  uint64_t staging_bytes = 1 << 20;
  // How long a rank that waits looks again and again before it sleeps. Ranks do
  // so only if there is a core for each of them.
  std::chrono::microseconds spin{50};
};

// The memory that the ranks of one group have in common, and this rank's
// membership.
//
// Invariant: a rank that has attached and has not left is alive as long as it
// holds the kernel lock of its byte of the file. The lock belongs to an open
// file description that this object alone has, by its descriptor and by its
// mapping, so the kernel drops it whatever ended the process, and not before. A
// process that has ended, or is ending, counts as dead even if the lock is
// still held. A group that has failed stays failed, for one reason that all
// ranks are told in the same words.
//
// The file is a memfd: there is no file name that a killed process could leave.
// All of its memory is reserved at the start, and its size is sealed, so that
// touching it cannot fail. A child of fork gets neither the mapping nor the
// descriptor; to use the object there is an error, to delete it has no effect.
// A process that ends by exit() leaves its groups in order.
//
// Thread-safe, except that no operation may be under way when it is destroyed.
class GroupMemory {
 public:
  // Makes a group, of which the caller is rank 0. Throws CollectiveError.
  static std::unique_ptr<GroupMemory> Create(int size,
                                             const GroupOptions& options = {});
  // Joins the group whose id() rank 0 returned; rank 0 must not have left. A
  // rank can join once: not again after it has left. Throws CollectiveError.
  static std::unique_ptr<GroupMemory> Attach(const std::string& id, int rank);
  // Leaves.
  ~GroupMemory();
  GroupMemory(const GroupMemory&) = delete;
  GroupMemory& operator=(const GroupMemory&) = delete;

  // A short text by which other processes of this machine attach. The same on
  // all ranks.
  const std::string& id() const { return id_; }
  int rank() const { return rank_; }
  int size() const { return layout_.size(); }

  // The process of a rank, and the address of the group's memory in it; both
  // are 0 before the rank has attached. At random_number_offset() from there is
  // the group's random number, by which a reader of that process's memory can
  // tell that it is the right one.
  uint32_t process_of(int rank) const;
  uint64_t base_of(int rank) const;
  uint64_t random_number() const { return random_number_; }
  static constexpr uint64_t random_number_offset() {
    return offsetof(GroupStart, random_number);
  }

  // Leaves the group. Operations that need this rank fail, also those that
  // other threads of this process wait in. Has no effect the second time.
  void Leave();
  // Fails the group for a reason that is about a rank. Has no effect if it has
  // failed already. Throws CollectiveError in a child of fork.
  void Abort(int rank, const std::string& reason);
  // Throws CollectiveError if the group has failed, this rank has left, or this
  // process is a child of the one that joined.
  void ThrowIfUnusable() const;

 private:
  friend class Operation;
  friend class OpenGroups;
  using Clock = std::chrono::steady_clock;

  // What this rank keeps of a channel. Guarded by the mutex, which an operation
  // holds from its beginning to its end.
  struct ChannelState {
    std::mutex mutex;
    uint64_t sequence = 0;
    // The last operation in which this rank has used its staging memory.
    uint64_t staged = 0;
    // Spins in vain since the last one that met a rank, and the next waits that
    // do not spin.
    int vain_spins = 0;
    int spins_to_skip = 0;
    // Per member, the last operation whose infos were compared.
    std::vector<uint64_t> compared;
  };

  // A rank that waits looks whether others are alive as often as this.
  static constexpr std::chrono::milliseconds kLookInterval{5};

  GroupMemory(paddle::memory::allocation::FileDescriptor file,
              const GroupStart& start,
              const std::string& id,
              int rank);
  void TakeRank();
  void AddCores();
  // After a fork, in the child.
  void Forget();

  GroupHeader* header() const;
  RankState* rank_state(int rank) const;
  ChannelMember* member(uint32_t channel, int member) const;
  OperationEntry* entry(uint32_t channel, int member, uint64_t sequence) const;
  char* At(uint64_t offset) const {
    return static_cast<char*>(mapping_.base()) + offset;
  }
  // Of a channel that this rank is a member of.
  ChannelState* channel_state(uint32_t channel);

  // Returns whether there is a core for each rank.
  bool MaySpin() const;
  bool HasLeft(int rank) const;
  bool IsDead(int rank, bool look_at_process) const;
  // Fails the group if a rank is gone that has not ended an operation of this
  // rank, or a rank has died that is no member of it.
  void LookAtRanks(uint32_t channel, uint64_t sequence);
  // The same, if this rank has not looked for a while.
  void LookAtRanksIfDue(uint32_t channel, uint64_t sequence);

  void Fail(CollectiveError::Kind kind, int rank, const std::string& text);
  // Requires: the group has failed.
  [[noreturn]] void ThrowFailure() const;
  void FailGone(int rank);
  void WakeAll();

  // For messages: a rank, an operation, and an operation as a rank has it.
  std::string TextOf(int rank) const;
  std::string TextOf(uint32_t channel,
                     uint64_t sequence,
                     const OperationInfo& info) const;
  std::string TextOf(uint32_t channel, int rank, uint64_t sequence) const;
  std::string LastOperationOf(int rank) const;

  paddle::memory::allocation::FileDescriptor file_;
  GroupLayout layout_;
  paddle::memory::allocation::Mapping mapping_;
  std::string id_;
  uint64_t random_number_;
  std::chrono::microseconds spin_;
  int rank_;
  std::vector<ChannelState> channels_;
  // Lets one thread of this rank report a failure.
  std::mutex report_mutex_;
  // Relaxed: no other data is published through them.
  std::atomic<bool> left_{false};
  std::atomic<bool> forked_{false};
  std::atomic<Clock::rep> last_look_{0};
  std::atomic<uint32_t> looks_{0};
};

}  // namespace distributed
}  // namespace phi
