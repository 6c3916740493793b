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
"""`Tensor.get_tensor`: the result keeps the Tensor's memory."""

from __future__ import annotations

import sys
import unittest
import weakref

import numpy as np

import paddle


@unittest.skipUnless(sys.platform == "linux", "the binding needs Linux")
class TestGetTensor(unittest.TestCase):
    def setUp(self):
        paddle.set_device("cpu")

    def test_memory_lives_as_long_as_the_result(self):
        memory = np.full([1000], 3.0, dtype="float32")
        gone = weakref.ref(memory)
        tensor = paddle.Tensor(memory, zero_copy=True)
        dense = tensor.get_tensor()
        del memory, tensor
        self.assertIsNotNone(gone())
        np.testing.assert_array_equal(np.array(dense), np.full([1000], 3.0))
        del dense
        self.assertIsNone(gone())

    def test_result_stays_valid_when_the_data_of_the_tensor_is_replaced(self):
        tensor = paddle.full([1000], 3.0)
        dense = tensor.get_tensor()
        tensor.data = paddle.full([2000], 4.0)
        np.testing.assert_array_equal(np.array(dense), np.full([1000], 3.0))


if __name__ == "__main__":
    unittest.main()
