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
"""Processes that run one function: success, each way to fail, bad values."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import threading
import time
import unittest
from multiprocessing import connection, process, util
from unittest import mock

from concurrent_base import WAIT_S, wait_until
from killed_test_run import end_with_tests, exists, live_while_tests_do
from multiprocessing_spawn_base import SpawnTestCase, over_start_methods, share
from shared_tensor_base import (  # noqa: F401
    setUpModule,
    tearDownModule,
)

import paddle
import paddle.multiprocessing as mp
from paddle.incubate.multiprocessing import spawned_process

# Functions for processes.


def wait_forever(rank):
    time.sleep(10 * WAIT_S)


def write_rank(rank, values, layer):
    values[rank] = rank + 1
    with paddle.no_grad():
        layer.weight[rank] = rank + 1


def check_handler_of_interrupts(rank):
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


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


def exit_with(rank, code):
    if rank == 1:
        sys.exit(code)
    wait_forever(rank)


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


def fail_when_told(rank, told, ready):
    """Process 1 fails when told; another one is deaf to SIGTERM."""
    if rank == 1:
        told.wait()
        sys.exit(3)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ready.set()
    wait_forever(rank)


def fail_or_end_soon(rank, told):
    if rank == 1:
        told.set()
        sys.exit(3)
    told.wait()
    time.sleep(0.3)


def leave_a_process_behind(rank, pids):
    if os.fork() == 0:
        pids.put(os.getpid())
        live_while_tests_do()
    os._exit(3)


def report_and_wait(rank, pids):
    pids.put(os.getpid())
    wait_forever(rank)


def start_one_that_raises(rank):
    mp.start_processes(raise_at_length, (10,), start_method="fork")


def wait_for(rank, event):
    event.wait()


class FailsToLoad:
    """An argument that can be sent and not be received."""

    def __reduce__(self):
        return _raise, ()


def _raise():
    raise RuntimeError("can not be loaded")


class SentTwice:
    """An argument that can be sent to two processes, not to a third one."""

    count = 0

    def __reduce__(self):
        SentTwice.count += 1
        if SentTwice.count > 2:
            raise TypeError("can not be sent")
        return SentTwice, ()


@over_start_methods
class TestRun(SpawnTestCase):
    def test_no_processes_are_nothing_to_wait_for(self):
        self.assertIsNone(
            mp.start_processes(wait_forever, nprocs=0, start_method=self.method)
        )
        context = self.start(wait_forever, nprocs=0, devices="cpu")
        self.assertEqual(context.pids(), [])
        self.join(context)

    def test_processes_write_to_the_tensors_and_layers_of_the_parent(self):
        values, layer = paddle.zeros([3]), paddle.nn.Linear(2, 2)
        if self.method == "fork":
            share(values)
            share(layer.weight)
        result = mp.start_processes(
            write_rank, (values, layer), nprocs=2, start_method=self.method
        )
        self.assertIsNone(result)
        self.assertEqual(values.tolist(), [1, 2, 0])
        self.assertEqual(layer.weight.tolist(), [[1, 1], [2, 2]])

    def test_error_has_the_traceback_of_an_exception_that_has_no_pickle(self):
        error = self.failure(raise_unpicklable)
        self.assertIsInstance(error, mp.ProcessRaisedException)
        self.assertEqual(error.error_index, 1)
        for text in (
            "Process 1 ",
            "in raise_unpicklable",
            "raise HoldsALock",
            "with a lock",
        ):
            self.assertIn(text, str(error))

    def test_processes_outlive_the_thread_that_started_them(self):
        ours, theirs = mp.get_context(self.method).Pipe()
        contexts = []

        def run():
            contexts.append(self.start(answer, theirs, nprocs=1))
            self.assertTrue(ours.poll(WAIT_S))

        thread = threading.Thread(target=run)
        thread.start()
        thread.join(WAIT_S)
        theirs.close()
        started = contexts.pop()
        # Long enough for a signal that the end of the thread would bring.
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
                mp.start_processes(
                    kill_oneself,
                    (signal.SIGKILL,),
                    start_method=self.method,
                )
            except mp.ProcessExitedException as error:
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join(WAIT_S)
        self.assertEqual([e.signal_name for e in errors], ["SIGKILL"])


class TestSpawn(SpawnTestCase):
    method = "spawn"

    def test_argument_that_the_process_can_not_load_is_reported(self):
        with self.assertRaisesRegex(
            mp.ProcessRaisedException, "(?s)in _raise.*can not be loaded"
        ):
            mp.spawn(wait_forever, (FailsToLoad(),))

    def test_start_that_fails_half_way_stops_those_that_run(self):
        SentTwice.count = 0
        with self.assertRaisesRegex(TypeError, "can not be sent"):
            mp.spawn(wait_forever, (SentTwice(),), nprocs=3)
        self.assertEqual(SentTwice.count, 3)


class TestFailure(SpawnTestCase):
    def test_exit_code(self):
        error = self.failure(exit_with, 3)
        self.assertIsInstance(error, mp.ProcessExitedException)
        self.assertEqual((error.exit_code, error.signal_name), (3, None))
        self.assertEqual(error.error_index, 1)
        self.assertIn("exited with code 3", str(error))

    def test_thread_that_goes_on_keeps_no_failure_back(self):
        with mock.patch.object(spawned_process, "TERMINATION_S", 0.1):
            error = self.failure(raise_beside_a_thread, nprocs=1)
        self.assertIn("beside a thread", str(error))

    def test_exit_code_0_is_no_failure(self):
        self.join(self.start(exit_all_with, 0))

    def test_signal_has_its_name(self):
        error = self.failure(kill_oneself, signal.SIGKILL, nprocs=1)
        self.assertIsInstance(error, mp.ProcessExitedException)
        self.assertEqual(error.exit_code, -signal.SIGKILL)
        self.assertEqual(error.signal_name, "SIGKILL")
        self.assertIn("SIGKILL", str(error))

    def test_real_time_signal_has_its_name(self):
        error = self.failure(kill_oneself, signal.SIGRTMIN + 6, nprocs=1)
        self.assertEqual(error.signal_name, "SIGRTMIN+6")

    def test_process_is_told_from_others(self):
        context = self.start(exit_with, 3)
        pids = context.pids()
        self.assertEqual(pids, [p.pid for p in context.processes])
        with self.assertRaises(mp.ProcessExitedException) as caught:
            self.join(context)
        self.assertEqual(caught.exception.error_pid, pids[1])

    def test_long_traceback_arrives_though_nobody_joins(self):
        length = 3 << 20
        context = self.start(raise_at_length, length, nprocs=1)
        ended = connection.wait(context.sentinels, WAIT_S)
        self.assertEqual(len(ended), 1)
        with self.assertRaises(mp.ProcessRaisedException) as caught:
            context.join()
        self.assertIn("x" * length, str(caught.exception))

    def test_process_that_is_killed_while_it_reports(self):
        error = self.failure(kill_oneself_in_the_report, nprocs=1)
        self.assertIsInstance(error, mp.ProcessExitedException)
        self.assertEqual(error.signal_name, "SIGKILL")

    def test_traceback_arrives_where_there_are_no_files_in_memory(self):
        with mock.patch.object(os, "memfd_create"):
            del os.memfd_create
            context = self.start(raise_at_length, 10, nprocs=1)
        with self.assertRaisesRegex(mp.ProcessRaisedException, "x" * 10):
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
            with self.assertRaises(mp.ProcessExitedException) as caught:
                self.join(context)
            self.assertEqual(caught.exception.error_index, 1)

    def test_errors_can_be_pickled(self):
        for error in (
            mp.ProcessRaisedException("text", 1, 2),
            mp.ProcessExitedException("text", 1, 2, -9, "SIGKILL"),
        ):
            back = pickle.loads(pickle.dumps(error))
            self.assertIs(type(back), type(error))
            self.assertEqual(str(back), "text")
            self.assertEqual(vars(back), vars(error))


class TestJoin(SpawnTestCase):
    def test_join_waits_no_longer_than_its_timeout(self):
        event = mp.get_context("fork").Event()
        context = self.start(wait_for, event)
        self.assertFalse(context.join(timeout=0.1))
        self.assertFalse(context.join(timeout=0))
        event.set()
        self.join(context)
        self.assertTrue(context.join())
        self.assertEqual(context.sentinels, {})

    def test_others_get_sigterm_when_one_fails(self):
        context = self.start(exit_with, 3, nprocs=3)
        with self.assertRaises(mp.ProcessExitedException):
            self.join(context)
        self.assertEqual(
            [process.exitcode for process in context.processes],
            [-signal.SIGTERM, 3, -signal.SIGTERM],
        )

    def test_process_that_gets_sigterm_before_it_has_begun_is_quiet(self):
        # Paddle's handler would print a page, and may hang so early.
        bootstrap = process.BaseProcess._bootstrap

        def terminate_oneself(process, *args, **options):
            os.dup2(output.fileno(), 1)
            os.kill(os.getpid(), signal.SIGTERM)
            return bootstrap(process, *args, **options)

        with tempfile.TemporaryFile() as output:
            with mock.patch.object(
                process.BaseProcess, "_bootstrap", terminate_oneself
            ):
                error = self.failure(wait_forever, nprocs=1)
            self.assertEqual(error.signal_name, "SIGTERM")
            output.seek(0)
            self.assertEqual(output.read(), b"")

    def test_process_that_ignores_sigterm_gets_sigkill(self):
        fork = mp.get_context("fork")
        told, ready = fork.Event(), fork.Event()
        context = self.start(fail_when_told, told, ready)
        self.assertTrue(ready.wait(WAIT_S))
        told.set()
        with self.assertRaises(mp.ProcessExitedException) as caught:
            self.join(context, grace_period=0.1)
        self.assertEqual(caught.exception.exit_code, 3)
        self.assertEqual(context.processes[0].exitcode, -signal.SIGKILL)

    def test_others_may_end_by_themselves_in_the_grace_period(self):
        context = self.start(fail_or_end_soon, mp.get_context("fork").Event())
        with self.assertRaises(mp.ProcessExitedException):
            self.join(context, grace_period=WAIT_S)
        self.assertEqual(context.processes[0].exitcode, 0)

    def test_end_is_seen_though_a_process_that_was_forked_lives_on(self):
        pids = mp.get_context("fork").SimpleQueue()
        self.addCleanup(pids.close)
        context = self.start(leave_a_process_behind, pids, nprocs=1)
        left_behind = pids.get()
        joined = threading.Event()

        def join():
            with contextlib.suppress(mp.ProcessExitedException):
                context.join()
            joined.set()

        thread = threading.Thread(target=join)
        thread.start()
        try:
            self.assertTrue(joined.wait(WAIT_S))
            self.assertTrue(exists(left_behind))
        finally:
            os.kill(left_behind, signal.SIGKILL)
            thread.join()

    def test_interrupt_of_the_parent_ends_the_processes(self):
        # A script's shell has what it starts in the background ignore it.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGINT, before)
        pids = mp.get_context("fork").SimpleQueue()
        self.addCleanup(pids.close)
        found = []

        def interrupt_parent():
            found.extend([pids.get(), pids.get()])
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt_parent)
        thread.start()
        with mock.patch.object(spawned_process, "FAREWELL_S", 0.1):
            with self.assertRaises(KeyboardInterrupt):
                mp.start_processes(
                    report_and_wait, (pids,), nprocs=2, start_method="fork"
                )
        thread.join()
        self.assertEqual([exists(pid) for pid in found], [False, False])

    def test_error_just_after_a_start_ends_what_was_started(self):
        start = process.BaseProcess.start

        def start_and_raise(each):
            start(each)
            raise KeyboardInterrupt

        with mock.patch.object(process.BaseProcess, "start", start_and_raise):
            with self.assertRaises(KeyboardInterrupt):
                self.start(wait_forever)

    def test_interrupt_in_the_middle_of_a_start_ends_what_was_started(self):
        fork = os.fork

        def fork_and_interrupt():
            pid = fork()
            if pid != 0:
                signal.raise_signal(signal.SIGINT)
            return pid

        with mock.patch.object(os, "fork", fork_and_interrupt):
            with self.assertRaises(KeyboardInterrupt):
                self.start(wait_forever)
        self.assertIs(
            signal.getsignal(signal.SIGINT), signal.default_int_handler
        )

    def test_process_that_is_interrupted_in_its_start_ends_quietly(self):
        fork = os.fork

        def fork_interrupted():
            pid = fork()
            if pid == 0:
                signal.raise_signal(signal.SIGINT)
            return pid

        with mock.patch.object(os, "fork", fork_interrupted):
            context = self.start(wait_forever)
        self.join(context)

    def test_processes_have_the_handler_of_interrupts_of_the_parent(self):
        self.join(self.start(check_handler_of_interrupts))

    def test_daemons_end_with_the_parent_that_exits(self):
        read, write = os.pipe()
        parent = os.fork()
        if parent == 0:
            try:
                end_with_tests()
                # Those of the test's process are none of this one's.
                process._children.clear()
                self.start(wait_forever, daemon=True)
                util._exit_function()
            finally:
                os._exit(0)
        os.close(write)
        with open(read, "rb") as pipe:
            os.waitpid(parent, 0)
            wait_until(
                lambda: connection.wait([pipe], 0) and pipe.read() == b"",
                "the daemons end",
            )


class TestValues(SpawnTestCase):
    def refuse(self, error, message, *args, **options):
        with mock.patch.object(multiprocessing, "get_context") as started:
            with self.assertRaisesRegex(error, message):
                mp.start_processes(*args, **options)
        started.assert_not_called()

    def test_function_that_can_not_be_called(self):
        self.refuse(TypeError, "`fn` must be callable, but received 5", 5)

    def test_arguments_that_are_no_tuple(self):
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
            mp.spawn(print, start_method="fork")
        mp.spawn(exit_all_with, (0,), start_method="spawn")

    def test_lock_of_forked_processes_that_is_sent_to_others(self):
        if sys.version_info < (3, 11, 5):
            self.skipTest("this Python does not know such a lock")
        lock = mp.get_context("fork").Lock()
        with self.assertRaisesRegex(
            RuntimeError, r"Make it with .*get_context\('spawn'\)"
        ):
            mp.spawn(exit_all_with, (lock,))

    def test_parent_that_ignores_the_end_of_processes(self):
        before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        self.addCleanup(signal.signal, signal.SIGCHLD, before)
        self.refuse(RuntimeError, "SIGCHLD signal must not be ignored", print)

    def test_times_to_wait(self):
        context = self.start(exit_all_with, 0)
        for wrong in ("5", float("nan")):
            for name in ("timeout", "grace_period"):
                with self.assertRaisesRegex(ValueError, f"{name}.*{wrong!r}"):
                    context.join(**{name: wrong})
        self.join(context)


if __name__ == "__main__":
    unittest.main()
