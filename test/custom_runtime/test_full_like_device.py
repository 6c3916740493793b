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

"""The device of the tensors that full_like, zeros_like and ones_like create.

CUSTOM_DEVICE_ROOT must name the folder of the built plugin in host_device/.
"""

from __future__ import annotations

import unittest

from test_host_device import HostDeviceTest, name_of, setUpModule

import paddle

__all__ = ["setUpModule"]


def full_like(x, **options):
    return paddle.full_like(x, 7, **options)


class TestFullLike(HostDeviceTest):
    def test_the_tensor_is_on_the_device_that_is_given(self):
        x = paddle.arange(6).reshape([2, 3])
        for create in (full_like, paddle.zeros_like, paddle.ones_like):
            for device in (name_of(1), paddle.CPUPlace()):
                with self.subTest(create=create.__name__, device=device):
                    there = create(x, device=device)
                    expected = paddle.empty([], device=device).place
                    self.assertEqual(there.place, expected)
                    self.assertEqual(there.dtype, x.dtype)
                    self.assertTrue(there.cpu().equal_all(create(x).cpu()))

    def test_naming_the_device_of_the_input_takes_no_more_memory(self):
        x = paddle.ones([1 << 20])
        memory = paddle.device.custom_device
        for device in (None, name_of(0), x.place):
            with self.subTest(device=device):
                memory.reset_max_memory_allocated(name_of(0))
                before = memory.memory_allocated(name_of(0))
                full_like(x, device=device)
                peak = memory.max_memory_allocated(name_of(0))
                self.assertEqual(peak - before, 4 << 20)

    def test_without_a_device_it_is_on_that_of_the_input(self):
        x = paddle.ones([2], device=name_of(2))
        self.assertEqual(full_like(x).place, x.place)

    def test_other_types_may_be_created(self):
        x = paddle.ones([2])
        there = full_like(x, dtype="float64", device=name_of(1))
        self.assertEqual(there.dtype, paddle.float64)

    def test_no_such_device_is_an_error(self):
        with self.assertRaisesRegex(ValueError, "There is no device"):
            full_like(paddle.ones([2]), device=name_of(99))


if __name__ == "__main__":
    unittest.main()
