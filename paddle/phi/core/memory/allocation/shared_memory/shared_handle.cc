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

#include "paddle/phi/core/memory/allocation/shared_memory/shared_handle.h"

#include <cstring>
#include <optional>
#include <vector>

#include "paddle/common/ddim.h"
#include "paddle/phi/core/enforce.h"

namespace paddle {
namespace memory {
namespace allocation {

namespace {

constexpr uint32_t kHandleMagic = 0x31544450;       // "PDT1"
constexpr uint32_t kEventHandleMagic = 0x31454450;  // "PDE1"

// Indices of SharedTensorHandle::memory.
enum Memory : uint8_t { kNone, kNoneOnDevice, kHost, kDevice, kKinds };

// The fixed part of a handle. Dims, strides and the LoD levels follow, each
// level as a length and its values, all as int64. After that, an empty GPU
// tensor has the UUID of its device, and GPU memory has its ready event and the
// offset in it.
struct HandleHeader {
  uint32_t magic;
  uint8_t dtype;
  uint8_t layout;
  uint8_t rank;
  uint8_t lod_levels;
  uint8_t is_scalar;
  uint8_t memory;
  uint8_t strategy;
  uint8_t padding;
  uint32_t block;
  uint64_t tree;
  uint64_t segment;
  uint32_t pid;
  uint32_t fd;
  uint64_t generation;
  uint32_t ticket_index;
  uint32_t ticket_nonce;
  uint64_t offset;
};
static_assert(sizeof(HandleHeader) == 64, "no hole for stray bytes");

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

// The extent of a tensor in bytes, before and after its data pointer.
struct Span {
  uint64_t before;
  uint64_t after;

  bool FitsIn(uint64_t size, uint64_t offset) const {
    return offset <= size && before <= offset && after <= size - offset;
  }
};

// Returns none if a dim is negative or a number of bytes overflows.
std::optional<Span> SpanOf(const phi::DenseTensorMeta& meta) {
  uint64_t element = phi::SizeOf(meta.dtype);
  // A broadcast tensor has more elements than its memory has room for.
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

// Reads a handle from start to end, and never past the end.
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
        "Cannot read the handle of a received tensor: %s (%d). It was damaged, "
        "or created by another version of Paddle; send the tensor again.",
        why,
        value);
  }

 private:
  const std::string& handle_;
  size_t at_{0};
};

void WriteMessage(const SharedMessage& message, HandleHeader* header) {
  header->strategy = static_cast<uint8_t>(message.id.strategy);
  header->tree = message.id.tree;
  header->segment = message.id.segment;
  header->pid = message.id.pid;
  header->fd = message.id.fd;
  header->block = message.block;
  header->generation = message.generation;
  header->ticket_index = message.ticket.index;
  header->ticket_nonce = message.ticket.nonce;
  header->offset = message.offset;
}

SharedMessage MessageOf(const HandleHeader& header) {
  PADDLE_ENFORCE_EQ(
      header.strategy <= static_cast<uint8_t>(SharingStrategy::kFileDescriptor),
      true,
      HandleReader::Broken("unknown strategy", header.strategy));
  return {{static_cast<SharingStrategy>(header.strategy),
           header.tree,
           header.segment,
           header.pid,
           header.fd},
          header.block,
          header.generation,
          {header.ticket_index, header.ticket_nonce},
          header.offset};
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
    case SharedMemoryError::Kind::kUnavailable:
      PADDLE_THROW(common::errors::Unavailable("%s", error.what()));
    default:
      PADDLE_THROW(common::errors::External("%s", error.what()));
  }
}

std::string SharedTensorHandle::Encode() const {
  HandleHeader header = {};
  header.magic = kHandleMagic;
  header.dtype = static_cast<uint8_t>(meta.dtype);
  header.layout = static_cast<uint8_t>(meta.layout);
  header.rank = meta.dims.size();
  header.lod_levels = meta.legacy_lod.size();
  header.is_scalar = meta.is_scalar;
  header.memory = memory.index();
  const auto* uuid = std::get_if<CudaDeviceUuid>(&memory);
  const auto* host = std::get_if<SharedMessage>(&memory);
  const auto* device = std::get_if<CudaIPCMessage>(&memory);
  if (host) WriteMessage(*host, &header);
  if (device) WriteMessage(device->record, &header);
  std::string handle;
  Append(&handle, &header, sizeof(header));
  AppendNumbers(&handle, common::vectorize(meta.dims));
  AppendNumbers(&handle, common::vectorize(meta.strides));
  for (const auto& level : meta.legacy_lod) {
    AppendNumbers(&handle, {static_cast<int64_t>(level.size())});
    AppendNumbers(&handle, std::vector<int64_t>(level.begin(), level.end()));
  }
  if (uuid) Append(&handle, uuid, sizeof(*uuid));
  if (device) {
    Append(&handle, &device->ready, sizeof(device->ready));
    Append(&handle, &device->offset, sizeof(device->offset));
  }
  return handle;
}

SharedTensorHandle SharedTensorHandle::Decode(const std::string& handle) {
  HandleReader reader(handle);
  HandleHeader header;
  reader.Read(&header, sizeof(header));
  PADDLE_ENFORCE_EQ(header.magic,
                    kHandleMagic,
                    HandleReader::Broken("wrong magic number", header.magic));
  SharedTensorHandle decoded;
  phi::DenseTensorMeta& meta = decoded.meta;
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
  PADDLE_ENFORCE_EQ(header.memory < kKinds,
                    true,
                    HandleReader::Broken("unknown memory", header.memory));
  if (header.memory == kDevice) {
    CudaIPCMessage message = {MessageOf(header), {}, 0};
    reader.Read(&message.ready, sizeof(message.ready));
    reader.Read(&message.offset, sizeof(message.offset));
    meta.offset = message.offset;
    decoded.memory = message;
  } else if (header.memory == kHost) {
    meta.offset = header.offset;
    decoded.memory = MessageOf(header);
  } else if (header.memory == kNoneOnDevice) {
    CudaDeviceUuid uuid;
    reader.Read(&uuid, sizeof(uuid));
    decoded.memory = uuid;
  }
  PADDLE_ENFORCE_EQ(reader.AtEnd(),
                    true,
                    HandleReader::Broken("it is too long", handle.size()));
  if (header.memory == kNone && meta.dtype == phi::DataType::UNDEFINED) {
    return decoded;
  }
  PADDLE_ENFORCE_EQ(IsKnown(meta.dtype),
                    true,
                    HandleReader::Broken("unknown data type", header.dtype));
  std::optional<Span> span = SpanOf(meta);
  PADDLE_ENFORCE_EQ(
      span.has_value(),
      true,
      HandleReader::Broken("shape or strides are impossible", header.rank));
  PADDLE_ENFORCE_EQ(
      header.memory >= kHost || span->after == 0,
      true,
      HandleReader::Broken("elements without memory", span->after));
  return decoded;
}

std::string EncodeEvent(const SharedMessage& message) {
  HandleHeader header = {};
  header.magic = kEventHandleMagic;
  WriteMessage(message, &header);
  std::string handle;
  Append(&handle, &header, sizeof(header));
  return handle;
}

SharedMessage DecodeEvent(const std::string& handle) {
  HandleHeader header = {};
  bool has_size = handle.size() == sizeof(header);
  if (has_size) std::memcpy(&header, handle.data(), sizeof(header));
  PADDLE_ENFORCE_EQ(
      has_size && header.magic == kEventHandleMagic,
      true,
      common::errors::InvalidArgument(
          "Cannot read the handle of an event: these %d bytes are not a result "
          "of Event.ipc_handle(). Pass its complete result, from a process "
          "with the same version of Paddle.",
          handle.size()));
  return MessageOf(header);
}

void EnforceHasHandle(const phi::DenseTensor& tensor) {
  const phi::DenseTensorMeta& meta = tensor.meta();
  PADDLE_ENFORCE_EQ(
      IsStrided(meta.layout),
      true,
      common::errors::Unimplemented(
          "Cannot send a tensor of layout %d: only this process can interpret "
          "its memory. Send tensor.clone() instead.",
          static_cast<int>(meta.layout)));
  if (tensor.numel() == 0) return;
  PADDLE_ENFORCE_NOT_NULL(
      tensor.Holder(),
      common::errors::PreconditionNotMet(
          "Cannot send a tensor of shape [%s] that has no memory yet. "
          "Initialize it first.",
          meta.dims));
  PADDLE_ENFORCE_EQ(IsKnown(meta.dtype),
                    true,
                    common::errors::Unimplemented(
                        "Cannot send a tensor of data type %d: its elements "
                        "are not plain memory. Convert it to another type.",
                        static_cast<int>(meta.dtype)));
  std::optional<Span> span = SpanOf(meta);
  PADDLE_ENFORCE_EQ(
      span && span->FitsIn(tensor.Holder()->size(), meta.offset),
      true,
      common::errors::InvalidArgument(
          "Cannot send a tensor of shape [%s], strides [%s] and offset %d: it "
          "extends beyond its memory of %d bytes. Send tensor.clone() instead.",
          meta.dims,
          meta.strides,
          meta.offset,
          tensor.Holder()->size()));
}

void EnforceHasSize(const phi::DenseTensorMeta& meta) {
  PADDLE_ENFORCE_EQ(
      IsKnown(meta.dtype) && SpanOf(meta).has_value(),
      true,
      common::errors::InvalidArgument(
          "The shape and the data type of a tensor must give a size in bytes, "
          "but received shape [%s] and data type %s. Pass sizes that are not "
          "negative, and a numeric type.",
          meta.dims,
          phi::DataTypeToString(meta.dtype)));
}

phi::DenseTensorMeta MetaInStorage(phi::DenseTensorMeta meta,
                                   uint64_t start,
                                   uint64_t size) {
  PADDLE_ENFORCE_EQ(
      IsKnown(meta.dtype),
      true,
      HandleReader::Broken("unknown data type", static_cast<int>(meta.dtype)));
  std::optional<Span> span = SpanOf(meta);
  uint64_t offset = 0;
  PADDLE_ENFORCE_EQ(
      span && !__builtin_add_overflow(start, meta.offset, &offset) &&
          span->FitsIn(size, offset),
      true,
      HandleReader::Broken("the tensor extends beyond its memory", size));
  meta.offset = offset;
  return meta;
}

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
