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

#include "paddle/fluid/pybind/stream_errors.h"

#include <string>

#include "gtest/gtest.h"
#include "pybind11/embed.h"

namespace py = pybind11;

namespace {

using paddle::pybind::CheckGpuOfStream;
using paddle::pybind::CheckPluginDeviceOfStream;
using paddle::pybind::CheckXpuOfStream;
using paddle::pybind::OtherValue;
using paddle::pybind::ThrowErrorOfGpuStream;
using paddle::pybind::ThrowErrorOfPluginDeviceStream;
using paddle::pybind::ThrowErrorOfXpuStream;

// Stands in for the module of the device strings: the errors have the arguments
// of the checks. No device is wrong whose index is 7.
constexpr char kDeviceStrings[] = R"(
import sys
from types import ModuleType

def check_stream_device(kind, device=None):
    if device != 7:
        raise LookupError(f"stream of {kind!r} on {device!r}")

def check_plugin_stream_device(device=None, device_id=-1):
    if device_id != 7:
        raise LookupError(f"stream on {device!r} {device_id!r}")

module = ModuleType("paddle.base.device_strings")
module.check_stream_device = check_stream_device
module.check_plugin_stream_device = check_plugin_stream_device
sys.modules["paddle"] = ModuleType("paddle")
sys.modules["paddle.base"] = ModuleType("paddle.base")
sys.modules["paddle.base.device_strings"] = module
)";

struct Place {};

// Binds classes with the overloads of the classes of streams.
struct Stream {
  std::string made_from;
};
struct PluginStream : Stream {};

void Bind(py::module_ module) {
  py::class_<Place>(module, "Place").def(py::init<>());
  py::class_<Stream>(module, "Stream")
      .def_readonly("made_from", &Stream::made_from)
      .def(
          "__init__",
          [](Stream& self, Place* place, int) {
            new (&self) Stream{place ? "place" : "none"};
          },
          py::arg("device") = nullptr,
          py::arg("priority") = 2)
      .def(
          "__init__",
          [](Stream& self, int device, int) {
            new (&self) Stream{std::to_string(device)};
          },
          py::arg("device") = -1,
          py::arg("priority") = 2)
      .def(
          "__init__",
          [](Stream&, OtherValue device, int) {
            ThrowErrorOfGpuStream(device);
          },
          py::arg("device"),
          py::arg("priority") = 2);
  py::class_<PluginStream>(module, "PluginStream")
      .def_property_readonly(
          "made_from", [](const PluginStream& self) { return self.made_from; })
      .def(
          "__init__",
          [](PluginStream& self, const std::string& type, int index) {
            new (&self) PluginStream{{type + std::to_string(index)}};
          },
          py::arg("device"),
          py::arg("device_id") = -1)
      .def(
          "__init__",
          [](PluginStream&, OtherValue device, OtherValue index) {
            ThrowErrorOfPluginDeviceStream(device, index);
          },
          py::arg("device") = py::none(),
          py::arg("device_id") = -1);
}

class StreamErrorsTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    interpreter = new py::scoped_interpreter;
    py::exec(kDeviceStrings);
    Bind(py::module_::import("__main__"));
  }
  static void TearDownTestSuite() { delete interpreter; }

  // Returns what a stream was made from, or the error.
  static std::string Made(const std::string& call) {
    return Result(
        [&] { return py::eval(call + ".made_from").cast<std::string>(); });
  }

  // Returns the first line of the error of a check.
  template <typename Check>
  static std::string ErrorOf(Check check) {
    return Result([&] {
      check();
      return std::string("no error");
    });
  }

 private:
  template <typename Function>
  static std::string Result(Function function) {
    try {
      return function();
    } catch (const py::error_already_set& error) {
      const std::string message = error.what();
      return message.substr(0, message.find('\n'));
    }
  }

  static py::scoped_interpreter* interpreter;
};

py::scoped_interpreter* StreamErrorsTest::interpreter = nullptr;

TEST_F(StreamErrorsTest, OtherOverloadsTakeWhatTheyTookBefore) {
  EXPECT_EQ(Made("Stream()"), "-1");
  EXPECT_EQ(Made("Stream(None)"), "none");
  EXPECT_EQ(Made("Stream(device=None, priority=1)"), "none");
  EXPECT_EQ(Made("Stream(Place())"), "place");
  EXPECT_EQ(Made("Stream(3)"), "3");
  EXPECT_EQ(Made("Stream(True)"), "1");
  EXPECT_EQ(Made("Stream(type('I', (), {'__index__': lambda self: 4})())"),
            "4");
  EXPECT_EQ(Made("Stream(type('I', (), {'__int__': lambda self: 5})())"), "5");
  EXPECT_EQ(Made("PluginStream('npu')"), "npu-1");
  EXPECT_EQ(Made("PluginStream('npu', 2)"), "npu2");
  EXPECT_EQ(Made("PluginStream(b'npu')"), "npu-1");
}

TEST_F(StreamErrorsTest, OtherValues) {
  EXPECT_EQ(Made("Stream('gpu:0')"), "LookupError: stream of 'gpu' on 'gpu:0'");
  EXPECT_EQ(Made("Stream(1.5, priority=1)"),
            "LookupError: stream of 'gpu' on 1.5");
  EXPECT_EQ(Made("Stream(2 ** 40)"),
            "LookupError: stream of 'gpu' on 1099511627776");
  EXPECT_EQ(Made("PluginStream()"), "LookupError: stream on None -1");
  EXPECT_EQ(Made("PluginStream(9)"), "LookupError: stream on 9 -1");
  EXPECT_EQ(Made("PluginStream('npu', 'x')"),
            "LookupError: stream on 'npu' 'x'");
}

TEST_F(StreamErrorsTest, ErrorsForOtherReasonsStay) {
  for (const std::string call : {"Stream(0, nonsense=0)",
                                 "Stream('x', 'y')",
                                 "Stream(7.0)",
                                 "PluginStream(9, 7)",
                                 "PluginStream('npu', nonsense=1)"}) {
    const auto error = Made(call);
    EXPECT_NE(error.find("incompatible constructor arguments"),
              std::string::npos)
        << call << ": " << error;
  }
}

TEST_F(StreamErrorsTest, XpuOfOtherValue) {
  const py::str name("xpu:0");
  EXPECT_EQ(ErrorOf([&] { ThrowErrorOfXpuStream({name.ptr()}); }),
            "LookupError: stream of 'xpu' on 'xpu:0'");
}

#if !defined(PADDLE_WITH_CUDA) && !defined(PADDLE_WITH_HIP)
TEST_F(StreamErrorsTest, GpuWithoutCuda) {
  EXPECT_EQ(ErrorOf([] { CheckGpuOfStream(); }),
            "LookupError: stream of 'gpu' on -1");
  EXPECT_EQ(ErrorOf([] { CheckGpuOfStream(1); }),
            "LookupError: stream of 'gpu' on 1");
  EXPECT_EQ(ErrorOf([] { CheckGpuOfStream(7); }), "no error");
}
#endif

#ifndef PADDLE_WITH_XPU
TEST_F(StreamErrorsTest, XpuWithoutItsToolkit) {
  EXPECT_EQ(ErrorOf([] { CheckXpuOfStream(1); }),
            "LookupError: stream of 'xpu' on 1");
}
#endif

TEST_F(StreamErrorsTest, DeviceOfNoPlugin) {
  for (const int index : {-2, -1, 0}) {
    EXPECT_EQ(ErrorOf([&] { CheckPluginDeviceOfStream("nonsense", index); }),
              "LookupError: stream on 'nonsense' " + std::to_string(index));
  }
}

}  // namespace
