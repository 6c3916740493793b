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
"""Worker threads: devices, streams and mixed precision.

CUSTOM_DEVICE_ROOT must name the folder of the built plugin in host_device/.
"""

from __future__ import annotations

import contextlib
import threading
import unittest
import warnings

from host_device_control import delay, take_trace
from test_host_device import name_of, setUpModule
from test_thread_stream_order import (
    DELAY,
    SIZE,
    WAIT_S,
    StreamTest,
    handle,
    in_thread,
    slow,
)

import paddle
from paddle.base import core
from paddle.device import Stream, current_stream, stream_guard
from paddle.incubate.multiprocessing import (
    BatchSource,
    Prefetcher,
    WorkerThread,
)
from paddle.io import Dataset

__all__ = ["setUpModule"]


def in_worker(function):
    """Returns the result of `function` in a worker that is started here."""
    results = []
    worker = WorkerThread(lambda: results.append(function()))
    worker.start()
    worker.join(WAIT_S)
    return results[0]


def started_here(function, change):
    """
    Starts a worker, then calls `change` on this thread, and returns the result
    of `function` in the worker after that.
    """
    changed = threading.Event()

    def wait():
        changed.wait(WAIT_S)
        return function()

    results = []
    worker = WorkerThread(lambda: results.append(wait()))
    worker.start()
    change()
    changed.set()
    worker.join(WAIT_S)
    return results[0]


def devices():
    """Returns the current devices of Python and of C++."""
    return paddle.get_device(), str(paddle.zeros([2]).place)


def both(index):
    return name_of(index), f"Place({name_of(index)})"


class TestDevice(StreamTest):
    def test_a_worker_is_on_the_device_of_the_main_thread(self):
        paddle.set_device(name_of(2))
        self.assertEqual(in_worker(devices), both(2))

    def test_the_main_thread_does_not_move_workers_that_it_has_started(self):
        self.assertEqual(
            started_here(devices, lambda: paddle.set_device(name_of(1))),
            both(0),
        )

    def test_a_worker_is_on_the_own_device_of_a_thread(self):
        def on_device_1():
            paddle.set_device(name_of(1))
            # A plain thread does not inherit the device.
            return in_thread(devices), in_worker(devices)

        self.assertEqual(in_thread(on_device_1), (both(0), both(1)))

    def test_a_worker_is_on_the_device_of_a_context(self):
        with paddle.device.device(name_of(3)):
            self.assertEqual(in_worker(devices), both(3))
        self.assertEqual(in_worker(devices), both(0))

    def test_a_thread_does_not_move_workers_that_it_has_started(self):
        def on_device_1():
            paddle.set_device(name_of(1))
            return started_here(devices, lambda: paddle.set_device(name_of(2)))

        self.assertEqual(in_thread(on_device_1), both(1))

    def test_a_worker_of_a_thread_without_a_device_has_none_either(self):
        started, moved = threading.Event(), threading.Event()

        def work():
            started.set()
            moved.wait(WAIT_S)
            return devices()

        places = []
        thread = threading.Thread(
            target=lambda: places.append(in_worker(work)), daemon=True
        )
        thread.start()
        self.assertTrue(started.wait(WAIT_S))
        paddle.set_device(name_of(1))
        moved.set()
        thread.join(WAIT_S)
        self.assertEqual(places, [both(1)])

    def test_a_worker_moves_no_other_thread(self):
        in_worker(lambda: paddle.set_device(name_of(2)))
        self.assertEqual(devices(), both(0))
        self.assertEqual(in_thread(devices), both(0))
        self.assertEqual(in_worker(devices), both(0))

    def test_a_worker_in_static_mode_has_the_device_when_it_leaves_it(self):
        def work():
            mode = paddle.in_dynamic_mode()
            with paddle.base.dygraph.guard():
                return mode, devices()

        def on_device_1():
            paddle.set_device(name_of(1))
            paddle.enable_static()
            return in_worker(work)

        self.assertEqual(in_thread(on_device_1), (False, both(1)))

    def test_a_prefetcher_creates_its_items_on_its_creators_device(self):
        def batches():
            for n in range(3):
                yield paddle.full([2], float(n))

        with paddle.device.device(name_of(2)):
            prefetcher = Prefetcher(batches())
        places = {str(batch.place) for batch in prefetcher}
        self.assertEqual(places, {f"Place({name_of(2)})"})


def create_slowly(i):
    with slow(current_stream()):
        return paddle.full([SIZE], float(i))


class TestOrder(StreamTest):
    """Order after the work on the stream of a thread that creates tensors."""

    def read(self, source, device):
        """Returns the values that a reader gets on its own stream, or on the
        CPU."""

        def read():
            paddle.set_device(device)
            on_stream = contextlib.nullcontext()
            if device != "cpu":
                on_stream = stream_guard(Stream())
            with on_stream:
                copies = [batch * 1 for batch in source.reader(0)]
                return [set(copy.numpy().tolist()) for copy in copies]

        return in_thread(read)

    def devices_and_values(self):
        """Returns devices to read on, and values that differ from those that
        the memory has had before."""
        for number, device in enumerate((name_of(0), name_of(1), "cpu")):
            yield device, range(1 + 4 * number, 5 + 4 * number)

    def test_a_batch_source_yields_complete_tensors(self):
        class Slow(Dataset):
            def __init__(self, values):
                self.values = values

            def __getitem__(self, i):
                return create_slowly(self.values[i])

            def __len__(self):
                return len(self.values)

        for device, values in self.devices_and_values():
            source = BatchSource(
                Slow(values), 1, collate_fn=lambda batch: batch[0]
            )
            with self.subTest(device):
                self.assertEqual(
                    self.read(source, device), [{float(i)} for i in values]
                )

    def test_a_batch_source_yields_complete_tensors_of_other_devices(self):
        """A collate_fn creates them while the thread is on the CPU."""

        def made_on_device_1(samples):
            with paddle.device.device(name_of(1)):
                with delay(1, DELAY, handle(current_stream())):
                    return paddle.full([SIZE], float(samples[0]))

        paddle.set_device("cpu")
        for device, values in self.devices_and_values():
            source = BatchSource(values, 1, collate_fn=made_on_device_1)
            with self.subTest(device):
                self.assertEqual(
                    self.read(source, device), [{float(i)} for i in values]
                )

    def test_a_copy_from_another_device_waits_for_the_readers_work(self):
        """A blocking copy between devices would overwrite memory that the
        reader's stream still reads."""

        def make(samples):
            return paddle.full([SIZE], float(samples[0]))

        def read():
            paddle.set_device(name_of(0))
            with stream_guard(Stream()), slow(current_stream()):
                copies = [batch * 1 for batch in source.reader(0)]
                return [set(copy.numpy().tolist()) for copy in copies]

        paddle.set_device(name_of(1))
        source = BatchSource(range(1, 5), 1, collate_fn=make)
        self.assertEqual(in_thread(read), [{float(i)} for i in range(1, 5)])

    def test_a_tensor_that_cannot_be_copied_to_the_reader_is_refused(self):
        class Sample:
            def __init__(self, tensor):
                self.tensor = tensor

        def make(samples):
            return [Sample(paddle.full([2], float(samples[0])))]

        source = BatchSource(range(4), 1, collate_fn=make)
        with self.assertRaisesRegex(
            TypeError, r"custom_cpu:0\) in an object of type Sample, .*lists"
        ):
            list(source.reader(0))
        paddle.set_device("cpu")
        (sample,) = next(
            iter(BatchSource(range(4), 1, collate_fn=make).reader(0))
        )
        self.assertEqual(sample.tensor.tolist(), [0.0, 0.0])

    def test_a_prefetcher_yields_tensors_in_order_on_its_creators_stream(self):
        for stream in (self.default, Stream()):
            with stream_guard(stream):
                items = Prefetcher(create_slowly(i) for i in range(4))
                for i, item in enumerate(items):
                    self.assert_holds(item * 1, i)


class TestStreams(StreamTest):
    def setUp(self):
        super().setUp()
        # After a test on another device.
        self.addCleanup(take_trace)

    def current(self):
        return handle(current_stream())

    def test_a_worker_is_on_the_stream_of_the_main_thread(self):
        stream = Stream()
        with stream_guard(stream):
            # A plain thread does not inherit the stream.
            self.assertEqual(in_thread(self.current), handle(self.default))
            self.assertEqual(in_worker(self.current), handle(stream))
        self.assertEqual(in_worker(self.current), handle(self.default))

    def test_a_worker_is_on_the_stream_of_a_thread(self):
        def on_stream():
            stream = Stream()
            with stream_guard(stream):
                return in_worker(self.current) == handle(stream)

        self.assertTrue(in_thread(on_stream))

    def test_the_work_of_a_worker_runs_on_its_starters_stream(self):
        stream = Stream()

        def work():
            paddle.full([1 << 16], 1.0)

        with stream_guard(stream):
            trace = self.trace_of(lambda: in_worker(work))
        self.assertGreater(len(trace), 0)
        self.assertEqual({each.stream for each in trace}, {handle(stream)})

    def test_leaving_the_stream_does_not_move_the_worker(self):
        stream = Stream()
        guard = stream_guard(stream)
        guard.__enter__()
        self.assertEqual(
            started_here(
                self.current, lambda: guard.__exit__(None, None, None)
            ),
            handle(stream),
        )
        self.assertEqual(self.current(), handle(self.default))

    def test_a_worker_that_sets_a_stream_moves_no_other_thread(self):
        in_worker(lambda: paddle.device.set_stream(Stream()))
        for run in (lambda function: function(), in_thread, in_worker):
            self.assertEqual(run(self.current), handle(self.default))


def amp_state():
    attributes = core._get_amp_attrs()
    return (
        attributes._amp_level,
        attributes._amp_dtype,
        attributes._use_promote,
    )


# An operator that the plugin, or the CPU for it, has in float16.
CASTS_STACK = {"custom_white_list": ["stack"], "dtype": "float16"}


def stacked():
    """Returns the data type of a result, which depends on `CASTS_STACK`."""
    return str(paddle.stack([paddle.ones([2])]).dtype)


class TestMixedPrecision(StreamTest):
    def setUp(self):
        super().setUp()
        warnings.simplefilter("error", UserWarning)
        self.addCleanup(warnings.resetwarnings)

    def test_operators_of_a_worker_cast_like_those_of_its_starter(self):
        for level in ("O1", "O2"):
            with (
                self.subTest(level),
                paddle.amp.auto_cast(level=level, **CASTS_STACK),
            ):
                self.assertEqual(stacked(), "paddle.float16")
                # A plain thread does not inherit the AMP state.
                self.assertEqual(in_thread(stacked), "paddle.float32")
                self.assertEqual(in_worker(stacked), "paddle.float16")
        self.assertEqual(in_worker(stacked), "paddle.float32")

    def test_a_worker_has_the_whole_state(self):
        for options in (
            {"level": "O1"},
            {"level": "O2", "use_promote": True},
            {"level": "O2", "use_promote": False},
            {"enable": False},
        ):
            with (
                self.subTest(options),
                paddle.amp.auto_cast(dtype="float16", **options),
            ):
                self.assertEqual(in_worker(amp_state), amp_state())

    def test_auto_cast_entered_by_a_worker_ends_with_it(self):
        def enter():
            core._get_amp_attrs()._amp_level = core.AmpLevel.O2

        before = amp_state()
        in_worker(enter)
        self.assertEqual(amp_state(), before)
        self.assertEqual(in_worker(amp_state), before)

    def test_a_worker_casts_after_its_starter_has_left_auto_cast(self):
        guard = paddle.amp.auto_cast(**CASTS_STACK)
        guard.__enter__()
        found = started_here(stacked, lambda: guard.__exit__(None, None, None))
        self.assertEqual(found, "paddle.float16")


if __name__ == "__main__":
    unittest.main()
