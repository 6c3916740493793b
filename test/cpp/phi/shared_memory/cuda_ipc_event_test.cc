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

// Events that a program sends to other processes. They order memory fills,
// which a slow stream delays.

#include <cerrno>
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "paddle/phi/core/memory/allocation/shared_memory/cuda_interprocess_event.h"
#include "test/cpp/phi/shared_memory/devices.h"
#include "test/cpp/phi/shared_memory/intercepted_calls.h"

namespace {

using namespace shared_memory_test;  // NOLINT(build/namespaces)

using paddle::memory::allocation::CudaInterprocessEvent;
using Event = std::shared_ptr<CudaInterprocessEvent>;

class CudaIPCEventTest : public shared_memory_test::SharedMemoryTestCase {};

constexpr int kSlow = 30000;  // microseconds
constexpr int kUnknown = 999;

::testing::AssertionResult Says(const std::optional<SharedMemoryError>& error,
                                const std::string& text) {
  return ::testing::IsSubstring(
      "text", "error", text, error ? error->what() : "there is no error");
}

Event MakeEvent(int device = 0) {
  DeviceHeap();
  return CudaInterprocessEvent::Make(device);
}

Event EventOf(const SharedMessage& message, std::optional<int> device = {}) {
  DeviceHeap();
  return CudaInterprocessEvent::Receive(message, device);
}

Event ReceiveEvent(const Channel& channel) {
  return EventOf(channel.Receive<SharedMessage>());
}

bool BecomesDone(const Event& event) {
  return Eventually([&] { return event->IsDone(); });
}

// Ends a child of a process that has used a device, without a leak check.
[[noreturn]] void EndChild() {
  _exit(isolated_test::HasFailureHere() ? EXIT_FAILURE : EXIT_SUCCESS);
}

// A process that receives an event, and holds it until Drop.
class Holder : public Worker {
 public:
  Holder()
      : Worker([](const Channel& channel) {
          Event event = ReceiveEvent(channel);
          channel.Signal();
          channel.Await();
          event.reset();
          EXPECT_TRUE(UsesNothing());
          channel.Signal();
          channel.Await();
        }) {}

  void Give(const Event& event, SharingStrategy strategy) const {
    channel().Send(event->Send(strategy));
    channel().Await();
  }
  void Drop() const {
    channel().Signal();
    channel().Await();
  }
  void End() {
    channel().Signal();
    Finish();
  }
};

TEST_BOTH(CudaIPCEventTest, AnEventArrivesAndIsDoneUntilItIsRecorded) {
  Worker receiver([](const Channel& channel) {
    const Event event = ReceiveEvent(channel);
    EXPECT_EQ(event->device(), 0);
    EXPECT_TRUE(event->IsDone());
    const Stream stream = MakeStream();
    event->Wait(0, stream);
    event->Record(stream);
    EXPECT_TRUE(BecomesDone(event));
    channel.Signal();
  });
  const Event event = MakeEvent();
  EXPECT_TRUE(event->IsDone());
  receiver.channel().Send(event->Send(strategy));
  receiver.channel().Await();
  EXPECT_TRUE(BecomesDone(event));
  receiver.Finish();
}

// A receiver's stream waits for a slow fill of the sender, which was recorded
// before or after the event was sent.
void WaitForTheSender(SharingStrategy strategy, bool recorded_before) {
  Worker receiver([](const Channel& channel) {
    const Storage storage = StorageOf(channel.Receive<CudaIPCMessage>());
    const Stream stream = MakeStream();
    const Event event = ReceiveEvent(channel);
    channel.Signal();
    channel.Await();
    event->Wait(0, stream);
    EXPECT_TRUE(HasContent(storage->memory, 2, stream));
    EXPECT_TRUE(event->IsDone());
    channel.Signal();
  });
  const Storage storage = AllocateFilled(kMiB, 1);
  EXPECT_TRUE(HasContent(storage->memory, 1));
  receiver.channel().Send(MessageOf(storage, strategy));
  const Stream stream = MakeStream();
  const Event event = MakeEvent();
  const auto record = [&] {
    SetDelay(kSlow);
    Fill(storage->memory, 2, stream);
    event->Record(stream);
  };
  if (recorded_before) record();
  receiver.channel().Send(event->Send(strategy));
  receiver.channel().Await();
  if (!recorded_before) record();
  receiver.channel().Signal();
  receiver.channel().Await();
  receiver.Finish();
}

TEST_BOTH(CudaIPCEventTest, AReceiversStreamWaitsForARecordBeforeTheSend) {
  WaitForTheSender(strategy, true);
}

TEST_BOTH(CudaIPCEventTest, AReceiversStreamWaitsForARecordAfterTheSend) {
  WaitForTheSender(strategy, false);
}

TEST_BOTH(CudaIPCEventTest, ASendersStreamWaitsForTheRecordOfAReceiver) {
  Worker receiver([](const Channel& channel) {
    const Storage storage = StorageOf(channel.Receive<CudaIPCMessage>());
    const Event event = ReceiveEvent(channel);
    const Stream stream = MakeStream();
    SetDelay(kSlow);
    Fill(storage->memory, 2, stream);
    event->Record(stream);
    channel.Signal();
    channel.Await();
  });
  const Storage storage = AllocateFilled(kMiB, 1);
  EXPECT_TRUE(HasContent(storage->memory, 1));
  receiver.channel().Send(MessageOf(storage, strategy));
  const Event event = MakeEvent();
  receiver.channel().Send(event->Send(strategy));
  receiver.channel().Await();
  const Stream stream = MakeStream();
  event->Wait(0, stream);
  EXPECT_TRUE(HasContent(storage->memory, 2, stream));
  receiver.channel().Signal();
  receiver.Finish();
}

TEST_BOTH(CudaIPCEventTest, AReceiverSeesWhenTheWorkIsDone) {
  NEEDS_STAND_IN;
  Worker receiver([](const Channel& channel) {
    const Event event = ReceiveEvent(channel);
    while (channel.Receive<bool>()) channel.Send(event->IsDone());
    EXPECT_TRUE(BecomesDone(event));
  });
  const Event event = MakeEvent();
  receiver.channel().Send(event->Send(strategy));
  const Storage storage = AllocateFilled(kMiB, 1);
  const Stream stream = MakeStream();
  SetDelay(10 * kSlow);
  // On a busy machine, the work may be done before the receiver checks.
  constexpr int kMostTries = 50;
  int tries = 0;
  bool is_done = true;
  while (is_done && ++tries < kMostTries) {
    Fill(storage->memory, 2, stream);
    event->Record(stream);
    receiver.channel().Send(true);
    is_done = receiver.channel().Receive<bool>();
  }
  EXPECT_FALSE(is_done);
  receiver.channel().Send(false);
  EXPECT_TRUE(BecomesDone(event));
  receiver.Finish();
}

TEST_BOTH(CudaIPCEventTest, AnEventDroppedByItsOwnerLivesAsLongAsAReceiver) {
  Holder receiver;
  Event event = MakeEvent();
  receiver.Give(event, strategy);
  event.reset();
  // The stand-in ends a process that destroys an event which others have open.
  EXPECT_FALSE(UsesNothing());
  receiver.Drop();
  EXPECT_TRUE(UsesNothing());
  EXPECT_TRUE(!HasStandIn() || CallsOf("cuEventDestroy") == 1);
  receiver.End();
}

TEST_BOTH(CudaIPCEventTest, AnEventThatNobodyElseHasEndsWithItsObject) {
  Holder receiver;
  Event event = MakeEvent();
  receiver.Give(event, strategy);
  receiver.Drop();
  event.reset();
  // It is destroyed immediately, not only when Stats or another event collects.
  EXPECT_TRUE(!HasStandIn() || CallsOf("cuEventDestroy") == 1);
  EXPECT_EQ(Heap().Stats().used, 0);
  MakeEvent().reset();  // never sent
  EXPECT_TRUE(!HasStandIn() || CallsOf("cuEventDestroy") == 2);
  receiver.End();
}

TEST_BOTH(CudaIPCEventTest, AnEventLivesAsLongAsAMessageCarriesIt) {
  Worker receiver([](const Channel& channel) {
    const auto message = channel.Receive<SharedMessage>();
    channel.Signal();
    channel.Await();
    EXPECT_TRUE(EventOf(message)->IsDone());
    channel.Signal();
    channel.Await();
  });
  Event event = MakeEvent();
  receiver.channel().Send(event->Send(strategy));
  receiver.channel().Await();
  event.reset();
  EXPECT_FALSE(UsesNothing());
  receiver.channel().Signal();
  receiver.channel().Await();
  EXPECT_TRUE(UsesNothing());
  receiver.channel().Signal();
  receiver.Finish();
}

TEST_BOTH(CudaIPCEventTest, AMessageThatNobodyReceivesExpires) {
  Event event = MakeEvent();
  const SharedMessage message = event->Send(strategy);
  event.reset();
  DeviceHeap().Collect(0.0);
  EXPECT_TRUE(UsesNothing());
  const auto error = ErrorOf([&] { EventOf(message); });
  EXPECT_EQ(KindOf(error), Kind::kGone);
  EXPECT_TRUE(Says(error, "expired"));
}

TEST_BOTH(CudaIPCEventTest, AMessageToTheSameProcessReturnsTheSameEvent) {
  // A driver refuses to open a handle in the process that made it.
  Event event = MakeEvent();
  EXPECT_EQ(EventOf(event->Send(strategy)), event);
  const SharedMessage message = event->Send(strategy);
  const SharedMessage again = event->Send(strategy);
  event.reset();
  event = EventOf(message);
  EXPECT_TRUE(event->IsDone());
  EXPECT_EQ(EventOf(again), event);
  event->Record(MakeStream());
  EXPECT_TRUE(BecomesDone(event));
  event.reset();
  EXPECT_TRUE(UsesNothing());
  EXPECT_TRUE(!HasStandIn() || CallsOf("cuIpcOpenEventHandle") == 0);
}

TEST_BOTH(CudaIPCEventTest, AnEventReceivedTwiceIsOneObject) {
  Worker receiver([](const Channel& channel) {
    const auto first = channel.Receive<SharedMessage>();
    const auto second = channel.Receive<SharedMessage>();
    Event event = EventOf(first);
    EXPECT_EQ(EventOf(second), event);
    EXPECT_EQ(EventOf(first), event);
    EXPECT_TRUE(!HasStandIn() || CallsOf("cuIpcOpenEventHandle") == 1);
    event.reset();
    EXPECT_TRUE(UsesNothing());
    EXPECT_TRUE(EventOf(second)->IsDone());
  });
  const Event event = MakeEvent();
  receiver.channel().Send(event->Send(strategy));
  receiver.channel().Send(event->Send(strategy));
  receiver.Finish();
}

TEST_BOTH(CudaIPCEventTest, AReceiverForwardsAnEventAndReturnsItToItsOwner) {
  Worker last([](const Channel& channel) {
    const Event event = ReceiveEvent(channel);
    EXPECT_TRUE(BecomesDone(event));
    channel.Send(event->Send(SharingStrategy::kFileSystem /* has a record */));
    channel.Await();
  });
  Worker middle([](const Channel& channel) {
    channel.Send(ReceiveEvent(channel)->Send(SharingStrategy::kFileSystem));
    EXPECT_TRUE(UsesNothing());
    channel.Await();
  });
  const Event event = MakeEvent();
  middle.channel().Send(event->Send(strategy));
  last.channel().Send(middle.channel().Receive<SharedMessage>());
  EXPECT_EQ(EventOf(last.channel().Receive<SharedMessage>()), event);
  for (Worker* worker : {&last, &middle}) {
    worker->channel().Signal();
    worker->Finish();
  }
}

TEST_BOTH(CudaIPCEventTest, AKilledReceiversEventEnds) {
  Holder receiver;
  Event event = MakeEvent();
  receiver.Give(event, strategy);
  event.reset();
  EXPECT_FALSE(UsesNothing());
  receiver.Kill();
  EXPECT_TRUE(UsesNothing());
}

TEST_BOTH(CudaIPCEventTest, NobodyWaitsForWorkOfAKilledReceiver) {
  Worker receiver([](const Channel& channel) {
    const Event event = ReceiveEvent(channel);
    const Stream stream = MakeStream();
    const Storage storage = Allocate(kMiB);
    SetDelay(kForever);
    Fill(storage->memory, 1, stream);
    event->Record(stream);
    channel.Signal();
    channel.Await();
  });
  const Event event = MakeEvent();
  receiver.channel().Send(event->Send(strategy));
  receiver.channel().Await();
  EXPECT_FALSE(event->IsDone());
  receiver.Kill();
  EXPECT_TRUE(BecomesDone(event));
  const Storage storage = Allocate(kMiB);
  const Stream stream = MakeStream();
  event->Wait(0, stream);
  Fill(storage->memory, 2, stream);
  EXPECT_TRUE(HasContent(storage->memory, 2, stream));
  const auto error = ErrorOf([&] { event->Record(stream); });
  EXPECT_EQ(KindOf(error), Kind::kGone);
  EXPECT_TRUE(Says(error, "Create a new event"));
}

ISOLATED_TEST(CudaIPCEventTest, ARecordThatFailsLeavesTheEarlierRecord) {
  NEEDS_STAND_IN;
  Worker receiver([](const Channel& channel) {
    Event event = ReceiveEvent(channel);
    FailCall("cuEventRecord", 1, kUnknown);
    EXPECT_EQ(KindOf([&] { event->Record(MakeStream()); }), Kind::kSystem);
    event.reset();
    channel.Signal();
    channel.Await();
  });
  const Event event = MakeEvent();
  receiver.channel().Send(event->Send(SharingStrategy::kFileSystem));
  const Storage storage = Allocate(kMiB);
  const Stream stream = MakeStream();
  SetDelay(100 * kSlow);
  Fill(storage->memory, 1, stream);
  event->Record(stream);
  receiver.channel().Await();
  EXPECT_FALSE(event->IsDone());
  EXPECT_TRUE(BecomesDone(event));
  EXPECT_TRUE(HasContent(storage->memory, 1, stream));
  receiver.channel().Signal();
  receiver.Finish();
}

TEST_BOTH(CudaIPCEventTest, EveryUseOfAnEventOfAKilledProcessFails) {
  Worker receiver([](const Channel& channel) {
    const auto message = channel.Receive<SharedMessage>();
    Event event = EventOf(message);
    channel.Signal();
    channel.Await();
    const Stream stream = MakeStream();
    for (const std::function<void()>& use : std::vector<std::function<void()>>{
             [&] { event->IsDone(); },
             [&] { event->Wait(0, stream); },
             [&] { event->Record(stream); },
             [&] { event->Send(SharingStrategy::kFileSystem); }}) {
      const auto error = ErrorOf(use);
      EXPECT_EQ(KindOf(error), Kind::kGone);
      EXPECT_TRUE(Says(error, "has ended"));
    }
    event.reset();
    EXPECT_TRUE(UsesNothing());
    EXPECT_EQ(KindOf([&] { EventOf(message); }), Kind::kGone);
  });
  Worker maker([&](const Channel& channel) {
    const Event event = MakeEvent();
    channel.Send(event->Send(strategy));
    channel.Await();
  });
  receiver.channel().Send(maker.channel().Receive<SharedMessage>());
  receiver.channel().Await();
  maker.Kill();
  receiver.channel().Signal();
  receiver.Finish();
}

TEST_BOTH(CudaIPCEventTest, AReceiverDropsAnEventWhenItsStreamsAreDoneWithIt) {
  NEEDS_STAND_IN;
  Worker receiver([](const Channel& channel) {
    Event event = ReceiveEvent(channel);
    event->IsDone();
    event.reset();
    EXPECT_EQ(CallsOf("cuCtxSynchronize"), 0);  // no stream has used it
    event = ReceiveEvent(channel);
    event->Wait(0, MakeStream(0));
    event->Wait(1, MakeStream(1));
    event.reset();
    EXPECT_EQ(CallsOf("cuCtxSynchronize"), 2);
    channel.Signal();
    channel.Await();
  });
  Event event = MakeEvent();
  receiver.channel().Send(event->Send(strategy));
  const Storage storage = AllocateFilled(kMiB, 1);
  const Stream stream = MakeStream();
  SetDelay(kSlow);
  Fill(storage->memory, 2, stream);
  event->Record(stream);
  receiver.channel().Send(event->Send(strategy));
  event.reset();
  receiver.channel().Await();
  // The stand-in ends this process if a stream of the receiver still waits.
  EXPECT_TRUE(UsesNothing());
  EXPECT_EQ(CallsOf("cuEventDestroy"), 1);
  receiver.channel().Signal();
  receiver.Finish();
}

ISOLATED_TEST(CudaIPCEventTest, AReceiverThatCannotCloseAnEventStaysAHolder) {
  NEEDS_STAND_IN;
  Worker receiver([](const Channel& channel) {
    Event event = ReceiveEvent(channel);
    FailCall("cuEventDestroy", 1, kUnknown);
    event.reset();
    channel.Signal();
    channel.Await();
  });
  Event event = MakeEvent();
  receiver.channel().Send(event->Send(SharingStrategy::kFileSystem));
  receiver.channel().Await();
  event.reset();
  EXPECT_FALSE(UsesNothing());
  receiver.channel().Signal();
  receiver.Finish();
  EXPECT_TRUE(Eventually(UsesNothing));
}

// Its streams may still wait for the event.
TEST_BOTH(CudaIPCEventTest, AReceiverThatIsExitingStaysAHolder) {
  Worker receiver([](const Channel& channel) {
    Event event = ReceiveEvent(channel);
    event->Wait(0, MakeStream());
    DeviceHeap().Leave();
    event.reset();
    channel.Signal();
    channel.Await();
  });
  Event event = MakeEvent();
  receiver.channel().Send(event->Send(strategy));
  receiver.channel().Await();
  event.reset();
  EXPECT_FALSE(UsesNothing());
  receiver.channel().Signal();
  receiver.Finish();
  EXPECT_TRUE(Eventually(UsesNothing));
}

TEST_BOTH(CudaIPCEventTest, AReceiverDropsAnEventInACallThatMayBlock) {
  Worker receiver([](const Channel& channel) {
    int blocking_calls = 0;
    DeviceHeap().SetBlockingCallWrapper([&](const std::function<void()>& call) {
      ++blocking_calls;
      call();
    });
    Event event = ReceiveEvent(channel);
    event->Wait(0, MakeStream());
    EXPECT_EQ(blocking_calls, 0);
    event.reset();
    EXPECT_EQ(blocking_calls, 1);
    DeviceHeap().SetBlockingCallWrapper({});
    channel.Signal();
    channel.Await();
  });
  const Event event = MakeEvent();
  receiver.channel().Send(event->Send(strategy));
  receiver.channel().Await();
  receiver.channel().Signal();
  receiver.Finish();
}

ISOLATED_TEST(CudaIPCEventTest, AnEventThatTheDriverCannotOpenLeavesNothing) {
  NEEDS_STAND_IN;
  Worker receiver([](const Channel& channel) {
    const auto message = channel.Receive<SharedMessage>();
    FailCall("cuIpcOpenEventHandle", 1, kUnknown);
    const auto error = ErrorOf([&] { EventOf(message); });
    EXPECT_EQ(KindOf(error), Kind::kSystem);
    EXPECT_TRUE(Says(error, "Opening an event of another process"));
    EXPECT_TRUE(UsesNothing());
    channel.Signal();
    channel.Await();
  });
  Event event = MakeEvent();
  receiver.channel().Send(event->Send(SharingStrategy::kFileSystem));
  receiver.channel().Await();
  event.reset();
  EXPECT_TRUE(UsesNothing());
  receiver.channel().Signal();
  receiver.Finish();
}

TEST_BOTH(CudaIPCEventTest, AMessageForAnotherDeviceCanBeReceivedAgain) {
  NEEDS_STAND_IN;
  Worker receiver([](const Channel& channel) {
    const auto message = channel.Receive<SharedMessage>();
    const auto error = ErrorOf([&] { EventOf(message, 0); });
    EXPECT_EQ(KindOf(error), Kind::kInvalid);
    EXPECT_TRUE(Says(error, "for GPU 0: it is on GPU 1"));
    channel.Signal();
    channel.Await();
    EXPECT_EQ(EventOf(message, 1)->device(), 1);
  });
  Event event = MakeEvent(1);
  receiver.channel().Send(event->Send(strategy));
  receiver.channel().Await();
  event.reset();
  EXPECT_FALSE(UsesNothing());
  receiver.channel().Signal();
  receiver.Finish();
}

TEST_BOTH(CudaIPCEventTest, AnEventArrivesOnItsDeviceWhateverItsNumber) {
  NEEDS_STAND_IN;
  Worker receiver([](const Channel& channel) {
    setenv("CUDA_VISIBLE_DEVICES", "1", 1);
    EXPECT_EQ(ReceiveEvent(channel)->device(), 0);
    const auto error = ErrorOf([&] { ReceiveEvent(channel); });
    EXPECT_EQ(KindOf(error), Kind::kUnavailable);
    EXPECT_TRUE(Says(error, "GPU-7374616e-642d-696e-2047-505500000000"));
    EXPECT_TRUE(Says(error, "CUDA_VISIBLE_DEVICES"));
    EXPECT_TRUE(UsesNothing());
    channel.Signal();
    channel.Await();
  });
  Event visible = MakeEvent(1);
  Event hidden = MakeEvent(0);
  receiver.channel().Send(visible->Send(strategy));
  receiver.channel().Send(hidden->Send(strategy));
  receiver.channel().Await();
  visible.reset();
  hidden.reset();
  EXPECT_TRUE(UsesNothing());
  receiver.channel().Signal();
  receiver.Finish();
}

TEST_BOTH(CudaIPCEventTest, AForkedChildCannotUseAnEventAndKeepsNothing) {
  Event event = MakeEvent();
  Event unsent = MakeEvent();
  const SharedMessage message = event->Send(strategy);
  Worker child([&](const Channel& channel) {
    for (const std::function<void()>& use :
         std::vector<std::function<void()>>{[&] { event->IsDone(); },
                                            [&] { event->Wait(0, nullptr); },
                                            [&] { event->Record(nullptr); },
                                            [&] { event->Send(strategy); },
                                            [&] { MakeEvent(); },
                                            [&] { EventOf(message); }}) {
      const auto error = ErrorOf(use);
      EXPECT_EQ(KindOf(error), Kind::kUnavailable);
      EXPECT_TRUE(Says(error, "spawn"));
    }
    event.reset();
    unsent.reset();
    channel.Signal();
    channel.Await();
    EndChild();
  });
  child.channel().Await();
  EXPECT_TRUE(event->IsDone());
  EXPECT_TRUE(unsent->IsDone());
  event.reset();
  // The child's attempt has redeemed the ticket.
  EXPECT_TRUE(UsesNothing());
  child.channel().Signal();
  child.Finish();
}

TEST_BOTH(CudaIPCEventTest, AForkedChildOfAReceiverKeepsNothing) {
  Worker receiver([](const Channel& channel) {
    Event event = ReceiveEvent(channel);
    Worker child([&](const Channel& child_channel) {
      event.reset();  // nothing happens
      child_channel.Signal();
      child_channel.Await();
      EndChild();
    });
    child.channel().Await();
    EXPECT_TRUE(event->IsDone());
    event.reset();
    channel.Signal();
    channel.Await();
    child.channel().Signal();
    child.Finish();
  });
  Event event = MakeEvent();
  receiver.channel().Send(event->Send(strategy));
  receiver.channel().Await();
  event.reset();
  EXPECT_TRUE(UsesNothing());
  receiver.channel().Signal();
  receiver.Finish();
}

TEST_BOTH(CudaIPCEventTest, EventsAndTensorsAreNotConfused) {
  const Event event = MakeEvent();
  const auto no_tensor = ErrorOf([&] {
    StorageOf(CudaIPCMessage{event->Send(strategy), {}, 0});
  });
  EXPECT_EQ(KindOf(no_tensor), Kind::kInvalid);
  EXPECT_TRUE(Says(no_tensor, "does not refer to GPU memory"));
  const Storage storage = AllocateFilled(kMiB, 1);
  const SharedBlock block = AllocateFilled(strategy, kMiB, 1);
  for (const SharedMessage& message :
       {MessageOf(storage, strategy).record, MessageOf(block)}) {
    const auto no_event = ErrorOf([&] { EventOf(message); });
    EXPECT_EQ(KindOf(no_event), Kind::kInvalid);
    EXPECT_TRUE(Says(no_event, "The handle of an event"));
  }
  EXPECT_TRUE(HasContent(storage->memory, 1));
  EXPECT_TRUE(HasContent(block, 1));
  EXPECT_TRUE(event->IsDone());
}

ISOLATED_TEST(CudaIPCEventTest, AnExhaustedDriverIsReportedAsTheError) {
  NEEDS_STAND_IN;
  setenv("STAND_IN_EVENTS", "1", 1);
  Holder receiver;
  Event event = MakeEvent();
  receiver.Give(event, SharingStrategy::kFileSystem);
  event.reset();
  const auto error = ErrorOf([] { MakeEvent(); });
  EXPECT_EQ(KindOf(error), Kind::kExhausted);
  EXPECT_TRUE(Says(error, "Drop some"));
  receiver.Drop();
  // Events that other processes have dropped are collected.
  EXPECT_TRUE(MakeEvent()->IsDone());
  receiver.End();
}

// Destroyed after the driver has shut down.
std::vector<Event> events_at_exit;

TEST_BOTH(CudaIPCEventTest, WithoutHandlersOfForkNoEventIsSent) {
  const Event event = MakeEvent();
  {
    const Interception failing(
        "pthread_atfork", 1, Calls::kOne, [] { return ENOMEM; });
    EXPECT_THROW(event->Send(strategy), std::bad_alloc);
    EXPECT_TRUE(failing.Happened());
  }
  EXPECT_TRUE(UsesNothing());
  EXPECT_EQ(EventOf(event->Send(strategy)), event);
}

TEST_BOTH(CudaIPCEventTest, AnExitingProcessMakesNoMoreDriverCalls) {
  Worker receiver([](const Channel& channel) {
    events_at_exit.push_back(ReceiveEvent(channel));
    channel.Signal();
    channel.Await();
  });
  events_at_exit = {MakeEvent(), MakeEvent(), MakeEvent()};
  const SharedMessage message = events_at_exit[0]->Send(strategy);
  receiver.channel().Send(events_at_exit[1]->Send(strategy));
  receiver.channel().Await();
  DeviceHeap().Leave();
  const int calls = HasStandIn() ? CallsOf("cuCtxPushCurrent") : 0;
  for (const std::function<void()>& use : std::vector<std::function<void()>>{
           [&] { events_at_exit[0]->IsDone(); },
           [&] { events_at_exit[0]->Send(strategy); },
           [&] { MakeEvent(); }}) {
    const auto error = ErrorOf(use);
    EXPECT_EQ(KindOf(error), Kind::kUnavailable);
    EXPECT_TRUE(Says(error, "exiting"));
  }
  EXPECT_EQ(EventOf(message), events_at_exit[0]);  // needs no call
  events_at_exit.pop_back();
  events_at_exit.pop_back();
  EXPECT_TRUE(!HasStandIn() || CallsOf("cuCtxPushCurrent") == calls);
  receiver.channel().Signal();
  receiver.Finish();
}

}  // namespace
