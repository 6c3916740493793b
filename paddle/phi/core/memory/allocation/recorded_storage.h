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

#include "paddle/phi/core/allocator.h"
#if defined(PADDLE_WITH_CUDA) || defined(PADDLE_WITH_HIP)
#include "paddle/phi/backends/gpu/gpu_types.h"
#elif defined(PADDLE_WITH_CUSTOM_DEVICE)
#include "paddle/phi/backends/stream.h"
#endif

namespace paddle {
namespace memory {
namespace allocation {

#if defined(PADDLE_WITH_CUDA) || defined(PADDLE_WITH_HIP)
using RawStream = phi::gpuStream_t;
#elif defined(PADDLE_WITH_CUSTOM_DEVICE)
using RawStream = phi::stream::stream_t;
#endif

#if defined(PADDLE_WITH_CUDA) || defined(PADDLE_WITH_HIP) || \
    defined(PADDLE_WITH_CUSTOM_DEVICE)
// Delays the reuse of a storage's memory until `stream` completes all work that
// was enqueued on it before the storage is freed.
//
// Paddle's own RecordStream covers only the work before the call, so a program
// would have to call it after the last use. This function calls it when the
// storage is freed; the allocator then waits for its events, see
// StreamSafeCUDAAllocator and StreamSafeCustomDeviceAllocator.
//
// Thread-safe. Requires: the stream is on the storage's device, and lives as
// long as `stream_owner`, which is dropped on an arbitrary thread after the
// storage is freed.
//
// Throws InvalidArgument for memory that Paddle did not allocate, and
// PreconditionNotMet if Paddle's allocators do not wait for events or, in a
// build for CUDA, if FLAGS_alloc_fill_value or FLAGS_sync_after_alloc is set,
// see StorageWatcher.
void RecordStream(const std::shared_ptr<phi::Allocation>& storage,
                  RawStream stream,
                  std::shared_ptr<void> stream_owner);
#endif

}  // namespace allocation
}  // namespace memory
}  // namespace paddle
