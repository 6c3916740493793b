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
"""Processes that run one function, each with its rank, and fail as one.

The interface is the one of `torch.multiprocessing.spawn`.
"""

from __future__ import annotations

import contextlib
import copyreg
import errno
import math
import multiprocessing
import numbers
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Sequence
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, Callable

import paddle

from .device_names import device_counts, parse

if sys.platform == "linux":
    import fcntl

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.process import BaseProcess

# How long a process that got SIGTERM may take until it gets SIGKILL.
_TERMINATION_S = 30.0
# The same for one that has lost its parent, or whose parent was interrupted.
_FAREWELL_S = 5.0
# A sentinel is late while a process that its owner has forked lives.
_POLL_S = 1.0
# A sentinel is a little early: the process still has to end.
_END_S = 0.001


class ProcessException(Exception):
    """One of several processes has failed; the base of the two ways to fail.

    Args:
        msg (str): what happened.
        error_index (int): the rank of the process.
        error_pid (int): its id, which may name another process by now.
    """

    def __init__(self, msg: str, error_index: int, error_pid: int):
        super().__init__(msg)
        self.msg = msg
        self.error_index = error_index
        self.error_pid = error_pid

    def __reduce__(self) -> tuple:
        # Exceptions are made anew from their message alone otherwise.
        return copyreg.__newobj__, (type(self), self.msg), vars(self)


class ProcessRaisedException(ProcessException):
    """The function raised an exception in a process.

    Args:
        msg (str): what happened, with the traceback as that process saw it.
        error_index (int): the rank of the process.
        error_pid (int): its id, which may name another process by now.
    """


class ProcessExitedException(ProcessException):
    """A process was ended by a signal or by an exit code other than 0.

    Args:
        msg (str): what happened.
        error_index (int): the rank of the process.
        error_pid (int): its id, which may name another process by now.
        exit_code (int): its exit code, which after a signal is the number of
            that, negative.
        signal_name (str|None, optional): the name of that signal, as
            ``'SIGKILL'``. Default: None, there was none.
    """

    def __init__(
        self,
        msg: str,
        error_index: int,
        error_pid: int,
        exit_code: int,
        signal_name: str | None = None,
    ):
        super().__init__(msg, error_index, error_pid)
        self.exit_code = exit_code
        self.signal_name = signal_name


class ProcessContext:
    """The processes that :func:`start_processes` has started.

    Attributes:
        processes (list): the processes, in the order of their ranks.
        sentinels (dict): the rank of each process that was not seen to end yet,
            by its sentinel, see ``multiprocessing.connection.wait``.
    """

    def __init__(self) -> None:
        self.processes: list[BaseProcess] = []
        self.sentinels: dict[int, int] = {}
        self._reports: list[Connection] = []
        self._failed: int | None = None

    def _start(self, process: BaseProcess, report: Connection) -> None:
        with _interrupt_deferred():
            try:
                process.start()
            finally:
                # It may run although its start has raised.
                if process.pid is not None:
                    self.sentinels[process.sentinel] = len(self.processes)
                    self.processes.append(process)
                    self._reports.append(report)

    def pids(self) -> list[int]:
        """Returns the ids of the processes, in the order of their ranks.

        Returns:
            list[int]: the ids.

        Examples:
            .. code-block:: python

                >>> import time
                >>> import paddle.multiprocessing as mp
                >>> context = mp.spawn(time.sleep, nprocs=2, join=False)
                >>> print(len(context.pids()))
                2
                >>> print(context.join())
                True
        """
        return [process.pid for process in self.processes]

    def join(
        self, timeout: float | None = None, grace_period: float | None = None
    ) -> bool:
        """Waits until all processes have ended, or until one fails.

        When one fails, the others are ended before the error is raised: what
        does not go by itself gets SIGTERM, and what stays then, SIGKILL.

        Args:
            timeout (float|None, optional): how long to wait, in seconds.
                Default: None, until they have ended.
            grace_period (float|None, optional): how long, in seconds, the
                others may go on after a failure until they get SIGTERM, and
                after that until they get SIGKILL. Default: None, SIGTERM at
                once and SIGKILL after 30 seconds.

        Returns:
            bool: True if all have ended, False if the time is over.

        Raises:
            ProcessRaisedException: the function raised an exception in a
                process.
            ProcessExitedException: a process was killed, or exited with
                another code than 0.
            ValueError: a time is not a number.

        Examples:
            .. code-block:: python

                >>> import time
                >>> import paddle.multiprocessing as mp
                >>> context = mp.start_processes(
                ...     time.sleep, nprocs=2, join=False, start_method='fork'
                ... )
                >>> print(context.join(timeout=0))
                False
                >>> print(context.join())
                True
        """
        _check_seconds("timeout", timeout)
        _check_seconds("grace_period", grace_period)
        if not self._wait(timeout):
            return False
        if self._failed is not None:
            self._stop(grace_period)
            raise self._error(self._failed)
        return True

    def _wait(self, seconds: float | None, all_of_them: bool = False) -> bool:
        """
        Returns True when all have ended, or one has failed unless `all_of_them`
        is set; False when the time is over.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:
            self._note_ended()
            if not self.sentinels:
                return True
            if self._failed is not None and not all_of_them:
                return True
            pause = _POLL_S
            if deadline is not None:
                pause = min(pause, deadline - time.monotonic())
                if pause <= 0:
                    return False
            if connection.wait(self.sentinels, pause):
                time.sleep(_END_S)

    def _note_ended(self) -> None:
        for sentinel, index in list(self.sentinels.items()):
            exit_code = self.processes[index].exitcode
            if exit_code is None:
                continue
            self.processes[index].join()
            del self.sentinels[sentinel]
            if exit_code != 0 and self._failed is None:
                self._failed = index

    def _stop(self, grace_period: float | None) -> None:
        """Ends the processes that there are still."""
        try:
            if grace_period is not None:
                self._wait(grace_period, all_of_them=True)
            for index in self.sentinels.values():
                self.processes[index].terminate()
            self._wait(
                _TERMINATION_S if grace_period is None else grace_period,
                all_of_them=True,
            )
        finally:
            running = [self.processes[i] for i in self.sentinels.values()]
            for process in running:
                process.kill()
            for process in running:
                process.join()
            self.sentinels.clear()

    def _error(self, index: int) -> ProcessException:
        process = self.processes[index]
        subject = f"Process {index} (pid {process.pid})"
        trace = _reported(self._reports[index])
        if trace is not None:
            return ProcessRaisedException(
                f"{subject} raised an exception:\n\n{trace}", index, process.pid
            )
        code = process.exitcode
        if code > 0:
            return ProcessExitedException(
                f"{subject} exited with code {code}.", index, process.pid, code
            )
        name = _signal_name(-code)
        return ProcessExitedException(
            f"{subject} was ended by signal {name}.",
            index,
            process.pid,
            code,
            name,
        )


def spawn(
    fn: Callable,
    args: tuple = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    devices: str | Sequence[str] | None = None,
) -> ProcessContext | None:
    """Runs a function in several new processes, each with its rank.

    It is :func:`start_processes` with the start method ``'spawn'``, which works
    with every device. The function and its arguments have to be importable:
    a script starts processes below ``if __name__ == '__main__':``.

    Args:
        fn (Callable): is called as ``fn(rank, *args)``, with ranks from 0.
        args (tuple, optional): the other arguments. Default: ().
        nprocs (int, optional): the number of processes. Default: 1.
        join (bool, optional): see :func:`start_processes`. Default: True.
        daemon (bool, optional): see :func:`start_processes`. Default: False.
        devices (str|Sequence[str]|None, optional): see :func:`start_processes`.
            Default: None.

    Returns:
        ProcessContext|None: None if ``join`` is True.

    Raises:
        ProcessRaisedException: the function raised an exception in a process.
        ProcessExitedException: a process was killed, or exited with another
            code than 0.

    Examples:
        .. code-block:: python

            >>> import time
            >>> import paddle.multiprocessing as mp
            >>> mp.spawn(time.sleep, nprocs=2)  # one sleeps 0 s, one 1 s
    """
    return start_processes(
        fn, args, nprocs, join, daemon, start_method="spawn", devices=devices
    )


def start_processes(
    fn: Callable,
    args: tuple = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
    devices: str | Sequence[str] | None = None,
) -> ProcessContext | None:
    """Runs a function in several new processes, each with its rank.

    A process that loses its parent gets SIGTERM, and after five seconds
    SIGKILL, however the parent ended and whatever the process does. Only one
    that never releases Python's lock is left with the SIGTERM alone. A
    ``KeyboardInterrupt`` in a process ends it without a word and counts as its
    end, not as a failure.

    Args:
        fn (Callable): is called as ``fn(rank, *args)``, with ranks from 0.
        args (tuple, optional): the other arguments. Tensors among them are
            shared with the processes, except with ``'fork'``, where those are
            shared that were in shared memory before. Default: ().
        nprocs (int, optional): the number of processes; with 0 there is
            nothing to wait for. Default: 1.
        join (bool, optional): whether to wait until all have ended, see
            :meth:`ProcessContext.join`. When the wait is interrupted, the
            processes are ended. Default: True.
        daemon (bool, optional): whether the processes are ended when this
            process exits, rather than waited for. Those can not start
            processes themselves. Default: False.
        start_method (str, optional): ``'spawn'``, ``'fork'`` or
            ``'forkserver'``, see ``multiprocessing``. Default: ``'spawn'``.
        devices (str|Sequence[str]|None, optional): the device that each process
            starts on. The name of a type, as ``'gpu'``, stands for
            ``f'gpu:{rank}'``, and ``'cpu'`` for the CPU; a sequence has the
            name of one device for each process. Default: None, the default
            device, or with ``'fork'`` the one of the thread that calls.

    Returns:
        ProcessContext|None: what to join the processes with; None if ``join``
        is True.

    Raises:
        ProcessRaisedException: the function raised an exception in a process.
        ProcessExitedException: a process was killed, or exited with another
            code than 0.
        TypeError: an argument is of a wrong type.
        ValueError: there is no such start method or device, or there are fewer
            devices than processes.
        RuntimeError: SIGCHLD is ignored here, so that exit codes are lost.

    Examples:
        .. code-block:: python

            >>> import paddle
            >>> import paddle.multiprocessing as mp
            >>> def put_sum(rank, queue, values):
            ...     queue.put(float(values[rank].sum()))
            >>> queue = mp.get_context('fork').SimpleQueue()
            >>> values = paddle.to_tensor([[1.0, 2.0], [3.0, 4.0]])
            >>> mp.start_processes(
            ...     put_sum, (queue, values), nprocs=2, start_method='fork'
            ... )
            >>> print(sorted([queue.get(), queue.get()]))
            [3.0, 7.0]
    """
    _check(fn, args, nprocs, start_method)
    names = _device_names(devices, nprocs, start_method)
    context = multiprocessing.get_context(start_method)
    call = _Call(fn, args)
    started = ProcessContext()
    this_process = _handle_of_this_process()
    forks = start_method == "fork"
    try:
        with _sigterm_blocked() if forks else contextlib.nullcontext():
            for rank, name in enumerate(names):
                report = _new_report()
                process = context.Process(
                    target=_run,
                    args=(call, rank, name, report, this_process),
                    daemon=daemon,
                )
                started._start(process, report)
    except BaseException:
        started._stop(None)
        raise
    finally:
        if this_process is not None:
            this_process.close()
    if not join:
        return started
    try:
        started.join()
    except BaseException:
        started._stop(_FAREWELL_S)
        raise
    return None


class _Call:
    """
    A function and its arguments, which go to a child as bytes: when they can
    not be unpickled there, it reports that, too.
    """

    def __init__(self, fn: Callable, args: tuple):
        self._content: Any = (fn, args)

    def __reduce__(self) -> tuple:
        return _PickledCall, (bytes(ForkingPickler.dumps(self._content)),)

    def load(self) -> tuple[Callable, tuple]:
        return self._content


class _PickledCall:
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


def _run(
    call: _Call | _PickledCall,
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
        last_resort = threading.Timer(_TERMINATION_S, os._exit, [1])
        last_resort.daemon = True
        last_resort.start()
        sys.exit(1)


@contextlib.contextmanager
def _sigterm_blocked():
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
def _interrupt_deferred() -> Iterator[None]:
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


def _set_device(name: str | None) -> None:
    if name is not None:
        paddle.set_device(name)


# What a child reports, a connection to a file in memory: it is never full, so
# that a child that nobody joins can end; it has no name that could be left; and
# a connection knows a message that was cut off.


def _new_report() -> Connection:
    if hasattr(os, "memfd_create"):
        # Some containers forbid it.
        with contextlib.suppress(PermissionError):
            return Connection(os.memfd_create("process-report"))
    with tempfile.TemporaryFile(buffering=0) as file:
        return Connection(os.dup(file.fileno()))


def _reported(report: Connection) -> str | None:
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


def _handle_of_this_process() -> Connection | None:
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
    time.sleep(_FAREWELL_S)
    os.kill(os.getpid(), signal.SIGKILL)


def _set_signals(sentinel: int, enabled: bool) -> None:
    flags = fcntl.fcntl(sentinel, fcntl.F_GETFL)
    flags = flags | os.O_ASYNC if enabled else flags & ~os.O_ASYNC
    fcntl.fcntl(sentinel, fcntl.F_SETFL, flags)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIGRTMIN{number - signal.SIGRTMIN:+}"


def _check(fn: Callable, args: tuple, nprocs: int, start_method: str) -> None:
    if sys.platform != "linux":
        raise NotImplementedError(
            "The platform of paddle.multiprocessing must be 'linux', but this "
            f"is {sys.platform!r}."
        )
    if not callable(fn):
        raise TypeError(f"The fn must be callable, but received {fn!r}.")
    if not isinstance(args, (tuple, list)):
        raise TypeError(
            "The args must be a tuple of the arguments after the rank, such as "
            f"(x,), but received {type(args).__name__}."
        )
    if not isinstance(nprocs, numbers.Integral) or isinstance(nprocs, bool):
        raise TypeError(
            f"The nprocs must be an integer, but received {nprocs!r}."
        )
    if nprocs < 0:
        raise ValueError(
            f"The nprocs must be at least 0, but received {nprocs}."
        )
    methods = multiprocessing.get_all_start_methods()
    if start_method not in methods:
        raise ValueError(
            f"The start_method must be one of {methods}, but received "
            f"{start_method!r}."
        )
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        # The kernel then forgets how they end, and join would wait for ever.
        raise RuntimeError(
            "The SIGCHLD signal must not be ignored, but it is: please call "
            "signal.signal(signal.SIGCHLD, signal.SIG_DFL) before processes "
            "are started."
        )


def _check_seconds(name: str, seconds: float | None) -> None:
    if seconds is None:
        return
    if not isinstance(seconds, numbers.Real) or math.isnan(seconds):
        raise ValueError(
            f"The {name} must be None or a number of seconds, but received "
            f"{seconds!r}."
        )


def _device_names(
    devices: str | Sequence[str] | None, nprocs: int, start_method: str
) -> list[str] | list[None]:
    """Returns the name of the device of each process, all of which exist."""
    if devices is None:
        return [None] * nprocs
    if isinstance(devices, str):
        names = _names_of_type(devices, nprocs)
    else:
        if not isinstance(devices, Sequence):
            raise TypeError(
                "The devices must be None, the name of a type or a sequence of "
                f"names, but received {devices!r}."
            )
        names = list(devices)
        if len(names) != nprocs:
            raise ValueError(
                "The devices must be one for each process, but received "
                f"{len(names)} devices for {nprocs} processes."
            )
        for name in names:
            _check_device(name)
    # Paddle has initialized CUDA when it is imported.
    if start_method == "fork" and any(name.startswith("gpu") for name in names):
        raise ValueError(
            "The start_method must be 'spawn' or 'forkserver' with a GPU among "
            f"the devices {names}, but received 'fork': a forked process can "
            "not use CUDA."
        )
    return names


def _names_of_type(kind: str, nprocs: int) -> list[str]:
    if kind == "cpu":
        return ["cpu"] * nprocs
    count = _device_count(kind)
    if count < nprocs:
        raise ValueError(
            f"The devices of type {kind!r} must be one for each process, but "
            f"there are {count} for {nprocs} processes."
        )
    return [f"{kind}:{rank}" for rank in range(nprocs)]


def _check_device(name: str) -> None:
    if not isinstance(name, str):
        raise TypeError(
            "The devices must be names such as 'cpu' or 'gpu:0', but received "
            f"{name!r}."
        )
    if name == "cpu":
        return
    kind, index, _ = parse(name)
    count = _device_count(kind)
    if index is None or index >= count:
        raise ValueError(
            f"The devices of type {kind!r} must be '{kind}:<index>' with an "
            f"index less than {count}, but received {name!r}."
        )


def _device_count(kind: str) -> int:
    counts = device_counts()
    if kind not in counts:
        raise ValueError(
            f"The type of the devices must be one of {['cpu', *counts]}, but "
            f"received {kind!r}."
        )
    return counts[kind]
