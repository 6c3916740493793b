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
"""Processes of `spawn`: success, all kinds of failures, invalid arguments."""

from __future__ import annotations

import errno
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import threading
import unittest
from multiprocessing import connection
from unittest import mock

from concurrent_base import WAIT_S
from multiprocessing_spawn_base import (
    SpawnTestCase,
    exit_with,
    over_start_methods,
    share,
    wait_forever,
)
from shared_tensor_base import (  # noqa: F401
    setUpModule,
    tearDownModule,
)

import paddle
from paddle.incubate.multiprocessing import spawned_process
from paddle.incubate.multiprocessing.processes import (
    ProcessExitedException,
    ProcessRaisedException,
    spawn,
    start_processes,
)

# Functions for processes.


def write_rank(rank, values, layer):
    values[rank] = rank + 1
    with paddle.no_grad():
        layer.weight[rank] = rank + 1


class HoldsALock(Exception):
    """An exception that can not be pickled."""

    def __init__(self):
        super().__init__("with a lock")
        self.lock = threading.Lock()


def raise_unpicklable(rank):
    if rank == 1:
        raise HoldsALock
    wait_forever(rank)


def raise_at_length(rank, length):
    raise ValueError("x" * length)


def answer(rank, connection):
    connection.send("ready")
    connection.send(connection.recv())


def raise_beside_a_thread(rank):
    threading.Thread(target=wait_forever, args=[rank]).start()
    raise ValueError("beside a thread")


def exit_all_with(rank, code):
    sys.exit(code)


def kill_oneself(rank, number):
    os.kill(os.getpid(), number)


def kill_oneself_in_the_report(rank):
    def write_half(self, buffer):
        os.write(self.fileno(), buffer[: len(buffer) // 2])
        os.kill(os.getpid(), signal.SIGKILL)

    connection.Connection._send = write_half
    raise ValueError("x" * 100_000)


def interrupt(rank, path):
    errors = os.open(path, os.O_WRONLY)
    os.dup2(errors, 1)
    os.dup2(errors, 2)
    raise KeyboardInterrupt


def start_one_that_raises(rank):
    start_processes(raise_at_length, (10,), start_method="fork")


class FailsToLoad:
    """An argument that can be sent but not received."""

    def __reduce__(self):
        return _raise, ()


def _raise():
    raise RuntimeError("can not be loaded")


class SentTwice:
    """An argument that can be sent to two processes, but not to a third."""

    count = 0

    def __reduce__(self):
        SentTwice.count += 1
        if SentTwice.count > 2:
            raise TypeError("can not be sent")
        return SentTwice, ()


@over_start_methods
class TestRun(SpawnTestCase):
    def test_zero_processes_return_immediately(self):
        self.assertIsNone(
            start_processes(wait_forever, nprocs=0, start_method=self.method)
        )
        context = self.start(wait_forever, nprocs=0, devices="cpu")
        self.assertEqual(context.pids(), [])
        self.join(context)

    def test_processes_write_to_the_tensors_and_layers_of_the_parent(self):
        values, layer = paddle.zeros([3]), paddle.nn.Linear(2, 2)
        if self.method == "fork":
            share(values)
            share(layer.weight)
        result = start_processes(
            write_rank, (values, layer), nprocs=2, start_method=self.method
        )
        self.assertIsNone(result)
        self.assertEqual(values.tolist(), [1, 2, 0])
        self.assertEqual(layer.weight.tolist(), [[1, 1], [2, 2]])

    def test_error_has_the_traceback_of_an_unpicklable_exception(self):
        error = self.failure(raise_unpicklable)
        self.assertIsInstance(error, ProcessRaisedException)
        self.assertEqual(error.error_index, 1)
        for text in (
            "Process 1 ",
            "in raise_unpicklable",
            "raise HoldsALock",
            "with a lock",
        ):
            self.assertIn(text, str(error))

    def test_processes_outlive_the_thread_that_started_them(self):
        ours, theirs = multiprocessing.get_context(self.method).Pipe()
        contexts = []

        def run():
            contexts.append(self.start(answer, theirs, nprocs=1))
            self.assertTrue(ours.poll(WAIT_S))

        thread = threading.Thread(target=run)
        thread.start()
        thread.join(WAIT_S)
        theirs.close()
        started = contexts.pop()
        # Long enough for a signal that the end of the thread might send.
        self.assertFalse(started.join(0.2))
        ours.send("still there?")
        self.assertEqual(ours.recv(), "ready")
        self.assertTrue(ours.poll(WAIT_S))
        self.assertEqual(ours.recv(), "still there?")
        self.join(started)
        ours.close()

    def test_processes_are_started_and_joined_by_another_thread(self):
        errors = []

        def run():
            try:
                start_processes(
                    kill_oneself,
                    (signal.SIGKILL,),
                    start_method=self.method,
                )
            except ProcessExitedException as error:
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join(WAIT_S)
        self.assertEqual([e.signal_name for e in errors], ["SIGKILL"])


class TestSpawn(SpawnTestCase):
    method = "spawn"

    def test_argument_that_the_process_can_not_load_is_reported(self):
        with self.assertRaisesRegex(
            ProcessRaisedException, "(?s)in _raise.*can not be loaded"
        ):
            spawn(wait_forever, (FailsToLoad(),))

    def test_start_that_fails_halfway_stops_the_started_processes(self):
        SentTwice.count = 0
        with self.assertRaisesRegex(TypeError, "can not be sent"):
            spawn(wait_forever, (SentTwice(),), nprocs=3)
        self.assertEqual(SentTwice.count, 3)


class TestFailure(SpawnTestCase):
    def test_exit_code(self):
        error = self.failure(exit_with, 3)
        self.assertIsInstance(error, ProcessExitedException)
        self.assertEqual((error.exit_code, error.signal_name), (3, None))
        self.assertEqual(error.error_index, 1)
        self.assertIn("exited with code 3", str(error))

    def test_running_thread_does_not_delay_the_failure(self):
        with mock.patch.object(spawned_process, "SIGKILL_DELAY_S", 0.1):
            error = self.failure(raise_beside_a_thread, nprocs=1)
        self.assertIn("beside a thread", str(error))

    def test_exit_code_0_is_no_failure(self):
        self.join(self.start(exit_all_with, 0))

    def test_signal_has_its_name(self):
        error = self.failure(kill_oneself, signal.SIGKILL, nprocs=1)
        self.assertIsInstance(error, ProcessExitedException)
        self.assertEqual(error.exit_code, -signal.SIGKILL)
        self.assertEqual(error.signal_name, "SIGKILL")
        self.assertIn("SIGKILL", str(error))

    def test_real_time_signal_has_its_name(self):
        error = self.failure(kill_oneself, signal.SIGRTMIN + 6, nprocs=1)
        self.assertEqual(error.signal_name, "SIGRTMIN+6")

    def test_error_has_the_pid_of_the_failed_process(self):
        context = self.start(exit_with, 3)
        pids = context.pids()
        self.assertEqual(pids, [p.pid for p in context.processes])
        with self.assertRaises(ProcessExitedException) as caught:
            self.join(context)
        self.assertEqual(caught.exception.error_pid, pids[1])

    def test_long_traceback_arrives_before_any_join(self):
        length = 3 << 20
        context = self.start(raise_at_length, length, nprocs=1)
        ended = connection.wait(context.sentinels, WAIT_S)
        self.assertEqual(len(ended), 1)
        with self.assertRaises(ProcessRaisedException) as caught:
            context.join()
        self.assertIn("x" * length, str(caught.exception))

    def test_process_that_is_killed_while_it_reports(self):
        error = self.failure(kill_oneself_in_the_report, nprocs=1)
        self.assertIsInstance(error, ProcessExitedException)
        self.assertEqual(error.signal_name, "SIGKILL")

    def test_traceback_arrives_without_memfds(self):
        with mock.patch.object(os, "memfd_create"):
            del os.memfd_create
            context = self.start(raise_at_length, 10, nprocs=1)
        with self.assertRaisesRegex(ProcessRaisedException, "x" * 10):
            self.join(context)

    def test_traceback_arrives_where_memfds_are_forbidden(self):
        for number in (errno.EPERM, errno.ENOSYS):
            forbidden = OSError(number, os.strerror(number))
            with mock.patch.object(os, "memfd_create", side_effect=forbidden):
                context = self.start(raise_at_length, 10, nprocs=1)
            with self.assertRaisesRegex(ProcessRaisedException, "x" * 10):
                self.join(context)

    def test_interrupt_in_a_process_is_quiet_and_no_failure(self):
        with tempfile.NamedTemporaryFile() as output:
            self.join(self.start(interrupt, output.name))
            self.assertEqual(output.read(), b"")

    def test_error_of_a_process_in_a_process_has_both_tracebacks(self):
        error = self.failure(start_one_that_raises, nprocs=1)
        self.assertIn("in start_one_that_raises", str(error))
        self.assertIn("in raise_at_length", str(error))

    def test_second_join_raises_again(self):
        context = self.start(exit_with, 3)
        for _ in range(2):
            with self.assertRaises(ProcessExitedException) as caught:
                self.join(context)
            self.assertEqual(caught.exception.error_index, 1)

    def test_errors_can_be_pickled(self):
        for error in (
            ProcessRaisedException("text", 1, 2),
            ProcessExitedException("text", 1, 2, -9, "SIGKILL"),
        ):
            back = pickle.loads(pickle.dumps(error))
            self.assertIs(type(back), type(error))
            self.assertEqual(str(back), "text")
            self.assertEqual(vars(back), vars(error))


class TestValues(SpawnTestCase):
    def refuse(self, error, message, *args, **options):
        with mock.patch.object(multiprocessing, "get_context") as started:
            with self.assertRaisesRegex(error, message):
                start_processes(*args, **options)
        started.assert_not_called()

    def test_function_that_can_not_be_called(self):
        self.refuse(TypeError, "`fn` must be callable, but received 5", 5)

    def test_arguments_that_are_not_a_tuple(self):
        self.refuse(
            TypeError, r"\(x,\), but received Tensor", print, paddle.zeros([2])
        )

    def test_number_of_processes(self):
        for wrong in (2.0, "2", None, True):
            message = f"integer, but received {wrong!r}"
            self.refuse(TypeError, message, print, (), wrong)
        message = "at least 0, but received -1"
        self.refuse(ValueError, message, print, (), -1)

    def test_start_method(self):
        self.refuse(
            ValueError,
            "one of .*'spawn'.*, but received 'thread'",
            print,
            start_method="thread",
        )

    def test_spawn_takes_its_own_start_method_alone(self):
        with self.assertRaisesRegex(
            ValueError, r"received 'fork'. Call start_processes\("
        ):
            spawn(print, start_method="fork")

    def test_positional_arguments_are_in_the_order_of_torch(self):
        spawn(exit_all_with, (0,), 1, True, False, "spawn")

    def test_lock_of_forked_processes_that_is_sent_to_others(self):
        if sys.version_info < (3, 11, 5):
            self.skipTest("this Python does not know such a lock")
        lock = multiprocessing.get_context("fork").Lock()
        with self.assertRaisesRegex(
            RuntimeError, r"Create it with .*get_context\('spawn'\)"
        ):
            spawn(exit_all_with, (lock,))

    def test_parent_that_ignores_the_end_of_processes(self):
        before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        self.addCleanup(signal.signal, signal.SIGCHLD, before)
        self.refuse(RuntimeError, "SIGCHLD signal must not be ignored", print)

    def test_times_to_wait(self):
        context = self.start(exit_all_with, 0)
        for kind, wrong in ((TypeError, "5"), (ValueError, float("nan"))):
            for name in ("timeout", "grace_period"):
                with self.assertRaisesRegex(kind, f"{name}.*{wrong!r}"):
                    context.join(**{name: wrong})
        self.join(context)


if __name__ == "__main__":
    unittest.main()
