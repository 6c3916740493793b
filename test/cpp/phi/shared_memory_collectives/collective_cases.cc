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

#include "test/cpp/phi/shared_memory_collectives/collective_cases.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "gtest/gtest.h"
#include "paddle/phi/core/distributed/shared_memory/group_memory.h"
#include "test/cpp/isolated_test.h"

namespace shared_memory_test {

namespace {

using phi::distributed::SizeOf;

constexpr uint64_t kGuardBytes = 32;
constexpr char kGuard = 0x5c;
constexpr char kUnset = 0x3a;
constexpr char kScribble = 0x77;

const char* NameOf(OperationCase::Kind kind) {
  static constexpr const char* kNames[OperationCase::kKinds] = {
      "AllReduce",
      "Reduce",
      "ReduceScatter",
      "Broadcast",
      "AllGather",
      "Gather",
      "Scatter",
      "AllToAll",
      "uneven AllToAll",
      "Send and Recv",
      "Barrier",
  };
  return kNames[kind];
}

// Returns how many bytes each rank sends to each other one.
std::vector<std::vector<uint64_t>> SizesOf(const OperationCase& operation,
                                           uint64_t bytes,
                                           int ranks) {
  std::vector<std::vector<uint64_t>> sizes(ranks,
                                           std::vector<uint64_t>(ranks, bytes));
  if (operation.kind == OperationCase::kAllToAll) return sizes;
  Random random(operation.seed);
  for (auto& row : sizes) {
    for (uint64_t& size : row) {
      size = random() % 3 == 0 ? 0 : random() % (bytes + 1);
    }
  }
  return sizes;
}

}  // namespace

SharedArenas::SharedArenas(int ranks, bool mappable)
    : mappable_(mappable), bytes_(ranks * kBytesPerRank) {
  void* const base = mmap(nullptr,
                          bytes_,
                          PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE,
                          -1,
                          0);
  REQUIRE_TRUE(base != MAP_FAILED);
  base_ = static_cast<char*>(base);
}

SharedArenas::~SharedArenas() { munmap(base_, bytes_); }

std::optional<SharedMemoryHandle> SharedArenas::Find(const void* address,
                                                     uint64_t bytes) {
  const char* const data = static_cast<const char*>(address);
  if (data < base_ || data + bytes > base_ + bytes_) return std::nullopt;
  SharedMemoryHandle handle{};
  const uint64_t offset = data - base_;
  std::memcpy(handle.data(), &offset, sizeof(offset));
  return handle;
}

std::shared_ptr<const void> SharedArenas::Map(const SharedMemoryHandle& handle,
                                              uint64_t bytes) {
  if (!mappable_) return nullptr;
  uint64_t offset;
  std::memcpy(&offset, handle.data(), sizeof(offset));
  REQUIRE_TRUE(offset + bytes <= bytes_);
  ++maps_;
  return {std::shared_ptr<void>(), base_ + offset};
}

std::optional<bool> SharedArenas::IsKept(const SharedMemoryHandle&, uint64_t) {
  if (!mappable_) return std::nullopt;
  return is_kept_;
}

std::string OperationCase::Text() const {
  return std::string(NameOf(kind)) + " of " + std::to_string(count) + " " +
         phi::distributed::NameOf(type) + ", " +
         phi::distributed::NameOf(reduction) + ", root " +
         std::to_string(root) + (in_place ? ", in place" : "") + ", shift " +
         std::to_string(shift) + ", seed " + std::to_string(seed);
}

CaseRunner::CaseRunner(GroupMemory* group,
                       SharedArenas* arenas,
                       Buffers buffers)
    : rank_(group->rank()),
      size_(group->size()),
      arenas_(arenas),
      buffers_(buffers),
      collectives_(group, {std::shared_ptr<void>(), arenas}, kNever),
      random_(isolated_test::Seed() + group->rank()) {}

const char* CaseRunner::type_name() const { return NameOf(operation_.type); }

char* CaseRunner::Take(uint64_t bytes) {
  const uint64_t all = operation_.shift + bytes + kGuardBytes;
  const bool shared = buffers_ == Buffers::kShared ||
                      (buffers_ == Buffers::kEither && random_() % 2 == 0);
  taken_.emplace_back();
  Taken& taken = taken_.back();
  taken.bytes = bytes;
  if (shared) {
    taken.data = arenas_->of_rank(rank_) + used_of_arena_;
    used_of_arena_ += (all + 63) / 64 * 64;
    REQUIRE_TRUE(used_of_arena_ <= SharedArenas::kBytesPerRank);
  } else {
    taken.memory.resize(all);
    taken.data = taken.memory.data();
  }
  taken.data += operation_.shift;
  std::memset(taken.data, kUnset, bytes);
  std::memset(taken.data + bytes, kGuard, kGuardBytes);
  return taken.data;
}

char* CaseRunner::Take(const Buffer& content) {
  char* const data = Take(content.size());
  std::copy(content.begin(), content.end(), data);
  return data;
}

Buffer CaseRunner::InputOf(int rank, uint64_t parts) const {
  Random random(operation_.seed + rank);
  return RandomElements(operation_.type, operation_.count * parts, &random);
}

std::vector<Buffer> CaseRunner::Inputs(uint64_t parts) const {
  std::vector<Buffer> inputs;
  for (int rank = 0; rank < size_; ++rank) {
    inputs.push_back(InputOf(rank, parts));
  }
  return inputs;
}

void CaseRunner::RequireBytes(const char* actual,
                              const Buffer& expected) const {
  ASSERT_TRUE(std::equal(expected.begin(), expected.end(), actual))
      << operation_.Text();
}

void CaseRunner::RequireKept(const char* in, const Buffer& content) const {
  if (!operation_.in_place) RequireBytes(in, content);
}

void CaseRunner::RequireElements(const char* actual,
                                 const Buffer& expected) const {
  const Buffer elements(actual, actual + expected.size());
  ASSERT_EQ(Difference(elements, expected, operation_.type), "")
      << operation_.Text();
}

void CaseRunner::RequireSameOnAll(const char* data) {
  const uint64_t hash = std::hash<std::string>()(std::string(data, bytes_));
  std::vector<uint64_t> hashes(size_);
  collectives_.AllGather(&hash, hashes.data(), sizeof(hash), "uint64", kNever);
  for (const uint64_t other : hashes) {
    ASSERT_EQ(other, hash) << operation_.Text();
  }
}

void CaseRunner::Run(const OperationCase& operation) {
  operation_ = operation;
  bytes_ = operation.count * SizeOf(operation.type);
  used_of_arena_ = 0;
  taken_.clear();
  switch (operation.kind) {
    case OperationCase::kAllReduce:
      RunAllReduce();
      break;
    case OperationCase::kReduce:
      RunReduce();
      break;
    case OperationCase::kReduceScatter:
      RunReduceScatter();
      break;
    case OperationCase::kBroadcast:
      RunBroadcast();
      break;
    case OperationCase::kAllGather:
      RunAllGather();
      break;
    case OperationCase::kGather:
      RunGather();
      break;
    case OperationCase::kScatter:
      RunScatter();
      break;
    case OperationCase::kAllToAll:
    case OperationCase::kUnevenAllToAll:
      RunAllToAll();
      break;
    case OperationCase::kSendRecv:
      RunSendRecv();
      break;
    case OperationCase::kBarrier:
      collectives_.Barrier(kNever);
      break;
  }
  for (const Taken& taken : taken_) {
    for (uint64_t i = 0; i < kGuardBytes; ++i) {
      ASSERT_EQ(taken.data[taken.bytes + i], kGuard) << operation_.Text();
    }
    // No rank reads the buffer any more.
    std::memset(taken.data, kScribble, taken.bytes);
  }
}

void CaseRunner::RunAllReduce() {
  const auto inputs = Inputs(1);
  char* const in = Take(inputs[rank_]);
  char* const out = operation_.in_place ? in : Take(bytes_);
  collectives_.AllReduce(
      in, out, operation_.count, operation_.type, operation_.reduction, kNever);
  RequireKept(in, inputs[rank_]);
  RequireElements(
      out, ReferenceReduction(inputs, operation_.type, operation_.reduction));
  RequireSameOnAll(out);
}

void CaseRunner::RunReduce() {
  const auto inputs = Inputs(1);
  const bool is_root = rank_ == operation_.root;
  char* const in = Take(inputs[rank_]);
  char* out = nullptr;
  if (is_root) out = operation_.in_place ? in : Take(bytes_);
  collectives_.Reduce(in,
                      out,
                      operation_.count,
                      operation_.type,
                      operation_.reduction,
                      operation_.root,
                      kNever);
  if (is_root) {
    RequireKept(in, inputs[rank_]);
    RequireElements(
        out, ReferenceReduction(inputs, operation_.type, operation_.reduction));
  } else {
    RequireBytes(in, inputs[rank_]);
  }
}

void CaseRunner::RunReduceScatter() {
  const auto inputs = Inputs(size_);
  char* const in = Take(inputs[rank_]);
  char* const out = operation_.in_place ? in + rank_ * bytes_ : Take(bytes_);
  collectives_.ReduceScatter(
      in, out, operation_.count, operation_.type, operation_.reduction, kNever);
  RequireKept(in, inputs[rank_]);
  const Buffer all =
      ReferenceReduction(inputs, operation_.type, operation_.reduction);
  const auto own = all.begin() + rank_ * bytes_;
  RequireElements(out, Buffer(own, own + bytes_));
}

void CaseRunner::RunBroadcast() {
  const Buffer sent = InputOf(operation_.root, 1);
  char* const data = rank_ == operation_.root ? Take(sent) : Take(bytes_);
  collectives_.Broadcast(data, bytes_, type_name(), operation_.root, kNever);
  RequireBytes(data, sent);
}

std::vector<char*> CaseRunner::TakeOnePerRank() {
  std::vector<char*> buffers;
  for (int rank = 0; rank < size_; ++rank) buffers.push_back(Take(bytes_));
  return buffers;
}

std::vector<char*> CaseRunner::PartsOf(char* data) const {
  std::vector<char*> parts;
  for (int rank = 0; rank < size_; ++rank) {
    parts.push_back(data + rank * bytes_);
  }
  return parts;
}

void CaseRunner::RunAllGather() {
  const bool is_one_buffer = random_() % 2 == 0;
  const std::vector<char*> out =
      is_one_buffer ? PartsOf(Take(bytes_ * size_)) : TakeOnePerRank();
  char* in = out[rank_];
  const Buffer own = InputOf(rank_, 1);
  if (operation_.in_place) {
    std::copy(own.begin(), own.end(), in);
  } else {
    in = Take(own);
  }
  if (is_one_buffer) {
    collectives_.AllGather(in, out[0], bytes_, type_name(), kNever);
  } else {
    collectives_.AllGather(in, out, bytes_, type_name(), kNever);
  }
  RequireKept(in, own);
  for (int other = 0; other < size_; ++other) {
    RequireBytes(out[other], InputOf(other, 1));
  }
}

void CaseRunner::RunGather() {
  const bool is_root = rank_ == operation_.root;
  const bool is_one_buffer = random_() % 2 == 0;
  const Buffer own = InputOf(rank_, 1);
  std::vector<char*> out;
  if (is_root) {
    out = is_one_buffer ? PartsOf(Take(bytes_ * size_)) : TakeOnePerRank();
  }
  char* in;
  if (is_root && operation_.in_place) {
    in = out[rank_];
    std::copy(own.begin(), own.end(), in);
  } else {
    in = Take(own);
  }
  if (is_one_buffer) {
    collectives_.Gather(in,
                        is_root ? out[0] : nullptr,
                        bytes_,
                        type_name(),
                        operation_.root,
                        kNever);
  } else {
    collectives_.Gather(in, out, bytes_, type_name(), operation_.root, kNever);
  }
  RequireBytes(in, own);
  for (int other = 0; is_root && other < size_; ++other) {
    RequireBytes(out[other], InputOf(other, 1));
  }
}

void CaseRunner::RunScatter() {
  const bool is_root = rank_ == operation_.root;
  const Buffer sent = InputOf(operation_.root, size_);
  const auto own = sent.begin() + rank_ * bytes_;
  const bool is_one_buffer = random_() % 2 == 0;
  std::vector<char*> in;
  if (is_root) {
    in = is_one_buffer ? PartsOf(Take(bytes_ * size_)) : TakeOnePerRank();
    for (int rank = 0; rank < size_; ++rank) {
      std::copy_n(sent.begin() + rank * bytes_, bytes_, in[rank]);
    }
  }
  char* const out = is_root && operation_.in_place ? in[rank_] : Take(bytes_);
  if (is_one_buffer) {
    collectives_.Scatter(is_root ? in[0] : nullptr,
                         out,
                         bytes_,
                         type_name(),
                         operation_.root,
                         kNever);
  } else {
    collectives_.Scatter({in.begin(), in.end()},
                         out,
                         bytes_,
                         type_name(),
                         operation_.root,
                         kNever);
  }
  RequireBytes(out, Buffer(own, own + bytes_));
  for (int other = 0; is_root && other < size_; ++other) {
    const auto part = sent.begin() + other * bytes_;
    RequireBytes(in[other], Buffer(part, part + bytes_));
  }
}

void CaseRunner::RunAllToAll() {
  const auto sizes = SizesOf(operation_, bytes_, size_);
  // A rank sends the first bytes of its input.
  const auto inputs = Inputs(size_);
  uint64_t in_bytes = 0;
  std::vector<uint64_t> out_sizes;
  Buffer expected;
  for (int other = 0; other < size_; ++other) {
    in_bytes += sizes[rank_][other];
    out_sizes.push_back(sizes[other][rank_]);
    auto from = inputs[other].begin();
    for (int k = 0; k < rank_; ++k) from += sizes[other][k];
    expected.insert(expected.end(), from, from + sizes[other][rank_]);
  }
  const Buffer sent(inputs[rank_].begin(), inputs[rank_].begin() + in_bytes);
  char* const in = Take(sent);
  char* const out = Take(expected.size());
  collectives_.AllToAll(in, sizes[rank_], out, out_sizes, type_name(), kNever);
  RequireBytes(in, sent);
  RequireBytes(out, expected);
}

void CaseRunner::RunSendRecv() {
  const int receiver = (operation_.root + 1) % size_;
  if (size_ == 1) return;
  const Buffer sent = InputOf(operation_.root, 1);
  if (rank_ == operation_.root) {
    char* const data = Take(sent);
    collectives_.Send(data, bytes_, type_name(), receiver, kNever);
    RequireBytes(data, sent);
  } else if (rank_ == receiver) {
    char* const data = Take(bytes_);
    collectives_.Recv(data, bytes_, type_name(), operation_.root, kNever);
    RequireBytes(data, sent);
  }
}

OperationCase RandomCase(Random* random, int ranks, uint64_t max_count) {
  const auto reductions = AllReductions();
  const auto& both = reductions[(*random)() % reductions.size()];
  OperationCase operation{};
  operation.kind =
      static_cast<OperationCase::Kind>((*random)() % OperationCase::kKinds);
  operation.type = both.type;
  operation.reduction = both.reduction;
  // Small and large counts are equally frequent.
  operation.count = (*random)() % (max_count >> (*random)() % 12);
  operation.root = static_cast<int>((*random)() % ranks);
  operation.in_place = (*random)() % 2 == 0;
  operation.shift = (*random)() % 2 == 0 ? 0 : (*random)() % 16;
  operation.seed = (*random)();
  return operation;
}

void RunOnThreads(int size,
                  const std::function<void(GroupMemory*, Collectives*)>& body) {
  const auto group = GroupInOneProcess(size);
  std::vector<std::thread> threads;
  for (const auto& rank : group) {
    threads.emplace_back([&] {
      Collectives collectives(rank.get(), {}, kNever);
      body(rank.get(), &collectives);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void SendReceiveAndReduceOnThreads(GroupMemory* group,
                                   uint64_t bytes,
                                   int times) {
  constexpr char kType[] = "uint8";
  Collectives collectives(group, {}, kNever);
  const int peer = 1 - group->rank();
  std::thread sender([&] {
    for (int i = 0; i < times; ++i) {
      const Buffer data(bytes, static_cast<char>(group->rank() + i));
      collectives.Send(data.data(), data.size(), kType, peer, kNever);
    }
  });
  std::thread receiver([&] {
    for (int i = 0; i < times; ++i) {
      Buffer data(bytes);
      collectives.Recv(data.data(), data.size(), kType, peer, kNever);
      EXPECT_EQ(data, Buffer(bytes, static_cast<char>(peer + i)));
    }
  });
  for (int i = 0; i < times; ++i) {
    std::vector<int32_t> data(bytes / sizeof(int32_t), group->rank() + i);
    collectives.AllReduce(data.data(),
                          data.data(),
                          data.size(),
                          ElementType::kInt32,
                          Reduction::kSum,
                          kNever);
    EXPECT_EQ(data, std::vector<int32_t>(data.size(), 2 * i + 1));
  }
  sender.join();
  receiver.join();
}

}  // namespace shared_memory_test
