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
"""Helpers for tests of groups in shared memory: processes that act as ranks."""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import pickle
import random
import signal
import socket
import sys
import threading
import time
import traceback
import unittest
from typing import TYPE_CHECKING, Any, Callable, NamedTuple
from unittest import mock

from concurrent_base import WAIT_S, wait_until
from killed_test_run import end_with, exists

import paddle
import paddle.distributed as dist

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

ON_LINUX = sys.platform == "linux"
_LISTENERS = ("/proc/net/tcp", "/proc/net/tcp6")
# Test runs that are parallel choose different ports.
_random = random.SystemRandom()


class Error(NamedTuple):
    """The error of a call in a rank."""

    kind: str
    text: str
    trace: str


def _run(call: bytes) -> Any:
    try:
        function, args = pickle.loads(call)
        return function(*args)
    except Exception as error:
        return Error(type(error).__name__, str(error), traceback.format_exc())


def serve(connection: Connection) -> None:
    """Runs calls until the other end of the connection is closed."""
    with contextlib.suppress(EOFError):
        while True:
            connection.send(_run(connection.recv_bytes()))


def _fork_ranks(requests: Connection, starter: int) -> None:
    end_with(starter)
    # Reap exited ranks automatically.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    paddle.zeros([1])
    with contextlib.suppress(EOFError):
        while True:
            environment, connection = requests.recv()
            child = os.fork()
            if child == 0:
                end_with(os.getppid())
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                requests.close()
                os.environ.update(environment)
                serve(connection)
                if environment["PADDLE_TRAINER_ID"] != "0":
                    # Ends like Python, but does not destroy modules or run C's
                    # exit handlers, which takes longer than most tests.
                    threading._shutdown()
                    atexit._run_exitfuncs()
                    sys.stdout.flush()
                    sys.stderr.flush()
                    os._exit(0)
                # Like the end of a script.
                sys.exit()
            connection.close()
            requests.send(child)


class _ForkServer:
    """A process that has imported Paddle and forks the ranks.

    Its only device is the CPU.
    """

    def __init__(self):
        context = multiprocessing.get_context("spawn")
        self._requests, theirs = context.Pipe()
        environment = {
            name: value
            for name, value in os.environ.items()
            if name != "CUSTOM_DEVICE_ROOT"
        }
        with mock.patch.dict(os.environ, environment, clear=True):
            context.Process(
                target=_fork_ranks, args=(theirs, os.getpid()), daemon=True
            ).start()
        theirs.close()

    def fork(self, environment: dict[str, str]) -> tuple[int, Connection]:
        mine, theirs = multiprocessing.Pipe()
        self._requests.send((environment, theirs))
        theirs.close()
        if not self._requests.poll(WAIT_S):
            raise AssertionError(f"no rank was forked in {WAIT_S} s")
        return self._requests.recv(), mine


_fork_servers: list[_ForkServer] = []


def free_port() -> int:
    """
    Returns a port that nobody listens on. It is below those that the system
    gives to connections, so no other program gets it before it is used.
    """
    while True:
        port = _random.randrange(20000, 32768)
        with contextlib.suppress(OSError), socket.socket() as found:
            found.bind(("127.0.0.1", port))
            return port


class Ranks:
    """The processes of a job, by rank. They have not joined a group yet."""

    def __init__(self, size: int, backend: str = "shm", **environment: str):
        if not _fork_servers:
            _fork_servers.append(_ForkServer())
        endpoints = [f"127.0.0.1:{free_port()}" for _ in range(size)]
        started = [
            _fork_servers[0].fork(
                {
                    "PADDLE_TRAINER_ID": str(rank),
                    "PADDLE_TRAINERS_NUM": str(size),
                    "PADDLE_CURRENT_ENDPOINT": endpoints[rank],
                    "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
                    "PADDLE_DISTRI_BACKEND": backend,
                    **environment,
                }
            )
            for rank in range(size)
        ]
        self.pids = [pid for pid, _ in started]
        self._connections = [connection for _, connection in started]

    def begin(self, function: Callable, *args: Any, ranks: Any = None) -> None:
        """Starts a call of a function in all ranks, or in some."""
        for rank in range(len(self.pids)) if ranks is None else ranks:
            self._connections[rank].send_bytes(pickle.dumps((function, args)))

    def outcomes(self, ranks: Any = None) -> list[Any]:
        """
        Returns the result of each call, or an Error; None for a rank that has
        exited.
        """
        return [
            self._outcome(rank)
            for rank in (range(len(self.pids)) if ranks is None else ranks)
        ]

    def _outcome(self, rank: int) -> Any:
        if not self._connections[rank].poll(WAIT_S):
            raise AssertionError(f"rank {rank} did not answer in {WAIT_S} s")
        try:
            return self._connections[rank].recv()
        except (EOFError, ConnectionResetError):
            return None

    def call(self, function: Callable, *args: Any, ranks: Any = None) -> list:
        """Calls a function in the ranks and returns the results.

        Raises AssertionError for an Error.
        """
        self.begin(function, *args, ranks=ranks)
        found = self.outcomes(ranks)
        for outcome in found:
            if isinstance(outcome, Error):
                raise AssertionError(f"in a rank:\n{outcome.trace}")
        return found

    def signal(self, rank: int, number: int) -> None:
        os.kill(self.pids[rank], number)

    def end(self) -> None:
        """Lets the ranks exit like scripts, and kills those that do not."""
        for connection in self._connections:
            connection.close()
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGCONT)
        deadline = time.monotonic() + WAIT_S
        for pid in self.pids:
            while exists(pid):
                if time.monotonic() > deadline:
                    os.kill(pid, signal.SIGKILL)
                    raise AssertionError(f"process {pid} did not end: killed")
                time.sleep(0.01)


class RanksTestCase(unittest.TestCase):
    """Base class of tests that start ranks and end them."""

    def start(self, size: int, **environment: str) -> Ranks:
        ranks = Ranks(size, **environment)
        self.addCleanup(ranks.end)
        return ranks

    def start_group(self, size: int, **environment: str) -> Ranks:
        """Starts ranks that have joined the default group."""
        ranks = self.start(size, **environment)
        ranks.call(join_default_group)
        return ranks

    def assert_all_raise(self, outcomes: list[Any], *parts: str) -> None:
        """Asserts that each outcome is a RuntimeError whose text has all
        parts."""
        for outcome in outcomes:
            self.assertIsInstance(outcome, Error)
            self.assertEqual(outcome.kind, "RuntimeError", outcome.trace)
            for part in parts:
                self.assertIn(part, outcome.text)


def join_default_group() -> None:
    """
    Calls `init_parallel_env`. Waits first until the store of rank 0 listens, if
    it is on this machine, because `init_parallel_env` sleeps for three seconds
    between two attempts to connect.
    """
    endpoints = os.environ["PADDLE_TRAINER_ENDPOINTS"]
    store = os.environ.get("PADDLE_MASTER", endpoints.split(",")[0])
    host, port = store.split(":")
    if (
        os.environ["PADDLE_TRAINER_ID"] != "0"
        and host == "127.0.0.1"
        and os.path.exists(_LISTENERS[0])
    ):
        wait_until(lambda: _listens(int(port)), f"rank 0 listens at {store}")
    dist.init_parallel_env()


def wait_with_wrong_timeout() -> tuple[str, bool]:
    """Returns the error of a wait, and whether the next wait succeeds."""
    task = dist.all_reduce(paddle.ones([1]), sync_op=False)
    try:
        task.wait("x")
    except TypeError as error:
        return str(error), task.wait(None)
    raise AssertionError("the timeout was accepted")


def _listens(port: int) -> bool:
    """Returns whether a socket of this machine listens on a port."""
    for name in _LISTENERS:
        with open(name) as file:
            for line in list(file)[1:]:
                _, local, _, state, *_ = line.split()
                if local.endswith(f":{port:04X}") and state == "0A":
                    return True
    return False
