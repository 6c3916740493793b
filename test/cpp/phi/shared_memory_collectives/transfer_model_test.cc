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

// Model checking of transfer memory: explores every order of the steps of a
// rank that sends to several receivers at once, one thread for each. A step has
// at most one access to memory that another thread or rank may write at that
// point. Variants that lack one of the precautions show that the explorer finds
// such faults.
//
// The model is a manual copy of what Operation and TakeTransferBlock do with
// blocks, entries and staging memory, for transfers of one window: any change
// to these accesses, or to their order, must be repeated here. All steps are
// sequentially consistent. A rank that waits continues when it may. Waits that
// are left out, such as the sender's for the receiver's first phase, would only
// remove orders of steps. group_model_test.cc has the waits themselves and
// deaths; a block whose receiver has died stays in use.

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <set>
#include <string>

#include "test/cpp/phi/shared_memory/shared_memory_test_case.h"

namespace {

class TransferModelTest : public shared_memory_test::SharedMemoryTestCase {};

constexpr int kReceivers = 2;
constexpr int kMostBlocks = 2;
constexpr int kEntries = 2;

enum class Scheme {
  kProtocol,
  // The protocol with one precaution omitted.
  kNoWaitForReceiver,  // a block is free when its sender ends the transfer
  kNoMutex,            // two threads may look for a block at once
  kEntryAfterPhase,    // the block's number is written after the phase
  kNoWaitForStaging,   // the memory used instead of a block
};

struct Limits {
  int blocks;
  int transfers;  // to each receiver
};

enum At : uint8_t {
  // The sender's thread
  kBegin,
  kLock,
  kFind,
  kTake,
  kNameBlock,
  kWaitForStaging,
  kClear,
  kWrite,
  kPublish,
  kNameBlockLate,
  kEnd,
  // The receiver
  kWaitForPhase,
  kReadEntry,
  kRead,
  kEndOfReceiver,
  // Both
  kDone,
};

constexpr uint8_t kNoBlock = 0;

// A receiver, the sender's thread for it, and the memory between them.
struct Channel {
  uint8_t thread_at;
  uint8_t transfer;   // of the thread, from 1
  uint8_t candidate;  // the block that the thread looks at, from 1
  uint8_t block;      // that the thread took
  uint8_t staged;     // the last transfer that used the staging memory
  uint8_t receiver_at;
  uint8_t received;  // the transfer of the receiver, from 1
  uint8_t named;     // the block that the receiver read in the entry
  // In shared memory: progress is twice the transfer that the sender or the
  // receiver has ended, or one less if the sender has only published it.
  uint8_t sender_progress;
  uint8_t receiver_progress;
  uint8_t entries[kEntries];  // the number of the block, or kNoBlock
  uint8_t staging;            // the transfer whose data it has
};

struct Block {
  // The last transfer that took the block.
  uint8_t channel;
  uint8_t transfer;
  // In shared memory: the transfer whose data it has, or 0.
  uint8_t data_channel;
  uint8_t data;
};

struct State {
  Channel channels[kReceivers];
  Block blocks[kMostBlocks];
  uint8_t locked;

  bool operator<(const State& other) const {
    return std::memcmp(this, &other, sizeof(State)) < 0;
  }
};
static_assert(sizeof(State) == kReceivers * 13 + kMostBlocks * 4 + 1,
              "compared byte by byte");

class Explorer {
 public:
  Explorer(Scheme scheme, const Limits& limits)
      : scheme_(scheme), limits_(limits) {}

  // Returns a fault that occurs in some order of steps; empty if there is none.
  std::string Explore() {
    State start = {};
    for (Channel& channel : start.channels) {
      channel.transfer = channel.received = 1;
      channel.receiver_at = kWaitForPhase;
    }
    Add(start);
    while (!waiting_.empty() && wrong_.empty()) {
      const State state = waiting_.front();
      waiting_.pop_front();
      if (!GoOnFrom(state) && !IsDone(state)) wrong_ = "a rank waits forever";
    }
    return wrong_;
  }

  size_t states() const { return seen_.size(); }

  // Whether some transfers used blocks, and others staging memory.
  bool used_both() const { return used_block_ && used_staging_; }

 private:
  void Add(const State& state) {
    if (seen_.insert(state).second) waiting_.push_back(state);
  }

  bool GoOnFrom(const State& state) {
    bool goes_on = false;
    for (int i = 0; i < kReceivers; ++i) {
      State next = state;
      if (StepOfThread(&next, i)) {
        Add(next);
        goes_on = true;
      }
      next = state;
      if (StepOfReceiver(&next, i)) {
        Add(next);
        goes_on = true;
      }
    }
    return goes_on;
  }

  static bool IsDone(const State& state) {
    for (const Channel& channel : state.channels) {
      if (channel.thread_at != kDone || channel.receiver_at != kDone) {
        return false;
      }
    }
    return true;
  }

  static uint8_t PublishedIn(int transfer) { return 2 * transfer - 1; }
  static uint8_t EndOf(int transfer) { return 2 * transfer; }

  bool IsInUse(const State& state, const Block& block) const {
    const Channel& channel = state.channels[block.channel];
    const uint8_t end = EndOf(block.transfer);
    return channel.sender_progress < end ||
           (channel.receiver_progress < end &&
            scheme_ != Scheme::kNoWaitForReceiver);
  }

  bool Lock(State* state) const {
    if (scheme_ == Scheme::kNoMutex) return true;
    if (state->locked) return false;
    state->locked = 1;
    return true;
  }

  bool StepOfThread(State* state, int index) {
    Channel* const own = &state->channels[index];
    uint8_t* const entry = &own->entries[own->transfer % kEntries];
    Block* const block =
        own->block == kNoBlock ? nullptr : &state->blocks[own->block - 1];
    switch (own->thread_at) {
      case kBegin:
        if (own->transfer > kEntries &&
            own->receiver_progress < EndOf(own->transfer - kEntries)) {
          return false;
        }
        *entry = kNoBlock;
        own->thread_at = kLock;
        break;
      case kLock:
        if (!Lock(state)) return false;
        own->candidate = 1;
        own->thread_at = kFind;
        break;
      case kFind:
        if (own->candidate > limits_.blocks) {
          own->candidate = 0;
          state->locked = 0;
          own->thread_at = kWaitForStaging;
        } else if (IsInUse(*state, state->blocks[own->candidate - 1])) {
          ++own->candidate;
        } else {
          own->thread_at = kTake;
        }
        break;
      case kTake: {
        Block* const found = &state->blocks[own->candidate - 1];
        found->channel = index;
        found->transfer = own->transfer;
        own->block = own->candidate;
        own->candidate = 0;
        state->locked = 0;
        own->thread_at =
            scheme_ == Scheme::kEntryAfterPhase ? kClear : kNameBlock;
        break;
      }
      case kNameBlock:
        *entry = own->block;
        own->thread_at = kClear;
        break;
      case kWaitForStaging:
        if (scheme_ != Scheme::kNoWaitForStaging &&
            own->receiver_progress < EndOf(own->staged)) {
          return false;
        }
        own->staged = own->transfer;
        own->thread_at = kClear;
        break;
      case kClear:
        (block ? block->data : own->staging) = 0;
        own->thread_at = kWrite;
        break;
      case kWrite:
        if (block) block->data_channel = index;
        (block ? block->data : own->staging) = own->transfer;
        own->thread_at = kPublish;
        break;
      case kPublish:
        own->sender_progress = PublishedIn(own->transfer);
        own->thread_at =
            scheme_ == Scheme::kEntryAfterPhase ? kNameBlockLate : kEnd;
        break;
      case kNameBlockLate:
        *entry = own->block;
        own->thread_at = kEnd;
        break;
      case kEnd:
        own->block = kNoBlock;
        own->sender_progress = EndOf(own->transfer);
        own->thread_at = own->transfer == limits_.transfers ? kDone : kBegin;
        if (own->thread_at == kBegin) ++own->transfer;
        break;
      default:
        return false;
    }
    return true;
  }

  bool StepOfReceiver(State* state, int index) {
    Channel* const own = &state->channels[index];
    switch (own->receiver_at) {
      case kWaitForPhase:
        if (own->sender_progress < PublishedIn(own->received)) return false;
        own->receiver_at = kReadEntry;
        break;
      case kReadEntry:
        own->named = own->entries[own->received % kEntries];
        own->receiver_at = kRead;
        break;
      case kRead: {
        if (own->named == kNoBlock) {
          if (own->staging != own->received) wrong_ = kStale;
          used_staging_ = true;
        } else {
          const Block& block = state->blocks[own->named - 1];
          if (block.data != own->received || block.data_channel != index) {
            wrong_ = kStale;
          }
          used_block_ = true;
        }
        own->named = kNoBlock;
        own->receiver_at = kEndOfReceiver;
        break;
      }
      case kEndOfReceiver:
        own->receiver_progress = EndOf(own->received);
        own->receiver_at =
            own->received == limits_.transfers ? kDone : kWaitForPhase;
        if (own->receiver_at != kDone) ++own->received;
        break;
      default:
        return false;
    }
    return true;
  }

 public:
  static constexpr char kStale[] = "a receiver reads data of another transfer";

 private:
  const Scheme scheme_;
  const Limits limits_;
  std::set<State> seen_;
  std::deque<State> waiting_;
  std::string wrong_;
  bool used_block_{false};
  bool used_staging_{false};
};

std::string WrongWith(Scheme scheme, const Limits& limits) {
  Explorer explorer(scheme, limits);
  std::string wrong = explorer.Explore();
  std::printf("%zu states\n", explorer.states());
  return wrong;
}

TEST_F(TransferModelTest, NoOrderOfStepsBreaksTransfers) {
  for (const int blocks : {1, 2}) {
    Explorer explorer(Scheme::kProtocol, {blocks, 3});
    EXPECT_EQ(explorer.Explore(), "");
    EXPECT_TRUE(explorer.used_both());
    std::printf("%d blocks: %zu states\n", blocks, explorer.states());
  }
}

TEST_F(TransferModelTest, ABlockIsUsedAgainOnlyWhenItsReceiverHasReadIt) {
  EXPECT_EQ(WrongWith(Scheme::kNoWaitForReceiver, {1, 2}), Explorer::kStale);
}

TEST_F(TransferModelTest, OneThreadAtATimeLooksForABlock) {
  EXPECT_EQ(WrongWith(Scheme::kNoMutex, {1, 1}), Explorer::kStale);
}

TEST_F(TransferModelTest, TheBlockIsNamedBeforeThePhaseIsPublished) {
  EXPECT_EQ(WrongWith(Scheme::kEntryAfterPhase, {1, 1}), Explorer::kStale);
}

TEST_F(TransferModelTest,
       StagingMemoryIsUsedAgainOnlyWhenItsReceiverHasReadIt) {
  EXPECT_EQ(WrongWith(Scheme::kNoWaitForStaging, {0, 2}), Explorer::kStale);
}

}  // namespace
