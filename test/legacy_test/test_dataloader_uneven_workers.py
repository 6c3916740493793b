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
"""DataLoader over an iterable dataset whose workers end at different times."""

import unittest
from itertools import chain

import numpy as np

from paddle.io import DataLoader, IterableDataset, get_worker_info

WORKERS = 3


class Uneven(IterableDataset):
    """A dataset whose worker `i` has 5 * `i` samples."""

    def __iter__(self):
        worker = get_worker_info().id
        for number in range(worker * 5):
            yield np.array([worker, number])


def load(prefetch_factor):
    loader = DataLoader(
        Uneven(),
        num_workers=WORKERS,
        batch_size=2,
        prefetch_factor=prefetch_factor,
    )
    return [batch.tolist() for batch in loader]


class TestUnevenWorkers(unittest.TestCase):
    def check(self, prefetch_factor, passes):
        samples = [
            [worker, number]
            for worker in range(WORKERS)
            for number in range(worker * 5)
        ]
        first = load(prefetch_factor)
        self.assertEqual(sorted(chain.from_iterable(first)), samples)
        for _ in range(passes):
            self.assertEqual(load(prefetch_factor), first)

    def test_every_sample_is_loaded_in_the_same_order(self):
        # Paddle 3.3.0 loses samples in one pass of six.
        self.check(prefetch_factor=1, passes=40)

    def test_every_sample_is_loaded_with_more_batches_in_advance(self):
        self.check(prefetch_factor=2, passes=5)


if __name__ == "__main__":
    unittest.main()
