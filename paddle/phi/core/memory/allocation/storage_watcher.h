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

#include <memory>

#include "paddle/phi/core/memory/allocation/allocator.h"

namespace paddle {
namespace memory {
namespace allocation {

// Is notified when an allocation has no users any more, before the allocation
// is returned to its allocators.
//
// An allocation has a stack of allocators that it is freed through. A watcher
// is one more allocator on top of that stack, so the users of the allocation
// are not affected.
//
// Invariant: a watcher owns itself from Start until OnFree has run.
//
// Not thread-safe: Start must not run concurrently for one allocation. OnFree
// runs on the thread that drops the last reference.
class StorageWatcher : public Allocator {
 public:
  // Returns whether an allocation is freed through such a stack. Memory from
  // other libraries (DLPack, NumPy) is not.
  //
  // Thread-safe.
  static bool CanWatch(const std::shared_ptr<phi::Allocation>& allocation);
  // Throws PreconditionNotMet, with `failed` as the first words of its message,
  // if FLAGS_alloc_fill_value or FLAGS_sync_after_alloc is set. In a build for
  // CUDA, Start obeys these flags, because it calls Allocator::Allocate: it
  // would overwrite the tensor, or wait for its device.
  //
  // Thread-safe.
  static void EnforceFlagsAllowStart(const char* failed,
                                     const phi::Place& place);
  // Starts to watch.
  //
  // Registers through a side effect: Allocator::Allocate pushes the allocator
  // on the stack of the allocation that its AllocateImpl returns, and this
  // AllocateImpl returns the existing allocation. Paddle has no callback for a
  // storage that is about to be freed.
  //
  // Requires: CanWatch(allocation), and the caller holds the allocation.
  static void Start(std::unique_ptr<StorageWatcher> watcher);

 protected:
  explicit StorageWatcher(phi::Allocation* allocation)
      : allocation_(allocation) {}

  phi::Allocation* allocation() const { return allocation_; }
  // Must pass the allocation to AllocationDeleter, now or later.
  virtual void OnFree() = 0;

 private:
  phi::Allocation* AllocateImpl(size_t size) override;
  void FreeImpl(phi::Allocation* allocation) override;

  phi::Allocation* allocation_;
  std::unique_ptr<StorageWatcher> self_;
};

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
