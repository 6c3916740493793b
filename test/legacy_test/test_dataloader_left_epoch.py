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
"""Persistent workers begin a new epoch after an epoch that was left early."""

import time
import unittest

import numpy as np

import paddle
from paddle.io import DataLoader, Dataset, IterableDataset, get_worker_info

BATCHES = [[2 * n, 2 * n + 1] for n in range(10)]


class Numbers(Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, index):
        return np.array(index)


class NumbersInTurn(IterableDataset):
    def __iter__(self):
        return iter(np.arange(20))


class EndsLate(IterableDataset):
    """A dataset of two samples per worker."""

    def __iter__(self):
        for number in range(2):
            yield np.array([get_worker_info().id, number])
        time.sleep(0.5)


def epoch(loader):
    return [batch.tolist() for batch in loader]


class TestLeftEpoch(unittest.TestCase):
    def check(self, dataset, workers):
        loader = DataLoader(
            dataset,
            batch_size=2,
            num_workers=workers,
            persistent_workers=True,
        )
        for number, _ in enumerate(loader):
            if number == 1:
                break
        # On Paddle 3.3.0, "pop from empty list", or batches of the epoch that
        # was left.
        self.assertEqual(epoch(loader), BATCHES)
        self.assertEqual(epoch(loader), BATCHES)

    def test_the_next_epochs_of_a_map_dataset_are_complete(self):
        self.check(Numbers(), 2)

    def test_the_next_epochs_of_an_iterable_dataset_are_complete(self):
        self.check(NumbersInTurn(), 1)

    def test_workers_may_end_while_the_next_epoch_begins(self):
        loader = DataLoader(
            EndsLate(), batch_size=1, num_workers=2, persistent_workers=True
        )
        next(iter(loader))
        samples = [[[worker, n]] for worker in range(2) for n in range(2)]
        for _ in range(2):
            # Paddle 3.3.0 waits forever.
            self.assertEqual(sorted(epoch(loader)), samples)

    def test_an_error_of_the_epoch_that_was_left_does_not_end_the_next(self):
        class FailsAtThree(Numbers):
            def __getitem__(self, index):
                if index == 3:
                    time.sleep(0.02)
                    raise ValueError
                return super().__getitem__(index)

        # It comes before or while the next epoch begins.
        for delay in range(0, 40, 5):
            loader = DataLoader(
                FailsAtThree(),
                batch_size=None,
                num_workers=2,
                prefetch_factor=3,
                persistent_workers=True,
            )
            for _ in range(2):
                self.assertEqual(next(iter(loader)).item(), 0)
                time.sleep(delay / 1000)

    def test_an_epoch_with_too_few_batches_for_all_places_may_end(self):
        paddle.enable_static()
        self.addCleanup(paddle.disable_static)
        loader = DataLoader(
            Numbers(),
            batch_size=4,
            num_workers=2,
            persistent_workers=True,
            places=paddle.static.cpu_places(2),
            return_list=True,
        )
        for _ in range(3):
            # Of the 5 batches, the last one is dropped.
            firsts = [
                [int(np.ravel(np.array(batch))[0]) for batch in places]
                for places in loader
            ]
            self.assertEqual(firsts, [[0, 4], [8, 12]])


if __name__ == "__main__":
    unittest.main()
