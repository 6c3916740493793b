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
"""DataLoader with worker threads that each have their own stream.

The tests delay the work of a stream. Code that does not wait for it reads
memory that is not written yet, or that is overwritten too early.

CUSTOM_DEVICE_ROOT must name the folder of the built plugin in host_device/.
"""

from __future__ import annotations

import gc
import threading
import time
import unittest
from unittest import mock

import numpy as np
from host_device_control import check_overlap, delay, with_ample_delay
from test_dataloader_threads_device import load
from test_host_device import run_python, setUpModule
from test_thread_stream_order import (
    SIZE,
    WAIT_S,
    StreamTest,
    filled,
    handle,
    in_thread,
)

import paddle
from paddle import Tensor
from paddle.device import Stream, current_stream, stream_guard
from paddle.io.dataloader import stream_workers

__all__ = ["setUpModule"]

# In microseconds: ample time for an operation that does not wait.
DELAY = 100_000


# Fails unless the workers of a loader use the stream of its creator.
LOAD_ON_CREATORS_STREAM = """
import paddle

class Streams(paddle.io.Dataset):
    def __getitem__(self, i):
        stream = paddle.device.current_stream().stream_base.raw_stream
        assert stream == default, (stream, default)
        return paddle.full([2], float(i))

    def __len__(self):
        return 6

paddle.set_device("custom_cpu:0")
default = paddle.device.current_stream().stream_base.raw_stream
loader = paddle.io.DataLoader(Streams(), num_workers=2, worker_type="thread")
batches = [batch.tolist() for batch in loader]
assert batches == [[[i] * 2] for i in range(6)], batches
"""


class DeliberateError(Exception):
    pass


def slow(stream=None):
    """Delays operations that are submitted to a stream of device 0, by default
    the calling thread's stream."""
    return delay(0, DELAY, handle(stream or current_stream()))


def create_slowly(i):
    with slow():
        return paddle.full([SIZE], float(i))


def values(batches):
    """Returns the values of each batch, read from copies that run on the
    current stream."""
    copies = [batch * 1 for batch in batches]
    return [sorted(set(copy.numpy().flatten().tolist())) for copy in copies]


class TestStreams(StreamTest):
    def streams_of(self, **options):
        """Returns the streams on which each worker creates samples, in two
        epochs."""
        found = {}

        def make(i):
            worker = threading.current_thread()
            found.setdefault(worker, set()).add(handle(current_stream()))
            # Leaves time for the other workers.
            time.sleep(0.001)
            return np.array(i)

        loader = load(make, length=12, batch_size=None, **options)
        for _ in range(2):
            self.assertEqual([int(i) for i in loader], [*range(12)])
        return list(found.values())

    def test_each_worker_has_its_own_stream(self):
        for persistent in (False, True):
            found = self.streams_of(persistent_workers=persistent)
            self.assertEqual({len(streams) for streams in found}, {1})
            self.assertEqual(len(set.union(*found)), len(found))
            self.assertGreater(len(found), 1)
            self.assertNotIn(handle(self.default), set.union(*found))

    def test_streams_come_from_a_pool(self):
        found = set()
        for _ in range(20):
            found.update(*self.streams_of())
        self.assertLessEqual(len(found), 32)

    def test_each_epoch_starts_on_the_workers_stream(self):
        handles = []

        def make(i):
            handles.append(handle(current_stream()))
            paddle.device.set_stream(Stream())
            return np.array(i)

        loader = load(make, length=1, num_workers=1, persistent_workers=True)
        for _ in range(3):
            list(loader)
        self.assertEqual(len(set(handles)), 1)

    def test_the_iterating_thread_keeps_its_stream(self):
        stream = Stream()
        with stream_guard(stream):
            for _ in load(create_slowly):
                self.assertEqual(handle(current_stream()), handle(stream))
        self.assertEqual(handle(current_stream()), handle(self.default))

    def test_batches_for_another_place_use_the_creators_stream(self):
        for places in (paddle.CPUPlace(), paddle.CustomPlace("custom_cpu", 1)):
            found = self.streams_of(places=places)
            self.assertEqual(set.union(*found), {handle(self.default)})

    def test_without_stream_safe_allocators_workers_share_a_stream(self):
        done = run_python(
            LOAD_ON_CREATORS_STREAM, FLAGS_allocator_strategy="naive_best_fit"
        )
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_failed_creation_of_a_stream_is_an_error_of_the_loop(self):
        for name in ("get_stream_from_pool", "set_stream"):
            with (
                mock.patch.object(
                    stream_workers, name, side_effect=DeliberateError
                ),
                self.assertRaises(DeliberateError),
            ):
                list(load(np.array))


class TestOrder(StreamTest):
    def test_the_consumers_stream_waits_for_a_batch(self):
        stream = Stream()
        for batch_size in (None, 1):
            loader = load(create_slowly, batch_size=batch_size)
            expected = [[float(i)] for i in range(6)]
            self.assertEqual(values(loader), expected)
            with stream_guard(stream):
                self.assertEqual(values(loader), expected)
            self.assertEqual(in_thread(lambda: values(loader)), expected)  # noqa: B023

    def test_fields_of_a_batch_at_any_depth(self):
        def make(i):
            x = create_slowly(i)
            return {"x": x, "rest": [x + 1, (x + 2, "text"), i]}

        for i, batch in enumerate(load(make, batch_size=None)):
            first, (second, _), number = batch["rest"]
            self.assertEqual(
                values([batch["x"], first, second]), [[i], [i + 1], [i + 2]]
            )
            self.assertEqual(number, i)

    def test_workers_wait_for_work_started_before_the_epoch(self):
        data = [paddle.full([SIZE], 0.0)]
        loader = load(lambda i: data[0] * i, persistent_workers=True)
        for epoch in (1, 2):
            with slow():
                data[0] = paddle.full([SIZE], float(epoch))
            self.assertEqual(values(loader), [[epoch * i] for i in range(6)])

    def test_workers_wait_for_their_init_function(self):
        made = {}

        def init(worker):
            x, five = filled(0.0), filled(5.0)
            with slow():
                made[threading.get_ident()] = x.add_(five)

        loader = load(
            lambda i: made[threading.get_ident()] * i, worker_init_fn=init
        )
        self.assertEqual(values(loader), [[5.0 * i] for i in range(6)])

    def test_memory_is_reused_only_after_the_consumers_work(self):
        loader = load(
            lambda i: paddle.full([SIZE], float(i)),
            num_workers=1,
            batch_size=None,
        )
        stream = Stream()
        copies = []
        with stream_guard(stream), slow(stream):
            for batch in loader:
                copies.append(batch * 1)
                del batch
        self.finish()
        for i, copy in enumerate(copies):
            self.assert_holds(copy, i)

    def test_tensors_in_objects_of_a_batch_are_reused_only_after_use(self):
        class Attribute:
            def __init__(self, x):
                self.x = x

        class Slot:
            __slots__ = ("x",)

            def __init__(self, x):
                self.x = x

        for wrap in (Attribute, Slot, lambda x: Attribute({"x": [Slot(x)]})):
            loader = load(
                lambda i, wrap=wrap: [wrap(paddle.full([SIZE], float(i)))],
                num_workers=1,
                batch_size=None,
            )
            stream = Stream()
            copies = []
            with stream_guard(stream), slow(stream):
                for (sample,) in loader:
                    x = sample.x
                    if isinstance(x, dict):
                        x = x["x"][0].x
                    copies.append(x * 1)
                    del sample, x
            self.finish()
            for i, copy in enumerate(copies):
                self.assert_holds(copy, i)

    def test_host_arrays_are_reused_only_after_their_copy(self):
        # Large enough for their memory to be reused.
        size = 1 << 16
        loader = load(lambda i: np.full(size, i, "float32"), length=24)
        with delay(0, DELAY // 10):
            copies = [batch * 1 for batch in loader]
        self.finish()
        for i, copy in enumerate(copies):
            self.assertEqual({*np.unique(copy.numpy())}, {i})

    def test_memory_that_paddle_did_not_allocate_is_copied(self):
        def record(tensor, stream):
            if tensor.data_ptr() == foreign.data_ptr():
                raise ValueError
            recorded(tensor, stream)

        recorded = paddle.Tensor.record_stream
        foreign = paddle.full([SIZE], 3.0)
        with mock.patch.object(paddle.Tensor, "record_stream", record):
            (batch,) = load(lambda i: foreign, length=1, batch_size=None)
        self.assertNotEqual(batch.data_ptr(), foreign.data_ptr())
        self.assertEqual(values([batch]), [[3.0]])

    def test_epochs_left_early_do_not_disturb_later_ones(self):
        loader = load(create_slowly, persistent_workers=True, batch_size=None)
        for left_after in range(4):
            taken = []
            for batch in loader:
                taken.append(batch)
                if len(taken) > left_after:
                    break
            self.assertEqual(values(taken), [[i] for i in range(len(taken))])
        del taken, batch
        gc.collect()
        self.assertEqual(values(loader), [[i] for i in range(6)])

    def test_an_interrupt_during_next_loses_no_batch(self):
        consumer = threading.current_thread()
        batches = iter(load(create_slowly, batch_size=None))
        for kind, name in ((Stream, "wait_event"), (Tensor, "record_stream")):
            original = getattr(kind, name)

            def interrupted(*args, original=original):
                original(*args)
                if threading.current_thread() is consumer:
                    raise KeyboardInterrupt

            with (
                mock.patch.object(kind, name, interrupted),
                self.assertRaises(KeyboardInterrupt),
            ):
                next(batches)
        self.assertEqual(
            in_thread(lambda: values(batches)), [[i] for i in range(6)]
        )

    @with_ample_delay
    def test_workers_do_not_wait_for_the_iterating_thread(self):
        begun, started = threading.Event(), threading.Event()

        def make(i):
            begun.set()
            self.assertTrue(started.wait(WAIT_S))
            return paddle.full([SIZE], float(i)) * 2

        def train():
            batches = iter(load(make, length=2, num_workers=1))
            # At first, the worker's stream waits for this thread's.
            self.assertTrue(begun.wait(WAIT_S))
            self.finish()
            with slow(self.default):
                x * 3
            started.set()
            # The host waits for the batch, and the stream for the event.
            next(batches)

        x = paddle.ones([SIZE])
        trace = self.trace_of(train)
        (slow_one,) = [
            each
            for each in trace
            if each.stream == handle(self.default) and each.kind == "scale"
        ]
        since = [
            each
            for each in trace
            if each.stream != slow_one.stream
            and each.end_ns > slow_one.begin_ns
        ]
        self.assertNotIn("stream_wait_event", {each.kind for each in since})
        made = next(each for each in since if each.kind == "full")
        check_overlap(slow_one, made)


if __name__ == "__main__":
    unittest.main()
