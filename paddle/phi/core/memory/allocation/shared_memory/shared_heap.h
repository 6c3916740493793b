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

#include "paddle/phi/core/memory/allocation/shared_memory/process_tree.h"
#include "paddle/phi/core/memory/allocation/shared_memory/shared_blocks.h"
#include "paddle/phi/core/memory/allocation/shared_memory/shared_memory_error.h"
#include "paddle/phi/core/memory/allocation/shared_memory/shared_segment.h"

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

// The message that goes from process to process in place of a block's bytes.
struct SharedMessage {
  SegmentId id;
  uint32_t block;
  uint64_t generation;
  SharedTicket ticket;
  uint64_t offset;  // in the block
};

// The location of a byte of a block, for processes that map the segment
// themselves.
struct SharedLocation {
  SegmentId id;
  uint64_t offset;  // in the segment
  uint32_t block;
  uint64_t generation;  // of the block; another one means that it was freed
};
using SharedLocator = std::function<std::optional<SharedLocation>(const void*)>;

// When memory runs out, messages that nobody has received for this long expire:
// probably their receiver was killed, or their queue was discarded.
constexpr double kMessageLostSeconds = 600;

struct SharedHeapStats {
  uint64_t reserved;  // bytes of memory in the segments of this process
  uint64_t used;      // of those, bytes in blocks that are in use
  uint64_t cached;    // of those, bytes that are kept for reuse
  uint64_t blocks;    // blocks of this process that are in use
  uint64_t messages;  // messages that carry them and were not received yet
  uint64_t segments;  // segments of this process
  uint64_t attached;  // mapped segments of other processes
  uint64_t
      detached;    // segments of dead owners, reduced to the blocks held here
  uint64_t limit;  // the maximum of `reserved`
};

// The shared memory of the calling process: the segments that it owns, those
// of other processes that it is attached to, and every block that it holds.
//
// Invariant: this process's holder bit of a block is set exactly while `holds`
// of the block's segment has an entry for it, which is as long as the block has
// a user in this process. One mutex guards all of this state and is held during
// fork. A forked child starts as a holder of everything that its parent holds,
// with its own slots and bits. Records are the exception, see SharedRecords.
//
// These verbs say how memory becomes available again. All files of the core use
// them in this sense:
//
// | verb    | what it does             | who may call it       | when         |
// |---------|--------------------------|-----------------------|--------------|
// | Release | gives up one use of a    | the block's user, on  | a storage    |
// |         | block; the last one in a | any thread            | ends         |
// |         | process clears its       |                       |              |
// |         | holder bit               |                       |              |
// | Expire  | takes away the tickets   | the owner; once it is | memory runs  |
// |         | of messages that are too | dead, the holder of   | out, or on   |
// |         | old, or (batches) whose  | its slot's lock       | demand       |
// |         | worker has died          |                       |              |
// | Reap    | clears a dead process's  | a process that can    | before Free  |
// |         | holder bits and its slot | lock the dead one's   |              |
// |         |                          | slot                  |              |
// | Free    | ends the generation of a | as for Expire         | a reference  |
// |         | block without a          |                       | was released |
// |         | reference, to use it     |                       |              |
// |         | again                    |                       |              |
// | Trim    | gives the memory of free | as for Expire         | much memory  |
// |         | blocks to the system;    |                       | is free      |
// |         | the addresses stay       |                       |              |
// | Detach  | reduces a dead owner's   | the last process that | memory,      |
// |         | segment to the blocks    | is attached           | addresses or |
// |         | held here                |                       | descriptors  |
// |         |                          |                       | run out      |
// | Collect | does Expire, Reap, Free  | any process           | memory runs  |
// |         | and Trim, in this order  |                       | out, or on   |
// |         |                          |                       | demand       |
//
// Besides, Remove unlinks a file, Close closes a descriptor or a handle, and
// Leave announces that the process is about to exit. None of them frees a
// block.
//
// Thread-safe. Public functions lock the heap's mutex themselves. A callback
// that runs while it is held must not call the heap.
class SharedHeap {
 public:
  // Returns the heap of the calling process. It is never destroyed, since
  // tensors may be freed after static destructors ran.
  //
  // Thread-safe. The first call registers handlers for fork.
  static SharedHeap& Instance();

  // Joins a process tree and removes files that dead processes left. Returns
  // the tree: that of the first call, which later calls do not change.
  //
  // Thread-safe. Requires: no block was allocated or received before the first
  // call.
  uint64_t Join(uint64_t tree);

  // Whether a forked child becomes a holder of a block that its parent holds:
  // always, never, or once a storage is bound to the block.
  enum class Inheritance { kChild, kNone, kOnceBound };

  // Allocates a block of at least `size` bytes. The caller becomes its one user
  // and has to release it. The memory is reserved: touching it cannot fail.
  //
  // Thread-safe. The mutex is unlocked while the kernel clears memory.
  SharedBlock Allocate(SharingStrategy strategy,
                       uint64_t size,
                       Inheritance inheritance = Inheritance::kChild);
  // Binds `storage` to a block, so that Receive finds it, if `take_over`
  // returns true. `take_over` runs with the mutex held, so neither other
  // threads nor a fork see an intermediate state. `moved_from` is the block
  // that the bytes were copied from. Throws if that block has other users that
  // are not counted, see Send.
  //
  // Thread-safe. Requires: the caller is a user of the block.
  bool Bind(const SharedBlock& block,
            std::weak_ptr<void> storage,
            const std::function<bool()>& take_over,
            const SharedBlock* moved_from = nullptr);
  // Issues a ticket for the block at an address and returns the message that
  // carries it. Returns none if no block has the address, or if its segment was
  // detached: then its bytes have to be moved to a new block first. Throws if
  // the segment was detached and a forked process also uses those bytes. A
  // `life` of kUntilOwnerEnds applies only to blocks that this process owns;
  // for other blocks it means kUntilExpired.
  //
  // Thread-safe. Requires: the caller is a user of the block.
  std::optional<SharedMessage> Send(
      const void* address, MessageLife life = MessageLife::kUntilExpired);
  // Returns whether a block that this process holds has the address.
  //
  // Thread-safe.
  bool Has(const void* address);
  // Returns the location of an address. Returns none if no block that this
  // process holds has the address, or if others cannot open its segment. The
  // location is valid as long as the caller is a user of the block.
  //
  // Thread-safe.
  std::optional<SharedLocation> Locate(const void* address);

  struct Received {
    SharedBlock block;
    // The storage that is bound to the block. If it is empty, the caller has
    // become a user of the block: it binds a storage, and releases the block
    // later.
    std::shared_ptr<void> storage;
  };
  // Receives a block and redeems the message's ticket. A message that was
  // received before can be received again as long as this process holds the
  // block. Does not trust the content of the message.
  //
  // Thread-safe.
  Received Receive(const SharedMessage& message,
                   Inheritance inheritance = Inheritance::kChild);
  // Releases one use of a block. Has no effect in a forked child that did not
  // inherit the block.
  //
  // Thread-safe. Requires: the caller is a user of the block and does not touch
  // its memory any more.
  void Release(const SharedBlock& block);

  // Collects everything: own segments, segments of dead owners, and files of
  // dead process trees. Messages sent longer ago than the timeout, in seconds,
  // expire.
  //
  // Thread-safe. Callbacks of freed records run on the calling thread, without
  // the mutex.
  void Collect(std::optional<double> message_timeout);
  // Collects segments and files of dead owners only.
  //
  // Thread-safe.
  void CollectDead();
  // Thread-safe. Frees released blocks first, so that the numbers are current.
  SharedHeapStats Stats();
  // Thread-safe.
  void SetLimit(uint64_t limit);
  // Announces that this process is about to exit. The last process of a process
  // tree removes the process tree's files.
  //
  // Thread-safe. Requires: the process sends and receives no more.
  void Leave();

 private:
  friend class SharedRecords;

  enum class Ticket { kRedeem, kKeep };

  struct Hold {
    uint32_t index;
    uint64_t generation;
    uint64_t capacity;
    uint32_t users;
    Inheritance inheritance;
    std::weak_ptr<void> storage;
  };

  // The blocks of one segment that this process holds.
  struct Holdings {
    uint64_t id{0};                  // of the segment
    char* base{nullptr};             // first address of the segment
    std::map<uint64_t, Hold> holds;  // by offset
  };

  struct Attached : Holdings {
    std::unique_ptr<SharedSegment> segment;
    std::unique_ptr<SharedBlocks> blocks;  // if this process is the owner
    // When the kernel was last asked whether the owner is alive.
    uint64_t owner_checked{0};
  };

  // The holdings of a segment that was detached.
  struct Detached : Holdings {
    // The parent or a child of a fork uses the same memory, and that use is not
    // counted.
    bool forked{false};
  };

  // Holds the mutex. The destructor unlocks it, and only then runs the
  // callbacks of records that were freed meanwhile: they may call the heap
  // again.
  class Locked {
   public:
    explicit Locked(SharedHeap* heap) : heap_(heap), lock_(heap->mutex_) {}
    Locked(const Locked&) = delete;
    Locked& operator=(const Locked&) = delete;
    ~Locked() {
      std::vector<std::function<void()>> due = std::move(heap_->due_callbacks_);
      heap_->due_callbacks_.clear();
      lock_.unlock();
      for (const auto& callback : due) callback();
    }

    std::unique_lock<std::mutex>* lock() { return &lock_; }

   private:
    SharedHeap* heap_;
    std::unique_lock<std::mutex> lock_;
  };
  class UnlockedReservation;

  SharedHeap();

  // Returns the time `seconds` ago, on the clock of tickets.
  //
  // Thread-safe.
  static uint64_t SecondsAgo(double seconds);

  // Requires, for all functions below that say nothing else: the mutex is held.

  struct Location {
    Holdings* holdings;
    Hold* hold;
    uint64_t offset;  // in the block
  };
  std::optional<Location> Find(const void* address);

  Received ReceiveBlock(const SharedMessage& message,
                        Inheritance inheritance,
                        Ticket ticket);
  // Returns none if the message's segment was not detached, or if a forked
  // child should look for the block in the segment itself.
  std::optional<Received> ReceiveDetached(const SharedMessage& message,
                                          Inheritance inheritance,
                                          Ticket ticket);
  // Redeems the ticket of a message if its segment still exists.
  void RedeemTicket(const SharedMessage& message);
  // Makes this process a holder of a block, with one user.
  SharedBlock AddHold(Attached* attached,
                      uint32_t index,
                      Inheritance inheritance);
  // Thread-safe.
  static SharedBlock BlockOf(const Holdings& holdings, uint64_t offset);
  // Returns the holdings, attached or detached, that contain the block; null if
  // this process does not hold it.
  Holdings* HoldingsOf(const SharedBlock& block);
  // Returns a block that this process holds already, with one more user if no
  // storage is bound to it.
  static Received UseAgain(Holdings* holdings,
                           uint64_t offset,
                           Inheritance inheritance);
  // Returns whether blocks of an owned segment have the strategy and can be
  // opened by others.
  static bool CanAllocateFrom(Attached* owned, SharingStrategy strategy);
  // Allocates a free block that has memory; none if there is none.
  std::optional<SharedBlock> AllocateWarm(SharingStrategy strategy,
                                          uint64_t capacity,
                                          Inheritance inheritance);
  // Makes one attempt to allocate, from free memory or with new memory. `lock`
  // is the caller's lock of the mutex, which AllocateCold unlocks for a while.
  SharedBlock AllocateAny(std::unique_lock<std::mutex>* lock,
                          SharingStrategy strategy,
                          uint64_t capacity,
                          Inheritance inheritance);
  // Allocates a block with new memory. Unlocks the mutex while the kernel
  // reserves and clears the memory.
  SharedBlock AllocateCold(std::unique_lock<std::mutex>* lock,
                           SharingStrategy strategy,
                           uint64_t capacity,
                           Inheritance inheritance);
  std::pair<Attached*, uint32_t> TakeCold(SharingStrategy strategy,
                                          uint64_t capacity);
  Attached* MakeSegment(SharingStrategy strategy, uint64_t capacity);
  // Throws if `length` more bytes would exceed the limit even after trimming.
  void MakeRoom(uint64_t length);
  Attached* Attach(const SharedMessage& message);
  // Reaps and frees in the segments of this process.
  void ReapAndFree();
  // How to save descriptors of dead owners' segments, of which this process
  // holds blocks. The values are in rising order of effect and of cost.
  enum class DescriptorSaving {
    kNone,
    kClose,   // close the descriptor where the segment can be opened by name
    kDetach,  // and detach segments that no other process needs; sending one
              // of their blocks then copies it, and is refused after a fork
  };
  // Returns whether a fork would take more descriptors than this process can
  // spare.
  bool IsShortOfDescriptors() const;
  // Closes descriptors and, if that is not enough, detaches segments.
  void SaveDescriptors();
  using Segments = std::map<uint64_t, Attached>;
  // Collects everything. Messages sent before `deadline` expire.
  void CollectAll(uint64_t deadline, DescriptorSaving saving);
  // Collects in the segments of other owners.
  void CollectOthers(uint64_t deadline, DescriptorSaving saving);
  // Collects in one segment of another owner and returns the next segment.
  Segments::iterator CollectOther(Segments::iterator it,
                                  uint64_t deadline,
                                  DescriptorSaving saving);
  // Detaches a segment if no other process needs it. Returns whether it did.
  bool Detach(Segments::iterator it);
  // Collects in a segment of another owner, after its last block was released,
  // if that owner is dead. Asks the kernel at most once per interval, and
  // otherwise defers the check.
  void CollectIfOwnerDied(Segments::iterator it);
  // Does the checks that CollectIfOwnerDied deferred, once they are due.
  void CollectDeferred();
  // Releases a block of a detached segment.
  void ReleaseDetached(Detached* detached, uint64_t offset);
  Attached* AddSegment(std::unique_ptr<SharedSegment> segment);
  uint64_t Reserved() const;

  static std::vector<uint32_t> BlocksInherited(const Attached& attached);
  // Reduces a segment in which this process shares its parent's slot to the
  // blocks that it holds. Requires: this process is a forked child that still
  // has only one thread.
  void DetachAfterFork(Attached* attached);
  // Locks the mutex, which stays locked until one of the next two functions.
  void PrepareFork();
  // Unlock the mutex. Requires: it has been held since PrepareFork.
  void ParentAfterFork();
  void ChildAfterFork();

  std::mutex mutex_;
  std::optional<ProcessTree> tree_;
  Segments segments_;                      // by id
  std::map<uint64_t, Detached> detached_;  // by id
  // By first address: of an attached segment, or of a block of a detached one.
  std::map<const char*, Holdings*> by_address_;
  std::vector<Attached*> owned_;
  SharedIdleRuns idle_runs_;  // of owned segments
  // The attached segments of other owners after the last SaveDescriptors, less
  // those that a later CollectOthers has removed.
  size_t saved_{0};
  std::set<uint64_t> deferred_;  // ids, see CollectDeferred
  uint64_t deferred_since_{0};
  // Callbacks of freed records, see Locked.
  std::vector<std::function<void()>> due_callbacks_;
  uint64_t pending_{0};  // bytes that are being reserved without the mutex
  uint64_t limit_;
  uint32_t last_nonce_;
};

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
