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
"""Iterators over a DataLoader that are dropped before their last batch."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
import unittest
import weakref
from unittest import mock

import numpy as np
from concurrent_base import (
    WAIT_S,
    in_fork,
    in_thread,
    pristine_environment,
    run_command,
    script_command,
    wait_until,
    wait_until_threads_end,
)
from forked_script import run_forked_script

from paddle.base import core
from paddle.io import DataLoader, Dataset
from paddle.io.dataloader import iterator_lifetime

HAS_FORK = sys.platform == "linux"
needs_fork = unittest.skipUnless(HAS_FORK, "no worker processes here")

# Of core, which has them only where worker processes exist.
PROCESS_FUNCTIONS = (
    "_erase_process_pids",
    "_set_process_pids",
    "_set_process_signal_handler",
    "_throw_error_if_process_failed",
)

SCRIPT = """
import os
import numpy as np
import paddle

class Numbers(paddle.io.Dataset):
    def __getitem__(self, i):
        return np.array(i)

    def __len__(self):
        return 100

batches = iter(paddle.io.DataLoader(Numbers(), num_workers={workers}))
next(batches)
"""


class Numbers(Dataset):
    def __getitem__(self, i):
        return np.array(i)

    def __len__(self):
        return 100


class Held(Numbers):
    """Numbers that are loaded only after `gate` is set, but for the first."""

    def __init__(self, gate):
        self.gate = gate

    def __getitem__(self, i):
        if i > 0 and not self.gate.wait(WAIT_S):
            raise AssertionError("nobody has set the gate")
        return np.array(i)


class Large(Numbers):
    """Samples that do not fit into a pipe."""

    def __getitem__(self, i):
        return np.zeros(3_000_000)


class Failing(Numbers):
    def __getitem__(self, i):
        raise ValueError


def begin(dataset, **options):
    """Returns an iterator that has yielded one batch."""
    batches = iter(DataLoader(dataset, **options))
    next(batches)
    return batches


class DroppedTestCase(unittest.TestCase):
    def setUp(self):
        self.threads = set(threading.enumerate())
        self.processes = set(multiprocessing.active_children())
        self.addCleanup(wait_until_threads_end, self.threads)

    def check_ended(self):
        wait_until(
            lambda: self.processes.issuperset(
                multiprocessing.active_children()
            ),
            "the processes end",
        )
        wait_until_threads_end(self.threads)


class TestEnd(DroppedTestCase):
    def test_leaving_a_loop_ends_its_reader_thread(self):
        for _ in DataLoader(Numbers()):
            break
        self.check_ended()

    def test_leaving_a_loop_needs_no_functions_for_processes(self):
        for name in PROCESS_FUNCTIONS:
            if hasattr(core, name):
                patch = mock.patch.object(core, name)
                patch.start()
                self.addCleanup(patch.stop)
                delattr(core, name)
        for _ in DataLoader(Numbers()):
            break
        self.check_ended()

    @needs_fork
    def test_leaving_a_loop_ends_its_worker_processes(self):
        for options in ({}, {"use_shared_memory": False}):
            for _ in DataLoader(Numbers(), num_workers=2, **options):
                break
            self.check_ended()

    @needs_fork
    def test_persistent_workers_end_with_their_loader(self):
        loader = DataLoader(Numbers(), num_workers=2, persistent_workers=True)
        for _ in loader:
            break
        workers = set(multiprocessing.active_children()) - self.processes
        self.assertEqual(len(workers), 2)
        del loader
        self.check_ended()

    @needs_fork
    def test_the_workers_of_a_failed_dataset_end(self):
        batches = iter(DataLoader(Failing(), num_workers=2))
        with self.assertRaises(ValueError):
            next(batches)
        del batches
        self.check_ended()

    @needs_fork
    def test_a_pending_error_of_the_sampler_does_not_keep_the_iterator(self):
        def generator():
            yield [0]
            raise ValueError

        class Sampler:
            def __iter__(self):
                return self

            def __next__(self):
                raise ValueError from KeyError("the cause")

        gc.disable()
        self.addCleanup(gc.enable)
        for samples, workers in (
            (generator(), "process"),
            (Sampler(), "process"),
            (generator(), "thread"),
            (Sampler(), "thread"),
        ):
            with self.subTest(samples, workers=workers):
                batches = iter(
                    DataLoader(
                        Numbers(),
                        batch_sampler=samples,
                        num_workers=2,
                        worker_type=workers,
                    )
                )
                reference = weakref.ref(batches)
                del batches
                self.assertIsNone(reference())

    @needs_fork
    def test_garbage_collection_of_an_iterator_ends_its_workers(self):
        cycle = [begin(Numbers(), num_workers=2)]
        cycle.append(cycle)
        del cycle
        in_thread(gc.collect)
        self.check_ended()

    def check_held(self, gate, **options):
        """Drops an iterator that is loading a sample, which `gate` holds up."""
        self.addCleanup(gate.set)
        batches = begin(Held(gate), **options)
        with mock.patch.object(iterator_lifetime, "_WAIT_S", 0.01):
            del batches
        gate.set()
        self.check_ended()

    def test_a_reader_thread_ends_after_the_sample_that_it_loads(self):
        self.check_held(threading.Event())

    @needs_fork
    def test_a_worker_process_ends_after_the_batch_that_it_makes(self):
        gate = multiprocessing.get_context("fork").Event()
        self.check_held(gate, num_workers=2)

    @needs_fork
    def test_workers_that_are_killed_within_a_result_are_not_waited_for(self):
        handler = signal.getsignal(signal.SIGCHLD)
        self.addCleanup(signal.signal, signal.SIGCHLD, handler)
        for _ in range(12):
            iterators = [begin(Large(), num_workers=2, use_shared_memory=False)]
            # Paddle's handler would raise an error in this test.
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            time.sleep(0.03)
            for worker in iterators[0]._workers:
                os.kill(worker.pid, signal.SIGKILL)
            in_thread(iterators.clear)
        self.check_ended()

    def test_nothing_stays_if_there_can_be_no_reader(self):
        reader = mock.patch.object(
            core, "create_py_reader", side_effect=ValueError("no reader")
        )
        for workers in (0, 2) if HAS_FORK else (0,):
            with reader, self.assertRaisesRegex(ValueError, "no reader"):
                iter(DataLoader(Numbers(), num_workers=workers))
            self.check_ended()

    def test_batches_outlive_their_iterator(self):
        for workers in (0, 2) if HAS_FORK else (0,):
            batches = iter(
                DataLoader(Numbers(), batch_size=50, num_workers=workers)
            )
            batch = next(batches)
            del batches
            self.assertEqual(batch.tolist(), [*range(50)])


@unittest.skipUnless(hasattr(os, "fork"), "no fork here")
class TestFork(DroppedTestCase):
    def check(self, in_child):
        """Calls `in_child` in a forked child with an iterator, and checks that
        the iterator still works here."""
        for workers in (0, 2):
            # The only reference, which the child may drop.
            iterators = [begin(Numbers(), num_workers=workers)]
            in_fork(in_child, iterators)
            self.assertEqual(len([*iterators[0]]), 99)

    def test_a_child_may_drop_an_iterator_of_its_parent(self):
        def drop(iterators):
            iterators.clear()
            gc.collect()

        self.check(drop)

    def test_a_child_may_drop_an_iterator_at_its_end(self):
        for workers in (0, 2):
            iterators = [iter(DataLoader(Numbers(), num_workers=workers))]
            for _ in iterators[0]:
                pass
            in_fork(iterators.clear)

    def test_using_an_iterator_of_the_parent_is_an_error(self):
        def take(iterators):
            with self.assertRaisesRegex(RuntimeError, f"{os.getppid()}.*again"):
                next(iterators[0])

        self.check(take)

    def test_a_child_gets_persistent_workers_of_its_own(self):
        loader = DataLoader(Numbers(), num_workers=2, persistent_workers=True)
        next(iter(loader))

        def iterate(loaders):
            self.assertEqual(len([*loaders[0]]), 100)
            loaders.clear()

        loaders = [loader]
        del loader
        in_fork(iterate, loaders)
        self.assertEqual(len([*loaders[0]]), 100)


class TestExit(unittest.TestCase):
    def run_script(self, workers, end=""):
        script = SCRIPT.format(workers=workers) + end
        run_forked_script(self, script)

    def test_a_program_exits_while_an_iterator_exists(self):
        for workers in (0, 2) if HAS_FORK else (0,):
            self.run_script(workers)

    def test_a_daemon_thread_ends_in_a_loop_over_batches(self):
        for workers in (0, 2) if HAS_FORK else (0,):
            self.run_script(
                workers,
                """
import threading
import time

class Slow(Numbers):
    def __getitem__(self, i):
        time.sleep(0.001)
        return np.array(i)

    def __len__(self):
        return 1_000_000

class FreedSlowly:
    # Python frees this object while it exits. Daemon threads run meanwhile.
    def __del__(self, sleep=time.sleep):
        sleep(0.5)

freed_slowly = FreedSlowly()
started = threading.Event()

def read():
    for _ in batches:
        started.set()
    os._exit(1)  # The epoch has not ended.

batches = iter(paddle.io.DataLoader(Slow(), num_workers=batches._num_workers))
threading.Thread(target=read, daemon=True).start()
started.wait()
""",
            )

    @needs_fork
    def test_exit_does_not_wait_for_persistent_workers_between_epochs(self):
        self.run_script(
            2,
            f"""
from paddle.io.dataloader import iterator_lifetime

iterator_lifetime.MP_STATUS_CHECK_INTERVAL = {2 * WAIT_S}
loader = paddle.io.DataLoader(
    Numbers(), num_workers=2, persistent_workers=True
)
assert len([*loader]) == 100
""",
        )

    def test_exit_does_not_wait_for_readers_of_a_dropped_iterator(self):
        self.run_script(
            0,
            f"""
import time
from paddle.io.dataloader import iterator_lifetime

class Slow(Numbers):
    def __getitem__(self, i):
        time.sleep(2)
        return np.array(i)

iterator_lifetime.MP_STATUS_CHECK_INTERVAL = {2 * WAIT_S}
# Its thread ends after this drop has stopped waiting for it.
iterator_lifetime._WAIT_S = 0.1
next(iter(paddle.io.DataLoader(Slow())))
""",
        )

    def test_the_thread_of_an_iterator_without_a_length_ends_at_exit(self):
        # Handlers run in the reverse order, so this one after Paddle's.
        check = """
import atexit
atexit.register(lambda: batches._thread.is_alive() and os._exit(1))
"""
        batches = """
batches = iter(paddle.io.DataLoader(Numbers(), batch_size=None))
next(batches)
"""
        script = check + SCRIPT.format(workers=0) + batches
        run_command(self, script_command(script), pristine_environment())

    @unittest.skipUnless(hasattr(os, "fork"), "no fork here")
    def test_a_forked_child_exits_with_an_iterator_of_its_parent(self):
        # Without worker processes: Python itself terminates those of the
        # parent when a child that os.fork made exits.
        self.run_script(
            0,
            """
if child := os.fork():
    assert os.waitpid(child, 0)[1] == 0
    assert len([*batches]) == 99
""",
        )


if __name__ == "__main__":
    unittest.main()
