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
"""Data parallel training in which a rank is killed."""

from __future__ import annotations

import os
import random
import signal
import threading
import unittest

import numpy as np
from data_parallel_base import (
    ONE_PER_BUCKET,
    Ranks,
    has_shared_memory_groups,
    loss_of,
    new_layer,
    random_batches,
    train_alone,
    values,
)

import paddle
import paddle.distributed as dist

SIZE = 3


def kill_this_process(gradient=None) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    # This thread may run for a moment after the signal.
    threading.Event().wait()


def train_until_a_rank_dies(group, options, before_backward) -> dict:
    """Returns a surviving rank's errors, steps and parameters."""
    layer = new_layer(0)
    wrapped = paddle.DataParallel(
        layer,
        group=group,
        comm_buffer_size=ONE_PER_BUCKET,
        last_comm_buffer_size=ONE_PER_BUCKET,
        **options,
    )
    optimizer = paddle.optimizer.Momentum(0.1, parameters=layer.parameters())
    batches, done = random_batches(4, SIZE), []
    try:
        while True:
            batch = batches[len(done) % 4]
            loss = loss_of(wrapped, batch[group.rank])
            before_backward(group, layer, len(done))
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
            done.append(batch)
    except RuntimeError as error:
        return {
            "error": str(error),
            "later": error_of_next_step(wrapped, batches[0][group.rank]),
            "steps": len(done),
            "group": values(layer),
            "alone": train_alone(new_layer(0), done, SIZE),
        }


def error_of_next_step(wrapped, part) -> str:
    try:
        loss_of(wrapped, part).backward()
    except RuntimeError as error:
        return str(error)
    return "none"


def kill_rank_2_in_the_middle(group, layer, step) -> None:
    """Kills rank 2 in backward, after the gradients of the last layer."""
    if step == 3:
        # A slower rank may not have completed the step before.
        dist.all_reduce(paddle.ones([1]), group=group)
        if group.rank == 2:
            layer[2].weight.register_hook(kill_this_process)


class KillRank1Later:
    def __init__(self, seconds: float):
        self._seconds = seconds

    def __call__(self, group, layer, step) -> None:
        if group.rank == 1 and step == 1:
            threading.Timer(self._seconds, kill_this_process).start()


class FailureCases:
    """Tests that survivors get an error long before the group's timeout.

    A group's timeout is 30 minutes; the tests wait for `WAIT_S` seconds.
    """

    def survivors(self, *args) -> list:
        # This process has not computed anything, so forked ranks can compute.
        ranks = Ranks(SIZE, "fork")
        self.addCleanup(ranks.end)
        answers = ranks.call(self.kind, train_until_a_rank_dies, *args)
        self.assertIn(-signal.SIGKILL, answers)
        answers.remove(-signal.SIGKILL)
        return answers

    def test_killing_a_rank_in_backward_fails_the_step_on_all_ranks(self):
        for options in ({}, {"gradient_as_bucket_view": True}):
            for found in self.survivors(options, kill_rank_2_in_the_middle):
                with self.subTest(options=options):
                    self.assertEqual(found["steps"], 3)
                    self.assert_state_of_last_complete_step(found)
                    self.assert_names_rank(found["error"], 2)
                    self.assert_names_rank(found["later"], 2)


class TestOverGloo(FailureCases, unittest.TestCase):
    kind = "gloo"

    def assert_state_of_last_complete_step(self, found):
        # Gloo adds in another order.
        for one, other in zip(found["group"], found["alone"]):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)

    def assert_names_rank(self, error, rank):
        # Gloo names the address whose connection was closed.
        self.assertNotEqual(error, "none")


@has_shared_memory_groups
class TestOverSharedMemory(FailureCases, unittest.TestCase):
    kind = "shm"

    def assert_state_of_last_complete_step(self, found):
        for one, other in zip(found["group"], found["alone"]):
            self.assertEqual(one.tobytes(), other.tobytes())

    def assert_names_rank(self, error, rank):
        self.assertRegex(error, f"Rank {rank} .process \\d+. has died")

    def test_killing_a_rank_at_any_time_raises_on_the_others(self):
        seed = random.randrange(2**32)
        chosen = random.Random(seed)
        for _ in range(4):
            delay = KillRank1Later(chosen.uniform(0, 0.05))
            for found in self.survivors({}, delay):
                with self.subTest(seed=seed):
                    self.assert_state_of_last_complete_step(found)
                    self.assert_names_rank(found["error"], 1)


if __name__ == "__main__":
    unittest.main()
