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
"""Distinct names for unnamed tensors of threads with different devices."""

from __future__ import annotations

import os
import tempfile
import unittest

import numpy as np
from concurrent_base import in_thread
from thread_device_base import needs_another_device, on_every_device_list

import paddle


def unnamed(value, **kwargs):
    """Returns a tensor on the CPU, whatever the thread's device is."""
    return paddle.to_tensor([float(value)] * 2, place="cpu", **kwargs)


def number(tensor):
    """Returns the number at the end of an unnamed tensor's name."""
    return int(tensor.name.rpartition("_")[2])


@on_every_device_list
class TestTensorNames(unittest.TestCase):
    def two_with_the_same_name(self, **kwargs):
        """Returns two unnamed tensors, 1 and 10, with the same name."""

        def make(device, value):
            paddle.set_device(device)
            return [unnamed(value, **kwargs) for _ in range(100)]

        here, there = (
            in_thread(make, device, value)
            for device, value in zip(self.devices, (1, 10))
        )
        # Each device has its own counter: advance the one that is behind.
        while number(here[-1]) < number(there[0]):
            here = in_thread(make, self.devices[0], 1)
        while number(there[-1]) < number(here[0]):
            there = in_thread(make, self.devices[1], 10)
        names = {tensor.name: tensor for tensor in here}
        pairs = [(names.get(t.name), t) for t in there]
        return next(pair for pair in pairs if pair[0] is not None)

    def model_with_buffers_of_the_same_name(self):
        class Model(paddle.nn.Layer):
            def forward(self, x):
                return x + self.a + self.b * 100

        model = Model()
        for name, buffer in zip("ab", self.two_with_the_same_name()):
            model.register_buffer(name, buffer)
        return model

    @needs_another_device
    def test_to_static_renames_a_buffer_with_a_taken_name(self):
        paddle.set_device("cpu")
        model = self.model_with_buffers_of_the_same_name()
        static = paddle.jit.to_static(model, full_graph=True)
        self.assertEqual(static(unnamed(0)).tolist(), [1001.0, 1001.0])

    @needs_another_device
    def test_saving_renames_a_buffer_with_a_taken_name(self):
        paddle.set_device("cpu")
        model = self.model_with_buffers_of_the_same_name()
        spec = [paddle.static.InputSpec([2], "float32")]
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model")
            paddle.jit.save(model, path, input_spec=spec)
            loaded = paddle.jit.load(path)
            self.assertEqual(loaded(unnamed(0)).tolist(), [1001.0, 1001.0])

    @needs_another_device
    def test_optimizer_refuses_two_tensors_with_the_same_name(self):
        one, other = self.two_with_the_same_name(stop_gradient=False)
        with self.assertRaisesRegex(ValueError, repr(one.name)):
            paddle.optimizer.Adam(0.1, parameters=[one, other])

    @needs_another_device
    def test_they_train_separately_once_one_is_named(self):
        one, other = self.two_with_the_same_name(stop_gradient=False)
        other.name = "other"
        adam = paddle.optimizer.Adam(0.1, parameters=[one, other])
        ((one * 3).sum() - (other * 2).sum()).backward()
        adam.step()
        for value, expected in ((one, 0.9), (other, 10.1)):
            self.assertAlmostEqual(value[0].item(), expected, places=5)

    @needs_another_device
    def test_same_tensor_given_twice_is_accepted(self):
        one, _ = self.two_with_the_same_name(stop_gradient=False)
        sgd = paddle.optimizer.SGD(0.1, parameters=[one, one])
        (one * 3).sum().backward()
        sgd.step()
        # One step per occurrence in the list, as in Paddle 3.3.0.
        self.assertAlmostEqual(one[0].item(), 1 - 2 * 0.1 * 3, places=5)

    def check_one_step_trains(self, layers, optimizer_class):
        """Checks that an optimizer moves each layer by its own gradient."""
        parameters = [p for layer in layers for p in layer.parameters()]
        optimizer = optimizer_class(0.1, parameters=parameters)
        loss = sum(
            (layer(unnamed(1).unsqueeze(0)) * factor).sum()
            for factor, layer in enumerate(layers, 1)
        )
        loss.backward()
        expected = [p.numpy() - 0.1 * p.grad.numpy() for p in parameters]
        optimizer.step()
        for parameter, value in zip(parameters, expected):
            np.testing.assert_allclose(parameter.numpy(), value, rtol=1e-5)
        # Each layer's gradient is its own factor.
        self.assertEqual(
            [layer.bias.grad.tolist() for layer in layers],
            [[float(factor)] * 2 for factor in range(1, len(layers) + 1)],
        )

    def test_layers_need_no_names(self):
        def build():
            paddle.set_device(self.other)
            with paddle.device.device("cpu"):
                return paddle.nn.Linear(2, 2)

        def build_all():
            paddle.set_device("cpu")
            return [in_thread(build), paddle.nn.Linear(2, 2), in_thread(build)]

        paddle.set_device("cpu")
        # Paddle's test runner gives the main thread its own namespace.
        layers = in_thread(build_all)
        names = [p.name for layer in layers for p in layer.parameters()]
        self.assertEqual(len(set(names)), 6)
        # The optimizer stores its velocities by parameter name.
        self.check_one_step_trains(layers, paddle.optimizer.Momentum)

    def test_layers_given_the_same_name_are_accepted_as_before(self):
        layers = []
        for _ in range(2):
            with paddle.utils.unique_name.guard():
                layers.append(paddle.nn.Linear(2, 2))
        first, second = ([p.name for p in each.parameters()] for each in layers)
        self.assertEqual(first, second)
        in_thread(paddle.set_device, self.other)
        self.check_one_step_trains(layers, paddle.optimizer.SGD)


if __name__ == "__main__":
    unittest.main()
