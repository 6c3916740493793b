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
"""Helpers for shared tensor tests: peer processes and scripts."""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import gc
import multiprocessing
import multiprocessing.resource_tracker
import os
import signal
import sys
import textwrap
import time
import traceback
import unittest
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

from concurrent_base import (
    WAIT_S,
    pristine_environment,
    run_command,
    script_command,
)
from forked_script import ForkedScript, run_forked_script, start_forked_script
from killed_test_run import end_with
from shared_tensor_leaks import no_leak

import paddle
import paddle.incubate.multiprocessing as sharing

if TYPE_CHECKING:
    import subprocess

STRATEGIES = ("file_system", "file_descriptor")
START_METHODS = ("fork", "spawn", "forkserver")
LONG = os.environ.get("PADDLE_SHARED_TENSOR_LONG") == "1"
LARGE = 64 << 20  # bytes; no test sends more at once
_END = b"end"


# The tests use host memory, whatever device Paddle starts on. A spawned child
# imports this module before its parent is known, but its name is already set; a
# forked child has its parent's device.
if multiprocessing.current_process().name != "MainProcess":
    paddle.set_device("cpu")

_device_before: list[str] = []


def setUpModule() -> None:
    _device_before.append(paddle.get_device())
    paddle.set_device("cpu")


def tearDownModule() -> None:
    paddle.set_device(_device_before.pop())


class PeerError(AssertionError):
    """A call in a peer raised an exception; see `kind` and `message`."""

    def __init__(self, kind: str, message: str, trace: str):
        super().__init__(f"in the peer process:\n{trace}")
        self.kind = kind
        self.message = message


class Peer:
    """
    A process that calls functions on behalf of a test.

    A function gets, before its arguments, a dict that the peer keeps between
    calls. The dict initially contains `kept`: objects that a forked peer
    inherits, and that other peers get as arguments of their process. Entries
    whose names start with an underscore survive from one test to the next.
    """

    def __init__(self, context, strategy: str, **kept: Any):
        self._connection, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(theirs, strategy, kept), daemon=True
        )
        self._process.start()
        theirs.close()
        self.call(_nothing)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    def call(self, function: Callable, *args: Any) -> Any:
        """
        Calls `function(kept, *args)` in the peer and returns the result.

        Raises PeerError if the call raises, and AssertionError if the peer dies
        or does not answer in time; a peer that does not answer is killed.
        """
        self.send(ForkingPickler.dumps((function, args)))
        return self.receive()

    def send(self, message: bytes) -> None:
        """Sends a pickled call; `receive` waits for its result."""
        self._connection.send_bytes(message)

    def receive(self) -> Any:
        """Returns the result of the last sent call; see `call`."""
        if not self._connection.poll(WAIT_S):
            # Its faulthandler writes the stacks of its threads to stderr.
            os.kill(self.pid, signal.SIGUSR1)
            time.sleep(1)
            self.kill()
            raise AssertionError(f"peer did not answer in {WAIT_S} s: killed")
        try:
            error, result = self._connection.recv()
        except (EOFError, ConnectionResetError):
            self.join()
            code = self._process.exitcode
            raise AssertionError(f"peer died, exit code {code}") from None
        if error is not None:
            raise PeerError(*error)
        return result

    def order(self, function: Callable, *args: Any) -> None:
        """Makes the peer call a function that ends it or never returns."""
        self.send(ForkingPickler.dumps((function, args)))

    def kill(self) -> None:
        """Kills the peer with SIGKILL and waits until it has ended."""
        self._process.kill()
        self.join()

    def join(self) -> None:
        self._process.join(WAIT_S)

    def close(self) -> None:
        """Ends the peer, by force if it does not answer. May be repeated."""
        if self._connection.closed:
            return
        with contextlib.suppress(OSError):
            self.send(_END)
            self.join()
        if self.alive:
            self.kill()
        self._connection.close()
        self._process.close()


def _serve(connection, strategy: str, kept: dict[str, Any]) -> None:
    parent = multiprocessing.parent_process().pid
    if os.getppid() == parent:
        # A forked peer also has its parent's end of the connection, so it could
        # not detect that the parent has ended.
        end_with(parent)
    # Never collect the garbage from before a fork here: it may contain program
    # interpreters, which wait for threads that the child does not have.
    gc.freeze()
    faulthandler.register(signal.SIGUSR1, file=2)
    sharing.set_sharing_strategy(strategy)
    while True:
        try:
            message = connection.recv_bytes()
        except (EOFError, ConnectionResetError):
            return
        if message == _END:
            return
        connection.send_bytes(_answer(message, kept))


def _answer(message: bytes, kept: dict[str, Any]) -> bytes:
    try:
        function, args = ForkingPickler.loads(message)
        return ForkingPickler.dumps((None, function(kept, *args)))
    except Exception as error:
        report = (type(error).__name__, str(error), traceback.format_exc())
        return ForkingPickler.dumps((report, None))


# Functions for `Peer.call`.


def _nothing(kept):
    pass


def keep(kept, name, value):
    kept[name] = value


def kept_value(kept, name):
    return kept[name]


def forget(kept):
    for name in [name for name in kept if not name.startswith("_")]:
        del kept[name]


def fill(kept, tensor, value):
    tensor.fill_(value)


def fill_kept(kept, name, value):
    kept[name].fill_(value)


def describe(kept, tensor):
    return description(tensor)


def describe_kept(kept, name):
    return description(kept[name])


def echo(kept, value):
    return value


def load_and_describe(kept, message):
    return description(ForkingPickler.loads(message))


def collect_in_peer(kept, message_timeout=None):
    sharing.collect_shared_memory(message_timeout)


class Description(NamedTuple):
    """The properties and content of a tensor, in plain values."""

    kind: str
    dtype: str
    shape: list[int]
    strides: list[int]
    stop_gradient: bool
    data: bytes


def description(tensor: paddle.Tensor) -> Description:
    return Description(
        type(tensor).__name__,
        str(tensor.dtype),
        list(tensor.shape),
        list(tensor.strides),
        tensor.stop_gradient,
        tensor.numpy().tobytes(),
    )


# Test cases over strategies and start methods.


class SharingTestCase(unittest.TestCase):
    """A base that runs tests in `strategy`, with a peer if `method` is set."""

    strategy = "file_system"
    method: str | None = None

    @classmethod
    def setUpClass(cls):
        before = sharing.get_sharing_strategy()
        cls.addClassCleanup(sharing.set_sharing_strategy, before)
        sharing.set_sharing_strategy(cls.strategy)
        cls.peer = None
        # The tracker lives until the end of the run; it is not a leak.
        multiprocessing.resource_tracker.ensure_running()
        if cls.method is not None:
            cls.context = multiprocessing.get_context(cls.method)
            cls.addClassCleanup(lambda: cls.peer is None or cls.peer.close())

    def setUp(self):
        if self.method is not None and not (self.peer and self.peer.alive):
            type(self).peer = self.new_peer()
            # From here on, both processes have segments of each kind with room
            # for the test tensors, and are attached to each other's segments. A
            # process keeps its segments for later tensors.
            for strategy in STRATEGIES:
                sharing.set_sharing_strategy(strategy)
                for size in (4, LARGE):
                    self.peer.call(echo, paddle.empty([size], "uint8"))
                    self.peer.call(_fresh, strategy, size)
            sharing.set_sharing_strategy(self.strategy)
            sharing.collect_shared_memory()
            self.peer.call(collect_in_peer)

    def new_peer(self, **kept: Any) -> Peer:
        """Returns a peer, which the caller closes."""
        return Peer(self.context, self.strategy, **kept)

    @contextlib.contextmanager
    def another_peer(self, **kept: Any):
        """Yields a second peer and closes it at the end of the context."""
        peer = self.new_peer(**kept)
        try:
            yield peer
        finally:
            peer.close()

    def used(self) -> int:
        """Returns the bytes of blocks in use, after a collection."""
        gc.collect()
        sharing.collect_shared_memory()
        return sharing.shared_memory_stats()["used"]


def _fresh(kept, strategy, size):
    before = sharing.get_sharing_strategy()
    sharing.set_sharing_strategy(strategy)
    try:
        # Pickled in this process, with this strategy.
        tensor = paddle.empty([size], "uint8")
        return ForkingPickler.loads(ForkingPickler.dumps(tensor))
    finally:
        sharing.set_sharing_strategy(before)


def over_every_way_to_send(
    strategies: tuple[str, ...] = STRATEGIES,
    methods: tuple[str, ...] = START_METHODS,
) -> Callable[[type], None]:
    """
    Class decorator: replaces a test case with one test case per strategy and
    start method. Each of their tests must leave nothing behind.
    """

    def derive(case: type) -> None:
        module = sys.modules[case.__module__]
        for strategy in strategies:
            for method in methods:
                name = f"{case.__name__}_{strategy}_{method}"
                members = {
                    "strategy": strategy,
                    "method": method,
                    "__module__": case.__module__,
                    **{
                        test: _without_leak(getattr(case, test))
                        for test in dir(case)
                        if test.startswith("test_")
                    },
                }
                setattr(module, name, type(name, (case,), members))

    return derive


def _without_leak(method: Callable) -> Callable:
    @functools.wraps(method)
    def test(self):
        with no_leak(self.peer):
            method(self)
            self.doCleanups()
            self.peer.call(forget)

    return test


# Scripts: processes that die, or that have their own /dev/shm.


SCRIPT_HEAD = """
import multiprocessing, os, sys, threading, time
import paddle
import paddle.incubate.multiprocessing as sharing
from multiprocessing.reduction import ForkingPickler
paddle.set_device("cpu")
"""


def start_sharing_script(body: str) -> ForkedScript | subprocess.Popen:
    """Starts a script after SCRIPT_HEAD, whose stdout and stderr are pipes."""
    return start_forked_script(SCRIPT_HEAD + textwrap.dedent(body))


def run_sharing_script(
    case: unittest.TestCase, body: str, *arguments: str
) -> subprocess.CompletedProcess:
    """Runs a script to its end. Fails `case` unless it exits with 0."""
    script = SCRIPT_HEAD + textwrap.dedent(body)
    return run_forked_script(case, script, *arguments)


def run_new_sharing_script(
    case: unittest.TestCase,
    body: str,
    wrapper: tuple[str, ...] = (),
    variables: tuple[str, ...] = (),
) -> subprocess.CompletedProcess:
    """
    Runs a script to its end in a new Python, through the command `wrapper` if
    given, and fails `case` unless it exits with 0. `variables` lists
    environment variables that were set after the start of this process, to be
    passed to the script.
    """
    environment = pristine_environment()
    environment.update((name, os.environ[name]) for name in variables)
    script = script_command(SCRIPT_HEAD + textwrap.dedent(body))
    return run_command(case, [*wrapper, *script], environment)
