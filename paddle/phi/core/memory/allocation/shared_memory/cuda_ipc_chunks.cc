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

#include "paddle/phi/core/memory/allocation/shared_memory/cuda_ipc_chunks.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "paddle/phi/core/memory/allocation/shared_memory/random_bits.h"
#include "paddle/phi/core/memory/allocation/shared_memory/shared_memory_error.h"
#include "paddle/phi/core/memory/allocation/shared_memory/shared_segment_file.h"

namespace paddle {
namespace memory {
namespace allocation {

namespace {

using Kind = SharedMemoryError::Kind;

// The C library of older systems does not know these calls.
constexpr int kPidfdOpen = 434;
constexpr int kPidfdGetfd = 438;

// The content of the handle of chunks.
struct ChunksHandle {
  CudaIPCChunkOwner owner;
  uint64_t first;  // the address of the first chunk in the owner
  uint64_t count;
  char unused[32];
};
static_assert(sizeof(ChunksHandle) == sizeof(CudaIPCHandle));

constexpr char kOwnerIsElsewhere[] =
    " Its owner has ended, or is in another PID namespace; share one with it "
    "(docker run --pid), or send tensor.cpu() instead.";

// Takes descriptors of another process. Unlike a memfd, a chunk cannot be
// opened again through /proc/<pid>/fd: it belongs to the open file.
class DescriptorsOf {
 public:
  explicit DescriptorsOf(const CudaIPCChunkOwner& owner)
      : owner_(owner),
        process_(static_cast<int>(syscall(kPidfdOpen, owner.pid, 0))) {
    if (!process_) Throw();
  }

  // Throws if the process does not own the descriptor.
  FileDescriptor Take(int64_t fd) const {
    FileDescriptor taken = TakeAny(fd);
    // Check only now: after execve, the process number stays the same, but the
    // descriptor numbers may refer to other files.
    EnforceOwner();
    return taken;
  }

 private:
  FileDescriptor TakeAny(int64_t fd) const {
    FileDescriptor taken(
        static_cast<int>(syscall(kPidfdGetfd, process_.get(), fd, 0)));
    if (!taken) Throw();
    return taken;
  }

  void EnforceOwner() const {
    const FileDescriptor file = TakeAny(owner_.identity_fd);
    uint64_t identity = 0;
    if (pread(file.get(), &identity, sizeof(identity), 0) != sizeof(identity) ||
        identity != owner_.identity) {
      throw SharedMemoryError(
          Kind::kGone,
          "Cannot map the GPU memory of a received tensor: process " +
              std::to_string(owner_.pid) + " does not own it." +
              kOwnerIsElsewhere);
    }
  }

  [[noreturn]] void Throw() const {
    const std::string doing =
        "Taking a descriptor of GPU memory from process " +
        std::to_string(owner_.pid);
    if (errno == EPERM) {
      throw SharedMemoryError(
          Kind::kUnavailable,
          doing +
              " is not permitted: it needs permission to trace that process. "
              "Set kernel.yama.ptrace_scope to 0, or start the container with "
              "--cap-add=SYS_PTRACE. If it has the permission, that process "
              "does not own the memory." +
              kOwnerIsElsewhere);
    }
    if (errno == ENOSYS) {
      throw SharedMemoryError(Kind::kUnavailable,
                              doing +
                                  " needs Linux 5.6. Update it, or send "
                                  "tensor.cpu() instead.");
    }
    if (errno == ESRCH || errno == EBADF) {
      throw SharedMemoryError(Kind::kGone,
                              doing + " failed: " + std::strerror(errno) +
                                  ". The process that owns a received tensor "
                                  "has to live until it is received." +
                                  kOwnerIsElsewhere);
    }
    ThrowErrno(doing);
  }

  const CudaIPCChunkOwner owner_;
  const FileDescriptor process_;
};

}  // namespace

CudaIPCChunkOwner CudaIPCChunkExports::Owner() {
  if (!identity_file_.IsIntact()) {
    identity_ = RandomBits();
    identity_file_ = MakeMemfd("paddle-gpu-memory-owner");
    if (!identity_file_ ||
        pwrite(identity_file_.get(), &identity_, sizeof(identity_), 0) !=
            sizeof(identity_)) {
      ThrowErrno("Making a file that identifies this process");
    }
  }
  return {static_cast<uint32_t>(getpid()), identity_file_.get(), identity_};
}

std::optional<std::shared_ptr<FileDescriptor>>
CudaIPCChunkExports::DescriptorOf(int device, char* chunk) {
  std::weak_ptr<FileDescriptor>& known = descriptors_[{device, chunk}];
  std::shared_ptr<FileDescriptor> open = known.lock();
  if (open && open->IsIntact()) return open;
  std::optional<int> fd = CudaIPCDriver::Instance().ExportChunk(device, chunk);
  if (!fd) return std::nullopt;
  auto descriptor = std::make_shared<FileDescriptor>(*fd);
  // Otherwise a program that this process starts would keep the memory.
  fcntl(*fd, F_SETFD, FD_CLOEXEC);
  known = descriptor;
  return descriptor;
}

std::optional<CudaIPCChunkExports::Exported> CudaIPCChunkExports::Export(
    int device, char* address, uint64_t size) {
  CudaIPCDriver& driver = CudaIPCDriver::Instance();
  std::lock_guard<std::mutex> guard(mutex_);
  Exported exported;
  char* first = nullptr;
  char* end = nullptr;
  while (end == nullptr || end < address + size) {
    auto chunk = driver.AllocationAt(device, first ? end : address);
    if (!chunk || (first && chunk->base != end)) return std::nullopt;
    auto descriptor = DescriptorOf(device, chunk->base);
    if (!descriptor) return std::nullopt;
    if (first == nullptr) first = chunk->base;
    end = chunk->base + chunk->size;
    exported.chunks.push_back({chunk->size, (*descriptor)->get()});
    exported.descriptors.push_back(std::move(*descriptor));
  }
  const ChunksHandle handle = {
      Owner(), reinterpret_cast<uint64_t>(first), exported.chunks.size(), {}};
  std::memcpy(&exported.range.handle, &handle, sizeof(handle));
  exported.range.offset = address - first;
  exported.range.size = end - first;
  for (auto known = descriptors_.begin(); known != descriptors_.end();) {
    known = known->second.expired() ? descriptors_.erase(known) : ++known;
  }
  return exported;
}

void CudaIPCChunkExports::BeforeFork() { mutex_.lock(); }

void CudaIPCChunkExports::ParentAfterFork() { mutex_.unlock(); }

void CudaIPCChunkExports::ChildAfterFork() {
  for (const auto& [chunk, known] : descriptors_) {
    if (auto descriptor = known.lock()) descriptor->Close();
  }
  descriptors_.clear();
  identity_file_.Close();
  mutex_.unlock();
}

char* MapChunks(int device,
                const CudaIPCHandle& handle,
                const std::vector<CudaIPCDriver::Chunk>& chunks) {
  ChunksHandle content;
  std::memcpy(&content, &handle, sizeof(content));
  const DescriptorsOf owner(content.owner);
  return CudaIPCDriver::Instance().MapChunks(
      device, chunks, [&](int64_t fd) { return owner.Take(fd); });
}

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
