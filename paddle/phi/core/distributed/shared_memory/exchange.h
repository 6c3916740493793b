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
#include <optional>
#include <vector>

#include "paddle/phi/core/distributed/shared_memory/operation.h"
#include "paddle/phi/core/distributed/shared_memory/peer_memory.h"

namespace phi {
namespace distributed {

// Data of this rank that other ranks read, divided into pieces: one piece that
// all of them read, or one piece per rank. Without pieces, they read nothing.
struct OfferedBuffer {
  // Returns where a piece is, which begins after `offset` bytes of others.
  const char* PieceAt(size_t index, uint64_t offset) const {
    return pieces.empty() ? data + offset : pieces[index];
  }

  // The consecutive pieces.
  const char* data{nullptr};
  std::vector<uint64_t> piece_bytes;
  // The pieces, if they are not consecutive. Then they are never read in place.
  std::vector<const char*> pieces{};
};

// The transfer of data between the members of one operation, in one or two
// passes. In a pass, every member may offer a buffer, and reads one piece of
// every other member's buffer.
//
// A pass has one round in which everything can be read, unless a member stages
// its buffer: then the pass has as many rounds as the largest piece has
// windows. In a round, a member reads the same range of all pieces. Staging
// memory has two windows, so a member fills one while the others read the other
// one. A member that has published phase r has read the windows of round r - 1,
// so the others may overwrite these with their windows of round r + 1.
//
// Publishing phase r means that this member's window of round r is ready, and
// that it has read all windows of earlier rounds.
//
// An exchange that would need more phases than there are is an invalid argument
// that all members detect alike, before one of them has read anything. So it
// does not fail the group.
//
// All functions throw CollectiveError. Not thread-safe.
class Exchange {
 public:
  // Returns the offset of this member's piece in another member's buffer.
  using PieceOffset = std::function<uint64_t(int rank)>;
  // Consumes a range of the pieces through Read.
  using Reader = std::function<void(uint64_t begin, uint64_t end)>;

  // `pieces` is the number of pieces of every offered buffer: 1, or one per
  // rank. `largest_piece` is the largest size over all ranks. Both are equal on
  // all ranks.
  struct Pass {
    OfferedBuffer offered;
    int pieces;
    uint64_t largest_piece;
  };

  // `peers` are the other members. All arguments outlive the exchange.
  Exchange(Operation* operation,
           const PeerMemory& memory,
           std::vector<int> peers);

  // Offers the buffers and waits for all members. The caller may have filled
  // the first `inline_bytes_in_use` bytes of the inline data.
  void Start(std::vector<Pass> passes, uint64_t inline_bytes_in_use = 0);
  // Runs the next pass.
  void Run(const PieceOffset& offset, const Reader& reader);
  // For a largest piece that is known only after Start.
  void set_largest_piece(uint64_t bytes) { passes_[0].largest_piece = bytes; }
  // Returns bytes of the piece that this rank reads from `rank`, within the
  // range that Run passed to the reader. The bytes are in `scratch` if they
  // cannot be mapped.
  const char* Read(int rank, uint64_t begin, uint64_t bytes, char* scratch);
  void Copy(int rank, uint64_t begin, uint64_t bytes, char* to);
  // Throws unless everything that was read was unchanged meanwhile. Waits until
  // no member reads this rank's buffers, and ends the operation.
  void Finish();

 private:
  BufferLocation Offer(const Pass& pass);
  const BufferLocation& LocationOf(int rank, size_t pass) const;
  const BufferLocation& LocationOf(int rank) const {
    return LocationOf(rank, pass_);
  }
  void Stage(uint64_t round_of_pass);
  uint64_t WindowBytes(size_t pass) const;
  uint64_t Rounds(size_t pass) const;
  // Throws unless all data that was read in place was unchanged until now.
  void ConfirmReads();
  // Throws if the exchange needs more phases than an operation has.
  void RequirePhases();

  Operation* operation_;
  const PeerMemory& memory_;
  std::vector<int> peers_;
  int rank_;
  std::vector<Pass> passes_;
  std::vector<BufferLocation> locations_;  // of this rank, per pass
  uint64_t inline_bytes_in_use_{0};
  size_t pass_{0};
  uint64_t round_{0};         // of the operation
  uint64_t window_begin_{0};  // of the range that is read in this round
  const PieceOffset* offset_{nullptr};
  std::vector<std::optional<PeerBuffer>> buffers_;  // per rank, of this pass
};

}  // namespace distributed
}  // namespace phi
