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

#include "paddle/fluid/distributed/collective/shared_tensor_resolver.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cstring>

#include "paddle/phi/core/memory/allocation/shared_memory/file_descriptor.h"
#include "paddle/phi/core/memory/allocation/shared_memory/shared_ledger.h"
#include "paddle/phi/core/memory/allocation/shared_memory/shared_segment_file.h"

namespace paddle {
namespace distributed {
namespace {

using memory::allocation::FileDescriptor;
using memory::allocation::Mapping;
using memory::allocation::OpenFile;
using memory::allocation::OpenMemfdOf;
using memory::allocation::SegmentId;
using memory::allocation::SegmentName;
using memory::allocation::SegmentPath;
using memory::allocation::SharedLedger;
using memory::allocation::SharedLocation;
using memory::allocation::SharingStrategy;
using phi::distributed::SharedMemoryHandle;

static_assert(sizeof(SharedLocation) <= sizeof(SharedMemoryHandle),
              "a handle has room for a location");

// The number of segments that stay mapped. A mapping keeps a segment's memory
// allocated even after all of its processes have exited.
constexpr size_t kMaxSegments = 64;

struct OpenSegment {
  FileDescriptor file;
  uint64_t reserve;
};

std::optional<OpenSegment> Open(const SegmentId& id) {
  FileDescriptor file =
      id.strategy == SharingStrategy::kFileSystem
          ? OpenFile(SegmentPath(SegmentName(id.tree, id.segment)),
                     O_RDWR | O_NOFOLLOW | O_NONBLOCK)
          : OpenMemfdOf(id.pid, id.fd);
  if (!file || !memory::allocation::WhyUnfit(file.get(), id.strategy).empty()) {
    return std::nullopt;
  }
  const SharedLedger::Start start =
      memory::allocation::ReadLedgerStart(file.get());
  const bool is_segment =
      start.Valid() && start.tree == id.tree && start.segment == id.segment;
  if (!is_segment) return std::nullopt;
  return OpenSegment{std::move(file), start.reserve};
}

SharedLocation LocationIn(const SharedMemoryHandle& handle) {
  SharedLocation location = {};
  std::memcpy(&location, handle.data(), sizeof(location));
  return location;
}

}  // namespace

struct SharedTensorResolver::Segment {
  Segment(int fd, uint64_t size, uint64_t reserve)
      : size(size),
        max_blocks(SharedLedger::MaxBlocks(reserve)),
        mapping(fd, size),
        ledger(mapping.base(), reserve) {}

  bool Has(const SharedLocation& location, uint64_t bytes) const {
    return location.block < max_blocks && location.offset <= size &&
           bytes <= size - location.offset;
  }
  // A process that detaches the segment removes the ledger.
  bool HasLedger() const {
    SharedLedger::Start start;
    std::memcpy(&start, mapping.base(), sizeof(start));
    return start.Valid();
  }

  const uint64_t size;
  const uint64_t max_blocks;
  Mapping mapping;
  const SharedLedger ledger;
};

std::optional<SharedMemoryHandle> SharedTensorResolver::Find(
    const void* address, uint64_t bytes) {
  if (bytes == 0) return std::nullopt;
  const std::optional<SharedLocation> location = locate_(address);
  if (!location) return std::nullopt;
  SharedMemoryHandle handle = {};
  std::memcpy(handle.data(), &*location, sizeof(*location));
  return handle;
}

std::shared_ptr<const void> SharedTensorResolver::Map(
    const SharedMemoryHandle& handle, uint64_t bytes) {
  const SharedLocation location = LocationIn(handle);
  const std::shared_ptr<Segment> found = SegmentOf(location, bytes);
  if (!found) return nullptr;
  return {found,
          static_cast<const char*>(found->mapping.base()) + location.offset};
}

std::optional<bool> SharedTensorResolver::IsKept(
    const SharedMemoryHandle& handle, uint64_t bytes) {
  const SharedLocation location = LocationIn(handle);
  const std::shared_ptr<Segment> found = SegmentOf(location, bytes);
  if (!found) return std::nullopt;
  // Sequentially consistent, as everywhere in the ledger. A process that frees
  // the block changes the generation before the memory is used again. So if the
  // caller has read data of a later tensor, the generation differs here.
  const bool is_same =
      found->ledger.generation(location.block) == location.generation;
  if (!found->HasLedger()) return std::nullopt;
  return is_same;
}

std::shared_ptr<SharedTensorResolver::Segment> SharedTensorResolver::SegmentOf(
    const SharedLocation& location, uint64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto known = segments_.find(location.id.segment);
  std::shared_ptr<Segment> found =
      known == segments_.end() ? nullptr : known->second;
  // Map again if the segment has grown.
  if (found && found->Has(location, bytes)) return found;
  const std::optional<OpenSegment> open = Open(location.id);
  struct stat status = {};
  if (!open || fstat(open->file.get(), &status) != 0) return nullptr;
  // The ledger precedes all blocks.
  const uint64_t size = status.st_size;
  if (size < SharedLedger::LedgerBytes(open->reserve)) return nullptr;
  found = std::make_shared<Segment>(open->file.get(), size, open->reserve);
  // Do not keep a failure: a later attempt may succeed.
  if (!found->mapping || !found->Has(location, bytes)) return nullptr;
  // Operations in flight keep the segments that they use.
  if (segments_.size() >= kMaxSegments) segments_.clear();
  segments_[location.id.segment] = found;
  return found;
}

}  // namespace distributed
}  // namespace paddle
