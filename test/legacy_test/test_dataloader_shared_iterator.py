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
"""Several threads that take batches from one iterator over a DataLoader."""

from __future__ import annotations

import threading
import time
import unittest
from collections import Counter
from itertools import chain
from typing import Any
from unittest import mock

from concurrent_base import WAIT_S, Worker, in_thread, wait_until

import paddle
from paddle.io import DataLoader, Dataset, IterableDataset, reader
from paddle.io.dataloader.dataloader_iter import _DataLoaderIterMultiProcess
from paddle.multiprocessing import WorkerThread

SAMPLES = 60
READERS = 4
# How a DataLoader makes its batches.
KINDS = {
    "no workers": {},
    "processes": {"num_workers": 2},
    "threads": {"num_workers": 2, "worker_type": "thread"},
    "persistent processes": {"num_workers": 2, "persistent_workers": True},
    "persistent threads": {
        "num_workers": 2,
        "worker_type": "thread",
        "persistent_workers": True,
    },
}


class Numbers(Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, i):
        return paddle.to_tensor([i], "int64")


class SlowNumbers(Numbers):
    def __getitem__(self, i):
        time.sleep(0.01)
        return super().__getitem__(i)


class EmptyError(ValueError):
    """An error that is false."""

    def __len__(self):
        return 0


class FailsAtTen(Numbers):
    def __getitem__(self, i):
        if i == 10:
            raise EmptyError("no tenth sample")
        return super().__getitem__(i)


class Blocked(IterableDataset):
    """Its sample after the first comes once `proceed` is set."""

    def __init__(self):
        self.asked, self.proceed = threading.Event(), threading.Event()

    def __iter__(self):
        yield paddle.zeros([1])
        self.asked.set()
        assert self.proceed.wait(WAIT_S)
        yield paddle.ones([1])


def numbers_in(batches: Any) -> list[int]:
    return [batch.item() for batch in batches]


class TestReaders(unittest.TestCase):
    def setUp(self):
        self.addCleanup(paddle.set_device, paddle.get_device())
        paddle.set_device("cpu")

    def each_kind(self, dataset_type=Numbers):
        return [
            (name, DataLoader(dataset_type(), batch_size=None, **arguments))
            for name, arguments in KINDS.items()
        ]

    def test_each_batch_goes_to_one_thread(self):
        for name, loader in self.each_kind():
            with self.subTest(kind=name):
                for _ in range(2):
                    iterator = iter(loader)
                    readers = [
                        Worker(numbers_in, iterator) for _ in range(READERS)
                    ]
                    taken = [reader.result() for reader in readers]
                    self.assertEqual(
                        sorted(chain(*taken)), list(range(SAMPLES))
                    )
                    for numbers in taken:
                        self.assertEqual(numbers, sorted(numbers))

    def test_an_iterator_stays_at_its_end(self):
        for name, loader in self.each_kind():
            with self.subTest(kind=name):
                iterator = iter(loader)
                self.assertEqual(len(numbers_in(iterator)), SAMPLES)
                for _ in range(3):
                    self.assertRaises(StopIteration, next, iterator)
                self.assertEqual(len(numbers_in(loader)), SAMPLES)

    def test_error_of_one_thread_is_not_the_end_of_the_data_for_others(self):
        for name, loader in self.each_kind(FailsAtTen):
            with self.subTest(kind=name):
                iterator = iter(loader)
                with self.assertRaisesRegex(EmptyError, "no tenth sample"):
                    in_thread(numbers_in, iterator)
                # Some get the number of an earlier thread.
                for _ in range(20):
                    with self.assertRaisesRegex(
                        RuntimeError,
                        "(?s)not complete.* another thread: .*no tenth sample",
                    ):
                        in_thread(lambda i=iterator: next(i))
                # The next epoch begins without the error.
                self.assertEqual(in_thread(next, iter(loader)).item(), 0)

    def test_threads_that_read_continue_with_an_epoch_that_another_begins(self):
        for workers in ({}, {"worker_type": "thread"}):
            loader = DataLoader(
                SlowNumbers(),
                batch_size=None,
                num_workers=2,
                persistent_workers=True,
                **workers,
            )
            with self.subTest(**workers):
                first = iter(loader)
                readers = [Worker(numbers_in, first) for _ in range(READERS)]
                time.sleep(0.1)  # they are in the middle of an epoch then
                self.assertIs(iter(loader), first)
                taken = Counter(numbers_in(first))
                for reader in readers:
                    taken.update(reader.result())
                # The batches of the epoch that was left, and a whole epoch.
                taken.subtract(range(SAMPLES))
                left = list(taken.elements())
                self.assertEqual(sorted(left), list(range(len(left))))
                self.assertGreaterEqual(min(taken.values()), 0)

    def test_threads_that_begin_the_first_epoch_at_once_share_its_workers(self):
        loader = DataLoader(
            Numbers(), batch_size=None, **KINDS["persistent processes"]
        )
        created = []

        def create(loader):
            created.append(loader)
            deadline = time.monotonic() + 0.3
            while len(created) == 1 and time.monotonic() < deadline:
                time.sleep(0.01)
            return _DataLoaderIterMultiProcess(loader)

        with mock.patch.object(reader, "_DataLoaderIterMultiProcess", create):
            threads = [Worker(iter, loader) for _ in range(READERS)]
            iterators = {thread.result() for thread in threads}
        self.assertEqual(iterators, {loader._iterator})
        self.assertEqual(len(created), 1)
        self.assertEqual(numbers_in(loader), list(range(SAMPLES)))

    def test_an_epoch_begins_before_waiting_threads_take_batches(self):
        loader = DataLoader(
            Numbers(), batch_size=None, **KINDS["persistent threads"]
        )
        iterator = iter(loader)
        turns = iterator._turns

        def hold_the_turn(held):
            with turns:
                held.set()
                wait_until(lambda: turns._beginning, "an epoch is to begin")

        # Without precedence, the reader would win some of them.
        for _ in range(10):
            next(iterator)
            held, waits = threading.Event(), threading.Event()
            wait = turns._wait

            def report_and_wait(wait=wait, waits=waits):
                waits.set()
                wait()

            holder = Worker(hold_the_turn, held)
            self.assertTrue(held.wait(WAIT_S))
            with mock.patch.object(turns, "_wait", report_and_wait):
                reader = Worker(next, iterator)
                # Its thread has the lock of the turns until it sleeps.
                self.assertTrue(waits.wait(WAIT_S))
            self.assertIs(iter(loader), iterator)
            holder.result()
            self.assertEqual(reader.result().item(), 0)

    def test_a_thread_does_not_wait_for_itself(self):
        iterator = iter(DataLoader(Numbers(), batch_size=None))

        def take_after_an_interrupted_call() -> int:
            # A signal handler that raises may skip the end of the turn.
            iterator._turns.__enter__()
            return next(iterator).item()

        self.assertEqual(in_thread(take_after_an_interrupted_call), 0)

    def test_a_worker_thread_that_waits_for_its_turn_can_be_stopped(self):
        dataset = Blocked()
        iterator = iter(DataLoader(dataset, batch_size=None))
        self.assertEqual(next(iterator).item(), 0)
        first = Worker(next, iterator)
        self.assertTrue(dataset.asked.wait(WAIT_S))
        second = WorkerThread(next, [iterator])
        second.start()
        time.sleep(0.1)  # it waits by then, most likely; if not, it ends, too
        second.stop()
        second.join(WAIT_S)
        self.assertFalse(second.is_alive())
        self.assertTrue(first.is_alive())
        dataset.proceed.set()
        self.assertEqual(first.result().item(), 1)

    def test_a_worker_thread_stopped_between_batches_leaves_the_others_theirs(
        self,
    ):
        def take_two(iterator, took, proceed):
            next(iterator)
            took.set()
            proceed.wait(WAIT_S)
            next(iterator)

        for name, loader in self.each_kind():
            with self.subTest(kind=name):
                iterator = iter(loader)
                took, proceed = threading.Event(), threading.Event()
                worker = WorkerThread(take_two, [iterator, took, proceed])
                worker.start()
                self.assertTrue(took.wait(WAIT_S))
                worker.stop()
                proceed.set()
                worker.join(WAIT_S)
                self.assertEqual(numbers_in(iterator), list(range(1, SAMPLES)))


if __name__ == "__main__":
    unittest.main()
