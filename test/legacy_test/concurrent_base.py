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
"""Helpers for tests with threads and processes: every wait has a timeout."""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any, Callable

from killed_test_run import end_with_tests

if TYPE_CHECKING:
    import unittest
    from collections.abc import Iterator

# Shorter than the 120 s after which ctest ends a test without saying where.
WAIT_S = 100
_ON_LINUX = sys.platform == "linux"

if _ON_LINUX:
    # The fork server imports Paddle once for all of its processes. "spawn"
    # processes import it themselves.
    multiprocessing.set_forkserver_preload(["paddle"])


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Waits until `condition` holds; raises AssertionError on a timeout."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {WAIT_S} s: {what}")
        time.sleep(0.01)


class Worker(threading.Thread):
    """A thread whose `result()` returns its result or raises its error."""

    def __init__(self, function: Callable, *args: Any):
        super().__init__(daemon=True)
        self._call = (function, args)
        self._error = None
        self._result = None
        self.start()

    def run(self) -> None:
        function, args = self._call
        try:
            self._result = function(*args)
        except BaseException as error:  # raised again by result()
            self._error = error

    def result(self) -> Any:
        self.join(WAIT_S)
        if self.is_alive():
            raise TimeoutError(f"{self.name} still runs after {WAIT_S} s")
        if self._error is not None:
            raise self._error
        return self._result


def in_thread(function: Callable, *args: Any) -> Any:
    """Runs `function` on a new thread and returns its result."""
    return Worker(function, *args).result()


def in_threads(*functions: Callable[[], Any]) -> list:
    """
    Runs each function on its own thread, starts all of them together, and
    returns their results when all have ended.
    """
    start = threading.Barrier(len(functions), timeout=WAIT_S)

    def run(function: Callable[[], Any]) -> Any:
        start.wait()
        return function()

    workers = [Worker(run, function) for function in functions]
    for worker in workers:
        worker.join(WAIT_S)
    return [worker.result() for worker in workers]


def run_together(count: int, function: Callable[[int], Any]) -> list:
    """
    Runs `function(i)` for each i below `count` on its own thread, starts all of
    them together, and returns their results when all have ended.
    """
    return in_threads(*(functools.partial(function, i) for i in range(count)))


def rounds_until(condition: Callable[[], bool], at_least: int) -> Iterator[int]:
    """
    Counts at least `at_least` rounds, and then until `condition` holds or a
    timeout.
    """
    deadline = time.monotonic() + WAIT_S
    for i in itertools.count():
        if i >= at_least and (condition() or time.monotonic() > deadline):
            return
        yield i


def wait_for_child(pid: int) -> int:
    """
    Returns the wait status of a forked child. Kills a child that does not end,
    and raises AssertionError.
    """
    status = 0

    def has_ended() -> bool:
        nonlocal status
        ended, status = os.waitpid(pid, os.WNOHANG)
        return ended == pid

    try:
        wait_until(has_ended, "the forked child has ended")
    except AssertionError:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
    return status


def in_fork(function: Callable, *args: Any) -> None:
    """
    Calls `function` in a child that the calling thread forks. Raises
    AssertionError unless the call succeeds.
    """
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            function(*args)
            code = 0
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)
    status = wait_for_child(pid)
    if status != 0:
        raise AssertionError(
            f"the forked child ended with the wait status {status}: stderr has "
            "the reason"
        )


def switch_threads_often(case: unittest.TestCase) -> None:
    """Makes Python switch threads as often as it can, until a test ends."""
    case.addCleanup(sys.setswitchinterval, sys.getswitchinterval())
    sys.setswitchinterval(1e-6)


def wait_until_threads_end(before: set[threading.Thread]) -> None:
    """Waits until all threads other than `before` have ended."""

    def have_ended() -> bool:
        # Each time: CPython skips a collection while another thread is in one.
        gc.collect()
        return set(threading.enumerate()) <= before

    wait_until(have_ended, "the threads of the test have ended")


def descriptors() -> dict[str, str]:
    """Returns this process's open file descriptors and their targets."""
    found = {}
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found[number] = os.readlink(f"/proc/self/fd/{number}")
    return found


def script_command(script: str) -> list[str]:
    """Returns the command that runs a Python script."""
    return [sys.executable, "-c", script]


def pristine_environment() -> dict[str, str]:
    """
    Returns the environment that this process was started with, where the system
    keeps it, else the current one. A script that runs with it is like one that
    a user starts, whatever ran here before.
    """
    if not _ON_LINUX:
        return dict(os.environ)
    with open("/proc/self/environ") as environ:
        entries = environ.read().split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def start_command(
    command: list[str], environment: dict[str, str], **streams: int
) -> subprocess.Popen:
    """
    Starts a command in the tests' folder. On Linux, it runs in its own session
    and is killed when the tests end.
    """
    return subprocess.Popen(
        command,
        cwd=os.path.dirname(os.path.abspath(__file__)),
        env=environment,
        text=True,
        start_new_session=_ON_LINUX,
        preexec_fn=end_with_tests if _ON_LINUX else None,
        **streams,
    )


def run_command(
    case: unittest.TestCase, command: list[str], environment: dict[str, str]
) -> subprocess.CompletedProcess:
    """Runs a command until it exits; fails `case` unless it exits with 0."""
    process = start_command(
        command, environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    return finish_command(case, process)


def finish_command(
    case: unittest.TestCase, process: subprocess.Popen
) -> subprocess.CompletedProcess:
    """
    Waits until a process of `start_command` exits; kills it after a timeout.
    Fails `case` unless it exits with 0.
    """
    try:
        out, err = process.communicate(timeout=WAIT_S)
    except subprocess.TimeoutExpired:
        if _ON_LINUX:
            # Also kill its children, which may hold its output pipes open.
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
        out, err = process.communicate()
    case.assertEqual(process.returncode, 0, err[-4000:])
    return subprocess.CompletedProcess(process.args, 0, out, err)
