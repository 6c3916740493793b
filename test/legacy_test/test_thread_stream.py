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
"""Per-thread streams: which stream a thread uses."""

from __future__ import annotations

import concurrent.futures
import io
import threading
import unittest
from unittest import mock

import numpy as np
from concurrent_base import WAIT_S, Worker, in_thread
from thread_device_base import (
    StreamTestCase,
    handle,
    on_every_device_list,
    place_name,
    places_of_new_tensors,
)

import paddle
from paddle.base.threads import streams
from paddle.device import Stream, set_stream, stream_guard


@on_every_device_list
class TestCurrentStream(StreamTestCase):
    def while_inside(self, stream, look):
        """Returns the result of `look` while a thread is on `stream`."""
        entered, may_leave = threading.Event(), threading.Event()

        def stay_inside():
            with stream_guard(stream):
                entered.set()
                self.assertTrue(may_leave.wait(WAIT_S))
                self.assertEqual(self.current(), self.with_first(stream))

        worker = Worker(stay_inside)
        self.assertTrue(entered.wait(WAIT_S))
        try:
            return look()
        finally:
            may_leave.set()
            worker.result()

    def test_thread_in_a_guard_uses_its_stream(self):
        def own():
            stream = Stream()
            with stream_guard(stream):
                self.check_computes()
                self.assertEqual(self.current(), self.with_first(stream))

        in_thread(own)

    def test_main_thread_is_not_moved_by_a_thread_in_a_guard(self):
        self.assertEqual(
            self.while_inside(Stream(), self.current), self.defaults
        )

    def test_another_thread_is_not_moved_by_a_thread_in_a_guard(self):
        self.assertEqual(
            self.while_inside(Stream(), lambda: in_thread(self.current)),
            self.defaults,
        )

    def test_child_of_a_thread_in_a_guard_uses_the_default_stream(self):
        def own():
            with stream_guard(Stream()):
                return in_thread(self.current)

        self.assertEqual(in_thread(own), self.defaults)

    def test_two_threads_use_their_own_streams_concurrently(self):
        both_inside = threading.Barrier(2, timeout=WAIT_S)

        def own():
            stream = Stream()
            with stream_guard(stream):
                both_inside.wait()
                for _ in range(100):
                    self.assertEqual(self.current(), self.with_first(stream))
                both_inside.wait()
            return handle(stream)

        first, second = [Worker(own) for _ in range(2)]
        self.assertNotEqual(first.result(), second.result())

    def test_two_threads_share_a_stream(self):
        stream = Stream()

        def share():
            with stream_guard(stream):
                self.check_computes()
                return self.current()

        self.assertEqual(
            self.while_inside(stream, lambda: in_thread(share)),
            self.with_first(stream),
        )

    def test_thread_leaves_a_stream_that_another_thread_still_uses(self):
        stream = Stream()

        def share():
            with stream_guard(stream):
                pass
            return self.current()

        self.assertEqual(
            self.while_inside(stream, lambda: in_thread(share)), self.defaults
        )

    def test_current_stream_is_the_object_that_was_set(self):
        def own():
            stream = Stream()
            with stream_guard(stream):
                current = paddle.device.current_stream()
            self.assertIs(current.stream_base, stream.stream_base)

        in_thread(own)

    def test_error_in_creating_a_context_reaches_the_creator_of_a_thread(self):
        with stream_guard(Stream()):
            with mock.patch.object(
                streams.native, "StreamContext", side_effect=KeyError
            ):
                with self.assertRaises(KeyError):
                    streams.CreatorsThread(target=self.current)


@on_every_device_list
class TestGuards(StreamTestCase):
    def test_nested_guards(self):
        def nest():
            outer, inner = Stream(), Stream()
            with stream_guard(outer):
                with stream_guard(inner):
                    self.assertEqual(self.current(), self.with_first(inner))
                self.assertEqual(self.current(), self.with_first(outer))
            self.assertEqual(self.current(), self.defaults)

        in_thread(nest)
        nest()

    def test_guard_is_reentrant(self):
        def enter_twice():
            stream, other = Stream(), Stream()
            guard = stream_guard(stream)
            with guard, stream_guard(other):
                with guard:
                    self.assertEqual(self.current(), self.with_first(stream))
                self.assertEqual(self.current(), self.with_first(other))
            self.assertEqual(self.current(), self.defaults)

        in_thread(enter_twice)
        enter_twice()

    def test_several_threads_may_enter_one_guard(self):
        stream = Stream()
        guard = stream_guard(stream)
        all_inside = threading.Barrier(3, timeout=WAIT_S)

        def enter():
            with guard:
                all_inside.wait()
                self.assertEqual(self.current(), self.with_first(stream))
                all_inside.wait()
            self.assertEqual(self.current(), self.defaults)

        for worker in [Worker(enter) for _ in range(3)]:
            worker.result()

    def test_guards_on_two_devices(self):
        second = self.second_accelerator()

        def enter_both():
            streams = [Stream(self.accelerators[0]), Stream(second)]
            with stream_guard(streams[0]):
                with stream_guard(streams[1]):
                    inside = [handle(stream) for stream in streams]
                    self.assertEqual(self.current(), inside + self.defaults[2:])
                self.assertEqual(self.current(), self.with_first(streams[0]))
            self.assertEqual(self.current(), self.defaults)

        in_thread(enter_both)
        enter_both()

    def test_guards_on_two_devices_left_in_entry_order(self):
        second = self.second_accelerator()

        def enter_both():
            streams = [Stream(self.accelerators[0]), Stream(second)]
            guards = [stream_guard(stream) for stream in streams]
            for guard in guards:
                guard.__enter__()
            guards[0].__exit__(None, None, None)
            self.assertEqual(
                self.current(),
                [self.defaults[0], handle(streams[1]), *self.defaults[2:]],
            )
            guards[1].__exit__(None, None, None)
            self.assertEqual(self.current(), self.defaults)

        in_thread(enter_both)

    def test_guard_is_left_by_an_exception(self):
        def fail_inside():
            with self.assertRaises(KeyError), stream_guard(Stream()):
                raise KeyError
            return self.current()

        self.assertEqual(in_thread(fail_inside), self.defaults)

    def test_guard_of_none_changes_nothing(self):
        def own():
            stream = Stream()
            with stream_guard(stream):
                with stream_guard(None):
                    self.assertEqual(self.current(), self.with_first(stream))
                self.assertEqual(self.current(), self.with_first(stream))

        in_thread(own)
        own()

    def test_guard_of_the_default_stream_inside_another_guard(self):
        default = paddle.device.current_stream()

        def own():
            stream = Stream()
            with stream_guard(stream):
                with stream_guard(default):
                    self.check_computes()
                    self.assertEqual(self.current(), self.defaults)
                self.assertEqual(self.current(), self.with_first(stream))

        in_thread(own)
        own()

    def test_guard_left_on_another_thread_is_an_error_and_changes_nothing(self):
        stream, other = Stream(), Stream()
        guard = stream_guard(stream)

        def leave_elsewhere():
            with stream_guard(other):
                with self.assertRaisesRegex(RuntimeError, "stream_guard"):
                    guard.__exit__(None, None, None)
                self.assertEqual(self.current(), self.with_first(other))

        def enter():
            with guard:
                in_thread(leave_elsewhere)
                self.assertEqual(self.current(), self.with_first(stream))

        in_thread(enter)
        enter()

    def test_guard_left_twice_is_an_error_and_changes_nothing(self):
        def leave_twice():
            outer = Stream()
            guard = stream_guard(Stream())
            with stream_guard(outer):
                with guard:
                    pass
                with self.assertRaisesRegex(RuntimeError, "stream_guard"):
                    guard.__exit__(None, None, None)
                self.assertEqual(self.current(), self.with_first(outer))

        in_thread(leave_twice)
        leave_twice()


@on_every_device_list
class TestSetStream(StreamTestCase):
    def test_previous_stream_is_returned(self):
        def set_in_turn():
            first, second = Stream(), Stream()
            returned = [set_stream(first), set_stream(second)]
            returned.append(set_stream(returned[0]))
            self.assertEqual(self.current(), self.defaults)
            self.assertEqual(
                [handle(stream) for stream in returned],
                [self.defaults[0], handle(first), handle(second)],
            )

        in_thread(set_in_turn)
        set_in_turn()

    def test_thread_of_a_pool_keeps_its_stream_between_tasks(self):
        stream = Stream()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            pool.submit(set_stream, stream).result(WAIT_S)
            seen = pool.submit(self.current).result(WAIT_S)
        self.assertEqual(seen, self.with_first(stream))

    def test_stream_ends_with_the_thread(self):
        stream = Stream()
        in_thread(set_stream, stream)
        # New threads may reuse a finished thread's ident, but not its stream.
        for _ in range(50):
            self.assertEqual(in_thread(self.current), self.defaults)

    def test_stream_set_inside_a_guard_ends_with_the_guard(self):
        def set_inside():
            inner = Stream()
            with stream_guard(Stream()):
                set_stream(inner)
                self.assertEqual(self.current(), self.with_first(inner))
            return self.current()

        self.assertEqual(in_thread(set_inside), self.defaults)

    def test_stream_is_set_on_its_own_device(self):
        second = self.second_accelerator()
        stream = Stream(second)

        def own():
            previous = set_stream(stream)
            self.assertEqual(handle(previous), self.defaults[1])
            return self.current()

        self.assertEqual(
            in_thread(own),
            [self.defaults[0], handle(stream), *self.defaults[2:]],
        )


@on_every_device_list
class TestMainThread(StreamTestCase):
    def test_child_started_inside_a_guard_uses_the_default_stream(self):
        def child():
            self.check_computes()
            return self.current()

        with stream_guard(Stream()):
            self.assertEqual(in_thread(child), self.defaults)

    def test_child_started_before_a_guard_keeps_the_default_stream(self):
        entered, looked = threading.Event(), threading.Event()

        def look_twice():
            before = self.current()
            looked.set()
            self.assertTrue(entered.wait(WAIT_S))
            self.check_computes()
            return before, self.current()

        child = Worker(look_twice)
        self.assertTrue(looked.wait(WAIT_S))
        with stream_guard(Stream()):
            entered.set()
            self.assertEqual(child.result(), (self.defaults, self.defaults))

    def test_child_with_a_stream_is_not_moved(self):
        def own():
            stream = Stream()
            with stream_guard(stream):
                self.check_computes()
                self.assertEqual(self.current(), self.with_first(stream))
            self.assertEqual(self.current(), self.defaults)

        with stream_guard(Stream()):
            in_thread(own)

    def test_main_thread_switches_its_stream_repeatedly(self):
        streams = [paddle.device.current_stream(), Stream(), Stream()]
        self.addCleanup(set_stream, streams[0])
        for stream in [*streams, *streams]:
            set_stream(stream)
            self.check_computes()
            self.assertEqual(self.current(), self.with_first(stream))
            self.assertEqual(in_thread(self.current), self.defaults)

    def test_main_thread_and_a_child_share_a_stream(self):
        stream = Stream()

        def share():
            with stream_guard(stream):
                self.check_computes()
                return self.current()

        with stream_guard(stream):
            self.assertEqual(in_thread(share), self.with_first(stream))
            self.assertEqual(self.current(), self.with_first(stream))


@on_every_device_list
class TestAliases(StreamTestCase):
    def check_guard(self, guard):
        def enter():
            stream = Stream()
            with guard(stream):
                self.assertEqual(self.current(), self.with_first(stream))
                self.assertEqual(in_thread(self.current), self.defaults)
            self.assertEqual(self.current(), self.defaults)

        in_thread(enter)
        enter()

    def test_guards(self):
        for name, guard in {
            "paddle.device.stream_guard": paddle.device.stream_guard,
            "paddle.device.StreamContext": paddle.device.StreamContext,
            "paddle.device.stream": paddle.device.stream,
            "paddle.cuda.StreamContext": paddle.cuda.StreamContext,
            "paddle.cuda.stream": paddle.cuda.stream,
        }.items():
            with self.subTest(name):
                self.check_guard(guard)

    def test_gpu_guard(self):
        if self.devices[0] != "gpu:0":
            self.skipTest("paddle.device.cuda.stream_guard is for GPUs only")
        self.check_guard(
            lambda stream: paddle.device.cuda.stream_guard(stream.stream_base)
        )

    def test_setters(self):
        def own(setter):
            stream = Stream()
            setter(stream)
            self.assertEqual(self.current(), self.with_first(stream))

        for setter in (paddle.device.set_stream, paddle.cuda.set_stream):
            in_thread(own, setter)

    def test_current_stream_takes_every_form_of_a_device(self):
        name = self.accelerators[-1]
        index = len(self.accelerators) - 1
        place = paddle.device._convert_to_place(name)

        def own():
            stream = Stream(name)
            with stream_guard(stream):
                found = [
                    paddle.device.current_stream(name),
                    paddle.device.current_stream(place),
                    paddle.cuda.current_stream(name),
                    paddle.cuda.current_stream(place),
                    paddle.cuda.current_stream(index),
                ]
                with paddle.device.device_guard(name):
                    found.append(paddle.device.current_stream())
                    found.append(paddle.cuda.current_stream())
            self.assertEqual({*map(handle, found)}, {handle(stream)})

        in_thread(own)

    def test_event_without_a_stream_records_on_the_threads_stream(self):
        def record():
            stream = Stream()
            event = paddle.device.Event()
            with (
                stream_guard(stream),
                mock.patch.object(event, "event_base") as base,
            ):
                event.record()
            (recorded_on,) = base.record.call_args[0]
            self.assertEqual(recorded_on.raw_stream, handle(stream))

        in_thread(record)
        record()


@on_every_device_list
class TestWithDevices(StreamTestCase):
    def test_device_guard_inside_a_stream_guard(self):
        second = self.second_accelerator()

        def own():
            stream = Stream()
            with stream_guard(stream):
                with paddle.device.device_guard(second):
                    there = paddle.device.current_stream()
                    self.assertEqual(handle(there), self.defaults[1])
                    self.assertEqual(places_of_new_tensors(), {second})
                here = paddle.device.current_stream()
                self.assertEqual(handle(here), handle(stream))

        in_thread(own)
        own()

    def test_stream_guard_inside_a_device_guard(self):
        second = self.second_accelerator()

        def own():
            with paddle.device.device_guard(second):
                stream = Stream()
                with stream_guard(stream):
                    self.check_computes()
                    here = paddle.device.current_stream()
                    self.assertEqual(handle(here), handle(stream))
                    self.assertEqual(places_of_new_tensors(), {second})
            here = paddle.device.current_stream()
            self.assertEqual(handle(here), self.defaults[0])

        in_thread(own)
        own()

    def test_device_and_stream_survive_the_main_threads_guards(self):
        second = self.second_accelerator()
        entered, has_moved = threading.Event(), threading.Event()

        def own():
            stream = Stream(second)
            paddle.set_device(second)
            set_stream(stream)
            entered.set()
            self.assertTrue(has_moved.wait(WAIT_S))
            here = paddle.device.current_stream()
            self.assertEqual(handle(here), handle(stream))
            return places_of_new_tensors()

        worker = Worker(own)
        self.assertTrue(entered.wait(WAIT_S))
        with paddle.device.device_guard("cpu"), stream_guard(Stream(second)):
            has_moved.set()
            self.assertEqual(worker.result(), {second})

    def test_stream_survives_a_switch_to_the_cpu_and_back(self):
        def own():
            stream = Stream()
            with stream_guard(stream):
                with paddle.device.device_guard("cpu"):
                    self.check_computes()
                self.check_computes()
                self.assertEqual(self.current(), self.with_first(stream))

        in_thread(own)


@on_every_device_list
class TestWork(StreamTestCase):
    """Work that Paddle does for a thread with its own stream."""

    def test_backward(self):
        def gradient():
            x = paddle.to_tensor([1.0, 2.0], stop_gradient=False)
            (x * x).sum().backward()
            self.assertEqual(place_name(x.grad), self.devices[0])
            return x.grad.tolist()

        self.assertEqual(self.on_threads(gradient), [2.0, 4.0])

    def test_backward_of_another_threads_forward_pass(self):
        x = paddle.to_tensor([1.0, 2.0], stop_gradient=False)

        def forward():
            total = (x * 3).sum()
            paddle.device.synchronize()
            return total

        total = in_thread(self.on_new_stream, forward)
        in_thread(self.on_new_stream, total.backward)
        paddle.device.synchronize()
        self.assertEqual(x.grad.tolist(), [3.0, 3.0])

    def test_optimizer_step(self):
        def step():
            weight = paddle.create_parameter(
                [2],
                "float32",
                default_initializer=paddle.nn.initializer.Constant(1.0),
            )
            optimizer = paddle.optimizer.SGD(0.5, parameters=[weight])
            (weight * 3).sum().backward()
            optimizer.step()
            return weight.tolist()

        self.assertEqual(self.on_threads(step), [-0.5, -0.5])

    def test_data_loader(self):
        def load():
            values = np.arange(12, dtype="float32")
            data = paddle.io.TensorDataset([values])
            loader = paddle.io.DataLoader(data, batch_size=4)
            return [batch.tolist() for (batch,) in loader]

        self.assertEqual(
            self.on_threads(load),
            np.arange(12.0).reshape([3, 4]).tolist(),
        )

    def stream_of_reader_thread(self, **kwargs):
        """Returns whether a generator is read on its creator's stream."""
        seen = []

        def batches():
            seen.append(handle(paddle.device.current_stream(device)))
            yield [np.ones([2], "float32")]

        device = self.accelerators[-1]
        stream = Stream(device)
        with stream_guard(stream):
            loader = paddle.base.io.DataLoader.from_generator(
                capacity=1, return_list=True, **kwargs
            )
            loader.set_batch_generator(batches, places="cpu")
            self.assertEqual(len(list(loader)), 1)
        return seen == [handle(stream)]

    def test_reader_of_a_generator_uses_the_stream_of_its_creator(self):
        self.assertTrue(in_thread(self.stream_of_reader_thread))

    def test_reader_of_a_static_loader_uses_the_stream_of_its_creator(self):
        def load():
            paddle.enable_static()
            program = paddle.static.Program()
            with paddle.static.program_guard(program):
                x = paddle.static.data("x", [2], "float32")
            return self.stream_of_reader_thread(feed_list=[x])

        self.assertTrue(in_thread(load))

    def test_readers_of_paddle_reader_use_device_and_stream_of_their_user(
        self,
    ):
        last = self.accelerators[-1]

        def where(_):
            made = paddle.ones([1])
            return place_name(made), handle(paddle.device.current_stream(last))

        def items():
            yield from map(where, range(3))

        def numbers():
            yield from range(3)

        def read(reader):
            paddle.set_device(last)
            with stream_guard(Stream(last)):
                expected = where(None)
                return [(found, expected) for found in reader()]

        for reader in (
            paddle.reader.buffered(items, 2),
            paddle.reader.xmap_readers(where, numbers, 2, 2),
            paddle.reader.xmap_readers(where, numbers, 2, 2, order=True),
        ):
            found = in_thread(read, reader)
            self.assertEqual(len(found), 3)
            for one, expected in found:
                self.assertEqual(one, expected)
            # If the user has no device of its own, its readers have none.
            followed = (self.devices[0], self.defaults[-1])
            read_here = in_thread(lambda reader: list(reader()), reader)
            self.assertEqual(read_here, [followed] * 3)

    def test_async_save_uses_device_and_stream_of_its_caller(self):
        last = self.accelerators[-1]
        found = []

        class Probe:
            def __reduce__(self):
                found.append(current())
                return str, ()

        def current():
            device = paddle.get_device()
            return device, handle(paddle.device.current_stream(last))

        def save():
            paddle.set_device(last)
            with stream_guard(Stream(last)):
                paddle.async_save({"probe": Probe()}, io.BytesIO())
                expected = current()
                paddle.clear_async_save_task_queue()
                return expected

        expected = in_thread(save)
        self.assertEqual(found, [expected])

    def test_seed_is_process_wide(self):
        def draw():
            paddle.seed(7)
            return paddle.rand([8]).tolist()

        self.on_threads(draw)

    def test_main_threads_seed_determines_numbers_on_a_stream(self):
        paddle.seed(7)
        on_main = [paddle.rand([4]).tolist() for _ in range(2)]
        paddle.seed(7)
        on_threads = [
            in_thread(self.on_new_stream, lambda: paddle.rand([4]).tolist())
            for _ in range(2)
        ]
        self.assertEqual(on_threads, on_main)


@on_every_device_list
class TestErrors(StreamTestCase):
    def test_an_object_other_than_a_stream_is_refused_and_changes_nothing(self):
        def own():
            stream = Stream()
            with stream_guard(stream):
                for wrong, its_type in ((None, "NoneType"), ("gpu", "str")):
                    with self.assertRaisesRegex(TypeError, its_type):
                        set_stream(wrong)
                with self.assertRaisesRegex(TypeError, "str"):
                    stream_guard("gpu").__enter__()
                self.assertEqual(self.current(), self.with_first(stream))

        in_thread(own)
        own()

    def test_failed_creation_of_a_context_changes_nothing(self):
        from paddle.base.threads import streams

        def own():
            stream = Stream()
            with stream_guard(stream):
                guard = stream_guard(Stream())
                with mock.patch.object(
                    streams.native,
                    "StreamContext",
                    side_effect=MemoryError,
                ):
                    with self.assertRaises(MemoryError):
                        guard.__enter__()
                self.assertEqual(self.current(), self.with_first(stream))
                with self.assertRaisesRegex(RuntimeError, "stream_guard"):
                    guard.__exit__(None, None, None)
                with guard:
                    self.check_computes()
                self.assertEqual(self.current(), self.with_first(stream))

        in_thread(own)

    def test_current_stream_of_a_device_without_streams_is_an_error(self):
        def own():
            with stream_guard(Stream()):
                with self.assertRaisesRegex(
                    TypeError, "device (should|must) be"
                ):
                    paddle.device.current_stream("cpu")

        in_thread(own)


if __name__ == "__main__":
    unittest.main()
