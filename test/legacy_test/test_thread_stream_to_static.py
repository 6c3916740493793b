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
"""Per-thread streams: programs of to_static."""

from __future__ import annotations

import unittest

from concurrent_base import in_thread
from thread_device_base import StreamTestCase, on_every_device_list

import paddle
from paddle.device import Stream, stream_guard


@on_every_device_list
class TestProgramsOfToStatic(StreamTestCase):
    def test_program_of_to_static(self):
        @paddle.jit.to_static(full_graph=True)
        def program(x):
            return paddle.nn.functional.relu(x * 2 + x)

        x = paddle.to_tensor([-1.0, 2.0])
        paddle.device.synchronize()

        def run():
            return [program(x).tolist() for _ in range(2)]

        self.assertEqual(self.on_threads(run), [[0.0, 6.0]] * 2)

    def test_program_of_to_static_is_differentiated(self):
        @paddle.jit.to_static(full_graph=True)
        def program(x):
            return (x * x).sum()

        def gradient():
            x = paddle.to_tensor([1.0, 2.0], stop_gradient=False)
            program(x).backward()
            return x.grad.tolist()

        self.assertEqual(self.on_threads(gradient), [2.0, 4.0])

    def test_program_of_to_static_outlives_the_stream_of_its_first_run(self):
        @paddle.jit.to_static(full_graph=True)
        def program(x):
            return x * 2

        def run():
            return program(paddle.ones([2])).tolist()

        for _ in range(20):
            self.assertEqual(in_thread(self.on_new_stream, run), [2.0, 2.0])

    def test_thread_that_leaves_a_stream_runs_its_earlier_program(self):
        @paddle.jit.to_static(full_graph=True)
        def program(x):
            return x * 2

        _, layer = program.get_concrete_program(paddle.ones([2]))

        def ids():
            before = layer.program_id
            with stream_guard(Stream()):
                inside = layer.program_id
            return before, inside, layer.program_id

        before, inside, afterwards = in_thread(ids)
        self.assertNotEqual(inside, before)
        self.assertEqual(afterwards, before)


if __name__ == "__main__":
    unittest.main()
