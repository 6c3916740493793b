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

// Hears that nobody uses an allocation any more, before the allocators do that
// the allocation goes back to.
//
// An allocation knows the allocators that it goes back to as a stack; this is
// one more on top of it. So nothing changes for those who have the allocation.
class StorageWatcher : public Allocator {
 public:
  // Whether an allocation goes back by such a stack.
  static bool CanWatch(const std::shared_ptr<phi::Allocation>& allocation);
  // Begins to watch; the watcher owns itself until it has heard.
  static void Start(std::unique_ptr<StorageWatcher> watcher);

 protected:
  explicit StorageWatcher(phi::Allocation* allocation)
      : allocation_(allocation) {}

  phi::Allocation* allocation() const { return allocation_; }
  // Has to hand the allocation on to AllocationDeleter, now or later.
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
