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

// Explores the protocol of the reference counts exhaustively: every state to
// which three processes can bring one block. Each atomic operation is a step,
// and a process may be killed between any two steps. A property that holds in
// every state is proven for these numbers of messages, loads and deaths.
// Variants without one of the precautions show that the explorer finds such
// faults.
//
// The model is a manual copy of SharedLedger and SharedHeap: a change of their
// atomic operations, or of their order, has to be made here too. In the model,
// every operation is sequentially consistent; shared_ledger_order_test checks
// the memory orders of the code. The time of a message is written in the step
// before the step that creates its ticket. Messages may expire at any time
// here, which includes messages that end with their owner.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "test/cpp/phi/shared_memory/shared_memory_test_case.h"

namespace {

class SharedLedgerModelTest : public shared_memory_test::SharedMemoryTestCase {
};

enum Who : uint8_t { kA, kB, kC, kProcesses };  // A owns the block
constexpr uint8_t kPlaces = 2;                  // for tickets
constexpr uint8_t kMessages = 3;
constexpr size_t kTableSize = size_t{1} << 25;

enum class Scheme {
  kLedger,
  // The same for device memory: a receiver checks the ticket, and redeems it
  // when it is ready to use the memory.
  kTicketLast,
  // The ledger without one of its precautions.
  kTicketFirst,  // redeemed before the holder bit is set
  kNoEpoch,
  kNoDeciding,       // without the mark in the generation
  kNoLock,           // without the lock that shows which processes are dead
  kNoReleasedMarks,  // of a reaped slot
  kExpireAtOnce,     // without marking the ticket and reading the time again
  // One counter in shared memory in place of the ledger: a sender increments
  // it, and a process that drops the block decrements it.
  kCounter,
  kResetCounter,  // reset to the owner's own count after a death
};

struct Limits {
  uint8_t messages;
  uint8_t more_loads;  // of pickles that were loaded before
  uint8_t kills;
  bool kills_creator;
  uint8_t expiries;
  uint8_t blocks;  // allocated, one after the other
  uint8_t places = kPlaces;
};

// The next step of a process.
enum At : uint8_t {
  kIdle,
  // IssueTicket
  kLook,
  kPlace,
  kLookShared,
  kShare,
  kCountIssue,
  // Allocate
  kHoldNew,
  kCountNew,
  // Receive
  kHold,
  kCountHold,
  kLookRedeem,
  kRedeem,
  kCompare,
  // ExpireTickets, ReleaseHolder, ReapSlot
  kLookExpire,
  kMarkExpire,
  kReadSent,
  kExpire,
  kDrop,
  kMark,
  kNews,
  kFreeSlot,
  // FreeReleased, TryFree
  kSeeReleasedMarks,
  kTakeMark,
  kDecide,
  kReadEpoch,
  kScan,
  kReadAgain,
  kKeep,
  kFree,
  // The plain counter
  kAdd,
  kUse,
  kSubtract,
};

constexpr char kFreedInUse[] = "a block is freed that a process uses";
constexpr char kFreedInFlight[] = "a block is freed that a message carries";
constexpr char kOther[] = "a process receives another block than was sent";
constexpr char kLost[] = "a message is lost";
constexpr char kLostToTwin[] =
    "a message is lost, whose shared ticket went to a pickle loaded twice";
constexpr char kYoung[] = "a message expires that was sent after the deadline";
constexpr char kKept[] = "a block is kept forever";

struct Actor {
  uint8_t at : 5;     // At
  uint8_t about : 3;  // message, place, process or word
  uint8_t uses : 2;   // generation of the block that it uses; 0 is none
  uint8_t seen : 4;   // ticket that it read
  uint8_t dead : 1;
  uint8_t reaped : 1;
};

struct Message {
  uint8_t generation : 2;  // 0 is not sent yet
  uint8_t place : 1;
  uint8_t nonce : 2;
  uint8_t loads : 2;
  uint8_t given_up : 1;
};

// For a number that is only compared with an earlier value, the model stores
// only whether it has changed.
struct State {
  Actor actors[kProcesses];
  Message messages[kMessages];
  uint8_t tickets[kPlaces];  // expiring << 4 | nonce << 2 | uses left
  uint8_t holders : 3;
  uint8_t epoch_moved : 1;
  uint8_t marked : 1;
  uint8_t news : 1;
  uint8_t generation : 2;
  uint8_t deciding : 1;
  uint8_t in_use : 1;      // as the owner sees it
  uint8_t c_before_b : 1;  // in the order of their slots, for who reads them
  uint8_t counter : 3;
  uint8_t sent : 2;
  uint8_t more_loads : 2;  // left, like the members below
  uint8_t kills : 3;
  uint8_t expiries : 3;
  // Messages that were sent with the expiring ticket since it was checked.
  uint8_t young : 3;
  uint8_t padding[1];
};
static_assert(sizeof(State) == 16, "compared byte by byte");

bool operator==(const State& a, const State& b) {
  return std::memcmp(&a, &b, sizeof(State)) == 0;
}

constexpr uint8_t kExpiring = 16;

uint8_t WithoutMark(uint8_t ticket) { return ticket & ~kExpiring; }
uint8_t NonceOf(uint8_t ticket) { return WithoutMark(ticket) >> 2; }
uint8_t UsesOf(uint8_t ticket) { return ticket & 3; }

template <typename Predicate>
bool AnyActor(const State& s, Predicate predicate) {
  return std::any_of(s.actors, s.actors + kProcesses, predicate);
}

template <typename Predicate>
bool AnyMessage(const State& s, Predicate predicate) {
  return std::any_of(s.messages, s.messages + kMessages, predicate);
}

bool IsScanning(const Actor& actor) {
  return actor.at == kScan || actor.at == kReadAgain;
}

bool IsReceiving(uint8_t at) {
  return (at >= kHold && at <= kCompare) || at == kUse;
}

bool IsGivingBack(const Actor& actor) {
  return (actor.at >= kDrop && actor.at <= kFreeSlot) || actor.at == kSubtract;
}

bool IsExpiring(const Actor& actor) {
  return actor.at >= kMarkExpire && actor.at <= kExpire;
}

bool ShareTicket(const Message& a, const Message& b) {
  return a.nonce == b.nonce && a.place == b.place;
}

bool HasTwin(const State& s, const Message& message) {
  return AnyMessage(s, [&](const Message& other) {
    return other.loads > 1 && ShareTicket(other, message);
  });
}

// Returns whether the message will never be loaded again.
bool IsPast(const State& s, uint8_t index) {
  const Message& message = s.messages[index];
  if (message.loads != 1 || s.more_loads > 0) return false;
  return NonceOf(s.tickets[message.place]) != message.nonce &&
         !AnyActor(s, [&](const Actor& actor) {
           return IsReceiving(actor.at) && actor.about == index;
         });
}

// Maps states whose difference no longer matters to one state.
State Canonical(State s) {
  for (uint8_t i = 0; i < kMessages; ++i) {
    if (IsPast(s, i)) s.messages[i] = {};
  }
  if (!AnyActor(s, IsExpiring)) s.young = 0;
  // B and C are interchangeable.
  State other = s;
  std::swap(other.actors[kB], other.actors[kC]);
  other.holders = (s.holders & 1) | (s.holders & 2) << 1 | (s.holders & 4) >> 1;
  for (Actor& actor : other.actors) {
    if (IsGivingBack(actor) && actor.about != kA) actor.about ^= kB ^ kC;
  }
  if (AnyActor(s, IsScanning)) other.c_before_b = !s.c_before_b;
  return std::memcmp(&s, &other, sizeof(State)) < 0 ? s : other;
}

// One atomic operation of a process, with the private work that follows it.
struct Step {
  Step(const State& before, uint8_t who)
      : after(before), who(who), about(before.actors[who].about) {}

  Actor& actor() { return after.actors[who]; }
  void To(uint8_t at, const char* what) {
    actor().at = at;
    text = what;
  }

  State after;
  uint8_t who;
  uint8_t about;
  const char* text{""};  // # is a message, place or word, @ a process
  const char* wrong{nullptr};
};

class Model {
 public:
  Model(Scheme scheme, const Limits& limits)
      : scheme_(scheme), limits_(limits) {}

  State Initial() const {
    State s = {};
    s.generation = 1;
    s.more_loads = limits_.more_loads;
    s.kills = limits_.kills;
    s.expiries = limits_.expiries;
    return s;
  }

  void Steps(const State& s, std::vector<Step>* steps) const {
    steps->clear();
    for (uint8_t who = kA; who < kProcesses; ++who) {
      if (s.actors[who].dead) continue;
      if (s.actors[who].at == kIdle) {
        AddUses(s, who, steps);
        AddRepairs(s, who, steps);
      } else {
        steps->push_back(Advance(s, who));
        if (s.actors[who].at == kReadEpoch) {
          steps->push_back(steps->back());
          steps->back().after.c_before_b = true;
        }
      }
      if (s.kills > 0 && (who != kA || limits_.kills_creator)) {
        steps->push_back(Kill(s, who));
      }
    }
  }

  // Returns whether the block is kept forever: the living processes have
  // nothing left to do except to reclaim lost references, and that does not
  // free it.
  bool IsKept(State s) const {
    if (!s.in_use || AnyActor(s, [](const Actor& actor) {
          return actor.at != kIdle || actor.uses != 0;
        })) {
      return false;
    }
    // A counter cannot detect that a message is lost. That case is left out.
    if (Counts() && AnyMessage(s, [](const Message& message) {
          return message.generation != 0 && message.loads == 0;
        })) {
      return false;
    }
    uint8_t who = kA;
    while (who < kProcesses && s.actors[who].dead) ++who;
    if (who == kProcesses) return false;
    for (uint8_t dead = kA; dead < kProcesses; ++dead) {
      if (CanReap(s, who, dead)) RunToEnd(&s, who, DropAt(), dead);
    }
    for (uint8_t i = 0; i < kPlaces; ++i) RunToEnd(&s, who, kLookExpire, i);
    RunToEnd(&s, who, CollectAt(who), 0);
    return s.in_use;
  }

 private:
  bool Counts() const {
    return scheme_ == Scheme::kCounter || scheme_ == Scheme::kResetCounter;
  }
  At DropAt() const { return Counts() ? kSubtract : kDrop; }
  At DecideAt() const {
    return scheme_ == Scheme::kNoDeciding ? kReadEpoch : kDecide;
  }
  uint8_t Mark() const {
    return scheme_ == Scheme::kExpireAtOnce ? 0 : kExpiring;
  }
  At CollectAt(uint8_t who) const {
    if (Counts()) return kFree;
    return who == kA ? kSeeReleasedMarks : DecideAt();
  }

  // Begins something new in an idle process, with its first step.
  Step Start(State s, uint8_t who, At at, uint8_t about) const {
    s.actors[who].at = at;
    s.actors[who].about = about;
    return Advance(s, who);
  }

  void RunToEnd(State* s, uint8_t who, At at, uint8_t about) const {
    *s = Start(*s, who, at, about).after;
    while (s->actors[who].at != kIdle) *s = Advance(*s, who).after;
  }

  void AddUses(const State& s, uint8_t who, std::vector<Step>* steps) const {
    State after = s;
    if (who == kA && !s.in_use && s.generation <= limits_.blocks) {
      after.in_use = true;
      steps->push_back(Start(after, who, kHoldNew, 0));
    }
    if (s.actors[who].uses != 0 && s.sent < limits_.messages) {
      after = s;
      uint8_t message = after.sent++;
      steps->push_back(Start(after, who, Counts() ? kAdd : kLook, message));
    }
    if (s.actors[who].uses != 0) {
      after = s;
      after.actors[who].uses = 0;
      steps->push_back(Start(after, who, DropAt(), who));
    }
    for (uint8_t i = 0; i < s.sent; ++i) {
      const Message& message = s.messages[i];
      if (message.generation == 0 || (message.loads > 0 && s.more_loads == 0) ||
          (Counts() && s.actors[who].uses != 0)) {
        continue;
      }
      after = s;
      if (++after.messages[i].loads > 1) --after.more_loads;
      steps->push_back(Load(after, who, i));
    }
  }

  Step Load(const State& s, uint8_t who, uint8_t message) const {
    uint8_t uses = s.actors[who].uses;
    if (Counts()) return Start(s, who, kUse, message);
    if (uses == 0 && scheme_ != Scheme::kTicketFirst) {
      return Start(s, who, kHold, message);
    }
    if (uses == 0 || uses == s.messages[message].generation) {
      return Start(s, who, kLookRedeem, message);
    }
    Step refused(s, who);
    refused.text = "has another generation and refuses a message";
    refused.wrong = WhyNotReceived(s, s.messages[message]);
    return refused;
  }

  void AddRepairs(const State& s, uint8_t who, std::vector<Step>* steps) const {
    for (uint8_t dead = kA; dead < kProcesses; ++dead) {
      if (!CanReap(s, who, dead)) continue;
      steps->push_back(Start(s, who, DropAt(), dead));
    }
    if (!s.in_use || !CanFree(s, who)) return;
    steps->push_back(Start(s, who, CollectAt(who), 0));
    for (uint8_t i = 0; i < kPlaces && s.expiries > 0; ++i) {
      State after = s;
      --after.expiries;
      steps->push_back(Start(after, who, kLookExpire, i));
    }
  }

  // The kernel grants the lock of a slot to one process at a time, and to no
  // process while the one that took the slot is alive.
  bool CanReap(const State& s, uint8_t who, uint8_t dead) const {
    if (who == dead || s.actors[dead].reaped) return false;
    if (!s.actors[dead].dead && scheme_ != Scheme::kNoLock) return false;
    return !AnyActor(s, [&](const Actor& actor) {
      return IsGivingBack(actor) && actor.about == dead;
    });
  }

  // The owner; after its death, the process that has the lock of its slot.
  static bool CanFree(const State& s, uint8_t who) {
    return who == kA ||
           (s.actors[kA].dead && !AnyActor(s, [](const Actor& actor) {
              return IsExpiring(actor) ||
                     (actor.at >= kSeeReleasedMarks && actor.at <= kFree);
            }));
  }

  static Step Kill(const State& s, uint8_t who) {
    Step step(s, who);
    step.text = "is killed";
    --step.after.kills;
    if (IsScanning(step.actor())) {
      step.after.epoch_moved = step.after.c_before_b = false;
    }
    step.actor() = {};
    step.actor().dead = true;
    return step;
  }

  static void CountEpoch(State* s) {
    if (AnyActor(*s, IsScanning)) s->epoch_moved = true;
  }

  static const char* WhyNotReceived(const State& s, const Message& message) {
    if (message.given_up || message.loads > 1) return nullptr;
    return HasTwin(s, message) ? kLostToTwin : kLost;
  }

  static const char* WhyNotFree(const State& s) {
    if (AnyActor(s, [&](auto& a) { return a.uses == s.generation; })) {
      return kFreedInUse;
    }
    bool carried = AnyMessage(s, [&](const Message& message) {
      bool awaited =
          message.loads == 0 && !message.given_up && !HasTwin(s, message);
      uint8_t ticket = s.tickets[message.place];
      bool valid = ticket != 0 && NonceOf(ticket) == message.nonce;
      return message.generation == s.generation && (awaited || valid);
    });
    return carried ? kFreedInFlight : nullptr;
  }

  Step Advance(const State& s, uint8_t who) const {
    Step step(s, who);
    uint8_t at = step.actor().at;
    if (at <= kCountIssue) {
      Send(&step);
    } else if (at <= kCountNew) {
      Allocate(&step);
    } else if (at <= kCompare) {
      Receive(&step);
    } else if (at <= kFreeSlot) {
      GiveBack(&step);
    } else if (at <= kFree) {
      Free(&step);
    } else {
      Count(&step);
    }
    Actor& actor = step.actor();
    if (!AnyActor(step.after, IsExpiring)) step.after.young = 0;
    if (actor.at != kIdle) return step;
    actor.about = actor.seen = 0;
    bool received = IsReceiving(at) && actor.uses != 0;
    if (received && actor.uses != step.after.generation) step.wrong = kOther;
    return step;
  }

  void Send(Step* step) const {
    State& s = step->after;
    Actor& actor = step->actor();
    Message& message = s.messages[actor.about];
    uint8_t& ticket = s.tickets[message.place];
    // Writes the time before the ticket exists.
    const auto says_when = [&] {
      bool expires = AnyActor(s, [&](const Actor& other) {
        return IsExpiring(other) && other.about == message.place;
      });
      if (expires) s.young |= 1 << actor.about;
    };
    const auto has_ticket = [&](uint8_t word) {
      ticket = word;
      message.nonce = NonceOf(word);
      step->To(kCountIssue, "sets the ticket of message #");
    };
    switch (actor.at) {
      case kLook:
      case kPlace:
        if (ticket != 0) {
          bool last = message.place + 1 == limits_.places;
          message.place =
              last ? actor.about % limits_.places : message.place + 1;
          step->To(last ? kLookShared : kLook,
                   "finds a place for the ticket of message # taken");
        } else if (actor.at == kLook) {
          says_when();
          step->To(kPlace, "finds a place for the ticket of message #");
        } else {
          has_ticket((actor.about + 1) << 2 | 1);
        }
        break;
      case kLookShared:
        actor.seen = WithoutMark(ticket);
        says_when();
        step->To(kShare, "looks at a ticket to share for message #");
        break;
      case kShare:
        if (WithoutMark(ticket) == actor.seen && UsesOf(ticket) != 0) {
          has_ticket(actor.seen + 1);
        } else {
          message.place = 0;
          step->To(kLook, "finds the ticket to share for message # changed");
        }
        actor.seen = 0;
        break;
      default:
        CountEpoch(&s);
        message.generation = actor.uses;
        step->To(kIdle, "counts the epoch and has sent message #");
    }
  }

  void Allocate(Step* step) const {
    State& s = step->after;
    if (step->actor().at == kHoldNew && !Counts()) {
      s.holders |= 1 << step->who;
      return step->To(kCountNew, "sets its holder bit");
    }
    s.counter = Counts();
    CountEpoch(&s);
    step->actor().uses = s.generation;
    step->To(kIdle, "has a new block");
  }

  void Receive(Step* step) const {
    State& s = step->after;
    Actor& actor = step->actor();
    const Message& message = s.messages[actor.about];
    uint8_t& ticket = s.tickets[message.place];
    bool ticket_first = scheme_ == Scheme::kTicketFirst;
    At after_ticket = ticket_first ? kHold : kCompare;
    if (actor.uses != 0) after_ticket = kIdle;
    switch (actor.at) {
      case kHold:
        s.holders |= 1 << step->who;
        return step->To(kCountHold, "sets its holder bit");
      case kCountHold:
        CountEpoch(&s);
        return step->To(ticket_first ? kCompare : kLookRedeem,
                        "counts the epoch");
      case kLookRedeem: {
        bool valid = UsesOf(ticket) != 0 && NonceOf(ticket) == message.nonce;
        actor.seen = valid ? WithoutMark(ticket) : 0;
        bool looks_only = scheme_ == Scheme::kTicketLast && actor.uses == 0;
        return step->To(valid && !looks_only ? kRedeem : after_ticket,
                        "looks at the ticket of message #");
      }
      case kRedeem:
        if (WithoutMark(ticket) != actor.seen) {
          actor.seen = 0;
          return step->To(kLookRedeem,
                          "fails to redeem the ticket of message #");
        }
        ticket = UsesOf(ticket) == 1 ? 0 : ticket - 1;
        actor.seen = 1;
        return step->To(after_ticket, "redeems the ticket of message #");
      default:
        break;
    }
    // A process without a ticket waits for the decision, but not forever.
    if (s.generation == message.generation &&
        (actor.seen != 0 || !s.deciding)) {
      actor.uses = message.generation;
      bool redeems = scheme_ == Scheme::kTicketLast && actor.seen != 0;
      actor.seen = 0;
      return step->To(redeems ? kLookRedeem : kIdle,
                      "finds the generation of message # and uses it");
    }
    step->wrong = WhyNotReceived(s, message);
    actor.about = step->who;
    actor.seen = 0;
    step->To(kDrop, "does not find the generation of message #");
  }

  void GiveBack(Step* step) const {
    State& s = step->after;
    Actor& actor = step->actor();
    At last = actor.about == step->who ? kIdle : kFreeSlot;
    const auto ticket = [&]() -> uint8_t& { return s.tickets[actor.about]; };
    switch (actor.at) {
      case kLookExpire: {
        actor.seen = WithoutMark(ticket());
        At next = scheme_ == Scheme::kExpireAtOnce ? kExpire : kMarkExpire;
        return step->To(actor.seen == 0 ? kIdle : next, "looks at ticket #");
      }
      case kMarkExpire: {
        bool same = WithoutMark(ticket()) == actor.seen;
        if (same) ticket() |= kExpiring;
        return step->To(same ? kReadSent : kIdle, "marks ticket #");
      }
      case kReadSent:
        if (s.young == 0) return step->To(kExpire, "finds ticket # old");
        ticket() = WithoutMark(ticket());
        return step->To(kIdle, "finds ticket # young");
      case kExpire:
        step->To(kIdle, "expires ticket #");
        if (ticket() != (actor.seen | Mark())) return;
        for (uint8_t i = 0; i < kMessages; ++i) {
          Message& message = s.messages[i];
          if (message.nonce != NonceOf(actor.seen) ||
              message.place != actor.about) {
            continue;
          }
          bool young = (s.young >> i & 1) != 0 && message.loads == 0;
          if (young && !message.given_up) step->wrong = kYoung;
          message.given_up = true;
        }
        ticket() = 0;
        actor.about = step->who;
        actor.seen = 0;
        actor.at = kMark;
        return;
      case kDrop: {
        s.holders &= ~(1 << actor.about);
        bool silent = scheme_ == Scheme::kNoReleasedMarks && last == kFreeSlot;
        return step->To(silent ? last : kMark, "clears the holder bit of @");
      }
      case kMark:
        s.marked = true;
        return step->To(kNews, "marks the block as released");
      case kNews:
        s.news = true;
        return step->To(last, "counts the release");
      default:
        s.actors[actor.about].reaped = s.actors[actor.about].dead;
        step->To(kIdle, "frees the slot of @");
    }
  }

  void Free(Step* step) const {
    State& s = step->after;
    Actor& actor = step->actor();
    uint8_t word = actor.about;
    if (s.c_before_b && (word == kB || word == kC)) word ^= kB ^ kC;
    step->about = word;
    switch (actor.at) {
      case kSeeReleasedMarks:
        step->To(s.news ? kTakeMark : kIdle, "looks for news of releases");
        s.news = false;
        break;
      case kTakeMark:
        step->To(s.marked && s.in_use ? DecideAt() : kIdle,
                 "takes the mark of the block");
        s.marked = false;
        break;
      case kDecide:
        s.deciding = true;
        step->To(kReadEpoch, "marks the generation: it decides");
        break;
      case kReadEpoch:
        step->To(kScan, "reads the epoch");
        break;
      case kScan: {
        bool set = word < kProcesses ? (s.holders >> word & 1) != 0
                                     : s.tickets[word - kProcesses] != 0;
        bool last = actor.about + 1 == kProcesses + kPlaces;
        step->To(
            last ? kReadAgain : kScan,
            word < kProcesses ? "reads the holder bit of @" : "reads a ticket");
        actor.about = last || set ? 0 : actor.about + 1;
        if (set) actor.at = kKeep;
        break;
      }
      case kReadAgain:
        step->To(s.epoch_moved && scheme_ != Scheme::kNoEpoch ? kKeep : kFree,
                 "reads the epoch again");
        break;
      default:
        if (actor.at == kFree && s.counter == 0) {
          step->wrong = WhyNotFree(s);
          ++s.generation;
          s.in_use = false;
        }
        s.deciding = false;
        step->To(kIdle, s.in_use ? "keeps the block" : "frees the block");
    }
    if (!IsScanning(actor)) s.epoch_moved = s.c_before_b = false;
  }

  void Count(Step* step) const {
    State& s = step->after;
    Actor& actor = step->actor();
    uint8_t about = actor.about;
    if (actor.at == kAdd) {
      ++s.counter;
      s.messages[about].generation = actor.uses;
      return step->To(kIdle, "adds one and has sent message #");
    }
    if (actor.at == kUse) {
      actor.uses = s.messages[about].generation;
      return step->To(kIdle, "loads message #");
    }
    if (about == step->who) {
      --s.counter;
      return step->To(kIdle, "drops the block and subtracts one");
    }
    if (scheme_ == Scheme::kResetCounter) s.counter = s.actors[kA].uses != 0;
    s.actors[about].reaped = true;
    step->To(kIdle, "sees the death of @");
  }

  const Scheme scheme_;
  const Limits limits_;
};

// All states that a model can reach, and a shortest path to each faulty state.
class Explorer {
 public:
  Explorer(Scheme scheme, const Limits& limits) : model_(scheme, limits) {
    Add(Canonical(model_.Initial()), 0);
    std::vector<Step> steps;
    for (uint32_t i = 0; i < states_.size(); ++i) {
      if (model_.IsKept(states_[i])) found_.try_emplace(kKept, i);
      model_.Steps(states_[i], &steps);
      // Most of the time goes to cache misses; this overlaps those of all
      // steps.
      for (Step& step : steps) {
        step.after = Canonical(step.after);
        __builtin_prefetch(&table_[SpotOf(step.after)]);
      }
      for (const Step& step : steps) {
        if (step.wrong != nullptr) found_.try_emplace(step.wrong, i);
        Add(step.after, i);
      }
    }
    std::printf("  %zu states\n", states_.size());
  }

  // Also prints the steps that lead to the fault.
  bool Finds(const std::string& wrong) const {
    auto found = found_.find(wrong);
    if (found == found_.end()) return false;
    std::printf("  %s:\n", wrong.c_str());
    PrintWay(found->second, wrong);
    return true;
  }

  bool FindsNothing(const char* but = "") const {
    bool nothing = true;
    for (const auto& [wrong, state] : found_) {
      if (wrong != but) nothing = !Finds(wrong);
    }
    return nothing;
  }

 private:
  static size_t SpotOf(const State& state) {
    uint64_t halves[2];
    std::memcpy(halves, &state, sizeof(halves));
    uint64_t mixed = 0;
    for (uint64_t half : halves) {
      mixed = (mixed ^ half) * 0x9e3779b97f4a7c15;
      mixed ^= mixed >> 32;
    }
    return mixed % kTableSize;
  }

  void Add(const State& state, uint32_t from) {
    size_t spot = SpotOf(state);
    for (; table_[spot] != 0; spot = (spot + 1) % kTableSize) {
      if (states_[table_[spot] - 1] == state) return;
    }
    states_.push_back(state);
    from_.push_back(from);
    table_[spot] = states_.size();
    ASSERT_LT(states_.size(), kTableSize);
  }

  // States are stored with B and C in any order; here they keep their names.
  void PrintWay(uint32_t last, const std::string& wrong) const {
    std::vector<uint32_t> way;
    for (uint32_t i = last; i != 0; i = from_[i]) way.push_back(i);
    State state = model_.Initial();
    for (; !way.empty(); way.pop_back()) {
      PrintStep(&state, [&](const Step& step) {
        return Canonical(step.after) == states_[way.back()];
      });
    }
    PrintStep(&state, [&](const Step& step) {
      return step.wrong != nullptr && step.wrong == wrong;
    });
  }

  void PrintStep(State* state,
                 const std::function<bool(const Step&)>& wanted) const {
    std::vector<Step> steps;
    model_.Steps(*state, &steps);
    auto step = std::find_if(steps.begin(), steps.end(), wanted);
    if (step == steps.end()) return;
    std::string text = step->text;
    size_t spot = text.find_first_of("#@");
    if (spot != std::string::npos) {
      text[spot] = (text[spot] == '#' ? '1' : 'A') + step->about;
    }
    std::printf("    %c %s\n", 'A' + step->who, text.c_str());
    *state = step->after;
  }

  const Model model_;
  std::vector<State> states_;
  std::vector<uint32_t> from_;
  std::vector<uint32_t> table_ = std::vector<uint32_t>(kTableSize);  // from 1
  std::map<std::string, uint32_t> found_;  // the state before
};

// Limits: messages, additional loads, kills, whether A may be killed, expiries,
// and blocks.
constexpr Limits kLarge = {3, 1, 1, false, 1, 2};
constexpr Limits kCreatorDies = {2, 1, 1, true, 1, 2};
constexpr Limits kTwoDie = {2, 1, 2, true, 0, 1};
constexpr Limits kSmall = {2, 1, 0, false, 0, 1};
constexpr Limits kSmallWithDeath = {1, 0, 1, false, 0, 1};

ISOLATED_TEST(SharedLedgerModelTest, TheLedgerIsCorrectInEveryOrderOfSteps) {
  EXPECT_TRUE(Explorer(Scheme::kLedger, kLarge).FindsNothing(kLostToTwin));
}

ISOLATED_TEST(SharedLedgerModelTest,
              TheLedgerIsCorrectWhicheverProcessIsKilled) {
  EXPECT_TRUE(Explorer(Scheme::kLedger, kCreatorDies).FindsNothing());
  EXPECT_TRUE(Explorer(Scheme::kLedger, kTwoDie).FindsNothing());
}

ISOLATED_TEST(SharedLedgerModelTest,
              TheTicketMayBeRedeemedOnceTheReceiverIsReady) {
  EXPECT_TRUE(Explorer(Scheme::kTicketLast, kCreatorDies).FindsNothing());
  EXPECT_TRUE(Explorer(Scheme::kTicketLast, kTwoDie).FindsNothing());
}

ISOLATED_TEST(SharedLedgerModelTest,
              TwoLoadsOfOnePickleMayCostAMessageThatSharesItsTicket) {
  EXPECT_TRUE(
      Explorer(Scheme::kLedger, {3, 1, 0, false, 0, 1}).Finds(kLostToTwin));
}

ISOLATED_TEST(SharedLedgerModelTest,
              ATicketMayNotBeRedeemedBeforeTheHolderBitIsSet) {
  Explorer explorer(Scheme::kTicketFirst, kSmall);
  EXPECT_TRUE(explorer.Finds(kFreedInUse));
  EXPECT_TRUE(explorer.Finds(kLost));
}

ISOLATED_TEST(SharedLedgerModelTest, AScanForReferencesMustCompareTheEpoch) {
  EXPECT_TRUE(Explorer(Scheme::kNoEpoch, kSmall).Finds(kFreedInUse));
}

ISOLATED_TEST(SharedLedgerModelTest, FreeingMustMarkTheGenerationFirst) {
  EXPECT_TRUE(Explorer(Scheme::kNoDeciding, kSmall).Finds(kFreedInUse));
}

ISOLATED_TEST(SharedLedgerModelTest, ReapingMustEnsureThatTheProcessIsDead) {
  EXPECT_TRUE(Explorer(Scheme::kNoLock, kSmallWithDeath).Finds(kFreedInUse));
}

ISOLATED_TEST(SharedLedgerModelTest, ReapingMustMarkBlocksAsReleased) {
  EXPECT_TRUE(Explorer(Scheme::kNoReleasedMarks, kSmallWithDeath).Finds(kKept));
}

ISOLATED_TEST(SharedLedgerModelTest,
              ExpiringATicketMustMarkItAndReadTheTimeAgain) {
  constexpr Limits kOnePlace = {3, 0, 0, false, 1, 1, 1};
  EXPECT_TRUE(Explorer(Scheme::kLedger, kOnePlace).FindsNothing());
  EXPECT_TRUE(Explorer(Scheme::kExpireAtOnce, kOnePlace).Finds(kYoung));
}

ISOLATED_TEST(SharedLedgerModelTest,
              ACounterKeepsABlockForeverWhenAReceiverIsKilled) {
  EXPECT_TRUE(
      Explorer(Scheme::kCounter, {1, 0, 0, false, 0, 1}).FindsNothing());
  EXPECT_TRUE(Explorer(Scheme::kCounter, kSmallWithDeath).Finds(kKept));
}

ISOLATED_TEST(SharedLedgerModelTest,
              ACounterResetAtADeathFreesABlockThatOthersHold) {
  EXPECT_TRUE(Explorer(Scheme::kResetCounter, {2, 0, 1, false, 0, 1})
                  .Finds(kFreedInUse));
}

ISOLATED_TEST(SharedLedgerModelTest,
              ACounterFreesAHeldBlockWhenAPickleIsLoadedTwice) {
  Explorer explorer(Scheme::kCounter, kSmall);
  EXPECT_TRUE(explorer.Finds(kFreedInUse));
  EXPECT_TRUE(explorer.Finds(kOther));
}

}  // namespace
