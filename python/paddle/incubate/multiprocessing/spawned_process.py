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
"""The child's side of `spawn`.

The child runs one function, reports its failure and ends with its parent. The
last part of this file defers signals while the parent starts a child.
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

# The time from SIGTERM to SIGKILL.
SIGKILL_DELAY_S = 30.0
# The same time if the parent has ended or was interrupted.
ORPHAN_SIGKILL_DELAY_S = 5.0


class Call:
    """
    A function and its arguments. They are sent to a child as bytes, so that the
    child can report an error in unpickling them.
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
                "The args contain a lock, or a queue with a lock, that only "
                "forked processes can use. Create it with "
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


def unblock_sigterm() -> None:
    """Makes a child receive SIGTERM, see `sigterm_blocked`."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def run(
    call: Call | PickledCall,
    rank: int,
    device: str | None,
    report: Connection,
    parent: Connection | None,
) -> None:
    unblock_sigterm()
    _end_with(parent)
    try:
        _deliver_interrupt()
        _set_device(device)
        fn, args = call.load()
        # Unpickling may have imported a module that sets a device.
        _set_device(device)
        fn(rank, *args)
    except SystemExit:
        raise
    except KeyboardInterrupt:
        # Ctrl-C also interrupts the parent, which reports it.
        pass
    except BaseException:
        trace = traceback.format_exc()
        report.send_bytes(trace.encode("utf-8", "backslashreplace"))
        # A thread that `fn` left running would delay the exit forever.
        last_resort = threading.Timer(SIGKILL_DELAY_S, os._exit, [1])
        last_resort.daemon = True
        last_resort.start()
        sys.exit(1)


def _set_device(name: str | None) -> None:
    if name is not None:
        paddle.set_device(name)


# A child reports through a connection to a file in memory. The file never fills
# up, so the child can exit before it is joined. It has no name, so no file is
# left behind. And a connection recognizes an incomplete message.


def new_report() -> Connection:
    if hasattr(os, "memfd_create"):
        # Some containers forbid memfds, with EPERM or ENOSYS.
        with contextlib.suppress(OSError):
            return Connection(os.memfd_create("process-report"))
    with tempfile.TemporaryFile(buffering=0) as file:
        return Connection(os.dup(file.fileno()))


def reported(report: Connection) -> str | None:
    os.lseek(report.fileno(), 0, os.SEEK_SET)
    try:
        return report.recv_bytes().decode("utf-8")
    except (EOFError, OSError):
        return None


# A child ends with its parent, which it watches in two ways. The parent's pidfd
# becomes ready when the parent ends, whatever other processes have inherited.
# The sentinel, a pipe that the parent never writes to, makes the kernel send a
# signal even if the child cannot run Python. PR_SET_PDEATHSIG is not suitable:
# it signals the end of the thread that started the child, which may end before
# the parent.


def handle_of_this_process() -> Connection | None:
    """Returns a pidfd, or None if the kernel or this Python lacks them."""
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
        # The parent ended before the kernel was told to send the signal.
        os.kill(os.getpid(), signal.SIGTERM)
    threading.Thread(
        target=_end_after,
        args=(sentinel if parent is None else parent, sentinel),
        name="EndsWithParent",
        daemon=True,
    ).start()


def _end_after(parent: Connection | int, sentinel: int) -> None:
    connection.wait([parent])
    # Send SIGTERM only once: a second SIGTERM would interrupt the handler of
    # the first. Check whether the kernel has sent it before disabling that.
    is_sent = connection.wait([sentinel], 0)
    _set_signals(sentinel, False)
    if not is_sent:
        os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(ORPHAN_SIGKILL_DELAY_S)
    os.kill(os.getpid(), signal.SIGKILL)


def _set_signals(sentinel: int, enabled: bool) -> None:
    flags = fcntl.fcntl(sentinel, fcntl.F_GETFL)
    flags = flags | os.O_ASYNC if enabled else flags & ~os.O_ASYNC
    fcntl.fcntl(sentinel, fcntl.F_SETFL, flags)


@contextlib.contextmanager
def sigterm_blocked():
    """
    Blocks SIGTERM until a forked child calls `unblock_sigterm`. Before it runs
    its target, it has Paddle's handler, see paddle/base/child_sigterm.py.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _InterruptLater:
    """A SIGINT handler that defers the previous handler."""

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
    # A forked child inherits the handler from its parent's start().
    handler = signal.getsignal(signal.SIGINT)
    if isinstance(handler, _InterruptLater):
        handler.deliver()


@contextlib.contextmanager
def interrupt_deferred() -> Iterator[None]:
    """
    Defers Ctrl-C until the parent has recorded the new child. An interrupt
    before that would leave the child running.
    """
    handler = signal.getsignal(signal.SIGINT)
    # Handlers run on the main thread, and can only be set there.
    on_main_thread = threading.current_thread() is threading.main_thread()
    if not (on_main_thread and callable(handler)):
        yield
        return
    signal.signal(signal.SIGINT, _InterruptLater(handler))
    try:
        yield
    finally:
        _deliver_interrupt()
