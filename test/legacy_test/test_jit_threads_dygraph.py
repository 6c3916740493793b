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
"""Dynamic mode on one thread beside a trace on another thread."""

from __future__ import annotations

import threading
import unittest
from typing import Any, Callable
from unittest import mock

import numpy as np
from concurrent_base import WAIT_S, in_thread, in_threads
from jit_threads_base import JitTestCase

import paddle
from paddle import nn
from paddle.base.framework import EagerParamBase


class ClipThatCalls(nn.ClipGradByValue):
    """Calls a function in the middle of an optimizer's step."""

    def __init__(self, function: Callable[[], None]) -> None:
        super().__init__(1.0)
        self._function = function

    def _dygraph_clip(self, params_grads: Any) -> Any:
        self._function()
        return super()._dygraph_clip(params_grads)


class Trained:
    """A layer and its optimizer, after a backward pass."""

    def __init__(self, grad_clip: nn.ClipGradByValue | None = None) -> None:
        self.layer = nn.Linear(2, 2)
        self.optimizer = paddle.optimizer.SGD(
            0.1, parameters=self.layer.parameters(), grad_clip=grad_clip
        )
        self.backward()

    def backward(self) -> None:
        self.layer(paddle.ones([1, 2])).sum().backward()

    def step(self) -> None:
        self.optimizer.step()
        self.optimizer.clear_grad()


class TestOptimizers(JitTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.use_cpu()

    def test_a_step_that_ends_during_a_trace_does_not_affect_the_trace(self):
        stepping, tracing, stepped = (threading.Event() for _ in range(3))

        def wait_for_trace() -> None:
            stepping.set()
            self.assertTrue(tracing.wait(WAIT_S))

        trained = Trained(ClipThatCalls(wait_for_trace))

        def step() -> None:
            trained.step()
            stepped.set()

        def traced(x: paddle.Tensor) -> paddle.Tensor:
            x = x + 1
            tracing.set()
            self.assertTrue(stepped.wait(WAIT_S))
            return x * 3

        def trace() -> list[float]:
            self.assertTrue(stepping.wait(WAIT_S))
            function = paddle.jit.to_static(traced, full_graph=True)
            return function(paddle.ones([2])).tolist()

        self.assertEqual(in_threads(trace, step), [[6.0, 6.0], None])

    def test_a_step_that_begins_during_a_trace_leaves_the_default_program(self):
        tracing, stepping, traced_all = (threading.Event() for _ in range(3))
        before = paddle.static.default_main_program()

        def wait_for_end_of_trace() -> None:
            stepping.set()
            self.assertTrue(traced_all.wait(WAIT_S))

        trained = Trained(ClipThatCalls(wait_for_end_of_trace))

        def step() -> None:
            self.assertTrue(tracing.wait(WAIT_S))
            trained.step()

        def traced(x: paddle.Tensor) -> paddle.Tensor:
            tracing.set()
            self.assertTrue(stepping.wait(WAIT_S))
            return x * 3

        def trace() -> list[float]:
            function = paddle.jit.to_static(traced, full_graph=True)
            answer = function(paddle.ones([2])).tolist()
            traced_all.set()
            return answer

        self.assertEqual(in_threads(trace, step), [[3.0, 3.0], None])
        self.assertIs(paddle.static.default_main_program(), before)

    def test_one_thread_trains_while_another_traces(self):
        for full_graph in (True, False):
            with self.subTest(full_graph=full_graph):
                self.assertEqual(self.wrong_first_calls(full_graph), 0)

    def wrong_first_calls(self, full_graph: bool) -> int:
        trained = Trained()
        ended = threading.Event()

        def train() -> None:
            while not ended.is_set():
                trained.step()
                trained.backward()

        def first_calls() -> int:
            wrong = 0
            try:
                for _ in range(10):
                    layer = nn.Sequential(*(nn.Linear(2, 2) for _ in range(10)))
                    x = paddle.ones([1, 2])
                    expected = layer(x).numpy()
                    compiled = paddle.jit.to_static(
                        layer, full_graph=full_graph
                    )
                    wrong += not np.allclose(compiled(x).numpy(), expected)
            finally:
                ended.set()
            return wrong

        return in_threads(first_calls, train)[0]


class ListAndDict(nn.Layer):
    """Adds three parameters, which are ones, to its input."""

    def __init__(self) -> None:
        super().__init__()
        ones = [
            self.create_parameter(
                [2], default_initializer=nn.initializer.Constant(1.0)
            )
            for _ in range(3)
        ]
        self.list = nn.ParameterList(ones[:2])
        self.dict = nn.ParameterDict({"c": ones[2]})

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        return x + self.list[0] + self.list[1] + self.dict["c"]

    def parameters_of_containers(self) -> list[Any]:
        return [
            *(self.list[i] for i in range(2)),
            *self.list,
            self.dict["c"],
        ]


class TestParameterContainers(unittest.TestCase):
    def test_other_threads_get_parameters_during_a_trace(self):
        layer = ListAndDict()
        convert = paddle.pir.core._convert_into_value
        seen = []

        def convert_and_look(tensor: Any) -> Any:
            value = convert(tensor)
            seen.extend(in_thread(layer.parameters_of_containers))
            return value

        with mock.patch.object(
            paddle.pir.core, "_convert_into_value", convert_and_look
        ):
            compiled = paddle.jit.to_static(layer.forward, full_graph=True)
            answer = compiled(paddle.zeros([2]))
        self.assertEqual(
            {type(parameter) for parameter in seen}, {EagerParamBase}
        )
        self.assertEqual(answer.tolist(), [3.0, 3.0])


if __name__ == "__main__":
    unittest.main()
