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

#include "test/cpp/phi/shared_memory/devices.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <utility>
#include <vector>

#include "test/cpp/phi/shared_memory/driver_calls.h"

namespace shared_memory_test {

namespace {

constexpr unsigned kNonBlocking = 1;

using driver_calls::Call;
using driver_calls::CallFunction;
using driver_calls::Library;

intptr_t delay_of_fills = 0;  // in microseconds

void Sleep(void* microseconds) {
  usleep(reinterpret_cast<intptr_t>(microseconds));
}

driver_calls::Context Current(int device) {
  DeviceHeap();
  return driver_calls::Context(device);
}

// A storage that this process owns.
class OwnStorage : public DeviceStorage {
 public:
  OwnStorage(const CudaIPCMemory& memory, std::function<void()> free)
      : DeviceStorage(memory), free_(std::move(free)) {}
  ~OwnStorage() override {
    if (!shared_ || !DeviceHeap().ReleaseOwned(memory.data, free_)) free_();
  }

  void SetShared() { shared_ = true; }

 private:
  const std::function<void()> free_;
  bool shared_{false};
};

class ReceivedStorage : public DeviceStorage {
 public:
  explicit ReceivedStorage(std::shared_ptr<CudaIPCData> data)
      : DeviceStorage(data->memory), data_(std::move(data)) {}
  ~ReceivedStorage() override { DeviceHeap().Release(data_); }

 private:
  const std::shared_ptr<CudaIPCData> data_;
};

}  // namespace

bool HasStandIn() { return driver_calls::HasStandIn(); }

void FailCall(const std::string& function, int nth, int code) {
  CallFunction<void>("StandInFail", function.c_str(), nth, code);
}

int CallsOf(const std::string& function) {
  return CallFunction<int>("StandInCalls", function.c_str());
}

void HoldCalls(const std::string& function, bool held) {
  CallFunction<void>("StandInHold", function.c_str(), held);
}

void SetDelay(int microseconds) { delay_of_fills = microseconds; }

CudaIPCHeap& DeviceHeap() {
  static CudaIPCHeap& heap = []() -> CudaIPCHeap& {
    Heap();
    CudaIPCHeap& instance = CudaIPCHeap::Instance();
    // Do this first, since exit handlers run in reverse order. If there is no
    // driver, the code under test reports that.
    if (Library() != nullptr) CallFunction<int>("cuInit", 0u);
    std::atexit([] { CudaIPCHeap::Instance().Leave(); });
    return instance;
  }();
  return heap;
}

bool SharesNothing() {
  DeviceHeap().Collect({});
  const CudaIPCStats stats = DeviceHeap().Stats();
  return stats.sent == 0 && stats.sent_bytes == 0 && stats.limbo == 0 &&
         stats.limbo_bytes == 0 && stats.received == 0 &&
         stats.received_bytes == 0 && stats.handles == 0 && UsesNothing();
}

Stream MakeStream(int device) {
  const auto context = Current(device);
  Stream stream = nullptr;
  Call("cuStreamCreate", &stream, kNonBlocking);
  return stream;
}

uint64_t FreeBytes(int device) {
  const auto context = Current(device);
  size_t free = 0;
  size_t total = 0;
  Call("cuMemGetInfo_v2", &free, &total);
  return free;
}

CudaIPCMemory AllocateMemory(uint64_t size, int device) {
  const auto context = Current(device);
  CudaIPCMemory memory = {device, nullptr, size};
  Call("cuMemAlloc_v2", &memory.data, size_t{size});
  return memory;
}

void FreeMemory(const CudaIPCMemory& memory) {
  const auto context = Current(memory.device);
  Call("cuMemFree_v2", memory.data);
}

uint64_t Granule() {
  const auto context = Current(0);
  return driver_calls::Granule(0);
}

CudaIPCMemory AllocateChunks(const std::vector<int>& granules,
                             bool exportable) {
  const auto context = Current(0);
  std::vector<size_t> sizes;
  for (const int count : granules) sizes.push_back(count * Granule());
  const size_t all = std::accumulate(sizes.begin(), sizes.end(), size_t{0});
  return {0, driver_calls::AllocateChunks(0, sizes, exportable), all};
}

void FreeChunks(const CudaIPCMemory& memory) {
  const auto context = Current(memory.device);
  driver_calls::FreeChunks(memory.data, memory.size);
}

CudaIPCMemory PartOf(const CudaIPCMemory& memory,
                     uint64_t offset,
                     uint64_t size) {
  return {memory.device, memory.data + offset, size};
}

void Fill(const CudaIPCMemory& memory, uint32_t word, Stream stream) {
  const auto context = Current(memory.device);
  if (delay_of_fills > 0) {
    Call("cuLaunchHostFunc",
         stream,
         &Sleep,
         reinterpret_cast<void*>(delay_of_fills));
  }
  Call("cuMemsetD32Async",
       memory.data,
       word,
       size_t{memory.size / sizeof(word)},
       stream);
}

bool HasContent(const CudaIPCMemory& memory, uint32_t word, Stream stream) {
  const auto context = Current(memory.device);
  std::vector<uint32_t> words(memory.size / sizeof(word), ~word);
  Call("cuMemcpyDtoHAsync_v2",
       words.data(),
       memory.data,
       words.size() * sizeof(word),
       stream);
  Call("cuStreamSynchronize", stream);
  return std::all_of(words.begin(), words.end(), [&](uint32_t found) {
    return found == word;
  });
}

Storage Allocate(uint64_t size, int device) {
  const CudaIPCMemory memory = AllocateMemory(size, device);
  return StorageIn(memory, [memory] { FreeMemory(memory); });
}

Storage AllocateFilled(uint64_t size, uint32_t word) {
  const Storage storage = Allocate(size);
  Fill(storage->memory, word);
  return storage;
}

Storage AllocateInChunks(const std::vector<int>& granules) {
  const CudaIPCMemory memory = AllocateChunks(granules);
  return StorageIn(memory, [memory] { FreeChunks(memory); });
}

Storage StorageIn(const CudaIPCMemory& memory,
                  const std::function<void()>& free) {
  return std::make_shared<OwnStorage>(memory, free);
}

bool Share(const Storage& storage, SharingStrategy strategy) {
  return DeviceHeap().Share(strategy, storage->memory, storage, [&] {
    static_cast<OwnStorage&>(*storage).SetShared();
  });
}

CudaIPCMessage MessageOf(const Storage& storage,
                         SharingStrategy strategy,
                         std::optional<Stream> stream,
                         uint64_t offset) {
  const char* address = storage->memory.data + offset;
  std::optional<CudaIPCMessage> message = DeviceHeap().Send(address, stream);
  if (!message) {
    REQUIRE_TRUE(Share(storage, strategy));
    message = DeviceHeap().Send(address, stream);
  }
  REQUIRE_TRUE(message.has_value());
  return *message;
}

Storage StorageOf(const CudaIPCMessage& message, Stream stream) {
  const CudaIPCHeap::Received received =
      DeviceHeap().Receive(message, [&](int) { return stream; });
  if (received.storage) {
    return std::static_pointer_cast<DeviceStorage>(received.storage);
  }
  const Storage storage = std::make_shared<ReceivedStorage>(received.data);
  DeviceHeap().Bind(*received.data, storage);
  return storage;
}

}  // namespace shared_memory_test
