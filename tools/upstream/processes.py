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
"""Run a command with a time limit, and leave none of its processes behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import time
from collections import defaultdict
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

# A killed process exits immediately unless it is in an uninterruptible wait.
_SECONDS_TO_EXIT = 30


class Stopped(Exception):
    """A signal asked this process to stop."""

    def __init__(self, number: int):
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.number = number


class StopRequest:
    """Turns SIGINT and SIGTERM into an event to wait for, not an exception.

    So signals do not interrupt work that must be complete, such as killing the
    processes of a test. Use it on the main thread, as a context manager.
    """

    def __init__(self):
        self.number = 0

    def __enter__(self) -> StopRequest:  # noqa: PYI034
        self._reader, self._writer = os.pipe()
        self._before = {
            number: signal.signal(number, self._note)
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._reader)
        os.close(self._writer)

    def _note(self, number: int, _) -> None:
        if not self.number:
            self.number = number
            os.write(self._writer, b"x")

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when a signal arrives."""
        return self._reader

    def check(self) -> None:
        """Raise Stopped if a signal has arrived."""
        if self.number:
            raise Stopped(self.number)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0):
        error = ctypes.get_errno()
        raise OSError(error, f"prctl({option}): {os.strerror(error)}")


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose parent exits.

    So even descendants with their own session stay descendants and are found.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def stop_with_parent() -> None:
    """Have the kernel send SIGTERM to this process when its parent exits."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _children() -> dict[int, list[int]]:
    """Return the children of each process on the machine."""
    children = defaultdict(list)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            # The command name, in parentheses, may contain any character.
            fields = stat.read_text(errors="replace").rpartition(")")[2].split()
            children[int(fields[1])].append(int(stat.parent.name))
    return children


def _descendants(but: set[int]) -> list[int]:
    """Return all descendants except the given children and theirs."""
    children = _children()
    found = [pid for pid in children[os.getpid()] if pid not in but]
    for pid in found:
        found += children[pid]
    return found


def _end_descendants(but: set[int]) -> None:
    """Kill descendants until none is left, including new ones.

    Raises:
        OSError: some have not exited within the time limit.
    """
    deadline = time.monotonic() + _SECONDS_TO_EXIT
    while left := _descendants(but):
        if time.monotonic() > deadline:
            raise OSError(
                f"processes {left} have not exited {_SECONDS_TO_EXIT} s after"
                " SIGKILL; see /proc/PID/stack for what they wait for"
            )
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in left:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.01)


def run_bounded(
    command: list[str],
    folder: Path,
    environ: dict[str, str],
    log: Path,
    limit: float,
    stop: StopRequest,
) -> int | None:
    """Run a command, and kill all its descendants before returning.

    Call `adopt_orphans` first.

    Args:
        command: what to run.
        folder: its working directory.
        environ: its environment.
        log: file for its output.
        limit: seconds after which it is killed.
        stop: also ends it.

    Returns:
        The exit status as `subprocess` gives it; None at the time limit.

    Raises:
        Stopped: a signal arrived.
    """
    others = set(_children()[os.getpid()])
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        end = os.pidfd_open(process.pid)
        select.select([end, stop], [], [], limit)
        os.close(end)
        exit_code = process.poll()
    finally:
        process.kill()
        process.wait()
        _end_descendants(others)
    stop.check()
    return exit_code
