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

// The last of the nodes that share a scope. The thread sanitizer does not
// support the fence that orders it.

#include <memory>
#include <thread>
#include <utility>

#include "gtest/gtest.h"
#include "paddle/fluid/framework/new_executor/program_threads.h"

namespace paddle {
namespace framework {
namespace {

TEST(IsLastOwner, IsTrueOnceTheOthersAreDestroyed) {
  auto state = std::make_shared<bool>(false);
  auto copy = state;
  EXPECT_FALSE(IsLastOwner(state));
  std::thread([copy = std::move(copy)]() mutable {
    *copy = true;
    copy.reset();
  }).detach();
  while (!IsLastOwner(state)) std::this_thread::yield();
  EXPECT_TRUE(*state);
}

}  // namespace
}  // namespace framework
}  // namespace paddle
