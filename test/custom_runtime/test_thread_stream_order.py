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

"""Per-thread streams: the stream that work runs on, and its order.

CUSTOM_DEVICE_ROOT must name the folder of the built plugin in host_device/.
"""

from __future__ import annotations

import os
import sys
import threading
import unittest
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from host_device_control import (
    Operation,
    check_overlap,
    check_pending,
    delay,
    take_trace,
    with_ample_delay,
)
from test_host_device import name_of, setUpModule

sys.path.append(str(Path(__file__).parents[1] / "legacy_test"))

from concurrent_base import WAIT_S, in_fork, in_thread, in_threads
from thread_device_base import handle

import paddle
from paddle.device import Stream, current_stream, set_stream, stream_guard
from paddle.nn.functional import relu

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["setUpModule"]

T = TypeVar("T")

# In microseconds: ample time for an operation that does not wait.
DELAY = 300_000
# Large enough for the allocator to give a tensor its own chunk.
SIZE = 1 << 16


def overlap(first: Operation, second: Operation) -> bool:
    return first.begin_ns < second.end_ns and second.begin_ns < first.end_ns


def slow(stream: Stream):
    """Delay the operations that are submitted to a stream of device 0."""
    return delay(0, DELAY, handle(stream))


def filled(value: float) -> paddle.Tensor:
    """Return a tensor on device 0, once its values are written."""
    tensor = paddle.full([SIZE], value)
    current_stream().synchronize()
    return tensor


class StreamTest(unittest.TestCase):
    """Starts each test on an idle device 0 with an empty trace."""

    def setUp(self) -> None:
        self.addCleanup(paddle.set_device, paddle.get_device())
        paddle.set_device(name_of(0))
        self.default = current_stream()
        self.finish()
        take_trace()
        self.addCleanup(self.finish)

    def finish(self) -> None:
        for index in range(4):
            paddle.device.synchronize(name_of(index))

    def trace_of(self, run: Callable[[], object]) -> list[Operation]:
        """Return the operations that a call causes, on all devices."""
        self.finish()
        take_trace()
        run()
        self.finish()
        return take_trace()

    def assert_holds(self, tensor: paddle.Tensor, value: float) -> None:
        self.assertEqual(set(tensor.numpy().tolist()), {value})

    def assert_runs_on(
        self, stream: Stream, run: Callable[[], object], *kinds: str
    ) -> None:
        """Check that a call causes these operations, all on one stream."""
        trace = self.trace_of(run)
        self.assertEqual([each.kind for each in trace], list(kinds))
        self.assertEqual({each.stream for each in trace}, {handle(stream)})

    def assert_runs_on_streams_of_threads(
        self, run: Callable[[], object], *kinds: str
    ) -> None:
        """
        Check that a call causes these operations on the current stream: on
        threads with and without their own stream, and on the main thread with
        another stream.
        """

        def on_own_stream() -> None:
            stream = Stream()
            with stream_guard(stream):
                self.assert_runs_on(stream, run, *kinds)
            self.assert_runs_on(self.default, run, *kinds)

        in_thread(on_own_stream)
        in_thread(on_own_stream)
        stream = Stream()
        with stream_guard(stream):
            self.assert_runs_on(stream, run, *kinds)
            in_thread(lambda: self.assert_runs_on(self.default, run, *kinds))
            in_thread(on_own_stream)


class TestStreamOfWork(StreamTest):
    def test_kernels(self):
        x = paddle.ones([2, 2])

        def run() -> None:
            relu(paddle.matmul(paddle.full([2, 2], 1.0), x) * 2 + x)

        self.assert_runs_on_streams_of_threads(
            run, "full", "matmul", "scale", "add", "relu"
        )

    def test_copies_to_the_device(self):
        host = paddle.ones([2], device="cpu")
        self.assert_runs_on_streams_of_threads(
            lambda: host.to(name_of(0)), "async_memory_copy_h2d"
        )

    def test_copies_within_the_device(self):
        x = paddle.ones([2])
        self.assert_runs_on_streams_of_threads(
            lambda: x._copy_to(x.place, False), "async_memory_copy_d2d"
        )

    def test_copies_between_devices_run_on_the_destinations_stream(self):
        x = paddle.ones([2])

        def on_own_streams() -> None:
            streams = [Stream(name_of(index)) for index in range(2)]
            with stream_guard(streams[0]), stream_guard(streams[1]):
                self.assert_runs_on(
                    streams[1],
                    lambda: x.to(name_of(1)),
                    "async_memory_copy_p2p",
                )

        in_thread(on_own_streams)

    def test_kernels_of_backward(self):
        x = paddle.ones([2])
        x.stop_gradient = False

        self.assert_runs_on_streams_of_threads(
            lambda: paddle.grad(x * 3, x), "scale", "full", "scale"
        )

    def test_backward_runs_on_the_stream_of_the_calling_thread(self):
        x = paddle.ones([2])
        x.stop_gradient = False

        def forward() -> paddle.Tensor:
            with stream_guard(Stream()):
                y = x * 3
                paddle.device.synchronize()
            return y

        def backward() -> None:
            stream = Stream()
            with stream_guard(stream):
                self.assert_runs_on(stream, y.backward, "full", "scale")

        y = in_thread(forward)
        in_thread(backward)


class TestStreamOfMemory(StreamTest):
    """Freed memory goes back to the stream that it was allocated on."""

    def address(self, make: Callable[[], paddle.Tensor]) -> int:
        """Return the address of a tensor, whose memory is then freed."""
        return make().data_ptr()

    def assert_memory_stays_with_the_stream(
        self, make: Callable[[], paddle.Tensor]
    ) -> None:
        streams = [Stream(), Stream()]

        def on_own_streams() -> list[int]:
            addresses = []
            for stream in (streams[0], streams[1], streams[0]):
                with stream_guard(stream):
                    # The first call may merge free blocks that an earlier
                    # stream with the same handle has left.
                    self.address(make)
                    addresses.append(self.address(make))
            addresses.append(self.address(make))
            return addresses

        for run in (lambda: in_thread(on_own_streams), on_own_streams):
            first, second, again, default = run()
            self.assertEqual(again, first)
            self.assertEqual(len({first, second, default}), 3)

    def test_results_of_kernels(self):
        self.assert_memory_stays_with_the_stream(
            lambda: paddle.full([SIZE], 1.0)
        )

    def test_results_of_kernels_that_run_on_the_host(self):
        self.assert_memory_stays_with_the_stream(
            lambda: paddle.full([SIZE], 1, "int64")
        )

    def test_tensors_made_from_numpy(self):
        values = np.ones(SIZE, "float32")
        self.assert_memory_stays_with_the_stream(
            lambda: paddle.to_tensor(values)
        )

    def test_clones(self):
        x = paddle.ones([SIZE])
        self.assert_memory_stays_with_the_stream(x.clone)

    def test_copies_from_the_host(self):
        host = paddle.ones([SIZE], device="cpu")
        self.assert_memory_stays_with_the_stream(lambda: host.to(name_of(0)))

    def test_gradients(self):
        def gradient() -> paddle.Tensor:
            return paddle.grad(x * 3, x)[0]

        x = paddle.ones([SIZE])
        x.stop_gradient = False
        self.assert_memory_stays_with_the_stream(gradient)

    def test_child_of_the_main_thread_in_a_guard_has_the_default_streams(self):
        def make() -> int:
            return self.address(lambda: paddle.full([SIZE], 1.0))

        with stream_guard(Stream()):
            first = in_thread(make)
        self.assertEqual(in_thread(make), first)
        self.assertEqual(make(), first)


class TestMemoryInUse(StreamTest):
    """
    Memory that a thread frees is not reused by another stream while work on it
    is pending.
    """

    def assert_input_outlives_its_kernel(
        self, make: Callable[[float], paddle.Tensor]
    ) -> None:
        freed, refilled = threading.Event(), threading.Event()

        def read_late() -> paddle.Tensor:
            stream = Stream()
            with stream_guard(stream):
                x = make(1.0)
                stream.synchronize()
                with slow(stream):
                    y = x * 2
                del x
                freed.set()
                self.assertTrue(refilled.wait(WAIT_S))
                check_pending(stream)
                self.assert_holds(y, 2.0)

        def refill() -> None:
            stream = Stream()
            with stream_guard(stream):
                self.assertTrue(freed.wait(WAIT_S))
                x = make(7.0)
                stream.synchronize()
                refilled.set()
                self.assert_holds(x, 7.0)

        in_threads(read_late, refill)

    @with_ample_delay
    def test_input_made_by_a_kernel(self):
        self.assert_input_outlives_its_kernel(
            lambda value: paddle.full([SIZE], value)
        )

    @with_ample_delay
    def test_input_made_from_numpy(self):
        self.assert_input_outlives_its_kernel(
            lambda value: paddle.to_tensor(np.full(SIZE, value, "float32"))
        )

    @with_ample_delay
    def test_input_made_by_clone(self):
        originals = {value: filled(value) for value in (1.0, 7.0)}
        self.assert_input_outlives_its_kernel(
            lambda value: originals[value].clone()
        )

    @with_ample_delay
    def test_result_that_is_dropped_before_it_is_computed(self):
        stream = Stream()

        def drop() -> None:
            with stream_guard(stream), slow(stream):
                paddle.full([SIZE], 1.0)

        in_thread(drop)
        x = filled(7.0)
        check_pending(stream)
        stream.synchronize()
        self.assert_holds(x, 7.0)

    @with_ample_delay
    def test_result_that_another_thread_drops(self):
        stream = Stream()

        def make() -> list[paddle.Tensor]:
            with stream_guard(stream), slow(stream):
                return [paddle.full([SIZE], 1.0)]

        in_thread(make).clear()
        x = filled(7.0)
        check_pending(stream)
        stream.synchronize()
        self.assert_holds(x, 7.0)

    def test_memory_of_a_thread_and_a_stream_that_are_gone(self):
        def drop() -> None:
            stream = Stream()
            with stream_guard(stream), slow(stream):
                paddle.full([SIZE], 1.0)

        in_thread(drop)
        x = filled(7.0)
        self.finish()
        self.assert_holds(x, 7.0)

    def test_memory_freed_in_a_guard_is_not_reused_by_others_too_early(self):
        five = np.full(SIZE, 5.0, "float32")
        seven = np.full(SIZE, 7.0, "float32")

        def take_memory():
            taken = [paddle.to_tensor(seven) for _ in range(3)]
            current_stream().synchronize()
            return taken

        stream = Stream()
        with stream_guard(stream):
            x = paddle.to_tensor(five)
            stream.synchronize()
            with slow(stream):
                twice = x * 2
                del x
                in_thread(take_memory)
            stream.synchronize()
            self.assert_holds(twice, 10.0)


class TestOverlap(StreamTest):
    def on_two_threads(self, *streams: Stream | None) -> list[Operation]:
        """Return the operations of two threads that start together."""
        x = paddle.ones([4])
        together = threading.Barrier(2, timeout=WAIT_S)

        def submit(stream: Stream | None, kernel: Callable) -> None:
            with stream_guard(stream):
                together.wait()
                kernel(x)
                together.wait()

        def on_threads() -> None:
            with delay(0, DELAY):
                in_threads(
                    lambda: submit(streams[0], paddle.scale),
                    lambda: submit(streams[1], relu),
                )

        trace = self.trace_of(on_threads)
        self.assertEqual({each.kind for each in trace}, {"scale", "relu"})
        return trace

    @with_ample_delay
    def test_threads_with_streams_run_in_parallel(self):
        first, second = self.on_two_threads(Stream(), Stream())
        check_overlap(first, second)

    @with_ample_delay
    def test_threads_with_and_without_a_stream_run_in_parallel(self):
        first, second = self.on_two_threads(Stream(), None)
        check_overlap(first, second)

    def test_threads_on_the_default_stream_are_serialized(self):
        first, second = self.on_two_threads(None, None)
        self.assertFalse(overlap(first, second))

    def test_threads_on_one_stream_are_serialized(self):
        stream = Stream()
        first, second = self.on_two_threads(stream, stream)
        self.assertFalse(overlap(first, second))

    @with_ample_delay
    def test_the_main_threads_stream_does_not_delay_a_child(self):
        x = filled(1.0)

        def work() -> None:
            self.assert_holds(paddle.full([SIZE], 3.0) * 2, 6.0)
            paddle.to_tensor(np.ones(SIZE, "float32"))
            self.assert_holds(x.clone(), 1.0)
            current_stream().synchronize()

        stream = Stream()
        with stream_guard(stream):
            with slow(stream):
                x * 2
            in_thread(work)
            check_pending(stream)

    @with_ample_delay
    def test_stream_of_a_child_does_not_delay_the_main_thread(self):
        x = filled(1.0)
        stream = Stream()

        def work() -> None:
            with stream_guard(stream), slow(stream):
                x * 2

        in_thread(work)
        self.assert_holds(x * 3, 3.0)
        check_pending(stream)


class TestWaits(StreamTest):
    def on_slow_stream(
        self, finish: Callable[[paddle.Tensor], T], x: paddle.Tensor
    ) -> T:
        """
        Return the result of a call on a tensor, while the multiplication of the
        tensor by five is pending on a thread's stream.
        """

        def run() -> T:
            stream = Stream()
            with stream_guard(stream):
                with slow(stream):
                    x.scale_(5.0)
                return finish(x)

        return in_thread(run)

    def test_numpy(self):
        values = self.on_slow_stream(lambda x: x.numpy(), filled(1.0))
        self.assertEqual(set(values.tolist()), {5.0})

    def test_copy_to_the_host(self):
        self.assert_holds(
            self.on_slow_stream(lambda x: x.cpu(), filled(1.0)), 5.0
        )

    def test_item(self):
        x = paddle.ones([1])
        self.assertEqual(self.on_slow_stream(lambda x: x.item(), x), 5.0)

    def test_clone(self):
        self.assert_holds(
            self.on_slow_stream(lambda x: x.clone(), filled(1.0)), 5.0
        )

    def test_kernel_that_runs_on_the_host(self):
        computed = self.on_slow_stream(paddle.abs, filled(-1.0))
        self.assert_holds(computed, 5.0)

    def test_copy_from_the_host_runs_after_pending_work(self):
        def overwrite(x: paddle.Tensor) -> paddle.Tensor:
            x.copy_(paddle.full([SIZE], 2.0, device="cpu"), False)
            return x.cpu()

        self.assert_holds(self.on_slow_stream(overwrite, filled(1.0)), 2.0)

    def test_static_executor_waits_for_pending_work(self):
        main, startup = paddle.static.Program(), paddle.static.Program()

        def run(x: paddle.Tensor) -> np.ndarray:
            place, feed = x.place, {"x": x.value().get_tensor()}
            paddle.enable_static()
            with paddle.static.program_guard(main, startup):
                fetched = relu(paddle.static.data("x", [SIZE], "float32"))
            executor = paddle.static.Executor(place)
            (out,) = executor.run(main, feed=feed, fetch_list=[fetched])
            paddle.disable_static()
            return out

        values = self.on_slow_stream(run, filled(1.0))
        self.assertEqual(set(values.tolist()), {5.0})

    def test_copy_to_another_device(self):
        def copy(x: paddle.Tensor) -> paddle.Tensor:
            event = current_stream().record_event()
            current_stream(name_of(1)).wait_event(event)
            return x.to(name_of(1)).cpu()

        self.assert_holds(self.on_slow_stream(copy, filled(1.0)), 5.0)

    @with_ample_delay
    def test_synchronize_waits_for_the_streams_of_all_threads(self):
        streams = [Stream(), Stream()]

        def submit(stream: Stream) -> None:
            with stream_guard(stream), slow(stream):
                paddle.ones([4])

        def synchronize() -> None:
            paddle.device.synchronize()
            self.assertTrue(all(stream.query() for stream in streams))

        def synchronize_on_own_stream() -> None:
            with stream_guard(Stream()):
                synchronize()

        for wait in (
            synchronize,
            lambda: in_thread(synchronize),
            lambda: in_thread(synchronize_on_own_stream),
        ):
            in_threads(*[lambda s=stream: submit(s) for stream in streams])
            check_pending(*streams)
            wait()

    @with_ample_delay
    def test_synchronize_waits_for_the_stream_of_the_calling_thread(self):
        def submit_and(synchronize: Callable[[], None]) -> None:
            stream = Stream()
            with stream_guard(stream):
                with slow(stream):
                    paddle.ones([4])
                check_pending(stream)
                synchronize()
            self.assertTrue(stream.query())

        in_thread(submit_and, paddle.device.synchronize)
        in_thread(submit_and, paddle.cuda.synchronize)


class TestEvents(StreamTest):
    """Events order the streams of different threads."""

    def setUp(self) -> None:
        super().setUp()
        self.stream = Stream()
        self.x = filled(1.0)

    def scale_late(self) -> paddle.device.Event:
        """
        Scale `x` on `stream` on another thread, and return an event recorded
        after that without naming the stream.
        """

        def scale() -> paddle.device.Event:
            event = paddle.device.Event()
            with stream_guard(self.stream):
                with slow(self.stream):
                    self.x.scale_(5.0)
                event.record()
            return event

        return in_thread(scale)

    def values_after(self, wait: Callable[[Stream], None]) -> set[float]:
        """Return the values that another thread's stream reads after `wait`."""

        def read() -> set[float]:
            stream = Stream()
            with stream_guard(stream):
                wait(stream)
                return set((self.x * 1).numpy().tolist())

        return in_thread(read)

    def read_after(self, wait: Callable[[Stream], None]) -> None:
        """Check the values that another thread's stream reads after `wait`."""
        self.assertEqual(self.values_after(wait), {5.0})

    @with_ample_delay
    def test_a_stream_that_does_not_wait_reads_too_early(self):
        event = self.scale_late()
        early = self.values_after(lambda stream: None)
        check_pending(event)
        self.assertEqual(early, {1.0})

    @with_ample_delay
    def test_event_recorded_without_a_stream_is_on_the_threads_stream(self):
        event = self.scale_late()
        self.assertTrue(self.default.query())
        check_pending(event)
        event.synchronize()
        self.assertTrue(event.query())

    def test_wait_event(self):
        event = self.scale_late()
        self.read_after(lambda stream: stream.wait_event(event))

    @with_ample_delay
    def test_wait_stream(self):
        event = self.scale_late()
        check_pending(event)
        self.read_after(lambda stream: stream.wait_stream(self.stream))

    def test_synchronize_of_an_event(self):
        event = self.scale_late()
        self.read_after(lambda stream: event.synchronize())

    @with_ample_delay
    def test_synchronize_of_a_stream(self):
        event = self.scale_late()
        check_pending(event)
        self.read_after(lambda stream: self.stream.synchronize())

    def test_default_stream_waits_for_a_threads_stream(self):
        event = self.scale_late()
        self.default.wait_event(event)
        self.assert_holds(self.x + self.x, 10.0)

    def test_event_of_the_main_thread_in_a_guard(self):
        event = paddle.device.Event()
        with stream_guard(self.stream):
            with slow(self.stream):
                self.x.scale_(5.0)
            event.record()
            self.read_after(lambda stream: stream.wait_event(event))


class TestFork(StreamTest):
    @unittest.skipUnless(hasattr(os, "fork"), "this system has no fork")
    def test_a_thread_forks_while_the_main_thread_has_a_stream(self):
        self.addCleanup(set_stream, self.default)
        # The stream's own threads, which Stream waits for when it is destroyed,
        # do not exist in the child.
        set_stream(Stream())
        in_thread(in_fork, current_stream)


if __name__ == "__main__":
    unittest.main()
