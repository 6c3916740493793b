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
"""How an epoch of persistent worker processes begins."""

import pathlib
import signal
import tempfile
import time
import unittest
from typing import Callable

import numpy as np
from concurrent_base import Worker, in_thread, wait_until

from paddle.io import DataLoader, Dataset


class Held(Dataset):
    """Its samples after the first wait for the file `gate`. A process killed
    in `wait` of a `multiprocessing.Event` would make its `set` wait forever."""

    def __init__(self, gate):
        self.gate = gate

    def __len__(self):
        return 4

    def __getitem__(self, index):
        if index > 0:
            wait_until(self.gate.exists, "the gate opens")
        return np.array([index])


class TestBeginOfEpoch(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.gate = pathlib.Path(folder.name, "gate")
        self.addCleanup(self.gate.touch)
        self.loader = DataLoader(
            Held(self.gate), num_workers=2, persistent_workers=True
        )
        self.iterator = iter(self.loader)
        self.assertEqual(next(self.iterator).item(), 0)

    def once_an_epoch_begins(self, function: Callable[[], None]) -> None:
        """Calls `function` on another thread, because only this one is on the
        streams of the iterator."""

        def wait_and_call() -> None:
            wait_until(
                lambda: self.iterator._resume_worker_cnt, "the epoch begins"
            )
            function()

        self.addCleanup(Worker(wait_and_call).result)

    def test_it_waits_for_a_worker_that_makes_a_sample_of_the_last_epoch(self):
        def open_gate():
            time.sleep(0.1)
            was_waiting.append(self.iterator._resume_worker_cnt > 0)
            self.gate.touch()

        was_waiting = []
        self.once_an_epoch_begins(open_gate)
        self.assertIs(iter(self.loader), self.iterator)
        self.assertEqual(was_waiting, [True])
        self.assertEqual([b.item() for b in self.iterator], [*range(4)])

    def test_a_worker_that_is_killed_meanwhile_is_an_error(self):
        # Paddle's handler raises an error, but in the main thread only.
        handler = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self.addCleanup(signal.signal, signal.SIGCHLD, handler)
        worker = self.iterator._workers[1]
        self.once_an_epoch_begins(worker.kill)
        # Paddle 3.3.0 waits forever.
        with self.assertRaisesRegex(RuntimeError, "one of them failed or was"):
            iter(self.loader)
        self.assertEqual(worker.exitcode, -signal.SIGKILL)

    def test_an_epoch_can_begin_after_the_begin_of_another_was_interrupted(
        self,
    ):
        handler = signal.signal(signal.SIGALRM, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with self.assertRaises(KeyboardInterrupt):
            iter(self.loader)
        begin = Worker(iter, self.loader)
        time.sleep(0.1)  # the workers cannot begin yet
        self.gate.touch()
        batches = in_thread(list, begin.result())
        # A reader thread that failed may have passed on all of the first epoch.
        batches += in_thread(list, self.loader)
        self.assertEqual([b.item() for b in batches], [*range(4)] * 2)


if __name__ == "__main__":
    unittest.main()
