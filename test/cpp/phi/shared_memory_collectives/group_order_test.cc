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

// The operations of two ranks in this process, run in every execution that
// their memory orders allow. This is the code of group_memory.cc and
// operation.cc with substituted atomics, clock and sleep. Running the code as
// it is would not be enough: the processor may order more than the code
// requires.

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "paddle/phi/core/memory/allocation/shared_memory/default_memory_limit.h"
#include "paddle/phi/core/memory/allocation/shared_memory/process_status.h"
#include "paddle/phi/core/memory/allocation/shared_memory/random_bits.h"
#include "paddle/phi/core/memory/allocation/shared_memory/shared_memory_error.h"
#include "paddle/phi/core/memory/allocation/shared_memory/shared_segment_file.h"
#include "test/cpp/phi/shared_memory/shared_memory_test_case.h"
#include "test/cpp/phi/shared_memory/weak_memory.h"

namespace std {

template <typename T>
using explored_atomic = weak_memory::Atomic<T>;

namespace chrono {

// Stands still unless a test moves it, so that executions are repeatable.
struct standing_clock {
  using duration = nanoseconds;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = chrono::time_point<standing_clock>;
  static constexpr bool is_steady = true;

  static time_point now() { return time_point(time); }
  static inline duration time = hours(1);
};

}  // namespace chrono
}  // namespace std

namespace paddle {
namespace memory {
namespace allocation {

// Maps the group's memory at the same address in both ranks and in all
// executions, because the explorer identifies words by address.
class SameMapping {
 public:
  SameMapping(int fd, uint64_t length) {
    constexpr uint64_t kMostBytes = 64 << 20;
    static void* const place = mmap(nullptr,
                                    kMostBytes,
                                    PROT_NONE,
                                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                                    -1,
                                    0);
    REQUIRE_TRUE(length <= kMostBytes);
    base_ = mmap(
        place, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
    REQUIRE_TRUE(base_ == place);
  }

  explicit operator bool() const { return true; }
  void* base() const { return base_; }
  void Release() {}

 private:
  void* base_;
};

}  // namespace allocation
}  // namespace memory
}  // namespace paddle

#define atomic explored_atomic
#define steady_clock standing_clock
#define Mapping SameMapping
#define distributed explored
#include "paddle/phi/core/distributed/shared_memory/group_layout.cc"  // NOLINT
#include "paddle/phi/core/distributed/shared_memory/group_memory.cc"  // NOLINT
#include "paddle/phi/core/distributed/shared_memory/operation.cc"     // NOLINT
#include "paddle/phi/core/distributed/shared_memory/operation_info.cc"  // NOLINT
#undef distributed
#undef Mapping
#undef steady_clock
#undef atomic

namespace {

using weak_memory::Atomic;

// The words on which WakeSleepers was called.
std::set<const void*> woken;

// Thrown by a rank that goes to sleep and was not woken before.
struct Asleep {};

}  // namespace

namespace phi {
namespace explored {

void SleepWhileEqual(const Atomic<uint64_t>& word,
                     uint64_t,
                     std::chrono::nanoseconds) {
  // The kernel compares the word after everything that a waker did before.
  if (woken.count(&word) == 0) throw Asleep();
}

void WakeSleepers(const Atomic<uint64_t>& word) { woken.insert(&word); }

void Pause() {}

}  // namespace explored
}  // namespace phi

namespace {

using phi::explored::CollectiveError;
using phi::explored::GroupMemory;
using phi::explored::GroupOptions;
using phi::explored::Operation;
using phi::explored::OperationInfo;
using weak_memory::Explorer;

class GroupOrderTest : public shared_memory_test::SharedMemoryTestCase {};

constexpr std::chrono::seconds kTimeout{1000};

// A group of two ranks.
class Scene {
 public:
  ~Scene() { Clear(); }

  // Creates the group, without rank 1.
  void MakeGroup() {
    Clear();
    GroupOptions options;
    options.staging_bytes = 4096;
    options.spin = std::chrono::microseconds(0);
    groups[0] = GroupMemory::Create(2, options);
  }

  // Creates the group and an operation that both ranks have begun.
  void Begin() {
    MakeGroup();
    groups[1] = GroupMemory::Attach(groups[0]->id(), 1);
    for (int rank = 0; rank < 2; ++rank) {
      operations[rank] = std::make_unique<Operation>(
          groups[rank].get(), OperationInfo::Of("barrier", 0), kTimeout);
    }
  }

  // Data of rank 0 that both ranks may access.
  Atomic<uint64_t>* data() {
    return reinterpret_cast<Atomic<uint64_t>*>(operations[0]->inline_data(0));
  }

  // Waits as rank 1. Returns whether rank 0 has published a phase.
  bool WaitForRank0() {
    try {
      operations[1]->WaitFor(0, 1);
      return true;
    } catch (const Asleep&) {
      fell_asleep = true;
    } catch (const CollectiveError& error) {
      failure = error.what();
    }
    return false;
  }

  // Expects that a rank which sleeps was woken.
  void ExpectNoSleeper() { EXPECT_TRUE(!fell_asleep || !woken.empty()); }

  std::unique_ptr<GroupMemory> groups[2];
  std::unique_ptr<Operation> operations[2];
  bool fell_asleep{false};
  std::string failure;

 private:
  void Clear() {
    for (int rank = 0; rank < 2; ++rank) {
      // Leave first: destroying an operation that has not ended fails the
      // group.
      if (groups[rank]) groups[rank]->Leave();
      operations[rank] = nullptr;
      groups[rank] = nullptr;
    }
    fell_asleep = false;
    failure.clear();
    woken.clear();
  }
};

ISOLATED_TEST(GroupOrderTest, AWaitSeesWhatWasWrittenBeforeThePhase) {
  Scene s;
  uint64_t seen = 0;
  Explorer::Explore(
      [&] {
        s.Begin();
        seen = 7;
      },
      {[&] {
         s.data()->store(7, std::memory_order_relaxed);
         s.operations[0]->Publish(1);
       },
       [&] {
         if (s.WaitForRank0()) {
           seen = s.data()->load(std::memory_order_relaxed);
         }
       }},
      [&] {
        EXPECT_EQ(seen, 7);
        s.ExpectNoSleeper();
      });
}

ISOLATED_TEST(GroupOrderTest, TheEndOfAnOperationIsSeenAndWakes) {
  Scene s;
  Explorer::Explore(
      [&] { s.Begin(); },
      {[&] { s.operations[0]->End(); }, [&] { s.WaitForRank0(); }},
      [&] {
        EXPECT_EQ(s.failure, "");
        s.ExpectNoSleeper();
      });
}

ISOLATED_TEST(GroupOrderTest, ARankThatSleepsIsWokenByAFailure) {
  Scene s;
  Explorer::Explore(
      [&] { s.Begin(); },
      {[&] { s.groups[0]->Abort(0, "a test"); }, [&] { s.WaitForRank0(); }},
      [&] {
        EXPECT_TRUE(s.fell_asleep || !s.failure.empty());
        s.ExpectNoSleeper();
      });
}

ISOLATED_TEST(GroupOrderTest, ARankThatLeavesAfterTheEndHasEnded) {
  Scene s;
  Explorer::Explore(
      [&] {
        s.Begin();
        // Makes the next CheckRanks check the others.
        std::chrono::standing_clock::time += std::chrono::seconds(1);
      },
      {[&] {
         s.operations[0]->End();
         s.groups[0]->Leave();
       },
       [&] {
         try {
           s.operations[1]->CheckRanks();
         } catch (const CollectiveError& error) {
           s.failure = error.what();
         }
       }},
      [&] { EXPECT_EQ(s.failure, ""); });
}

// A rank that goes to sleep later sees this after the interval.
ISOLATED_TEST(GroupOrderTest, ARankThatLeavesWakesThoseThatSleep) {
  Scene s;
  s.Begin();
  EXPECT_FALSE(s.WaitForRank0());
  EXPECT_TRUE(s.fell_asleep);
  s.groups[0]->Leave();
  s.ExpectNoSleeper();
}

// Two ranks, of which rank 1 reads data of rank 0 in place.
class SceneOfRead : public Scene {
 public:
  void Prepare() {
    Begin();
    data_ = data();
    data_->store(kBefore, std::memory_order_relaxed);
  }

  // As rank 0, changes the data after its operation has failed.
  void Change() {
    operations[0] = nullptr;
    data_->store(kBefore + 1, std::memory_order_relaxed);
  }

  void Read() {
    seen_ = data_->load(std::memory_order_relaxed);
    try {
      operations[1]->ConfirmReads();
    } catch (const CollectiveError& error) {
      failure = error.what();
    }
  }

  void ExpectNoChangeIsConfirmed() {
    EXPECT_TRUE(seen_ == kBefore || !failure.empty());
  }

 private:
  static constexpr uint64_t kBefore = 7;

  Atomic<uint64_t>* data_{nullptr};
  uint64_t seen_{0};
};

ISOLATED_TEST(GroupOrderTest, AChangeAfterAFailureIsNotConfirmed) {
  SceneOfRead s;
  Explorer::Explore([&] { s.Prepare(); },
                    {[&] { s.Change(); }, [&] { s.Read(); }},
                    [&] { s.ExpectNoChangeIsConfirmed(); });
}

ISOLATED_TEST(GroupOrderTest, AChangeAfterARankLeftIsNotConfirmed) {
  SceneOfRead s;
  Explorer::Explore([&] { s.Prepare(); },
                    {[&] {
                       s.groups[0]->Leave();
                       s.Change();
                     },
                     [&] { s.Read(); }},
                    [&] { s.ExpectNoChangeIsConfirmed(); });
}

ISOLATED_TEST(GroupOrderTest, TheProcessOfAnAttachedRankIsVisible) {
  Scene s;
  uint64_t base = 0;
  uint32_t process = 0;
  Explorer::Explore(
      [&] { s.MakeGroup(); },
      {[&] { s.groups[1] = GroupMemory::Attach(s.groups[0]->id(), 1); },
       [&] {
         base = s.groups[0]->base_of(1);
         process = s.groups[0]->process_of(1);
       }},
      [&] {
        EXPECT_TRUE(base == 0 || process == static_cast<uint32_t>(getpid()));
      });
}

}  // namespace
