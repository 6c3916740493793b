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
"""Worker processes of a DataLoader end when their parent has ended."""

import contextlib
import multiprocessing
import os
import select
import signal
import sys
import time
import unittest

from paddle.io import DataLoader, Dataset
from paddle.io.dataloader.worker import ParentWatchDog

WAIT_S = 60


def report(pipe: int, parent: int) -> None:
    """Writes whether the parent counts as alive, once it has ended."""
    deadline = time.monotonic() + WAIT_S
    while os.getppid() == parent and time.monotonic() < deadline:
        time.sleep(0.01)
    os.write(pipe, b"alive" if ParentWatchDog().is_alive() else b"dead")


def start_and_die(pipe: int) -> None:
    context = multiprocessing.get_context("fork")
    context.Process(target=report, args=(pipe, os.getpid())).start()
    os.kill(os.getpid(), signal.SIGKILL)


class Numbers(Dataset):
    def __getitem__(self, i):
        return i

    def __len__(self):
        return 8


class Held(Numbers):
    """Numbers that are loaded only after `gate` is set, but for the first."""

    def __init__(self, gate):
        self.gate = gate

    def __getitem__(self, i):
        if i > 0:
            self.gate.wait(WAIT_S)
        return i


def load_and_die(pipe: int, lock_results: bool) -> None:
    gate = multiprocessing.get_context("fork").Event()
    batches = iter(DataLoader(Held(gate), num_workers=1))
    next(batches)
    if lock_results:
        # As a killed worker leaves it.
        batches._data_queue._wlock.acquire()
    gate.set()
    os.write(pipe, str(batches._workers[0].pid).encode())
    os.kill(os.getpid(), signal.SIGKILL)


@unittest.skipUnless(sys.platform == "linux", "needs worker processes")
class TestWorkers(unittest.TestCase):
    def check(self, lock_results):
        ours, theirs = os.pipe()
        self.addCleanup(os.close, ours)
        process = multiprocessing.get_context("fork").Process(
            target=load_and_die, args=(theirs, lock_results)
        )
        process.start()
        os.close(theirs)
        process.join(WAIT_S)
        self.assertFalse(process.is_alive())
        worker = int(os.read(ours, 20))
        # The worker has inherited the other end of the pipe.
        ready, _, _ = select.select([ours], [], [], WAIT_S)
        if not ready:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
        self.assertEqual(ready, [ours])
        self.assertEqual(os.read(ours, 1), b"")

    def test_a_worker_that_waits_for_samples_ends_after_its_parent(self):
        self.check(lock_results=False)

    def test_a_worker_that_cannot_write_results_ends_after_its_parent(self):
        self.check(lock_results=True)


@unittest.skipUnless(sys.platform == "linux", "needs worker processes")
class TestParentWatchDog(unittest.TestCase):
    def test_notices_a_parent_that_died_while_the_worker_started(self):
        ours, theirs = os.pipe()
        self.addCleanup(os.close, ours)
        process = multiprocessing.get_context("fork").Process(
            target=start_and_die, args=(theirs,)
        )
        process.start()
        os.close(theirs)
        process.join(WAIT_S)
        ready, _, _ = select.select([ours], [], [], WAIT_S)
        self.assertEqual(ready, [ours])
        self.assertEqual(os.read(ours, 5), b"dead")

    def test_sees_a_living_parent(self):
        self.assertTrue(ParentWatchDog().is_alive())
        receive, send = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.get_context("fork").Process(
            target=lambda: send.send(ParentWatchDog().is_alive())
        )
        process.start()
        self.assertTrue(receive.poll(WAIT_S))
        self.assertTrue(receive.recv())
        process.join(WAIT_S)


if __name__ == "__main__":
    unittest.main()
