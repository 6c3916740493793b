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

from __future__ import annotations

import unittest

import google.protobuf
import numpy as np
from shm_group_base import ON_LINUX, RanksTestCase, join_default_group

import paddle
import paddle.distributed as dist
from paddle import nn
from paddle.distributed import fleet

PROTOBUF = int(google.protobuf.__version__.split(".")[0])


def train(degree: str) -> bytes:
    """Returns the parameters after three steps of a model on two ranks."""
    join_default_group()
    strategy = fleet.DistributedStrategy()
    strategy.hybrid_configs = {"dp_degree": 1, degree: 2}
    fleet.init(is_collective=True, strategy=strategy)
    paddle.seed(7)
    layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = fleet.distributed_optimizer(
        paddle.optimizer.AdamW(0.1, parameters=layers.parameters())
    )
    model = fleet.distributed_model(layers)
    data = np.random.RandomState(dist.get_rank())
    for _ in range(3):
        x = paddle.to_tensor(data.rand(4, 8).astype("float32"))
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.clear_grad()
    return b"".join(p.numpy().tobytes() for p in layers.parameters())


@unittest.skipUnless(ON_LINUX, "the backend shm needs Linux")
@unittest.skipIf(
    PROTOBUF >= 7, "fleet.init of Paddle 3.3.0 needs protobuf 6 or older"
)
class TestShmFleet(RanksTestCase):
    def assert_trains_as_with_gloo(self, degree):
        found, expected = (
            self.start(2, backend=backend).call(train, degree)
            for backend in ("shm", "gloo")
        )
        self.assertEqual(found, expected)
        self.assertEqual(found[0], found[1])

    def test_data_parallel_training_gives_the_same_bits_as_gloo(self):
        self.assert_trains_as_with_gloo("dp_degree")

    def test_training_with_a_sharded_optimizer_gives_the_same_bits_as_gloo(
        self,
    ):
        self.assert_trains_as_with_gloo("sharding_degree")


if __name__ == "__main__":
    unittest.main()
