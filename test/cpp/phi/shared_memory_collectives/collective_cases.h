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
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "paddle/phi/core/distributed/shared_memory/collectives.h"
#include "test/cpp/phi/shared_memory_collectives/ranks.h"
#include "test/cpp/phi/shared_memory_collectives/reference_reduction.h"

// Collective operations that check their own results, for tests that run many.
namespace shared_memory_test {

using phi::distributed::Collectives;
using phi::distributed::SharedMemoryHandle;
using phi::distributed::SharedMemoryResolver;

// One arena per rank that all ranks have mapped, in place of tensors in shared
// memory. Must be created before the ranks.
class SharedArenas : public SharedMemoryResolver {
 public:
  // The largest random case needs 25.6 MB.
  static constexpr uint64_t kBytesPerRank = 32 << 20;

  // If not `mappable`, simulates ranks that cannot map each other's segments.
  explicit SharedArenas(int ranks, bool mappable = true);
  ~SharedArenas() override;
  SharedArenas(const SharedArenas&) = delete;
  SharedArenas& operator=(const SharedArenas&) = delete;

  char* of_rank(int rank) const { return base_ + rank * kBytesPerRank; }
  // How many times this process mapped memory of another rank.
  int maps() const { return maps_; }

  std::optional<SharedMemoryHandle> Find(const void* address,
                                         uint64_t bytes) override;
  std::shared_ptr<const void> Map(const SharedMemoryHandle& handle,
                                  uint64_t bytes) override;
  std::optional<bool> IsKept(const SharedMemoryHandle& handle,
                             uint64_t bytes) override;
  // From now on, the memory of all ranks counts as freed.
  void Free() { is_kept_ = false; }

 private:
  bool mappable_;
  bool is_kept_{true};
  uint64_t bytes_;
  char* base_;
  int maps_{0};
};

// Where a rank allocates its buffers. The others map shared ones; private ones
// are staged.
enum class Buffers { kPrivate, kShared, kEither };

struct OperationCase {
  enum Kind {
    kAllReduce,
    kReduce,
    kReduceScatter,
    kBroadcast,
    kAllGather,
    kGather,
    kScatter,
    kAllToAll,
    kUnevenAllToAll,
    kSendRecv,
    kBarrier,
  };
  static constexpr int kKinds = 11;

  std::string Text() const;

  Kind kind;
  ElementType type;
  Reduction reduction;
  uint64_t count;  // elements per rank
  int root;
  bool in_place;  // where the operation allows it
  int shift;      // offset of the buffers from an aligned address
  uint64_t seed;  // for the content of the buffers
};

// Runs operations in the process of a rank.
class CaseRunner {
 public:
  CaseRunner(GroupMemory* group, SharedArenas* arenas, Buffers buffers);

  // Runs an operation; all ranks must call this with the same one. Checks that
  // this rank received exactly the expected data, that its input is unchanged,
  // and that an AllReduce result is bitwise identical on all ranks. Exceptions
  // of the operation propagate.
  void Run(const OperationCase& operation);
  int size() const { return size_; }

 private:
  // A buffer of this rank for the current operation, followed by guard bytes
  // that must stay unchanged.
  struct Taken {
    Buffer memory;  // unless it is in the arena
    char* data;
    uint64_t bytes;
  };

  const char* type_name() const;
  char* Take(uint64_t bytes);
  char* Take(const Buffer& content);
  std::vector<char*> TakeOnePerRank();
  std::vector<char*> PartsOf(char* data) const;
  Buffer InputOf(int rank, uint64_t parts) const;
  std::vector<Buffer> Inputs(uint64_t parts) const;
  void RequireKept(const char* in, const Buffer& content) const;
  void RequireBytes(const char* actual, const Buffer& expected) const;
  void RequireElements(const char* actual, const Buffer& expected) const;
  void RequireSameOnAll(const char* data);

  void RunAllReduce();
  void RunReduce();
  void RunReduceScatter();
  void RunBroadcast();
  void RunAllGather();
  void RunGather();
  void RunScatter();
  void RunAllToAll();
  void RunSendRecv();

  int rank_;
  int size_;
  SharedArenas* arenas_;
  Buffers buffers_;
  Collectives collectives_;
  Random random_;
  OperationCase operation_{};
  uint64_t bytes_{0};  // the size of `count` elements of the current operation
  uint64_t used_of_arena_{0};
  std::list<Taken> taken_;
};

// Returns an operation that depends only on the arguments.
OperationCase RandomCase(Random* random, int ranks, uint64_t max_count);

// Runs a function as each rank of a group in this process, one thread per rank.
void RunOnThreads(int size,
                  const std::function<void(GroupMemory*, Collectives*)>& body);

// As one of two ranks, sends and receives messages on two threads, and runs
// collective operations on this one. Checks the data.
void SendReceiveAndReduceOnThreads(GroupMemory* group,
                                   uint64_t bytes,
                                   int times);

}  // namespace shared_memory_test
