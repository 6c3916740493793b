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

"""Iterators over a DataLoader for a device that are dropped, or not read to
their end.

CUSTOM_DEVICE_ROOT must name the folder of the built plugin in host_device/.
"""

from __future__ import annotations

import unittest

from test_host_device import name_of, run_python, setUpModule

__all__ = ["setUpModule"]

# The memory of the samples belongs to Python.
SCRIPT = """
import numpy as np
import paddle

class Numbers(paddle.io.Dataset):
    def __getitem__(self, i):
        return paddle.Tensor(
            value=np.full([1000], i), place=paddle.CPUPlace(), zero_copy=True
        )

    def __len__(self):
        return 100

loader = paddle.io.DataLoader(Numbers(), batch_size=None, places={device!r})
for i in range(2000):
    batches = iter(loader)
    for _ in range(i % 6):
        next(batches)
    del batches
"""

UNFINISHED = """
import numpy as np
import paddle

class Numbers(paddle.io.Dataset):
    def __getitem__(self, i):
        return np.array(i)

    def __len__(self):
        return 100

loader = paddle.io.DataLoader(Numbers(), places={device!r}, num_workers=2)
batches = iter(loader)
next(batches)
"""


class TestDropped(unittest.TestCase):
    def test_threads_of_the_reader_may_need_the_gil(self):
        # A process, because a thread that waits with the GIL stops all others.
        done = run_python(SCRIPT.format(device=name_of(0)))
        self.assertEqual(done.returncode, 0, done.stderr)


class TestExit(unittest.TestCase):
    def test_a_program_exits_while_a_batch_is_copied_to_the_device(self):
        done = run_python(
            UNFINISHED.format(device=name_of(0)), HOST_DEVICE_DELAY="300000"
        )
        self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main()
