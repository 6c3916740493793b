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
"""Worker threads that are stopped while they wait for a batch."""

from __future__ import annotations

import contextlib
import gc
import itertools
import multiprocessing
import operator
import socket
import sys
import threading
import unittest
from unittest import mock

import numpy as np
from concurrent_base import WAIT_S, wait_until
from test_interruption_points import (
    LONG,
    Reading,
    StopTestCase,
    StressTestCase,
    Waits,
    end,
)

from paddle.base import core
from paddle.incubate.multiprocessing.batch_source import BatchSource
from paddle.incubate.multiprocessing.interruptible import wait_for_key
from paddle.incubate.multiprocessing.worker_thread import WorkerThread
from paddle.io import BatchSampler, DataLoader, Dataset


class Held(Dataset):
    """A dataset that makes its samples only after `gate` is set."""

    def __init__(self, gate):
        self.gate = gate

    def __getitem__(self, i):
        if not self.gate.wait(WAIT_S):
            raise AssertionError("nobody has set the gate")
        return np.array(i)

    def __len__(self):
        return 8


class HeldSampler(BatchSampler):
    """Draws the sample 5 only after `gate` is set."""

    def __init__(self):
        self.is_waiting, self.gate = threading.Event(), threading.Event()

    def __iter__(self):
        for i in range(8):
            if i == 5:
                self.is_waiting.set()
                self.gate.wait(WAIT_S)
            yield [i]

    def __len__(self):
        return 8


def stop_waiting_reader(batches, name):
    """Stops a worker thread of that name while it waits for a batch."""
    worker = WorkerThread(lambda: next(batches), name=name)
    worker.start()
    wait_until(lambda: worker._wake, "the worker waits")
    worker.stop()
    end(worker)


class TestDataLoader(StopTestCase):
    def check_loader(self, gate, **options):
        """Checks that a worker that waits for a sample ends when it is stopped.
        After `gate` is set, the loader's threads and processes end, too."""
        self.addCleanup(gate.set)
        before = set(multiprocessing.active_children())
        loader = DataLoader(Held(gate), **options)
        self.check(lambda: list(loader))
        self.check_group(lambda: list(loader))
        # Ends the persistent workers.
        loader._iterator = None
        gate.set()
        gc.collect()
        wait_until(
            lambda: before.issuperset(multiprocessing.active_children()),
            "the processes end",
        )

    def test_a_worker_that_waits_for_a_loader_without_workers_ends(self):
        self.check_loader(threading.Event())

    def test_stopping_a_worker_that_has_its_batch_leaves_the_loader_alone(self):
        gate, go_on, taken = threading.Event(), threading.Event(), []
        gate.set()
        self.addCleanup(go_on.set)
        batches = iter(DataLoader(Held(gate)))

        def take():
            taken.append(next(batches).item())
            go_on.wait(WAIT_S)

        worker = WorkerThread(take)
        worker.start()
        wait_until(lambda: taken, "the worker has a batch")
        worker.stop()
        go_on.set()
        end(worker)
        self.assertEqual([batch.item() for batch in batches], [*range(1, 8)])

    def check_other_threads(self, gate, **options):
        """Checks the error of a thread that reads from an iterator after a
        worker that waited for it was stopped."""
        self.addCleanup(gate.set)
        batches = iter(DataLoader(Held(gate), **options))
        stop_waiting_reader(batches, "reader")
        gate.set()
        other = WorkerThread(lambda: next(batches), name="other")
        other.start()
        message = "WorkerThread 'reader' was stopped.*new iterator"
        with self.assertRaisesRegex(RuntimeError, message):
            other.join(WAIT_S)
        for _ in range(3):
            with self.assertRaisesRegex(RuntimeError, message):
                next(batches)

    def test_other_threads_get_an_error_that_says_who_was_stopped(self):
        self.check_other_threads(threading.Event())

    @unittest.skipUnless(sys.platform == "linux", "needs worker processes")
    def test_so_do_those_that_read_from_worker_processes(self):
        for persistent in (False, True):
            self.check_other_threads(
                multiprocessing.get_context("fork").Event(),
                num_workers=2,
                persistent_workers=persistent,
            )

    def test_the_reader_of_an_ended_iterator_is_not_entered_again(self):
        gate = threading.Event()
        self.addCleanup(gate.set)
        batches = iter(DataLoader(Held(gate)))
        stop_waiting_reader(batches, "first")
        # The destructor of the reader waits for its thread.
        gate.set()
        batches._reader = mock.Mock()
        with self.assertRaisesRegex(RuntimeError, "WorkerThread 'first'"):
            next(batches)
        batches._reader.read_next_list.assert_not_called()

    def test_stopping_a_worker_does_not_affect_others_with_worker_threads(
        self,
    ):
        gate = threading.Event()
        self.addCleanup(gate.set)
        batches = iter(
            DataLoader(Held(gate), num_workers=2, worker_type="thread")
        )
        stop_waiting_reader(batches, "reader")
        gate.set()
        self.assertEqual([batch.item() for batch in batches], [*range(8)])

    def test_a_worker_that_is_stopped_while_it_draws_samples_loses_no_batch(
        self,
    ):
        sampler, opened = HeldSampler(), threading.Event()
        self.addCleanup(sampler.gate.set)
        opened.set()
        batches = iter(
            DataLoader(
                Held(opened),
                batch_sampler=sampler,
                num_workers=2,
                worker_type="thread",
            )
        )
        taken = []

        def take():
            for batch in batches:
                taken.append(batch.item())

        worker = WorkerThread(take)
        worker.start()
        self.assertTrue(sampler.is_waiting.wait(WAIT_S))
        worker.stop()
        sampler.gate.set()
        end(worker)
        self.assertLess(len(taken), 8)
        rest = [batch.item() for batch in batches]
        self.assertEqual(taken + rest, [*range(8)])

    def test_a_worker_that_waits_for_worker_threads_ends(self):
        self.check_loader(
            threading.Event(), num_workers=2, worker_type="thread"
        )

    @unittest.skipUnless(sys.platform == "linux", "needs worker processes")
    def test_a_worker_that_waits_for_worker_processes_ends(self):
        for persistent in (False, True):
            self.check_loader(
                multiprocessing.get_context("fork").Event(),
                num_workers=2,
                persistent_workers=persistent,
            )


class Made(Dataset):
    """Samples that a function of their index makes."""

    def __init__(self, make):
        self.make = make

    def __getitem__(self, i):
        return np.array(self.make(i))

    def __len__(self):
        return Waits.LENGTH


def numbers(batches):
    return map(operator.methodcaller("item"), batches)


# Messages of a DataLoader's iterator.
STOPPED = "was stopped while it waited for a batch"
FAILED = "Blocking queue is killed"


class WaitsForBatches(Waits):
    """All of the waits that the guide to threads lists."""

    def add_all(self):
        if sys.platform == "linux":
            # Before there are threads, whose locks a forked process inherits.
            # Its reader thread ends within the timeout.
            self.load(num_workers=2, timeout=0.1)
        super().add_all()
        self.load()
        self.load(num_workers=2, worker_type="thread")
        self.read_source()
        if hasattr(core.libpaddle, "_process_group_shm"):
            self.wait_for_keys()

    def load(self, **options):
        dataset = Made(self.slow_number())
        batches = iter(DataLoader(dataset, **options))
        self.read(numbers(batches), ended=f"{STOPPED}|{FAILED}")
        if "worker_type" not in options:
            # After an error, the processes would stay.
            self.ends.append(batches._try_shutdown_all)

    def read_source(self):
        source = BatchSource(Made(self.slow_number()), nreaders=2)
        for rank in range(2):
            # Not among the readings: one reader ends with the other.
            batches = numbers(source.reader(rank))
            self.waits.append(Reading(batches, ended="because reader").take)

    def wait_for_keys(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        store = core.TCPStore("127.0.0.1", port, True, 1)
        # Another connection, as of another process.
        other = core.TCPStore("127.0.0.1", port, False, 1)
        keys = itertools.count()

        def wait():
            with contextlib.suppress(TimeoutError):
                wait_for_key(store, str(self.rng.randrange(100)), timeout=1)

        self.waits.append(wait)
        self.feeds.append(lambda: other.set(str(next(keys)), "value"))


class TestStress(StressTestCase):
    def test_workers_that_wait_for_random_things_and_batches_end(self):
        before = set(multiprocessing.active_children())
        self.check_stress(WaitsForBatches, rounds=100 if LONG else 5)
        gc.collect()
        wait_until(
            lambda: before.issuperset(multiprocessing.active_children()),
            "the processes end",
        )


if __name__ == "__main__":
    unittest.main()
