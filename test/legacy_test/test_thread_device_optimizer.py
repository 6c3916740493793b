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
"""Optimizers over tensors that threads with different devices made."""

from __future__ import annotations

import unittest

from thread_device_base import in_thread, on_every_device_list

import paddle


@on_every_device_list
class TestParameterNames(unittest.TestCase):
    def same_name_on_two_devices(self):
        """Returns two unnamed tensors to train, of one name."""

        def make():
            # A place tracer of its own, then on the CPU like the other one.
            paddle.set_device(self.devices[1])
            return paddle.to_tensor([1.0], place="cpu", stop_gradient=False)

        theirs = in_thread(make)
        paddle.set_device("cpu")
        ours = paddle.to_tensor([1.0], stop_gradient=False)
        ours.name = theirs.name
        return ours, theirs

    def test_two_tensors_of_one_name_are_refused(self):
        ours, theirs = self.same_name_on_two_devices()
        with self.assertRaisesRegex(ValueError, repr(ours.name)):
            paddle.optimizer.Adam(0.1, parameters=[ours, theirs])

    def test_two_parameters_of_one_name_in_groups_are_refused(self):
        in_thread(paddle.set_device, self.devices[1])
        ours, theirs = (paddle.nn.Linear(1, 1).weight for _ in range(2))
        theirs.name = ours.name
        with self.assertRaisesRegex(ValueError, repr(ours.name)):
            paddle.optimizer.Adam(
                0.1, parameters=[{"params": [ours]}, {"params": [theirs]}]
            )

    def test_they_train_apart_once_one_is_renamed(self):
        ours, theirs = self.same_name_on_two_devices()
        theirs.name = "theirs"
        adam = paddle.optimizer.Adam(0.1, parameters=[ours, theirs])
        (ours * 3).sum().backward()
        (theirs * -2).sum().backward()
        adam.step()
        self.assertAlmostEqual(ours.item(), 0.9, places=5)
        self.assertAlmostEqual(theirs.item(), 1.1, places=5)

    def test_a_parameter_given_twice_is_not_two_of_one_name(self):
        ours, _ = self.same_name_on_two_devices()
        paddle.optimizer.SGD(0.1, parameters=[ours, ours])

    def test_layers_of_threads_with_devices_need_no_names(self):
        def build():
            paddle.set_device(self.devices[1])
            with paddle.device.device("cpu"):
                return paddle.nn.Linear(2, 2)

        paddle.set_device("cpu")
        layers = [in_thread(build), paddle.nn.Linear(2, 2), in_thread(build)]
        paddle.optimizer.Adam(
            0.1, parameters=[p for layer in layers for p in layer.parameters()]
        )


if __name__ == "__main__":
    unittest.main()
