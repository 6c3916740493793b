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
"""Helpers for data parallel training tests: ranks and their groups."""

from __future__ import annotations

import functools
import gc
import multiprocessing
import operator
import os
import queue
import threading
import traceback
import unittest
import warnings
from typing import TYPE_CHECKING, Any, Callable
from unittest import mock

import numpy as np
from concurrent_base import WAIT_S
from shm_group_base import free_port, join_default_group

import paddle
import paddle.distributed as dist
from paddle import nn
from paddle.distributed.collective import _valid_backend_list
from paddle.distributed.communication.group import Group

if TYPE_CHECKING:
    from collections.abc import Sequence

has_shared_memory_groups = unittest.skipUnless(
    "shm" in _valid_backend_list, "This Paddle has no backend shm."
)
ONE_PER_BUCKET = 1e-6  # MiB; each parameter gets its own bucket
# The hooks of paddle.distributed.comm_hooks.
HOOKS = (
    "allreduce_hook",
    "fp16_compress_hook",
    "bf16_compress_hook",
    "quantization_8bit_hook",
    "powerSGD_hook",
)


class Ranks:
    """Processes that are the ranks of a group, and run functions on request."""

    def __init__(self, size: int, method: str = "forkserver"):
        context = multiprocessing.get_context(method)
        self._connections, self._processes = [], []
        port = free_port()
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(rank, size, port, theirs), daemon=True
            )
            process.start()
            theirs.close()
            self._connections.append(ours)
            self._processes.append(process)

    def call(self, kind: str, function: Callable, *args: Any) -> list:
        """Returns each rank's `function(group, *args)`, or its error as text.

        For a rank that died, the result is minus the signal's number.
        """
        for connection in self._connections:
            connection.send((kind, function, args))
        return [self._answer(rank) for rank in range(len(self._connections))]

    def _answer(self, rank: int) -> Any:
        if not self._connections[rank].poll(WAIT_S):
            raise AssertionError(f"rank {rank} did not answer in {WAIT_S} s")
        try:
            return self._connections[rank].recv()
        except (EOFError, ConnectionResetError):
            self._processes[rank].join(WAIT_S)
            return self._processes[rank].exitcode

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.join(WAIT_S)


def _serve(rank: int, size: int, port: int, connection) -> None:
    endpoints = [f"127.0.0.1:{port + number}" for number in range(size)]
    os.environ.update(
        PADDLE_TRAINER_ID=str(rank),
        PADDLE_TRAINERS_NUM=str(size),
        PADDLE_CURRENT_ENDPOINT=endpoints[rank],
        PADDLE_TRAINER_ENDPOINTS=",".join(endpoints),
        PADDLE_MASTER=endpoints[0],
        PADDLE_DISTRI_BACKEND="gloo",
    )
    answer_calls(connection)


def answer_calls(connection) -> None:
    """Joins the default group, and answers the calls of `Ranks`."""
    # In a forked process, collections would copy the memory of all objects.
    gc.freeze()
    paddle.set_device("cpu")
    join_default_group()
    while True:
        kind, function, args = connection.recv()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                answer = function(new_group(kind), *args)
        except Exception as error:
            traceback.print_exc()
            answer = f"{type(error).__name__}: {error}"
        connection.send(answer)


@functools.cache
def shared_memory_group() -> Group:
    return dist.new_group(list(range(dist.get_world_size())), backend="shm")


def new_group(kind: str) -> Group:
    """Returns a group of all ranks: a backend's, or a test group over gloo."""
    gloo = dist.get_group()
    if kind == "gloo":
        return gloo
    if kind == "shm":
        return shared_memory_group()
    process_group = {
        "late": LateProcessGroup,
        "background": BackgroundProcessGroup,
    }[kind](gloo.process_group)
    return Group(gloo.rank, gloo.id, gloo.ranks, process_group, gloo.name)


class LateProcessGroup:
    """A process group that runs operations only when a task is waited for.

    A caller that reads a result too early finds the old values.
    """

    def __init__(self, process_group):
        self._process_group = process_group
        self._operations: list[Callable] = []
        self._done = 0

    def name(self) -> str:
        return self._process_group.name()

    def __getattr__(self, name: str) -> Callable:
        function = getattr(self._process_group, name)

        def call(*args: Any) -> LateTask:
            self._operations.append(lambda: function(*args).wait())
            return LateTask(self, len(self._operations))

        return call

    def run(self, number: int) -> None:
        for operation in self._operations[self._done : number]:
            operation()
        self._done = max(self._done, number)


class LateTask:
    """An operation of a `LateProcessGroup`."""

    def __init__(self, process_group: LateProcessGroup, number: int):
        self._process_group = process_group
        self._number = number

    def wait(self) -> bool:
        self._process_group.run(self._number)
        return True


class BackgroundProcessGroup:
    """A process group whose operations run on a thread, in order."""

    def __init__(self, process_group):
        self._process_group = process_group
        self._operations = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def name(self) -> str:
        return self._process_group.name()

    def __getattr__(self, name: str) -> Callable:
        function = getattr(self._process_group, name)

        def call(*args: Any) -> ThreadTask:
            task = ThreadTask()
            self._operations.put((lambda: function(*args).wait(), task))
            return task

        return call

    def _run(self) -> None:
        while True:
            operation, task = self._operations.get()
            operation()
            task.done.set()


class ThreadTask:
    """An operation of a `BackgroundProcessGroup`."""

    def __init__(self):
        self.done = threading.Event()

    def wait(self) -> bool:
        if not self.done.wait(WAIT_S):
            raise TimeoutError(f"no result within {WAIT_S} s")
        return True


def new_layer(seed: int) -> nn.Layer:
    paddle.seed(seed)
    return nn.Sequential(
        nn.Linear(6, 32),
        nn.Tanh(),
        nn.Linear(32, 32),
        nn.Tanh(),
        nn.Linear(32, 3),
    )


def random_batches(steps: int, size: int) -> list[paddle.Tensor]:
    paddle.seed(7)
    return [paddle.randn([size, 4, 6]) for _ in range(steps)]


def loss_of(layer: nn.Layer, part: paddle.Tensor) -> paddle.Tensor:
    return (layer(part) ** 2).mean()


def values(layer: nn.Layer) -> list:
    return [parameter.numpy() for parameter in layer.parameters()]


def gradients(layer: nn.Layer) -> list:
    return [
        None if parameter.grad is None else parameter.grad.numpy()
        for parameter in layer.parameters()
        if not parameter.stop_gradient
    ]


def train_alone(
    layer: nn.Layer, batches: Sequence[paddle.Tensor], size: int
) -> list:
    """Trains serially on the parts of all ranks; returns the parameters."""
    parameters = layer.parameters()
    optimizer = paddle.optimizer.Momentum(0.1, parameters=parameters)
    for batch in batches:
        of_parts = []
        for rank in range(size):
            loss_of(layer, batch[rank]).backward()
            of_parts.append([each.grad.clone() for each in parameters])
            optimizer.clear_grad(set_to_zero=False)
        for parameter, parts in zip(parameters, zip(*of_parts)):
            total = functools.reduce(operator.add, parts)
            # Dividing by a Python number would multiply by its rounded inverse.
            parameter.grad = paddle.divide(total, paddle.to_tensor(float(size)))
        optimizer.step()
        optimizer.clear_grad(set_to_zero=False)
    return values(layer)


def train_with_scaler(group, options, register_hook=None) -> list:
    """Trains for five steps; the last rank overflows in the third.

    Returns the parameters after each step.
    """
    paddle.seed(0)
    layer = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 2))
    wrapped = paddle.DataParallel(layer, group=group, **options)
    if register_hook is not None:
        register_hook(wrapped)
    optimizer = paddle.optimizer.Momentum(0.1, parameters=layer.parameters())
    # Paddle disables GradScaler on the CPU, but its arithmetic works there.
    with mock.patch("paddle.amp.grad_scaler._dygraph_tracer"):
        scaler = paddle.amp.GradScaler(
            init_loss_scaling=8.0, use_dynamic_loss_scaling=False
        )
    found = []
    for step in range(5):
        paddle.seed(10 * step + group.rank)
        loss = (wrapped(paddle.randn([4, 16])) ** 2).mean()
        if step == 2 and group.rank == group.nranks - 1:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.clear_grad()
        found.append(values(layer))
    return found


class RanksCase(unittest.TestCase):
    """A test case that runs functions on `size` ranks of a `kind` group."""

    size = 2
    kind = "gloo"
    ranks: Ranks

    @classmethod
    def setUpClass(cls) -> None:
        cls.ranks = Ranks(cls.size)

    @classmethod
    def tearDownClass(cls) -> None:
        cls.ranks.end()

    def call(self, function: Callable, *args: Any) -> list:
        """Returns the answers of all ranks; fails if one is an error."""
        answers = self.ranks.call(self.kind, function, *args)
        for answer in answers:
            self.assertNotIsInstance(answer, str, answer)
        return answers

    def errors(self, function: Callable, *args: Any) -> list[str]:
        """Returns the answers of all ranks as text, errors or not."""
        return [
            str(answer)
            for answer in self.ranks.call(self.kind, function, *args)
        ]

    def assert_step_skipped_on_all(self, *args: Any) -> None:
        """Runs `train_with_scaler(*args)`; all ranks must skip step 3."""
        first, *others = self.call(train_with_scaler, *args)
        for each in others:
            for one, other in zip(first, each):
                self.assert_same_bits(one, other)
        for step, (before, after) in enumerate(zip(first, first[1:]), start=1):
            is_same = all((one == two).all() for one, two in zip(before, after))
            self.assertEqual(is_same, step == 2, f"step {step}")
        for each in first[-1]:
            self.assertTrue(np.isfinite(each).all())

    def assert_same_sums(self, one: Sequence, other: Sequence) -> None:
        """Compares sums over the ranks, and whatever depends on them.

        The sum of two numbers does not depend on the order of addition. Of
        more, shm adds in rank order, and gloo in another order, which depends
        on the place in the bucket.
        """
        if self.size == 2 or self.kind == "shm":
            self.assert_same_bits(one, other)
        for left, right in zip(one, other):
            np.testing.assert_allclose(left, right, rtol=2e-5, atol=1e-6)

    def assert_same_bits(self, one: Sequence, other: Sequence) -> None:
        self.assertEqual(len(one), len(other))
        for left, right in zip(one, other):
            self.assertEqual(left.tobytes(), right.tobytes())
