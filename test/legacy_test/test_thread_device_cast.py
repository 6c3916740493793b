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

from __future__ import annotations

import functools
import unittest
from unittest import mock

from concurrent_base import in_thread
from thread_device_base import (
    on_every_device_list,
    place_name,
    places_of_new_tensors,
)

import paddle
from paddle.incubate.nn.layer.fused_transformer import _to_dtype


@on_every_device_list
class TestCast(unittest.TestCase):
    """Casts of tensors that are not on the current device."""

    def devices_of_others(self, function):
        """
        Calls `function` and returns the devices that a thread without its own
        device has during each cast.
        """
        seen = []
        cast = paddle.Tensor.cast

        def seen_by_another_thread(tensor, *args, **kwargs):
            seen.append(in_thread(paddle.get_device))
            return cast(tensor, *args, **kwargs)

        with mock.patch.object(paddle.Tensor, "cast", seen_by_another_thread):
            function()
        return seen

    def tensors(self):
        return [
            paddle.ones([3], dtype="float32").to(device)
            for device in self.devices
        ]

    def test_to_does_not_change_the_device_of_other_threads(self):
        for x in self.tensors():
            with self.subTest(place=x.place):
                self.assertEqual(
                    self.devices_of_others(lambda x=x: x.to("float64")),
                    [self.devices[0]],
                )
                self.assertEqual(
                    self.devices_of_others(lambda x=x: _to_dtype(x, "float64")),
                    [self.devices[0]],
                )

    def test_layers_do_not_change_the_device_of_other_threads(self):
        for device in self.devices:
            layer = paddle.nn.Linear(2, 2)
            layer.to(device)
            with self.subTest(device=device):
                self.assertEqual(
                    self.devices_of_others(
                        functools.partial(layer.to, dtype="float64")
                    ),
                    [self.devices[0]] * 2,
                )
                self.assertEqual(place_name(layer.weight), device)
                self.assertEqual(layer.weight.dtype, paddle.float64)

    def test_the_result_is_on_the_device_of_the_tensor(self):
        for x in self.tensors():
            for dtype in ("float64", "int32", "bfloat16"):
                with self.subTest(place=x.place, dtype=dtype):
                    y = x.to(dtype)
                    self.assertEqual(place_name(y), place_name(x))
                    self.assertEqual(y.astype("float32").tolist(), [1, 1, 1])

    def test_gradients_pass_through(self):
        for x in self.tensors():
            with self.subTest(place=x.place):
                x.stop_gradient = False
                x.to("float64").sum().backward()
                self.assertEqual(place_name(x.grad), place_name(x))
                self.assertEqual(x.grad.dtype, paddle.float32)

    def test_casts_on_a_thread_keep_its_device(self):
        def run():
            paddle.set_device(self.other)
            dtypes = [x.to("float64").dtype for x in self.tensors()]
            self.assertEqual(dtypes, [paddle.float64] * len(self.devices))
            return places_of_new_tensors()

        self.assertEqual(in_thread(run), {self.other})


if __name__ == "__main__":
    unittest.main()
