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

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>

#include "test/cpp/phi/shared_memory/intercepted_calls.h"
#include "test/cpp/phi/shared_memory/processes.h"

namespace {

using namespace shared_memory_test;  // NOLINT(build/namespaces)
using paddle::distributed::SharedTensorResolver;
using paddle::memory::allocation::SharedLocation;
using phi::distributed::SharedMemoryHandle;

class SharedTensorResolverTest
    : public shared_memory_test::SharedMemoryTestCase {};

// Returns a resolver that finds every address at this place.
std::unique_ptr<SharedTensorResolver> ResolverOf(
    const SharedLocation& location) {
  return std::make_unique<SharedTensorResolver>(
      [location](const void*) { return location; });
}

SharedMemoryHandle HandleFrom(SharedTensorResolver* resolver) {
  return resolver->Find(nullptr, kMiB).value();
}

ISOLATED_TEST(SharedTensorResolverTest, ATensorIsMappedAgainAfterAFailure) {
  const SharedBlock block =
      AllocateFilled(SharingStrategy::kFileSystem, kMiB, 1);
  const auto resolver = ResolverOf(Heap().Locate(block.data).value());
  const SharedMemoryHandle handle = HandleFrom(resolver.get());
  {
    const Interception failing(
        "mmap", 1, Calls::kAllFromThenOn, [] { return ENOMEM; });
    EXPECT_EQ(resolver->Map(handle, kMiB), nullptr);
    EXPECT_TRUE(failing.Happened());
  }
  const auto mapped = resolver->Map(handle, kMiB);
  REQUIRE_TRUE(mapped != nullptr);
  EXPECT_NE(mapped.get(), block.data);
  EXPECT_EQ(std::memcmp(mapped.get(), block.data, kMiB), 0);
}

ISOLATED_TEST(SharedTensorResolverTest, ATensorBeyondItsSegmentIsNotMapped) {
  const SharedBlock block =
      AllocateFilled(SharingStrategy::kFileSystem, kMiB, 1);
  // The sum of the second offset and the size is 0.
  for (const uint64_t offset : {uint64_t{1} << 40, uint64_t{0} - kMiB}) {
    SharedLocation location = Heap().Locate(block.data).value();
    location.offset = offset;
    const auto resolver = ResolverOf(location);
    EXPECT_EQ(resolver->Map(HandleFrom(resolver.get()), kMiB), nullptr);
  }
}

}  // namespace
