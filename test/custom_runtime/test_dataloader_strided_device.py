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

"""A DataLoader without collation copies strided samples to the device.

CUSTOM_DEVICE_ROOT must name the folder of the built plugin in host_device/.
"""

from __future__ import annotations

import unittest
from typing import Any

import numpy as np
from test_host_device import name_of, setUpModule

import paddle
from paddle.io import DataLoader, Dataset

__all__ = ["setUpModule"]

VALUES = np.arange(12.0).reshape(4, 3)


class Strided(Dataset):
    """A transposed tensor, and one with gaps, in host memory."""

    def __init__(self) -> None:
        tensor = paddle.to_tensor(VALUES, place=paddle.CPUPlace())
        self.tensors = [tensor.transpose([1, 0]), tensor[1:3, 1:]]

    def __len__(self) -> int:
        return len(self.tensors)

    def __getitem__(self, index: int) -> paddle.Tensor:
        return self.tensors[index]


class TestStridedSamples(unittest.TestCase):
    def check(self, **kwargs: Any) -> None:
        dataset = Strided()
        transposed, gaps = DataLoader(
            dataset, batch_size=None, places=name_of(0), **kwargs
        )
        self.assertIn(name_of(0), str(transposed.place))
        np.testing.assert_array_equal(transposed.numpy(), VALUES.T)
        np.testing.assert_array_equal(gaps.numpy(), VALUES[1:3, 1:])
        for tensor in dataset.tensors:
            self.assertFalse(tensor.is_contiguous())

    def test_in_the_reader_thread(self):
        self.check()

    def test_in_a_worker_process(self):
        self.check(num_workers=1)

    def test_in_a_worker_process_without_shared_memory(self):
        self.check(num_workers=1, use_shared_memory=False)


if __name__ == "__main__":
    unittest.main()
