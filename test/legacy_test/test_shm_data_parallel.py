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
"""paddle.DataParallel over an shm group."""

from __future__ import annotations

import hashlib
import itertools
import time
import unittest

import numpy as np
from shm_group_base import ON_LINUX, RanksTestCase

import paddle
import paddle.distributed as dist
from paddle import nn
from paddle.base import core

WIDTH = 256  # a weight takes a quarter MiB, the size of a bucket


class Model(nn.Layer):
    def __init__(self, sparse: bool):
        super().__init__()
        self.embedding = nn.Embedding(50, WIDTH, sparse=sparse)
        self.layers = nn.LayerList([nn.Linear(WIDTH, WIDTH) for _ in range(6)])
        self.unused = nn.Linear(WIDTH, 1)

    def forward(self, x: paddle.Tensor, use_all: bool) -> paddle.Tensor:
        x = self.embedding(x)
        for layer in self.layers:
            x = nn.functional.relu(layer(x))
        return (self.unused(x) if use_all else x).mean()


def _parallel(sparse: bool, find_unused: bool) -> paddle.DataParallel:
    paddle.seed(7)
    return paddle.DataParallel(
        Model(sparse),
        comm_buffer_size=0.25,
        last_comm_buffer_size=0.25,
        find_unused_parameters=find_unused,
    )


def train(sparse: bool, find_unused: bool, late: int) -> bytes:
    """
    Returns the parameters after three steps. Rank `late` starts each step late.
    """
    dist.init_parallel_env()
    rank = dist.get_rank()
    model = _parallel(sparse, find_unused)
    optimizer = paddle.optimizer.SGD(0.5, parameters=model.parameters())
    data = np.random.RandomState(rank)
    for step in range(3):
        if rank == late:
            # Meanwhile, reductions of the other ranks cannot complete.
            time.sleep(0.2)
        x = paddle.to_tensor(data.randint(0, 50, [8 + rank]))
        # If parameters may be unused, one rank leaves some out in each step.
        loss = model(x, not (find_unused and rank == step % 2))
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
    return b"".join(p.numpy().tobytes() for p in model.parameters())


def average_by_eager_reducer(late: int, counts_on_streams: bool) -> str:
    """
    Returns a hash of the gradients averaged by libpaddle's own reducer. Rank
    `late` starts its backward pass late.
    """
    dist.init_parallel_env()
    paddle.set_flags(
        {"FLAGS_use_stream_safe_cuda_allocator": counts_on_streams}
    )
    paddle.seed(7)
    layers = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(3)])
    parameters = layers.parameters()
    reducer = core.EagerReducer(
        parameters,
        [[i] for i in reversed(range(len(parameters)))],
        [False] * len(parameters),
        dist.communication.group._get_global_group().process_group,
        [WIDTH, WIDTH],
        False,
    )
    loss = layers(paddle.full([4, WIDTH], dist.get_rank() + 1.0)).mean()
    reducer.prepare_for_backward([loss])
    if dist.get_rank() == late:
        # Meanwhile, reductions of the other rank cannot complete.
        time.sleep(0.2)
    loss.backward()
    gradients = b"".join(p.grad.numpy().tobytes() for p in parameters)
    return hashlib.sha256(gradients).hexdigest()


@unittest.skipUnless(ON_LINUX, "the backend shm needs Linux")
class TestShmDataParallel(RanksTestCase):
    def parameters(self, backend, *args, size=2):
        return self.start(size, backend=backend).call(train, *args)

    def test_training_gives_the_same_bits_as_gloo(self):
        # DataParallel does not support both options together.
        for options in ((False, False), (True, False), (False, True)):
            with self.subTest(options):
                gloo = self.parameters("gloo", *options, -1)
                for late in (-1, 0, 1):
                    found = self.parameters("shm", *options, late)
                    self.assertEqual(found, gloo)

    def test_eager_reducer_gives_the_same_bits_as_gloo(self):
        gloo = self.start(2, backend="gloo").call(
            average_by_eager_reducer, -1, True
        )
        for late, counts_on_streams in itertools.product((0, 1), (True, False)):
            with self.subTest(late=late, counts_on_streams=counts_on_streams):
                found = self.start(2).call(
                    average_by_eager_reducer, late, counts_on_streams
                )
                self.assertEqual(found, gloo)

    def test_four_ranks_have_the_same_parameters(self):
        found = self.parameters("shm", False, False, 2, size=4)
        self.assertEqual(len(set(found)), 1)
        self.assertEqual(
            self.parameters("shm", False, False, -1, size=4), found
        )


if __name__ == "__main__":
    unittest.main()
