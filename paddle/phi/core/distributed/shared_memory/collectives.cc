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

#include "paddle/phi/core/distributed/shared_memory/collectives.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "paddle/phi/core/distributed/shared_memory/collective_error.h"
#include "paddle/phi/core/distributed/shared_memory/exchange.h"
#include "paddle/phi/core/distributed/shared_memory/group_memory.h"
#include "paddle/phi/core/distributed/shared_memory/operation.h"
#include "paddle/phi/core/distributed/shared_memory/reduction.h"

namespace phi {
namespace distributed {

namespace {

// How many bytes a reducing rank reads from all others at a time. They stay in
// the cache until they are reduced.
constexpr uint64_t kScratchBytes = 512 << 10;
constexpr uint64_t kMinBlockBytes = 16 << 10;

// If the buffers of all ranks are larger than this, which is more than most
// caches have, an all_reduce does one block after the other: what a rank has
// reduced is then still in the cache when the others copy it.
constexpr uint64_t kMostCachedBytes = 64 << 20;
constexpr uint64_t kAllReduceBlockBytes = 4 << 20;

// Keeps two ranks from writing results to the same cache line.
constexpr uint64_t kPartAlignment = 64;

void CopyUnlessSame(char* to, const char* from, uint64_t bytes) {
  if (to != from && bytes > 0) std::memcpy(to, from, bytes);
}

// Returns the offsets of consecutive parts.
std::vector<uint64_t> Offsets(const std::vector<uint64_t>& bytes) {
  std::vector<uint64_t> offsets;
  uint64_t sum = 0;
  for (const uint64_t part : bytes) {
    offsets.push_back(sum);
    sum += part;
  }
  return offsets;
}

// Returns the sizes of the parts of `bytes` that the ranks reduce.
std::vector<uint64_t> Parts(uint64_t bytes, int ranks) {
  const uint64_t even = (bytes + ranks - 1) / ranks;
  const uint64_t part =
      (even + kPartAlignment - 1) / kPartAlignment * kPartAlignment;
  std::vector<uint64_t> parts;
  for (int rank = 0; rank < ranks; ++rank) {
    parts.push_back(std::min(part, bytes));
    bytes -= parts.back();
  }
  return parts;
}

const char* Bytes(const void* data) { return static_cast<const char*>(data); }
char* Bytes(void* data) { return static_cast<char*>(data); }

// Returns the beginnings of consecutive buffers, all null if `data` is.
std::vector<char*> ConsecutiveBuffers(void* data, uint64_t bytes, int number) {
  std::vector<char*> buffers(number);
  if (data == nullptr) return buffers;
  for (int i = 0; i < number; ++i) buffers[i] = Bytes(data) + i * bytes;
  return buffers;
}

[[noreturn]] void ThrowInvalid(const std::string& what) {
  throw CollectiveError(CollectiveError::Kind::kInvalid, -1, what);
}

}  // namespace

Collectives::Collectives(GroupMemory* group,
                         std::shared_ptr<SharedMemoryResolver> resolver,
                         Milliseconds timeout)
    : group_(group), memory_(group, std::move(resolver)) {
  // Each rank starts with a different peer, so that not all ranks read from the
  // same one concurrently.
  for (int i = 1; i < size(); ++i) others_.push_back((rank() + i) % size());
  Meet("start", timeout);
}

int Collectives::rank() const { return group_->rank(); }

int Collectives::size() const { return group_->size(); }

void Collectives::RequireRank(int rank, const char* role) const {
  if (rank >= 0 && rank < size()) return;
  ThrowInvalid(std::string("The ") + role + " is rank " + std::to_string(rank) +
               ", but the group has " + std::to_string(size()) +
               " ranks. Pass a rank of the group; ranks start at 0.");
}

void Collectives::RequireReducible(ElementType type, Reduction reduction) {
  if (CanReduce(type, reduction)) return;
  ThrowInvalid(std::string("Cannot compute the ") + NameOf(reduction) + " of " +
               NameOf(type) +
               " elements. Convert the tensor to a real floating-point type, "
               "or choose another reduction.");
}

void Collectives::ReducePieces(Exchange* exchange,
                               const char* own,
                               char* out,
                               uint64_t begin,
                               uint64_t end,
                               const Elements& elements) {
  const uint64_t block = std::max(
      kMinBlockBytes, kScratchBytes / size() / kMinBlockBytes * kMinBlockBytes);
  scratch_.resize(block * size());
  std::vector<const char*> inputs(size());
  for (uint64_t at = begin; at < end; at += block) {
    const uint64_t bytes = std::min(block, end - at);
    for (int other : others_) {
      inputs[other] =
          exchange->Read(other, at, bytes, scratch_.data() + block * other);
    }
    inputs[rank()] = own + at;
    ReduceElements(inputs,
                   out + at,
                   bytes / SizeOf(elements.type),
                   elements.type,
                   elements.reduction);
  }
}

void Collectives::AllReduce(const void* in,
                            void* out,
                            uint64_t count,
                            ElementType type,
                            Reduction reduction,
                            Milliseconds timeout) {
  RequireReducible(type, reduction);
  const uint64_t bytes = count * SizeOf(type);
  const OperationInfo info =
      OperationInfo::Of("all_reduce", bytes, NameOf(type), NameOf(reduction));
  const Elements elements{type, reduction};
  const uint64_t block_bytes =
      bytes > kMostCachedBytes / size() ? kAllReduceBlockBytes : bytes;
  const auto start = Operation::Clock::now();
  uint64_t begin = 0;
  do {  // Also without elements: the ranks meet.
    Operation operation(group_, info, timeout, start);
    const uint64_t block = std::min(block_bytes, bytes - begin);
    const char* from = Bytes(in) + begin;
    char* to = Bytes(out) + begin;
    if (block <= operation.inline_bytes()) {
      AllReduceWhole(&operation, from, to, block, elements);
    } else {
      AllReduceByParts(&operation, from, to, block, elements);
    }
    begin += block;
  } while (begin < bytes);
}

void Collectives::AllReduceWhole(Operation* operation,
                                 const char* in,
                                 char* out,
                                 uint64_t bytes,
                                 const Elements& elements) {
  Exchange exchange(operation, memory_, others_);
  exchange.Start({{{in, {bytes}}, 1, bytes}});
  exchange.Run([](int) { return 0; },
               [&](uint64_t begin, uint64_t end) {
                 ReducePieces(&exchange, in, out, begin, end, elements);
               });
  exchange.Finish();
}

void Collectives::AllReduceByParts(Operation* operation,
                                   const char* in,
                                   char* out,
                                   uint64_t bytes,
                                   const Elements& elements) {
  const std::vector<uint64_t> parts = Parts(bytes, size());
  const std::vector<uint64_t> offsets = Offsets(parts);
  const uint64_t own_offset = offsets[rank()];
  const uint64_t own_bytes = parts[rank()];
  Exchange exchange(operation, memory_, others_);
  exchange.Start({{{in, parts}, size(), parts[0]},
                  {{out + own_offset, {own_bytes}}, 1, parts[0]}});
  exchange.Run([&](int) { return own_offset; },
               [&](uint64_t begin, uint64_t end) {
                 ReducePieces(&exchange,
                              in + own_offset,
                              out + own_offset,
                              begin,
                              std::min(end, own_bytes),
                              elements);
               });
  exchange.Run(
      [](int) { return 0; },
      [&](uint64_t begin, uint64_t end) {
        for (int other : others_) {
          const uint64_t stop = std::min(end, parts[other]);
          if (begin >= stop) continue;
          exchange.Copy(
              other, begin, stop - begin, out + offsets[other] + begin);
        }
      });
  exchange.Finish();
}

void Collectives::Reduce(const void* in,
                         void* out,
                         uint64_t count,
                         ElementType type,
                         Reduction reduction,
                         int root,
                         Milliseconds timeout) {
  RequireReducible(type, reduction);
  RequireRank(root, "root");
  const uint64_t bytes = count * SizeOf(type);
  Operation operation(
      group_,
      OperationInfo::Of("reduce", bytes, NameOf(type), NameOf(reduction), root),
      timeout);
  const bool is_root = rank() == root;
  OfferedBuffer offered;
  if (!is_root) offered = {Bytes(in), {bytes}};
  Exchange exchange(&operation, memory_, others_);
  exchange.Start({{offered, 1, bytes}});
  exchange.Run(
      [](int) { return 0; },
      [&](uint64_t begin, uint64_t end) {
        if (!is_root) return;
        ReducePieces(
            &exchange, Bytes(in), Bytes(out), begin, end, {type, reduction});
      });
  exchange.Finish();
}

void Collectives::ReduceScatter(const void* in,
                                void* out,
                                uint64_t count_per_rank,
                                ElementType type,
                                Reduction reduction,
                                Milliseconds timeout) {
  RequireReducible(type, reduction);
  const uint64_t bytes = count_per_rank * SizeOf(type);
  Operation operation(
      group_,
      OperationInfo::Of(
          "reduce_scatter", bytes, NameOf(type), NameOf(reduction)),
      timeout);
  const uint64_t own_offset = rank() * bytes;
  Exchange exchange(&operation, memory_, others_);
  exchange.Start(
      {{{Bytes(in), std::vector<uint64_t>(size(), bytes)}, size(), bytes}});
  exchange.Run([&](int) { return own_offset; },
               [&](uint64_t begin, uint64_t end) {
                 ReducePieces(&exchange,
                              Bytes(in) + own_offset,
                              Bytes(out),
                              begin,
                              end,
                              {type, reduction});
               });
  exchange.Finish();
}

void Collectives::Broadcast(void* data,
                            uint64_t bytes,
                            const std::string& type,
                            int root,
                            Milliseconds timeout) {
  RequireRank(root, "root");
  Operation operation(
      group_, OperationInfo::Of("broadcast", bytes, type, "", root), timeout);
  OfferedBuffer offered;
  if (rank() == root) offered = {Bytes(data), {bytes}};
  Exchange exchange(&operation, memory_, others_);
  exchange.Start({{offered, 1, bytes}});
  exchange.Run([](int) { return 0; },
               [&](uint64_t begin, uint64_t end) {
                 if (rank() == root) return;
                 exchange.Copy(root, begin, end - begin, Bytes(data) + begin);
               });
  exchange.Finish();
}

void Collectives::CopyPieces(Exchange* exchange,
                             const std::vector<char*>& out,
                             uint64_t begin,
                             uint64_t end) {
  for (int other : others_) {
    exchange->Copy(other, begin, end - begin, out[other] + begin);
  }
}

void Collectives::AllGather(const void* in,
                            void* out,
                            uint64_t bytes_per_rank,
                            const std::string& type,
                            Milliseconds timeout) {
  AllGather(in,
            ConsecutiveBuffers(out, bytes_per_rank, size()),
            bytes_per_rank,
            type,
            timeout);
}

void Collectives::AllGather(const void* in,
                            const std::vector<char*>& out,
                            uint64_t bytes_per_rank,
                            const std::string& type,
                            Milliseconds timeout) {
  Operation operation(
      group_, OperationInfo::Of("all_gather", bytes_per_rank, type), timeout);
  Exchange exchange(&operation, memory_, others_);
  exchange.Start({{{Bytes(in), {bytes_per_rank}}, 1, bytes_per_rank}});
  CopyUnlessSame(out[rank()], Bytes(in), bytes_per_rank);
  exchange.Run([](int) { return 0; },
               [&](uint64_t begin, uint64_t end) {
                 CopyPieces(&exchange, out, begin, end);
               });
  exchange.Finish();
}

void Collectives::Gather(const void* in,
                         void* out,
                         uint64_t bytes_per_rank,
                         const std::string& type,
                         int root,
                         Milliseconds timeout) {
  Gather(in,
         ConsecutiveBuffers(out, bytes_per_rank, size()),
         bytes_per_rank,
         type,
         root,
         timeout);
}

void Collectives::Gather(const void* in,
                         const std::vector<char*>& out,
                         uint64_t bytes_per_rank,
                         const std::string& type,
                         int root,
                         Milliseconds timeout) {
  RequireRank(root, "root");
  Operation operation(
      group_,
      OperationInfo::Of("gather", bytes_per_rank, type, "", root),
      timeout);
  const bool is_root = rank() == root;
  OfferedBuffer offered;
  if (!is_root) offered = {Bytes(in), {bytes_per_rank}};
  Exchange exchange(&operation, memory_, others_);
  exchange.Start({{offered, 1, bytes_per_rank}});
  if (is_root) CopyUnlessSame(out[rank()], Bytes(in), bytes_per_rank);
  exchange.Run([](int) { return 0; },
               [&](uint64_t begin, uint64_t end) {
                 if (is_root) CopyPieces(&exchange, out, begin, end);
               });
  exchange.Finish();
}

void Collectives::Scatter(const void* in,
                          void* out,
                          uint64_t bytes_per_rank,
                          const std::string& type,
                          int root,
                          Milliseconds timeout) {
  OfferedBuffer offered;
  offered.data = Bytes(in);
  ScatterPieces(offered, Bytes(out), bytes_per_rank, type, root, timeout);
}

void Collectives::Scatter(const std::vector<const char*>& in,
                          void* out,
                          uint64_t bytes_per_rank,
                          const std::string& type,
                          int root,
                          Milliseconds timeout) {
  OfferedBuffer offered;
  offered.pieces = in;
  ScatterPieces(offered, Bytes(out), bytes_per_rank, type, root, timeout);
}

void Collectives::ScatterPieces(const OfferedBuffer& pieces,
                                char* out,
                                uint64_t bytes_per_rank,
                                const std::string& type,
                                int root,
                                Milliseconds timeout) {
  RequireRank(root, "root");
  Operation operation(
      group_,
      OperationInfo::Of("scatter", bytes_per_rank, type, "", root),
      timeout);
  const bool is_root = rank() == root;
  const uint64_t own_offset = rank() * bytes_per_rank;
  OfferedBuffer offered;
  if (is_root) {
    offered = pieces;
    offered.piece_bytes.assign(size(), bytes_per_rank);
  }
  Exchange exchange(&operation, memory_, others_);
  exchange.Start({{offered, size(), bytes_per_rank}});
  if (is_root) {
    CopyUnlessSame(out, offered.PieceAt(rank(), own_offset), bytes_per_rank);
  }
  exchange.Run([&](int) { return own_offset; },
               [&](uint64_t begin, uint64_t end) {
                 if (is_root) return;
                 exchange.Copy(root, begin, end - begin, out + begin);
               });
  exchange.Finish();
}

void Collectives::AllToAll(const void* in,
                           const std::vector<uint64_t>& in_bytes,
                           void* out,
                           const std::vector<uint64_t>& out_bytes,
                           const std::string& type,
                           Milliseconds timeout) {
  const size_t ranks = size();
  if (in_bytes.size() != ranks || out_bytes.size() != ranks) {
    ThrowInvalid("alltoall got " + std::to_string(in_bytes.size()) +
                 " sizes to send and " + std::to_string(out_bytes.size()) +
                 " to receive. Pass one size for each of the " +
                 std::to_string(ranks) + " ranks.");
  }
  Operation operation(group_, OperationInfo::Of("alltoall", 0, type), timeout);

  // Every rank gets all sizes, so all ranks agree on whether the sizes match.
  const uint64_t part_bytes = ranks * sizeof(uint64_t);
  char* own_table = operation.inline_data(rank());
  std::memcpy(own_table, in_bytes.data(), part_bytes);
  std::memcpy(own_table + part_bytes, out_bytes.data(), part_bytes);
  Exchange exchange(&operation, memory_, others_);
  exchange.Start({{{Bytes(in), in_bytes}, size(), 0}}, 2 * part_bytes);
  std::vector<std::vector<uint64_t>> sent(ranks, std::vector<uint64_t>(ranks));
  std::vector<std::vector<uint64_t>> expected = sent;
  for (int other = 0; other < size(); ++other) {
    const char* table = operation.inline_data(other);
    std::memcpy(sent[other].data(), table, part_bytes);
    std::memcpy(expected[other].data(), table + part_bytes, part_bytes);
  }
  std::vector<uint64_t> from_offsets(ranks);
  uint64_t largest = 0;
  for (int sender = 0; sender < size(); ++sender) {
    for (int receiver = 0; receiver < size(); ++receiver) {
      const uint64_t bytes = sent[sender][receiver];
      largest = std::max(largest, bytes);
      if (bytes == expected[receiver][sender]) continue;
      group_->Abort(sender,
                    "In alltoall, rank " + std::to_string(sender) + " sends " +
                        std::to_string(bytes) + " bytes to rank " +
                        std::to_string(receiver) + ", which expects " +
                        std::to_string(expected[receiver][sender]) +
                        " bytes. Pass sizes that agree.");
      group_->ThrowIfUnusable();
    }
    from_offsets[sender] = Offsets(sent[sender])[rank()];
  }
  exchange.set_largest_piece(largest);

  const std::vector<uint64_t> to_offsets = Offsets(out_bytes);
  CopyUnlessSame(Bytes(out) + to_offsets[rank()],
                 Bytes(in) + from_offsets[rank()],
                 out_bytes[rank()]);
  exchange.Run([&](int other) { return from_offsets[other]; },
               [&](uint64_t begin, uint64_t end) {
                 for (int other : others_) {
                   const uint64_t stop = std::min(end, out_bytes[other]);
                   if (begin >= stop) continue;
                   exchange.Copy(other,
                                 begin,
                                 stop - begin,
                                 Bytes(out) + to_offsets[other] + begin);
                 }
               });
  exchange.Finish();
}

void Collectives::Meet(const std::string& name, Milliseconds timeout) {
  Operation operation(group_, OperationInfo::Of(name, 0), timeout);
  operation.Publish(1);
  operation.WaitForAll(1);
  operation.End();
}

void Collectives::Send(const void* data,
                       uint64_t bytes,
                       const std::string& type,
                       int receiver,
                       Milliseconds timeout) {
  RequireRank(receiver, "receiver");
  if (receiver == rank()) {
    ThrowInvalid("Rank " + std::to_string(rank()) +
                 " cannot send to itself. Copy the tensor.");
  }
  Operation operation(group_,
                      OperationInfo::Of("send", bytes, type),
                      rank(),
                      receiver,
                      timeout);
  Exchange exchange(&operation, memory_, {receiver});
  exchange.Start({{{Bytes(data), {bytes}}, 1, bytes}});
  exchange.Run([](int) { return 0; }, [](uint64_t, uint64_t) {});
  exchange.Finish();
}

void Collectives::Recv(void* data,
                       uint64_t bytes,
                       const std::string& type,
                       int sender,
                       Milliseconds timeout) {
  RequireRank(sender, "sender");
  if (sender == rank()) {
    ThrowInvalid("Rank " + std::to_string(rank()) +
                 " cannot receive from itself. Copy the tensor.");
  }
  Operation operation(
      group_, OperationInfo::Of("recv", bytes, type), sender, rank(), timeout);
  Exchange exchange(&operation, memory_, {sender});
  exchange.Start({{{}, 1, bytes}});
  exchange.Run([](int) { return 0; },
               [&](uint64_t begin, uint64_t end) {
                 exchange.Copy(sender, begin, end - begin, Bytes(data) + begin);
               });
  exchange.Finish();
}

}  // namespace distributed
}  // namespace phi
