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

#include "paddle/phi/core/memory/allocation/storage_watcher.h"

#include "paddle/phi/core/enforce.h"
#include "paddle/phi/core/memory/allocation/allocator_facade.h"

namespace paddle {
namespace memory {
namespace allocation {

namespace {

using Deleter = phi::Allocator::DeleterType;
using DeleterFunction = void (*)(phi::Allocation*);

DeleterFunction FunctionOf(const Deleter* deleter) {
  const DeleterFunction* function =
      deleter ? deleter->target<DeleterFunction>() : nullptr;
  return function ? *function : nullptr;
}

}  // namespace

bool StorageWatcher::CanWatch(
    const std::shared_ptr<phi::Allocation>& allocation) {
  // Take the address from an allocation: an inline function may have a
  // different address in each shared object.
  static const DeleterFunction through_allocators = [] {
    AllocationPtr sample =
        AllocatorFacade::Instance().Alloc(phi::CPUPlace(), sizeof(int64_t));
    return FunctionOf(&sample.get_deleter());
  }();
  return dynamic_cast<Allocation*>(allocation.get()) != nullptr &&
         FunctionOf(std::get_deleter<Deleter>(allocation)) ==
             through_allocators;
}

void StorageWatcher::EnforceFlagsAllowStart(const char* failed,
                                            const phi::Place& place) {
  PADDLE_ENFORCE_EQ(
      FLAGS_alloc_fill_value >= 0 || FLAGS_sync_after_alloc,
      false,
      common::errors::PreconditionNotMet(
          "%s on %s with FLAGS_alloc_fill_value=%d and "
          "FLAGS_sync_after_alloc=%d: the first flag would overwrite the "
          "tensor, and the second could wait forever. Set them to -1 and 0.",
          failed,
          place,
          FLAGS_alloc_fill_value,
          FLAGS_sync_after_alloc));
}

void StorageWatcher::Start(std::unique_ptr<StorageWatcher> watcher) {
  StorageWatcher* started = watcher.get();
  started->self_ = std::move(watcher);
  // Pushes this allocator on the stack of the allocation. Allocate returns that
  // same allocation, which others own already.
  started->Allocate(started->allocation_->size()).release();
}

phi::Allocation* StorageWatcher::AllocateImpl(size_t size UNUSED) {
  return allocation_;
}

void StorageWatcher::FreeImpl(phi::Allocation* allocation UNUSED) {
  std::unique_ptr<StorageWatcher> self = std::move(self_);
  self->OnFree();
}

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
