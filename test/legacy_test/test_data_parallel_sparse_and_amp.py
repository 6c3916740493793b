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
"""Sparse gradients and mixed precision under paddle.DataParallel."""

from __future__ import annotations

import unittest

import numpy as np
from data_parallel_base import RanksCase, has_shared_memory_groups

import paddle
from paddle import nn


class Words(nn.Layer):
    """An embedding table, of which a step uses some rows, and a dense layer."""

    def __init__(self, is_sparse=True):
        super().__init__()
        paddle.seed(0)
        self.table = nn.Embedding(6, 3, sparse=is_sparse)
        self.linear = nn.Linear(3, 2)

    def forward(self, words):
        if words is None:
            return self.linear(paddle.ones([1, 3]))
        return self.linear(self.table(words))


def words_of(rank, step) -> paddle.Tensor | None:
    """Returns `rank + 1` words."""
    return paddle.to_tensor([(rank + step + n) % 6 for n in range(rank + 1)])


def train(group, is_sparse, options) -> list:
    layer = Words(is_sparse)
    wrapped = paddle.DataParallel(layer, group=group, **options)
    optimizer = paddle.optimizer.SGD(0.1, parameters=layer.parameters())
    for step in range(3):
        wrapped(words_of(group.rank, step)).square().mean().backward()
        optimizer.step()
        optimizer.clear_grad()
    return [each.numpy() for each in layer.parameters()]


def dense_of(layer) -> np.ndarray:
    gradient = layer.table.weight.grad
    rows = gradient.get_selected_rows().rows()
    values = gradient._get_tensor_from_selected_rows().numpy()
    dense = np.zeros([6, 3], "float32")
    np.add.at(dense, list(rows), values)
    return dense


def gradients_of_words(group, counts) -> list:
    """Returns gradients with `counts[rank]` words; 0 skips the table."""
    layer = Words()
    wrapped = paddle.DataParallel(
        layer, group=group, find_unused_parameters=True
    )
    count = counts[group.rank]
    words = paddle.arange(count) if count else None
    wrapped(words).sum().backward()
    alone = np.zeros([6, 3], "float32")
    for each in counts:
        if each:
            layer_alone = Words()
            layer_alone(paddle.arange(each)).sum().backward()
            alone += dense_of(layer_alone) / len(counts)
    gradient = layer.table.weight.grad
    return [None if gradient is None else dense_of(layer), alone]


def add_up_words(group) -> list:
    layer = Words()
    wrapped = paddle.DataParallel(layer, group=group)
    with wrapped.no_sync():
        wrapped(paddle.to_tensor([group.rank])).sum().backward()
    wrapped(paddle.to_tensor([2])).sum().backward()
    return dense_of(layer).any(axis=1).tolist()


class Tied(nn.Layer):
    """The table is also used as a matrix, so its gradient is dense."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(6, 3, sparse=True)

    def forward(self, words):
        return self.table(words) @ self.table.weight.t()


def tie_weights(group) -> None:
    wrapped = paddle.DataParallel(Tied(), group=group)
    wrapped(paddle.to_tensor([1])).sum().backward()


class Table(nn.Layer):
    """A table whose sparse gradients DataParallel cannot predict."""

    def __init__(self):
        super().__init__()
        self.weight = self.create_parameter([6, 3])

    def forward(self, words):
        return nn.functional.embedding(words, self.weight, sparse=True)


def return_undeclared_sparse_gradients(group) -> None:
    paddle.DataParallel(Table(), group=group)(
        paddle.to_tensor([1])
    ).sum().backward()


def make_master_gradients(group, options) -> list:
    """Casts gradients at the end of backward, like master_grad in amp."""
    layer = nn.Layer()
    layer.weight = layer.create_parameter([3], dtype="bfloat16")
    wrapped = paddle.DataParallel(layer, group=group, **options)
    found = []
    for _ in range(2):
        outputs = layer.weight.astype("float32") * (group.rank + 1.0)
        wrapped._after_forward(outputs)
        paddle.base.core.eager._add_backward_final_hook(
            lambda: paddle.base.core.eager.set_master_grads([layer.weight])
        )
        outputs.sum().backward()
        gradient = layer.weight.grad
        found.append([str(gradient.dtype), gradient.tolist()])
        layer.weight.clear_gradient(set_to_zero=False)
    return found


class Weight(nn.Layer):
    def __init__(self, dtype):
        super().__init__()
        self.weight = self.create_parameter([4], dtype=dtype)

    def forward(self, x):
        return self.weight.astype("float32") * x


def overflow_on_one_rank(group, dtype) -> list:
    """Returns for each of three steps whether GradScaler finds an infinity.

    The gradients of the second step are the largest float16; their sum would
    overflow.
    """
    layer = Weight(dtype)
    wrapped = paddle.DataParallel(layer, group=group)
    found = []
    for scale in (float("inf") if group.rank == 1 else 1.0, 65504.0, 1.0):
        wrapped(paddle.full([4], scale)).sum().backward()
        # On the CPU, the check has no 16-bit kernel.
        _, found_inf = paddle._C_ops.check_finite_and_unscale_(
            [layer.weight.grad.astype("float32")], paddle.ones([1])
        )
        found.append(found_inf.item())
        layer.clear_gradients()
    return found


class Elementwise(nn.Layer):
    """Fits a line, with the operations that the CPU has for 16-bit numbers.

    It multiplies and subtracts bfloat16, but no float16.
    """

    def __init__(self, dtype):
        super().__init__()
        paddle.seed(0)
        self.slope = self.create_parameter([64], dtype=dtype)
        self.offset = self.create_parameter([64], dtype=dtype)

    def forward(self, x, y):
        slope, offset = self.slope, self.offset
        if slope.dtype == paddle.float16:
            slope, offset = slope.astype("float32"), offset.astype("float32")
        error = slope * x.astype(slope.dtype) - (y.astype(slope.dtype) - offset)
        return (error * error).sum()


class Descent:
    """Gradient descent; for float16 in float32, for which SGD has a kernel."""

    def __init__(self, layer):
        self._parameters = layer.parameters()
        self._optimizer = paddle.optimizer.SGD(
            0.05, parameters=self._parameters
        )

    def step(self) -> None:
        if self._parameters[0].dtype == paddle.bfloat16:
            self._optimizer.step()
        else:
            for each in self._parameters:
                change = 0.05 * each.grad.astype("float32")
                new = each.detach().astype("float32") - change
                each.set_value(new.astype(each.dtype))
        self._optimizer.clear_grad()


def points_of(step, rank) -> tuple:
    paddle.seed(10 * step + rank)
    return paddle.rand([64]), paddle.rand([64])


def descend_alone(dtype, steps, size) -> list:
    """Descends on one rank, along means that are rounded once."""
    layer = Elementwise(dtype)
    descent = Descent(layer)
    for step in range(steps):
        sums = [0.0, 0.0]
        for rank in range(size):
            layer(*points_of(step, rank)).backward()
            for number, each in enumerate(layer.parameters()):
                sums[number] = sums[number] + each.grad.astype("float32")
                each.clear_gradient(set_to_zero=False)
        for total, each in zip(sums, layer.parameters()):
            each.grad = (total / size).astype(dtype)
        descent.step()
    return as_float32(layer)


def as_float32(layer) -> list:
    return [each.astype("float32").numpy() for each in layer.parameters()]


def descend(group, dtype, options) -> dict:
    """Returns the parameters of 16 bits before and after steps."""
    layer = Elementwise(dtype)
    before = as_float32(layer)
    wrapped = paddle.DataParallel(layer, group=group, **options)
    descent = Descent(layer)
    for step in range(5):
        wrapped(*points_of(step, group.rank)).backward()
        descent.step()
    return {
        "before": before,
        "group": as_float32(layer),
        "alone": descend_alone(dtype, 5, group.nranks),
    }


class SparseAndAmpCases:
    def test_sparse_and_dense_gradients_train_equally(self):
        for options in (
            {},
            {"find_unused_parameters": True},
            {"static_graph": True},
            {"gradient_as_bucket_view": True},
        ):
            sparse = self.call(train, True, options)
            dense = self.call(train, False, options)
            for found, expected in zip(sparse, dense):
                self.assert_same_bits(found, sparse[0])
                for one, other in zip(found, expected):
                    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)

    def test_ranks_may_use_different_numbers_of_rows(self):
        for counts in ([1, 4, 2], [3, 0, 1], [0, 2, 0]):
            words = counts[: self.size]
            for found, expected in self.call(gradients_of_words, words):
                np.testing.assert_allclose(found, expected, rtol=1e-6)

    def test_a_table_that_no_rank_uses_has_no_gradient(self):
        for found, _ in self.call(gradients_of_words, [0] * self.size):
            self.assertIsNone(found)

    def test_rows_from_no_sync_are_averaged_with_the_next_step(self):
        used = [True, True, True, False, False, False]
        self.assertEqual(self.call(add_up_words), [used] * self.size)

    def test_training_16_bit_parameters_equals_training_in_one_process(self):
        for dtype in ("bfloat16", "float16"):
            for options in ({}, {"gradient_as_bucket_view": True}):
                with self.subTest(dtype=dtype, options=options):
                    self.assert_descends(dtype, options)

    def assert_descends(self, dtype, options):
        found = self.call(descend, dtype, options)
        for each in found:
            self.assert_same_bits(each["group"], found[0]["group"])
            for before, after in zip(each["before"], each["group"]):
                self.assertFalse((before == after).any())
            if self.size == 2:
                self.assert_same_bits(each["group"], each["alone"])
            # The group may round the sum of each two ranks.
            for one, other in zip(each["group"], each["alone"]):
                np.testing.assert_allclose(one, other, rtol=2**-6, atol=2**-7)

    def test_master_gradients_are_averages(self):
        mean = (self.size + 1) / 2
        for options in ({}, {"gradient_as_bucket_view": True}):
            for found in self.call(make_master_gradients, options):
                self.assertEqual(found, [["paddle.float32", [mean] * 3]] * 2)

    def test_an_overflow_on_one_rank_is_found_on_all(self):
        expected = [[True, False, False]] * self.size
        for dtype in ("float16", "bfloat16", "float32"):
            with self.subTest(dtype=dtype):
                found = self.call(overflow_on_one_rank, dtype)
                self.assertEqual(found, expected)

    def test_a_step_that_overflows_on_one_rank_is_skipped_on_all(self):
        for options in (
            {},
            {"gradient_as_bucket_view": True},
            {"find_unused_parameters": True},
            {"static_graph": True},
        ):
            with self.subTest(options=options):
                self.assert_step_skipped_on_all(options)


class TestOverGloo(SparseAndAmpCases, RanksCase):
    def test_an_error_names_gradients_with_unexpected_sparsity(self):
        for error in self.errors(tie_weights):
            self.assertRegex(
                error,
                r"TypeError: The gradient of 'table.weight' \(of a Embedding\) "
                r"is dense, but .* sparse=False",
            )
        for error in self.errors(return_undeclared_sparse_gradients):
            self.assertRegex(
                error, r"TypeError: The gradient of 'weight' .* is sparse, but"
            )


@has_shared_memory_groups
class TestOverSharedMemory(SparseAndAmpCases, RanksCase):
    kind = "shm"


class TestOverLateGroup(SparseAndAmpCases, RanksCase):
    kind = "late"


class TestThreeRanks(SparseAndAmpCases, RanksCase):
    size = 3


@has_shared_memory_groups
class TestThreeRanksOverSharedMemory(SparseAndAmpCases, RanksCase):
    size = 3
    kind = "shm"


if __name__ == "__main__":
    unittest.main()
