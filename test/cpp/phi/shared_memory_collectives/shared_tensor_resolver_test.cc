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
#include <optional>

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

// The kernel may release the lock of a killed rank in its group later than the
// lock of its slot in the segment.
ISOLATED_TEST(SharedTensorResolverTest, ABlockThatIsUsedAgainIsNotKept) {
  Worker holder([](const Channel& channel) {
    const SharedBlock block =
        Heap().Receive(channel.Receive<SharedMessage>()).block;
    channel.Send(Heap().Locate(block.data).value());
    channel.Await();
  });
  const SharedBlock block =
      AllocateFilled(SharingStrategy::kFileSystem, kMiB, 1);
  holder.channel().Send(MessageOf(block));
  const auto resolver = ResolverOf(holder.channel().Receive<SharedLocation>());
  const SharedMemoryHandle handle = HandleFrom(resolver.get());
  Heap().Release(block);
  Heap().Collect({});
  EXPECT_EQ(resolver->IsKept(handle, kMiB), std::make_optional(true));
  holder.Kill();
  Heap().Collect({});
  const SharedBlock next =
      AllocateFilled(SharingStrategy::kFileSystem, kMiB, 2);
  EXPECT_EQ(next.data, block.data);
  EXPECT_EQ(resolver->IsKept(handle, kMiB), std::make_optional(false));
}

ISOLATED_TEST(SharedTensorResolverTest,
              WithoutItsLedgerASegmentDoesNotShowWhatIsKept) {
  const SharedBlock block =
      AllocateFilled(SharingStrategy::kFileSystem, kMiB, 1);
  const auto resolver = ResolverOf(Heap().Locate(block.data).value());
  const SharedMemoryHandle handle = HandleFrom(resolver.get());
  const auto mapped = resolver->Map(handle, kMiB);
  // A process that detaches the segment clears its first bytes.
  char* const ledger =
      static_cast<char*>(block.data) - Heap().Locate(block.data)->offset;
  uint64_t start = 0;
  std::memcpy(&start, ledger, sizeof(start));
  std::memset(ledger, 0, sizeof(start));
  EXPECT_EQ(resolver->IsKept(handle, kMiB), std::nullopt);
  std::memcpy(ledger, &start, sizeof(start));
  EXPECT_EQ(resolver->IsKept(handle, kMiB), std::make_optional(true));
}

}  // namespace
