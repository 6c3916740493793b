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
"""The reducer of paddle.DataParallel over shm groups."""

from __future__ import annotations

import unittest

import numpy as np
from shm_group_base import ON_LINUX, RanksTestCase, join_default_group
from test_shm_machines import join_on

import paddle
import paddle.distributed as dist
from paddle import nn
from paddle.base import core

WIDTH = 256  # a weight takes a quarter MiB, the size of a bucket


def reach_first_layer_alone() -> list[float]:
    """
    Rank 1 starts backward only after rank 0 has computed all its gradients. So
    rank 0 must not wait for rank 1 during backward.
    """
    dist.init_parallel_env()
    store = core.create_or_get_global_tcp_store()
    paddle.seed(7)
    layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(6)))
    model = paddle.DataParallel(
        layers, comm_buffer_size=0.25, last_comm_buffer_size=0.25
    )
    first = layers[0].weight
    first.register_hook(lambda gradient: store.set("reached", "yes"))
    loss = model(paddle.full([4, WIDTH], dist.get_rank() + 1.0)).sum()
    if dist.get_rank() == 1:
        store.wait("reached")
    loss.backward()
    return first.grad.sum(axis=1).tolist()


def train() -> bytes:
    """Returns the parameters after three steps."""
    paddle.seed(3)
    model = paddle.DataParallel(nn.Linear(16, 4))
    optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
    data = np.random.RandomState(dist.get_rank())
    for _ in range(3):
        x = paddle.to_tensor(data.rand(8, 16).astype("float32"))
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.clear_grad()
    return b"".join(p.numpy().tobytes() for p in model.parameters())


@unittest.skipUnless(ON_LINUX, "the backend shm needs Linux")
class TestOneMachine(RanksTestCase):
    def test_gradients_are_reduced_during_the_backward_pass(self):
        # If the reducer waited, rank 0 would get an error after this timeout.
        ranks = self.start(2, PADDLE_PG_TIMEOUT="20000")
        found = ranks.call(reach_first_layer_alone)
        self.assertEqual(found[0], found[1])
        self.assertTrue(any(found[0]))


@unittest.skipUnless(ON_LINUX, "the backend shm needs Linux")
class TestSeveralMachines(RanksTestCase):
    def trained_on(self, machines):
        ranks = self.start(len(machines))
        ranks.call(join_on, machines)
        return ranks.call(train)

    def test_all_ranks_get_the_same_parameters(self):
        self.assertEqual(len(set(self.trained_on(["a", "b", "b"]))), 1)

    def test_two_machines_give_the_same_bits_as_gloo(self):
        gloo = self.start(2, backend="gloo")
        gloo.call(join_default_group)
        self.assertEqual(self.trained_on(["a", "b"]), gloo.call(train))


if __name__ == "__main__":
    unittest.main()
