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
"""Test helpers for programs on threads: a layer with known results."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import unittest
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Callable
from unittest import mock

import numpy as np
from concurrent_base import in_threads, switch_threads_often

import paddle
from paddle import nn
from paddle.jit.dy2static.pir_partial_program import PartialProgramLayer
from paddle.jit.sot.utils.envs import min_graph_size_guard
from paddle.static import InputSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

SPEC = [InputSpec([None, 6], "float32", stop_gradient=False)]
MOST_ROWS = 30


class Scaled(nn.Layer):
    """Multiplies by 2, or by another factor. The result is exact."""

    def __init__(self, factor: float = 2.0):
        super().__init__()
        scale = nn.initializer.Constant(factor)
        self.first = nn.Linear(6, 6, scale, False)
        self.first.weight.set_value(np.eye(6, dtype="float32") * factor)
        # No gradient, because threads would accumulate it concurrently.
        self.first.weight.stop_gradient = True

    def forward(self, x):
        return nn.functional.relu(self.first(x)) - nn.functional.relu(
            self.first(-x)
        )


def inputs(seed: int, calls: int) -> Iterator[np.ndarray]:
    """Yields arrays of different shapes."""
    random = np.random.RandomState(seed)
    for _ in range(calls):
        rows = random.randint(1, MOST_ROWS)
        yield random.randint(-99, 99, [rows, 6]).astype("float32")


def wrong_answers(
    layer: Callable, seed: int, calls: int, factor: float = 2.0
) -> int:
    """Returns the number of calls with a wrong result."""
    wrong = 0
    for array in inputs(seed, calls):
        answer = layer(paddle.to_tensor(array))
        wrong += not np.array_equal(answer.numpy(), factor * array)
    return wrong


def wrong_gradients(layer: Callable, seed: int, calls: int) -> int:
    """Returns the number of calls with a wrong result or gradient. The backward
    pass of each call runs after the forward pass of the next call."""
    wrong = 0
    pending = []
    for array in inputs(seed, calls):
        x = paddle.to_tensor(array, stop_gradient=False)
        pending.append((array, x, layer(x)))
        if len(pending) == 2:
            wrong += _is_wrong(*pending.pop(0))
    return wrong + sum(_is_wrong(*left) for left in pending)


def _is_wrong(
    array: np.ndarray, x: paddle.Tensor, answer: paddle.Tensor
) -> bool:
    (answer * paddle.to_tensor(array)).sum().backward()
    expected = 2 * array
    return not (
        np.array_equal(answer.numpy(), expected)
        and np.array_equal(x.grad.numpy(), expected)
    )


def errors_of_second_passes(layer: Callable) -> list[str]:
    """
    Returns the errors of a second backward pass through a call, without and
    with another call in between, which could take the scope of the first. Each
    pass is one of backward() or of paddle.grad. The passes that are no second
    passes must give the right gradient.
    """

    def call() -> tuple[paddle.Tensor, paddle.Tensor]:
        x = paddle.ones([2, 6])
        x.stop_gradient = False
        return x, layer(x).sum()

    def backward(x: paddle.Tensor, answer: paddle.Tensor) -> paddle.Tensor:
        answer.backward(retain_graph=True)
        return x.grad

    def grad(x: paddle.Tensor, answer: paddle.Tensor) -> paddle.Tensor:
        return paddle.grad(answer, x, retain_graph=True)[0]

    def check(gradient: paddle.Tensor) -> None:
        np.testing.assert_array_equal(gradient, np.full([2, 6], 2))

    errors = []
    for first, second, calls_between in itertools.product(
        (backward, grad), (backward, grad), (0, 1)
    ):
        x, answer = call()
        check(first(x, answer))
        others = [call() for _ in range(calls_between)]
        try:
            second(x, answer)
        except RuntimeError as error:
            errors.append(str(error))
        for other in others:
            check(backward(*other))
        if first is backward:
            check(x.grad)
    return errors


def together(threads: int, function: Callable[[int], Any]) -> list:
    """Calls function(0), function(1), ... concurrently, each on its own thread,
    and returns the results."""
    return in_threads(
        *(lambda seed=seed: function(seed) for seed in range(threads))
    )


class JitTestCase(unittest.TestCase):
    """Provides a folder for models, and lets Python switch threads often."""

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        switch_threads_often(self)

    def compile_small_parts(self) -> None:
        """Compiles every part of a partially traced layer: by default a part
        with fewer than ten operators runs without a program."""
        guard = min_graph_size_guard(0)
        guard.__enter__()
        self.addCleanup(guard.__exit__, None, None, None)

    def use_cpu(self) -> None:
        """For calls that fail: not all test devices check shapes."""
        self.addCleanup(paddle.set_device, paddle.get_device())
        paddle.set_device("cpu")

    def save(self, factor: float = 2.0, name: str = "model") -> str:
        path = os.path.join(self.folder, name)
        layer = Scaled(factor)
        layer.eval()
        paddle.jit.save(layer, path, input_spec=SPEC)
        return path

    def loaded(self, factor: float = 2.0, name: str = "model") -> nn.Layer:
        return paddle.jit.load(self.save(factor, name))


def scopes_of(partial_program: Any) -> int:
    """Returns the number of scopes that a program keeps."""
    return sum(map(len, partial_program._scope_cache.values()))


@contextmanager
def runs_of_parts() -> Iterator[list[None]]:
    """Yields a list that gets an element for each program run of a partially
    traced layer inside the context."""
    runs = []
    run = PartialProgramLayer.sot_call

    def run_and_count(*args):
        runs.append(None)
        return run(*args)

    with mock.patch.object(PartialProgramLayer, "sot_call", run_and_count):
        yield runs
