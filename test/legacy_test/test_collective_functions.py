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
"""The functions of paddle.distributed.communication, with any backend."""

from __future__ import annotations

import importlib
import unittest
from unittest import mock

import paddle
import paddle.distributed as dist
from paddle.distributed.communication.group import Group


def module_of(name):
    # The package has the function under the same name.
    return importlib.import_module(f"paddle.distributed.communication.{name}")


class TestScatterObjectList(unittest.TestCase):
    def test_all_messages_are_sent_in_the_given_group(self):
        scatter, group = module_of("scatter"), Group(0, 0, [0])
        with mock.patch.object(scatter, "convert_tensor_to_object"):
            with mock.patch.object(scatter, "scatter") as send:
                with mock.patch.object(scatter, "stream") as stream:
                    dist.scatter_object_list([], ["an object"], 0, group)
        stream.broadcast.assert_called_once_with(mock.ANY, 0, group)
        groups = [call.args[-1] for call in send.call_args_list]
        self.assertEqual(groups, [group, group])


class TestReduceScatter(unittest.TestCase):
    def test_parts_of_other_sizes_than_the_result_are_refused(self):
        process_group = mock.Mock()
        group = Group(0, 0, [0, 1], process_group)
        for sizes in ((3, 1), (1, 1), (2,), (2, 2, 2)):
            parts = [paddle.ones([size]) for size in sizes]
            with self.assertRaisesRegex(ValueError, "one part of that size"):
                dist.reduce_scatter(paddle.zeros([2]), parts, group=group)
        process_group.reduce_scatter.assert_not_called()


class TestAverage(unittest.TestCase):
    """With a backend that only sums, such as gloo."""

    def setUp(self):
        self.process_group = mock.Mock()
        self.process_group.name.return_value = "GLOO"
        self.group = Group(0, 0, [0, 1], self.process_group)

    def test_all_reduce_and_reduce_divide_and_add(self):
        for name, reduce in (
            ("all_reduce", dist.all_reduce),
            ("reduce", lambda x, op, group: dist.reduce(x, 0, op, group)),
        ):
            for numbers, halves in (
                ([2.0, 5.0], [1.0, 2.5]),
                ([2.0 + 5.0j], [1.0 + 2.5j]),
            ):
                x = paddle.to_tensor(numbers)
                reduce(x, dist.ReduceOp.AVG, self.group)
                call = getattr(self.process_group, name).call_args
                self.assertIs(call.args[0], x)
                self.assertIn(paddle.base.core.ReduceOp.SUM, call.args)
                self.assertEqual(x.tolist(), halves)

    def test_a_rank_outside_of_the_group_keeps_its_tensor(self):
        others = Group(-1, 5, [1, 2])
        for dtype in ("float32", "int64"):
            x = paddle.to_tensor([2], dtype)
            dist.all_reduce(x, dist.ReduceOp.AVG, others)
            dist.reduce(x, 1, dist.ReduceOp.AVG, others)
            self.assertEqual(x.tolist(), [2])

    def test_reduce_scatter_divides_its_parts_and_keeps_them(self):
        parts = [paddle.to_tensor([2.0]), paddle.to_tensor([6.0])]
        dist.reduce_scatter(
            paddle.zeros([1]), parts, dist.ReduceOp.AVG, group=self.group
        )
        _, sent, op, _ = self.process_group.reduce_scatter.call_args.args
        self.assertEqual([part.tolist() for part in sent], [[1.0], [3.0]])
        self.assertEqual(op, paddle.base.core.ReduceOp.SUM)
        self.assertEqual([part.tolist() for part in parts], [[2.0], [6.0]])

    def test_integers_are_refused(self):
        # A division by the number of ranks would make them 0.
        x = paddle.to_tensor([3])
        for reduce in (
            lambda: dist.all_reduce(x, dist.ReduceOp.AVG, self.group),
            lambda: dist.reduce(x, 0, dist.ReduceOp.AVG, self.group),
            lambda: dist.reduce_scatter(
                x, [x, x], dist.ReduceOp.AVG, self.group
            ),
        ):
            with self.assertRaisesRegex(ValueError, "paddle.int64"):
                reduce()
        self.assertEqual(x.tolist(), [3])


if __name__ == "__main__":
    unittest.main()
