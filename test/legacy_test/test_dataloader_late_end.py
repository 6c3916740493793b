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
"""Persistent workers whose iterable dataset ends long after its last sample."""

import time
import unittest
from itertools import chain

import numpy as np

import paddle
from paddle.io import DataLoader, IterableDataset, get_worker_info

WORKERS = 2


class EndsLate(IterableDataset):
    """A dataset of three samples per worker."""

    def __iter__(self):
        worker = get_worker_info().id
        for number in range(3):
            yield np.array([worker, number])
        time.sleep(0.3)


def make_loader(**arguments):
    """Returns a loader whose persistent workers end late."""
    return DataLoader(
        EndsLate(),
        num_workers=WORKERS,
        batch_size=2,
        persistent_workers=True,
        **arguments,
    )


class TestLateEnd(unittest.TestCase):
    # Paddle 3.3.0 waits forever in each of these tests.

    def check(self, loader, to_list=lambda batch: batch.tolist()):
        samples = [[w, number] for w in range(WORKERS) for number in range(3)]
        for _ in range(3):
            batches = [to_list(batch) for batch in loader]
            self.assertEqual(sorted(chain.from_iterable(batches)), samples)

    def test_each_epoch_ends(self):
        self.check(make_loader(prefetch_factor=2))

    def test_each_epoch_ends_with_one_batch_in_advance(self):
        self.check(make_loader(prefetch_factor=1))

    def test_each_epoch_of_feed_dictionaries_ends(self):
        paddle.enable_static()
        self.addCleanup(paddle.disable_static)
        field = paddle.static.data("sample", [None, 2], "int64")
        loader = make_loader(feed_list=[field], return_list=False)
        self.check(loader, lambda feeds: np.array(feeds[0]["sample"]).tolist())


if __name__ == "__main__":
    unittest.main()
