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
    EACH_ALONE,
    Ranks,
    has_shared_memory_groups,
    loss_of,
    new_layer,
    random_batches,
    train_alone,
    values,
)

import paddle

SIZE = 3


def kill_this_process(gradient=None) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    # The last of its threads stops a little later.
    threading.Event().wait()


def train_until_a_rank_dies(group, options, before_backward) -> dict:
    """Returns what a rank that is left knows after its first error."""
    layer = new_layer(0)
    wrapped = paddle.DataParallel(
        layer,
        group=group,
        comm_buffer_size=EACH_ALONE,
        last_comm_buffer_size=EACH_ALONE,
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
    """The gradients of the last layer have come already."""
    if group.rank == 2 and step == 3:
        layer[2].weight.register_hook(kill_this_process)


class KillRank1Later:
    def __init__(self, seconds: float):
        self._seconds = seconds

    def __call__(self, group, layer, step) -> None:
        if group.rank == 1 and step == 1:
            threading.Timer(self._seconds, kill_this_process).start()


class FailureCases:
    """The timeout of a group is 30 minutes: an error that comes by it fails the
    tests, which wait for `WAIT_S` seconds."""

    def survivors(self, *args) -> list:
        # This process has computed nothing: forked ones may compute.
        ranks = Ranks(SIZE, "fork")
        self.addCleanup(ranks.end)
        answers = ranks.call(self.kind, train_until_a_rank_dies, *args)
        self.assertIn(-signal.SIGKILL, answers)
        answers.remove(-signal.SIGKILL)
        return answers

    def test_a_rank_that_is_killed_in_backward_ends_the_step_of_all(self):
        for options in ({}, {"gradient_as_bucket_view": True}):
            for found in self.survivors(options, kill_rank_2_in_the_middle):
                with self.subTest(options=options):
                    self.assertEqual(found["steps"], 3)
                    self.assert_as_after_the_last_whole_step(found)
                    self.assert_told(found["error"], 2)
                    self.assert_told(found["later"], 2)


class TestOverGloo(FailureCases, unittest.TestCase):
    kind = "gloo"

    def assert_as_after_the_last_whole_step(self, found):
        # Gloo adds in an order of its own.
        for one, other in zip(found["group"], found["alone"]):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)

    def assert_told(self, error, rank):
        # Gloo names the address whose connection was closed.
        self.assertNotEqual(error, "none")


@has_shared_memory_groups
class TestOverSharedMemory(FailureCases, unittest.TestCase):
    kind = "shm"

    def assert_as_after_the_last_whole_step(self, found):
        for one, other in zip(found["group"], found["alone"]):
            self.assertEqual(one.tobytes(), other.tobytes())

    def assert_told(self, error, rank):
        self.assertRegex(error, f"Rank {rank} .process \\d+. has died")

    def test_a_rank_that_is_killed_at_any_time_ends_the_others(self):
        seed = random.randrange(2**32)
        chosen = random.Random(seed)
        for _ in range(4):
            delay = KillRank1Later(chosen.uniform(0, 0.05))
            for found in self.survivors({}, delay):
                with self.subTest(seed=seed):
                    self.assert_as_after_the_last_whole_step(found)
                    self.assert_told(found["error"], 1)


if __name__ == "__main__":
    unittest.main()
