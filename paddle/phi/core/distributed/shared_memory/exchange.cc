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

#include "paddle/phi/core/distributed/shared_memory/exchange.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>

#include "paddle/phi/core/distributed/shared_memory/group_layout.h"
#include "paddle/phi/core/distributed/shared_memory/group_memory.h"

namespace phi {
namespace distributed {

namespace {

using Where = BufferLocation::Where;

constexpr uint64_t kAlignment = 64;

// How many bytes are copied between two checks whether the group has failed:
// about a millisecond's worth.
constexpr uint64_t kCopyBytes = 4 << 20;

}  // namespace

Exchange::Exchange(Operation* operation,
                   const PeerMemory& memory,
                   std::vector<int> peers)
    : operation_(operation),
      memory_(memory),
      peers_(std::move(peers)),
      rank_(memory.group()->rank()) {}

void Exchange::Start(std::vector<Pass> passes, uint64_t inline_bytes_in_use) {
  passes_ = std::move(passes);
  inline_bytes_in_use_ = inline_bytes_in_use;
  for (const Pass& pass : passes_) locations_.push_back(Offer(pass));
  operation_->set_input(locations_[0]);
  if (locations_.size() > 1) operation_->set_output(locations_[1]);
  if (locations_[0].where == Where::kStaging &&
      passes_[0].largest_piece > WindowBytes(0)) {
    operation_->EnlargeStaging();
  }
  Stage(0);
  operation_->Publish(1);
  operation_->WaitForAll(1);
}

BufferLocation Exchange::Offer(const Pass& pass) {
  const auto& pieces = pass.offered.piece_bytes;
  const uint64_t bytes =
      std::accumulate(pieces.begin(), pieces.end(), uint64_t{0});
  if (bytes == 0) return {};
  if (inline_bytes_in_use_ + bytes <= operation_->inline_bytes()) {
    BufferLocation location{};
    location.where = Where::kInline;
    location.address = inline_bytes_in_use_;
    location.bytes = bytes;
    inline_bytes_in_use_ += bytes;
    return location;
  }
  if (pass.offered.pieces.empty()) {
    return memory_.Locate(pass.offered.data, bytes);
  }
  BufferLocation location{};
  location.where = Where::kStaging;
  location.bytes = bytes;
  return location;
}

const BufferLocation& Exchange::LocationOf(int rank, size_t pass) const {
  if (rank == rank_) return locations_[pass];
  return pass == 0 ? operation_->input_of(rank) : operation_->output_of(rank);
}

uint64_t Exchange::WindowBytes(size_t pass) const {
  const uint64_t staged = std::max(passes_[pass].pieces - 1, 1);
  return operation_->staging_bytes() / 2 / staged / kAlignment * kAlignment;
}

uint64_t Exchange::Rounds(size_t pass) const {
  bool staged = LocationOf(rank_, pass).where == Where::kStaging;
  for (int peer : peers_) {
    staged = staged || LocationOf(peer, pass).where == Where::kStaging;
  }
  if (!staged) return 1;
  const uint64_t window = WindowBytes(pass);
  return (passes_[pass].largest_piece + window - 1) / window;
}

void Exchange::RequirePhases() {
  // Finish may publish one more phase than there are rounds.
  constexpr uint64_t kMaxRounds = kEndPhase - 2;
  uint64_t rounds = 0;
  uint64_t most = 0;
  size_t longest = 0;
  for (size_t pass = 0; pass < passes_.size(); ++pass) {
    const uint64_t of_pass = Rounds(pass);
    rounds += of_pass;
    if (of_pass > most) {
      most = of_pass;
      longest = pass;
    }
  }
  if (rounds <= kMaxRounds) return;
  operation_->Refuse(
      "copies " + std::to_string(passes_[longest].largest_piece) +
      " bytes from a rank in windows of " +
      std::to_string(WindowBytes(longest)) + " bytes, which takes " +
      std::to_string(rounds) + " rounds, but an operation has at most " +
      std::to_string(kMaxRounds) + ". Split the tensor into at least " +
      std::to_string(rounds / kMaxRounds + 1) +
      " parts of equal size, and pass one after the other.");
}

void Exchange::Stage(uint64_t round_of_pass) {
  const OfferedBuffer& offered = passes_[pass_].offered;
  const BufferLocation& location = locations_[pass_];
  if (location.where == Where::kInline && round_of_pass == 0) {
    char* const to = operation_->inline_data(rank_) + location.address;
    uint64_t offset = 0;
    for (size_t i = 0; i < offered.piece_bytes.size(); ++i) {
      const uint64_t bytes = offered.piece_bytes[i];
      std::memcpy(to + offset, offered.PieceAt(i, offset), bytes);
      offset += bytes;
    }
  }
  if (location.where != Where::kStaging) return;
  const uint64_t window = WindowBytes(pass_);
  const uint64_t begin = round_of_pass * window;
  char* to = operation_->own_staging() +
             round_ % 2 * (operation_->staging_bytes() / 2);
  uint64_t offset = 0;
  for (size_t i = 0; i < offered.piece_bytes.size(); ++i) {
    const uint64_t bytes = offered.piece_bytes[i];
    const bool is_own =
        passes_[pass_].pieces > 1 && static_cast<int>(i) == rank_;
    if (begin < bytes && !is_own) {
      std::memcpy(to,
                  offered.PieceAt(i, offset) + begin,
                  std::min(window, bytes - begin));
    }
    offset += bytes;
    if (!is_own) to += window;
  }
}

void Exchange::Run(const PieceOffset& offset, const Reader& reader) {
  if (pass_ == 0) RequirePhases();
  offset_ = &offset;
  buffers_.clear();
  buffers_.resize(memory_.group()->size());
  for (int peer : peers_) {
    const BufferLocation& location = LocationOf(peer);
    if (location.where != Where::kNone && location.where != Where::kStaging) {
      buffers_[peer].emplace(memory_, operation_, peer, location);
    }
  }
  const uint64_t rounds = Rounds(pass_);
  const uint64_t largest = passes_[pass_].largest_piece;
  const uint64_t step = rounds > 1 ? WindowBytes(pass_) : largest;
  for (uint64_t i = 0; i < rounds; ++i) {
    if (round_ > 0) {
      Stage(i);
      operation_->Publish(round_ + 1);
      operation_->WaitForAll(round_ + 1);
    }
    window_begin_ = i * step;
    reader(window_begin_, std::min(largest, window_begin_ + step));
    ++round_;
  }
  ++pass_;
}

const char* Exchange::Read(int rank,
                           uint64_t begin,
                           uint64_t bytes,
                           char* scratch) {
  if (LocationOf(rank).where == Where::kStaging) {
    // A member does not stage its own piece.
    const uint64_t piece =
        passes_[pass_].pieces > 1 ? rank_ - (rank_ > rank ? 1 : 0) : 0;
    return operation_->staging_of(rank) +
           round_ % 2 * (operation_->staging_bytes() / 2) +
           piece * WindowBytes(pass_) + (begin - window_begin_);
  }
  operation_->CheckRanks();
  return buffers_[rank]->Read((*offset_)(rank) + begin, bytes, scratch);
}

void Exchange::Copy(int rank, uint64_t begin, uint64_t bytes, char* to) {
  for (uint64_t done = 0; done < bytes; done += kCopyBytes) {
    const uint64_t length = std::min(kCopyBytes, bytes - done);
    const char* from = Read(rank, begin + done, length, to + done);
    if (from != to + done) std::memcpy(to + done, from, length);
  }
}

void Exchange::ConfirmReads() {
  bool is_confirmed = false;
  for (size_t pass = 0; pass < passes_.size(); ++pass) {
    for (int peer : peers_) {
      const BufferLocation& location = LocationOf(peer, pass);
      if (location.where != Where::kShared) continue;
      if (!is_confirmed) operation_->ConfirmReads();
      is_confirmed = true;
      if (!memory_.IsKept(peer, location)) {
        operation_->ThrowUnreadable(
            peer, "it was freed. Keep the tensor until the operation ends.");
      }
    }
  }
}

void Exchange::Finish() {
  // Also if this rank did not read such a buffer itself: it may have read a
  // result that another rank has computed from it.
  ConfirmReads();
  const bool is_read_in_place = std::any_of(
      locations_.begin(), locations_.end(), [](const auto& location) {
        return location.where == Where::kShared;
      });
  if (is_read_in_place) {
    operation_->Publish(round_ + 1);
    operation_->WaitForAll(round_ + 1);
  }
  operation_->End();
}

}  // namespace distributed
}  // namespace phi
