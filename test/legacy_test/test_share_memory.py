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
"""Tensors and layers that are moved into shared memory."""

from __future__ import annotations

import copy
import gc
import unittest
from multiprocessing import get_context
from typing import Any

import numpy as np
from concurrent_base import WAIT_S
from shared_tensor_leaks import no_leak

import paddle
from paddle import nn
from paddle.base.shared_storage import native


def matrix() -> paddle.Tensor:
    return paddle.arange(6, dtype="float32").reshape([2, 3])


class Tied(nn.Layer):
    """Two layers with one shared weight, and a custom attribute."""

    def __init__(self, scale: float):
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.register_buffer("mean", paddle.zeros([3]))
        self.register_buffer("seen", paddle.zeros([1]), persistable=False)
        self.settings = {"scale": scale, "sizes": [3, 3]}

    def forward(self, x):
        x = self.second(self.first(x - self.mean))
        return x * self.settings["scale"]


def loss_of(layer: nn.Layer) -> paddle.Tensor:
    return (layer(matrix()) ** 2).mean()


def step(layer: nn.Layer, optimizer: paddle.optimizer.Optimizer) -> None:
    optimizer.clear_grad()
    loss_of(layer).backward()
    optimizer.step()


def values_of(layer: nn.Layer) -> list[list]:
    return [parameter.tolist() for parameter in layer.parameters()]


def backward(layer: nn.Layer) -> None:
    loss_of(layer).backward()


def properties(tensor: paddle.Tensor) -> tuple[Any, ...]:
    """Returns the properties and the content of a tensor."""
    return (
        tensor.dtype,
        tensor.shape,
        tensor.strides,
        tensor.stop_gradient,
        tensor.numpy().tobytes(),
    )


class ShareMemoryTestCase(unittest.TestCase):
    """Checks that no test leaves shared memory, descriptors or files."""

    def setUp(self):
        self.addCleanup(paddle.set_device, paddle.get_device())
        paddle.set_device("cpu")
        leak = no_leak()
        leak.__enter__()
        self.addCleanup(leak.__exit__, None, None, None)
        self.addCleanup(gc.collect)


class TestShareMemory(ShareMemoryTestCase):
    def test_new_tensor_is_not_shared(self):
        self.assertFalse(matrix().is_shared())

    def test_share_memory_returns_the_tensor_with_its_values(self):
        tensor = matrix()
        expected = properties(tensor)
        self.assertIs(tensor.share_memory_(), tensor)
        self.assertTrue(tensor.is_shared())
        self.assertEqual(properties(tensor), expected)

    def test_views_are_shared_with_their_base(self):
        tensor = matrix()
        view = tensor.T
        view[0].share_memory_()
        self.assertTrue(tensor.is_shared() and view.is_shared())
        view[0, 0] = 9
        self.assertEqual(tensor[0, 0].item(), 9)

    def test_sharing_again_changes_nothing(self):
        tensor = matrix().share_memory_()
        place = tensor.data_ptr()
        self.assertEqual(tensor.share_memory_().data_ptr(), place)

    def test_tensor_without_elements_is_shared_as_it_is(self):
        tensor = paddle.zeros([0, 3])
        self.assertTrue(tensor.is_shared())
        self.assertTrue(tensor.share_memory_().is_shared())

    def test_gradient_of_a_tensor_is_not_moved_with_it(self):
        layer = nn.Linear(3, 2)
        loss_of(layer).backward()
        layer.weight.share_memory_()
        self.assertTrue(layer.weight.is_shared())
        self.assertFalse(layer.weight.grad.is_shared())

    def test_all_tensors_of_a_layer_are_shared(self):
        layer = nn.Sequential(Tied(1.0), nn.BatchNorm1D(3))
        self.assertIs(layer.share_memory(), layer)
        tensors = [*layer.parameters(), *layer.buffers()]
        self.assertEqual(len(tensors), 9)
        for tensor in tensors:
            self.assertTrue(tensor.is_shared(), tensor.name)

    def test_gradients_of_a_layer_are_not_moved_with_it(self):
        layer = nn.Linear(3, 2)
        loss_of(layer).backward()
        layer.share_memory()
        self.assertFalse(layer.weight.grad.is_shared())

    def test_forked_trainers_have_their_own_gradients(self):
        layer = nn.Linear(3, 2)
        loss_of(layer).backward()
        once = layer.share_memory().weight.grad.tolist()
        context = get_context("fork")
        process = context.Process(target=backward, args=[layer])
        process.start()
        process.join(WAIT_S)
        self.assertEqual(process.exitcode, 0)
        process.close()
        self.assertEqual(layer.weight.grad.tolist(), once)

    def test_tied_tensors_of_a_layer_stay_tied(self):
        layer = Tied(1.0).share_memory()
        self.assertIs(layer.first.weight, layer.second.weight)

    def test_layer_trains_on_when_it_is_shared(self):
        expected, layer = nn.Linear(3, 2), nn.Linear(3, 2)
        layer.set_state_dict(copy.deepcopy(expected.state_dict()))
        for each in (expected, layer):
            optimizer = paddle.optimizer.Adam(0.1, parameters=each.parameters())
            step(each, optimizer)
            if each is layer:
                each.share_memory()
            step(each, optimizer)
        self.assertEqual(values_of(layer), values_of(expected))
        self.assertTrue(layer.weight.is_shared())

    def test_forked_child_trains_the_layer_of_its_parent(self):
        layer = nn.Linear(3, 2).share_memory()
        before = values_of(layer)
        optimizer = paddle.optimizer.SGD(0.1, parameters=layer.parameters())
        context = get_context("fork")
        process = context.Process(target=step, args=(layer, optimizer))
        process.start()
        process.join(WAIT_S)
        self.assertEqual(process.exitcode, 0)
        process.close()
        self.assertNotEqual(values_of(layer), before)

    def test_lack_of_room_is_an_error_that_loses_nothing(self):
        layer = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1 << 20))
        before = [parameter.numpy() for parameter in layer.parameters()]
        self.addCleanup(native.set_limit, native.stats()["limit"])
        native.set_limit(1 << 20)
        with self.assertRaises(MemoryError):
            layer.share_memory()
        for parameter, value in zip(layer.parameters(), before):
            np.testing.assert_array_equal(parameter.numpy(), value)
        native.set_limit(1 << 30)
        self.assertTrue(layer.share_memory()[1].weight.is_shared())

    def test_foreign_memory_is_refused_with_a_remedy(self):
        array = np.arange(4, dtype="float32")
        tensor = paddle.utils.dlpack.from_dlpack(array)
        with self.assertRaisesRegex(ValueError, r"\.clone\(\)"):
            tensor.share_memory_()
        self.assertFalse(tensor.is_shared())
        self.assertEqual(tensor.tolist(), array.tolist())

    def test_foreign_memory_in_a_layer_is_refused_and_values_are_kept(self):
        layer = nn.Linear(2, 2)
        foreign = paddle.Tensor(np.ones(3, dtype="float32"), zero_copy=True)
        layer.register_buffer("foreign", foreign)
        tensors = [*layer.parameters(), foreign]
        values = [tensor.tolist() for tensor in tensors]
        with self.assertRaisesRegex(ValueError, r"\.clone\(\)"):
            layer.share_memory()
        self.assertEqual([tensor.tolist() for tensor in tensors], values)

    def test_parameter_without_values_is_refused_and_none_is_moved(self):
        first = nn.Linear(3, 3)
        with paddle.LazyGuard():
            layer = nn.Sequential(first, nn.Linear(3, 3))
        message = f"{layer[1].weight.name}.*initialize"
        with self.assertRaisesRegex(RuntimeError, message):
            layer.share_memory()
        self.assertFalse(first.weight.is_shared())
        for parameter in layer[1].parameters():
            parameter.initialize()
        self.assertTrue(layer.share_memory()[1].weight.is_shared())

    def test_static_graphs_can_be_built_while_tensors_are_shared(self):
        tensor = matrix()
        paddle.enable_static()
        self.addCleanup(paddle.disable_static, paddle.CPUPlace())
        with paddle.static.program_guard(paddle.static.Program()):
            x = paddle.static.data("x", [2, 3])
            self.assertEqual(list((x + 1).shape), [2, 3])
        self.assertTrue(tensor.share_memory_().is_shared())
        self.assertEqual(tensor.numpy()[1, 2], 5)


def initializers() -> dict[str, nn.initializer.Initializer]:
    """Returns one initializer of each kind; each changes a weight."""
    initializer = nn.initializer
    return {
        "Assign": initializer.Assign(np.full([2, 2, 3, 3], 5.0)),
        "Bilinear": initializer.Bilinear(),
        "Constant": initializer.Constant(5.0),
        "Dirac": initializer.Dirac(),
        "KaimingNormal": initializer.KaimingNormal(),
        "KaimingUniform": initializer.KaimingUniform(),
        "Normal": initializer.Normal(),
        "Orthogonal": initializer.Orthogonal(),
        "TruncatedNormal": initializer.TruncatedNormal(),
        "Uniform": initializer.Uniform(),
        "XavierNormal": initializer.XavierNormal(),
        "XavierUniform": initializer.XavierUniform(),
    }


class Failing(nn.initializer.Initializer):
    def forward(self, var, block=None):
        var.detach().fill_(9)
        raise KeyError


class TestInitializers(ShareMemoryTestCase):
    def test_every_initializer_is_tested(self):
        functions = {"calculate_gain", "set_global_initializer"}
        self.assertEqual(
            set(initializers()), set(nn.initializer.__all__) - functions
        )

    def test_an_initializer_writes_into_the_memory_of_a_shared_parameter(self):
        for name, initializer in initializers().items():
            with self.subTest(name):
                weight = paddle.create_parameter([2, 2, 3, 3], "float32")
                view = weight.share_memory_().detach()[1]
                weight.detach().fill_(7)
                place = weight.data_ptr()
                initializer(weight)
                self.assertEqual(weight.data_ptr(), place)
                self.assertTrue(weight.is_shared())
                self.assertFalse((weight == 7).all().item())
                self.assertEqual(view.tolist(), weight[1].tolist())

    def test_initializer_of_another_shape_leaves_the_values(self):
        # Fewer values would fit into the parameter's memory.
        for shape in ([3, 3], [1, 2], [3, 2]):
            weight = paddle.create_parameter([2, 3], "float32").share_memory_()
            before, place = weight.tolist(), weight.data_ptr()
            wrong = nn.initializer.Assign(np.full(shape, 9, "float32"))
            message = f"{[2, 3]}.*{shape}".replace("[", r"\[")
            with (
                self.subTest(shape),
                self.assertRaisesRegex(ValueError, message),
            ):
                wrong(weight)
            self.assertEqual(weight.data_ptr(), place)
            self.assertEqual(weight.tolist(), before)

    def test_initializer_that_fails_leaves_the_values(self):
        weight = paddle.create_parameter([2, 3], "float32").share_memory_()
        before, place = weight.tolist(), weight.data_ptr()
        with self.assertRaises(KeyError):
            Failing()(weight)
        self.assertEqual(weight.data_ptr(), place)
        self.assertEqual(weight.tolist(), before)


if __name__ == "__main__":
    unittest.main()
