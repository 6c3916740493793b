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
"""The statistics of paddle.DataParallel: its buckets and times."""

from __future__ import annotations

import itertools
import time
import unittest
from unittest import mock

from data_parallel_base import ONE_PER_BUCKET, RanksCase, loss_of, new_layer

import paddle
from paddle import nn
from paddle.distributed.data_parallel import statistics


def train(group, steps) -> list:
    layer = paddle.DataParallel(
        new_layer(0), group=group, comm_buffer_size=ONE_PER_BUCKET
    )
    for _ in range(steps):
        loss_of(layer, paddle.ones([2, 6])).backward()
    with layer.no_sync():
        loss_of(layer, paddle.ones([2, 6])).backward()
    layer(paddle.ones([2, 6]))
    return [layer.statistics(), layer.statistics_table()]


class Classifier(nn.Layer):
    """In eval mode, its outputs need no gradients."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, inputs):
        outputs = self.linear(inputs)
        return outputs if self.training else outputs.argmax(-1)


def evaluate(wrapped) -> None:
    wrapped.eval()
    wrapped(paddle.ones([2, 6]))
    wrapped.train()


def fail(wrapped) -> None:
    try:
        wrapped(paddle.ones([2, 7]))
    except ValueError:
        return
    raise AssertionError("no error in forward")


def forward_time_after(group, forward) -> float:
    """Returns the time of the forward of a step, after another forward.

    The clock counts its readings, and jumps to an hour after that forward.
    """
    readings = itertools.count()
    with mock.patch.object(time, "perf_counter", lambda: next(readings)):
        wrapped = paddle.DataParallel(Classifier(), group=group)
        forward(wrapped)
        readings = itertools.count(3600)
        loss_of(wrapped, paddle.ones([2, 6])).backward()
    return wrapped.statistics()["forward_ms"]


class TestRanks(RanksCase):
    def test_the_time_after_an_evaluation_or_an_error_is_not_forward(self):
        for forward in (evaluate, fail):
            with self.subTest(forward=forward.__name__):
                found = self.call(forward_time_after, forward)
                self.assertEqual(found, [1000.0] * 2)

    def test_buckets_are_listed_in_the_order_of_communication(self):
        for found, _ in self.call(train, 1):
            self.assertEqual(
                [bucket["bytes"] for bucket in found["buckets"]],
                [12, 384, 128, 4096, 128, 768],
            )
            self.assertEqual(found["buckets"][-1]["parameters"], ["0.weight"])

    def test_only_averaged_steps_are_counted(self):
        self.assertEqual(
            [each["steps"] for each, _ in self.call(train, 3)], [3] * 2
        )

    def test_the_times_of_a_step_are_consistent(self):
        for found, _ in self.call(train, 3):
            self.assertGreater(found["forward_ms"], 0)
            self.assertGreater(found["communication_ms"], found["waiting_ms"])
            self.assertGreater(found["waiting_ms"], 0)
            self.assertTrue(0 <= found["hidden_share"] <= 1)

    def test_the_table_has_a_line_for_each_bucket(self):
        for _, table in self.call(train, 2):
            self.assertTrue(table.startswith("2 steps, means in ms\n"), table)
            self.assertRegex(table, r"\n5 +0.8  0.weight$")


class TestTimes(unittest.TestCase):
    def test_communication_is_hidden_unless_backward_waits(self):
        times = statistics.StepTimes()
        clock = iter([0.0, 1.0, 1.5, 9.0, 10.5, 11.0])
        with mock.patch.object(time, "perf_counter", lambda: next(clock)):
            times.mark("communication")
            times.mark("waiting")
            times.add("waiting")
            times.mark("waiting")
            times.add("waiting")
            times.add("communication")
        times.steps = 2
        found = statistics.as_dict(times, [])
        self.assertEqual(found["communication_ms"], 5500.0)
        self.assertEqual(found["waiting_ms"], 1000.0)
        self.assertAlmostEqual(found["hidden_share"], 1 - 2 / 11)

    def test_a_single_rank_has_no_statistics(self):
        with self.assertWarns(UserWarning):
            layer = paddle.DataParallel(new_layer(0))
        with self.assertRaisesRegex(RuntimeError, "one rank has no statistics"):
            layer.statistics()


if __name__ == "__main__":
    unittest.main()
