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

"""Per-thread streams: the order of work of to_static programs.

CUSTOM_DEVICE_ROOT must name the folder of the built plugin in host_device/.
"""

from __future__ import annotations

import gc
import unittest

from test_host_device import setUpModule
from test_thread_stream_order import SIZE, StreamTest, in_thread, slow

import paddle
from paddle.device import Stream, stream_guard
from paddle.nn.functional import relu

__all__ = ["setUpModule"]


class Doubling(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.linear = paddle.nn.Linear(4, 4)

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        return relu(self.linear(x) * 2)


class TestProgramsOfToStatic(StreamTest):
    def setUp(self) -> None:
        super().setUp()
        self.program = paddle.jit.to_static(Doubling(), full_graph=True)
        self.x = paddle.ones([2, 4])

    def loss(self) -> paddle.Tensor:
        return self.program(self.x).sum()

    def gradient(self) -> list:
        weight = self.program.linear.weight
        gradient = weight.grad.numpy().tolist()
        weight.clear_grad()
        return gradient

    def test_runs_on_the_stream_of_the_calling_thread(self):
        @paddle.jit.to_static(full_graph=True)
        def program(x: paddle.Tensor) -> paddle.Tensor:
            return relu(x * 2)

        x = paddle.ones([2])
        self.assert_runs_on_streams_of_threads(
            lambda: program(x), "scale", "record_event", "relu"
        )

    def test_backward_on_a_destroyed_stream_does_not_affect_others(self):
        self.loss().backward()
        expected = self.gradient()
        loss = self.loss()
        loss.numpy()

        def backward_on_a_stream():
            with stream_guard(Stream()):
                loss.backward()
                return self.gradient()

        self.assertEqual(in_thread(backward_on_a_stream), expected)
        gc.collect()
        for _ in range(3):
            self.loss().backward()
            self.assertEqual(self.gradient(), expected)

    def test_backward_waits_for_the_stream_of_the_calling_thread(self):
        program = paddle.jit.to_static(paddle.nn.ReLU(), full_graph=True)

        def pass_back_late(value: float) -> None:
            x = paddle.ones([SIZE])
            x.stop_gradient = False
            stream = Stream()
            with stream_guard(stream):
                y = program(x)
                with slow(stream):
                    y.backward(paddle.full([SIZE], value))
                    self.assert_holds(x.grad, value)

        for value in (2.0, 3.0):
            in_thread(pass_back_late, value)

    def test_first_backward_on_another_stream_than_the_forward_pass(self):
        stream = Stream()

        def forward_on_a_stream():
            with stream_guard(stream):
                loss = self.loss()
                loss.numpy()
                return loss

        loss = in_thread(forward_on_a_stream)
        loss.backward()
        expected = self.gradient()
        self.loss().backward()
        self.assertEqual(self.gradient(), expected)


if __name__ == "__main__":
    unittest.main()
