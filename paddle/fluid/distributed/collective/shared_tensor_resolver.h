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
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "paddle/phi/core/distributed/shared_memory/peer_memory.h"
#include "paddle/phi/core/memory/allocation/shared_memory/shared_heap.h"

namespace paddle {
namespace distributed {

// Finds tensors whose storage is in the shared memory of
// paddle.multiprocessing, and maps tensors of other ranks.
//
// It maps whole segments itself, because the heap of this process would have to
// register each tensor. The block stays allocated during an operation, because
// the sending rank holds it until the operation completes.
//
// Thread-safe.
class SharedTensorResolver : public phi::distributed::SharedMemoryResolver {
 public:
  explicit SharedTensorResolver(memory::allocation::SharedLocator locate)
      : locate_(std::move(locate)) {}

  std::optional<phi::distributed::SharedMemoryHandle> Find(
      const void* address, uint64_t bytes) override;
  std::shared_ptr<const void> Map(
      const phi::distributed::SharedMemoryHandle& handle,
      uint64_t bytes) override;
  std::optional<bool> IsKept(const phi::distributed::SharedMemoryHandle& handle,
                             uint64_t bytes) override;

 private:
  struct Segment;

  // Returns the segment of a location, which has `bytes` bytes there. Returns
  // null if this process cannot map it.
  std::shared_ptr<Segment> SegmentOf(
      const memory::allocation::SharedLocation& location, uint64_t bytes);

  const memory::allocation::SharedLocator locate_;
  std::mutex mutex_;
  // By segment number. Guarded by mutex_.
  std::map<uint64_t, std::shared_ptr<Segment>> segments_;
};

}  // namespace distributed
}  // namespace paddle
