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
"""Data parallel training of models that are not on the current device."""

from __future__ import annotations

import contextlib
import unittest
from unittest import mock

from data_parallel_base import (
    HOOKS,
    RanksCase,
    gradients,
    has_shared_memory_groups,
    loss_of,
    new_layer,
    random_batches,
    values,
)
from thread_device_base import device_lists

import paddle
import paddle.distributed as dist
from paddle import nn
from paddle.base import core
from paddle.distributed import comm_hooks, shared_memory_group
from paddle.distributed.data_parallel import buckets
from paddle.distributed.data_parallel.communication import divide

OPTIONS = (
    {},
    {"gradient_as_bucket_view": True},
    {"find_unused_parameters": True},
    {"static_graph": True},
)
has_test_device = unittest.skipUnless(
    "custom_cpu" in device_lists(), "no device of kind custom_cpu here"
)


@contextlib.contextmanager
def current_device(device):
    previous = paddle.get_device()
    paddle.set_device(device)
    try:
        yield
    finally:
        paddle.set_device(previous)


def of_rank(device, group) -> str:
    return device.format(group.rank + 1)


def average(group, device, current, options) -> list:
    """Trains a model on `device`; returns the averages of three steps."""
    device = of_rank(device, group)
    with current_device(device):
        layer = new_layer(0)
        parts = [each[group.rank] for each in random_batches(3, group.nranks)]
    found = []
    with current_device(current or device):
        wrapped = paddle.DataParallel(
            layer, group=group, comm_buffer_size=0.002, **options
        )
        for part in parts:
            layer.clear_gradients()
            loss_of(wrapped, part).backward()
            found += gradients(layer)
            places = {str(each.grad.place) for each in layer.parameters()}
            assert places == {f"Place({device})"}, places
    return found


def average_with_hook(group, name, device, current) -> list:
    """Returns the averages of three steps; a saved state is restored."""
    device = of_rank(device, group)
    with current_device(device):
        paddle.seed(0)
        layer = nn.Linear(8, 8)
        parts = [paddle.rand([2, 8]) * (group.rank + 1) for _ in range(3)]
    found = []
    with current_device(current or device):
        wrapped = paddle.DataParallel(layer, group=group)
        state = None
        if name == "powerSGD_hook":
            state = comm_hooks.PowerSGDState(start_powerSGD_iter=2)
        wrapped.register_comm_hook(state, getattr(comm_hooks, name))
        for _ in range(2):
            for part in parts:
                layer.clear_gradients()
                (wrapped(part) ** 2).mean().backward()
                found += gradients(layer)
            if state is not None:
                state.set_state_dict(state.state_dict())
    return found


def average_rows(group, device, current) -> list:
    """Returns a sparse average, from different numbers of rows."""
    device = of_rank(device, group)
    with current_device(device):
        paddle.seed(0)
        layer = nn.Embedding(8, 2, sparse=True)
        words = paddle.arange(group.rank + 1)
    with current_device(current or device):
        (paddle.DataParallel(layer, group=group)(words) * 2).sum().backward()
        gradient = layer.weight.grad
        rows = list(gradient.get_selected_rows().rows())
        return [rows, gradient._get_tensor_from_selected_rows().tolist()]


def join(group, device, current) -> list:
    device = of_rank(device, group)
    with current_device(device):
        layer = new_layer(0)
        optimizer = paddle.optimizer.SGD(0.1, parameters=layer.parameters())
        part = random_batches(1, group.nranks)[0][group.rank]
    with current_device(current or device):
        wrapped = paddle.DataParallel(layer, group=group)
        with dist.Join([wrapped]):
            for _ in range(group.rank + 1):
                loss_of(wrapped, part).backward()
                # Paddle's optimizers move parameters to the current device.
                with current_device(device):
                    optimizer.step()
                    optimizer.clear_grad()
    return values(layer)


def build_different_models(group, device, current) -> None:
    with current_device(of_rank(device, group)):
        layer = nn.Linear(2, 2 + group.rank)
    with current_device(current):
        paddle.DataParallel(layer, group=group)


def average_over_machines(group, current) -> list:
    """Averages over a group of two machines, the first with one rank."""
    name = f"machine {min(group.rank, 1)}"
    with mock.patch.object(shared_memory_group, "machine", lambda: name):
        machines = dist.new_group(group.ranks, backend="shm")
    tensor = paddle.full([2], group.rank + 1.0)
    with current_device(current):
        dist.all_reduce(tensor, dist.ReduceOp.AVG, group=machines)
    return [str(tensor.place), tensor.tolist()]


class DeviceCases:
    """Cases with a model that is on `device`, and another current device.

    A number in `device` is the rank plus 1. The reference is the same run with
    the model's device as the current one.
    """

    device = "cpu"
    current = "custom_cpu:0"
    hooks = HOOKS

    def test_gradients_are_averages(self):
        for options in OPTIONS:
            with self.subTest(options=options):
                found = self.call(average, self.device, self.current, options)
                expected = self.call(average, self.device, None, options)
                for one, other in zip(found, expected):
                    self.assert_same_bits(one, other)
                for other in found[1:]:
                    self.assert_same_bits(found[0], other)

    def test_hooks_average_gradients(self):
        for name in self.hooks:
            with self.subTest(name=name):
                args = name, self.device
                found = self.call(average_with_hook, *args, self.current)
                expected = self.call(average_with_hook, *args, None)
                for one, other in zip(found, expected):
                    self.assert_same_bits(one, other)

    def test_sparse_gradients_are_averages(self):
        for found in self.call(average_rows, self.device, self.current):
            rows, averages = found
            self.assertEqual(rows, [0, 0, 1, 0, 1, 2])
            for row in averages:
                self.assertAlmostEqual(row[0], 2 / 3, places=6)

    def test_a_rank_may_finish_its_inputs_early(self):
        found = self.call(join, self.device, self.current)
        for one, other in zip(found, self.call(join, self.device, None)):
            self.assert_same_bits(one, other)

    def test_different_models_are_an_error(self):
        for error in self.errors(
            build_different_models, self.device, self.current
        ):
            self.assertRegex(error, r"parameter 0 is weight of shape \[2, 2\]")


@has_test_device
class TestOverGloo(DeviceCases, RanksCase):
    size = 3


@has_test_device
@has_shared_memory_groups
class TestOverSharedMemory(DeviceCases, RanksCase):
    size = 3
    kind = "shm"

    def test_averages_over_machines_stay_in_host_memory(self):
        for found in self.call(average_over_machines, self.current):
            self.assertEqual(found, ["Place(cpu)", [2.0, 2.0]])


class TestBuckets(unittest.TestCase):
    def test_a_copy_instead_of_a_view_is_an_error(self):
        members = {
            index: buckets.ReducedParameter(name, paddle.ones([2]), "Linear")
            for index, name in enumerate(("weight", "bias"))
        }
        make = buckets.Bucket._new_view
        group = mock.Mock(backend="GLOO")
        with (
            mock.patch.object(
                buckets.Bucket, "_new_view", lambda *args: make(*args).clone()
            ),
            self.assertRaisesRegex(
                RuntimeError, "'weight'.* instead of a view"
            ),
        ):
            buckets.Bucket(0, members, True, group)


@has_test_device
class TestDivision(unittest.TestCase):
    def test_a_divided_tensor_keeps_its_memory(self):
        for device in ("cpu", "custom_cpu:1"):
            for divisor in (2, 3):
                with self.subTest(device=device, divisor=divisor):
                    with current_device(device):
                        tensor = paddle.ones([6])
                    view = core.eager.Tensor(
                        tensor.get_tensor()._slice(0, 3), place=tensor.place
                    )
                    with current_device("custom_cpu:0"), paddle.no_grad():
                        divide(tensor, divisor)
                    for each in (tensor, view):
                        self.assertEqual(str(each.place), f"Place({device})")
                        self.assertAlmostEqual(each[0].item(), 1 / divisor)


if __name__ == "__main__":
    unittest.main()
