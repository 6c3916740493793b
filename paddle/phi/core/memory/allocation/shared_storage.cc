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

#include "paddle/phi/core/memory/allocation/shared_storage.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "paddle/common/ddim.h"
#include "paddle/phi/core/enforce.h"
#include "paddle/phi/core/memory/allocation/allocator.h"
#include "paddle/phi/core/memory/allocation/allocator_facade.h"
#include "paddle/phi/core/memory/allocation/mmap_allocator.h"

namespace paddle {
namespace memory {
namespace allocation {

namespace {

constexpr uint32_t kHandleMagic = 0x31544450;  // "PDT1"

// The fixed part of a handle. After it: dims, strides, and the levels of the
// LoD, each a length with its values, all as int64.
struct HandleHeader {
  uint32_t magic;
  uint8_t dtype;
  uint8_t layout;
  uint8_t rank;
  uint8_t lod_levels;
  uint8_t is_scalar;
  uint8_t initialized;  // else there are dims and dtype and no memory
  uint8_t strategy;
  uint8_t padding;
  uint32_t block;
  uint64_t family;
  uint64_t segment;
  uint32_t pid;
  uint32_t fd;
  uint64_t generation;
  uint32_t ticket_index;
  uint32_t ticket_nonce;
  uint64_t offset;
};
static_assert(sizeof(HandleHeader) == 64, "no hole for stray bytes");

// A storage that was moved into a block: on top of the allocators that the
// allocation goes back to, so that it is the first to hear that nobody uses the
// allocation any more.
class MovedStorage : public Allocator {
 public:
  MovedStorage(phi::Allocation* allocation, const SharedBlock& block)
      : allocation_(allocation), old_(allocation->ptr()), block_(block) {}

  // Makes `storage` own itself until its allocation is freed.
  static void TakeOver(std::unique_ptr<MovedStorage> storage) {
    MovedStorage* moved = storage.get();
    moved->self_ = std::move(storage);
    // Registers this allocator with the allocation; what comes back is the
    // allocation that others own.
    moved->Allocate(moved->allocation_->size()).release();
    moved->allocation_->set_ptr(moved->block_.data);
  }

 protected:
  phi::Allocation* AllocateImpl(size_t size UNUSED) override {
    return allocation_;
  }

  void FreeImpl(phi::Allocation* allocation) override {
    std::unique_ptr<MovedStorage> self = std::move(self_);
    allocation->set_ptr(old_);
    SharedHeap::Instance().Release(block_);
    Allocator::AllocationDeleter(allocation);
  }

 private:
  phi::Allocation* allocation_;
  void* old_;
  SharedBlock block_;
  std::unique_ptr<MovedStorage> self_;
};

// A storage that came from another process.
class ReceivedStorage : public Allocation {
 public:
  explicit ReceivedStorage(const SharedBlock& block)
      : Allocation(block.data, block.capacity, phi::CPUPlace()),
        block_(block) {}
  ~ReceivedStorage() override { SharedHeap::Instance().Release(block_); }

 private:
  SharedBlock block_;
};

using Deleter = phi::Allocator::DeleterType;
using DeleterFunction = void (*)(phi::Allocation*);

DeleterFunction FunctionOf(const Deleter* deleter) {
  const DeleterFunction* function =
      deleter ? deleter->target<DeleterFunction>() : nullptr;
  return function ? *function : nullptr;
}

// Whether the allocation is freed through the allocators that are registered
// with it; others would not tell MovedStorage.
bool IsMovable(const std::shared_ptr<phi::Allocation>& holder) {
  // Asked of an allocation, since the function can have an address in each
  // shared object.
  static const DeleterFunction through_allocators = [] {
    AllocationPtr sample =
        AllocatorFacade::Instance().Alloc(phi::CPUPlace(), sizeof(int64_t));
    return FunctionOf(&sample.get_deleter());
  }();
  return dynamic_cast<Allocation*>(holder.get()) != nullptr &&
         FunctionOf(std::get_deleter<Deleter>(holder)) == through_allocators;
}

// Takes the pages that lie wholly in a range from it; it reads as anything.
void DiscardPages(void* start, size_t size) {
  size_t page = sysconf(_SC_PAGESIZE);
  uintptr_t first = (reinterpret_cast<uintptr_t>(start) + page - 1) / page;
  uintptr_t end = (reinterpret_cast<uintptr_t>(start) + size) / page;
  if (first < end) {
    // Locked memory stays; so be it.
    madvise(reinterpret_cast<void*>(first * page),
            (end - first) * page,
            MADV_DONTNEED);
  }
}

// Moves the storage that was seen at `old`, unless another thread has done so.
void MoveToSharedMemory(const std::shared_ptr<phi::Allocation>& holder,
                        void* old,
                        SharingStrategy strategy,
                        bool long_lived) {
  PADDLE_ENFORCE_EQ(
      IsMovable(holder),
      true,
      common::errors::InvalidArgument(
          "The memory of this tensor cannot be moved to where other processes "
          "see it: it was taken from elsewhere (by from_dlpack, for example) "
          "or "
          "is a file of a DataLoader's worker. Send tensor.clone() instead."));
  SharedHeap& heap = SharedHeap::Instance();
  SharedBlock block = heap.Allocate(strategy, holder->size());
  std::memcpy(block.data, old, holder->size());
  auto moved = std::make_unique<MovedStorage>(holder.get(), block);
  bool taken_over = heap.Bind(block, holder, [&] {
    if (holder->ptr() != old) return false;
    MovedStorage::TakeOver(std::move(moved));
    return true;
  });
  if (!taken_over) {
    heap.Release(block);
  } else if (long_lived && holder.use_count() == 2) {
    // Only the tensor and its copy that is being sent have the storage, so
    // nobody has the old address. For a tensor that is dropped soon it would
    // only cost time.
    DiscardPages(old, holder->size());
  }
}

bool IsKnown(phi::DataType dtype) {
  switch (dtype) {
    case phi::DataType::BOOL:
    case phi::DataType::UINT8:
    case phi::DataType::INT8:
    case phi::DataType::UINT16:
    case phi::DataType::INT16:
    case phi::DataType::UINT32:
    case phi::DataType::INT32:
    case phi::DataType::UINT64:
    case phi::DataType::INT64:
    case phi::DataType::FLOAT16:
    case phi::DataType::BFLOAT16:
    case phi::DataType::FLOAT32:
    case phi::DataType::FLOAT64:
    case phi::DataType::COMPLEX64:
    case phi::DataType::COMPLEX128:
    case phi::DataType::FLOAT8_E4M3FN:
    case phi::DataType::FLOAT8_E5M2:
      return true;
    default:
      return false;
  }
}

bool IsStrided(phi::DataLayout layout) {
  switch (layout) {
    case phi::DataLayout::ANY:
    case phi::DataLayout::NHWC:
    case phi::DataLayout::NCHW:
    case phi::DataLayout::NCDHW:
    case phi::DataLayout::NDHWC:
      return true;
    default:
      return false;
  }
}

// The bytes that a tensor reaches before and after its data pointer.
struct Span {
  uint64_t before;
  uint64_t after;

  bool FitsIn(uint64_t size, uint64_t offset) const {
    return offset <= size && before <= offset && after <= size - offset;
  }
};

// None if a dim is negative, or the elements or the span are more than can be.
std::optional<Span> SpanOf(const phi::DenseTensorMeta& meta) {
  uint64_t element = phi::SizeOf(meta.dtype);
  // A broadcast tensor has more elements than its memory.
  int64_t elements_size = element;
  bool is_empty = false;
  for (int i = 0; i < meta.dims.size(); ++i) {
    is_empty |= meta.dims[i] == 0;
    if (meta.dims[i] < 0 ||
        (meta.dims[i] > 0 &&
         __builtin_mul_overflow(elements_size, meta.dims[i], &elements_size))) {
      return std::nullopt;
    }
  }
  if (is_empty) return Span{0, 0};
  Span span{0, element};
  for (int i = 0; i < meta.dims.size(); ++i) {
    int64_t stride = meta.strides[i];
    uint64_t step = stride < 0 ? uint64_t{0} - static_cast<uint64_t>(stride)
                               : static_cast<uint64_t>(stride);
    uint64_t* side = stride < 0 ? &span.before : &span.after;
    uint64_t bytes = 0;
    if (__builtin_mul_overflow(
            static_cast<uint64_t>(meta.dims[i] - 1), step, &bytes) ||
        __builtin_mul_overflow(bytes, element, &bytes) ||
        __builtin_add_overflow(*side, bytes, side)) {
      return std::nullopt;
    }
  }
  return span;
}

void Append(std::string* handle, const void* data, size_t size) {
  handle->append(static_cast<const char*>(data), size);
}

void AppendNumbers(std::string* handle, const std::vector<int64_t>& numbers) {
  Append(handle, numbers.data(), numbers.size() * sizeof(int64_t));
}

// Reads a handle from its start on and never past its end.
class HandleReader {
 public:
  explicit HandleReader(const std::string& handle) : handle_(handle) {}

  void Read(void* to, size_t size) {
    PADDLE_ENFORCE_EQ(size <= handle_.size() - at_,
                      true,
                      Broken("it is cut short", handle_.size()));
    std::memcpy(to, handle_.data() + at_, size);
    at_ += size;
  }

  std::vector<int64_t> ReadNumbers(size_t count) {
    PADDLE_ENFORCE_EQ(count <= (handle_.size() - at_) / sizeof(int64_t),
                      true,
                      Broken("it is cut short", handle_.size()));
    std::vector<int64_t> numbers(count);
    Read(numbers.data(), count * sizeof(int64_t));
    return numbers;
  }

  bool AtEnd() const { return at_ == handle_.size(); }

  static common::ErrorSummary Broken(const char* why, int64_t value) {
    return common::errors::InvalidArgument(
        "The handle of a tensor from another process cannot be right: %s (%d). "
        "It was damaged, or made by another version of Paddle.",
        why,
        value);
  }

 private:
  const std::string& handle_;
  size_t at_{0};
};

std::shared_ptr<phi::Allocation> StorageOf(const HandleHeader& header) {
  SharedMessage message{{static_cast<SharingStrategy>(header.strategy),
                         header.family,
                         header.segment,
                         header.pid,
                         header.fd},
                        header.block,
                        header.generation,
                        {header.ticket_index, header.ticket_nonce},
                        header.offset};
  SharedHeap& heap = SharedHeap::Instance();
  SharedHeap::Received received = heap.Receive(message);
  if (received.storage) {
    return std::static_pointer_cast<phi::Allocation>(received.storage);
  }
  std::shared_ptr<phi::Allocation> storage =
      std::make_shared<ReceivedStorage>(received.block);
  heap.Bind(received.block, storage, [] { return true; });
  return storage;
}

}  // namespace

void RaiseAsPaddleError(const SharedMemoryError& error) {
  switch (error.kind()) {
    case SharedMemoryError::Kind::kExhausted:
      PADDLE_THROW(common::errors::ResourceExhausted("%s", error.what()));
    case SharedMemoryError::Kind::kGone:
      PADDLE_THROW(common::errors::NotFound("%s", error.what()));
    case SharedMemoryError::Kind::kInvalid:
      PADDLE_THROW(common::errors::InvalidArgument("%s", error.what()));
    default:
      PADDLE_THROW(common::errors::External("%s", error.what()));
  }
}

std::string ShareDenseTensor(phi::DenseTensor tensor,
                             SharingStrategy strategy,
                             bool long_lived) {
  const phi::DenseTensorMeta& meta = tensor.meta();
  const std::shared_ptr<phi::Allocation>& holder = tensor.Holder();
  HandleHeader header = {};
  header.magic = kHandleMagic;
  header.dtype = static_cast<uint8_t>(meta.dtype);
  header.layout = static_cast<uint8_t>(meta.layout);
  header.rank = meta.dims.size();
  header.lod_levels = meta.legacy_lod.size();
  header.is_scalar = meta.is_scalar;
  PADDLE_ENFORCE_EQ(
      IsStrided(meta.layout),
      true,
      common::errors::Unimplemented(
          "A tensor of layout %d cannot go to another process: what its memory "
          "means is known to this process alone. Send tensor.clone() instead.",
          static_cast<int>(meta.layout)));
  if (holder && tensor.numel() > 0) {
    PADDLE_ENFORCE_EQ(IsKnown(meta.dtype),
                      true,
                      common::errors::Unimplemented(
                          "A tensor of data type %d cannot go to another "
                          "process: its elements are not plain memory.",
                          static_cast<int>(meta.dtype)));
    PADDLE_ENFORCE_EQ(
        IsOnHost(holder->place()),
        true,
        common::errors::Unimplemented(
            "A tensor on %s cannot be put into shared memory of the host. Send "
            "tensor.cpu() instead.",
            holder->place()));
    std::optional<Span> span = SpanOf(meta);
    PADDLE_ENFORCE_EQ(
        span && span->FitsIn(holder->size(), meta.offset),
        true,
        common::errors::InvalidArgument(
            "A tensor of shape [%s], strides [%s] and offset %d reaches out of "
            "its memory of %d bytes.",
            meta.dims,
            meta.strides,
            meta.offset,
            holder->size()));
    header.initialized = 1;
    RaisingPaddleErrors([&] {
      SharedHeap& heap = SharedHeap::Instance();
      void* seen = holder->ptr();
      auto send_from = [&](void* storage) {
        return heap.Send(static_cast<const char*>(storage) + meta.offset);
      };
      std::optional<SharedMessage> message = send_from(seen);
      if (!message) {
        MoveToSharedMemory(holder, seen, strategy, long_lived);
        message = send_from(holder->ptr());
      }
      header.strategy = static_cast<uint8_t>(message->id.strategy);
      header.family = message->id.family;
      header.segment = message->id.segment;
      header.pid = message->id.pid;
      header.fd = message->id.fd;
      header.block = message->block;
      header.generation = message->generation;
      header.ticket_index = message->ticket.index;
      header.ticket_nonce = message->ticket.nonce;
      header.offset = message->offset;
    });
  } else {
    PADDLE_ENFORCE_EQ(
        tensor.numel(),
        0,
        common::errors::PreconditionNotMet(
            "A tensor of shape [%s] that was never given memory cannot go to "
            "another process. Initialize it first.",
            meta.dims));
  }
  std::string handle;
  Append(&handle, &header, sizeof(header));
  AppendNumbers(&handle, common::vectorize(meta.dims));
  AppendNumbers(&handle, common::vectorize(meta.strides));
  for (const auto& level : meta.legacy_lod) {
    AppendNumbers(&handle, {static_cast<int64_t>(level.size())});
    AppendNumbers(&handle, std::vector<int64_t>(level.begin(), level.end()));
  }
  return handle;
}

bool IsOnHost(const phi::Place& place) {
  return phi::is_cpu_place(place) || phi::is_cuda_pinned_place(place);
}

bool IsInOwnFile(const phi::DenseTensor& tensor) {
  return dynamic_cast<MemoryMapWriterAllocation*>(tensor.Holder().get()) !=
         nullptr;
}

phi::DenseTensor RebuildDenseTensor(const std::string& handle) {
  HandleReader reader(handle);
  HandleHeader header;
  reader.Read(&header, sizeof(header));
  PADDLE_ENFORCE_EQ(
      header.magic,
      kHandleMagic,
      HandleReader::Broken("it does not begin as one", header.magic));
  phi::DenseTensorMeta meta;
  meta.dtype = static_cast<phi::DataType>(header.dtype);
  meta.layout = static_cast<phi::DataLayout>(header.layout);
  meta.is_scalar = header.is_scalar != 0;
  PADDLE_ENFORCE_EQ(header.rank <= phi::DDim::kMaxRank,
                    true,
                    HandleReader::Broken("too many dims", header.rank));
  PADDLE_ENFORCE_EQ(IsStrided(meta.layout),
                    true,
                    HandleReader::Broken("unknown layout", header.layout));
  meta.dims = common::make_ddim(reader.ReadNumbers(header.rank));
  meta.strides = common::make_ddim(reader.ReadNumbers(header.rank));
  for (int i = 0; i < header.lod_levels; ++i) {
    std::vector<int64_t> level = reader.ReadNumbers(reader.ReadNumbers(1)[0]);
    meta.legacy_lod.emplace_back();
    meta.legacy_lod.back().assign(level.begin(), level.end());
  }
  PADDLE_ENFORCE_EQ(reader.AtEnd(),
                    true,
                    HandleReader::Broken("it is too long", handle.size()));
  if (meta.dtype == phi::DataType::UNDEFINED && !header.initialized) {
    return phi::DenseTensor();
  }
  PADDLE_ENFORCE_EQ(IsKnown(meta.dtype),
                    true,
                    HandleReader::Broken("unknown data type", header.dtype));
  std::optional<Span> span = SpanOf(meta);
  PADDLE_ENFORCE_EQ(
      span.has_value(),
      true,
      HandleReader::Broken("shape or strides are impossible", header.rank));
  if (!header.initialized) {
    PADDLE_ENFORCE_EQ(
        span->after,
        0,
        HandleReader::Broken("elements without memory", span->after));
    return phi::DenseTensor(
        AllocatorFacade::Instance().AllocShared(phi::CPUPlace(), 0), meta);
  }
  PADDLE_ENFORCE_EQ(
      header.strategy <= static_cast<uint8_t>(SharingStrategy::kFileDescriptor),
      true,
      HandleReader::Broken("unknown strategy", header.strategy));
  std::shared_ptr<phi::Allocation> storage =
      RaisingPaddleErrors([&] { return StorageOf(header); });
  PADDLE_ENFORCE_EQ(
      span->FitsIn(storage->size(), header.offset),
      true,
      HandleReader::Broken("the tensor reaches out of its block", span->after));
  meta.offset = header.offset;
  return phi::DenseTensor(storage, meta);
}

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
