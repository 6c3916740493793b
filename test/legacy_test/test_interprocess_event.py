# Copyright (c) 2026 PaddlePaddle Authors. All Rights Reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Interprocess events: how they order work, and how long they live.

cuda_ipc_event_test.cc tests the C++ code below them. Streams here are created
with the driver, and a host function delays their work.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import unittest
from multiprocessing.reduction import ForkingPickler
from types import SimpleNamespace
from unittest import mock

from cuda_ipc_base import (
    GpuTestCase,
    call_driver,
    fill_late,
    gpu,
    needs_two_gpus,
    stand_in,
    vector,
)
from shared_tensor_base import (  # noqa: F401
    Peer,
    PeerError,
    forget,
    keep,
    setUpModule,
    tearDownModule,
)

import paddle
from paddle.base import core, shared_storage
from paddle.device import Event, Stream
from paddle.device.cuda.streams import create_event

# Long enough that work without a wait runs first.
_DELAY_US = 30_000


def new_event(device: int = 0, **options) -> Event:
    """Returns an event on a GPU, created in the same way as in a program."""
    if stand_in is None:
        with paddle.device.device_guard(f"gpu:{device}"):
            return Event(**{"interprocess": True, **options})
    # As in a Paddle that is compiled with CUDA.
    place = SimpleNamespace(
        get_device_id=lambda: device,
        _equals=lambda other: other.gpu_device_id() == device,
    )
    current = mock.patch.object(
        paddle.framework, "_current_expected_place_", lambda: place
    )
    create = mock.patch.dict(
        Event.__init__.__globals__, _create_event_base=create_event
    )
    with current, create:
        return Event(**{"interprocess": True, **options})


def native_of(event: Event) -> object:
    """Returns the C++ object. A process has one object per event."""
    return event.event_base._event


def new_stream() -> Stream:
    """Returns a stream of GPU 0, also in a Paddle without CUDA."""
    address = ctypes.c_void_p()
    call_driver("cuStreamCreate", ctypes.byref(address), 1)
    stream = Stream.__new__(Stream)
    stream.device = vector().place
    stream.stream_base = SimpleNamespace(
        cuda_stream=address.value, place=stream.device
    )
    return stream


def fill_first_late(
    tensor: paddle.Tensor, word: int, stream: Stream, delay_us: int = _DELAY_US
) -> None:
    """Makes a stream set the first word of a tensor after a delay."""
    address = gpu.address(tensor)
    fill_late(address, word, stream.stream_base.cuda_stream, delay_us)


def first_word(tensor: paddle.Tensor, stream: Stream) -> int:
    """Returns the first word of a tensor, as seen by a stream."""
    word = ctypes.c_uint32()
    address = ctypes.c_void_p(stream.stream_base.cuda_stream)
    call_driver(
        "cuMemcpyDtoHAsync_v2",
        ctypes.byref(word),
        ctypes.c_void_p(gpu.address(tensor)),
        ctypes.c_size_t(4),
        address,
    )
    call_driver("cuStreamSynchronize", address)
    return word.value


# Functions for `Peer.call`.


def is_done(kept, event):
    return event.query()


def kept_is_done(kept, name):
    return kept[name].query()


def open_handle(kept, device, handle):
    # A Paddle without CUDA does not accept "gpu:0".
    place = vector(device=device).place
    kept["event"] = Event.from_ipc_handle(place, handle)
    return kept["event"].device.gpu_device_id()


def keep_new_event(kept):
    kept["event"] = new_event()
    return kept["event"]


def word_after(kept, event, tensor):
    stream = new_stream()
    stream.wait_event(event)
    return first_word(tensor, stream)


def word_after_synchronize(kept, event, tensor):
    event.synchronize()
    return first_word(tensor, new_stream())


def word_after_kept(kept, tensor):
    return word_after(kept, kept["event"], tensor)


def fill_late_and_record(kept, event, tensor, word):
    stream = new_stream()
    fill_first_late(tensor, word, stream)
    stream.record_event(event)
    kept["stream"] = stream


def record_work_without_end(kept, event, tensor):
    stream = new_stream()
    fill_first_late(tensor, 5, stream, delay_us=10**9)
    stream.record_event(event)
    # Dropping one of them would wait for the work.
    kept.update(stream=stream, event=event, tensor=tensor)


def put_back(kept, kind):
    there, back = kept["_queues"][kind]
    back.put(there.get())


def send_back(kept):
    kept["_pipe"].send(kept["_pipe"].recv())


class TestSending(GpuTestCase):
    """An event that is sent back to its process is the same event."""

    def new_peer(self, **kept) -> Peer:
        cls = type(self)
        cls.queues = {
            kind: (getattr(self.context, kind)(), getattr(self.context, kind)())
            for kind in ("Queue", "SimpleQueue")
        }
        cls.pipe, theirs = self.context.Pipe()
        peer = super().new_peer(_queues=cls.queues, _pipe=theirs, **kept)
        theirs.close()
        return peer

    def assert_comes_back(self, event: Event, back: Event) -> None:
        self.assertIsInstance(back, Event)
        self.assertIs(native_of(back), native_of(event))

    def test_handle_opens_the_event_in_another_process(self):
        handle = new_event().ipc_handle()
        self.assertEqual(self.peer.call(open_handle, 0, handle), 0)

    def test_handle_opened_by_its_own_process_is_the_same_event(self):
        event = new_event()
        place = event.event_base.place
        handle = event.ipc_handle()
        self.assert_comes_back(event, Event.from_ipc_handle(place, handle))

    def test_queue_carries_an_event_and_back(self):
        self.send_through_queue("Queue")

    def test_simple_queue_carries_an_event_and_back(self):
        self.send_through_queue("SimpleQueue")

    def send_through_queue(self, kind: str) -> None:
        there, back = self.queues[kind]
        event = new_event()
        there.put(event)
        self.peer.call(put_back, kind)
        self.assert_comes_back(event, back.get())

    def test_pipe_carries_an_event_and_back(self):
        event = new_event()
        self.pipe.send(event)
        self.peer.call(send_back)
        self.assert_comes_back(event, self.pipe.recv())


class TestOrder(GpuTestCase):
    method = "forkserver"

    def setUp(self):
        super().setUp()
        self.tensor = vector()
        self.stream = new_stream()
        self.event = new_event()
        for name in ("tensor", "event"):
            # This runs before the base class checks for leaked memory.
            self.addCleanup(vars(self).pop, name)

    def test_receiver_stream_waits_for_a_record_before_the_send(self):
        fill_first_late(self.tensor, 7, self.stream)
        self.event.record(self.stream)
        word = self.peer.call(word_after, self.event, self.tensor)
        self.assertEqual(word, 7)

    def test_receiver_stream_waits_for_a_record_after_the_send(self):
        self.peer.call(keep, "event", self.event)
        fill_first_late(self.tensor, 7, self.stream)
        self.event.record(self.stream)
        word = self.peer.call(word_after_kept, self.tensor)
        self.assertEqual(word, 7)

    def test_receiver_that_synchronizes_waits_for_the_work(self):
        fill_first_late(self.tensor, 7, self.stream)
        self.event.record(self.stream)
        word = self.peer.call(word_after_synchronize, self.event, self.tensor)
        self.assertEqual(word, 7)

    def test_sender_stream_waits_for_a_record_of_the_receiver(self):
        self.peer.call(fill_late_and_record, self.event, self.tensor, 7)
        self.event.wait(self.stream)
        self.assertEqual(first_word(self.tensor, self.stream), 7)
        self.assertTrue(self.event.query())


class TestLifetime(GpuTestCase):
    method = "forkserver"

    def setUp(self):
        super().setUp()
        self.used_before = self.used()

    def test_argument_of_a_process_arrives(self):
        with self.another_peer(event=new_event()) as peer:
            self.assertTrue(peer.call(kept_is_done, "event"))

    def test_event_lives_as_long_as_its_receiver_keeps_it(self):
        event = new_event()
        self.peer.call(keep, "event", event)
        del event
        self.assertGreater(self.used(), self.used_before)
        self.assertTrue(self.peer.call(kept_is_done, "event"))
        self.peer.call(forget)
        self.assertEqual(self.used(), self.used_before)

    def test_handle_that_nobody_opens_keeps_the_event(self):
        handle = new_event().ipc_handle()
        self.assertGreater(self.used(), self.used_before)
        self.assertEqual(self.peer.call(open_handle, 0, handle), 0)

    def test_event_of_a_killed_receiver_ends(self):
        with self.another_peer() as peer:
            peer.call(keep, "event", new_event())
            self.assertGreater(self.used(), self.used_before)
            peer.kill()
        self.assertEqual(self.used(), self.used_before)

    def test_event_of_a_killed_sender_is_an_error(self):
        with self.another_peer() as peer:
            event = peer.call(keep_new_event)
            self.assertTrue(event.query())
            peer.kill()
        for use in (event.query, event.synchronize, event.ipc_handle):
            with self.assertRaisesRegex(RuntimeError, "has ended"):
                use()

    def test_event_is_done_when_its_last_recorder_was_killed(self):
        event, tensor = new_event(), vector()
        with self.another_peer() as peer:
            peer.call(record_work_without_end, event, tensor)
            self.assertFalse(event.query())
            peer.kill()
            event.synchronize()
            self.assertTrue(event.query())
            self.assertEqual(gpu.to_cpu(tensor).tolist(), [3.0] * 1000)
        with self.assertRaisesRegex(RuntimeError, "Create a new event"):
            event.record(new_stream())

    @unittest.skipUnless(hasattr(os, "fork"), "needs fork")
    def test_error_in_forked_child_recommends_spawn(self):
        event = new_event()
        queue = multiprocessing.get_context("fork").SimpleQueue()
        process = multiprocessing.get_context("fork").Process(
            target=put_error_of_query, args=(queue, event)
        )
        process.start()
        self.addCleanup(process.join)
        self.assertIn("get_context('spawn')", queue.get())
        self.assertTrue(event.query())


def put_error_of_query(queue, event):
    try:
        event.query()
        queue.put("no error")
    except Exception as error:
        queue.put(str(error))


class TestRefusals(GpuTestCase):
    method = "forkserver"

    def test_event_without_interprocess_is_refused(self):
        event = Event.__new__(Event)
        event.device = None
        event.event_base = core.CUDAEvent.__new__(core.CUDAEvent)
        for refused in (event, event.event_base):
            with self.assertRaisesRegex(ValueError, "interprocess=True"):
                ForkingPickler.dumps(refused)
        with self.assertRaisesRegex(ValueError, "interprocess=True"):
            event.ipc_handle()

    def test_paddle_without_shared_memory_reports_the_reason(self):
        event = Event.__new__(Event)
        event.device = None
        event.event_base = core.CUDAEvent.__new__(core.CUDAEvent)
        place, handle = vector().place, new_event().ipc_handle()
        with mock.patch.object(
            shared_storage, "is_available", return_value=False
        ):
            for use in (
                event.ipc_handle,
                lambda: Event.from_ipc_handle(place, handle),
            ):
                with self.assertRaisesRegex(
                    NotImplementedError, "cannot send events.*synchronize"
                ):
                    use()

    def test_refusal_reaches_the_receiver_of_a_queue(self):
        queue = self.context.Queue()
        queue.put(core.CUDAEvent.__new__(core.CUDAEvent))
        with self.assertRaisesRegex(
            ValueError, "could not send an event through a queue"
        ):
            queue.get()

    def test_interprocess_event_cannot_measure_time(self):
        with self.assertRaisesRegex(ValueError, "enable_timing=True"):
            new_event(enable_timing=True)

    def test_time_since_or_until_the_event_is_an_error(self):
        event = new_event()
        timed = mock.Mock(spec=["elapsed_time"])
        other = Event.__new__(Event)
        other.device, other.event_base = None, timed
        for first, last in ((event, other), (other, event)):
            with self.assertRaisesRegex(NotImplementedError, "measure time"):
                first.elapsed_time(last)
        timed.elapsed_time.assert_not_called()

    def test_event_needs_a_gpu(self):
        with self.assertRaisesRegex(ValueError, "set_device"):
            create_event(interprocess=True, device_id=None)

    @needs_two_gpus
    def test_handle_for_another_device_is_refused_and_stays_valid(self):
        handle = new_event(1).ipc_handle()
        with self.assertRaises(PeerError) as caught:
            self.peer.call(open_handle, 0, handle)
        self.assertEqual(caught.exception.kind, "ValueError")
        self.assertIn("it is on GPU 1", caught.exception.message)
        self.assertEqual(self.peer.call(open_handle, 1, handle), 1)

    def test_device_other_than_a_gpu_is_refused(self):
        handle = new_event().ipc_handle()
        with self.assertRaisesRegex(ValueError, "on a GPU.*'cpu'"):
            Event.from_ipc_handle("cpu", handle)
        with self.assertRaisesRegex(TypeError, "received b'gpu:0' of type"):
            Event.from_ipc_handle(b"gpu:0", handle)

    def test_damaged_handle_is_refused(self):
        event = new_event()
        place, handle = event.event_base.place, event.ipc_handle()
        for damaged in (b"", handle[:-1], handle + b"x", bytes(len(handle))):
            with self.assertRaisesRegex(ValueError, "handle of an event"):
                Event.from_ipc_handle(place, damaged)
        Event.from_ipc_handle(place, handle)

    @needs_two_gpus
    def test_stream_of_another_gpu_cannot_record_the_event(self):
        stream = mock.Mock(place=vector(device=1).place)
        with self.assertRaisesRegex(ValueError, "its own GPU"):
            new_event(0).event_base.record(stream)


if __name__ == "__main__":
    unittest.main()
