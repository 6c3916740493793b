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

// In each operation on device memory, each call of each driver function is made
// to fail, one at a time. The operation then either succeeds anyway or reports
// clearly what failed. Nothing is lost or left behind, and the next attempt
// succeeds.

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <new>
#include <optional>
#include <string>

#include "test/cpp/phi/shared_memory/devices.h"
#include "test/cpp/phi/shared_memory/intercepted_calls.h"

namespace {

using namespace shared_memory_test;  // NOLINT(build/namespaces)

class CudaIPCFaultTest : public shared_memory_test::SharedMemoryTestCase {};

// The functions that the code under test calls.
constexpr const char* kFunctions[] = {
    "cuInit",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetUuid",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxGetState",
    "cuCtxPushCurrent",
    "cuCtxPopCurrent",
    "cuCtxSynchronize",
    "cuMemGetAddressRange",
    "cuMemRetainAllocationHandle",
    "cuMemGetAllocationPropertiesFromHandle",
    "cuMemExportToShareableHandle",
    "cuMemImportFromShareableHandle",
    "cuMemAddressReserve",
    "cuMemMap",
    "cuMemSetAccess",
    "cuMemUnmap",
    "cuMemRelease",
    "cuMemAddressFree",
    "cuIpcGetMemHandle",
    "cuIpcOpenMemHandle",
    "cuIpcCloseMemHandle",
    "cuIpcGetEventHandle",
    "cuIpcOpenEventHandle",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventQuery",
    "cuStreamWaitEvent",
};
// More calls than any operation makes of one function.
constexpr int kMostCalls = 200;
constexpr int kOutOfMemory = 2;
constexpr int kInvalidHandle = 400;
constexpr int kUnknown = 999;

struct Fault {
  std::string function;
  int n;
  int code;
};

// Two processes, one of which may have a fault. Each continues when the other
// one signals.
class Connection {
 public:
  Connection() {
    const int type = SOCK_SEQPACKET | SOCK_CLOEXEC;
    REQUIRE_EQ(socketpair(AF_UNIX, type, 0, ends_), 0);
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection() {
    close(ends_[0]);
    close(ends_[1]);
  }

  Channel first() const { return Channel(ends_[0]); }
  Channel second() const { return Channel(ends_[1]); }

 private:
  int ends_[2];
};

// Runs an attempt and its peer for each fault, in separate processes, until the
// attempt reports that the fault did not happen any more. Returns how many
// faults happened.
int ForEachFault(
    const std::function<bool(const Fault&, const Channel&)>& attempt,
    const std::function<void(const Channel&)>& peer) {
  int faults = 0;
  for (const char* function : kFunctions) {
    // The first call that no attempt makes. It is the same for every code.
    int end = kMostCalls;
    for (int code : {kOutOfMemory, kInvalidHandle, kUnknown}) {
      for (int n = 1; n < end; ++n) {
        const Connection connection;
        Worker other([&](const Channel&) { peer(connection.second()); });
        Worker tested([&](const Channel& channel) {
          channel.Send(attempt({function, n, code}, connection.first()));
        });
        bool happened = false;
        try {
          happened = tested.channel().Receive<bool>();
          tested.Finish();
          other.Finish();
        } catch (const isolated_test::AssertionFailed&) {
          // The failure has already been reported.
        }
        if (isolated_test::HasFailureHere()) {
          std::printf("  when call %d of %s returned %d\n", n, function, code);
          return faults;
        }
        if (happened) {
          ++faults;
        } else {
          end = n;
        }
      }
    }
  }
  return faults;
}

struct Result {
  bool happened;
  std::optional<SharedMemoryError> error;
};

Result Try(const Fault& fault, const std::function<void()>& operation) {
  const int calls = CallsOf(fault.function);
  FailCall(fault.function, fault.n, fault.code);
  const auto error = ErrorOf(operation);
  FailCall(fault.function, 0, 0);  // a call in the past: none will fail
  const bool happened = CallsOf(fault.function) - calls >= fault.n;
  EXPECT_TRUE(happened || !error);
  if (error) {
    const std::string code = "(" + std::to_string(fault.code) + ")";
    EXPECT_PRED_FORMAT2(
        ::testing::IsSubstring, code, std::string(error->what()));
  }
  return {happened, error};
}

// What the driver exports: an allocation, with one handle, or its chunks.
enum class Memory { kAllocation, kChunks };

// Four tests: with both strategies, in both kinds of memory.
#define TEST_ALL(fixture, name)                                           \
  void name(SharingStrategy strategy, Memory kind);                       \
  TEST_BOTH(fixture, name##InAnAllocation) {                              \
    name(strategy, Memory::kAllocation);                                  \
  }                                                                       \
  TEST_BOTH(fixture, name##InChunks) { name(strategy, Memory::kChunks); } \
  void name(SharingStrategy strategy, Memory kind)

// A tensor that is freed without a driver call.
class Tensor {
 public:
  explicit Tensor(Memory kind)
      : kind_(kind),
        memory_(kind == Memory::kChunks ? AllocateChunks({1, 1})
                                        : AllocateMemory(4096)),
        storage_(StorageIn(memory_, [this] { is_free_ = true; })) {
    Fill(memory_, 1);
    EXPECT_TRUE(HasContent(memory_, 1));
  }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;

  const Storage& storage() const { return storage_; }

  // The stand-in also checks that no other process uses the memory.
  void Free() {
    storage_.reset();
    EXPECT_TRUE(is_free_);
    EXPECT_TRUE(SharesNothing());
    kind_ == Memory::kChunks ? FreeChunks(memory_) : FreeMemory(memory_);
  }

 private:
  const Memory kind_;
  const CudaIPCMemory memory_;
  bool is_free_{false};
  Storage storage_;
};

// Sends a tensor, lets the other process use it, and frees it.
void SendOnce(const Channel& channel, SharingStrategy strategy, Memory kind) {
  Tensor tensor(kind);
  channel.Send(MessageOf(tensor.storage(), strategy));
  channel.Await();
  tensor.Free();
  channel.Signal();
}

TEST_ALL(CudaIPCFaultTest, AFaultInSendingLosesAndLeavesNothing) {
  NEEDS_STAND_IN;
  // A lost tensor would be noticed here.
  setenv("STAND_IN_EVENTS", "1", 1);
  const auto send = [&](const Fault& fault, const Channel& channel) {
    DeviceHeap();
    Tensor tensor(kind);
    CudaIPCMessage message;
    const Result result =
        Try(fault, [&] { message = MessageOf(tensor.storage(), strategy); });
    if (result.error) {
      EXPECT_EQ(Heap().Stats().messages, 0);
      message = MessageOf(tensor.storage(), strategy);
    }
    channel.Send(message);
    channel.Await();
    // Without an event there would be no such call.
    const CudaIPCMessage next = MessageOf(tensor.storage(), strategy);
    EXPECT_NE(next.ready.process, 0);
    EXPECT_EQ(StorageOf(next), tensor.storage());
    tensor.Free();
    channel.Signal();
    return result.happened;
  };
  const int faults = ForEachFault(send, [](const Channel& channel) {
    EXPECT_TRUE(
        HasContent(StorageOf(channel.Receive<CudaIPCMessage>())->memory, 1));
    channel.Signal();
    channel.Await();
  });
  EXPECT_GT(faults, 40);
}

TEST_ALL(CudaIPCFaultTest, AFaultInReceivingLosesAndLeavesNothing) {
  NEEDS_STAND_IN;
  const auto receive = [&](const Fault& fault, const Channel& channel) {
    DeviceHeap();
    const auto message = channel.Receive<CudaIPCMessage>();
    Storage storage;
    const Result result = Try(fault, [&] { storage = StorageOf(message); });
    if (result.error) {
      EXPECT_TRUE(SharesNothing());
      storage = StorageOf(message);
    }
    EXPECT_TRUE(HasContent(storage->memory, 1));
    storage.reset();
    EXPECT_TRUE(SharesNothing());
    channel.Signal();
    channel.Await();
    return result.happened;
  };
  const int faults = ForEachFault(receive, [&](const Channel& channel) {
    SendOnce(channel, strategy, kind);
  });
  EXPECT_GT(faults, 40);
}

TEST_ALL(CudaIPCFaultTest, AFaultInSendingOnLosesAndLeavesNothing) {
  NEEDS_STAND_IN;
  const auto forward = [&](const Fault& fault, const Channel& channel) {
    Storage storage = StorageOf(channel.Receive<CudaIPCMessage>());
    CudaIPCMessage message;
    const Result result =
        Try(fault, [&] { message = MessageOf(storage, strategy); });
    if (result.error) message = MessageOf(storage, strategy);
    storage.reset();
    EXPECT_TRUE(SharesNothing());
    channel.Send(message);
    channel.Await();
    return result.happened;
  };
  const int faults = ForEachFault(forward, [&](const Channel& channel) {
    Tensor tensor(kind);
    channel.Send(MessageOf(tensor.storage(), strategy));
    const auto message = channel.Receive<CudaIPCMessage>();
    EXPECT_EQ(StorageOf(message), tensor.storage());
    tensor.Free();
    channel.Signal();
  });
  EXPECT_GT(faults, 5);
}

TEST_ALL(CudaIPCFaultTest, AFaultInDroppingOnlyMakesItLater) {
  NEEDS_STAND_IN;
  const auto drop = [&](const Fault& fault, const Channel& channel) {
    Storage storage = StorageOf(channel.Receive<CudaIPCMessage>());
    const Result result = Try(fault, [&] { storage.reset(); });
    EXPECT_FALSE(result.error);
    EXPECT_EQ(DeviceHeap().Stats().received, 0);
    EXPECT_TRUE(SharesNothing());
    channel.Signal();
    channel.Await();
    return result.happened;
  };
  const int faults = ForEachFault(
      drop, [&](const Channel& channel) { SendOnce(channel, strategy, kind); });
  EXPECT_GT(faults, 10);
}

ISOLATED_TEST(CudaIPCFaultTest, WithoutHandlersOfForkThereIsNoHeap) {
  Heap();
  {
    const Interception failing(
        "pthread_atfork", 1, Calls::kOne, [] { return ENOMEM; });
    EXPECT_THROW(CudaIPCHeap::Instance(), std::bad_alloc);
    EXPECT_TRUE(failing.Happened());
  }
  EXPECT_TRUE(SharesNothing());
}

}  // namespace
