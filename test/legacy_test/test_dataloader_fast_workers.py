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
"""Batches that worker processes send before the loader expects them."""

from __future__ import annotations

import multiprocessing
import unittest
from unittest import mock

import numpy as np
from concurrent_base import wait_until

from paddle.io import DataLoader, Dataset

ON_TIME = multiprocessing.Event()


class Items(Dataset):
    """Its second item is not made before `ON_TIME` is set."""

    def __getitem__(self, i):
        if i == 1:
            ON_TIME.wait()
        return np.full([1], i)

    def __len__(self):
        return 8


class TestFastWorkers(unittest.TestCase):
    def test_batch_may_arrive_before_its_indices_are_put(self):
        batches = iter(DataLoader(Items(), batch_size=1, num_workers=2))
        infos = batches._task_infos
        indices = batches._indices_queues[0]
        put = indices.put

        def put_late(message):
            put(message)
            # The reader thread keeps batches that arrive early.
            if message is not None and message[0] == 4:
                wait_until(lambda: len(infos.get(4, ())) == 3, "4 is kept")

        with mock.patch.object(indices, "put", put_late):
            found = [np.array(next(batches)).item()]
            ON_TIME.set()
            found += [np.array(batch).item() for batch in batches]
        self.assertEqual(found, list(range(8)))


if __name__ == "__main__":
    unittest.main()
