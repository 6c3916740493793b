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
"""paddle.DataParallel and Join compute the same gradients as torch's DDP.

The values were printed by record_data_parallel_torch_values.py, with torch
2.13.0 on the CPU, over gloo, with two ranks. A recorded step has the gradients
of the weight and of the bias, in the order of Paddle's weights, which are
transposed relative to torch's, and are flat here.

Two differences are known. torch divides 16-bit gradients before it adds them,
and Paddle afterwards, so that they differ by a rounding. And torch also
broadcasts buffers in eval mode, where Paddle does not, so that one rank can run
an evaluation alone.
"""

from __future__ import annotations

import unittest

import numpy as np
from data_parallel_base import RanksCase, has_shared_memory_groups

import paddle
import paddle.distributed as dist
from paddle import nn
from paddle.distributed import comm_hooks

JOIN = {
    True: [
        [[0.6875, 0.5625], [0.625]],
        [[0.1523437201976776, -0.28281256556510925], [0.2953124940395355]],
        [[0.11660163104534149, -0.8572264909744263], [0.24003911018371582]],
    ],
    False: [
        [[0.6875, 0.5625], [0.625]],
        [[0.3046874403953552, -0.5656251311302185], [0.590624988079071]],
        [[0.26640644669532776, -1.428905963897705], [0.4601563811302185]],
    ],
}
AFTER_JOIN = {
    True: [[0.4043554663658142, -0.19224607944488525], [0.008964836597442627]],
    False: [
        [0.3741406202316284, -0.10679689794778824],
        [-0.042578138411045074],
    ],
}
NO_SYNC = [
    [
        [[0.125, 0.25], [0.25]],
        [[0.1875, -0.125], [0.5]],
        [[1.9375, -0.3125], [1.875]],
        [[3.0, -2.75], [2.5]],
    ],
    [
        [[1.25, 0.875], [1.0]],
        [[2.3125, 1.375], [2.0]],
        [[1.9375, -0.3125], [1.875]],
        [[3.0, -2.75], [2.5]],
    ],
]
# The gradients of one backward pass: per rank with only forward under
# no_sync(), and on all ranks with only backward under no_sync().
LOCAL = [[[0.125, 0.25], [0.25]], [[1.25, 0.875], [1.0]]]
AVERAGED = [[0.6875, 0.5625], [0.625]]
# The gradients of `left`, `right` and `never`, after each of two steps. Only
# rank 1 uses `right`, in the first step. In the second list, two biases start
# with gradients, and the last entry of each step is for rank 0.
UNUSED = [
    ([1.5, 1.5, 2.0, 2.0], [1.0, 1.0], [1.0] * 4, [0.5, 0.5], None, None),
    ([3.0, 3.0, 4.0, 4.0], [2.0, 2.0], [1.0] * 4, [0.5, 0.5], None, None),
]
UNUSED_WITH_GRADIENTS = [
    ([1.5, 1.5, 2.0, 2.0], [1.0, 1.0], [1.0] * 4, [1.5, 1.5], None, [3.0] * 2),
    ([3.0, 3.0, 4.0, 4.0], [2.0, 2.0], [1.0] * 4, [1.5, 1.5], None, [3.0] * 2),
]
# The gradients of a layer that is used twice, and of one that is never used.
STATIC_GRAPH = [
    (
        [3.58203125, 1.46484375, 2.845703125, 3.205078125],
        [1.23046875, -0.87890625],
        None,
        None,
    ),
    (
        [
            0.9036012887954712,
            -0.38219183683395386,
            0.8971054553985596,
            0.7396258115768433,
        ],
        [0.4078289866447449, -1.0711116790771484],
        None,
        None,
    ),
    (
        [
            0.6803295612335205,
            0.03064567595720291,
            0.6401471495628357,
            1.2959117889404297,
        ],
        [0.24769358336925507, -0.5422929525375366],
        None,
        None,
    ),
]
FLOAT16_HOOK = [
    [[0.481201171875, 0.3935546875], [0.4375]],
    [[0.122802734375, -0.4375], [0.239990234375]],
    [[0.2315673828125, -1.00390625], [0.2476806640625]],
]
# Per rank, the buffer after each step; and the gradients on all ranks.
BUFFERS = [[3.0, 7.0, 12.0], [4.0, 8.0, 13.0]]
WITH_BUFFERS = [
    [[10.5625, 8.125], [9.125]],
    [[35.53125, 6.8125], [38.125]],
    [[113.0625, -139.6875], [102.5]],
]


def new_linear() -> nn.Layer:
    layer = nn.Linear(2, 1)
    layer.weight.set_value(paddle.to_tensor([[0.5], [-0.25]]))
    layer.bias.set_value(paddle.to_tensor([0.125]))
    return layer


def loss_of(layer, rank, step) -> paddle.Tensor:
    inputs = [[rank + 1.0, step + 2.0], [0.5 * step, -1.0 * rank]]
    return (layer(paddle.to_tensor(inputs)) ** 2).mean()


def flat(tensors) -> list:
    return [
        None if each is None else each.flatten().tolist() for each in tensors
    ]


def gradients(layer) -> list:
    return flat(each.grad for each in layer.parameters())


def join(group, divides_by_all) -> list:
    """Rank 0 has one input, and rank 1 three."""
    layer = new_linear()
    wrapped = paddle.DataParallel(layer, group=group)
    optimizer = paddle.optimizer.SGD(0.1, parameters=layer.parameters())
    steps = []
    with dist.Join([wrapped], divide_by_initial_world_size=divides_by_all):
        for step in range(1 + 2 * group.rank):
            loss_of(wrapped, group.rank, step).backward()
            steps.append(gradients(layer))
            optimizer.step()
            optimizer.clear_grad()
    return [steps, flat(layer.parameters())]


def accumulate(group) -> list:
    """Two parts under no_sync(), and two more."""
    layer = new_linear()
    wrapped = paddle.DataParallel(layer, group=group)
    steps = []
    with wrapped.no_sync():
        for step in range(2):
            loss_of(wrapped, group.rank, step).backward()
            steps.append(gradients(layer))
    for step in range(2, 4):
        loss_of(wrapped, group.rank, step).backward()
        steps.append(gradients(layer))
    return steps


def forward_under_no_sync(group) -> list:
    layer = new_linear()
    wrapped = paddle.DataParallel(layer, group=group)
    with wrapped.no_sync():
        loss = loss_of(wrapped, group.rank, 0)
    loss.backward()
    return gradients(layer)


def backward_under_no_sync(group) -> list:
    layer = new_linear()
    wrapped = paddle.DataParallel(layer, group=group)
    loss = loss_of(wrapped, group.rank, 0)
    with wrapped.no_sync():
        loss.backward()
    return gradients(layer)


class Branches(nn.Layer):
    def __init__(self):
        super().__init__()
        self.left, self.right, self.never = (nn.Linear(2, 2) for _ in range(3))

    def forward(self, x, uses_right):
        return self.left(x) + (self.right(x) if uses_right else 0)


def leave_out_parameters(group, has_gradients) -> list:
    layer = Branches()
    wrapped = paddle.DataParallel(
        layer, group=group, find_unused_parameters=True
    )
    if has_gradients:
        layer.never.bias.grad = paddle.full([2], 3.0 + group.rank)
        layer.right.bias.grad = paddle.ones([2])
    steps = []
    for step in range(2):
        inputs = paddle.to_tensor([[1.0 + group.rank, 2.0]])
        wrapped(inputs, group.rank == 1 and step == 0).sum().backward()
        steps.append(gradients(layer))
    return steps


class UsedTwice(nn.Layer):
    """Uses a layer twice, and never uses another."""

    def __init__(self):
        super().__init__()
        self.twice, self.never = new_square(), new_square()

    def forward(self, x):
        return self.twice(self.twice(x))


def new_square() -> nn.Layer:
    layer = nn.Linear(2, 2)
    layer.weight.set_value(paddle.to_tensor([[0.5, -0.25], [0.75, 1.0]]))
    layer.bias.set_value(paddle.to_tensor([0.125, -0.5]))
    return layer


def train_static_graph(group) -> list:
    layer = UsedTwice()
    wrapped = paddle.DataParallel(layer, group=group, static_graph=True)
    optimizer = paddle.optimizer.SGD(0.1, parameters=layer.parameters())
    steps = []
    for step in range(3):
        loss_of(wrapped, group.rank, step).backward()
        steps.append(gradients(layer))
        optimizer.step()
        optimizer.clear_grad()
    return steps


def train_with_hook(group) -> list:
    layer = new_linear()
    wrapped = paddle.DataParallel(layer, group=group)
    wrapped.register_comm_hook(None, comm_hooks.fp16_compress_hook)
    optimizer = paddle.optimizer.SGD(0.1, parameters=layer.parameters())
    steps = []
    for step in range(3):
        (loss_of(wrapped, group.rank, step) * 0.7).backward()
        steps.append(gradients(layer))
        optimizer.step()
        optimizer.clear_grad()
    return steps


class Adding(nn.Layer):
    """Adds up its first inputs in a buffer, which scales its outputs."""

    def __init__(self):
        super().__init__()
        self.linear = new_linear()
        self.register_buffer("total", paddle.zeros([1]))

    def forward(self, x):
        self.total = self.total + x.detach()[0].sum()
        return self.linear(x) * self.total


def broadcast_buffers(group) -> list:
    """Returns the buffer and the gradients after each step."""
    layer = Adding()
    wrapped = paddle.DataParallel(layer, group=group, broadcast_buffers=True)
    totals, steps = [], []
    for step in range(3):
        loss_of(wrapped, group.rank, step).backward()
        totals.append(layer.total.item())
        steps.append(gradients(layer))
        layer.clear_gradients()
    return [totals, steps]


class Cases:
    def assert_close(self, found, expected, rtol=1e-5):
        self.assertEqual(len(found), len(expected))
        for one, other in zip(found, expected):
            if other is None:
                self.assertIsNone(one)
            else:
                np.testing.assert_allclose(one, other, rtol=rtol, atol=1e-7)

    def assert_steps(self, found, expected):
        self.assertEqual(len(found), len(expected))
        for one, other in zip(found, expected):
            self.assert_close(one, other)

    def test_static_graph(self):
        for found in self.call(train_static_graph):
            self.assert_steps(found, STATIC_GRAPH)

    def test_float16_compression(self):
        for found in self.call(train_with_hook):
            self.assertEqual(len(found), len(FLOAT16_HOOK))
            for one, other in zip(found, FLOAT16_HOOK):
                self.assert_close(one, other, rtol=2**-10)

    def test_broadcast_buffers(self):
        for found, expected in zip(self.call(broadcast_buffers), BUFFERS):
            self.assertEqual(found[0], expected)
            self.assert_steps(found[1], WITH_BUFFERS)

    def test_uneven_inputs(self):
        for divides_by_all, steps in JOIN.items():
            first, second = self.call(join, divides_by_all)
            self.assert_steps(first[0], steps[:1])
            self.assert_steps(second[0], steps)
            for _, last in (first, second):
                self.assert_close(last, AFTER_JOIN[divides_by_all])

    def test_accumulation_under_no_sync(self):
        for found, expected in zip(self.call(accumulate), NO_SYNC):
            self.assert_steps(found, expected)

    def test_forward_decides_whether_gradients_are_averaged(self):
        for found, expected in zip(self.call(forward_under_no_sync), LOCAL):
            self.assert_close(found, expected)
        for found in self.call(backward_under_no_sync):
            self.assert_close(found, AVERAGED)

    def test_unused_parameters(self):
        for found in self.call(leave_out_parameters, False):
            self.assert_steps(found, UNUSED)

    def test_gradients_of_unused_parameters(self):
        found = self.call(leave_out_parameters, True)
        for rank, steps in enumerate(found):
            # A parameter that no rank uses keeps each rank's own gradient.
            own = [3.0 + rank] * 2
            self.assert_steps(
                steps, [[*each[:-1], own] for each in UNUSED_WITH_GRADIENTS]
            )


class TestOverGloo(Cases, RanksCase):
    pass


@has_shared_memory_groups
class TestOverSharedMemory(Cases, RanksCase):
    kind = "shm"


if __name__ == "__main__":
    unittest.main()
