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
"""paddle.distributed.Join: ranks with different numbers of inputs."""

from __future__ import annotations

import unittest

import numpy as np
from data_parallel_base import (
    RanksCase,
    gradients,
    has_shared_memory_groups,
    loss_of,
    new_layer,
    random_batches,
    values,
)

import paddle
import paddle.distributed as dist
from paddle import nn

OPTIONS = (
    {},
    {"gradient_as_bucket_view": True},
    {"find_unused_parameters": True},
    {"static_graph": True},
)
# For each number of ranks, how many inputs each rank has.
COUNTS = {2: ([1, 4], [3, 2], [0, 2]), 3: ([1, 4, 2], [3, 2, 2], [0, 2, 0])}


def train(group, counts, divides_by_all, options, layer=None) -> list:
    """Trains on `counts[rank]` batches."""
    layer = layer or new_layer(group.rank)
    wrapped = paddle.DataParallel(
        layer, group=group, comm_buffer_size=0.002, **options
    )
    optimizer = paddle.optimizer.SGD(0.1, parameters=layer.parameters())
    batches = random_batches(max(counts), group.nranks)
    with dist.Join([wrapped], divide_by_initial_world_size=divides_by_all):
        for batch in batches[: counts[group.rank]]:
            loss_of(wrapped, batch[group.rank]).backward()
            optimizer.step()
            optimizer.clear_grad()
    return values(layer)


def train_alone(counts, divides_by_all) -> list:
    layer = new_layer(0)
    optimizer = paddle.optimizer.SGD(0.1, parameters=layer.parameters())
    for step, batch in enumerate(random_batches(max(counts), len(counts))):
        active = [rank for rank, count in enumerate(counts) if step < count]
        divisor = len(counts) if divides_by_all else len(active)
        for rank in active:
            (loss_of(layer, batch[rank]) / divisor).backward()
        optimizer.step()
        optimizer.clear_grad()
    return values(layer)


def train_and_compare(group, counts, divides_by_all, options) -> list:
    found = train(group, counts, divides_by_all, options)
    return [found, train_alone(counts, divides_by_all)]


def train_on_after_join(group, options) -> list:
    layer = new_layer(0)
    wrapped = paddle.DataParallel(layer, group=group, **options)
    for count in (1 + 2 * group.rank, 2 * group.rank):
        with dist.Join([wrapped]):
            for _ in range(count):
                loss_of(wrapped, paddle.ones([2, 6])).backward()
                layer.clear_gradients()
    loss_of(wrapped, paddle.full([2, 6], group.rank + 1.0)).backward()
    alone = new_layer(0)
    for rank in range(group.nranks):
        loss = loss_of(alone, paddle.full([2, 6], rank + 1.0))
        (loss / group.nranks).backward()
    return [gradients(layer), gradients(alone)]


def train_batch_norm(group) -> list:
    layer = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1D(4))
    train(group, [1, 4], True, {}, layer)
    return [each.numpy() for each in layer.state_dict().values()]


def train_with_a_parameter_of_each_rank(group) -> float:
    layer = nn.Linear(2, 2)
    layer.bias.no_sync = True
    layer.bias.set_value(paddle.full([2], float(group.rank)))
    wrapped = paddle.DataParallel(layer, group=group)
    layer.bias.set_value(paddle.full([2], float(group.rank)))
    with dist.Join([wrapped]):
        for _ in range(group.rank + 1):
            wrapped(paddle.ones([1, 2])).sum().backward()
            layer.clear_gradients()
    return layer.bias.tolist()


class Halves(nn.Layer):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x, uses_right):
        return self.left(x) + (self.right(x) if uses_right else 0)


def leave_a_parameter_unused(group, options) -> list:
    """Returns an unused parameter's gradient, before and after the block."""
    layer = Halves()
    wrapped = paddle.DataParallel(
        layer, group=group, find_unused_parameters=True, **options
    )
    wrapped(paddle.ones([1, 2]), True).sum().backward()
    found = [layer.right.weight.grad.tolist()]
    with dist.Join([wrapped]):
        for _ in range(group.rank + 1):
            wrapped(paddle.ones([1, 2]), False).sum().backward()
    return [*found, layer.right.weight.grad.tolist()]


def use_more_after_a_block_without_inputs(group, options) -> list:
    """The last rank has no inputs at first, and then uses `right` alone."""
    layer = Halves()
    wrapped = paddle.DataParallel(layer, group=group, **options)
    is_last = group.rank == group.nranks - 1
    with dist.Join([wrapped]):
        for _ in range(0 if is_last else 1):
            wrapped(paddle.ones([1, 2]), False).sum().backward()
    found = []
    for _ in range(2):
        layer.clear_gradients()
        wrapped(paddle.ones([1, 2]), is_last).sum().backward()
        found.append(layer.right.weight.grad.numpy())
    return found


def momenta_after_a_block(group) -> list:
    """Returns the momenta after the block, and after a broadcast of them."""
    layer = new_layer(0)
    wrapped = paddle.DataParallel(layer, group=group)
    optimizer = paddle.optimizer.Momentum(0.1, parameters=layer.parameters())
    with dist.Join([wrapped]):
        for _ in range(2 * group.rank):
            loss_of(wrapped, paddle.ones([2, 6])).backward()
            optimizer.step()
            optimizer.clear_grad()
    found = [sorted(optimizer.state_dict())]
    state = [optimizer.state_dict()]
    dist.broadcast_object_list(state, 1)
    optimizer.set_state_dict(state[0])
    state = optimizer.state_dict()
    return [*found, {name: state[name].numpy() for name in sorted(state)}]


def train_words(group) -> list:
    layer = nn.Embedding(4, 2, sparse=True)
    wrapped = paddle.DataParallel(layer, group=group)
    optimizer = paddle.optimizer.SGD(1.0, parameters=layer.parameters())
    with dist.Join([wrapped]):
        for _ in range(group.rank + 1):
            wrapped(paddle.to_tensor([group.rank])).sum().backward()
            optimizer.step()
            optimizer.clear_grad()
    return layer.weight.numpy()


def train_two_layers(group) -> list:
    """Trains layers of different sizes, whose buffers are broadcast."""
    layers = [
        paddle.DataParallel(
            nn.Sequential(nn.Linear(6, size), nn.BatchNorm1D(size)),
            group=group,
            broadcast_buffers=True,
        )
        for size in (3, 4)
    ]
    with dist.Join(layers):
        for batch in random_batches(3 - group.rank, group.nranks):
            for layer in layers:
                loss_of(layer, batch[group.rank]).backward()
                for each in layer.parameters():
                    if each.grad is not None:
                        each.set_value(each - 0.1 * each.grad)
                layer.clear_gradients()
    return [
        each.numpy() for layer in layers for each in layer.state_dict().values()
    ]


def chain_two_layers(group, is_reversed) -> None:
    first = paddle.DataParallel(nn.Linear(4, 8), group=group)
    second = paddle.DataParallel(nn.Linear(8, 2), group=group)
    with dist.Join([second, first] if is_reversed else [first, second]):
        second(first(paddle.ones([2, 4]))).sum().backward()


def join_a_layer_twice(group) -> None:
    layer = paddle.DataParallel(nn.Linear(1, 1), group=group)
    dist.Join([layer, layer])


def join_layers_of_two_groups(group) -> None:
    other = dist.new_group([0, 1])
    dist.Join(
        [
            paddle.DataParallel(nn.Linear(1, 1), group=each)
            for each in (group, other)
        ]
    )


def accumulate(group) -> list:
    """Each rank has a different number of parts under no_sync()."""
    layer = new_layer(0)
    wrapped = paddle.DataParallel(layer, group=group)
    with dist.Join([wrapped]):
        for _ in range(group.rank + 1):
            with wrapped.no_sync():
                for _ in range(group.rank):
                    loss_of(wrapped, paddle.ones([2, 6])).backward()
            loss_of(wrapped, paddle.ones([2, 6])).backward()
            layer.clear_gradients()
    return values(layer)


def evaluate_before_a_block(group, evaluates) -> list:
    """Rank 0 has fewer inputs than the others; returns whether it is warned.

    If rank 1 `evaluates`, it runs an extra forward pass.
    """
    wrapped = paddle.DataParallel(new_layer(0), group=group)
    loss_of(wrapped, paddle.ones([2, 6])).backward()
    if evaluates and group.rank == 1:
        loss_of(wrapped, paddle.ones([2, 6]))
    with dist.Join([wrapped]):
        for _ in range(18 if group.rank else 2):
            loss_of(wrapped, paddle.ones([2, 6])).backward()
    return [wrapped._reducer.skipped_passes.has_warned]


def throw(group) -> None:
    wrapped = paddle.DataParallel(new_layer(0), group=group)
    with dist.Join([wrapped], throw_on_early_termination=True):
        for _ in range(group.rank + 1):
            wrapped(paddle.ones([1, 6])).sum().backward()


def fail_in_the_block(group) -> None:
    wrapped = paddle.DataParallel(new_layer(0), group=group)
    with dist.Join([wrapped]):
        raise KeyError("of the loop")


def do_nothing(group) -> list:
    """Equal inputs and a disabled Join, which must not communicate."""
    wrapped = paddle.DataParallel(new_layer(0), group=group)
    with dist.Join([wrapped], enable=False):
        wrapped(paddle.ones([1, 6])).sum().backward()
        return [wrapped._join is None]


class JoinCases:
    def test_training_equals_one_process_that_skips_missing_inputs(self):
        for counts in COUNTS[self.size]:
            for divides_by_all in (True, False):
                for options in OPTIONS:
                    with self.subTest(
                        counts=counts, all=divides_by_all, options=options
                    ):
                        self.assert_equal(counts, divides_by_all, options)

    def assert_equal(self, counts, divides_by_all, options):
        found = self.call(train_and_compare, counts, divides_by_all, options)
        for after, alone in found:
            self.assert_same_bits(after, found[0][0])
            for one, other in zip(after, alone):
                np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)

    def test_training_continues_after_the_block(self):
        for options in OPTIONS:
            for found, alone in self.call(train_on_after_join, options):
                for one, other in zip(found, alone):
                    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)

    def test_a_parameter_that_no_rank_uses_keeps_its_gradient(self):
        for options in ({}, {"gradient_as_bucket_view": True}):
            with self.subTest(options=options):
                found = self.call(leave_a_parameter_unused, options)
                expected = [[[1.0] * 2] * 2] * 2
                self.assertEqual(found, [expected] * self.size)

    def test_a_rank_may_use_more_after_a_step_without_inputs(self):
        for options in ({}, {"static_graph": True}):
            with self.subTest(options=options):
                found = self.call(
                    use_more_after_a_block_without_inputs, options
                )
                expected = np.full([self.size, 2, 2, 2], 1 / self.size)
                np.testing.assert_allclose(found, expected, rtol=1e-6)

    def test_a_rank_without_inputs_compares_forward_passes(self):
        for evaluates in (False, True):
            found = self.call(evaluate_before_a_block, evaluates)
            self.assertEqual(found, [[evaluates]] * self.size)

    def test_several_layers_can_be_joined_one_after_the_other(self):
        first, *others = self.call(train_two_layers)
        for other in others:
            self.assert_same_bits(first, other)


class TestOverGloo(JoinCases, RanksCase):
    def test_no_sync_parameters_stay_local(self):
        self.assertEqual(
            self.call(train_with_a_parameter_of_each_rank), [[0, 0], [1, 1]]
        )

    def test_all_ranks_end_with_the_buffers_of_a_rank_that_left_last(self):
        first, second = self.call(train_batch_norm)
        self.assert_same_bits(first, second)

    def test_optimizer_state_can_be_broadcast_after_the_block(self):
        first, second = self.call(momenta_after_a_block)
        # The block itself leaves the state of a rank without inputs alone.
        self.assertEqual([len(first[0]), len(second[0])], [0, 6])
        self.assertEqual(list(first[1]), list(second[1]))
        self.assert_same_bits([*first[1].values()], [*second[1].values()])

    def test_sparse_gradients_of_the_remaining_ranks_are_averaged(self):
        first, second = self.call(train_words)
        self.assertEqual(first.tobytes(), second.tobytes())

    def test_parts_under_no_sync_are_not_steps(self):
        first, second = self.call(accumulate)
        self.assert_same_bits(first, second)

    def test_all_ranks_can_raise_when_one_has_no_inputs_left(self):
        for error in self.errors(throw):
            self.assertRegex(error, r"RuntimeError: Ranks \[0\] have no inputs")

    def test_an_error_in_the_block_is_not_hidden(self):
        for error in self.errors(fail_in_the_block):
            self.assertEqual(error, "KeyError: 'of the loop'")

    def test_join_can_be_disabled(self):
        self.assertEqual(self.call(do_nothing), [[True]] * 2)

    def test_join_needs_data_parallel_layers(self):
        with self.assertRaisesRegex(TypeError, "but received a Linear"):
            dist.Join([nn.Linear(1, 1)])
        with self.assertRaisesRegex(ValueError, "an empty list"):
            dist.Join([])

    def test_layers_that_are_trained_with_one_loss_cannot_be_joined(self):
        for is_reversed, (first, second) in enumerate([(0, 1), (1, 0)]):
            for error in self.errors(chain_two_layers, is_reversed):
                self.assertRegex(
                    error,
                    rf"RuntimeError: Forward of layer {second} \(a Linear\) .* "
                    rf"before backward of layer {first} \(a Linear\)\. .* both",
                )

    def test_each_layer_can_be_joined_once(self):
        for error in self.errors(join_a_layer_twice):
            self.assertRegex(error, "ValueError: .* a layer more than once")

    def test_joined_layers_must_have_one_group(self):
        for error in self.errors(join_layers_of_two_groups):
            self.assertRegex(error, "ValueError: .* of different groups")


@has_shared_memory_groups
class TestOverSharedMemory(JoinCases, RanksCase):
    kind = "shm"


class TestOverLateGroup(JoinCases, RanksCase):
    kind = "late"


class TestThreeRanks(JoinCases, RanksCase):
    size = 3


@has_shared_memory_groups
class TestThreeRanksOverSharedMemory(JoinCases, RanksCase):
    size = 3
    kind = "shm"


if __name__ == "__main__":
    unittest.main()
