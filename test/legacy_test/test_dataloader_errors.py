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
"""Errors of datasets, samplers and collate functions."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import queue
import signal
import struct
import sys
import threading
import time
import traceback
import types
import unittest
import weakref
from multiprocessing.connection import Connection
from unittest import mock

import numpy as np
from concurrent_base import (
    WAIT_S,
    in_thread,
    wait_until,
    wait_until_threads_end,
)
from forked_script import run_forked_script

from paddle.io import DataLoader, Dataset, IterableDataset
from paddle.io.dataloader import dataloader_iter

CTRL_C = """
import os
import signal
import time
import numpy as np
import paddle

class Numbers(paddle.io.Dataset):
    interrupts = True

    def __getitem__(self, i):
        if i == 2 and self.interrupts:
            self.interrupts = False
            time.sleep(0.2)  # the loop waits for this sample by then
            os.kill(os.getppid(), signal.SIGINT)
        return np.array(i)

    def __len__(self):
        return 6

dataset = Numbers()
loader = paddle.io.DataLoader(
    dataset, batch_size=None, num_workers=1, persistent_workers=True
)
try:
    for _ in loader:
        pass
except KeyboardInterrupt:
    # That of new workers. The first one has a dataset of its own.
    dataset.interrupts = False
assert not dataset.interrupts
assert [batch.item() for batch in loader] == [*range(6)]
"""

# Has a worker that never gets a batch.
EXIT_AFTER_ERROR = """
import sys
import paddle

class Failing(paddle.io.Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, i):
        raise ValueError

loader = paddle.io.DataLoader(
    Failing(),
    batch_size=2,
    num_workers=2,
    persistent_workers=bool(sys.argv[-1]),
)
batches = iter(loader)
try:
    next(batches)
except ValueError:
    pass
"""

# How a DataLoader makes its batches.
KINDS = {
    "no workers": {},
    "no buffer": {"use_buffer_reader": False},
    "threads": {"num_workers": 2, "worker_type": "thread"},
}
if sys.platform == "linux":
    KINDS |= {
        "processes": {"num_workers": 2},
        "persistent processes": {"num_workers": 2, "persistent_workers": True},
    }


class DeliberateError(Exception):
    pass


class ErrorOfSample(Exception):
    def __init__(self, index):
        super().__init__("a bad sample")


class EmptyError(Exception):
    def __len__(self):
        return 0


class Numbers(Dataset):
    """The numbers from 0 to 7. Number 4 raises `error` if it is set."""

    def __init__(self, error=None):
        self.error = error

    def __getitem__(self, i):
        if i == 4 and self.error is not None:
            raise self.error
        return np.array(i)

    def __len__(self):
        return 8


class Stream(IterableDataset):
    def __iter__(self):
        return iter(np.arange(8))


def read_into(taken, loader):
    for batch in loader:
        taken.append(batch.tolist())


class TestErrors(unittest.TestCase):
    def setUp(self):
        self.before = set(threading.enumerate())

    def tearDown(self):
        wait_until_threads_end(self.before)

    def check(self, dataset, error, message, **options):
        """Checks that `error` is raised after the preceding batches, and
        returns its traceback as text."""

        def read():
            taken = []
            try:
                for batch in DataLoader(dataset, batch_size=2, **options):
                    taken.append(batch.tolist())
            except error as raised:
                self.assertRegex(str(raised), message)
                return taken, traceback.format_exc()
            raise AssertionError("the epoch has ended")

        # On a thread, so that a loop that never ends cannot block the test.
        taken, trace = in_thread(read)
        self.assertEqual(taken, [[0, 1], [2, 3]])
        return trace

    def test_an_error_of_the_dataset_is_raised_with_its_traceback(self):
        for buffered in (True, False):
            trace = self.check(
                Numbers(DeliberateError("sample 4")),
                DeliberateError,
                "sample 4",
                use_buffer_reader=buffered,
            )
            self.assertIn("__getitem__", trace)

    def test_system_exit_of_the_dataset_is_raised_too(self):
        self.check(Numbers(SystemExit(3)), SystemExit, "3")

    def test_an_error_of_the_collate_function(self):
        def collate(samples):
            if 4 in samples:
                raise DeliberateError("sample 4")
            return np.stack(samples)

        for dataset in (Numbers(), Stream()):
            trace = self.check(
                dataset, DeliberateError, "sample 4", collate_fn=collate
            )
            self.assertIn("in collate", trace)

    def test_an_error_of_the_sampler(self):
        def samples():
            yield [0, 1]
            yield [2, 3]
            raise DeliberateError

        taken = []
        loader = DataLoader(Numbers(), batch_sampler=samples())
        with self.assertRaises(DeliberateError):
            in_thread(read_into, taken, loader)
        self.assertEqual(taken, [[0, 1], [2, 3]])

    def test_a_batch_that_cannot_become_tensors(self):
        def collate(samples):
            return np.array([object()] if 4 in samples else samples)

        for buffered in (True, False):
            self.check(
                Numbers(),
                ValueError,
                "(?i)type",
                collate_fn=collate,
                use_buffer_reader=buffered,
            )

    def test_stop_iteration_of_a_dataset_does_not_end_the_epoch(self):
        self.check(Numbers(StopIteration()), RuntimeError, "StopIteration")

    def test_stop_iteration_of_a_collate_function_does_not_end_the_epoch(self):
        def collate(samples):
            if 4 in samples:
                raise StopIteration
            return np.stack(samples)

        for dataset in (Numbers(), Stream()):
            self.check(
                dataset, RuntimeError, "StopIteration", collate_fn=collate
            )

    def test_worker_threads_refuse_stop_iteration_of_a_collate_function(self):
        def collate(samples):
            raise StopIteration

        with self.assertRaisesRegex(RuntimeError, "StopIteration"):
            next(
                iter(
                    DataLoader(
                        Stream(),
                        collate_fn=collate,
                        num_workers=1,
                        worker_type="thread",
                    )
                )
            )

    def test_an_epoch_without_an_error_ends(self):
        for dataset in (Numbers(), Stream()):
            self.assertEqual(
                [b.tolist() for b in DataLoader(dataset, batch_size=4)],
                [[0, 1, 2, 3], [4, 5, 6, 7]],
            )


class TestAfterAnError(unittest.TestCase):
    def test_next_after_an_error_raises_stop_iteration(self):
        for kind, options in KINDS.items():
            with self.subTest(kind=kind):
                batches = iter(
                    DataLoader(Numbers(DeliberateError()), **options)
                )
                with self.assertRaises(DeliberateError):
                    for _ in batches:
                        pass
                for _ in range(2):
                    self.assertRaises(StopIteration, next, batches)

    @unittest.skipUnless(hasattr(signal, "SIGALRM"), "no SIGALRM here")
    def test_ctrl_c_ends_the_iterator(self):
        class Interrupting(Numbers):
            def __getitem__(self, i):
                if i == 2:
                    wait_until(
                        lambda: len(taken) == 2 and not batches._may_read,
                        "the loop waits for this sample",
                    )
                    os.kill(os.getpid(), signal.SIGALRM)
                return super().__getitem__(i)

        handler = signal.signal(signal.SIGALRM, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGALRM, handler)
        taken = []
        batches = iter(DataLoader(Interrupting()))
        with self.assertRaises(KeyboardInterrupt):
            for batch in batches:
                taken.append(batch)
        self.assertEqual(len(taken), 2)
        self.assertRaises(StopIteration, next, batches)

    @unittest.skipUnless(sys.platform == "linux", "no worker processes here")
    def test_an_epoch_after_ctrl_c_is_complete(self):
        run_forked_script(self, CTRL_C)


class KilledWithinResult(Dataset):
    """Large samples. The worker of sample 1 is killed while it writes it."""

    def __getitem__(self, i):
        if i == 1:
            send = Connection._send

            def send_part(connection, message):
                send(connection, message[:1000])
                if len(message) > 1000:
                    os.kill(os.getpid(), signal.SIGKILL)

            Connection._send = send_part
        return "x" * (1 << 20)

    def __len__(self):
        return 8


class Unreadable:
    """Unpickling it raises FileNotFoundError."""

    def __reduce__(self):
        return open, ("/no/such/file",)


@unittest.skipUnless(sys.platform == "linux", "no worker processes here")
class TestWorkerProcesses(unittest.TestCase):
    def test_an_error_of_the_sampler_comes_after_the_batches_before_it(self):
        def samples():
            yield [0, 1]
            yield [2, 3]
            raise DeliberateError

        for persistent in (False, True):
            loader = DataLoader(
                Numbers(),
                batch_sampler=samples(),
                num_workers=2,
                persistent_workers=persistent,
            )
            taken = []
            with self.assertRaises(DeliberateError) as caught:
                for batch in loader:
                    taken.append(batch.tolist())
            self.assertEqual(taken, [[0, 1], [2, 3]])
            self.assertIn("in samples", str(caught.exception.__cause__))

    def test_an_error_is_raised_after_the_batches_that_precede_it(self):
        class Slow(Numbers):
            def __getitem__(self, i):
                if i < 2:
                    time.sleep(0.2)
                return super().__getitem__(i)

        # The worker of the second batch fails long before the first one comes.
        dataset = Slow(DeliberateError("sample 4"))
        for persistent in (False, True):
            for shared in (False, True):
                loader = DataLoader(
                    dataset,
                    batch_size=4,
                    num_workers=2,
                    persistent_workers=persistent,
                    use_shared_memory=shared,
                )
                taken = []
                with self.assertRaisesRegex(
                    DeliberateError, "(?s)in __getitem__.*sample 4"
                ):
                    in_thread(read_into, taken, loader)
                self.assertEqual(taken, [[0, 1, 2, 3]])

    def test_stop_iteration_in_a_worker_does_not_end_the_epoch(self):
        def stop(*args):
            raise StopIteration

        class Stops(Numbers):
            def __getitem__(self, i):
                return stop() if i == 4 else super().__getitem__(i)

        class StopsAtOnce(Stream):
            __iter__ = stop

        for dataset, options in (
            (Stops(), {}),
            (Stops(), {"persistent_workers": True}),
            (StopsAtOnce(), {}),
            (Numbers(), {"worker_init_fn": stop}),
        ):
            loader = DataLoader(dataset, num_workers=2, **options)
            with self.assertRaisesRegex(RuntimeError, "StopIteration"):
                in_thread(lambda loader=loader: [*iter(loader)])

    def test_an_error_of_the_sampler_does_not_replace_that_of_a_worker(self):
        def samples():
            yield from ([0], [4], [1], [2])
            raise KeyError

        batches = iter(
            DataLoader(
                Numbers(DeliberateError()),
                batch_sampler=samples(),
                num_workers=2,
            )
        )
        batches._thread.join(WAIT_S)  # it has the error of the worker
        self.assertEqual(in_thread(next, batches).tolist(), [0])
        with self.assertRaises(DeliberateError):
            in_thread(next, batches)

    def test_a_batch_that_cannot_become_tensors_is_an_error_in_order(self):
        def collate(samples):
            return np.array([object()] if 4 in samples else samples)

        loader = DataLoader(
            Numbers(),
            batch_size=2,
            num_workers=2,
            collate_fn=collate,
            use_shared_memory=False,
        )
        taken = []
        with self.assertRaisesRegex(ValueError, "(?i)type"):
            in_thread(read_into, taken, loader)
        self.assertEqual(taken, [[0, 1], [2, 3]])

    def test_an_error_that_is_false_is_an_error(self):
        batches = iter(DataLoader(Numbers(EmptyError()), num_workers=2))
        with self.assertRaises(EmptyError):
            in_thread(list, batches)

    def test_program_exits_after_an_error(self):
        for persistent in ("", "persistent"):
            run_forked_script(self, EXIT_AFTER_ERROR, persistent)

    def test_an_error_does_not_wait_for_other_workers(self):
        gate = multiprocessing.get_context("fork").Event()
        self.addCleanup(gate.set)

        class Blocked(Numbers):
            def __getitem__(self, i):
                if i == 1:
                    gate.wait(WAIT_S)
                raise DeliberateError

        loader = DataLoader(Blocked(), batch_size=None, num_workers=2)
        with self.assertRaises(DeliberateError):
            in_thread(next, iter(loader))
        self.assertFalse(gate.is_set())

    def test_an_error_of_an_init_function_is_raised(self):
        def fail(worker):
            raise DeliberateError(f"worker {worker}")

        loader = DataLoader(Numbers(), num_workers=2, worker_init_fn=fail)
        with self.assertRaisesRegex(DeliberateError, "worker 0"):
            in_thread(list, loader)

    def test_an_error_of_iter_in_a_later_epoch_is_raised_there(self):
        class FailsLater(Stream):
            failing = False

            def __iter__(self):
                if self.failing:
                    raise DeliberateError("second epoch")
                self.failing = True
                return super().__iter__()

        def read():
            loader = DataLoader(
                FailsLater(), num_workers=1, persistent_workers=True
            )
            self.assertEqual(len([*iter(loader)]), 8)
            with self.assertRaisesRegex(DeliberateError, "second epoch"):
                [*iter(loader)]

        in_thread(read)

    def test_a_batch_that_cannot_be_unpickled_ends_the_loop(self):
        def collate(samples):
            return np.stack(samples), Unreadable()

        for shared in (True, False):
            loader = DataLoader(
                Numbers(),
                collate_fn=collate,
                num_workers=1,
                use_shared_memory=shared,
            )
            with self.assertRaisesRegex(FileNotFoundError, "/no/such/file"):
                in_thread(list, loader)

    def error_of_epoch(self, dataset, **options):
        """Returns the text of the error that an epoch raises."""
        loader = DataLoader(dataset, num_workers=1, **options)
        with self.assertRaises(Exception) as caught:
            in_thread(list, loader)
        return f"{type(caught.exception).__name__}: {caught.exception}"

    def test_an_error_whose_type_cannot_be_pickled_ends_the_loop(self):
        class LocalError(Exception):
            pass

        error = self.error_of_epoch(Numbers(LocalError("sample 4")))
        self.assertRegex(error, "(?s)^RuntimeError: .*LocalError: sample 4")

    def test_an_error_whose_type_takes_other_arguments_is_reported(self):
        def decode(samples):
            b"\xff".decode()

        def refuse(samples):
            raise ErrorOfSample(samples[0])

        for function, name in (
            (decode, "UnicodeDecodeError"),
            (refuse, "ErrorOfSample"),
        ):
            error = self.error_of_epoch(Numbers(), collate_fn=function)
            self.assertRegex(error, f"(?s)^RuntimeError: .*{name}")
            self.assertIn(f"in {function.__name__}", error)

    def test_a_batch_that_cannot_be_pickled_ends_the_loop(self):
        def collate(samples):
            return np.stack(samples), lambda: None

        one_file_per_tensor = {"PADDLE_DATALOADER_SHARED_BATCH": "0"}
        for shared, environment in (
            (True, {}),
            (True, one_file_per_tensor),
            (False, {}),
        ):
            with (
                self.subTest(shared=shared, environment=environment),
                mock.patch.dict(os.environ, environment),
            ):
                error = self.error_of_epoch(
                    Numbers(), collate_fn=collate, use_shared_memory=shared
                )
                self.assertRegex(error, "(?i)pickle local object")

    def test_indices_that_cannot_be_pickled_are_an_error_of_the_loop(self):
        def samples():
            yield [0, 1]
            yield [2, 3]
            yield (i for i in (4, 5))

        loader = DataLoader(Numbers(), batch_sampler=samples(), num_workers=1)
        taken = []
        with self.assertRaisesRegex(TypeError, "yielded <generator .* a list"):
            in_thread(read_into, taken, loader)
        self.assertEqual(taken, [[0, 1], [2, 3]])

    def test_a_worker_that_is_killed_within_a_result_ends_the_loop(self):
        handler = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self.addCleanup(signal.signal, signal.SIGCHLD, handler)
        # The handler would first raise the error on this thread.
        set_handler = mock.patch.object(
            dataloader_iter, "_set_SIGCHLD_handler", lambda: None
        )
        for shared in (True, False):
            # The other worker keeps the pipe open.
            loader = DataLoader(
                KilledWithinResult(),
                num_workers=2,
                timeout=1,
                use_shared_memory=shared,
            )
            with (
                set_handler,
                self.assertRaisesRegex(
                    RuntimeError, "1 workers exit unexpectedly, pids: [0-9]"
                ),
            ):
                in_thread(list, loader)


@unittest.skipUnless(sys.platform == "linux", "no worker processes here")
class TestReceive(unittest.TestCase):
    """Reads results of which only a part has arrived."""

    def setUp(self):
        # As in iterator_lifetime: importing it takes time.
        from paddle.io.dataloader.worker_results import receive

        self.woken, self.wake = multiprocessing.Pipe(duplex=False)
        self.worker = mock.Mock()
        self.iterator = types.SimpleNamespace(
            _data_queue=multiprocessing.Queue(),
            _thread_done_event=threading.Event(),
            _timeout=0.01,
            _woken=self.woken,
            _worker_status=[True],
            _workers=[self.worker],
        )
        self.receive = lambda: in_thread(receive, self.iterator)
        # As put() does.
        self.iterator._data_queue._sem.acquire()

    def write(self, part):
        os.write(self.iterator._data_queue._writer.fileno(), part)

    def test_the_rest_may_come_late(self):
        message = pickle.dumps("a result")
        rest = iter([message[:5], message[5:]])

        def is_alive():
            self.write(next(rest))
            return True

        self.worker.is_alive = is_alive
        self.write(struct.pack("!i", len(message)))
        self.assertEqual(self.receive(), "a result")

    def test_the_rest_may_come_just_before_the_worker_ends(self):
        message = pickle.dumps("a result")

        def is_alive():
            self.write(message)
            return False

        self.worker.is_alive = is_alive
        self.write(struct.pack("!i", len(message)))
        self.assertEqual(self.receive(), "a result")

    def test_a_worker_that_has_ended_as_it_should_is_not_an_error(self):
        self.iterator._worker_status.append(False)
        self.iterator._workers.append(mock.Mock(is_alive=lambda: False))
        self.test_the_rest_may_come_late()

    def test_nobody_reads_the_rest_of_an_incomplete_result(self):
        self.worker.is_alive = lambda: False
        self.write(struct.pack("!i", 100))
        with self.assertRaisesRegex(EOFError, "in the middle of a result"):
            self.receive()
        self.write(b"rest" * 4)
        with self.assertRaises(queue.Empty):
            self.iterator._data_queue.get_nowait()

    def test_a_reader_that_is_asked_to_end_does_not_wait_for_the_rest(self):
        self.worker.is_alive = lambda: True
        self.iterator._timeout = None
        self.write(struct.pack("!i", 100))
        self.iterator._thread_done_event.set()
        self.wake.send_bytes(b"wake up")
        with self.assertRaisesRegex(EOFError, "in the middle of a result"):
            self.receive()


@unittest.skipUnless(sys.platform == "linux", "no worker processes here")
class TestReferenceCycles(unittest.TestCase):
    def test_garbage_collection_of_a_failed_iterator_ends_its_workers(self):
        class Failing(Dataset):
            def __getitem__(self, i):
                raise ValueError

            def __len__(self):
                return 4

        before = set(multiprocessing.active_children())
        batches = iter(DataLoader(Failing(), num_workers=2))
        with self.assertRaises(ValueError):
            next(batches)
        batches._thread.join(WAIT_S)
        batches.cycle = batches
        del batches
        in_thread(gc.collect)
        self.assertLessEqual(set(multiprocessing.active_children()), before)

    def test_an_error_that_nobody_takes_does_not_keep_the_dataset(self):
        dataset = Numbers(DeliberateError())
        batches = iter(DataLoader(dataset, num_workers=1, prefetch_factor=8))
        next(batches)
        batches._thread.join(WAIT_S)
        dataset = weakref.ref(dataset)
        gc.disable()
        self.addCleanup(gc.enable)
        del batches
        wait_until(lambda: dataset() is None, "the dataset is freed")

    def test_an_error_of_a_worker_does_not_keep_the_dataset(self):
        def fail_and_drop():
            dataset = Numbers(DeliberateError())
            with self.assertRaises(DeliberateError):
                list(DataLoader(dataset, num_workers=1))
            return weakref.ref(dataset)

        gc.disable()
        self.addCleanup(gc.enable)
        dataset = in_thread(fail_and_drop)
        wait_until(lambda: dataset() is None, "the dataset is freed")


if __name__ == "__main__":
    unittest.main()
