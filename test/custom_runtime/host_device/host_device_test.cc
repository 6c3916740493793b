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

// Tests of the plugin, called as Paddle calls it. Most refusals and waits are
// out of Python's reach, and only a program that is all built with a sanitizer
// shows what the sanitizer makes of the plugin.

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

#include "control.h"
#include "paddle/phi/backends/device_ext.h"

namespace {

// Of the test that runs, in any of its threads.
std::atomic<int> failed_checks{0};

void Check(bool holds, int line, const char* condition) {
  if (holds) return;
  ++failed_checks;
  std::printf("  line %d: %s does not hold\n", line, condition);
}

// A check that fails does not end its test, which might yet have to let other
// threads go on.
#define CHECK(condition) Check(condition, __LINE__, #condition)

struct Test {
  const char* name;
  void (*run)();
};

std::vector<Test> tests;

struct Registration {
  Registration(const char* name, void (*run)()) {
    tests.push_back({name, run});
  }
};

#define TEST(name)                                    \
  void name();                                        \
  const Registration name##Registration(#name, name); \
  void name()

// Holds what the plugin has printed, which it does to std::cerr.
class Complaints : public std::streambuf {
 public:
  Complaints() : cerr_(std::cerr.rdbuf(this)) {}
  ~Complaints() override { std::cerr.rdbuf(cerr_); }

  void Clear() {
    const std::lock_guard<std::mutex> lock(mutex_);
    text_.clear();
  }

  std::string Text() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return text_;
  }

  bool Contain(const std::string& part) const {
    return Text().find(part) != std::string::npos;
  }

 private:
  std::streamsize xsputn(const char* text, std::streamsize size) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    text_.append(text, size);
    return size;
  }

  std::streambuf* const cerr_;
  mutable std::mutex mutex_;  // Guards what follows.
  std::string text_;
};

Complaints complaints;  // Of the test that runs.

// Sets a variable of the environment, while it lives.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    setenv(name, value.c_str(), 1);
  }
  ~Variable() { unsetenv(name_); }

 private:
  const char* const name_;
};

// The plugin as Paddle has it after InitPlugin. Each one made starts afresh,
// and the ones before it are of no more use.
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
  CHECK(plugin.device_memory_allocate(device, &block, size) == C_SUCCESS);
  return block;
}

size_t Available(const Plugin& plugin, C_Device device) {
  size_t total = 0;
  size_t available = 0;
  CHECK(plugin.device_memory_stats(device, &total, &available) == C_SUCCESS);
  return available;
}

C_Stream CreateStream(const Plugin& plugin, C_Device device) {
  C_Stream stream = nullptr;
  CHECK(plugin.create_stream(device, &stream) == C_SUCCESS);
  return stream;
}

C_Event CreateEvent(const Plugin& plugin, C_Device device) {
  C_Event event = nullptr;
  CHECK(plugin.create_event(device, &event) == C_SUCCESS);
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
  CHECK(plugin.memory_copy_h2d(device, block, bytes.data(), bytes.size()) ==
        C_SUCCESS);
  return block;
}

Bytes Download(const Plugin& plugin,
               C_Device device,
               const void* block,
               size_t size) {
  Bytes bytes(size);
  CHECK(plugin.memory_copy_d2h(device, bytes.data(), block, size) == C_SUCCESS);
  return bytes;
}

void* At(void* block, ptrdiff_t offset) {
  return static_cast<unsigned char*>(block) + offset;
}

// Returns once the condition holds.
template <typename Condition>
void Await(const Condition& condition) {
  while (!condition()) std::this_thread::yield();
}

// Runs body(0) to body(count - 1), each in a thread of its own.
template <typename Body>
void InThreads(int count, const Body& body) {
  std::atomic<int> missing{count};
  std::vector<std::thread> threads;
  for (int index = 0; index < count; ++index) {
    threads.emplace_back([&, index] {
      // Threads are slow to start; those that wait for the last one race.
      --missing;
      Await([&] { return missing == 0; });
      body(index);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Work that occupies a stream from its construction to Finish.
class Work {
 public:
  Work(const Plugin& plugin, C_Device device, C_Stream stream) {
    CHECK(plugin.stream_add_callback(device, stream, Run, this) == C_SUCCESS);
    started_.get_future().wait();
  }
  ~Work() { ended_.get_future().wait(); }

  void Finish() { may_finish_.set_value(); }

  // To be called by who knows, from the plugin, that it is. Nothing else orders
  // the call after the end of the work, so the thread sanitizer sees whether
  // the plugin does.
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

// Whether `call`, made in another thread, is not over although it has had ample
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
    CHECK(wait() == C_SUCCESS);
    CHECK(work->Finished());
  });
  CHECK(Waits(call));
  work->Finish();
  call.wait();
}

void DoNothing(C_Device, C_Stream, void*, C_Status*) {}

// -- The configuration --------------------------------------------------------

TEST(InitializationNamesTheDeviceTypeAndTheVersion) {
  const Plugin plugin;
  CHECK(plugin.params.device_type == std::string("custom_cpu"));
  CHECK(plugin.params.sub_device_type == std::string("custom_cpu"));
  CHECK(plugin.params.version.major == PADDLE_CUSTOM_RUNTIME_MAJOR_VERSION);
  CHECK(plugin.params.version.minor == PADDLE_CUSTOM_RUNTIME_MINOR_VERSION);
  CHECK(plugin.params.version.patch == PADDLE_CUSTOM_RUNTIME_PATCH_VERSION);
}

TEST(APaddleWithAnotherInterfaceGetsNoDevices) {
  C_DeviceInterface interface{};
  interface.size = sizeof(interface) + 8;
  CustomRuntimeParams params{};
  params.size = sizeof(params) + 8;
  params.interface = &interface;
  InitPlugin(&params);
  CHECK(params.device_type == nullptr);
}

TEST(ThereAreFourDevicesByDefault) {
  const Plugin plugin;
  size_t count = 0;
  CHECK(plugin.get_device_count(&count) == C_SUCCESS);
  CHECK(count == 4);
}

TEST(TheNumberOfDevicesIsConfigurable) {
  for (const size_t wanted : {1, 16}) {
    const Variable variable("HOST_DEVICE_COUNT", std::to_string(wanted));
    const Plugin plugin;
    size_t count = 0;
    CHECK(plugin.get_device_count(&count) == C_SUCCESS);
    CHECK(count == wanted);
  }
}

TEST(DevicesAreListedByNumber) {
  const Plugin plugin;
  std::array<size_t, 4> list{};
  CHECK(plugin.get_device_list(list.data()) == C_SUCCESS);
  CHECK((list == std::array<size_t, 4>{0, 1, 2, 3}));
}

TEST(ADeviceHasOneGibibyteByDefault) {
  const Plugin plugin;
  for (C_Device_st& device : devices) {
    size_t total = 0;
    size_t available = 0;
    CHECK(plugin.device_memory_stats(&device, &total, &available) == C_SUCCESS);
    CHECK(total == size_t{1} << 30);
    CHECK(available == total);
  }
}

TEST(TheMemoryOfADeviceIsConfigurable) {
  for (const size_t wanted : {size_t{1}, size_t{1} << 40}) {
    const Variable variable("HOST_DEVICE_MEMORY", std::to_string(wanted));
    const Plugin plugin;
    CHECK(Available(plugin, device1) == wanted);
  }
}

TEST(ABadVariableIsNamedAndLeavesNoDevices) {
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
      {"HOST_DEVICE_DELAY", "0"},
      {"HOST_DEVICE_DELAY", "10000001"},
  };
  for (const auto& [name, value] : refused) {
    const Variable variable(name, value);
    const Plugin plugin;
    CHECK(plugin.params.device_type == nullptr);
    CHECK(complaints.Contain(std::string("no devices: ") + name + " is \"" +
                             value + "\", not a number from 1 to "));
  }
}

// -- The current device -------------------------------------------------------

TEST(AThreadStartsOnDeviceZero) {
  const Plugin plugin;
  InThreads(1, [&](int) {
    C_Device_st current{-1};
    CHECK(plugin.get_device(&current) == C_SUCCESS);
    CHECK(current.id == 0);
  });
}

TEST(EachThreadHasACurrentDeviceOfItsOwn) {
  const Plugin plugin;
  InThreads(1, [&](int) {
    CHECK(plugin.set_device(device1) == C_SUCCESS);
    InThreads(1, [&](int) { CHECK(plugin.set_device(device0) == C_SUCCESS); });
    C_Device_st current{-1};
    CHECK(plugin.get_device(&current) == C_SUCCESS);
    CHECK(current.id == 1);
  });
}

TEST(SettingADeviceThatDoesNotExistKeepsTheCurrentOne) {
  const Plugin plugin;
  InThreads(1, [&](int) {
    CHECK(plugin.set_device(device1) == C_SUCCESS);
    for (C_Device_st& device : no_devices) {
      CHECK(plugin.set_device(&device) == C_ERROR);
    }
    C_Device_st current{-1};
    CHECK(plugin.get_device(&current) == C_SUCCESS);
    CHECK(current.id == 1);
  });
}

TEST(ADeviceThatDoesNotExistIsRefusedByNumber) {
  const Plugin plugin;
  Bytes host(1);
  void* const block = Allocate(plugin, device0, 1);
  for (C_Device_st& device : no_devices) {
    void* ptr = nullptr;
    size_t total = 0;
    size_t available = 0;
    C_Stream stream = nullptr;
    C_Event event = nullptr;
    CHECK(plugin.device_memory_allocate(&device, &ptr, 1) == C_ERROR);
    CHECK(plugin.device_memory_deallocate(&device, block, 1) == C_ERROR);
    CHECK(plugin.device_memory_stats(&device, &total, &available) == C_ERROR);
    CHECK(plugin.memory_copy_h2d(&device, block, host.data(), 1) == C_ERROR);
    CHECK(plugin.memory_copy_d2h(&device, host.data(), block, 1) == C_ERROR);
    CHECK(plugin.synchronize_device(&device) == C_ERROR);
    CHECK(plugin.create_stream(&device, &stream) == C_ERROR);
    CHECK(plugin.create_event(&device, &event) == C_ERROR);
    CHECK(complaints.Contain("no device " + std::to_string(device.id)));
  }
}

// -- Memory -------------------------------------------------------------------

TEST(ABlockTakesItsSizeFromItsDeviceOnlyUntilItIsFreed) {
  const Plugin plugin;
  const size_t total = Available(plugin, device0);
  void* const block = Allocate(plugin, device0, 1000);
  CHECK(Available(plugin, device0) == total - 1000);
  CHECK(Available(plugin, device1) == total);
  CHECK(plugin.device_memory_deallocate(device0, block, 1000) == C_SUCCESS);
  CHECK(Available(plugin, device0) == total);
}

TEST(ABlockStartsAtAMultipleOfTheChunkSize) {
  const Plugin plugin;
  size_t chunk = 0;
  CHECK(plugin.device_min_chunk_size(device0, &chunk) == C_SUCCESS);
  CHECK(chunk >= 64);
  for (const size_t size : {0, 1, 63, 64, 65, 1000}) {
    void* const block = Allocate(plugin, device0, size);
    CHECK(reinterpret_cast<uintptr_t>(block) % chunk == 0);
  }
}

TEST(EmptyBlocksHaveAddressesOfTheirOwn) {
  const Plugin plugin;
  void* const first = Allocate(plugin, device0, 0);
  void* const second = Allocate(plugin, device0, 0);
  CHECK(first != nullptr);
  CHECK(second != nullptr);
  CHECK(first != second);
  CHECK(plugin.device_memory_deallocate(device0, first, 0) == C_SUCCESS);
  CHECK(plugin.device_memory_deallocate(device0, second, 0) == C_SUCCESS);
}

TEST(ADeviceCanBeFilledToTheLastByte) {
  const Variable variable("HOST_DEVICE_MEMORY", "1000");
  const Plugin plugin;
  Allocate(plugin, device0, 999);
  Allocate(plugin, device0, 1);
  CHECK(Available(plugin, device0) == 0);
}

TEST(ABlockThatDoesNotFitIsRefusedWithWhatIsFree) {
  const Variable variable("HOST_DEVICE_MEMORY", "1000");
  const Plugin plugin;
  Allocate(plugin, device1, 900);
  for (const size_t size : {size_t{101}, SIZE_MAX}) {
    void* block = nullptr;
    CHECK(plugin.device_memory_allocate(device1, &block, size) == C_FAILED);
    CHECK(block == nullptr);
    CHECK(complaints.Contain("device 1 cannot allocate " +
                             std::to_string(size) +
                             " bytes: 100 of 1000 are free"));
  }
}

TEST(AFullDeviceLeavesTheOthersUsable) {
  const Variable variable("HOST_DEVICE_MEMORY", "1000");
  const Plugin plugin;
  Allocate(plugin, device0, 1000);
  Allocate(plugin, device1, 1000);
}

TEST(OnlyALiveBlockOfThatDeviceAndSizeIsFreed) {
  const Plugin plugin;
  void* const block = Allocate(plugin, device0, 1000);
  const size_t available = Available(plugin, device0);
  CHECK(plugin.device_memory_deallocate(device1, block, 1000) == C_ERROR);
  CHECK(plugin.device_memory_deallocate(device0, block, 999) == C_ERROR);
  CHECK(plugin.device_memory_deallocate(device0, At(block, 64), 936) ==
        C_ERROR);
  CHECK(plugin.device_memory_deallocate(device0, nullptr, 0) == C_ERROR);
  CHECK(Available(plugin, device0) == available);
  CHECK(complaints.Contain("device 0 has no live block of 999 bytes at 0x"));
}

TEST(ABlockIsFreedOnce) {
  const Plugin plugin;
  void* const block = Allocate(plugin, device0, 1000);
  const size_t available = Available(plugin, device0);
  CHECK(plugin.device_memory_deallocate(device0, block, 1000) == C_SUCCESS);
  CHECK(plugin.device_memory_deallocate(device0, block, 1000) == C_ERROR);
  CHECK(Available(plugin, device0) == available + 1000);
}

// -- Copies -------------------------------------------------------------------

TEST(EachKindOfCopyMovesTheBytes) {
  const Plugin plugin;
  const Bytes bytes = Counting(1000, 7);
  void* const first = Upload(plugin, device0, bytes);
  void* const second = Allocate(plugin, device0, 1000);
  void* const third = Allocate(plugin, device1, 1000);
  CHECK(plugin.memory_copy_d2d(device0, second, first, 1000) == C_SUCCESS);
  CHECK(plugin.memory_copy_p2p(device1, device0, third, second, 1000) ==
        C_SUCCESS);
  CHECK(Download(plugin, device1, third, 1000) == bytes);
}

TEST(EachKindOfCopyOnAStreamMovesTheBytes) {
  const Plugin plugin;
  const Bytes bytes = Counting(1000, 7);
  Bytes back(1000);
  void* const first = Allocate(plugin, device0, 1000);
  void* const second = Allocate(plugin, device0, 1000);
  void* const third = Allocate(plugin, device1, 1000);
  C_Stream stream0 = CreateStream(plugin, device0);
  C_Stream stream1 = CreateStream(plugin, device1);
  CHECK(plugin.async_memory_copy_h2d(
            device0, stream0, first, bytes.data(), 1000) == C_SUCCESS);
  CHECK(plugin.async_memory_copy_d2d(device0, stream0, second, first, 1000) ==
        C_SUCCESS);
  CHECK(plugin.synchronize_stream(device0, stream0) == C_SUCCESS);
  // A copy between devices runs on a stream of the device that it copies to.
  CHECK(plugin.async_memory_copy_p2p(
            device1, device0, stream1, third, second, 1000) == C_SUCCESS);
  CHECK(plugin.async_memory_copy_d2h(
            device1, stream1, back.data(), third, 1000) == C_SUCCESS);
  CHECK(plugin.synchronize_stream(device1, stream1) == C_SUCCESS);
  CHECK(back == bytes);
}

TEST(ACopyChangesTheBytesItIsGivenOnly) {
  const Plugin plugin;
  Bytes expected(100, 1);
  void* const block = Upload(plugin, device0, expected);
  const Bytes part(20, 2);
  CHECK(plugin.memory_copy_h2d(device0, At(block, 80), part.data(), 20) ==
        C_SUCCESS);
  std::copy(part.begin(), part.end(), expected.begin() + 80);
  CHECK(Download(plugin, device0, block, 100) == expected);
}

TEST(AnEmptyCopyIsFineAnywhereInABlock) {
  const Plugin plugin;
  unsigned char byte = 0;
  void* const empty = Allocate(plugin, device0, 0);
  void* const block = Allocate(plugin, device0, 100);
  CHECK(plugin.memory_copy_h2d(device0, empty, &byte, 0) == C_SUCCESS);
  CHECK(plugin.memory_copy_h2d(device0, block, &byte, 0) == C_SUCCESS);
  CHECK(plugin.memory_copy_d2h(device0, &byte, At(block, 100), 0) == C_SUCCESS);
}

TEST(AnEmptyCopyNeedsNoHostMemory) {
  const Plugin plugin;
  void* const block = Allocate(plugin, device0, 8);
  CHECK(plugin.memory_copy_h2d(device0, block, nullptr, 0) == C_SUCCESS);
  CHECK(plugin.memory_copy_d2h(device0, nullptr, block, 0) == C_SUCCESS);
}

TEST(ACopyThatLeavesItsBlockIsRefusedAndMovesNothing) {
  const Plugin plugin;
  const Bytes bytes = Counting(100, 7);
  Bytes host(200, 1);
  void* const block = Upload(plugin, device0, bytes);
  void* const roomy = Allocate(plugin, device0, 200);
  CHECK(plugin.memory_copy_h2d(device0, block, host.data(), 101) == C_ERROR);
  CHECK(plugin.memory_copy_h2d(device0, At(block, 50), host.data(), 51) ==
        C_ERROR);
  CHECK(plugin.memory_copy_h2d(device0, At(block, -1), host.data(), 2) ==
        C_ERROR);
  CHECK(plugin.memory_copy_h2d(device0, At(block, 1), host.data(), SIZE_MAX) ==
        C_ERROR);
  CHECK(plugin.memory_copy_d2h(device0, host.data(), block, 101) == C_ERROR);
  CHECK(plugin.memory_copy_d2d(device0, block, roomy, 101) == C_ERROR);
  CHECK(plugin.memory_copy_d2d(device0, roomy, block, 101) == C_ERROR);
  CHECK(Download(plugin, device0, block, 100) == bytes);
  CHECK(host == Bytes(200, 1));
  CHECK(complaints.Contain(
      "device 0 has no live memory that holds 101 bytes at 0x"));
}

TEST(ACopyRefusesMemoryOfAnotherDevice) {
  const Plugin plugin;
  Bytes host(100);
  void* const block0 = Allocate(plugin, device0, 100);
  void* const block1 = Allocate(plugin, device1, 100);
  CHECK(plugin.memory_copy_h2d(device1, block0, host.data(), 100) == C_ERROR);
  CHECK(plugin.memory_copy_d2h(device1, host.data(), block0, 100) == C_ERROR);
  CHECK(plugin.memory_copy_d2d(device0, block1, block0, 100) == C_ERROR);
  CHECK(plugin.memory_copy_d2d(device1, block1, block0, 100) == C_ERROR);
  CHECK(plugin.memory_copy_p2p(device0, device1, block1, block0, 100) ==
        C_ERROR);
}

TEST(ACopyRefusesAFreedBlock) {
  const Plugin plugin;
  Bytes host(100);
  void* const block = Allocate(plugin, device0, 100);
  CHECK(plugin.device_memory_deallocate(device0, block, 100) == C_SUCCESS);
  CHECK(plugin.memory_copy_h2d(device0, block, host.data(), 100) == C_ERROR);
  CHECK(plugin.memory_copy_d2h(device0, host.data(), block, 100) == C_ERROR);
}

TEST(ACopyOnAStreamReturnsTheRefusalAndLeavesTheStreamUsable) {
  const Plugin plugin;
  Bytes host(200);
  void* const block = Allocate(plugin, device0, 100);
  void* const roomy = Allocate(plugin, device0, 200);
  C_Stream stream = CreateStream(plugin, device0);
  CHECK(plugin.async_memory_copy_h2d(
            device0, stream, block, host.data(), 101) == C_ERROR);
  CHECK(plugin.async_memory_copy_d2h(
            device0, stream, host.data(), block, 101) == C_ERROR);
  CHECK(plugin.async_memory_copy_d2d(device0, stream, block, roomy, 101) ==
        C_ERROR);
  CHECK(plugin.async_memory_copy_p2p(
            device0, device0, stream, block, roomy, 101) == C_ERROR);
  CHECK(plugin.query_stream(device0, stream) == C_SUCCESS);
  CHECK(plugin.async_memory_copy_h2d(
            device0, stream, block, host.data(), 100) == C_SUCCESS);
}

TEST(BlocksUsedInRandomOrderKeepTheirBytes) {
  const auto seed = std::random_device()();
  std::printf("  random seed %u\n", seed);
  std::mt19937 random(seed);
  const auto below = [&](size_t end) {
    return std::uniform_int_distribution<size_t>(0, end - 1)(random);
  };

  struct Block {
    C_Device device;
    void* ptr;
    Bytes bytes;  // What it must hold.
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
    CHECK(plugin.memory_copy_p2p(to->device,
                                 from.device,
                                 At(to->ptr, offset),
                                 At(from.ptr, start),
                                 size) == C_SUCCESS);
    const auto part = from.bytes.begin() + start;
    std::copy(part, part + size, to->bytes.begin() + offset);
  };
  const auto release = [&](size_t index) {
    const auto [device, ptr, bytes] = blocks[index];
    CHECK(Download(plugin, device, ptr, bytes.size()) == bytes);
    CHECK(plugin.device_memory_deallocate(device, ptr, bytes.size()) ==
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
    CHECK(Available(plugin, &device) == kMemory);
  }
}

// -- Streams ------------------------------------------------------------------

TEST(AHandleIsNotNullAndNeverGivenOutAgain) {
  const Plugin plugin;
  std::set<C_Stream> streams = {nullptr};
  std::set<C_Event> events = {nullptr};
  for (int round = 0; round < 100; ++round) {
    C_Stream stream = CreateStream(plugin, device0);
    C_Event event = CreateEvent(plugin, device0);
    CHECK(streams.insert(stream).second);
    CHECK(events.insert(event).second);
    CHECK(plugin.destroy_stream(device0, stream) == C_SUCCESS);
    CHECK(plugin.destroy_event(device0, event) == C_SUCCESS);
  }
}

void CheckRefusesStream(const Plugin& plugin,
                        C_Device device,
                        C_Stream stream) {
  unsigned char byte = 0;
  void* const block = Allocate(plugin, device, 1);
  void* const other = Allocate(plugin, device, 1);
  C_Event event = CreateEvent(plugin, device);
  CHECK(plugin.query_stream(device, stream) == C_ERROR);
  CHECK(plugin.synchronize_stream(device, stream) == C_ERROR);
  CHECK(plugin.destroy_stream(device, stream) == C_ERROR);
  CHECK(plugin.stream_add_callback(device, stream, DoNothing, nullptr) ==
        C_ERROR);
  CHECK(plugin.stream_wait_event(device, stream, event) == C_ERROR);
  CHECK(plugin.record_event(device, stream, event) == C_ERROR);
  CHECK(plugin.async_memory_copy_h2d(device, stream, block, &byte, 1) ==
        C_ERROR);
  CHECK(plugin.async_memory_copy_d2h(device, stream, &byte, block, 1) ==
        C_ERROR);
  CHECK(plugin.async_memory_copy_d2d(device, stream, other, block, 1) ==
        C_ERROR);
  CHECK(plugin.async_memory_copy_p2p(device, device, stream, other, block, 1) ==
        C_ERROR);
}

TEST(ADestroyedStreamIsRefused) {
  const Plugin plugin;
  C_Stream stream = CreateStream(plugin, device0);
  CHECK(plugin.destroy_stream(device0, stream) == C_SUCCESS);
  CheckRefusesStream(plugin, device0, stream);
  CHECK(complaints.Contain("device 0 has no live stream "));
}

TEST(AStreamOfAnotherDeviceIsRefusedAndStaysUsable) {
  const Plugin plugin;
  C_Stream stream = CreateStream(plugin, device1);
  CheckRefusesStream(plugin, device0, stream);
  CHECK(plugin.query_stream(device1, stream) == C_SUCCESS);
}

TEST(ANullStreamIsRefused) {
  const Plugin plugin;
  CheckRefusesStream(plugin, device0, nullptr);
}

TEST(ACopyBetweenDevicesRefusesAStreamOfItsSource) {
  const Plugin plugin;
  void* const from = Allocate(plugin, device0, 1);
  void* const to = Allocate(plugin, device1, 1);
  C_Stream stream = CreateStream(plugin, device0);
  CHECK(plugin.async_memory_copy_p2p(device1, device0, stream, to, from, 1) ==
        C_ERROR);
}

TEST(ACallbackRunsOnceWithItsDeviceStreamAndData) {
  using Call = std::pair<int, C_Stream>;
  const Plugin plugin;
  C_Stream stream = CreateStream(plugin, device1);
  std::vector<Call> calls;
  const C_Callback callback =
      [](C_Device device, C_Stream stream, void* data, C_Status*) {
        static_cast<std::vector<Call>*>(data)->emplace_back(device->id, stream);
      };
  CHECK(plugin.stream_add_callback(device1, stream, callback, &calls) ==
        C_SUCCESS);
  CHECK(plugin.synchronize_stream(device1, stream) == C_SUCCESS);
  CHECK((calls == std::vector<Call>{{1, stream}}));
}

TEST(AStreamIsCompleteUnlessWorkRuns) {
  const Plugin plugin;
  C_Stream stream = CreateStream(plugin, device0);
  CHECK(plugin.query_stream(device0, stream) == C_SUCCESS);
  Work work(plugin, device0, stream);
  CHECK(plugin.query_stream(device0, stream) == C_FAILED);
  work.Finish();
  Await([&] { return plugin.query_stream(device0, stream) == C_SUCCESS; });
  CHECK(work.Finished());
}

TEST(SynchronizingAStreamWaitsForItsWork) {
  const Plugin plugin;
  C_Stream stream = CreateStream(plugin, device0);
  Work work(plugin, device0, stream);
  CheckWaitsFor(&work,
                [&] { return plugin.synchronize_stream(device0, stream); });
}

TEST(SynchronizingADeviceWaitsForEachOfItsStreams) {
  const Plugin plugin;
  CreateStream(plugin, device0);
  C_Stream stream = CreateStream(plugin, device0);
  CreateStream(plugin, device0);
  Work work(plugin, device0, stream);
  CheckWaitsFor(&work, [&] { return plugin.synchronize_device(device0); });
}

TEST(ABusyStreamHoldsUpNoOther) {
  const Plugin plugin;
  C_Stream busy = CreateStream(plugin, device0);
  C_Stream idle = CreateStream(plugin, device0);
  Work work(plugin, device0, busy);
  CHECK(plugin.stream_add_callback(device0, idle, DoNothing, nullptr) ==
        C_SUCCESS);
  CHECK(plugin.synchronize_stream(device0, idle) == C_SUCCESS);
  CHECK(plugin.synchronize_device(device1) == C_SUCCESS);
  work.Finish();
}

TEST(ABusyStreamCanBeDestroyedAndDoesItsWork) {
  const Plugin plugin;
  const Bytes bytes = Counting(100, 7);
  void* const block = Upload(plugin, device0, Bytes(100));
  C_Stream stream = CreateStream(plugin, device0);
  {
    Work work(plugin, device0, stream);
    CHECK(plugin.async_memory_copy_h2d(
              device0, stream, block, bytes.data(), 100) == C_SUCCESS);
    CHECK(plugin.destroy_stream(device0, stream) == C_SUCCESS);
    // Another one destroyed meanwhile does not end the first.
    CHECK(plugin.destroy_stream(device0, CreateStream(plugin, device0)) ==
          C_SUCCESS);
    CheckWaitsFor(&work, [&] { return plugin.synchronize_device(device0); });
  }
  CHECK(Download(plugin, device0, block, 100) == bytes);
}

TEST(AStreamCanBeDestroyedByItsOwnWork) {
  struct Call {
    const Plugin* plugin;
    std::atomic<bool> made;
  };
  const Plugin plugin;
  Call call{&plugin, {false}};
  const C_Callback callback =
      [](C_Device device, C_Stream stream, void* data, C_Status*) {
        auto* const call = static_cast<Call*>(data);
        CHECK(call->plugin->destroy_stream(device, stream) == C_SUCCESS);
        call->made = true;
      };
  CHECK(plugin.stream_add_callback(
            device0, CreateStream(plugin, device0), callback, &call) ==
        C_SUCCESS);
  CHECK(plugin.synchronize_device(device0) == C_SUCCESS);
  CHECK(call.made);
}

TEST(APluginThatEndsDoesItsWork) {
  std::atomic<int> count{0};
  const C_Callback callback = [](C_Device, C_Stream, void* data, C_Status*) {
    ++*static_cast<std::atomic<int>*>(data);
  };
  {
    const Plugin plugin;
    CHECK(HostDeviceSetDelay(0, nullptr, 2000) == C_SUCCESS);
    C_Stream streams[] = {CreateStream(plugin, device0),
                          CreateStream(plugin, device0)};
    for (int round = 0; round < 10; ++round) {
      for (C_Stream stream : streams) {
        CHECK(plugin.stream_add_callback(device0, stream, callback, &count) ==
              C_SUCCESS);
      }
    }
    CHECK(plugin.destroy_stream(device0, streams[0]) == C_SUCCESS);
  }
  const Plugin next;
  CHECK(count == 20);
}

// Adds to the Bytes that `data` points to.
template <unsigned char kByte>
void Append(C_Device, C_Stream, void* data, C_Status*) {
  static_cast<Bytes*>(data)->push_back(kByte);
}

TEST(AStreamWithoutOtherWorkOrDelayIsAsFastAsTheCall) {
  const Plugin plugin;
  void* const first = Upload(plugin, device0, Bytes(100));
  void* const second = Upload(plugin, device0, Bytes(100));
  C_Stream stream = CreateStream(plugin, device0);
  C_Event event = CreateEvent(plugin, device0);
  for (int round = 0; round < 100; ++round) {
    const Bytes bytes(100, round);
    CHECK(plugin.async_memory_copy_h2d(
              device0, stream, first, bytes.data(), 100) == C_SUCCESS);
    CHECK(plugin.async_memory_copy_d2d(device0, stream, second, first, 100) ==
          C_SUCCESS);
    CHECK(Download(plugin, device0, second, 100) == bytes);
    CHECK(plugin.record_event(device0, stream, event) == C_SUCCESS);
    CHECK(plugin.query_event(device0, event) == C_SUCCESS);
  }
}

TEST(AStreamRunsItsWorkInTheOrderOfSubmission) {
  const Plugin plugin;
  C_Stream stream = CreateStream(plugin, device0);
  Bytes order;
  for (int round = 0; round < 100; ++round) {
    for (const C_Callback callback : {Append<1>, Append<2>, Append<3>}) {
      CHECK(plugin.stream_add_callback(device0, stream, callback, &order) ==
            C_SUCCESS);
    }
  }
  CHECK(plugin.synchronize_stream(device0, stream) == C_SUCCESS);
  Bytes expected;
  for (int round = 0; round < 100; ++round) {
    expected.insert(expected.end(), {1, 2, 3});
  }
  CHECK(order == expected);
}

TEST(CopiesOnAStreamRunInTheOrderOfSubmission) {
  const Plugin plugin;
  const Bytes bytes = Counting(100, 7);
  void* const first = Upload(plugin, device0, Bytes(100));
  void* const second = Upload(plugin, device0, Bytes(100));
  C_Stream stream = CreateStream(plugin, device0);
  CHECK(HostDeviceSetDelay(0, nullptr, 2000) == C_SUCCESS);
  CHECK(plugin.async_memory_copy_h2d(
            device0, stream, first, bytes.data(), 100) == C_SUCCESS);
  CHECK(plugin.async_memory_copy_d2d(device0, stream, second, first, 100) ==
        C_SUCCESS);
  CHECK(plugin.async_memory_copy_h2d(
            device0, stream, first, Bytes(100).data(), 100) == C_SUCCESS);
  CHECK(plugin.synchronize_stream(device0, stream) == C_SUCCESS);
  CHECK(Download(plugin, device0, first, 100) == Bytes(100));
  CHECK(Download(plugin, device0, second, 100) == bytes);
}

TEST(TheFailureOfACallbackIsReturnedByTheNextSynchronization) {
  const Plugin plugin;
  C_Stream stream = CreateStream(plugin, device0);
  const C_Callback fail = [](C_Device, C_Stream, void* data, C_Status* status) {
    *status = *static_cast<C_Status*>(data);
  };
  C_Status first = C_WARNING;
  C_Status second = C_INTERNAL_ERROR;
  for (C_Status* const status : {&first, &second}) {
    CHECK(plugin.stream_add_callback(device0, stream, fail, status) ==
          C_SUCCESS);
  }
  CHECK(plugin.synchronize_stream(device0, stream) == C_WARNING);
  CHECK(plugin.synchronize_stream(device0, stream) == C_SUCCESS);
  CHECK(plugin.stream_add_callback(device0, stream, fail, &second) ==
        C_SUCCESS);
  CHECK(plugin.synchronize_device(device0) == C_INTERNAL_ERROR);
  CHECK(plugin.synchronize_device(device0) == C_SUCCESS);
}

TEST(WorkMustNotWait) {
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
  CHECK(plugin.host_memory_allocate(device0, &call.host, 1) == C_SUCCESS);
  const C_Callback callback =
      [](C_Device device, C_Stream stream, void* data, C_Status*) {
        const auto& [plugin, event, block, host] = *static_cast<Call*>(data);
        unsigned char byte = 0;
        CHECK(plugin->synchronize_stream(device, stream) == C_ERROR);
        CHECK(plugin->synchronize_device(device) == C_ERROR);
        CHECK(plugin->synchronize_event(device, event) == C_ERROR);
        CHECK(plugin->device_memory_deallocate(device, block, 1) == C_ERROR);
        CHECK(plugin->host_memory_deallocate(device, host, 1) == C_ERROR);
        CHECK(plugin->async_memory_copy_d2h(device, stream, &byte, block, 1) ==
              C_ERROR);
      };
  CHECK(plugin.stream_add_callback(device0, stream, callback, &call) ==
        C_SUCCESS);
  CHECK(plugin.synchronize_stream(device0, stream) == C_SUCCESS);
  CHECK(complaints.Contain("work on a stream must not wait for streams"));
  CHECK(plugin.device_memory_deallocate(device0, call.block, 1) == C_SUCCESS);
  CHECK(plugin.host_memory_deallocate(device0, call.host, 1) == C_SUCCESS);
}

TEST(WorkCanSubmitWork) {
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
        CHECK(call->plugin->stream_add_callback(
                  device, stream, Append<2>, &call->order) == C_SUCCESS);
        call->order.push_back(1);
      };
  CHECK(plugin.stream_add_callback(device0, stream, callback, &call) ==
        C_SUCCESS);
  // The second call submits before the first synchronization returns.
  CHECK(plugin.synchronize_stream(device0, stream) == C_SUCCESS);
  CHECK(plugin.synchronize_stream(device0, stream) == C_SUCCESS);
  CHECK((call.order == Bytes{1, 2}));
}

// -- Host memory --------------------------------------------------------------

void* AllocateHost(const Plugin& plugin, const Bytes& bytes) {
  void* block = nullptr;
  CHECK(plugin.host_memory_allocate(device0, &block, bytes.size()) ==
        C_SUCCESS);
  std::copy(bytes.begin(), bytes.end(), static_cast<unsigned char*>(block));
  return block;
}

Bytes Content(const void* block, size_t size) {
  const auto* const first = static_cast<const unsigned char*>(block);
  return Bytes(first, first + size);
}

TEST(ACopyOnAStreamLetsGoOfOrdinaryHostMemoryBeforeItReturns) {
  const Plugin plugin;
  const Bytes bytes = Counting(100, 7);
  void* const block = Upload(plugin, device0, Bytes(100));
  C_Stream stream = CreateStream(plugin, device0);
  Bytes back(100);
  CHECK(HostDeviceSetDelay(0, stream, 20000) == C_SUCCESS);
  {
    Bytes source = bytes;
    CHECK(plugin.async_memory_copy_h2d(
              device0, stream, block, source.data(), 100) == C_SUCCESS);
    source.assign(100, 0);
  }
  CHECK(plugin.query_stream(device0, stream) == C_FAILED);
  CHECK(plugin.async_memory_copy_d2h(
            device0, stream, back.data(), block, 100) == C_SUCCESS);
  CHECK(back == bytes);
}

TEST(ACopyOnAStreamUsesHostMemoryOfThePluginInItsTurn) {
  const Plugin plugin;
  const Bytes bytes = Counting(100, 7);
  void* const block = Upload(plugin, device0, Bytes(100));
  void* const source = AllocateHost(plugin, Bytes(100));
  void* const back = AllocateHost(plugin, Bytes(100));
  C_Stream stream = CreateStream(plugin, device0);
  Work work(plugin, device0, stream);
  CHECK(plugin.async_memory_copy_h2d(device0, stream, block, source, 100) ==
        C_SUCCESS);
  CHECK(plugin.async_memory_copy_d2h(device0, stream, back, block, 100) ==
        C_SUCCESS);
  std::copy(bytes.begin(), bytes.end(), static_cast<unsigned char*>(source));
  CHECK(Content(back, 100) == Bytes(100));
  work.Finish();
  CHECK(plugin.synchronize_stream(device0, stream) == C_SUCCESS);
  CHECK(Content(back, 100) == bytes);
}

TEST(FreeingHostMemoryWaitsForItsCopies) {
  const Plugin plugin;
  void* const block = Allocate(plugin, device0, 100);
  void* const source = AllocateHost(plugin, Bytes(100));
  C_Stream stream = CreateStream(plugin, device0);
  Work work(plugin, device0, stream);
  CHECK(plugin.async_memory_copy_h2d(device0, stream, block, source, 100) ==
        C_SUCCESS);
  CheckWaitsFor(&work, [&] {
    return plugin.host_memory_deallocate(device0, source, 100);
  });
}

TEST(OnlyALiveBlockOfHostMemoryIsFreed) {
  const Plugin plugin;
  void* const block = AllocateHost(plugin, Bytes(100));
  CHECK(plugin.host_memory_deallocate(device0, block, 99) == C_ERROR);
  CHECK(complaints.Contain("the host has no live block of 99 bytes at 0x"));
  CHECK(plugin.host_memory_deallocate(device0, block, 100) == C_SUCCESS);
  CHECK(plugin.host_memory_deallocate(device0, block, 100) == C_ERROR);
}

TEST(HostMemoryThatDoesNotExistIsRefused) {
  const Plugin plugin;
  void* block = nullptr;
  CHECK(plugin.host_memory_allocate(device0, &block, SIZE_MAX) == C_FAILED);
  CHECK(block == nullptr);
  CHECK(complaints.Contain("the host cannot allocate "));
}

// -- What names no stream -----------------------------------------------------

TEST(WhatNamesNoStreamWaitsForNone) {
  const Plugin plugin;
  const Bytes bytes = Counting(100, 7);
  C_Stream stream = CreateStream(plugin, device0);
  Work work(plugin, device0, stream);
  void* const block = Upload(plugin, device0, bytes);
  void* const other = Allocate(plugin, device0, 100);
  CHECK(plugin.memory_copy_d2d(device0, other, block, 100) == C_SUCCESS);
  CHECK(plugin.device_memory_set(device0, block, 3, 100) == C_SUCCESS);
  CHECK(Download(plugin, device0, block, 100) == Bytes(100, 3));
  CHECK(Download(plugin, device0, other, 100) == bytes);
  work.Finish();
}

TEST(MemoryIsSetWithinItsBlockOnly) {
  const Plugin plugin;
  void* const block = Upload(plugin, device0, Bytes(100));
  CHECK(plugin.device_memory_set(device0, At(block, 10), 3, 91) == C_ERROR);
  CHECK(plugin.device_memory_set(device1, block, 3, 1) == C_ERROR);
  CHECK(Download(plugin, device0, block, 100) == Bytes(100));
  CHECK(plugin.device_memory_set(device0, At(block, 10), 3, 90) == C_SUCCESS);
  Bytes expected(100, 3);
  std::fill_n(expected.begin(), 10, 0);
  CHECK(Download(plugin, device0, block, 100) == expected);
}

TEST(FreeingMemoryWaitsForTheStreamsOfItsDevice) {
  const Plugin plugin;
  void* const block = Allocate(plugin, device0, 100);
  C_Stream stream = CreateStream(plugin, device0);
  Work work(plugin, device0, stream);
  CheckWaitsFor(&work, [&] {
    return plugin.device_memory_deallocate(device0, block, 100);
  });
}

TEST(FreeingMemoryWaitsForCopiesToOtherDevices) {
  const Plugin plugin;
  void* const from = Allocate(plugin, device0, 100);
  void* const idle = Allocate(plugin, device0, 100);
  void* const to = Allocate(plugin, device1, 100);
  const size_t available = Available(plugin, device0);
  C_Stream stream = CreateStream(plugin, device1);
  Work work(plugin, device1, stream);
  CHECK(plugin.async_memory_copy_p2p(device1, device0, stream, to, from, 100) ==
        C_SUCCESS);
  CHECK(plugin.device_memory_deallocate(device0, idle, 100) == C_SUCCESS);
  CheckWaitsFor(&work, [&] {
    return plugin.device_memory_deallocate(device0, from, 100);
  });
  CHECK(Available(plugin, device0) == available + 200);
}

// -- Delays and the trace -----------------------------------------------------

TEST(ADelayMakesAMissingWaitGiveAWrongAnswer) {
  const Plugin plugin;
  C_Stream stream = CreateStream(plugin, device0);
  std::atomic<int> answer{0};
  const C_Callback callback = [](C_Device, C_Stream, void* data, C_Status*) {
    *static_cast<std::atomic<int>*>(data) = 42;
  };
  CHECK(HostDeviceSetDelay(0, nullptr, 100000) == C_SUCCESS);
  CHECK(plugin.stream_add_callback(device0, stream, callback, &answer) ==
        C_SUCCESS);
  CHECK(answer == 0);
  CHECK(plugin.query_stream(device0, stream) == C_FAILED);
  CHECK(plugin.synchronize_stream(device0, stream) == C_SUCCESS);
  CHECK(answer == 42);
}

std::vector<HostDeviceOperation> TakeTrace() {
  std::vector<HostDeviceOperation> operations(5000);
  operations.resize(HostDeviceTakeTrace(operations.data(), 5000));
  return operations;
}

// Returns how long the operations of one callback on a stream took, in
// microseconds.
uint64_t TimeOfCallback(const Plugin& plugin,
                        C_Device device,
                        C_Stream stream) {
  CHECK(plugin.stream_add_callback(device, stream, DoNothing, nullptr) ==
        C_SUCCESS);
  CHECK(plugin.synchronize_stream(device, stream) == C_SUCCESS);
  const auto operations = TakeTrace();
  CHECK(operations.size() == 1);
  return (operations[0].end_ns - operations[0].begin_ns) / 1000;
}

// Returns the least time of some: a busy machine may stop one in its middle.
uint64_t LeastTimeOfCallbacks(const Plugin& plugin,
                              C_Device device,
                              C_Stream stream) {
  uint64_t least = UINT64_MAX;
  for (int i = 0; i < 5; ++i) {
    least = std::min(least, TimeOfCallback(plugin, device, stream));
  }
  return least;
}

TEST(ADelayIsOfOneDevice) {
  const Plugin plugin;
  C_Stream delayed = CreateStream(plugin, device0);
  C_Stream other = CreateStream(plugin, device1);
  CHECK(HostDeviceSetDelay(0, nullptr, 200000) == C_SUCCESS);
  CHECK(TimeOfCallback(plugin, device0, delayed) >= 200000);
  CHECK(LeastTimeOfCallbacks(plugin, device1, other) < 200000);
}

TEST(ADelayIsOfOneStreamAndAddsToThatOfItsDevice) {
  const Plugin plugin;
  C_Stream delayed = CreateStream(plugin, device0);
  C_Stream other = CreateStream(plugin, device0);
  CHECK(HostDeviceSetDelay(0, delayed, 200000) == C_SUCCESS);
  CHECK(LeastTimeOfCallbacks(plugin, device0, other) < 200000);
  CHECK(HostDeviceSetDelay(0, nullptr, 10000) == C_SUCCESS);
  CHECK(TimeOfCallback(plugin, device0, delayed) >= 210000);
}

TEST(ADelayIsOfTheOperationsSubmittedMeanwhile) {
  const Plugin plugin;
  C_Stream stream = CreateStream(plugin, device0);
  CHECK(HostDeviceSetDelay(0, nullptr, 200000) == C_SUCCESS);
  CHECK(plugin.stream_add_callback(device0, stream, DoNothing, nullptr) ==
        C_SUCCESS);
  CHECK(HostDeviceSetDelay(0, nullptr, 0) == C_SUCCESS);
  CHECK(plugin.synchronize_stream(device0, stream) == C_SUCCESS);
  const auto trace = TakeTrace();
  CHECK(trace.size() == 1);
  CHECK(trace[0].end_ns - trace[0].begin_ns >= 200'000'000);
  CHECK(LeastTimeOfCallbacks(plugin, device0, stream) < 200000);
}

TEST(AVariableDelaysAllDevices) {
  const Variable variable("HOST_DEVICE_DELAY", "20000");
  const Plugin plugin;
  for (C_Device device : {device0, device1}) {
    C_Stream stream = CreateStream(plugin, device);
    CHECK(TimeOfCallback(plugin, device, stream) >= 20000);
  }
}

TEST(ABadDelayIsRefused) {
  const Plugin plugin;
  C_Stream stream = CreateStream(plugin, device1);
  CHECK(HostDeviceSetDelay(0, nullptr, 10'000'001) == C_ERROR);
  CHECK(complaints.Contain("a delay of 10000001 microseconds is more than"));
  CHECK(HostDeviceSetDelay(4, nullptr, 1) == C_ERROR);
  CHECK(complaints.Contain("there is no device 4"));
  CHECK(HostDeviceSetDelay(0, stream, 1) == C_ERROR);
  CHECK(complaints.Contain("device 0 has no live stream "));
}

TEST(TheTraceNamesEachOperationOnceInOrder) {
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
  CHECK(plugin.synchronize_stream(device1, stream) == C_SUCCESS);
  const std::vector<std::string> kinds = {"async_memory_copy_h2d",
                                          "async_memory_copy_d2d",
                                          "async_memory_copy_p2p",
                                          "async_memory_copy_d2h",
                                          "record_event",
                                          "stream_wait_event",
                                          "stream_add_callback"};
  const auto trace = TakeTrace();
  CHECK(trace.size() == kinds.size());
  uint64_t last_end = 0;
  for (size_t index = 0; index < trace.size(); ++index) {
    CHECK(trace[index].number == index);
    CHECK(trace[index].device == 1);
    CHECK(trace[index].stream == stream);
    CHECK(trace[index].kind == kinds[index]);
    CHECK(trace[index].begin_ns >= last_end);
    CHECK(trace[index].end_ns >= trace[index].begin_ns);
    last_end = trace[index].end_ns;
  }
  CHECK(TakeTrace().empty());
}

TEST(TheTraceIsTakenInPieces) {
  const Plugin plugin;
  C_Stream stream = CreateStream(plugin, device0);
  for (int round = 0; round < 3; ++round) {
    plugin.stream_add_callback(device0, stream, DoNothing, nullptr);
  }
  CHECK(plugin.synchronize_stream(device0, stream) == C_SUCCESS);
  HostDeviceOperation operations[2];
  CHECK(HostDeviceTakeTrace(operations, 2) == 2);
  CHECK(operations[1].number == 1);
  CHECK(HostDeviceTakeTrace(operations, 2) == 1);
  CHECK(operations[0].number == 2);
}

TEST(TheTraceKeepsTheLastOperations) {
  const Plugin plugin;
  C_Stream stream = CreateStream(plugin, device0);
  for (int round = 0; round < 4100; ++round) {
    plugin.stream_add_callback(device0, stream, DoNothing, nullptr);
  }
  CHECK(plugin.synchronize_stream(device0, stream) == C_SUCCESS);
  const auto trace = TakeTrace();
  CHECK(trace.size() == 4096);
  CHECK(trace.front().number == 4);
  CHECK(trace.back().number == 4099);
}

TEST(TwoStreamsOverlapAndOneDoesNot) {
  const Plugin plugin;
  C_Stream first = CreateStream(plugin, device0);
  C_Stream second = CreateStream(plugin, device0);
  CHECK(HostDeviceSetDelay(0, nullptr, 200000) == C_SUCCESS);
  for (C_Stream stream : {first, second, first}) {
    plugin.stream_add_callback(device0, stream, DoNothing, nullptr);
  }
  CHECK(plugin.synchronize_device(device0) == C_SUCCESS);
  auto trace = TakeTrace();
  CHECK(trace.size() == 3);
  const auto of_second = std::stable_partition(
      trace.begin(), trace.end(), [&](const HostDeviceOperation& operation) {
        return operation.stream == first;
      });
  CHECK(of_second - trace.begin() == 2);
  CHECK(trace[0].begin_ns < trace[2].end_ns);
  CHECK(trace[2].begin_ns < trace[0].end_ns);
  CHECK(trace[0].end_ns <= trace[1].begin_ns);
}

// -- Launches -----------------------------------------------------------------

// A byte of a device that a launch works on.
struct Cell {
  unsigned char* byte;
  int calls = 0;
};

void Double(void* argument) {
  auto* const cell = static_cast<Cell*>(argument);
  *cell->byte *= 2;
  ++cell->calls;
}

TEST(ALaunchRunsOnceInItsTurnAmongCopies) {
  const Plugin plugin;
  void* const block = Upload(plugin, device0, {0});
  void* const second = Upload(plugin, device0, {0});
  void* const source = AllocateHost(plugin, {5});
  void* const back = AllocateHost(plugin, {0});
  C_Stream stream = CreateStream(plugin, device0);
  Cell cell{static_cast<unsigned char*>(block)};
  Work work(plugin, device0, stream);
  CHECK(plugin.async_memory_copy_h2d(device0, stream, block, source, 1) ==
        C_SUCCESS);
  CHECK(HostDeviceLaunch(stream, "double", Double, &cell) == C_SUCCESS);
  CHECK(plugin.async_memory_copy_d2d(device0, stream, second, block, 1) ==
        C_SUCCESS);
  CHECK(HostDeviceLaunch(stream, "double", Double, &cell) == C_SUCCESS);
  CHECK(plugin.async_memory_copy_d2h(device0, stream, back, block, 1) ==
        C_SUCCESS);
  CHECK(cell.calls == 0);
  work.Finish();
  CHECK(plugin.synchronize_stream(device0, stream) == C_SUCCESS);
  CHECK(cell.calls == 2);
  CHECK(Download(plugin, device0, second, 1) == Bytes{10});
  CHECK(Content(back, 1) == Bytes{20});
}

TEST(ALaunchOnAStreamWithoutOtherWorkOrDelayIsDoneByTheCall) {
  const Plugin plugin;
  unsigned char byte = 1;
  Cell cell{&byte};
  C_Stream stream = CreateStream(plugin, device0);
  for (int round = 1; round <= 100; ++round) {
    CHECK(HostDeviceLaunch(stream, "double", Double, &cell) == C_SUCCESS);
    CHECK(cell.calls == round);
  }
}

TEST(ALaunchIsDelayedWithItsStream) {
  const Plugin plugin;
  C_Stream stream = CreateStream(plugin, device1);
  std::atomic<bool> called{false};
  const auto note = [](void* argument) {
    *static_cast<std::atomic<bool>*>(argument) = true;
  };
  CHECK(HostDeviceSetDelay(1, stream, 100000) == C_SUCCESS);
  CHECK(HostDeviceLaunch(stream, "note", note, &called) == C_SUCCESS);
  CHECK(!called);
  CHECK(plugin.query_stream(device1, stream) == C_FAILED);
  CHECK(plugin.synchronize_stream(device1, stream) == C_SUCCESS);
  CHECK(called);
}

TEST(TheTraceCallsALaunchByItsKind) {
  const Plugin plugin;
  unsigned char byte = 1;
  Cell cell{&byte};
  C_Stream stream = CreateStream(plugin, device1);
  CHECK(HostDeviceLaunch(stream, "double", Double, &cell) == C_SUCCESS);
  CHECK(plugin.synchronize_stream(device1, stream) == C_SUCCESS);
  const auto trace = TakeTrace();
  CHECK(trace.size() == 1);
  CHECK(trace[0].device == 1);
  CHECK(trace[0].stream == stream);
  CHECK(trace[0].kind == std::string("double"));
}

TEST(FreeingMemoryWaitsForTheLaunchesThatUseIt) {
  const Plugin plugin;
  void* const block = Upload(plugin, device0, {1});
  Cell cell{static_cast<unsigned char*>(block)};
  C_Stream stream = CreateStream(plugin, device0);
  CHECK(HostDeviceSetDelay(0, stream, 20000) == C_SUCCESS);
  CHECK(HostDeviceLaunch(stream, "double", Double, &cell) == C_SUCCESS);
  CHECK(plugin.device_memory_deallocate(device0, block, 1) == C_SUCCESS);
  CHECK(cell.calls == 1);
}

TEST(WhatALaunchCallsMustNotWait) {
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
  CHECK(HostDeviceLaunch(call.stream, "wait", wait, &call) == C_SUCCESS);
  CHECK(plugin.synchronize_stream(device0, call.stream) == C_SUCCESS);
  CHECK(call.status == C_ERROR);
}

TEST(ALaunchWithoutAFunctionOrALiveStreamIsRefused) {
  const Plugin plugin;
  unsigned char byte = 1;
  Cell cell{&byte};
  C_Stream stream = CreateStream(plugin, device0);
  CHECK(HostDeviceLaunch(stream, "nothing", nullptr, nullptr) == C_ERROR);
  CHECK(complaints.Contain("there is no function to launch as nothing"));
  CHECK(plugin.destroy_stream(device0, stream) == C_SUCCESS);
  for (C_Stream none : {stream, C_Stream{nullptr}}) {
    complaints.Clear();
    CHECK(HostDeviceLaunch(none, "double", Double, &cell) == C_ERROR);
    CHECK(complaints.Contain("there is no live stream "));
    CHECK(complaints.Contain(" to launch double on"));
  }
  CHECK(cell.calls == 0);
  CHECK(TakeTrace().empty());
}

// -- Forks --------------------------------------------------------------------

// GCC 12's thread sanitizer refuses threads in the child of a process that has
// some, even with die_after_fork=0: their ids are taken, it says.
#ifndef __SANITIZE_THREAD__

// Runs `body` in a child of this process and checks that it is over in time and
// that its checks hold.
template <typename Body>
void InChild(const Body& body) {
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    // An alarm of this process is not inherited.
    alarm(120);
    failed_checks = 0;
    body();
    std::fflush(stdout);
    _exit(failed_checks == 0 ? EXIT_SUCCESS : EXIT_FAILURE);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SUCCESS);
}

TEST(TheStreamsOfAChildBeginAnew) {
  const Plugin plugin;
  const Bytes bytes = Counting(100, 7);
  void* const block = Upload(plugin, device0, Bytes(100));
  C_Stream stream = CreateStream(plugin, device0);
  C_Stream destroyed = CreateStream(plugin, device0);
  C_Event event = CreateEvent(plugin, device0);
  CHECK(plugin.record_event(device0, stream, event) == C_SUCCESS);
  Work work(plugin, device0, stream);
  Work other(plugin, device0, destroyed);
  CHECK(plugin.destroy_stream(device0, destroyed) == C_SUCCESS);
  CHECK(plugin.async_memory_copy_h2d(
            device0, stream, block, bytes.data(), 100) == C_SUCCESS);
  CHECK(plugin.record_event(device0, stream, event) == C_SUCCESS);
  InChild([&] {
    CHECK(TakeTrace().empty());
    CHECK(plugin.query_stream(device0, stream) == C_SUCCESS);
    CHECK(plugin.synchronize_device(device0) == C_SUCCESS);
    CHECK(plugin.query_event(device0, event) == C_SUCCESS);
    CHECK(plugin.synchronize_event(device0, event) == C_SUCCESS);
    CHECK(!work.Finished());
    CHECK(Download(plugin, device0, block, 100) == Bytes(100));
    CHECK(plugin.async_memory_copy_h2d(
              device0, stream, block, bytes.data(), 100) == C_SUCCESS);
    CHECK(plugin.record_event(device0, stream, event) == C_SUCCESS);
    CHECK(plugin.synchronize_event(device0, event) == C_SUCCESS);
    CHECK(Download(plugin, device0, block, 100) == bytes);
    CHECK(TakeTrace().size() == 2);
    CHECK(plugin.device_memory_deallocate(device0, block, 100) == C_SUCCESS);
    CHECK(plugin.destroy_event(device0, event) == C_SUCCESS);
    CHECK(plugin.destroy_stream(device0, stream) == C_SUCCESS);
  });
  CHECK(plugin.query_stream(device0, stream) == C_FAILED);
  CHECK(Download(plugin, device0, block, 100) == Bytes(100));
  work.Finish();
  other.Finish();
  CHECK(plugin.synchronize_event(device0, event) == C_SUCCESS);
  CHECK(Download(plugin, device0, block, 100) == bytes);
}

TEST(AProcessThatExitsDoesItsWork) {
  const Plugin plugin;
  std::array<int, 2> ends{};
  CHECK(pipe(ends.data()) == 0);
  const C_Callback callback = [](C_Device, C_Stream, void* data, C_Status*) {
    CHECK(write(*static_cast<int*>(data), "!", 1) == 1);
  };
  InChild([&] {
    CHECK(HostDeviceSetDelay(0, nullptr, 20000) == C_SUCCESS);
    C_Stream stream = CreateStream(plugin, device0);
    CHECK(plugin.stream_add_callback(device0, stream, callback, &ends[1]) ==
          C_SUCCESS);
    std::exit(failed_checks == 0 ? EXIT_SUCCESS : EXIT_FAILURE);
  });
  close(ends[1]);
  char byte = 0;
  CHECK(read(ends[0], &byte, 1) == 1);
  close(ends[0]);
}

// GCC 12's address sanitizer starts no thread in the child of a process that
// was just starting one, for the lock of its list of threads stays locked.
#ifndef __SANITIZE_ADDRESS__

TEST(AChildOfABusyProcessIsWhole) {
  const Plugin plugin;
  std::atomic<bool> enough{false};
  const auto use_everything = [&](C_Device device) {
    const Bytes bytes(64, device->id);
    C_Stream stream = CreateStream(plugin, device);
    C_Event event = CreateEvent(plugin, device);
    void* const block = Allocate(plugin, device, 64);
    CHECK(plugin.async_memory_copy_h2d(
              device, stream, block, bytes.data(), 64) == C_SUCCESS);
    CHECK(plugin.record_event(device, stream, event) == C_SUCCESS);
    CHECK(plugin.synchronize_event(device, event) == C_SUCCESS);
    CHECK(Download(plugin, device, block, 64) == bytes);
    CHECK(plugin.device_memory_deallocate(device, block, 64) == C_SUCCESS);
    CHECK(plugin.destroy_event(device, event) == C_SUCCESS);
    CHECK(plugin.destroy_stream(device, stream) == C_SUCCESS);
  };
  InThreads(3, [&](int index) {
    if (index > 0) {
      while (!enough) {
        // The more often, the more likely it is that a fork comes in between.
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
  CHECK(plugin.query_event(device, event) == C_ERROR);
  CHECK(plugin.synchronize_event(device, event) == C_ERROR);
  CHECK(plugin.destroy_event(device, event) == C_ERROR);
  CHECK(plugin.record_event(device, CreateStream(plugin, device), event) ==
        C_ERROR);
}

TEST(ADestroyedEventIsRefused) {
  const Plugin plugin;
  C_Stream stream = CreateStream(plugin, device0);
  C_Event event = CreateEvent(plugin, device0);
  CHECK(plugin.destroy_event(device0, event) == C_SUCCESS);
  CheckRefusesEvent(plugin, device0, event);
  CHECK(plugin.stream_wait_event(device0, stream, event) == C_ERROR);
  CHECK(complaints.Contain("device 0 has no live event "));
  CHECK(complaints.Contain("there is no live event "));
}

TEST(AnEventOfAnotherDeviceIsRefusedAndStaysUsable) {
  const Plugin plugin;
  C_Event event = CreateEvent(plugin, device1);
  CheckRefusesEvent(plugin, device0, event);
  CHECK(plugin.query_event(device1, event) == C_SUCCESS);
}

TEST(AnEventRefusesToRecordAStreamOfAnotherDevice) {
  const Plugin plugin;
  C_Stream stream = CreateStream(plugin, device1);
  C_Event event = CreateEvent(plugin, device0);
  CHECK(plugin.record_event(device0, stream, event) == C_ERROR);
  CHECK(plugin.record_event(device1, stream, event) == C_ERROR);
}

TEST(AnEventIsCompleteBeforeItIsRecorded) {
  const Plugin plugin;
  C_Stream stream = CreateStream(plugin, device0);
  C_Event event = CreateEvent(plugin, device0);
  Work work(plugin, device0, stream);
  CHECK(plugin.query_event(device0, event) == C_SUCCESS);
  CHECK(plugin.synchronize_event(device0, event) == C_SUCCESS);
  work.Finish();
}

TEST(AnEventCompletesWithTheWorkBeforeIt) {
  const Plugin plugin;
  C_Stream stream = CreateStream(plugin, device0);
  C_Event event = CreateEvent(plugin, device0);
  Work work(plugin, device0, stream);
  CHECK(plugin.record_event(device0, stream, event) == C_SUCCESS);
  CHECK(plugin.query_event(device0, event) == C_FAILED);
  work.Finish();
  Await([&] { return plugin.query_event(device0, event) == C_SUCCESS; });
  CHECK(work.Finished());
}

TEST(AnEventIsIndifferentToTheWorkAfterIt) {
  const Plugin plugin;
  C_Stream stream = CreateStream(plugin, device0);
  C_Event event = CreateEvent(plugin, device0);
  CHECK(plugin.record_event(device0, stream, event) == C_SUCCESS);
  Work work(plugin, device0, stream);
  CHECK(plugin.synchronize_event(device0, event) == C_SUCCESS);
  CHECK(plugin.query_event(device0, event) == C_SUCCESS);
  work.Finish();
}

TEST(AnEventStandsForItsLastRecord) {
  const Plugin plugin;
  C_Stream busy = CreateStream(plugin, device0);
  C_Stream idle = CreateStream(plugin, device0);
  C_Event event = CreateEvent(plugin, device0);
  CHECK(plugin.stream_add_callback(device0, idle, DoNothing, nullptr) ==
        C_SUCCESS);
  Work work(plugin, device0, busy);
  CHECK(plugin.record_event(device0, busy, event) == C_SUCCESS);
  CHECK(plugin.record_event(device0, idle, event) == C_SUCCESS);
  CHECK(plugin.synchronize_event(device0, event) == C_SUCCESS);
  CHECK(plugin.record_event(device0, busy, event) == C_SUCCESS);
  CHECK(plugin.query_event(device0, event) == C_FAILED);
  work.Finish();
}

TEST(SynchronizingAnEventWaitsForTheWorkBeforeIt) {
  const Plugin plugin;
  C_Stream stream = CreateStream(plugin, device0);
  C_Event event = CreateEvent(plugin, device0);
  Work work(plugin, device0, stream);
  CHECK(plugin.record_event(device0, stream, event) == C_SUCCESS);
  CheckWaitsFor(&work,
                [&] { return plugin.synchronize_event(device0, event); });
}

TEST(AStreamWaitsForAnEventOfAnotherDevice) {
  const Plugin plugin;
  C_Stream stream = CreateStream(plugin, device0);
  C_Stream waiting = CreateStream(plugin, device1);
  C_Event event = CreateEvent(plugin, device0);
  Work work(plugin, device0, stream);
  CHECK(plugin.record_event(device0, stream, event) == C_SUCCESS);
  CHECK(plugin.stream_wait_event(device1, waiting, event) == C_SUCCESS);
  CHECK(plugin.query_stream(device1, waiting) == C_FAILED);
  CheckWaitsFor(&work,
                [&] { return plugin.synchronize_stream(device1, waiting); });
}

TEST(WorkAfterAWaitForAnEventRunsAfterTheWorkBeforeTheRecord) {
  const Plugin plugin;
  const Bytes bytes = Counting(1000, 7);
  void* const from = Upload(plugin, device0, Bytes(1000));
  void* const to = Upload(plugin, device1, Bytes(1000));
  C_Stream producer = CreateStream(plugin, device0);
  C_Stream consumer = CreateStream(plugin, device1);
  C_Event event = CreateEvent(plugin, device0);
  CHECK(HostDeviceSetDelay(0, nullptr, 20000) == C_SUCCESS);
  CHECK(plugin.async_memory_copy_h2d(
            device0, producer, from, bytes.data(), 1000) == C_SUCCESS);
  CHECK(plugin.record_event(device0, producer, event) == C_SUCCESS);
  CHECK(plugin.stream_wait_event(device1, consumer, event) == C_SUCCESS);
  CHECK(plugin.async_memory_copy_p2p(
            device1, device0, consumer, to, from, 1000) == C_SUCCESS);
  CHECK(plugin.synchronize_stream(device1, consumer) == C_SUCCESS);
  CHECK(Download(plugin, device1, to, 1000) == bytes);
}

TEST(AWaitForAnEventThatWasNeverRecordedHoldsUpNothing) {
  const Plugin plugin;
  C_Stream stream = CreateStream(plugin, device0);
  C_Event event = CreateEvent(plugin, device0);
  CHECK(plugin.stream_wait_event(device0, stream, event) == C_SUCCESS);
  CHECK(plugin.synchronize_stream(device0, stream) == C_SUCCESS);
}

TEST(AWaitForAnEventIsForTheLastRecordAtThatTime) {
  const Plugin plugin;
  C_Stream idle = CreateStream(plugin, device0);
  C_Stream busy = CreateStream(plugin, device0);
  C_Stream waiting = CreateStream(plugin, device1);
  C_Event event = CreateEvent(plugin, device0);
  Work work(plugin, device0, busy);
  Work hold(plugin, device1, waiting);
  CHECK(plugin.record_event(device0, idle, event) == C_SUCCESS);
  CHECK(plugin.stream_wait_event(device1, waiting, event) == C_SUCCESS);
  CHECK(plugin.record_event(device0, busy, event) == C_SUCCESS);
  hold.Finish();
  CHECK(plugin.synchronize_stream(device1, waiting) == C_SUCCESS);
  CHECK(plugin.query_event(device0, event) == C_FAILED);
  work.Finish();
}

TEST(AWaitForAnEventOutlivesTheEventAndItsNextRecord) {
  const Plugin plugin;
  C_Stream stream = CreateStream(plugin, device0);
  C_Stream idle = CreateStream(plugin, device0);
  C_Stream waiting = CreateStream(plugin, device1);
  C_Event event = CreateEvent(plugin, device0);
  Work work(plugin, device0, stream);
  CHECK(plugin.record_event(device0, stream, event) == C_SUCCESS);
  CHECK(plugin.stream_wait_event(device1, waiting, event) == C_SUCCESS);
  CHECK(plugin.record_event(device0, idle, event) == C_SUCCESS);
  CHECK(plugin.destroy_event(device0, event) == C_SUCCESS);
  CheckWaitsFor(&work,
                [&] { return plugin.synchronize_stream(device1, waiting); });
}

TEST(AStreamCanWaitForAnEventOfItsOwn) {
  const Plugin plugin;
  C_Stream stream = CreateStream(plugin, device0);
  C_Event event = CreateEvent(plugin, device0);
  CHECK(plugin.record_event(device0, stream, event) == C_SUCCESS);
  CHECK(plugin.stream_wait_event(device0, stream, event) == C_SUCCESS);
  CHECK(plugin.destroy_stream(device0, stream) == C_SUCCESS);
  CHECK(plugin.synchronize_device(device0) == C_SUCCESS);
}

TEST(AnEventOutlivesItsStream) {
  const Plugin plugin;
  C_Stream stream = CreateStream(plugin, device0);
  C_Event event = CreateEvent(plugin, device0);
  Work work(plugin, device0, stream);
  CHECK(plugin.record_event(device0, stream, event) == C_SUCCESS);
  CHECK(plugin.destroy_stream(device0, stream) == C_SUCCESS);
  CHECK(plugin.query_event(device0, event) == C_FAILED);
  CheckWaitsFor(&work,
                [&] { return plugin.synchronize_event(device0, event); });
  CHECK(plugin.query_event(device0, event) == C_SUCCESS);
}

// -- Many threads -------------------------------------------------------------

TEST(AStreamRunsTheWorkOfManyThreadsOneAtATime) {
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
      CHECK(plugin.stream_add_callback(device0, stream, callback, &count) ==
            C_SUCCESS);
    }
  });
  CHECK(plugin.synchronize_stream(device0, stream) == C_SUCCESS);
  CHECK(count == kThreads * kRounds);
}

// Checks that of two threads that call `destroy` at the same time, one
// succeeds.
template <typename Destroy>
void CheckSucceedsOnce(const Destroy& destroy) {
  std::atomic<int> successes{0};
  InThreads(2, [&](int) { successes += destroy() == C_SUCCESS; });
  CHECK(successes == 1);
}

TEST(OfThreadsThatDestroyTheSameObjectOneSucceeds) {
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

TEST(ThreadsThatFillADeviceNeverGetMoreThanItHas) {
  const Variable variable("HOST_DEVICE_MEMORY", "5000");
  const Plugin plugin;
  std::atomic<size_t> granted{0};
  InThreads(4, [&](int) {
    for (int round = 0; round < 2000; ++round) {
      void* block = nullptr;
      granted += plugin.device_memory_allocate(device0, &block, 1) == C_SUCCESS;
      const size_t granted_before = granted;
      CHECK(Available(plugin, device0) <= 5000 - granted_before);
    }
  });
  CHECK(granted == 5000);
}

TEST(AnEventIsRecordedByOneThreadAndUsedByAnother) {
  constexpr int kRounds = 5000;
  const Plugin plugin;
  C_Stream streams[] = {CreateStream(plugin, device0),
                        CreateStream(plugin, device0)};
  C_Event event = CreateEvent(plugin, device0);
  InThreads(2, [&](int index) {
    for (int round = 0; round < kRounds; ++round) {
      if (index == 0) {
        CHECK(plugin.record_event(device0, streams[round % 2], event) ==
              C_SUCCESS);
      } else {
        CHECK(plugin.query_event(device0, event) != C_ERROR);
        CHECK(plugin.synchronize_event(device0, event) == C_SUCCESS);
      }
    }
  });
}

TEST(ABlockFreedDuringACopyStaysReadableForTheCopy) {
  constexpr size_t kSize = 1 << 16;
  const Plugin plugin;
  const Bytes bytes = Counting(kSize, 7);
  for (int round = 0; round < 20; ++round) {
    void* const block = Upload(plugin, device0, bytes);
    std::atomic<bool> copied{false};
    InThreads(2, [&](int index) {
      if (index == 0) {
        Await([&] { return copied.load(std::memory_order_relaxed); });
        CHECK(plugin.device_memory_deallocate(device0, block, kSize) ==
              C_SUCCESS);
        return;
      }
      Bytes back(kSize);
      while (plugin.memory_copy_d2h(device0, back.data(), block, kSize) ==
             C_SUCCESS) {
        CHECK(back == bytes);
        // Relaxed, so that it orders no copy before the end of the block.
        copied.store(true, std::memory_order_relaxed);
      }
    });
  }
}

TEST(ManyThreadsUseEverythingAtOnce) {
  constexpr size_t kSize = 4096;
  const Plugin plugin;
  void* const shared_block = Allocate(plugin, device0, kSize);
  C_Stream shared_stream = CreateStream(plugin, device0);
  InThreads(8, [&](int index) {
    C_Device device = &devices[index % devices.size()];
    const Bytes bytes(kSize, index);
    CHECK(plugin.set_device(device) == C_SUCCESS);
    for (int round = 0; round < 100; ++round) {
      void* const block = Allocate(plugin, device, kSize);
      C_Stream stream = CreateStream(plugin, device);
      C_Event event = CreateEvent(plugin, device);
      CHECK(plugin.async_memory_copy_h2d(
                device, stream, block, bytes.data(), kSize) == C_SUCCESS);
      CHECK(plugin.record_event(device, stream, event) == C_SUCCESS);
      CHECK(plugin.stream_wait_event(device0, shared_stream, event) ==
            C_SUCCESS);
      // The stream alone keeps the copies of different threads apart.
      CHECK(plugin.async_memory_copy_p2p(
                device0, device, shared_stream, shared_block, block, kSize) ==
            C_SUCCESS);
      CHECK(plugin.synchronize_device(device0) == C_SUCCESS);
      CHECK(Download(plugin, device, block, kSize) == bytes);
      CHECK(plugin.destroy_event(device, event) == C_SUCCESS);
      CHECK(plugin.destroy_stream(device, stream) == C_SUCCESS);
      CHECK(plugin.device_memory_deallocate(device, block, kSize) == C_SUCCESS);
    }
    C_Device_st current{-1};
    CHECK(plugin.get_device(&current) == C_SUCCESS);
    CHECK(current.id == device->id);
  });
  const Bytes last = Download(plugin, device0, shared_block, kSize);
  CHECK(last == Bytes(kSize, last[0]));
}

// Runs a test and returns whether all of its checks held.
bool Passes(const Test& test) {
  failed_checks = 0;
  complaints.Clear();
  std::printf("%s\n", test.name);
  test.run();
  if (failed_checks == 0) return true;
  std::printf("  FAILED; the plugin has said:\n%s", complaints.Text().c_str());
  return false;
}

}  // namespace

int main() {
  // Ends a program that waits for what never comes; the last name it has
  // printed is that of the test.
  alarm(900);
  // So that the name is out by then.
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
  unsetenv("HOST_DEVICE_COUNT");
  unsetenv("HOST_DEVICE_MEMORY");
  unsetenv("HOST_DEVICE_DELAY");
  int passed = 0;
  int failed = 0;
  for (const Test& test : tests) ++(Passes(test) ? passed : failed);
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
