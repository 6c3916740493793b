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
"""Persistent workers of a DataLoader: later epochs have all batches."""

from __future__ import annotations

import multiprocessing
import sys
import unittest

import numpy as np

from paddle.io import IterableDataset
from paddle.io.dataloader.collate import default_collate_fn
from paddle.io.dataloader.worker import (
    _DatasetKind,
    _IterableDatasetStopIteration,
    _ResumeIteration,
    _worker_loop,
)

WAIT_S = 100


class Five(IterableDataset):
    def __iter__(self):
        return (np.array(i) for i in range(5))


@unittest.skipUnless(sys.platform == "linux", "needs worker processes")
class TestPersistentWorkers(unittest.TestCase):
    def epochs(self, drop_last):
        """Returns a worker's batches of two samples in each of three epochs."""
        indices, made = multiprocessing.Queue(), multiprocessing.Queue()
        done = multiprocessing.Event()
        worker = multiprocessing.Process(
            target=_worker_loop,
            args=(
                *(Five(), _DatasetKind.ITER, indices, made, done),
                *(True, default_collate_fn, drop_last, None, 0, 1, False, 0),
            ),
            daemon=True,
        )
        worker.start()
        self.addCleanup(worker.kill)
        epochs = []
        for _ in range(3):
            for number in range(4):
                indices.put((number, [None, None]))
            epochs.append([])
            while True:
                message = made.get(timeout=WAIT_S)
                if isinstance(message, _IterableDatasetStopIteration):
                    break
                epochs[-1].append(message[1][0].tolist())
            indices.put(_ResumeIteration())
            self.assertIsInstance(made.get(timeout=WAIT_S)[0], _ResumeIteration)
        done.set()
        indices.put(None)
        worker.join(WAIT_S)
        self.assertEqual(worker.exitcode, 0)
        return epochs

    def test_an_iterable_dataset_keeps_its_last_batch_in_every_epoch(self):
        self.assertEqual(self.epochs(False), [[[0, 1], [2, 3], [4]]] * 3)

    def test_drop_last_drops_the_last_batch_in_every_epoch(self):
        self.assertEqual(self.epochs(True), [[[0, 1], [2, 3]]] * 3)


if __name__ == "__main__":
    unittest.main()
