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
"""Joining the processes of `spawn`, and how they end."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import threading
import time
import unittest
from multiprocessing import connection, get_context, process, util
from unittest import mock

from concurrent_base import WAIT_S, wait_until
from killed_test_run import end_with_tests, exists, wait_until_tests_end
from multiprocessing_spawn_base import SpawnTestCase, exit_with, wait_forever
from shared_tensor_base import (  # noqa: F401
    setUpModule,
    tearDownModule,
)

from paddle.incubate.multiprocessing import spawned_process
from paddle.incubate.multiprocessing.processes import (
    ProcessExitedException,
    start_processes,
)

# Functions for processes.


def check_handler_of_interrupts(rank):
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def fail_when_told(rank, told, ready):
    """Process 1 fails on request; the others ignore SIGTERM."""
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
        wait_until_tests_end()
    os._exit(3)


def report_and_wait(rank, pids):
    pids.put(os.getpid())
    wait_forever(rank)


def wait_for(rank, event):
    event.wait()


class TestJoin(SpawnTestCase):
    def test_join_waits_no_longer_than_its_timeout(self):
        event = get_context("fork").Event()
        context = self.start(wait_for, event)
        self.assertFalse(context.join(timeout=0.1))
        self.assertFalse(context.join(timeout=0))
        event.set()
        self.join(context)
        self.assertTrue(context.join())
        self.assertEqual(context.sentinels, {})

    def test_others_get_sigterm_when_one_fails(self):
        context = self.start(exit_with, 3, nprocs=3)
        with self.assertRaises(ProcessExitedException):
            self.join(context)
        self.assertEqual(
            [process.exitcode for process in context.processes],
            [-signal.SIGTERM, 3, -signal.SIGTERM],
        )

    def test_process_that_gets_sigterm_before_it_has_begun_is_quiet(self):
        # Paddle's handler would print a report, and may hang this early.
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
        fork = get_context("fork")
        told, ready = fork.Event(), fork.Event()
        context = self.start(fail_when_told, told, ready)
        self.assertTrue(ready.wait(WAIT_S))
        told.set()
        with self.assertRaises(ProcessExitedException) as caught:
            self.join(context, grace_period=0.1)
        self.assertEqual(caught.exception.exit_code, 3)
        self.assertEqual(context.processes[0].exitcode, -signal.SIGKILL)

    def test_others_may_end_on_their_own_in_the_grace_period(self):
        context = self.start(fail_or_end_soon, get_context("fork").Event())
        with self.assertRaises(ProcessExitedException):
            self.join(context, grace_period=WAIT_S)
        self.assertEqual(context.processes[0].exitcode, 0)

    def test_end_is_seen_though_a_process_that_was_forked_lives_on(self):
        pids = get_context("fork").SimpleQueue()
        self.addCleanup(pids.close)
        context = self.start(leave_a_process_behind, pids, nprocs=1)
        left_behind = pids.get()
        joined = threading.Event()

        def join():
            with contextlib.suppress(ProcessExitedException):
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
        # A shell script makes its background processes ignore SIGINT.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGINT, before)
        pids = get_context("fork").SimpleQueue()
        self.addCleanup(pids.close)
        found = []

        def interrupt_parent():
            found.extend([pids.get(), pids.get()])
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt_parent)
        thread.start()
        with mock.patch.object(spawned_process, "ORPHAN_SIGKILL_DELAY_S", 0.1):
            with self.assertRaises(KeyboardInterrupt):
                start_processes(
                    report_and_wait, (pids,), nprocs=2, start_method="fork"
                )
        thread.join()
        self.assertEqual([exists(pid) for pid in found], [False, False])

    def test_error_just_after_a_start_ends_the_started_processes(self):
        start = process.BaseProcess.start

        def start_and_raise(each):
            start(each)
            raise KeyboardInterrupt

        with mock.patch.object(process.BaseProcess, "start", start_and_raise):
            with self.assertRaises(KeyboardInterrupt):
                self.start(wait_forever)

    def test_interrupt_during_a_start_ends_the_started_processes(self):
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

    def test_process_that_is_interrupted_while_it_starts_ends_quietly(self):
        fork = os.fork

        def fork_interrupted():
            pid = fork()
            if pid == 0:
                signal.raise_signal(signal.SIGINT)
            return pid

        with mock.patch.object(os, "fork", fork_interrupted):
            context = self.start(wait_forever)
        self.join(context)

    def test_processes_inherit_the_interrupt_handler_of_the_parent(self):
        self.join(self.start(check_handler_of_interrupts))

    def test_daemons_end_with_the_parent_that_exits(self):
        read, write = os.pipe()
        parent = os.fork()
        if parent == 0:
            try:
                end_with_tests()
                # The test process's children are not this process's children.
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


if __name__ == "__main__":
    unittest.main()
