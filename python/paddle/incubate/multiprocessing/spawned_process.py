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
"""What happens in a process that `spawn` starts, and to its start.

The process runs one function, reports its failure and ends with its parent.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, Callable

import paddle

if TYPE_CHECKING:
    from collections.abc import Iterator

# How long a process that got SIGTERM may take until it gets SIGKILL.
TERMINATION_S = 30.0
# The same for one that has lost its parent, or whose parent was interrupted.
FAREWELL_S = 5.0


class Call:
    """
    A function and its arguments, which go to a child as bytes: when they can
    not be unpickled there, it reports that, too.
    """

    def __init__(self, fn: Callable, args: tuple):
        self._content: Any = (fn, args)

    def __reduce__(self) -> tuple:
        try:
            content = ForkingPickler.dumps(self._content)
        except RuntimeError as error:
            if "SemLock" not in str(error):
                raise
            raise RuntimeError(
                "The args hold a lock, or a queue that has one, which only "
                "forked processes can use. Make it with "
                "paddle.multiprocessing.get_context('spawn')."
            ) from error
        return PickledCall, (bytes(content),)

    def load(self) -> tuple[Callable, tuple]:
        return self._content


class PickledCall:
    def __init__(self, content: bytes):
        self._content = content

    def load(self) -> tuple[Callable, tuple]:
        return ForkingPickler.loads(self._content)


def end_at_sigterm() -> None:
    """
    Makes SIGTERM end this process at once, unless Python has a handler for it.
    Paddle's own handler prints a page, and hangs where it interrupts a thread
    that holds a lock which it needs.
    """
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def run(
    call: Call | PickledCall,
    rank: int,
    device: str | None,
    report: Connection,
    parent: Connection | None,
) -> None:
    end_at_sigterm()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    _end_with(parent)
    try:
        _deliver_interrupt()
        _set_device(device)
        fn, args = call.load()
        # A module that was imported for them may have set its own.
        _set_device(device)
        fn(rank, *args)
    except SystemExit:
        raise
    except KeyboardInterrupt:
        # The parent is interrupted by the same key and has more to say.
        pass
    except BaseException:
        trace = traceback.format_exc()
        report.send_bytes(trace.encode("utf-8", "backslashreplace"))
        # A thread that fn has left behind would keep the failure to itself.
        last_resort = threading.Timer(TERMINATION_S, os._exit, [1])
        last_resort.daemon = True
        last_resort.start()
        sys.exit(1)


def _set_device(name: str | None) -> None:
    if name is not None:
        paddle.set_device(name)


# What a child reports, a connection to a file in memory: it is never full, so
# that a child that nobody joins can end; it has no name that could be left; and
# a connection knows a message that was cut off.


def new_report() -> Connection:
    if hasattr(os, "memfd_create"):
        # Some containers forbid it.
        with contextlib.suppress(PermissionError):
            return Connection(os.memfd_create("process-report"))
    with tempfile.TemporaryFile(buffering=0) as file:
        return Connection(os.dup(file.fileno()))


def reported(report: Connection) -> str | None:
    os.lseek(report.fileno(), 0, os.SEEK_SET)
    try:
        return report.recv_bytes().decode("utf-8")
    except (EOFError, OSError):
        return None


# A child ends with its parent. Of the two ways to know, the handle of a process
# (pidfd) tells its end whatever others have inherited; the sentinel, a pipe
# that the parent never writes to, makes the kernel send a signal to a process
# that can run no Python. The thread that started a child may end at any time,
# which rules out PR_SET_PDEATHSIG.


def handle_of_this_process() -> Connection | None:
    """Returns the handle, None where the kernel or this Python has none."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return Connection(os.pidfd_open(os.getpid()), writable=False)
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EPERM):
            return None
        raise


def _end_with(parent: Connection | None) -> None:
    sentinel = multiprocessing.parent_process().sentinel
    fcntl.fcntl(sentinel, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(sentinel, fcntl.F_SETSIG, signal.SIGTERM)
    _set_signals(sentinel, True)
    if connection.wait([sentinel], 0):
        # The parent has ended too early for the kernel to send it.
        os.kill(os.getpid(), signal.SIGTERM)
    threading.Thread(
        target=_end_after,
        args=(sentinel if parent is None else parent, sentinel),
        name="EndsWithParent",
        daemon=True,
    ).start()


def _end_after(parent: Connection | int, sentinel: int) -> None:
    connection.wait([parent])
    # One SIGTERM: a second one would interrupt what the first one has begun.
    # Whether the kernel has sent it shows before it is told to send none.
    is_sent = connection.wait([sentinel], 0)
    _set_signals(sentinel, False)
    if not is_sent:
        os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(FAREWELL_S)
    os.kill(os.getpid(), signal.SIGKILL)


def _set_signals(sentinel: int, enabled: bool) -> None:
    flags = fcntl.fcntl(sentinel, fcntl.F_GETFL)
    flags = flags | os.O_ASYNC if enabled else flags & ~os.O_ASYNC
    fcntl.fcntl(sentinel, fcntl.F_SETFL, flags)


@contextlib.contextmanager
def sigterm_blocked():
    """Keeps SIGTERM from a forked child until it has its own handler."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _InterruptLater:
    """A handler of SIGINT in the place of another, which is called later."""

    def __init__(self, handler: Callable[..., Any]):
        self._handler = handler
        self._received: list[tuple] = []

    def __call__(self, *args: Any) -> None:
        self._received.append(args)

    def deliver(self) -> None:
        signal.signal(signal.SIGINT, self._handler)
        for args in self._received[:1]:
            self._handler(*args)


def _deliver_interrupt() -> None:
    # A forked child begins with the handler of the start.
    handler = signal.getsignal(signal.SIGINT)
    if isinstance(handler, _InterruptLater):
        handler.deliver()


@contextlib.contextmanager
def interrupt_deferred() -> Iterator[None]:
    """
    Keeps Ctrl-C from cutting off a start between the fork and the moment when
    the child is known, which nobody would stop then.
    """
    handler = signal.getsignal(signal.SIGINT)
    # Python calls handlers on its main thread, where alone they can be set.
    on_main_thread = threading.current_thread() is threading.main_thread()
    if not (on_main_thread and callable(handler)):
        yield
        return
    signal.signal(signal.SIGINT, _InterruptLater(handler))
    try:
        yield
    finally:
        _deliver_interrupt()
