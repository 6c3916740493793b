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

// Model checking of the protocol of operations: explores every reachable state
// of the ranks of a channel. Each access to shared memory and each system call
// is a step, and a rank may be killed between any two steps. This proves the
// protocol for the given numbers of ranks, operations and deaths. Variants that
// lack one of the precautions show that the explorer finds such faults.
//
// The model is a manual copy of Operation and GroupMemory: any change to their
// accesses to shared memory, or to the order of these, must be repeated here.
// All steps are sequentially consistent. A sleeping rank continues when it is
// woken, or when the interval ends after which it checks the others. The
// interval must not hide a missing wake-up: a state in which only intervals can
// end counts as a final state.

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "test/cpp/phi/shared_memory/shared_memory_test_case.h"

namespace {

class GroupModelTest : public shared_memory_test::SharedMemoryTestCase {};

constexpr int kMostRanks = 3;
constexpr int kMostEntries = 2;

enum class Kind : uint8_t {
  kExchange,   // every rank reads the data of every other rank
  kBroadcast,  // the others read the data of rank 0, which never waits
  kStaging,    // like kExchange, but also with staging memory
};

enum class Scheme {
  kProtocol,
  // The protocol with one step omitted or moved.
  kNoWaitForEntry,
  kNoWaitForStaging,
  kPublishBeforeWriting,
  kNoCount,         // sleepers are not counted before they check once more
  kReadCountFirst,  // the count is read before the phase is published
  kNoCompare,       // the kernel does not compare before a rank sleeps
  kNoWake,          // the end of an operation does not wake sleepers
  kNoLook,          // waiting ranks do not check whether others are alive
  kProgressFirst,   // progress is read before the check for a death
};

struct Limits {
  int ranks;
  int entries;
  std::vector<Kind> operations;
  int kills;
};

// The next step of a rank.
enum At : uint8_t {
  kBegin,
  // A wait for the rank `peer`
  kLook,
  kCount,
  kSee,
  kSeeFailure,
  kSleep,
  kAsleep,
  kUncount,
  kLookAgain,
  kCheckFailure,
  // A check whether the rank `other` is alive
  kSeeDeath,
  kReadProgress,
  kFail,
  kWakeAll,
  // The rest of an operation
  kClear,
  kWrite,
  kClearStaging,
  kWriteStaging,
  kPublish,
  kReadCount,
  kWake,
  kRead,
  kReadStaging,
  // Final states
  kDone,
  kFailed,
  kDead,
};

// What a rank waits for.
enum Goal : uint8_t { kEntryFree, kStagingFree, kPublished };

constexpr char kStale[] = "a rank reads data of another operation";
constexpr char kStuck[] = "a rank waits forever";
constexpr char kNeedless[] = "a rank fails, but no rank that it needs is dead";

struct Rank {
  uint8_t at;
  uint8_t goal;
  uint8_t peer;
  uint8_t other;
  uint8_t operation;  // from 1
  uint8_t seen;       // progress of the peer
  uint8_t staged;     // the last operation that used the staging memory
  uint8_t ends;       // whether kPublish ends the operation
  // In shared memory: `progress` is twice the operation that the rank has
  // ended, or one less if it has only published. `entries` and `staging` have
  // the operation whose data they contain, or 0.
  uint8_t progress;
  uint8_t sleepers;
  uint8_t entries[kMostEntries];
  uint8_t staging;
};

struct State {
  std::array<Rank, kMostRanks> ranks;
  uint8_t failed;
  uint8_t kills;
};
static_assert(sizeof(State) == kMostRanks * 13 + 2, "compared byte by byte");

uint8_t PublishedIn(int operation) { return 2 * operation - 1; }
uint8_t EndOf(int operation) { return 2 * operation; }

bool IsOver(const Rank& rank) {
  return rank.at == kDone || rank.at == kFailed || rank.at == kDead;
}

// All reached states, in the order in which they were reached.
class States {
 public:
  States() : table_(size_t{1} << 16, 0) {}

  size_t size() const { return states_.size(); }
  State operator[](size_t index) const { return states_[index]; }

  void Add(const State& state) {
    if (2 * states_.size() > table_.size()) Grow();
    uint32_t* const place = Find(state);
    if (*place != 0) return;
    states_.push_back(state);
    *place = static_cast<uint32_t>(states_.size());
  }

 private:
  static uint64_t HashOf(const State& state) {
    const auto* const bytes = reinterpret_cast<const uint8_t*>(&state);
    uint64_t hash = 0xcbf29ce484222325;
    for (size_t i = 0; i < sizeof(state); ++i) {
      hash = (hash ^ bytes[i]) * 0x100000001b3;
    }
    return hash ^ hash >> 29;
  }

  uint32_t* Find(const State& state) {
    for (uint64_t i = HashOf(state);; ++i) {
      uint32_t* const place = &table_[i % table_.size()];
      if (*place == 0 ||
          std::memcmp(&states_[*place - 1], &state, sizeof(state)) == 0) {
        return place;
      }
    }
  }

  void Grow() {
    table_.assign(2 * table_.size(), 0);
    for (size_t i = 0; i < states_.size(); ++i) {
      *Find(states_[i]) = static_cast<uint32_t>(i + 1);
    }
  }

  std::vector<State> states_;
  std::vector<uint32_t> table_;  // index + 1; 0 is free
};

class Explorer {
 public:
  Explorer(Scheme scheme, const Limits& limits)
      : scheme_(scheme), limits_(limits) {}

  // Returns a fault that occurs in some order of steps; empty if there is none.
  std::string Explore() {
    State start = {};
    for (int i = 0; i < kMostRanks; ++i) {
      start.ranks[i].at = i < limits_.ranks ? kBegin : kDead;
      start.ranks[i].operation = 1;
    }
    states_.Add(start);
    for (size_t i = 0; i < states_.size() && wrong_.empty(); ++i) {
      const State state = states_[i];
      if (!GoOnFrom(state)) CheckEnd(state);
    }
    return wrong_;
  }

  size_t states() const { return states_.size(); }

 private:
  // Returns whether some rank can go on.
  bool GoOnFrom(const State& state) {
    bool goes_on = false;
    for (int i = 0; i < limits_.ranks; ++i) {
      for (bool looks : {false, true}) {
        State next = state;
        if (!Step(&next, i, looks)) continue;
        states_.Add(next);
        goes_on |= !SleepsOn(state, state.ranks[i]);
      }
      // A rank that is done may be killed, too.
      if (state.ranks[i].at != kDead && state.kills < limits_.kills) {
        State next = state;
        next.ranks[i].at = kDead;
        ++next.kills;
        states_.Add(next);
      }
    }
    return goes_on;
  }

  // Whether a rank would only sleep again after its interval, because it would
  // find neither a failure nor a death.
  bool SleepsOn(const State& state, const Rank& rank) const {
    return rank.at == kAsleep && !state.failed &&
           (scheme_ == Scheme::kNoLook || !IsMissing(state, rank.operation));
  }

  void CheckEnd(const State& state) {
    for (int i = 0; i < limits_.ranks; ++i) {
      if (!IsOver(state.ranks[i])) wrong_ = kStuck;
      if (state.ranks[i].at == kFailed && !IsMissing(state, operations())) {
        wrong_ = kNeedless;
      }
    }
  }

  int operations() const { return static_cast<int>(limits_.operations.size()); }

  // Returns whether some rank died before it ended the operation.
  bool IsMissing(const State& state, int operation) const {
    for (int i = 0; i < limits_.ranks; ++i) {
      const Rank& rank = state.ranks[i];
      if (rank.at == kDead && rank.progress < EndOf(operation)) return true;
    }
    return false;
  }

  Kind KindOf(const Rank& rank) const {
    return limits_.operations[rank.operation - 1];
  }

  bool Writes(const Rank& rank, int index) const {
    return KindOf(rank) != Kind::kBroadcast || index == 0;
  }

  bool WaitsFor(const Rank& rank, int index, int peer) const {
    return index != peer && (rank.goal != kPublished || Writes(rank, peer));
  }

  uint8_t ProgressFor(const Rank& rank) const {
    if (rank.goal == kEntryFree) return EndOf(rank.operation - limits_.entries);
    if (rank.goal == kStagingFree) return EndOf(rank.staged);
    return PublishedIn(rank.operation);
  }

  void Wait(Rank* rank, int index, Goal goal) {
    rank->goal = goal;
    WaitFrom(rank, index, 0);
  }

  // Waits for the next rank, starting at `peer`; if there is none, continues
  // after the wait.
  void WaitFrom(Rank* rank, int index, int peer) {
    while (peer < limits_.ranks && !WaitsFor(*rank, index, peer)) ++peer;
    if (peer < limits_.ranks) {
      rank->peer = peer;
      rank->at = kLook;
      return;
    }
    rank->peer = 0;
    if (rank->goal == kEntryFree) {
      rank->at = kClear;
    } else if (rank->goal == kStagingFree) {
      rank->at = kClearStaging;
    } else {
      Publish(rank, true);
    }
  }

  void Publish(Rank* rank, bool ends) {
    rank->ends = ends;
    rank->seen = 0;
    rank->at = scheme_ == Scheme::kReadCountFirst ? kReadCount : kPublish;
  }

  void AfterPublishing(Rank* rank, int index) {
    rank->seen = 0;
    if (!rank->ends) return Wait(rank, index, kPublished);
    rank->ends = 0;
    if (rank->operation == operations()) {
      rank->at = kDone;
    } else {
      ++rank->operation;
      rank->at = kBegin;
    }
  }

  static void WakeSleepersOf(State* state, int index) {
    for (Rank& rank : state->ranks) {
      if (rank.at == kAsleep && rank.peer == index) rank.at = kUncount;
    }
  }

  // Takes one step of a rank; returns false if there is none. `looks` selects
  // whether the rank checks the others between two sleeps.
  bool Step(State* state, int index, bool looks) {
    Rank* const rank = &state->ranks[index];
    Rank* const peer = &state->ranks[rank->peer];
    const int entry = rank->operation % limits_.entries;
    if (looks && rank->at != kCheckFailure) return false;
    switch (rank->at) {
      case kBegin:
        if (state->failed) {
          rank->at = kFailed;
        } else if (rank->operation > limits_.entries &&
                   scheme_ != Scheme::kNoWaitForEntry) {
          Wait(rank, index, kEntryFree);
        } else {
          rank->at = kClear;
        }
        break;
      case kLook:
      case kLookAgain:
        if (peer->progress < ProgressFor(*rank)) {
          rank->at = rank->at == kLook ? kCount : kCheckFailure;
        } else if (rank->goal == kPublished) {
          rank->at = kRead;
        } else {
          WaitFrom(rank, index, rank->peer + 1);
        }
        break;
      case kCount:
        if (scheme_ != Scheme::kNoCount) ++peer->sleepers;
        rank->at = kSee;
        break;
      case kSee:
        rank->seen = peer->progress;
        rank->at = rank->seen >= ProgressFor(*rank) ? kUncount : kSeeFailure;
        break;
      case kSeeFailure:
        rank->at = state->failed ? kUncount : kSleep;
        break;
      case kSleep:
        rank->at = peer->progress == rank->seen || scheme_ == Scheme::kNoCompare
                       ? kAsleep
                       : kUncount;
        break;
      case kAsleep:
      case kUncount:
        // From kAsleep, this is the end of the interval.
        rank->seen = 0;
        if (scheme_ != Scheme::kNoCount) --peer->sleepers;
        rank->at = kLookAgain;
        break;
      case kCheckFailure:
        if (looks && scheme_ == Scheme::kNoLook) return false;
        if (state->failed) {
          rank->at = kFailed;
        } else if (looks) {
          rank->at = FirstLook();
        } else {
          rank->at = kCount;
        }
        break;
      case kSeeDeath:
        LookAt(rank, state->ranks[rank->other].at == kDead);
        break;
      case kReadProgress:
        LookAt(rank,
               state->ranks[rank->other].progress < EndOf(rank->operation));
        break;
      case kFail:
        state->failed = 1;
        rank->other = 0;
        rank->at = kWakeAll;
        break;
      case kWakeAll:
        if (state->ranks[rank->other].sleepers > 0) {
          WakeSleepersOf(state, rank->other);
        }
        if (++rank->other == limits_.ranks) {
          rank->other = 0;
          rank->at = kFailed;
        }
        break;
      case kClear:
        if (!Writes(*rank, index)) {
          Wait(rank, index, kPublished);
          return Step(state, index, looks);
        }
        rank->entries[entry] = 0;
        rank->at = kWrite;
        if (scheme_ == Scheme::kPublishBeforeWriting) {
          rank->progress = PublishedIn(rank->operation);
        }
        break;
      case kWrite:
        rank->entries[entry] = rank->operation;
        if (KindOf(*rank) != Kind::kStaging) {
          Publish(rank, false);
        } else if (rank->staged > 0 && scheme_ != Scheme::kNoWaitForStaging) {
          Wait(rank, index, kStagingFree);
        } else {
          rank->at = kClearStaging;
        }
        break;
      case kClearStaging:
        rank->staging = 0;
        rank->at = kWriteStaging;
        break;
      case kWriteStaging:
        rank->staging = rank->operation;
        rank->staged = rank->operation;
        Publish(rank, false);
        break;
      case kPublish:
        rank->progress =
            rank->ends ? EndOf(rank->operation) : PublishedIn(rank->operation);
        if (scheme_ != Scheme::kReadCountFirst) {
          rank->at = kReadCount;
        } else if (rank->seen) {
          rank->at = kWake;
        } else {
          AfterPublishing(rank, index);
        }
        break;
      case kReadCount:
        if (scheme_ == Scheme::kReadCountFirst) {
          rank->seen = rank->sleepers > 0;
          rank->at = kPublish;
        } else if (rank->sleepers > 0 &&
                   !(rank->ends && scheme_ == Scheme::kNoWake)) {
          rank->at = kWake;
        } else {
          AfterPublishing(rank, index);
        }
        break;
      case kWake:
        WakeSleepersOf(state, index);
        AfterPublishing(rank, index);
        break;
      case kRead:
        if (peer->entries[entry] != rank->operation) wrong_ = kStale;
        if (KindOf(*rank) == Kind::kStaging) {
          rank->at = kReadStaging;
        } else {
          WaitFrom(rank, index, rank->peer + 1);
        }
        break;
      case kReadStaging:
        if (peer->staging != rank->operation) wrong_ = kStale;
        WaitFrom(rank, index, rank->peer + 1);
        break;
      default:
        return false;
    }
    return true;
  }

  At FirstLook() const {
    return scheme_ == Scheme::kProgressFirst ? kReadProgress : kSeeDeath;
  }

  // A rank is missing if it is dead and has not ended the operation, which
  // takes two checks.
  void LookAt(Rank* rank, bool may_be_missing) {
    const bool is_first = rank->at == FirstLook();
    if (may_be_missing && is_first) {
      rank->at = rank->at == kSeeDeath ? kReadProgress : kSeeDeath;
    } else if (may_be_missing) {
      rank->at = kFail;
    } else if (++rank->other == limits_.ranks) {
      rank->other = 0;
      rank->at = kCount;
    } else {
      rank->at = FirstLook();
    }
  }

  Scheme scheme_;
  Limits limits_;
  States states_;
  std::string wrong_;
};

constexpr Kind kAll = Kind::kExchange;
constexpr Kind kRoot = Kind::kBroadcast;
constexpr Kind kStage = Kind::kStaging;

std::string WrongWith(Scheme scheme, const Limits& limits) {
  Explorer explorer(scheme, limits);
  std::string wrong = explorer.Explore();
  std::printf("%zu states\n", explorer.states());
  return wrong;
}

TEST_F(GroupModelTest, NoOrderOfStepsOfTwoRanksBreaksTheProtocol) {
  for (const int kills : {0, 1}) {
    EXPECT_EQ(WrongWith(Scheme::kProtocol,
                        {2, 2, {kAll, kRoot, kRoot, kRoot, kAll}, kills}),
              "");
    EXPECT_EQ(WrongWith(Scheme::kProtocol,
                        {2, 2, {kStage, kRoot, kStage, kStage}, kills}),
              "");
    EXPECT_EQ(WrongWith(Scheme::kProtocol,
                        {2, 1, {kRoot, kAll, kStage, kRoot, kAll}, kills}),
              "");
  }
}

TEST_F(GroupModelTest, NoOrderOfStepsOfThreeRanksBreaksTheProtocol) {
  EXPECT_EQ(WrongWith(Scheme::kProtocol, {3, 1, {kAll, kRoot, kAll}, 0}), "");
  EXPECT_EQ(WrongWith(Scheme::kProtocol, {3, 1, {kRoot, kRoot}, 1}), "");
  EXPECT_EQ(WrongWith(Scheme::kProtocol, {3, 1, {kAll}, 2}), "");
}

TEST_F(GroupModelTest, AnEntryIsUsedAgainOnlyWhenAllHaveReadIt) {
  EXPECT_EQ(
      WrongWith(Scheme::kNoWaitForEntry, {2, 2, {kRoot, kRoot, kRoot}, 0}),
      kStale);
}

TEST_F(GroupModelTest, StagingMemoryIsUsedAgainOnlyWhenAllHaveReadIt) {
  EXPECT_EQ(WrongWith(Scheme::kNoWaitForStaging, {2, 2, {kStage, kStage}, 0}),
            kStale);
}

TEST_F(GroupModelTest, APhaseIsPublishedAfterTheDataIsThere) {
  EXPECT_EQ(WrongWith(Scheme::kPublishBeforeWriting, {2, 2, {kAll}, 0}),
            kStale);
}

TEST_F(GroupModelTest, ARankIsCountedBeforeItSleeps) {
  EXPECT_EQ(WrongWith(Scheme::kNoCount, {2, 2, {kAll}, 0}), kStuck);
}

TEST_F(GroupModelTest, TheCountIsReadAfterThePhaseIsPublished) {
  EXPECT_EQ(WrongWith(Scheme::kReadCountFirst, {2, 1, {kRoot, kRoot}, 0}),
            kStuck);
}

TEST_F(GroupModelTest, TheSystemComparesBeforeARankSleeps) {
  EXPECT_EQ(WrongWith(Scheme::kNoCompare, {2, 2, {kAll}, 0}), kStuck);
}

TEST_F(GroupModelTest, TheEndOfAnOperationWakesThoseThatWaitForIt) {
  EXPECT_EQ(WrongWith(Scheme::kNoWake, {2, 1, {kRoot, kRoot}, 0}), kStuck);
}

TEST_F(GroupModelTest, AWaitingRankChecksWhetherOthersAreAlive) {
  EXPECT_EQ(WrongWith(Scheme::kNoLook, {2, 2, {kAll}, 1}), kStuck);
}

TEST_F(GroupModelTest, ADeathIsSeenBeforeTheProgressIsRead) {
  EXPECT_EQ(WrongWith(Scheme::kProgressFirst, {2, 2, {kAll}, 1}), kNeedless);
}

}  // namespace
