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

#include "paddle/fluid/pybind/place_errors.h"

#include <functional>
#include <initializer_list>
#include <string>

#include "gtest/gtest.h"
#include "paddle/phi/core/enforce.h"

namespace {

using paddle::pybind::CheckHasGpu;
using paddle::pybind::CheckHasIpu;
using paddle::pybind::CheckHasPluginDevice;
using paddle::pybind::CheckHasXpu;

// Returns the error of a check, up to the names of the devices.
std::string ErrorOf(const std::function<void()>& check) {
  try {
    check();
  } catch (const common::enforce::EnforceNotMet& error) {
    const std::string message = error.what();
    const auto end = message.find(" The devices of this process are cpu");
    EXPECT_NE(end, std::string::npos) << message;
    const auto begin = message.find("(InvalidArgument) ");
    EXPECT_NE(begin, std::string::npos) << message;
    return message.substr(begin, end - begin);
  }
  return "no error";
}

TEST(PlaceErrorsTest, NegativeIndex) {
  for (const auto& check : std::initializer_list<std::function<void()>>{
           [] { CheckHasPluginDevice("nonsense", -1); },
           [] { CheckHasGpu(-1); },
           [] { CheckHasXpu(-1); }}) {
    EXPECT_EQ(ErrorOf(check),
              "(InvalidArgument) A device index must be 0 or more, but "
              "received -1.");
  }
}

TEST(PlaceErrorsTest, TypeOfNoPlugin) {
  for (const std::string type : {"nonsense", "cpu", "gpu"}) {
    EXPECT_EQ(
        ErrorOf([&] { CheckHasPluginDevice(type, 1); }),
        "(InvalidArgument) The device must be a plugin's, but received '" +
            type + ":1'.");
  }
}

#if !defined(PADDLE_WITH_CUDA) && !defined(PADDLE_WITH_HIP)
TEST(PlaceErrorsTest, GpuWithoutCuda) {
  EXPECT_EQ(ErrorOf([] { CheckHasGpu(1); }),
            "(InvalidArgument) The device 'gpu:1' cannot be used, since this "
            "PaddlePaddle is not compiled with CUDA.");
}
#endif

#ifndef PADDLE_WITH_XPU
TEST(PlaceErrorsTest, XpuWithoutItsToolkit) {
  EXPECT_EQ(ErrorOf([] { CheckHasXpu(1); }),
            "(InvalidArgument) The device 'xpu:1' cannot be used, since this "
            "PaddlePaddle is not compiled with XPU.");
}
#endif

#ifndef PADDLE_WITH_IPU
TEST(PlaceErrorsTest, IpuWithoutItsToolkit) {
  EXPECT_EQ(ErrorOf(CheckHasIpu),
            "(InvalidArgument) The device 'ipu:0' cannot be used, since this "
            "PaddlePaddle is not compiled with IPU.");
}
#endif

}  // namespace
