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

// Tests of the plugin, called as Paddle calls it. Python cannot reach most
// refusals and waits, and a sanitizer needs a program that is entirely built
// with it.

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <future>
#include <iostream>
#include <mutex>
#include <numeric>
#include <random>
#include <set>
#include <streambuf>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "paddle/phi/backends/device_ext.h"
#include "test/custom_runtime/host_device/control.h"

namespace {

// Captures the plugin's output to std::cerr.
class PrintedErrors : public std::streambuf {
 public:
  PrintedErrors() : cerr_(std::cerr.rdbuf(this)) {}
  ~PrintedErrors() override { std::cerr.rdbuf(cerr_); }

  void Clear() {
    const std::lock_guard<std::mutex> lock(mutex_);
    text_.clear();
  }

  std::string Text() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return text_;
  }

 private:
  std::streamsize xsputn(const char* text, std::streamsize size) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    text_.append(text, size);
    return size;
  }

  std::streambuf* const cerr_;
  mutable std::mutex mutex_;  // Guards the members below.
  std::string text_;
};

PrintedErrors printed_errors;  // Of the test that runs.

// The plugin starts without environment variables. On a failure, its output is
// printed.
class HostDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    // Ends a program that hangs.
    alarm(900);
    for (const char* name :
         {"HOST_DEVICE_COUNT", "HOST_DEVICE_MEMORY", "HOST_DEVICE_DELAY"}) {
      unsetenv(name);
    }
    printed_errors.Clear();
  }

  void TearDown() override {
    if (HasFailure()) {
      std::printf("The plugin's output:\n%s", printed_errors.Text().c_str());
    }
  }
};

// Sets an environment variable during its lifetime.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    setenv(name, value.c_str(), 1);
  }
  ~Variable() { unsetenv(name_); }

 private:
  const char* const name_;
};

// The plugin after InitPlugin, as Paddle uses it. Each object starts with new
// devices and invalidates earlier objects.
struct Plugin : C_DeviceInterface {
  Plugin() : C_DeviceInterface{} {
    size = sizeof(C_DeviceInterface);
    params.size = sizeof(params);
    params.interface = this;
    InitPlugin(&params);
  }

  CustomRuntimeParams params{};
};

std::array<C_Device_st, 4> devices{{{0}, {1}, {2}, {3}}};
const C_Device device0 = &devices[0];
const C_Device device1 = &devices[1];

std::array<C_Device_st, 3> no_devices{{{-1}, {4}, {INT32_MAX}}};

void* Allocate(const Plugin& plugin, C_Device device, size_t size) {
  void* block = nullptr;
  EXPECT_EQ(plugin.device_memory_allocate(device, &block, size), C_SUCCESS);
  return block;
}

size_t Available(const Plugin& plugin, C_Device device) {
  size_t total = 0;
  size_t available = 0;
  EXPECT_EQ(plugin.device_memory_stats(device, &total, &available), C_SUCCESS);
  return available;
}

C_Stream CreateStream(const Plugin& plugin, C_Device device) {
  C_Stream stream = nullptr;
  EXPECT_EQ(plugin.create_stream(device, &stream), C_SUCCESS);
  return stream;
}

C_Event CreateEvent(const Plugin& plugin, C_Device device) {
  C_Event event = nullptr;
  EXPECT_EQ(plugin.create_event(device, &event), C_SUCCESS);
  return event;
}

using Bytes = std::vector<unsigned char>;

// Returns `size` bytes that count up from `first`.
Bytes Counting(size_t size, unsigned char first) {
  Bytes bytes(size);
  std::iota(bytes.begin(), bytes.end(), first);
  return bytes;
}

void* Upload(const Plugin& plugin, C_Device device, const Bytes& bytes) {
  void* const block = Allocate(plugin, device, bytes.size());
  EXPECT_EQ(plugin.memory_copy_h2d(device, block, bytes.data(), bytes.size()),
            C_SUCCESS);
  return block;
}

Bytes Download(const Plugin& plugin,
               C_Device device,
               const void* block,
               size_t size) {
  Bytes bytes(size);
  EXPECT_EQ(plugin.memory_copy_d2h(device, bytes.data(), block, size),
            C_SUCCESS);
  return bytes;
}

void* At(void* block, ptrdiff_t offset) {
  return static_cast<unsigned char*>(block) + offset;
}

// Waits until the condition holds.
template <typename Condition>
void Await(const Condition& condition) {
  while (!condition()) std::this_thread::yield();
}

// Runs body(0) to body(count - 1), each on its own thread.
template <typename Body>
void InThreads(int count, const Body& body) {
  std::atomic<int> missing{count};
  std::vector<std::thread> threads;
  for (int index = 0; index < count; ++index) {
    threads.emplace_back([&, index] {
      // Threads start slowly: wait for all of them, so that the bodies race.
      --missing;
      Await([&] { return missing == 0; });
      body(index);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Work that blocks a stream from construction to Finish.
class Work {
 public:
  Work(const Plugin& plugin, C_Device device, C_Stream stream) {
    EXPECT_EQ(plugin.stream_add_callback(device, stream, Run, this), C_SUCCESS);
    started_.get_future().wait();
  }
  ~Work() { ended_.get_future().wait(); }

  void Finish() { may_finish_.set_value(); }

  // Call this only after the plugin has reported that the work is complete. The
  // order comes from the plugin alone, so the thread sanitizer checks it.
  bool Finished() const { return finished_; }

 private:
  static void Run(C_Device, C_Stream, void* data, C_Status*) {
    auto* const work = static_cast<Work*>(data);
    work->started_.set_value();
    work->may_finish_.get_future().wait();
    work->finished_ = true;
    work->ended_.set_value();
  }

  std::promise<void> started_;
  std::promise<void> may_finish_;
  std::promise<void> ended_;
  bool finished_ = false;
};

// Returns whether `call`, made on another thread, still blocks after ample
// time.
template <typename Result>
bool Waits(const std::future<Result>& call) {
  return call.wait_for(std::chrono::milliseconds(50)) ==
         std::future_status::timeout;
}

// Checks that `wait` returns when the work has finished and not before.
template <typename Wait>
void CheckWaitsFor(Work* work, const Wait& wait) {
  const auto call = std::async(std::launch::async, [&] {
    EXPECT_EQ(wait(), C_SUCCESS);
    EXPECT_TRUE(work->Finished());
  });
  EXPECT_TRUE(Waits(call));
  work->Finish();
  call.wait();
}

void DoNothing(C_Device, C_Stream, void*, C_Status*) {}

// -- The configuration --------------------------------------------------------

TEST_F(HostDeviceTest, InitializationNamesTheDeviceTypeAndTheVersion) {
  const Plugin plugin;
  EXPECT_EQ(plugin.params.device_type, std::string("custom_cpu"));
  EXPECT_EQ(plugin.params.sub_device_type, std::string("custom_cpu"));
  EXPECT_EQ(plugin.params.version.major, PADDLE_CUSTOM_RUNTIME_MAJOR_VERSION);
  EXPECT_EQ(plugin.params.version.minor, PADDLE_CUSTOM_RUNTIME_MINOR_VERSION);
  EXPECT_EQ(plugin.params.version.patch, PADDLE_CUSTOM_RUNTIME_PATCH_VERSION);
}

TEST_F(HostDeviceTest, APaddleWithAnotherInterfaceGetsNoDevices) {
  C_DeviceInterface functions{};
  functions.size = sizeof(functions) + 8;
  CustomRuntimeParams params{};
  params.size = sizeof(params) + 8;
  params.interface = &functions;
  InitPlugin(&params);
  EXPECT_EQ(params.device_type, nullptr);
}

TEST_F(HostDeviceTest, ThereAreFourDevicesByDefault) {
  const Plugin plugin;
  size_t count = 0;
  EXPECT_EQ(plugin.get_device_count(&count), C_SUCCESS);
  EXPECT_EQ(count, 4);
}

TEST_F(HostDeviceTest, TheNumberOfDevicesIsConfigurable) {
  for (const size_t wanted : {1, 16}) {
    const Variable variable("HOST_DEVICE_COUNT", std::to_string(wanted));
    const Plugin plugin;
    size_t count = 0;
    EXPECT_EQ(plugin.get_device_count(&count), C_SUCCESS);
    EXPECT_EQ(count, wanted);
  }
}

TEST_F(HostDeviceTest, DevicesAreListedByNumber) {
  const Plugin plugin;
  std::array<size_t, 4> list{};
  EXPECT_EQ(plugin.get_device_list(list.data()), C_SUCCESS);
  EXPECT_EQ(list, (std::array<size_t, 4>{0, 1, 2, 3}));
}

TEST_F(HostDeviceTest, ADeviceHasOneGibibyteByDefault) {
  const Plugin plugin;
  for (C_Device_st& device : devices) {
    size_t total = 0;
    size_t available = 0;
    EXPECT_EQ(plugin.device_memory_stats(&device, &total, &available),
              C_SUCCESS);
    EXPECT_EQ(total, size_t{1} << 30);
    EXPECT_EQ(available, total);
  }
}

TEST_F(HostDeviceTest, TheMemoryOfADeviceIsConfigurable) {
  for (const size_t wanted : {size_t{1}, size_t{1} << 40}) {
    const Variable variable("HOST_DEVICE_MEMORY", std::to_string(wanted));
    const Plugin plugin;
    EXPECT_EQ(Available(plugin, device1), wanted);
  }
}

TEST_F(HostDeviceTest, ADelayMayBeZero) {
  const Variable variable("HOST_DEVICE_DELAY", "0");
  const Plugin plugin;
  EXPECT_STREQ(plugin.params.device_type, "custom_cpu");
}

TEST_F(HostDeviceTest, ABadVariableIsPrintedAndLeavesNoDevices) {
  const std::vector<std::pair<const char*, const char*>> refused = {
      {"HOST_DEVICE_COUNT", ""},
      {"HOST_DEVICE_COUNT", "0"},
      {"HOST_DEVICE_COUNT", "17"},
      {"HOST_DEVICE_COUNT", "-1"},
      {"HOST_DEVICE_COUNT", " 4"},
      {"HOST_DEVICE_COUNT", "four"},
      {"HOST_DEVICE_MEMORY", "0"},
      {"HOST_DEVICE_MEMORY", "1G"},
      {"HOST_DEVICE_MEMORY", "1099511627777"},
      {"HOST_DEVICE_MEMORY", "18446744073709551617"},
      {"HOST_DEVICE_DELAY", "-1"},
      {"HOST_DEVICE_DELAY", "10000001"},
  };
  for (const auto& [name, value] : refused) {
    const Variable variable(name, value);
    const Plugin plugin;
    EXPECT_EQ(plugin.params.device_type, nullptr);
    EXPECT_PRED_FORMAT2(::testing::IsSubstring,
                        std::string("no devices: ") + name + " is \"" + value +
                            "\", not a number from ",
                        printed_errors.Text());
  }
}

// -- The current device -------------------------------------------------------

TEST_F(HostDeviceTest, AThreadStartsOnDeviceZero) {
  const Plugin plugin;
  InThreads(1, [&](int) {
    C_Device_st current{-1};
    EXPECT_EQ(plugin.get_device(&current), C_SUCCESS);
    EXPECT_EQ(current.id, 0);
  });
}

TEST_F(HostDeviceTest, EachThreadHasItsOwnCurrentDevice) {
  const Plugin plugin;
  InThreads(1, [&](int) {
    EXPECT_EQ(plugin.set_device(device1), C_SUCCESS);
    InThreads(1,
              [&](int) { EXPECT_EQ(plugin.set_device(device0), C_SUCCESS); });
    C_Device_st current{-1};
    EXPECT_EQ(plugin.get_device(&current), C_SUCCESS);
    EXPECT_EQ(current.id, 1);
  });
}

TEST_F(HostDeviceTest, SettingADeviceThatDoesNotExistKeepsTheCurrentOne) {
  const Plugin plugin;
  InThreads(1, [&](int) {
    EXPECT_EQ(plugin.set_device(device1), C_SUCCESS);
    for (C_Device_st& device : no_devices) {
      EXPECT_EQ(plugin.set_device(&device), C_ERROR);
    }
    C_Device_st current{-1};
    EXPECT_EQ(plugin.get_device(&current), C_SUCCESS);
    EXPECT_EQ(current.id, 1);
  });
}

TEST_F(HostDeviceTest, AnUnknownDeviceIsRefusedAndItsNumberPrinted) {
  const Plugin plugin;
  Bytes host(1);
  void* const block = Allocate(plugin, device0, 1);
  for (C_Device_st& device : no_devices) {
    void* ptr = nullptr;
    size_t total = 0;
    size_t available = 0;
    C_Stream stream = nullptr;
    C_Event event = nullptr;
    EXPECT_EQ(plugin.device_memory_allocate(&device, &ptr, 1), C_ERROR);
    EXPECT_EQ(plugin.device_memory_deallocate(&device, block, 1), C_ERROR);
    EXPECT_EQ(plugin.device_memory_stats(&device, &total, &available), C_ERROR);
    EXPECT_EQ(plugin.memory_copy_h2d(&device, block, host.data(), 1), C_ERROR);
    EXPECT_EQ(plugin.memory_copy_d2h(&device, host.data(), block, 1), C_ERROR);
    EXPECT_EQ(plugin.synchronize_device(&device), C_ERROR);
    EXPECT_EQ(plugin.create_stream(&device, &stream), C_ERROR);
    EXPECT_EQ(plugin.create_event(&device, &event), C_ERROR);
    EXPECT_PRED_FORMAT2(::testing::IsSubstring,
                        "no device " + std::to_string(device.id),
                        printed_errors.Text());
  }
}

// -- Memory -------------------------------------------------------------------

TEST_F(HostDeviceTest, ABlockTakesItsSizeFromItsDeviceOnlyUntilItIsFreed) {
  const Plugin plugin;
  const size_t total = Available(plugin, device0);
  void* const block = Allocate(plugin, device0, 1000);
  EXPECT_EQ(Available(plugin, device0), total - 1000);
  EXPECT_EQ(Available(plugin, device1), total);
  EXPECT_EQ(plugin.device_memory_deallocate(device0, block, 1000), C_SUCCESS);
  EXPECT_EQ(Available(plugin, device0), total);
}

TEST_F(HostDeviceTest, ABlockStartsAtAMultipleOfTheChunkSize) {
  const Plugin plugin;
  size_t chunk = 0;
  EXPECT_EQ(plugin.device_min_chunk_size(device0, &chunk), C_SUCCESS);
  EXPECT_GE(chunk, 64);
  for (const size_t size : {0, 1, 63, 64, 65, 1000}) {
    void* const block = Allocate(plugin, device0, size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % chunk, 0);
  }
}

TEST_F(HostDeviceTest, EmptyBlocksHaveDistinctAddresses) {
  const Plugin plugin;
  void* const first = Allocate(plugin, device0, 0);
  void* const second = Allocate(plugin, device0, 0);
  EXPECT_NE(first, nullptr);
  EXPECT_NE(second, nullptr);
  EXPECT_NE(first, second);
  EXPECT_EQ(plugin.device_memory_deallocate(device0, first, 0), C_SUCCESS);
  EXPECT_EQ(plugin.device_memory_deallocate(device0, second, 0), C_SUCCESS);
}

TEST_F(HostDeviceTest, ADeviceCanBeFilledToTheLastByte) {
  const Variable variable("HOST_DEVICE_MEMORY", "1000");
  const Plugin plugin;
  Allocate(plugin, device0, 999);
  Allocate(plugin, device0, 1);
  EXPECT_EQ(Available(plugin, device0), 0);
}

TEST_F(HostDeviceTest, ABlockThatDoesNotFitIsRefusedWithWhatIsFree) {
  const Variable variable("HOST_DEVICE_MEMORY", "1000");
  const Plugin plugin;
  Allocate(plugin, device1, 900);
  for (const size_t size : {size_t{101}, SIZE_MAX}) {
    void* block = nullptr;
    EXPECT_EQ(plugin.device_memory_allocate(device1, &block, size), C_FAILED);
    EXPECT_EQ(block, nullptr);
    EXPECT_PRED_FORMAT2(::testing::IsSubstring,
                        "device 1 cannot allocate " + std::to_string(size) +
                            " bytes: 100 of 1000 are free",
                        printed_errors.Text());
  }
}

TEST_F(HostDeviceTest, AFullDeviceLeavesTheOthersUsable) {
  const Variable variable("HOST_DEVICE_MEMORY", "1000");
  const Plugin plugin;
  Allocate(plugin, device0, 1000);
  Allocate(plugin, device1, 1000);
}

TEST_F(HostDeviceTest, OnlyALiveBlockOfThatDeviceAndSizeIsFreed) {
  const Plugin plugin;
  void* const block = Allocate(plugin, device0, 1000);
  const size_t available = Available(plugin, device0);
  EXPECT_EQ(plugin.device_memory_deallocate(device1, block, 1000), C_ERROR);
  EXPECT_EQ(plugin.device_memory_deallocate(device0, block, 999), C_ERROR);
  EXPECT_EQ(plugin.device_memory_deallocate(device0, At(block, 64), 936),
            C_ERROR);
  EXPECT_EQ(plugin.device_memory_deallocate(device0, nullptr, 0), C_ERROR);
  EXPECT_EQ(Available(plugin, device0), available);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring,
                      "device 0 has no live block of 999 bytes at 0x",
                      printed_errors.Text());
}

TEST_F(HostDeviceTest, ABlockIsFreedOnce) {
  const Plugin plugin;
  void* const block = Allocate(plugin, device0, 1000);
  const size_t available = Available(plugin, device0);
  EXPECT_EQ(plugin.device_memory_deallocate(device0, block, 1000), C_SUCCESS);
  EXPECT_EQ(plugin.device_memory_deallocate(device0, block, 1000), C_ERROR);
  EXPECT_EQ(Available(plugin, device0), available + 1000);
}

// -- Copies -------------------------------------------------------------------

TEST_F(HostDeviceTest, EachKindOfCopyMovesTheBytes) {
  const Plugin plugin;
  const Bytes bytes = Counting(1000, 7);
  void* const first = Upload(plugin, device0, bytes);
  void* const second = Allocate(plugin, device0, 1000);
  void* const third = Allocate(plugin, device1, 1000);
  EXPECT_EQ(plugin.memory_copy_d2d(device0, second, first, 1000), C_SUCCESS);
  EXPECT_EQ(plugin.memory_copy_p2p(device1, device0, third, second, 1000),
            C_SUCCESS);
  EXPECT_EQ(Download(plugin, device1, third, 1000), bytes);
}

TEST_F(HostDeviceTest, EachKindOfCopyOnAStreamMovesTheBytes) {
  const Plugin plugin;
  const Bytes bytes = Counting(1000, 7);
  Bytes back(1000);
  void* const first = Allocate(plugin, device0, 1000);
  void* const second = Allocate(plugin, device0, 1000);
  void* const third = Allocate(plugin, device1, 1000);
  C_Stream stream0 = CreateStream(plugin, device0);
  C_Stream stream1 = CreateStream(plugin, device1);
  EXPECT_EQ(
      plugin.async_memory_copy_h2d(device0, stream0, first, bytes.data(), 1000),
      C_SUCCESS);
  EXPECT_EQ(plugin.async_memory_copy_d2d(device0, stream0, second, first, 1000),
            C_SUCCESS);
  EXPECT_EQ(plugin.synchronize_stream(device0, stream0), C_SUCCESS);
  // A copy between devices runs on a stream of the device that it copies to.
  EXPECT_EQ(plugin.async_memory_copy_p2p(
                device1, device0, stream1, third, second, 1000),
            C_SUCCESS);
  EXPECT_EQ(
      plugin.async_memory_copy_d2h(device1, stream1, back.data(), third, 1000),
      C_SUCCESS);
  EXPECT_EQ(plugin.synchronize_stream(device1, stream1), C_SUCCESS);
  EXPECT_EQ(back, bytes);
}

TEST_F(HostDeviceTest, ACopyChangesOnlyTheGivenBytes) {
  const Plugin plugin;
  Bytes expected(100, 1);
  void* const block = Upload(plugin, device0, expected);
  const Bytes part(20, 2);
  EXPECT_EQ(plugin.memory_copy_h2d(device0, At(block, 80), part.data(), 20),
            C_SUCCESS);
  std::copy(part.begin(), part.end(), expected.begin() + 80);
  EXPECT_EQ(Download(plugin, device0, block, 100), expected);
}

TEST_F(HostDeviceTest, AnEmptyCopyIsFineAnywhereInABlock) {
  const Plugin plugin;
  unsigned char byte = 0;
  void* const empty = Allocate(plugin, device0, 0);
  void* const block = Allocate(plugin, device0, 100);
  EXPECT_EQ(plugin.memory_copy_h2d(device0, empty, &byte, 0), C_SUCCESS);
  EXPECT_EQ(plugin.memory_copy_h2d(device0, block, &byte, 0), C_SUCCESS);
  EXPECT_EQ(plugin.memory_copy_d2h(device0, &byte, At(block, 100), 0),
            C_SUCCESS);
}

TEST_F(HostDeviceTest, AnEmptyCopyNeedsNoHostMemory) {
  const Plugin plugin;
  void* const block = Allocate(plugin, device0, 8);
  EXPECT_EQ(plugin.memory_copy_h2d(device0, block, nullptr, 0), C_SUCCESS);
  EXPECT_EQ(plugin.memory_copy_d2h(device0, nullptr, block, 0), C_SUCCESS);
}

TEST_F(HostDeviceTest, ACopyThatLeavesItsBlockIsRefusedAndMovesNothing) {
  const Plugin plugin;
  const Bytes bytes = Counting(100, 7);
  Bytes host(200, 1);
  void* const block = Upload(plugin, device0, bytes);
  void* const roomy = Allocate(plugin, device0, 200);
  EXPECT_EQ(plugin.memory_copy_h2d(device0, block, host.data(), 101), C_ERROR);
  EXPECT_EQ(plugin.memory_copy_h2d(device0, At(block, 50), host.data(), 51),
            C_ERROR);
  EXPECT_EQ(plugin.memory_copy_h2d(device0, At(block, -1), host.data(), 2),
            C_ERROR);
  EXPECT_EQ(
      plugin.memory_copy_h2d(device0, At(block, 1), host.data(), SIZE_MAX),
      C_ERROR);
  EXPECT_EQ(plugin.memory_copy_d2h(device0, host.data(), block, 101), C_ERROR);
  EXPECT_EQ(plugin.memory_copy_d2d(device0, block, roomy, 101), C_ERROR);
  EXPECT_EQ(plugin.memory_copy_d2d(device0, roomy, block, 101), C_ERROR);
  EXPECT_EQ(Download(plugin, device0, block, 100), bytes);
  EXPECT_EQ(host, Bytes(200, 1));
  EXPECT_PRED_FORMAT2(::testing::IsSubstring,
                      "device 0 has no live memory that holds 101 bytes at 0x",
                      printed_errors.Text());
}

TEST_F(HostDeviceTest, ACopyRefusesMemoryOfAnotherDevice) {
  const Plugin plugin;
  Bytes host(100);
  void* const block0 = Allocate(plugin, device0, 100);
  void* const block1 = Allocate(plugin, device1, 100);
  EXPECT_EQ(plugin.memory_copy_h2d(device1, block0, host.data(), 100), C_ERROR);
  EXPECT_EQ(plugin.memory_copy_d2h(device1, host.data(), block0, 100), C_ERROR);
  EXPECT_EQ(plugin.memory_copy_d2d(device0, block1, block0, 100), C_ERROR);
  EXPECT_EQ(plugin.memory_copy_d2d(device1, block1, block0, 100), C_ERROR);
  EXPECT_EQ(plugin.memory_copy_p2p(device0, device1, block1, block0, 100),
            C_ERROR);
}

TEST_F(HostDeviceTest, ACopyRefusesAFreedBlock) {
  const Plugin plugin;
  Bytes host(100);
  void* const block = Allocate(plugin, device0, 100);
  EXPECT_EQ(plugin.device_memory_deallocate(device0, block, 100), C_SUCCESS);
  EXPECT_EQ(plugin.memory_copy_h2d(device0, block, host.data(), 100), C_ERROR);
  EXPECT_EQ(plugin.memory_copy_d2h(device0, host.data(), block, 100), C_ERROR);
}

TEST_F(HostDeviceTest,
       ACopyOnAStreamReturnsTheRefusalAndLeavesTheStreamUsable) {
  const Plugin plugin;
  Bytes host(200);
  void* const block = Allocate(plugin, device0, 100);
  void* const roomy = Allocate(plugin, device0, 200);
  C_Stream stream = CreateStream(plugin, device0);
  EXPECT_EQ(
      plugin.async_memory_copy_h2d(device0, stream, block, host.data(), 101),
      C_ERROR);
  EXPECT_EQ(
      plugin.async_memory_copy_d2h(device0, stream, host.data(), block, 101),
      C_ERROR);
  EXPECT_EQ(plugin.async_memory_copy_d2d(device0, stream, block, roomy, 101),
            C_ERROR);
  EXPECT_EQ(
      plugin.async_memory_copy_p2p(device0, device0, stream, block, roomy, 101),
      C_ERROR);
  EXPECT_EQ(plugin.query_stream(device0, stream), C_SUCCESS);
  EXPECT_EQ(
      plugin.async_memory_copy_h2d(device0, stream, block, host.data(), 100),
      C_SUCCESS);
}

TEST_F(HostDeviceTest, BlocksUsedInRandomOrderKeepTheirBytes) {
  const auto seed = std::random_device()();
  std::printf("  random seed %u\n", seed);
  std::mt19937 random(seed);
  const auto below = [&](size_t end) {
    return std::uniform_int_distribution<size_t>(0, end - 1)(random);
  };

  struct Block {
    C_Device device;
    void* ptr;
    Bytes bytes;  // The expected contents.
  };
  constexpr size_t kMemory = 20000;
  constexpr size_t kLargest = 2000;
  const Variable variable("HOST_DEVICE_MEMORY", std::to_string(kMemory));
  const Plugin plugin;
  std::vector<Block> blocks;

  const auto allocate = [&](C_Device device) {
    const size_t size = 1 + below(kLargest);
    Bytes bytes = Counting(size, below(256));
    blocks.push_back({device, Upload(plugin, device, bytes), std::move(bytes)});
  };
  const auto copy_part = [&](const Block& from, Block* to) {
    const size_t start = below(from.bytes.size() + 1);
    const size_t offset = below(to->bytes.size() + 1);
    const size_t size = below(
        1 + std::min(from.bytes.size() - start, to->bytes.size() - offset));
    EXPECT_EQ(plugin.memory_copy_p2p(to->device,
                                     from.device,
                                     At(to->ptr, offset),
                                     At(from.ptr, start),
                                     size),
              C_SUCCESS);
    const auto part = from.bytes.begin() + start;
    std::copy(part, part + size, to->bytes.begin() + offset);
  };
  const auto release = [&](size_t index) {
    const auto [device, ptr, bytes] = blocks[index];
    EXPECT_EQ(Download(plugin, device, ptr, bytes.size()), bytes);
    EXPECT_EQ(plugin.device_memory_deallocate(device, ptr, bytes.size()),
              C_SUCCESS);
    blocks.erase(blocks.begin() + index);
  };

  for (int step = 0; step < 5000; ++step) {
    C_Device device = &devices[below(devices.size())];
    if (Available(plugin, device) >= kLargest) allocate(device);
    const size_t from = below(blocks.size());
    const size_t to = below(blocks.size());
    if (from != to) copy_part(blocks[from], &blocks[to]);
    if (below(2) == 0) release(below(blocks.size()));
  }
  while (!blocks.empty()) release(blocks.size() - 1);
  for (C_Device_st& device : devices) {
    EXPECT_EQ(Available(plugin, &device), kMemory);
  }
}

// -- Streams ------------------------------------------------------------------

TEST_F(HostDeviceTest, AHandleIsNotNullAndNeverReused) {
  const Plugin plugin;
  std::set<C_Stream> streams = {nullptr};
  std::set<C_Event> events = {nullptr};
  for (int round = 0; round < 100; ++round) {
    C_Stream stream = CreateStream(plugin, device0);
    C_Event event = CreateEvent(plugin, device0);
    EXPECT_TRUE(streams.insert(stream).second);
    EXPECT_TRUE(events.insert(event).second);
    EXPECT_EQ(plugin.destroy_stream(device0, stream), C_SUCCESS);
    EXPECT_EQ(plugin.destroy_event(device0, event), C_SUCCESS);
  }
}

void CheckRefusesStream(const Plugin& plugin,
                        C_Device device,
                        C_Stream stream) {
  unsigned char byte = 0;
  void* const block = Allocate(plugin, device, 1);
  void* const other = Allocate(plugin, device, 1);
  C_Event event = CreateEvent(plugin, device);
  EXPECT_EQ(plugin.query_stream(device, stream), C_ERROR);
  EXPECT_EQ(plugin.synchronize_stream(device, stream), C_ERROR);
  EXPECT_EQ(plugin.destroy_stream(device, stream), C_ERROR);
  EXPECT_EQ(plugin.stream_add_callback(device, stream, DoNothing, nullptr),
            C_ERROR);
  EXPECT_EQ(plugin.stream_wait_event(device, stream, event), C_ERROR);
  EXPECT_EQ(plugin.record_event(device, stream, event), C_ERROR);
  EXPECT_EQ(plugin.async_memory_copy_h2d(device, stream, block, &byte, 1),
            C_ERROR);
  EXPECT_EQ(plugin.async_memory_copy_d2h(device, stream, &byte, block, 1),
            C_ERROR);
  EXPECT_EQ(plugin.async_memory_copy_d2d(device, stream, other, block, 1),
            C_ERROR);
  EXPECT_EQ(
      plugin.async_memory_copy_p2p(device, device, stream, other, block, 1),
      C_ERROR);
}

TEST_F(HostDeviceTest, ADestroyedStreamIsRefused) {
  const Plugin plugin;
  C_Stream stream = CreateStream(plugin, device0);
  EXPECT_EQ(plugin.destroy_stream(device0, stream), C_SUCCESS);
  CheckRefusesStream(plugin, device0, stream);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring,
                      "device 0 has no live stream ",
                      printed_errors.Text());
}

TEST_F(HostDeviceTest, AStreamOfAnotherDeviceIsRefusedAndStaysUsable) {
  const Plugin plugin;
  C_Stream stream = CreateStream(plugin, device1);
  CheckRefusesStream(plugin, device0, stream);
  EXPECT_EQ(plugin.query_stream(device1, stream), C_SUCCESS);
}

TEST_F(HostDeviceTest, ANullStreamIsRefused) {
  const Plugin plugin;
  CheckRefusesStream(plugin, device0, nullptr);
}

TEST_F(HostDeviceTest, ACopyBetweenDevicesRefusesAStreamOfItsSource) {
  const Plugin plugin;
  void* const from = Allocate(plugin, device0, 1);
  void* const to = Allocate(plugin, device1, 1);
  C_Stream stream = CreateStream(plugin, device0);
  EXPECT_EQ(plugin.async_memory_copy_p2p(device1, device0, stream, to, from, 1),
            C_ERROR);
}

TEST_F(HostDeviceTest, ACallbackRunsOnceWithItsDeviceStreamAndData) {
  using Call = std::pair<int, C_Stream>;
  const Plugin plugin;
  C_Stream stream = CreateStream(plugin, device1);
  std::vector<Call> calls;
  const C_Callback callback =
      [](C_Device device, C_Stream stream, void* data, C_Status*) {
        static_cast<std::vector<Call>*>(data)->emplace_back(device->id, stream);
      };
  EXPECT_EQ(plugin.stream_add_callback(device1, stream, callback, &calls),
            C_SUCCESS);
  EXPECT_EQ(plugin.synchronize_stream(device1, stream), C_SUCCESS);
  EXPECT_EQ(calls, (std::vector<Call>{{1, stream}}));
}

TEST_F(HostDeviceTest, AStreamIsCompleteUnlessWorkRuns) {
  const Plugin plugin;
  C_Stream stream = CreateStream(plugin, device0);
  EXPECT_EQ(plugin.query_stream(device0, stream), C_SUCCESS);
  Work work(plugin, device0, stream);
  EXPECT_EQ(plugin.query_stream(device0, stream), C_FAILED);
  work.Finish();
  Await([&] { return plugin.query_stream(device0, stream) == C_SUCCESS; });
  EXPECT_TRUE(work.Finished());
}

TEST_F(HostDeviceTest, SynchronizingAStreamWaitsForItsWork) {
  const Plugin plugin;
  C_Stream stream = CreateStream(plugin, device0);
  Work work(plugin, device0, stream);
  CheckWaitsFor(&work,
                [&] { return plugin.synchronize_stream(device0, stream); });
}

TEST_F(HostDeviceTest, SynchronizingADeviceWaitsForEachOfItsStreams) {
  const Plugin plugin;
  CreateStream(plugin, device0);
  C_Stream stream = CreateStream(plugin, device0);
  CreateStream(plugin, device0);
  Work work(plugin, device0, stream);
  CheckWaitsFor(&work, [&] { return plugin.synchronize_device(device0); });
}

TEST_F(HostDeviceTest, ABusyStreamDoesNotBlockOthers) {
  const Plugin plugin;
  C_Stream busy = CreateStream(plugin, device0);
  C_Stream idle = CreateStream(plugin, device0);
  Work work(plugin, device0, busy);
  EXPECT_EQ(plugin.stream_add_callback(device0, idle, DoNothing, nullptr),
            C_SUCCESS);
  EXPECT_EQ(plugin.synchronize_stream(device0, idle), C_SUCCESS);
  EXPECT_EQ(plugin.synchronize_device(device1), C_SUCCESS);
  work.Finish();
}

TEST_F(HostDeviceTest, ABusyStreamCanBeDestroyedAndDoesItsWork) {
  const Plugin plugin;
  const Bytes bytes = Counting(100, 7);
  void* const block = Upload(plugin, device0, Bytes(100));
  C_Stream stream = CreateStream(plugin, device0);
  {
    Work work(plugin, device0, stream);
    EXPECT_EQ(
        plugin.async_memory_copy_h2d(device0, stream, block, bytes.data(), 100),
        C_SUCCESS);
    EXPECT_EQ(plugin.destroy_stream(device0, stream), C_SUCCESS);
    // Destroying another stream meanwhile does not destroy the first.
    EXPECT_EQ(plugin.destroy_stream(device0, CreateStream(plugin, device0)),
              C_SUCCESS);
    CheckWaitsFor(&work, [&] { return plugin.synchronize_device(device0); });
  }
  EXPECT_EQ(Download(plugin, device0, block, 100), bytes);
}

TEST_F(HostDeviceTest, AStreamCanBeDestroyedByItsOwnWork) {
  struct Call {
    const Plugin* plugin;
    std::atomic<bool> made;
  };
  const Plugin plugin;
  Call call{&plugin, {false}};
  const C_Callback callback =
      [](C_Device device, C_Stream stream, void* data, C_Status*) {
        auto* const call = static_cast<Call*>(data);
        EXPECT_EQ(call->plugin->destroy_stream(device, stream), C_SUCCESS);
        call->made = true;
      };
  EXPECT_EQ(plugin.stream_add_callback(
                device0, CreateStream(plugin, device0), callback, &call),
            C_SUCCESS);
  EXPECT_EQ(plugin.synchronize_device(device0), C_SUCCESS);
  EXPECT_TRUE(call.made);
}

TEST_F(HostDeviceTest, APluginFinishesItsWorkBeforeItIsDestroyed) {
  std::atomic<int> count{0};
  const C_Callback callback = [](C_Device, C_Stream, void* data, C_Status*) {
    ++*static_cast<std::atomic<int>*>(data);
  };
  {
    const Plugin plugin;
    EXPECT_EQ(HostDeviceSetDelay(0, nullptr, 2000), C_SUCCESS);
    C_Stream streams[] = {CreateStream(plugin, device0),
                          CreateStream(plugin, device0)};
    for (int round = 0; round < 10; ++round) {
      for (C_Stream stream : streams) {
        EXPECT_EQ(plugin.stream_add_callback(device0, stream, callback, &count),
                  C_SUCCESS);
      }
    }
    EXPECT_EQ(plugin.destroy_stream(device0, streams[0]), C_SUCCESS);
  }
  const Plugin next;
  EXPECT_EQ(count, 20);
}

// Adds to the Bytes that `data` points to.
template <unsigned char kByte>
void Append(C_Device, C_Stream, void* data, C_Status*) {
  static_cast<Bytes*>(data)->push_back(kByte);
}

TEST_F(HostDeviceTest, AStreamWithoutOtherWorkOrDelayIsAsFastAsTheCall) {
  const Plugin plugin;
  void* const first = Upload(plugin, device0, Bytes(100));
  void* const second = Upload(plugin, device0, Bytes(100));
  C_Stream stream = CreateStream(plugin, device0);
  C_Event event = CreateEvent(plugin, device0);
  for (int round = 0; round < 100; ++round) {
    const Bytes bytes(100, round);
    EXPECT_EQ(
        plugin.async_memory_copy_h2d(device0, stream, first, bytes.data(), 100),
        C_SUCCESS);
    EXPECT_EQ(plugin.async_memory_copy_d2d(device0, stream, second, first, 100),
              C_SUCCESS);
    EXPECT_EQ(Download(plugin, device0, second, 100), bytes);
    EXPECT_EQ(plugin.record_event(device0, stream, event), C_SUCCESS);
    EXPECT_EQ(plugin.query_event(device0, event), C_SUCCESS);
  }
}

TEST_F(HostDeviceTest, AStreamRunsItsWorkInTheOrderOfSubmission) {
  const Plugin plugin;
  C_Stream stream = CreateStream(plugin, device0);
  Bytes order;
  for (int round = 0; round < 100; ++round) {
    for (const C_Callback callback : {Append<1>, Append<2>, Append<3>}) {
      EXPECT_EQ(plugin.stream_add_callback(device0, stream, callback, &order),
                C_SUCCESS);
    }
  }
  EXPECT_EQ(plugin.synchronize_stream(device0, stream), C_SUCCESS);
  Bytes expected;
  for (int round = 0; round < 100; ++round) {
    expected.insert(expected.end(), {1, 2, 3});
  }
  EXPECT_EQ(order, expected);
}

TEST_F(HostDeviceTest, CopiesOnAStreamRunInTheOrderOfSubmission) {
  const Plugin plugin;
  const Bytes bytes = Counting(100, 7);
  void* const first = Upload(plugin, device0, Bytes(100));
  void* const second = Upload(plugin, device0, Bytes(100));
  C_Stream stream = CreateStream(plugin, device0);
  EXPECT_EQ(HostDeviceSetDelay(0, nullptr, 2000), C_SUCCESS);
  EXPECT_EQ(
      plugin.async_memory_copy_h2d(device0, stream, first, bytes.data(), 100),
      C_SUCCESS);
  EXPECT_EQ(plugin.async_memory_copy_d2d(device0, stream, second, first, 100),
            C_SUCCESS);
  EXPECT_EQ(plugin.async_memory_copy_h2d(
                device0, stream, first, Bytes(100).data(), 100),
            C_SUCCESS);
  EXPECT_EQ(plugin.synchronize_stream(device0, stream), C_SUCCESS);
  EXPECT_EQ(Download(plugin, device0, first, 100), Bytes(100));
  EXPECT_EQ(Download(plugin, device0, second, 100), bytes);
}

TEST_F(HostDeviceTest,
       TheFailureOfACallbackIsReturnedByTheNextSynchronization) {
  const Plugin plugin;
  C_Stream stream = CreateStream(plugin, device0);
  const C_Callback fail = [](C_Device, C_Stream, void* data, C_Status* status) {
    *status = *static_cast<C_Status*>(data);
  };
  C_Status first = C_WARNING;
  C_Status second = C_INTERNAL_ERROR;
  for (C_Status* const status : {&first, &second}) {
    EXPECT_EQ(plugin.stream_add_callback(device0, stream, fail, status),
              C_SUCCESS);
  }
  EXPECT_EQ(plugin.synchronize_stream(device0, stream), C_WARNING);
  EXPECT_EQ(plugin.synchronize_stream(device0, stream), C_SUCCESS);
  EXPECT_EQ(plugin.stream_add_callback(device0, stream, fail, &second),
            C_SUCCESS);
  EXPECT_EQ(plugin.synchronize_device(device0), C_INTERNAL_ERROR);
  EXPECT_EQ(plugin.synchronize_device(device0), C_SUCCESS);
}

TEST_F(HostDeviceTest, WorkMustNotWait) {
  struct Call {
    const Plugin* plugin;
    C_Event event;
    void* block;
    void* host;
  };
  const Plugin plugin;
  C_Stream stream = CreateStream(plugin, device0);
  Call call{&plugin,
            CreateEvent(plugin, device0),
            Allocate(plugin, device0, 1),
            nullptr};
  EXPECT_EQ(plugin.host_memory_allocate(device0, &call.host, 1), C_SUCCESS);
  const C_Callback callback =
      [](C_Device device, C_Stream stream, void* data, C_Status*) {
        const auto& [plugin, event, block, host] = *static_cast<Call*>(data);
        unsigned char byte = 0;
        EXPECT_EQ(plugin->synchronize_stream(device, stream), C_ERROR);
        EXPECT_EQ(plugin->synchronize_device(device), C_ERROR);
        EXPECT_EQ(plugin->synchronize_event(device, event), C_ERROR);
        EXPECT_EQ(plugin->device_memory_deallocate(device, block, 1), C_ERROR);
        EXPECT_EQ(plugin->host_memory_deallocate(device, host, 1), C_ERROR);
        EXPECT_EQ(
            plugin->async_memory_copy_d2h(device, stream, &byte, block, 1),
            C_ERROR);
      };
  EXPECT_EQ(plugin.stream_add_callback(device0, stream, callback, &call),
            C_SUCCESS);
  EXPECT_EQ(plugin.synchronize_stream(device0, stream), C_SUCCESS);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring,
                      "work on a stream must not wait for streams",
                      printed_errors.Text());
  EXPECT_EQ(plugin.device_memory_deallocate(device0, call.block, 1), C_SUCCESS);
  EXPECT_EQ(plugin.host_memory_deallocate(device0, call.host, 1), C_SUCCESS);
}

TEST_F(HostDeviceTest, WorkCanSubmitWork) {
  struct Call {
    const Plugin* plugin;
    Bytes order;
  };
  const Plugin plugin;
  C_Stream stream = CreateStream(plugin, device0);
  Call call{&plugin, {}};
  const C_Callback callback =
      [](C_Device device, C_Stream stream, void* data, C_Status*) {
        auto* const call = static_cast<Call*>(data);
        EXPECT_EQ(call->plugin->stream_add_callback(
                      device, stream, Append<2>, &call->order),
                  C_SUCCESS);
        call->order.push_back(1);
      };
  EXPECT_EQ(plugin.stream_add_callback(device0, stream, callback, &call),
            C_SUCCESS);
  // The second call submits before the first synchronization returns.
  EXPECT_EQ(plugin.synchronize_stream(device0, stream), C_SUCCESS);
  EXPECT_EQ(plugin.synchronize_stream(device0, stream), C_SUCCESS);
  EXPECT_EQ(call.order, (Bytes{1, 2}));
}

// -- Host memory --------------------------------------------------------------

void* AllocateHost(const Plugin& plugin, const Bytes& bytes) {
  void* block = nullptr;
  EXPECT_EQ(plugin.host_memory_allocate(device0, &block, bytes.size()),
            C_SUCCESS);
  std::copy(bytes.begin(), bytes.end(), static_cast<unsigned char*>(block));
  return block;
}

Bytes Content(const void* block, size_t size) {
  const auto* const first = static_cast<const unsigned char*>(block);
  return Bytes(first, first + size);
}

// Calls `is_late` with growing delays, in microseconds, until it returns true:
// a busy machine may stop this process for longer than the first delays.
void ExpectWithAmpleDelay(const std::function<bool(uint64_t)>& is_late) {
  EXPECT_TRUE(is_late(100'000) || is_late(1'000'000) || is_late(10'000'000));
}

TEST_F(HostDeviceTest,
       ACopyOnAStreamLetsGoOfOrdinaryHostMemoryBeforeItReturns) {
  const Plugin plugin;
  const Bytes bytes = Counting(100, 7);
  void* const block = Upload(plugin, device0, Bytes(100));
  C_Stream stream = CreateStream(plugin, device0);
  ExpectWithAmpleDelay([&](uint64_t delay) {
    Bytes back(100);
    EXPECT_EQ(HostDeviceSetDelay(0, stream, delay), C_SUCCESS);
    {
      Bytes source = bytes;
      EXPECT_EQ(plugin.async_memory_copy_h2d(
                    device0, stream, block, source.data(), 100),
                C_SUCCESS);
      source.assign(100, 0);
    }
    const bool is_late = plugin.query_stream(device0, stream) == C_FAILED;
    EXPECT_EQ(HostDeviceSetDelay(0, stream, 0), C_SUCCESS);
    EXPECT_EQ(
        plugin.async_memory_copy_d2h(device0, stream, back.data(), block, 100),
        C_SUCCESS);
    EXPECT_EQ(back, bytes);
    return is_late;
  });
}

TEST_F(HostDeviceTest, ACopyOnAStreamUsesHostMemoryOfThePluginInItsTurn) {
  const Plugin plugin;
  const Bytes bytes = Counting(100, 7);
  void* const block = Upload(plugin, device0, Bytes(100));
  void* const source = AllocateHost(plugin, Bytes(100));
  void* const back = AllocateHost(plugin, Bytes(100));
  C_Stream stream = CreateStream(plugin, device0);
  Work work(plugin, device0, stream);
  EXPECT_EQ(plugin.async_memory_copy_h2d(device0, stream, block, source, 100),
            C_SUCCESS);
  EXPECT_EQ(plugin.async_memory_copy_d2h(device0, stream, back, block, 100),
            C_SUCCESS);
  std::copy(bytes.begin(), bytes.end(), static_cast<unsigned char*>(source));
  EXPECT_EQ(Content(back, 100), Bytes(100));
  work.Finish();
  EXPECT_EQ(plugin.synchronize_stream(device0, stream), C_SUCCESS);
  EXPECT_EQ(Content(back, 100), bytes);
}

TEST_F(HostDeviceTest, FreeingHostMemoryWaitsForItsCopies) {
  const Plugin plugin;
  void* const block = Allocate(plugin, device0, 100);
  void* const source = AllocateHost(plugin, Bytes(100));
  C_Stream stream = CreateStream(plugin, device0);
  Work work(plugin, device0, stream);
  EXPECT_EQ(plugin.async_memory_copy_h2d(device0, stream, block, source, 100),
            C_SUCCESS);
  CheckWaitsFor(&work, [&] {
    return plugin.host_memory_deallocate(device0, source, 100);
  });
}

TEST_F(HostDeviceTest, OnlyALiveBlockOfHostMemoryIsFreed) {
  const Plugin plugin;
  void* const block = AllocateHost(plugin, Bytes(100));
  EXPECT_EQ(plugin.host_memory_deallocate(device0, block, 99), C_ERROR);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring,
                      "the host has no live block of 99 bytes at 0x",
                      printed_errors.Text());
  EXPECT_EQ(plugin.host_memory_deallocate(device0, block, 100), C_SUCCESS);
  EXPECT_EQ(plugin.host_memory_deallocate(device0, block, 100), C_ERROR);
}

TEST_F(HostDeviceTest, HostMemoryThatDoesNotExistIsRefused) {
  const Plugin plugin;
  void* block = nullptr;
  EXPECT_EQ(plugin.host_memory_allocate(device0, &block, SIZE_MAX), C_FAILED);
  EXPECT_EQ(block, nullptr);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring,
                      "the host cannot allocate ",
                      printed_errors.Text());
}

// -- Calls without a stream ---------------------------------------------------

TEST_F(HostDeviceTest, CallsWithoutAStreamWaitForNoStream) {
  const Plugin plugin;
  const Bytes bytes = Counting(100, 7);
  C_Stream stream = CreateStream(plugin, device0);
  Work work(plugin, device0, stream);
  void* const block = Upload(plugin, device0, bytes);
  void* const other = Allocate(plugin, device0, 100);
  EXPECT_EQ(plugin.memory_copy_d2d(device0, other, block, 100), C_SUCCESS);
  EXPECT_EQ(plugin.device_memory_set(device0, block, 3, 100), C_SUCCESS);
  EXPECT_EQ(Download(plugin, device0, block, 100), Bytes(100, 3));
  EXPECT_EQ(Download(plugin, device0, other, 100), bytes);
  work.Finish();
}

TEST_F(HostDeviceTest, MemoryIsSetWithinItsBlockOnly) {
  const Plugin plugin;
  void* const block = Upload(plugin, device0, Bytes(100));
  EXPECT_EQ(plugin.device_memory_set(device0, At(block, 10), 3, 91), C_ERROR);
  EXPECT_EQ(plugin.device_memory_set(device1, block, 3, 1), C_ERROR);
  EXPECT_EQ(Download(plugin, device0, block, 100), Bytes(100));
  EXPECT_EQ(plugin.device_memory_set(device0, At(block, 10), 3, 90), C_SUCCESS);
  Bytes expected(100, 3);
  std::fill_n(expected.begin(), 10, 0);
  EXPECT_EQ(Download(plugin, device0, block, 100), expected);
}

TEST_F(HostDeviceTest, FreeingMemoryWaitsForTheStreamsOfItsDevice) {
  const Plugin plugin;
  void* const block = Allocate(plugin, device0, 100);
  C_Stream stream = CreateStream(plugin, device0);
  Work work(plugin, device0, stream);
  CheckWaitsFor(&work, [&] {
    return plugin.device_memory_deallocate(device0, block, 100);
  });
}

TEST_F(HostDeviceTest, FreeingMemoryWaitsForCopiesToOtherDevices) {
  const Plugin plugin;
  void* const from = Allocate(plugin, device0, 100);
  void* const idle = Allocate(plugin, device0, 100);
  void* const to = Allocate(plugin, device1, 100);
  const size_t available = Available(plugin, device0);
  C_Stream stream = CreateStream(plugin, device1);
  Work work(plugin, device1, stream);
  EXPECT_EQ(
      plugin.async_memory_copy_p2p(device1, device0, stream, to, from, 100),
      C_SUCCESS);
  EXPECT_EQ(plugin.device_memory_deallocate(device0, idle, 100), C_SUCCESS);
  CheckWaitsFor(&work, [&] {
    return plugin.device_memory_deallocate(device0, from, 100);
  });
  EXPECT_EQ(Available(plugin, device0), available + 200);
}

// -- Delays and the trace -----------------------------------------------------

TEST_F(HostDeviceTest, ADelayMakesAMissingWaitGiveAWrongResult) {
  const Plugin plugin;
  C_Stream stream = CreateStream(plugin, device0);
  std::atomic<int> answer{0};
  const C_Callback callback = [](C_Device, C_Stream, void* data, C_Status*) {
    *static_cast<std::atomic<int>*>(data) = 42;
  };
  ExpectWithAmpleDelay([&](uint64_t delay) {
    answer = 0;
    EXPECT_EQ(HostDeviceSetDelay(0, nullptr, delay), C_SUCCESS);
    EXPECT_EQ(plugin.stream_add_callback(device0, stream, callback, &answer),
              C_SUCCESS);
    const int early = answer;
    const bool is_late = plugin.query_stream(device0, stream) == C_FAILED;
    EXPECT_EQ(plugin.synchronize_stream(device0, stream), C_SUCCESS);
    EXPECT_EQ(answer, 42);
    return early == 0 && is_late;
  });
}

std::vector<HostDeviceOperation> TakeTrace() {
  std::vector<HostDeviceOperation> operations(5000);
  operations.resize(HostDeviceTakeTrace(operations.data(), 5000));
  return operations;
}

// Returns the duration of a callback on a stream, in microseconds.
uint64_t TimeOfCallback(const Plugin& plugin,
                        C_Device device,
                        C_Stream stream) {
  EXPECT_EQ(plugin.stream_add_callback(device, stream, DoNothing, nullptr),
            C_SUCCESS);
  EXPECT_EQ(plugin.synchronize_stream(device, stream), C_SUCCESS);
  const auto operations = TakeTrace();
  EXPECT_EQ(operations.size(), 1);
  return (operations[0].end_ns - operations[0].begin_ns) / 1000;
}

// Returns the minimum of several measurements: a busy machine may interrupt
// some of them.
uint64_t LeastTimeOfCallbacks(const Plugin& plugin,
                              C_Device device,
                              C_Stream stream) {
  uint64_t least = UINT64_MAX;
  for (int i = 0; i < 5; ++i) {
    least = std::min(least, TimeOfCallback(plugin, device, stream));
  }
  return least;
}

TEST_F(HostDeviceTest, ADelayAppliesToOneDevice) {
  const Plugin plugin;
  C_Stream delayed = CreateStream(plugin, device0);
  C_Stream other = CreateStream(plugin, device1);
  EXPECT_EQ(HostDeviceSetDelay(0, nullptr, 200000), C_SUCCESS);
  EXPECT_GE(TimeOfCallback(plugin, device0, delayed), 200000);
  EXPECT_LT(LeastTimeOfCallbacks(plugin, device1, other), 200000);
}

TEST_F(HostDeviceTest, AStreamsDelayIsAddedToTheDelayOfItsDevice) {
  const Plugin plugin;
  C_Stream delayed = CreateStream(plugin, device0);
  C_Stream other = CreateStream(plugin, device0);
  EXPECT_EQ(HostDeviceSetDelay(0, delayed, 200000), C_SUCCESS);
  EXPECT_LT(LeastTimeOfCallbacks(plugin, device0, other), 200000);
  EXPECT_EQ(HostDeviceSetDelay(0, nullptr, 10000), C_SUCCESS);
  EXPECT_GE(TimeOfCallback(plugin, device0, delayed), 210000);
}

TEST_F(HostDeviceTest, ADelayAppliesToOperationsSubmittedMeanwhile) {
  const Plugin plugin;
  C_Stream stream = CreateStream(plugin, device0);
  EXPECT_EQ(HostDeviceSetDelay(0, nullptr, 200000), C_SUCCESS);
  EXPECT_EQ(plugin.stream_add_callback(device0, stream, DoNothing, nullptr),
            C_SUCCESS);
  EXPECT_EQ(HostDeviceSetDelay(0, nullptr, 0), C_SUCCESS);
  EXPECT_EQ(plugin.synchronize_stream(device0, stream), C_SUCCESS);
  const auto trace = TakeTrace();
  EXPECT_EQ(trace.size(), 1);
  EXPECT_GE(trace[0].end_ns - trace[0].begin_ns, 200'000'000);
  EXPECT_LT(LeastTimeOfCallbacks(plugin, device0, stream), 200000);
}

TEST_F(HostDeviceTest, AVariableDelaysAllDevices) {
  const Variable variable("HOST_DEVICE_DELAY", "20000");
  const Plugin plugin;
  for (C_Device device : {device0, device1}) {
    C_Stream stream = CreateStream(plugin, device);
    EXPECT_GE(TimeOfCallback(plugin, device, stream), 20000);
  }
}

TEST_F(HostDeviceTest, ABadDelayIsRefused) {
  const Plugin plugin;
  C_Stream stream = CreateStream(plugin, device1);
  EXPECT_EQ(HostDeviceSetDelay(0, nullptr, 10'000'001), C_ERROR);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring,
                      "a delay of 10000001 microseconds is more than",
                      printed_errors.Text());
  EXPECT_EQ(HostDeviceSetDelay(4, nullptr, 1), C_ERROR);
  EXPECT_PRED_FORMAT2(
      ::testing::IsSubstring, "there is no device 4", printed_errors.Text());
  EXPECT_EQ(HostDeviceSetDelay(0, stream, 1), C_ERROR);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring,
                      "device 0 has no live stream ",
                      printed_errors.Text());
}

TEST_F(HostDeviceTest, TheTraceNamesEachOperationOnceInOrder) {
  const Plugin plugin;
  const Bytes bytes(8);
  void* const block = Upload(plugin, device1, bytes);
  void* const other = Upload(plugin, device1, bytes);
  void* const host = AllocateHost(plugin, bytes);
  C_Stream stream = CreateStream(plugin, device1);
  C_Event event = CreateEvent(plugin, device1);
  plugin.async_memory_copy_h2d(device1, stream, block, host, 8);
  plugin.async_memory_copy_d2d(device1, stream, other, block, 8);
  plugin.async_memory_copy_p2p(device1, device1, stream, other, block, 8);
  plugin.async_memory_copy_d2h(device1, stream, host, block, 8);
  plugin.record_event(device1, stream, event);
  plugin.stream_wait_event(device1, stream, event);
  plugin.stream_add_callback(device1, stream, DoNothing, nullptr);
  EXPECT_EQ(plugin.synchronize_stream(device1, stream), C_SUCCESS);
  const std::vector<std::string> kinds = {"async_memory_copy_h2d",
                                          "async_memory_copy_d2d",
                                          "async_memory_copy_p2p",
                                          "async_memory_copy_d2h",
                                          "record_event",
                                          "stream_wait_event",
                                          "stream_add_callback"};
  const auto trace = TakeTrace();
  EXPECT_EQ(trace.size(), kinds.size());
  uint64_t last_end = 0;
  for (size_t index = 0; index < trace.size(); ++index) {
    EXPECT_EQ(trace[index].number, index);
    EXPECT_EQ(trace[index].device, 1);
    EXPECT_EQ(trace[index].stream, stream);
    EXPECT_EQ(trace[index].kind, kinds[index]);
    EXPECT_GE(trace[index].begin_ns, last_end);
    EXPECT_GE(trace[index].end_ns, trace[index].begin_ns);
    last_end = trace[index].end_ns;
  }
  EXPECT_TRUE(TakeTrace().empty());
}

TEST_F(HostDeviceTest, TheTraceIsTakenInPieces) {
  const Plugin plugin;
  C_Stream stream = CreateStream(plugin, device0);
  for (int round = 0; round < 3; ++round) {
    plugin.stream_add_callback(device0, stream, DoNothing, nullptr);
  }
  EXPECT_EQ(plugin.synchronize_stream(device0, stream), C_SUCCESS);
  HostDeviceOperation operations[2];
  EXPECT_EQ(HostDeviceTakeTrace(operations, 2), 2);
  EXPECT_EQ(operations[1].number, 1);
  EXPECT_EQ(HostDeviceTakeTrace(operations, 2), 1);
  EXPECT_EQ(operations[0].number, 2);
}

TEST_F(HostDeviceTest, TheTraceKeepsTheLastOperations) {
  const Plugin plugin;
  C_Stream stream = CreateStream(plugin, device0);
  for (int round = 0; round < 4100; ++round) {
    plugin.stream_add_callback(device0, stream, DoNothing, nullptr);
  }
  EXPECT_EQ(plugin.synchronize_stream(device0, stream), C_SUCCESS);
  const auto trace = TakeTrace();
  EXPECT_EQ(trace.size(), 4096);
  EXPECT_EQ(trace.front().number, 4);
  EXPECT_EQ(trace.back().number, 4099);
}

TEST_F(HostDeviceTest, TwoStreamsOverlapAndOneDoesNot) {
  const Plugin plugin;
  C_Stream first = CreateStream(plugin, device0);
  C_Stream second = CreateStream(plugin, device0);
  ExpectWithAmpleDelay([&](uint64_t delay) {
    EXPECT_EQ(HostDeviceSetDelay(0, nullptr, delay), C_SUCCESS);
    for (C_Stream stream : {first, second, first}) {
      plugin.stream_add_callback(device0, stream, DoNothing, nullptr);
    }
    EXPECT_EQ(plugin.synchronize_device(device0), C_SUCCESS);
    auto trace = TakeTrace();
    EXPECT_EQ(trace.size(), 3);
    const auto of_second = std::stable_partition(
        trace.begin(), trace.end(), [&](const HostDeviceOperation& operation) {
          return operation.stream == first;
        });
    EXPECT_EQ(of_second - trace.begin(), 2);
    EXPECT_LE(trace[0].end_ns, trace[1].begin_ns);
    return trace[0].begin_ns < trace[2].end_ns &&
           trace[2].begin_ns < trace[0].end_ns;
  });
}

// -- Launches -----------------------------------------------------------------

// A device byte that a launched function works on.
struct Cell {
  unsigned char* byte;
  int calls = 0;
};

void Double(void* argument) {
  auto* const cell = static_cast<Cell*>(argument);
  *cell->byte *= 2;
  ++cell->calls;
}

TEST_F(HostDeviceTest, ALaunchRunsOnceInItsTurnAmongCopies) {
  const Plugin plugin;
  void* const block = Upload(plugin, device0, {0});
  void* const second = Upload(plugin, device0, {0});
  void* const source = AllocateHost(plugin, {5});
  void* const back = AllocateHost(plugin, {0});
  C_Stream stream = CreateStream(plugin, device0);
  Cell cell{static_cast<unsigned char*>(block)};
  Work work(plugin, device0, stream);
  EXPECT_EQ(plugin.async_memory_copy_h2d(device0, stream, block, source, 1),
            C_SUCCESS);
  EXPECT_EQ(HostDeviceLaunch(stream, "double", Double, &cell), C_SUCCESS);
  EXPECT_EQ(plugin.async_memory_copy_d2d(device0, stream, second, block, 1),
            C_SUCCESS);
  EXPECT_EQ(HostDeviceLaunch(stream, "double", Double, &cell), C_SUCCESS);
  EXPECT_EQ(plugin.async_memory_copy_d2h(device0, stream, back, block, 1),
            C_SUCCESS);
  EXPECT_EQ(cell.calls, 0);
  work.Finish();
  EXPECT_EQ(plugin.synchronize_stream(device0, stream), C_SUCCESS);
  EXPECT_EQ(cell.calls, 2);
  EXPECT_EQ(Download(plugin, device0, second, 1), Bytes{10});
  EXPECT_EQ(Content(back, 1), Bytes{20});
}

TEST_F(HostDeviceTest, ALaunchOnAStreamWithoutOtherWorkOrDelayIsDoneByTheCall) {
  const Plugin plugin;
  unsigned char byte = 1;
  Cell cell{&byte};
  C_Stream stream = CreateStream(plugin, device0);
  for (int round = 1; round <= 100; ++round) {
    EXPECT_EQ(HostDeviceLaunch(stream, "double", Double, &cell), C_SUCCESS);
    EXPECT_EQ(cell.calls, round);
  }
}

TEST_F(HostDeviceTest, ALaunchIsDelayedWithItsStream) {
  const Plugin plugin;
  C_Stream stream = CreateStream(plugin, device1);
  std::atomic<bool> called{false};
  const auto note = [](void* argument) {
    *static_cast<std::atomic<bool>*>(argument) = true;
  };
  ExpectWithAmpleDelay([&](uint64_t delay) {
    called = false;
    EXPECT_EQ(HostDeviceSetDelay(1, stream, delay), C_SUCCESS);
    EXPECT_EQ(HostDeviceLaunch(stream, "note", note, &called), C_SUCCESS);
    const bool early = called;
    const bool is_late = plugin.query_stream(device1, stream) == C_FAILED;
    EXPECT_EQ(plugin.synchronize_stream(device1, stream), C_SUCCESS);
    EXPECT_TRUE(called);
    return !early && is_late;
  });
}

TEST_F(HostDeviceTest, TheTraceRecordsTheKindOfALaunch) {
  const Plugin plugin;
  unsigned char byte = 1;
  Cell cell{&byte};
  C_Stream stream = CreateStream(plugin, device1);
  EXPECT_EQ(HostDeviceLaunch(stream, "double", Double, &cell), C_SUCCESS);
  EXPECT_EQ(plugin.synchronize_stream(device1, stream), C_SUCCESS);
  const auto trace = TakeTrace();
  EXPECT_EQ(trace.size(), 1);
  EXPECT_EQ(trace[0].device, 1);
  EXPECT_EQ(trace[0].stream, stream);
  EXPECT_EQ(trace[0].kind, std::string("double"));
}

TEST_F(HostDeviceTest, FreeingMemoryWaitsForTheLaunchesThatUseIt) {
  const Plugin plugin;
  void* const block = Upload(plugin, device0, {1});
  Cell cell{static_cast<unsigned char*>(block)};
  C_Stream stream = CreateStream(plugin, device0);
  EXPECT_EQ(HostDeviceSetDelay(0, stream, 20000), C_SUCCESS);
  EXPECT_EQ(HostDeviceLaunch(stream, "double", Double, &cell), C_SUCCESS);
  EXPECT_EQ(plugin.device_memory_deallocate(device0, block, 1), C_SUCCESS);
  EXPECT_EQ(cell.calls, 1);
}

TEST_F(HostDeviceTest, ALaunchedFunctionMustNotWait) {
  struct Call {
    const Plugin* plugin;
    C_Stream stream;
    C_Status status = C_SUCCESS;
  };
  const Plugin plugin;
  Call call{&plugin, CreateStream(plugin, device0)};
  const auto wait = [](void* argument) {
    auto* const call = static_cast<Call*>(argument);
    call->status = call->plugin->synchronize_stream(device0, call->stream);
  };
  EXPECT_EQ(HostDeviceLaunch(call.stream, "wait", wait, &call), C_SUCCESS);
  EXPECT_EQ(plugin.synchronize_stream(device0, call.stream), C_SUCCESS);
  EXPECT_EQ(call.status, C_ERROR);
}

TEST_F(HostDeviceTest, ALaunchWithoutAFunctionOrALiveStreamIsRefused) {
  const Plugin plugin;
  unsigned char byte = 1;
  Cell cell{&byte};
  C_Stream stream = CreateStream(plugin, device0);
  EXPECT_EQ(HostDeviceLaunch(stream, "nothing", nullptr, nullptr), C_ERROR);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring,
                      "there is no function to launch as nothing",
                      printed_errors.Text());
  EXPECT_EQ(plugin.destroy_stream(device0, stream), C_SUCCESS);
  for (C_Stream none : {stream, C_Stream{nullptr}}) {
    printed_errors.Clear();
    EXPECT_EQ(HostDeviceLaunch(none, "double", Double, &cell), C_ERROR);
    EXPECT_PRED_FORMAT2(::testing::IsSubstring,
                        "there is no live stream ",
                        printed_errors.Text());
    EXPECT_PRED_FORMAT2(
        ::testing::IsSubstring, " to launch double on", printed_errors.Text());
  }
  EXPECT_EQ(cell.calls, 0);
  EXPECT_TRUE(TakeTrace().empty());
}

// -- Forks --------------------------------------------------------------------

// GCC 12's thread sanitizer does not support new threads in a child that was
// forked from a process with threads, even with die_after_fork=0: it reports
// their ids as already used.
#ifndef __SANITIZE_THREAD__

// Runs `body` in a forked child, and checks that it ends in time and that its
// expectations hold.
template <typename Body>
void InChild(const Body& body) {
  const pid_t child = fork();
  EXPECT_GE(child, 0);
  if (child == 0) {
    // A child does not inherit this process's alarm.
    alarm(120);
    body();
    std::fflush(stdout);
    _exit(::testing::Test::HasFailure() ? EXIT_FAILURE : EXIT_SUCCESS);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), EXIT_SUCCESS);
}

TEST_F(HostDeviceTest, StreamsAreEmptyInAForkedChild) {
  const Plugin plugin;
  const Bytes bytes = Counting(100, 7);
  void* const block = Upload(plugin, device0, Bytes(100));
  C_Stream stream = CreateStream(plugin, device0);
  C_Stream destroyed = CreateStream(plugin, device0);
  C_Event event = CreateEvent(plugin, device0);
  EXPECT_EQ(plugin.record_event(device0, stream, event), C_SUCCESS);
  Work work(plugin, device0, stream);
  Work other(plugin, device0, destroyed);
  EXPECT_EQ(plugin.destroy_stream(device0, destroyed), C_SUCCESS);
  EXPECT_EQ(
      plugin.async_memory_copy_h2d(device0, stream, block, bytes.data(), 100),
      C_SUCCESS);
  EXPECT_EQ(plugin.record_event(device0, stream, event), C_SUCCESS);
  InChild([&] {
    EXPECT_TRUE(TakeTrace().empty());
    EXPECT_EQ(plugin.query_stream(device0, stream), C_SUCCESS);
    EXPECT_EQ(plugin.synchronize_device(device0), C_SUCCESS);
    EXPECT_EQ(plugin.query_event(device0, event), C_SUCCESS);
    EXPECT_EQ(plugin.synchronize_event(device0, event), C_SUCCESS);
    EXPECT_FALSE(work.Finished());
    EXPECT_EQ(Download(plugin, device0, block, 100), Bytes(100));
    EXPECT_EQ(
        plugin.async_memory_copy_h2d(device0, stream, block, bytes.data(), 100),
        C_SUCCESS);
    EXPECT_EQ(plugin.record_event(device0, stream, event), C_SUCCESS);
    EXPECT_EQ(plugin.synchronize_event(device0, event), C_SUCCESS);
    EXPECT_EQ(Download(plugin, device0, block, 100), bytes);
    EXPECT_EQ(TakeTrace().size(), 2);
    EXPECT_EQ(plugin.device_memory_deallocate(device0, block, 100), C_SUCCESS);
    EXPECT_EQ(plugin.destroy_event(device0, event), C_SUCCESS);
    EXPECT_EQ(plugin.destroy_stream(device0, stream), C_SUCCESS);
  });
  EXPECT_EQ(plugin.query_stream(device0, stream), C_FAILED);
  EXPECT_EQ(Download(plugin, device0, block, 100), Bytes(100));
  work.Finish();
  other.Finish();
  EXPECT_EQ(plugin.synchronize_event(device0, event), C_SUCCESS);
  EXPECT_EQ(Download(plugin, device0, block, 100), bytes);
}

TEST_F(HostDeviceTest, AProcessFinishesItsWorkBeforeItExits) {
  const Plugin plugin;
  std::array<int, 2> ends{};
  EXPECT_EQ(pipe(ends.data()), 0);
  const C_Callback callback = [](C_Device, C_Stream, void* data, C_Status*) {
    EXPECT_EQ(write(*static_cast<int*>(data), "!", 1), 1);
  };
  InChild([&] {
    EXPECT_EQ(HostDeviceSetDelay(0, nullptr, 20000), C_SUCCESS);
    C_Stream stream = CreateStream(plugin, device0);
    EXPECT_EQ(plugin.stream_add_callback(device0, stream, callback, &ends[1]),
              C_SUCCESS);
    std::exit(::testing::Test::HasFailure() ? EXIT_FAILURE : EXIT_SUCCESS);
  });
  close(ends[1]);
  char byte = 0;
  EXPECT_EQ(read(ends[0], &byte, 1), 1);
  close(ends[0]);
}

// With GCC 12's address sanitizer, a child cannot start threads if its parent
// was starting one at the fork: the lock of the sanitizer's thread list stays
// locked.
#ifndef __SANITIZE_ADDRESS__

TEST_F(HostDeviceTest, AChildForkedFromABusyProcessWorks) {
  const Plugin plugin;
  std::atomic<bool> enough{false};
  const auto use_everything = [&](C_Device device) {
    const Bytes bytes(64, device->id);
    C_Stream stream = CreateStream(plugin, device);
    C_Event event = CreateEvent(plugin, device);
    void* const block = Allocate(plugin, device, 64);
    EXPECT_EQ(
        plugin.async_memory_copy_h2d(device, stream, block, bytes.data(), 64),
        C_SUCCESS);
    EXPECT_EQ(plugin.record_event(device, stream, event), C_SUCCESS);
    EXPECT_EQ(plugin.synchronize_event(device, event), C_SUCCESS);
    EXPECT_EQ(Download(plugin, device, block, 64), bytes);
    EXPECT_EQ(plugin.device_memory_deallocate(device, block, 64), C_SUCCESS);
    EXPECT_EQ(plugin.destroy_event(device, event), C_SUCCESS);
    EXPECT_EQ(plugin.destroy_stream(device, stream), C_SUCCESS);
  };
  InThreads(3, [&](int index) {
    if (index > 0) {
      while (!enough) {
        // Repeat, so that a fork is likely to come in between.
        for (int round = 0; round < 1000; ++round) Available(plugin, device0);
        use_everything(&devices[index]);
      }
      return;
    }
    for (int round = 0; round < 20; ++round) {
      InChild([&] {
        for (C_Device_st& device : devices) use_everything(&device);
      });
    }
    enough = true;
  });
}

#endif  // __SANITIZE_ADDRESS__

#endif  // __SANITIZE_THREAD__

// -- Events -------------------------------------------------------------------

void CheckRefusesEvent(const Plugin& plugin, C_Device device, C_Event event) {
  EXPECT_EQ(plugin.query_event(device, event), C_ERROR);
  EXPECT_EQ(plugin.synchronize_event(device, event), C_ERROR);
  EXPECT_EQ(plugin.destroy_event(device, event), C_ERROR);
  EXPECT_EQ(plugin.record_event(device, CreateStream(plugin, device), event),
            C_ERROR);
}

TEST_F(HostDeviceTest, ADestroyedEventIsRefused) {
  const Plugin plugin;
  C_Stream stream = CreateStream(plugin, device0);
  C_Event event = CreateEvent(plugin, device0);
  EXPECT_EQ(plugin.destroy_event(device0, event), C_SUCCESS);
  CheckRefusesEvent(plugin, device0, event);
  EXPECT_EQ(plugin.stream_wait_event(device0, stream, event), C_ERROR);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring,
                      "device 0 has no live event ",
                      printed_errors.Text());
  EXPECT_PRED_FORMAT2(
      ::testing::IsSubstring, "there is no live event ", printed_errors.Text());
}

TEST_F(HostDeviceTest, AnEventOfAnotherDeviceIsRefusedAndStaysUsable) {
  const Plugin plugin;
  C_Event event = CreateEvent(plugin, device1);
  CheckRefusesEvent(plugin, device0, event);
  EXPECT_EQ(plugin.query_event(device1, event), C_SUCCESS);
}

TEST_F(HostDeviceTest, AnEventRefusesToRecordAStreamOfAnotherDevice) {
  const Plugin plugin;
  C_Stream stream = CreateStream(plugin, device1);
  C_Event event = CreateEvent(plugin, device0);
  EXPECT_EQ(plugin.record_event(device0, stream, event), C_ERROR);
  EXPECT_EQ(plugin.record_event(device1, stream, event), C_ERROR);
}

TEST_F(HostDeviceTest, AnEventIsCompleteBeforeItIsRecorded) {
  const Plugin plugin;
  C_Stream stream = CreateStream(plugin, device0);
  C_Event event = CreateEvent(plugin, device0);
  Work work(plugin, device0, stream);
  EXPECT_EQ(plugin.query_event(device0, event), C_SUCCESS);
  EXPECT_EQ(plugin.synchronize_event(device0, event), C_SUCCESS);
  work.Finish();
}

TEST_F(HostDeviceTest, AnEventCompletesWithTheWorkBeforeIt) {
  const Plugin plugin;
  C_Stream stream = CreateStream(plugin, device0);
  C_Event event = CreateEvent(plugin, device0);
  Work work(plugin, device0, stream);
  EXPECT_EQ(plugin.record_event(device0, stream, event), C_SUCCESS);
  EXPECT_EQ(plugin.query_event(device0, event), C_FAILED);
  work.Finish();
  Await([&] { return plugin.query_event(device0, event) == C_SUCCESS; });
  EXPECT_TRUE(work.Finished());
}

TEST_F(HostDeviceTest, AnEventDoesNotWaitForTheWorkAfterIt) {
  const Plugin plugin;
  C_Stream stream = CreateStream(plugin, device0);
  C_Event event = CreateEvent(plugin, device0);
  EXPECT_EQ(plugin.record_event(device0, stream, event), C_SUCCESS);
  Work work(plugin, device0, stream);
  EXPECT_EQ(plugin.synchronize_event(device0, event), C_SUCCESS);
  EXPECT_EQ(plugin.query_event(device0, event), C_SUCCESS);
  work.Finish();
}

TEST_F(HostDeviceTest, AnEventStandsForItsLastRecord) {
  const Plugin plugin;
  C_Stream busy = CreateStream(plugin, device0);
  C_Stream idle = CreateStream(plugin, device0);
  C_Event event = CreateEvent(plugin, device0);
  EXPECT_EQ(plugin.stream_add_callback(device0, idle, DoNothing, nullptr),
            C_SUCCESS);
  Work work(plugin, device0, busy);
  EXPECT_EQ(plugin.record_event(device0, busy, event), C_SUCCESS);
  EXPECT_EQ(plugin.record_event(device0, idle, event), C_SUCCESS);
  EXPECT_EQ(plugin.synchronize_event(device0, event), C_SUCCESS);
  EXPECT_EQ(plugin.record_event(device0, busy, event), C_SUCCESS);
  EXPECT_EQ(plugin.query_event(device0, event), C_FAILED);
  work.Finish();
}

TEST_F(HostDeviceTest, SynchronizingAnEventWaitsForTheWorkBeforeIt) {
  const Plugin plugin;
  C_Stream stream = CreateStream(plugin, device0);
  C_Event event = CreateEvent(plugin, device0);
  Work work(plugin, device0, stream);
  EXPECT_EQ(plugin.record_event(device0, stream, event), C_SUCCESS);
  CheckWaitsFor(&work,
                [&] { return plugin.synchronize_event(device0, event); });
}

TEST_F(HostDeviceTest, AStreamWaitsForAnEventOfAnotherDevice) {
  const Plugin plugin;
  C_Stream stream = CreateStream(plugin, device0);
  C_Stream waiting = CreateStream(plugin, device1);
  C_Event event = CreateEvent(plugin, device0);
  Work work(plugin, device0, stream);
  EXPECT_EQ(plugin.record_event(device0, stream, event), C_SUCCESS);
  EXPECT_EQ(plugin.stream_wait_event(device1, waiting, event), C_SUCCESS);
  EXPECT_EQ(plugin.query_stream(device1, waiting), C_FAILED);
  CheckWaitsFor(&work,
                [&] { return plugin.synchronize_stream(device1, waiting); });
}

TEST_F(HostDeviceTest,
       WorkAfterAWaitForAnEventRunsAfterTheWorkBeforeTheRecord) {
  const Plugin plugin;
  const Bytes bytes = Counting(1000, 7);
  void* const from = Upload(plugin, device0, Bytes(1000));
  void* const to = Upload(plugin, device1, Bytes(1000));
  C_Stream producer = CreateStream(plugin, device0);
  C_Stream consumer = CreateStream(plugin, device1);
  C_Event event = CreateEvent(plugin, device0);
  EXPECT_EQ(HostDeviceSetDelay(0, nullptr, 20000), C_SUCCESS);
  EXPECT_EQ(
      plugin.async_memory_copy_h2d(device0, producer, from, bytes.data(), 1000),
      C_SUCCESS);
  EXPECT_EQ(plugin.record_event(device0, producer, event), C_SUCCESS);
  EXPECT_EQ(plugin.stream_wait_event(device1, consumer, event), C_SUCCESS);
  EXPECT_EQ(
      plugin.async_memory_copy_p2p(device1, device0, consumer, to, from, 1000),
      C_SUCCESS);
  EXPECT_EQ(plugin.synchronize_stream(device1, consumer), C_SUCCESS);
  EXPECT_EQ(Download(plugin, device1, to, 1000), bytes);
}

TEST_F(HostDeviceTest, AWaitForAnUnrecordedEventDoesNotBlock) {
  const Plugin plugin;
  C_Stream stream = CreateStream(plugin, device0);
  C_Event event = CreateEvent(plugin, device0);
  EXPECT_EQ(plugin.stream_wait_event(device0, stream, event), C_SUCCESS);
  EXPECT_EQ(plugin.synchronize_stream(device0, stream), C_SUCCESS);
}

TEST_F(HostDeviceTest, AWaitForAnEventIsForTheLastRecordAtThatTime) {
  const Plugin plugin;
  C_Stream idle = CreateStream(plugin, device0);
  C_Stream busy = CreateStream(plugin, device0);
  C_Stream waiting = CreateStream(plugin, device1);
  C_Event event = CreateEvent(plugin, device0);
  Work work(plugin, device0, busy);
  Work hold(plugin, device1, waiting);
  EXPECT_EQ(plugin.record_event(device0, idle, event), C_SUCCESS);
  EXPECT_EQ(plugin.stream_wait_event(device1, waiting, event), C_SUCCESS);
  EXPECT_EQ(plugin.record_event(device0, busy, event), C_SUCCESS);
  hold.Finish();
  EXPECT_EQ(plugin.synchronize_stream(device1, waiting), C_SUCCESS);
  EXPECT_EQ(plugin.query_event(device0, event), C_FAILED);
  work.Finish();
}

TEST_F(HostDeviceTest, AWaitForAnEventOutlivesTheEventAndItsNextRecord) {
  const Plugin plugin;
  C_Stream stream = CreateStream(plugin, device0);
  C_Stream idle = CreateStream(plugin, device0);
  C_Stream waiting = CreateStream(plugin, device1);
  C_Event event = CreateEvent(plugin, device0);
  Work work(plugin, device0, stream);
  EXPECT_EQ(plugin.record_event(device0, stream, event), C_SUCCESS);
  EXPECT_EQ(plugin.stream_wait_event(device1, waiting, event), C_SUCCESS);
  EXPECT_EQ(plugin.record_event(device0, idle, event), C_SUCCESS);
  EXPECT_EQ(plugin.destroy_event(device0, event), C_SUCCESS);
  CheckWaitsFor(&work,
                [&] { return plugin.synchronize_stream(device1, waiting); });
}

TEST_F(HostDeviceTest, AStreamCanWaitForItsOwnEvent) {
  const Plugin plugin;
  C_Stream stream = CreateStream(plugin, device0);
  C_Event event = CreateEvent(plugin, device0);
  EXPECT_EQ(plugin.record_event(device0, stream, event), C_SUCCESS);
  EXPECT_EQ(plugin.stream_wait_event(device0, stream, event), C_SUCCESS);
  EXPECT_EQ(plugin.destroy_stream(device0, stream), C_SUCCESS);
  EXPECT_EQ(plugin.synchronize_device(device0), C_SUCCESS);
}

TEST_F(HostDeviceTest, AnEventOutlivesItsStream) {
  const Plugin plugin;
  C_Stream stream = CreateStream(plugin, device0);
  C_Event event = CreateEvent(plugin, device0);
  Work work(plugin, device0, stream);
  EXPECT_EQ(plugin.record_event(device0, stream, event), C_SUCCESS);
  EXPECT_EQ(plugin.destroy_stream(device0, stream), C_SUCCESS);
  EXPECT_EQ(plugin.query_event(device0, event), C_FAILED);
  CheckWaitsFor(&work,
                [&] { return plugin.synchronize_event(device0, event); });
  EXPECT_EQ(plugin.query_event(device0, event), C_SUCCESS);
}

// -- Many threads -------------------------------------------------------------

TEST_F(HostDeviceTest, AStreamRunsTheWorkOfManyThreadsOneAtATime) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 500;
  const Plugin plugin;
  C_Stream stream = CreateStream(plugin, device0);
  int count = 0;
  const C_Callback callback = [](C_Device, C_Stream, void* data, C_Status*) {
    ++*static_cast<int*>(data);
  };
  InThreads(kThreads, [&](int) {
    for (int round = 0; round < kRounds; ++round) {
      EXPECT_EQ(plugin.stream_add_callback(device0, stream, callback, &count),
                C_SUCCESS);
    }
  });
  EXPECT_EQ(plugin.synchronize_stream(device0, stream), C_SUCCESS);
  EXPECT_EQ(count, kThreads * kRounds);
}

// Checks that of two threads that call `destroy` concurrently, exactly one
// succeeds.
template <typename Destroy>
void CheckSucceedsOnce(const Destroy& destroy) {
  std::atomic<int> successes{0};
  InThreads(2, [&](int) { successes += destroy() == C_SUCCESS; });
  EXPECT_EQ(successes, 1);
}

TEST_F(HostDeviceTest, OfThreadsThatDestroyTheSameObjectOneSucceeds) {
  const Plugin plugin;
  for (int round = 0; round < 300; ++round) {
    C_Stream stream = CreateStream(plugin, device0);
    C_Event event = CreateEvent(plugin, device0);
    void* const block = Allocate(plugin, device0, 1);
    CheckSucceedsOnce([&] { return plugin.destroy_stream(device0, stream); });
    CheckSucceedsOnce([&] { return plugin.destroy_event(device0, event); });
    CheckSucceedsOnce(
        [&] { return plugin.device_memory_deallocate(device0, block, 1); });
  }
}

TEST_F(HostDeviceTest, ThreadsThatFillADeviceNeverGetMoreThanItHas) {
  const Variable variable("HOST_DEVICE_MEMORY", "5000");
  const Plugin plugin;
  std::atomic<size_t> granted{0};
  InThreads(4, [&](int) {
    for (int round = 0; round < 2000; ++round) {
      void* block = nullptr;
      granted += plugin.device_memory_allocate(device0, &block, 1) == C_SUCCESS;
      const size_t granted_before = granted;
      EXPECT_LE(Available(plugin, device0), 5000 - granted_before);
    }
  });
  EXPECT_EQ(granted, 5000);
}

TEST_F(HostDeviceTest, AnEventIsRecordedByOneThreadAndUsedByAnother) {
  constexpr int kRounds = 5000;
  const Plugin plugin;
  C_Stream streams[] = {CreateStream(plugin, device0),
                        CreateStream(plugin, device0)};
  C_Event event = CreateEvent(plugin, device0);
  InThreads(2, [&](int index) {
    for (int round = 0; round < kRounds; ++round) {
      if (index == 0) {
        EXPECT_EQ(plugin.record_event(device0, streams[round % 2], event),
                  C_SUCCESS);
      } else {
        EXPECT_NE(plugin.query_event(device0, event), C_ERROR);
        EXPECT_EQ(plugin.synchronize_event(device0, event), C_SUCCESS);
      }
    }
  });
}

TEST_F(HostDeviceTest, ABlockFreedDuringACopyStaysReadableForTheCopy) {
  constexpr size_t kSize = 1 << 16;
  const Plugin plugin;
  const Bytes bytes = Counting(kSize, 7);
  for (int round = 0; round < 20; ++round) {
    void* const block = Upload(plugin, device0, bytes);
    std::atomic<bool> copied{false};
    InThreads(2, [&](int index) {
      if (index == 0) {
        Await([&] { return copied.load(std::memory_order_relaxed); });
        EXPECT_EQ(plugin.device_memory_deallocate(device0, block, kSize),
                  C_SUCCESS);
        return;
      }
      Bytes back(kSize);
      while (plugin.memory_copy_d2h(device0, back.data(), block, kSize) ==
             C_SUCCESS) {
        EXPECT_EQ(back, bytes);
        // Relaxed, so that it does not order a copy before the block is freed.
        copied.store(true, std::memory_order_relaxed);
      }
    });
  }
}

TEST_F(HostDeviceTest, ManyThreadsUseEverythingConcurrently) {
  constexpr size_t kSize = 4096;
  const Plugin plugin;
  void* const shared_block = Allocate(plugin, device0, kSize);
  C_Stream shared_stream = CreateStream(plugin, device0);
  InThreads(8, [&](int index) {
    C_Device device = &devices[index % devices.size()];
    const Bytes bytes(kSize, index);
    EXPECT_EQ(plugin.set_device(device), C_SUCCESS);
    for (int round = 0; round < 100; ++round) {
      void* const block = Allocate(plugin, device, kSize);
      C_Stream stream = CreateStream(plugin, device);
      C_Event event = CreateEvent(plugin, device);
      EXPECT_EQ(plugin.async_memory_copy_h2d(
                    device, stream, block, bytes.data(), kSize),
                C_SUCCESS);
      EXPECT_EQ(plugin.record_event(device, stream, event), C_SUCCESS);
      EXPECT_EQ(plugin.stream_wait_event(device0, shared_stream, event),
                C_SUCCESS);
      // Only the stream orders the copies of different threads.
      EXPECT_EQ(plugin.async_memory_copy_p2p(
                    device0, device, shared_stream, shared_block, block, kSize),
                C_SUCCESS);
      EXPECT_EQ(plugin.synchronize_device(device0), C_SUCCESS);
      EXPECT_EQ(Download(plugin, device, block, kSize), bytes);
      EXPECT_EQ(plugin.destroy_event(device, event), C_SUCCESS);
      EXPECT_EQ(plugin.destroy_stream(device, stream), C_SUCCESS);
      EXPECT_EQ(plugin.device_memory_deallocate(device, block, kSize),
                C_SUCCESS);
    }
    C_Device_st current{-1};
    EXPECT_EQ(plugin.get_device(&current), C_SUCCESS);
    EXPECT_EQ(current.id, device->id);
  });
  const Bytes last = Download(plugin, device0, shared_block, kSize);
  EXPECT_EQ(last, Bytes(kSize, last[0]));
}

}  // namespace
