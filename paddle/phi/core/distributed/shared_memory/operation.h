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

// One rank's part in one operation. The members of the operation are all ranks,
// or a sender and a receiver.
//
// Invariant: a member's n-th operation in a channel matches the n-th operation
// of the other members. Everything that a member writes before it publishes a
// phase, to its part of the group's memory or to a buffer that others read, is
// visible to every member that has waited for this phase. A member's data in
// the group's memory stays unchanged until all members have ended the
// operation, even if the member itself has gone on to later operations.
//
// So a member may end immediately if the others read only its inline data or
// staging memory. If they read one of its buffers in place, the member waits
// for a later phase of theirs before it ends.
//
// The constructors, CheckRanks, ConfirmReads and the waits throw
// CollectiveError once the group has failed: a rank has died, left, aborted,
// called a different operation, or did not arrive before the timeout. A wait
// for a phase that was already published returns, even if the group has failed
// since. Destroying an operation that has not ended aborts the group.
//
// Not thread-safe. Operations of different channels may be in flight
// concurrently on several threads; operations of one channel are serialized.
class Operation {
 public:
  using Milliseconds = std::chrono::milliseconds;
  using Clock = std::chrono::steady_clock;

  // Begins an operation of all ranks. `group` outlives it. The timeout runs
  // from `start`.
  Operation(GroupMemory* group,
            const OperationInfo& info,
            Milliseconds timeout,
            Clock::time_point start = Clock::now());
  // Begins an operation between two ranks, one of which is the caller.
  Operation(GroupMemory* group,
            const OperationInfo& info,
            int sender,
            int receiver,
            Milliseconds timeout);
  ~Operation();
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  // Publishes a phase. Phases increase, from 1 to kEndPhase - 1; phases may be
  // skipped. Throws for another phase, which the others would take for the end
  // of this operation or for a phase of the next one.
  void Publish(uint64_t phase);
  // Waits until a member has published this phase, a later one or the end.
  // Compares the OperationInfo of the two ranks.
  void WaitFor(int rank, uint64_t phase);
  // Waits for all other members.
  void WaitForAll(uint64_t phase);
  // Throws if the group has failed, as a wait would. Cheap; meant for long
  // computations between two waits.
  void CheckRanks();
  // Throws unless all data that this rank has read in place was unchanged until
  // now: the owner of a buffer may change it after its own operation failed.
  void ConfirmReads();
  // Fails the group because this rank cannot read a buffer of `rank`: the error
  // says that `rank` has died if it has, otherwise it has this reason. Waits
  // briefly, because a dying process loses its memory before it counts as dead.
  [[noreturn]] void ThrowUnreadable(int rank, const std::string& reason);
  // Ends the operation and throws that the call is invalid, for this reason:
  // the text continues a sentence that begins with the operation. All members
  // must call it, before one of them has accessed another's data. Then the
  // group does not fail.
  [[noreturn]] void Refuse(const std::string& reason);
  // Publishes that this member has finished the operation and no longer
  // accesses its data. Must be the last call, and called only once.
  void End();

  // Set where the others find this rank's buffers. Must be called before the
  // first phase is published.
  void set_input(const BufferLocation& location);
  void set_output(const BufferLocation& location);
  // Require: this rank has waited for the other.
  const BufferLocation& input_of(int rank) const;
  const BufferLocation& output_of(int rank) const;

  // Returns a rank's memory for small data. Between two ranks, only the sender
  // has any.
  char* inline_data(int rank) const;
  uint64_t inline_bytes() const;
  // Returns this rank's staging memory, for data that others read in chunks.
  // Waits until no other member reads data of an earlier operation in it.
  // Between two ranks, only the sender has any.
  char* own_staging();
  // Requires: that rank calls own_staging().
  const char* staging_of(int rank) const;
  // Between two ranks, the receiver must have waited for the sender.
  uint64_t staging_bytes() const;
  // Makes the staging memory of a transfer between two ranks larger, if there
  // is memory for it. Only the sender calls it, before it uses its staging
  // memory and publishes the first phase. In an operation of all ranks it has
  // no effect.
  void EnlargeStaging();

 private:
  Operation(GroupMemory* group, uint32_t channel, Milliseconds timeout);
  void Begin(const OperationInfo& info, Clock::time_point start);
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
  // Returns the number of the block of transfer memory, or 0. On the receiver,
  // requires that it has waited for the sender.
  uint64_t transfer_block() const;
  char* TransferMemoryOf(int rank) const;

  GroupMemory* group_;
  uint32_t channel_;
  GroupMemory::ChannelState* state_;
  std::unique_lock<std::mutex> turn_;
  Milliseconds timeout_;
  Clock::time_point deadline_;
  int own_member_;
  OperationInfo info_;
  uint64_t sequence_{0};
  bool begun_{false};
  bool ended_{false};
};

}  // namespace distributed
}  // namespace phi
