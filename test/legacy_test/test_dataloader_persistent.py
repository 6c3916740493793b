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
"""DataLoader with persistent workers: later epochs have all batches."""

import unittest

import numpy as np

from paddle.io import DataLoader, IterableDataset


class Five(IterableDataset):
    def __iter__(self):
        return (np.array(i) for i in range(5))


class TestPersistentWorkers(unittest.TestCase):
    def test_an_iterable_dataset_keeps_its_last_batch_in_every_epoch(self):
        loader = DataLoader(
            Five(), batch_size=2, num_workers=1, persistent_workers=True
        )
        for _ in range(3):
            self.assertEqual(
                [batch.tolist() for batch in loader], [[0, 1], [2, 3], [4]]
            )

    def test_the_last_batch_is_dropped_where_the_caller_asks(self):
        loader = DataLoader(
            Five(),
            batch_size=2,
            drop_last=True,
            num_workers=1,
            persistent_workers=True,
        )
        for _ in range(3):
            self.assertEqual(
                [batch.tolist() for batch in loader], [[0, 1], [2, 3]]
            )


if __name__ == "__main__":
    unittest.main()
