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

// GPU memory shared between processes, for one Python thread: a minimal
// allocator for the benchmark, on device 0 and its default stream.
//
// Functions return null or an error message, which is valid until the next
// call.

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "paddle/phi/core/memory/allocation/shared_memory/cuda_ipc_heap.h"
#include "test/cpp/phi/shared_memory/driver_calls.h"

namespace {

using namespace paddle::memory::allocation;  // NOLINT(build/namespaces)
using driver_calls::Call;

constexpr void* kDefaultStream = nullptr;
constexpr uint64_t kLeastChunk = uint64_t{2} << 20;  // as torch has it

// Free pieces of chunks, by size.
std::map<uint64_t, std::vector<char*>> unused;

// Memory that was cut from a chunk or received.
struct Storage {
  ~Storage() {
    CudaIPCHeap& heap = CudaIPCHeap::Instance();
    auto free = [size = size, data = data] { unused[size].push_back(data); };
    if (received) {
      heap.Release(received);
    } else if (!heap.ReleaseOwned(data, free)) {
      free();
    }
  }

  uint64_t size;
  char* data;
  std::shared_ptr<CudaIPCData> received;
};

using Kept = std::shared_ptr<Storage>;

const char* ErrorOf(const std::function<void()>& act) {
  static std::string text;
  try {
    act();
    return nullptr;
  } catch (const std::exception& error) {
    text = error.what();
    return text.c_str();
  }
}

}  // namespace

extern "C" {

uint64_t MessageBytes() { return sizeof(CudaIPCMessage); }

// Processes that receive each other's messages belong to one process tree, not
// 0.
const char* Start(uint64_t tree) {
  return ErrorOf([&] {
    SharedHeap::Instance().Join(tree);
    CudaIPCDriver::Instance();
    int device = 0;
    void* context = nullptr;
    Call("cuDeviceGet", &device, 0);
    Call("cuDevicePrimaryCtxRetain", &context, device);
    Call("cuCtxPushCurrent_v2", context);
  });
}

// Allocates a storage whose first bytes are `word`.
const char* Cut(uint64_t size, uint32_t word, Kept** made) {
  return ErrorOf([&] {
    std::vector<char*>& pieces = unused[size];
    if (pieces.empty()) {
      char* chunk = nullptr;
      uint64_t count = (kLeastChunk + size - 1) / size;
      Call("cuMemAlloc_v2", &chunk, size_t{count * size});
      while (count-- > 0) pieces.push_back(chunk + count * size);
    }
    char* data = pieces.back();
    Call("cuMemcpyHtoDAsync_v2", data, &word, sizeof(word), kDefaultStream);
    Call("cuStreamSynchronize", kDefaultStream);
    pieces.pop_back();
    *made = new Kept(new Storage{size, data, nullptr});
  });
}

const char* Send(const Kept* kept, CudaIPCMessage* message) {
  return ErrorOf([&] {
    CudaIPCHeap& heap = CudaIPCHeap::Instance();
    CudaIPCMemory memory = {0, (*kept)->data, (*kept)->size};
    if (!heap.Share(SharingStrategy::kFileSystem, memory, *kept, [] {})) {
      throw std::runtime_error("The driver cannot export cuMemAlloc memory.");
    }
    *message = *heap.Send(memory.data, kDefaultStream);
  });
}

const char* Receive(const char* bytes, Kept** made) {
  return ErrorOf([&] {
    CudaIPCMessage message;
    std::memcpy(&message, bytes, sizeof(message));
    CudaIPCHeap& heap = CudaIPCHeap::Instance();
    auto [storage, data] =
        heap.Receive(message, [](int) { return kDefaultStream; });
    if (!storage) {
      storage = Kept(new Storage{data->memory.size, data->memory.data, data});
      heap.Bind(*data, storage);
    }
    *made = new Kept(std::static_pointer_cast<Storage>(storage));
  });
}

const char* ReadWord(const Kept* kept, uint32_t* word) {
  return ErrorOf([&] {
    char* data = (*kept)->data;
    Call("cuMemcpyDtoHAsync_v2", word, data, sizeof(*word), kDefaultStream);
    Call("cuStreamSynchronize", kDefaultStream);
  });
}

const char* Drop(const Kept* kept) {
  return ErrorOf([&] { delete kept; });
}

// Collects garbage. `sent` receives the bytes that other processes may still
// use.
const char* Collect(uint64_t* sent) {
  return ErrorOf([&] {
    CudaIPCHeap::Instance().Collect({});
    *sent = CudaIPCHeap::Instance().Stats().sent_bytes;
  });
}

// Leaves the process tree. No function may be called afterwards.
const char* Leave() {
  return ErrorOf([] {
    CudaIPCHeap::Instance().Leave();
    SharedHeap::Instance().Leave();
  });
}

}  // extern "C"
