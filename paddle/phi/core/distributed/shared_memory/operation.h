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
#include <cstdint>
#include <mutex>
#include <string>

#include "paddle/phi/core/distributed/shared_memory/group_memory.h"
#include "paddle/phi/core/distributed/shared_memory/operation_info.h"

namespace phi {
namespace distributed {

// One operation of one rank: of all ranks, or of a sender and a receiver. Those
// are its members.
//
// Invariant: the n-th operation of one member in a channel meets the n-th of
// the others. What a member has written, into its part of the group's memory or
// into a buffer that others read, before it publishes a phase is seen by the
// members that have waited for this phase. What a member has in the group's
// memory stays as it is until all members have ended the operation, even if the
// member has gone on to later ones.
//
// So a member may end at once if others read nothing but its inline data or
// staging memory. If they read a buffer of it, it waits for a later phase of
// theirs before it ends.
//
// All functions throw CollectiveError once the group has failed: a rank has
// died, has left or aborted, has called another operation, or did not come in
// time. An operation that is destroyed before it has ended aborts the group.
//
// Not thread-safe. Operations of different channels may be under way on several
// threads at once; those of one channel wait for each other.
class Operation {
 public:
  using Milliseconds = std::chrono::milliseconds;

  // Begins an operation of all ranks. `group` outlives it.
  Operation(GroupMemory* group,
            const OperationInfo& info,
            Milliseconds timeout);
  // Begins an operation between two ranks, one of which is the caller.
  Operation(GroupMemory* group,
            const OperationInfo& info,
            int sender,
            int receiver,
            Milliseconds timeout);
  ~Operation();
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  // Publishes a phase. Phases grow, from 1 to kEndPhase - 1; any may be left
  // out.
  void Publish(uint64_t phase);
  // Waits until a member has published a phase, a later one or the end, and
  // compares what the two ranks say about the operation.
  void WaitFor(int rank, uint64_t phase);
  // Waits for all other members.
  void WaitForAll(uint64_t phase);
  // Throws if the group has failed, as a wait would. For long work between two
  // waits; cheap.
  void CheckRanks();
  // Fails the group because this rank cannot read a buffer of another one: it
  // has died, else for this reason. Waits a little for the death of a process
  // whose memory is gone already.
  [[noreturn]] void ThrowUnreadable(int rank, const std::string& reason);
  // Publishes that this member is done with the operation and with all that
  // belongs to it. To be called once, last.
  void End();

  // Set where others find this rank's buffers. To be called before the first
  // phase is published.
  void set_input(const BufferLocation& location);
  void set_output(const BufferLocation& location);
  // Require: this rank has waited for the other.
  const BufferLocation& input_of(int rank) const;
  const BufferLocation& output_of(int rank) const;

  // Returns a rank's memory for small data. Between two ranks, only the sender
  // has any.
  char* inline_data(int rank) const;
  uint64_t inline_bytes() const;
  // Returns this rank's memory for data that others read part by part. Waits
  // until no other member reads what an earlier operation has left there.
  // Between two ranks, only the sender has any.
  char* own_staging();
  // Requires: that rank calls own_staging().
  const char* staging_of(int rank) const;
  uint64_t staging_bytes() const;

 private:
  Operation(GroupMemory* group, uint32_t channel, Milliseconds timeout);
  void Begin(const OperationInfo& info);
  // Waits until all other members have ended an operation of the channel.
  void WaitForEnd(uint64_t sequence);
  void WaitForMember(int member, uint64_t progress);
  bool SpinUntil(const ChannelMember& member, uint64_t progress);
  void Sleep(ChannelMember* member, uint64_t progress) const;
  void Store(uint64_t phase);
  void Compare(int member);
  [[noreturn]] void ThrowTimedOut(int member);
  std::string Text() const;
  OperationEntry* EntryOf(int member) const;
  int MemberOf(int rank) const;

  GroupMemory* group_;
  uint32_t channel_;
  GroupMemory::ChannelState* state_;
  std::unique_lock<std::mutex> turn_;
  Milliseconds timeout_;
  GroupMemory::Clock::time_point deadline_;
  int own_member_;
  OperationInfo info_;
  uint64_t sequence_{0};
  bool begun_{false};
  bool ended_{false};
};

}  // namespace distributed
}  // namespace phi
