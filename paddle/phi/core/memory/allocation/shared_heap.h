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

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "paddle/phi/core/memory/allocation/shared_blocks.h"
#include "paddle/phi/core/memory/allocation/shared_family.h"
#include "paddle/phi/core/memory/allocation/shared_memory_error.h"
#include "paddle/phi/core/memory/allocation/shared_segment.h"

namespace paddle {
namespace memory {
namespace allocation {

// A block that the calling process holds.
struct SharedBlock {
  uint64_t segment;
  uint32_t index;
  uint64_t offset;  // in the segment
  char* data;
  uint64_t capacity;
  uint64_t generation;
};

// What goes from process to process in place of a block's bytes.
struct SharedMessage {
  SegmentId id;
  uint32_t block;
  uint64_t generation;
  SharedTicket ticket;
  uint64_t offset;  // in the block
};

// When memory runs out, a message that nobody took for so many seconds is taken
// for lost: with a killed consumer, or in a queue that was thrown away.
constexpr double kMessageLostSeconds = 600;

struct SharedHeapStats {
  uint64_t reserved;  // bytes that the segments of this process occupy
  uint64_t used;      // bytes of those that are in blocks in use
  uint64_t cached;    // bytes of those that are kept for reuse
  uint64_t blocks;    // blocks in use
  uint64_t messages;  // messages that carry them and were not received
  uint64_t segments;  // segments of this process
  uint64_t attached;  // segments of other processes, mapped
  uint64_t detached;  // of dead processes, of which blocks alone are left
  uint64_t limit;
};

// The shared memory of the calling process: its own segments, those of others
// that it is attached to, and every block it holds.
//
// Invariant: this process's holder bit of a block is set exactly while `holds`
// of its segment has the block, which is as long as somebody in this process
// uses it. All of it is guarded by one mutex, also around fork; a child starts
// with all that its parent held for it too, under its own name.
//
// Thread-safe.
class SharedHeap {
 public:
  // The one of the calling process. It is never destroyed: tensors may be freed
  // after static destructors ran.
  static SharedHeap& Instance();

  // Says which family of processes this one belongs to and removes files that
  // dead ones left. Before anything else; later calls change nothing.
  void Join(uint64_t family);

  // A block of at least `size` bytes with one user, who releases it.
  SharedBlock Allocate(SharingStrategy strategy, uint64_t size);
  // Says what is behind the block in this process, for Receive to find, if
  // `take_over` agrees; that runs undisturbed by other threads and by fork.
  // Raises if the bytes were copied from a block that others have too without
  // being counted, see Send.
  bool Bind(const SharedBlock& block,
            std::weak_ptr<void> storage,
            const std::function<bool()>& take_over,
            const SharedBlock* moved_from = nullptr);
  // A message for the block that has the address; none if no block has it, or
  // one of a dead process that this process alone holds: its bytes have to be
  // moved to a block of this process first. Only messages of the process that
  // made the block end with that process.
  std::optional<SharedMessage> Send(
      const void* address, MessageLife life = MessageLife::kUntilGivenUp);
  // Whether a block that this process holds has the address.
  bool Has(const void* address);

  struct Received {
    SharedBlock block;
    // What is bound to the block. If nothing (any more), the block has a user
    // more, who binds and releases it.
    std::shared_ptr<void> storage;
  };
  Received Receive(const SharedMessage& message);
  void Release(const SharedBlock& block);

  // Takes back what dead processes held and gives idle memory to the system.
  // With a timeout in seconds, messages sent longer ago are given up.
  void Collect(std::optional<double> message_timeout);
  // Does that part of it which is about segments of dead processes.
  void CollectDead();
  SharedHeapStats Stats();
  void SetLimit(uint64_t limit);
  // At the exit of the process, when it sends and receives no more.
  void Leave();

 private:
  friend class SharedRecords;

  // Whether a child of fork has what its parent holds.
  enum class Inheritance { kChild, kNone };
  enum class Ticket { kSpend, kKeep };

  struct Hold {
    uint32_t index;
    uint64_t generation;
    uint64_t capacity;
    uint32_t users;
    Inheritance inheritance;
    std::weak_ptr<void> storage;
  };

  // What this process holds of a segment.
  struct Holdings {
    uint64_t id{0};                  // of the segment
    char* base{nullptr};             // of its addresses
    std::map<uint64_t, Hold> holds;  // by offset
  };

  struct Attached : Holdings {
    std::unique_ptr<SharedSegment> segment;
    std::unique_ptr<SharedBlocks> own;  // if this process made the segment
    uint64_t asked{0};  // when the kernel was, whether the maker lives
  };

  // Of a segment that was taken apart.
  struct Detached : Holdings {
    // A child or parent of a fork has the same memory, and nobody counts that.
    bool forked{false};
  };

  // Holds the mutex; then does what there is to be done at the end of blocks.
  class Locked {
   public:
    explicit Locked(SharedHeap* heap) : heap_(heap), lock_(heap->mutex_) {}
    Locked(const Locked&) = delete;
    Locked& operator=(const Locked&) = delete;
    ~Locked() {
      std::vector<std::function<void()>> ended = std::move(heap_->ended_);
      heap_->ended_.clear();
      lock_.unlock();
      for (const auto& act : ended) act();
    }

    std::unique_lock<std::mutex>* lock() { return &lock_; }

   private:
    SharedHeap* heap_;
    std::unique_lock<std::mutex> lock_;
  };
  class Pending;

  SharedHeap();

  struct Location {
    Holdings* holdings;
    Hold* hold;
    uint64_t offset;  // in the block
  };
  std::optional<Location> Find(const void* address);

  Received ReceiveBlock(const SharedMessage& message,
                        Inheritance inheritance,
                        Ticket ticket);
  // None if the segment of the message was not taken apart.
  std::optional<Received> ReceiveDetached(const SharedMessage& message,
                                          Inheritance inheritance,
                                          Ticket ticket);
  // As far as the segment is still there.
  void SpendTicket(const SharedMessage& message);
  SharedBlock AddHold(Attached* attached,
                      uint32_t index,
                      Inheritance inheritance);
  static SharedBlock BlockOf(const Holdings& holdings, uint64_t offset);
  // Where this process holds the block: in a segment that it is attached to, or
  // in one that it has detached; none if it does not hold the block.
  Holdings* HoldingsOf(const SharedBlock& block);
  // One use more of a block that this process holds already.
  static Received UseAgain(Holdings* holdings,
                           uint64_t offset,
                           Inheritance inheritance);
  // Returns the time that was so many seconds ago, on the clock of tickets.
  static uint64_t Ago(double seconds);
  SharedBlock AllocateBlock(SharingStrategy strategy,
                            uint64_t size,
                            Inheritance inheritance);
  // Whether blocks of an own segment are of the strategy, and can be opened.
  static bool Serves(Attached* own, SharingStrategy strategy);
  std::optional<SharedBlock> AllocateWarm(SharingStrategy strategy,
                                          uint64_t capacity,
                                          Inheritance inheritance);
  // Makes one attempt, with memory that is free or with new memory.
  SharedBlock AllocateAny(std::unique_lock<std::mutex>* lock,
                          SharingStrategy strategy,
                          uint64_t capacity,
                          Inheritance inheritance);
  // Gives the lock back while the kernel is at work.
  SharedBlock AllocateCold(std::unique_lock<std::mutex>* lock,
                           SharingStrategy strategy,
                           uint64_t capacity,
                           Inheritance inheritance);
  std::pair<Attached*, uint32_t> TakeCold(SharingStrategy strategy,
                                          uint64_t capacity);
  Attached* MakeSegment(SharingStrategy strategy, uint64_t capacity);
  void MakeRoom(uint64_t length);
  Attached* Attach(const SharedMessage& message);
  void CollectOwn();
  // How segments of dead processes are treated while this process holds blocks
  // of them, in rising order of savings and of cost.
  enum class Thrift {
    kNone,    // they stay as they are
    kPark,    // their descriptors are closed where they can be opened by name
    kDetach,  // those that nobody else needs are reduced to the pages of their
              // blocks; to send one on is then a copy, and after a fork refused
  };
  // Whether a fork would take more descriptors than this process can spare.
  bool IsShortOfDescriptors() const;
  // Parks segments, and if that is not enough detaches them.
  void SaveDescriptors();
  using Segments = std::map<uint64_t, Attached>;
  void CollectOthers(uint64_t deadline, Thrift thrift);
  // The same for one segment; the next one.
  Segments::iterator CollectOther(Segments::iterator it,
                                  uint64_t deadline,
                                  Thrift thrift);
  // Takes a segment apart if nobody else needs it.
  bool Detach(Segments::iterator it);
  // After the last hold of a segment of another process.
  void AskWhetherMakerLives(Segments::iterator it);
  // Collects the segments whose last hold was dropped too early to ask the
  // kernel again whether the maker lives.
  void CollectUnasked();
  // Of blocks in a segment that was taken apart.
  void ReleaseDetached(Detached* detached, uint64_t offset);
  Attached* AddSegment(std::unique_ptr<SharedSegment> segment);
  void Trim(uint64_t keep);
  void Expire(uint64_t deadline);
  uint64_t Reserved() const;

  static std::vector<uint32_t> BlocksInherited(const Attached& attached);
  // Of a segment whose slot is the parent's: this child keeps the pages alone.
  void KeepPagesAlone(Attached* attached);
  void PrepareFork();
  void ParentAfterFork();
  void ChildAfterFork();

  std::mutex mutex_;
  std::optional<SharedFamily> family_;
  Segments segments_;                      // by id
  std::map<uint64_t, Detached> detached_;  // by id
  // By first address: of a whole segment, or of a block of another.
  std::map<const char*, Holdings*> by_address_;
  std::vector<Attached*> own_;
  size_t scanned_{0};           // attached, when all were last looked at
  std::set<uint64_t> unasked_;  // ids, see CollectUnasked
  uint64_t unasked_since_{0};
  std::vector<std::function<void()>> ended_;
  uint64_t pending_{0};  // bytes being reserved while the mutex is free
  uint64_t limit_;
  uint32_t last_nonce_;
};

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
