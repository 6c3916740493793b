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
"""Stream pools: streams are created once and handed out round-robin.

The tests run on all devices with streams: GPUs, and the devices of the plugin
in test/custom_runtime/host_device.
"""

import re
import unittest
from unittest import mock

from concurrent_base import in_thread, in_threads
from thread_device_base import (
    ForkTestCase,
    StreamTestCase,
    handle,
    on_every_device_list,
    run_script,
)

import paddle
from paddle.base.threads import stream_pool, streams
from paddle.device import Stream, get_stream_from_pool, stream_guard

SIZE = 32
# The module behind paddle.device, which is a proxy.
FUNCTIONS = Stream.__init__.__globals__


@on_every_device_list
class TestStreamPool(StreamTestCase):
    def setUp(self):
        super().setUp()
        # Each test starts with empty pools.
        pools = mock.patch.dict(stream_pool._pools, clear=True)
        pools.start()
        self.addCleanup(pools.stop)

    def take(self, number, *args):
        return [handle(get_stream_from_pool(*args)) for _ in range(number)]

    def counted(self, functions, name):
        """Counts the calls of a function without replacing its behavior."""
        counter = mock.Mock(wraps=functions[name])
        patch = mock.patch.dict(functions, {name: counter})
        patch.start()
        self.addCleanup(patch.stop)
        return counter

    def test_streams_are_handed_out_round_robin(self):
        first_round = self.take(SIZE)
        self.assertEqual(len({*first_round, self.defaults[0]}), SIZE + 1)
        self.assertEqual(self.take(SIZE), first_round)

    def test_later_rounds_create_nothing(self):
        first_round = [get_stream_from_pool() for _ in range(SIZE)]
        for stream in first_round:
            self.assertIs(get_stream_from_pool(), stream)

    def test_each_stream_is_created_on_first_use(self):
        made = self.counted(FUNCTIONS, "_create_stream_base")
        self.take(3)
        self.assertEqual(made.call_count, 3)
        self.take(3 * SIZE)
        self.assertEqual(made.call_count, SIZE)

    def test_each_device_and_priority_has_its_own_streams(self):
        second = self.second_accelerator()
        of_all = [
            *(("first", each) for each in self.take(SIZE, None, 0)),
            *(("first", each) for each in self.take(SIZE, None, -1)),
            *(("second", each) for each in self.take(SIZE, second, 0)),
        ]
        self.assertEqual(len(set(of_all)), 3 * SIZE)
        stream = get_stream_from_pool(second)
        self.assertEqual(stream.device, paddle.device._convert_to_place(second))

    def test_place_of_a_tensor_names_its_device(self):
        taken = self.take(SIZE, paddle.zeros([1]).place)
        self.assertEqual(self.take(SIZE), taken)

    def test_priorities_are_high_and_normal(self):
        made = self.counted(FUNCTIONS, "_create_stream_base")
        for make in (get_stream_from_pool, Stream):
            made.reset_mock()
            for priority in (-1, 1, 0, 2):
                make(priority=priority)
            self.assertEqual(
                [call.kwargs["priority"] for call in made.call_args_list],
                [1, 1, 2, 2],
            )
        self.assertEqual(len(stream_pool._pools), 2)

    def test_stream_created_by_a_program_is_in_no_pool(self):
        own = {handle(stream) for stream in [Stream() for _ in range(SIZE)]}
        self.assertEqual(own & {*self.take(SIZE)}, set())

    def test_short_lived_threads_create_no_streams_and_no_contexts(self):
        def serve():
            stream = get_stream_from_pool()
            with stream_guard(stream):
                self.check_computes()
                self.assertEqual(self.current(), self.with_first(stream))

        for _ in range(SIZE):
            in_thread(serve)
        made = self.counted(FUNCTIONS, "_create_stream_base")
        contexts = self.counted(vars(streams.native), "StreamContext")
        for _ in range(SIZE + 1):
            in_thread(serve)
        self.assertEqual((made.call_count, contexts.call_count), (0, 0))

    def test_concurrent_threads_get_each_stream_once_per_round(self):
        for _ in range(20):
            stream_pool._pools.clear()
            taken = in_threads(*[lambda: self.take(SIZE // 4)] * 4)
            self.assertEqual(len(set().union(*taken)), SIZE)

    def test_stream_whose_creation_failed_is_created_in_the_next_round(self):
        failing = mock.Mock(side_effect=MemoryError)
        with mock.patch.dict(FUNCTIONS, _create_stream_base=failing):
            with self.assertRaises(MemoryError):
                get_stream_from_pool()
        self.assertEqual(len({*self.take(SIZE)}), SIZE)

    def test_priority_that_does_not_exist_is_refused(self):
        for make in (get_stream_from_pool, Stream):
            for wrong in (3, 7, -2, "high", None, []):
                with self.assertRaisesRegex(
                    ValueError,
                    r"must be 1 or -1 \(high\), or 0 or 2 \(normal\), but "
                    f"received {re.escape(repr(wrong))}",
                ):
                    make(priority=wrong)

    def test_cpu_has_no_pool(self):
        with self.assertRaisesRegex(
            TypeError, f"received Place\\(cpu\\). .*{self.accelerators[0]}"
        ):
            get_stream_from_pool("cpu")

    def test_value_that_is_not_a_device_is_named(self):
        with self.assertRaisesRegex(TypeError, "received 1.5 of type float"):
            get_stream_from_pool(1.5)


class TestForkedProcess(ForkTestCase):
    def test_child_takes_streams_of_the_pool(self):
        if len(self.devices) == 1:
            self.skipTest("needs the plugin in test/custom_runtime/host_device")
        body = """
        import paddle
        paddle.set_device(devices[0])
        def compute():
            stream = paddle.device.get_stream_from_pool()
            with paddle.device.stream_guard(stream):
                assert (paddle.ones([4]) * 3).tolist() == [3.0] * 4
        def in_child():
            for _ in range(33):
                compute()
                in_thread(compute)
        for _ in range(2):
            in_thread(compute)
        forked(in_child)
        in_thread(lambda: forked(in_child))
        """
        run_script(self, body, self.devices)


if __name__ == "__main__":
    unittest.main()
