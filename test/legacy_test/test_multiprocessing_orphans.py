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
"""Processes of `spawn` end with their parent, however it ends."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
import unittest
from multiprocessing import connection, forkserver

from concurrent_base import WAIT_S, wait_until
from killed_test_run import end_with_tests, exists, wait_until_tests_end
from multiprocessing_spawn_base import over_start_methods

from paddle.incubate.multiprocessing import spawned_process
from paddle.incubate.multiprocessing.processes import start_processes

# A running process prints one line to its standard output, in one write,
# because several processes write to one pipe.


def say(word: str) -> None:
    os.write(1, f"{os.getpid()} {word}\n".encode())


# Functions for processes.


def sleep(rank):
    say("sleeps")
    time.sleep(10 * WAIT_S)


def sleep_in_native_code(rank):
    say("sleeps")
    ctypes.CDLL(None).sleep(10 * WAIT_S)


def sleep_with_the_lock_of_python(rank):
    say("sleeps")
    ctypes.PyDLL(None).sleep(10 * WAIT_S)


def sleep_deaf_to_sigterm(rank):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sleep(rank)


def sleep_or_start_one_that_sleeps(rank, method):
    if rank == 0:
        sleep_with_the_lock_of_python(rank)
    start_processes(sleep_in_native_code, start_method=method)


def clean_up_at_sigterm(rank):
    def clean_up(number, frame):
        say("begins to clean up")
        # The end of a process of a higher rank, which has inherited a pipe,
        # could bring a second signal now, and this would be said again.
        time.sleep(0.3 * (3 - rank))
        say("has cleaned up")
        sys.exit(1)

    signal.signal(signal.SIGTERM, clean_up)
    sleep(rank)


def clean_up_after_a_sibling(rank):
    """The sentinel of process 0 closes late, when process 1 ends."""
    set_signals = spawned_process._set_signals

    def set_signals_until_the_sibling_ends(sentinel, enabled):
        set_signals(sentinel, enabled)
        connection.wait([sentinel], WAIT_S)

    if rank == 0:
        spawned_process._set_signals = set_signals_until_the_sibling_ends
    clean_up_at_sigterm(rank)


def leave_a_process_that_holds_the_pipes(rank):
    """Process 2 forks a process that inherits its siblings' descriptors."""
    if rank == 2 and os.fork() == 0:
        say("holds")
        wait_until_tests_end()
        os._exit(0)
    sleep(rank)


class Parent:
    """
    A process that starts other processes. All of them share one standard
    output, and `said` returns its next lines.
    """

    def __init__(self, method, function, nprocs, *args, has_handles=True):
        read, write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            end_with_tests()
            os.setsid()
            os.dup2(write, 1)
            if not has_handles:
                del os.pidfd_open
            # The test process's fork server is not a child of this process.
            forkserver._forkserver._forkserver_pid = None
            try:
                start_processes(function, args, nprocs, start_method=method)
            finally:
                os._exit(1)
        os.close(write)
        # A buffer could hold back a line.
        self._output = os.fdopen(read, "rb", buffering=0)

    def said(self, lines: int) -> list[tuple[int, str]]:
        """Returns the senders and contents of the next lines."""
        return [_parsed(self._line()) for _ in range(lines)]

    def said_until_all_end(self) -> list[tuple[int, str]]:
        return [_parsed(line) for line in iter(self._line, b"")]

    def _line(self) -> bytes:
        if not connection.wait([self._output], WAIT_S):
            raise AssertionError(f"nobody said anything within {WAIT_S} s")
        return self._output.readline()

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

    def close(self) -> None:
        """Ends the remaining processes of the test, including the parent."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        self._output.close()


def _parsed(line: bytes) -> tuple[int, str]:
    pid, word = line.decode().strip().split(" ", 1)
    return int(pid), word


class OrphansTestCase(unittest.TestCase):
    method = "fork"

    def parent(self, function, nprocs, *args, **options) -> Parent:
        parent = Parent(self.method, function, nprocs, *args, **options)
        self.addCleanup(parent.close)
        return parent

    def assert_all_end(self, pids: list[int]) -> None:
        for pid in pids:
            wait_until(lambda pid=pid: not exists(pid), f"process {pid} ends")


@over_start_methods
class TestOrphans(OrphansTestCase):
    def test_children_and_grandchildren_end_when_the_parent_is_killed(self):
        parent = self.parent(sleep_or_start_one_that_sleeps, 2, self.method)
        pids = [pid for pid, _ in parent.said(2)]
        parent.kill()
        self.assert_all_end(pids)
        # Nor does the one in the middle live, which has said nothing.
        self.assertEqual(parent.said_until_all_end(), [])


class TestForkedOrphans(OrphansTestCase):
    def test_process_that_ignores_sigterm_ends(self):
        parent = self.parent(sleep_deaf_to_sigterm, 1)
        pids = [pid for pid, _ in parent.said(1)]
        parent.kill()
        self.assert_all_end(pids)

    def test_processes_end_without_pidfds(self):
        parent = self.parent(sleep, 3, has_handles=False)
        pids = [pid for pid, _ in parent.said(3)]
        parent.kill()
        self.assert_all_end(pids)

    def test_process_that_inherits_the_pipes_of_others_keeps_none_alive(self):
        parent = self.parent(leave_a_process_that_holds_the_pipes, 3)
        lines = parent.said(4)
        holder = next(pid for pid, word in lines if word == "holds")
        parent.kill()
        self.assert_all_end([pid for pid, _ in lines if pid != holder])
        self.assertTrue(exists(holder))

    def test_each_process_gets_one_sigterm_and_time_to_clean_up(self):
        parent = self.parent(clean_up_at_sigterm, 3)
        pids = [pid for pid, _ in parent.said(3)]
        parent.kill()
        self.assertEqual(
            sorted(parent.said_until_all_end()),
            sorted(
                (pid, word)
                for pid in pids
                for word in ("begins to clean up", "has cleaned up")
            ),
        )

    def test_process_gets_sigterm_though_its_sentinel_is_late(self):
        parent = self.parent(clean_up_after_a_sibling, 2)
        pids = [pid for pid, _ in parent.said(2)]
        parent.kill()
        said = parent.said_until_all_end()
        for pid in pids:
            self.assertIn((pid, "has cleaned up"), said)


if __name__ == "__main__":
    unittest.main()
