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
"""Starts processes that run one function and fail together.

The interface is that of `torch.multiprocessing.spawn`.
"""

from __future__ import annotations

import contextlib
import copyreg
import multiprocessing
import signal
import time
from typing import TYPE_CHECKING, Callable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

    from paddle._typing import PlaceLike

# The sentinel is signalled late if a grandchild holds its pipe open.
_POLL_S = 1.0
# The sentinel is signalled slightly before the exit code is available.
_END_S = 0.001


class ProcessException(Exception):
    """A failure of a process; the base class of the two kinds of failure.

    Args:
        msg (str): the description of the failure.
        error_index (int): the rank of the process.
        error_pid (int): its process id, which the system may reuse.
    """

    def __init__(self, msg: str, error_index: int, error_pid: int):
        super().__init__(msg)
        self.msg = msg
        self.error_index = error_index
        self.error_pid = error_pid

    def __reduce__(self) -> tuple:
        # By default, an exception is unpickled from its message alone.
        return copyreg.__newobj__, (type(self), self.msg), vars(self)


class ProcessRaisedException(ProcessException):
    """The function raised an exception in a process.

    Args:
        msg (str): the description of the failure, with the child's traceback.
        error_index (int): the rank of the process.
        error_pid (int): its process id, which the system may reuse.
    """


class ProcessExitedException(ProcessException):
    """A process was killed by a signal or exited with a code other than 0.

    Args:
        msg (str): the description of the failure.
        error_index (int): the rank of the process.
        error_pid (int): its process id, which the system may reuse.
        exit_code (int): its exit code; after a signal, the negative signal
            number.
        signal_name (str|None, optional): the name of the signal, such as
            ``'SIGKILL'``. Default: None, no signal killed the process.
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
        sentinels (dict): the rank of each process that has not been seen to
            end, keyed by its sentinel, see ``multiprocessing.connection.wait``.
    """

    def __init__(self) -> None:
        self.processes: list[BaseProcess] = []
        self.sentinels: dict[int, int] = {}
        self._reports: list[Connection] = []
        self._failed: int | None = None

    def _start(self, process: BaseProcess, report: Connection) -> None:
        from .spawned_process import interrupt_deferred

        with interrupt_deferred():
            try:
                process.start()
            finally:
                # The process may run even if start() has raised.
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

        When one fails, the others are ended before the error is raised: with
        SIGTERM and, if they do not end, with SIGKILL.

        Args:
            timeout (float|None, optional): the longest time to wait, in
                seconds. Default: None, no limit.
            grace_period (float|None, optional): the time, in seconds, from a
                failure until the others get SIGTERM, and from SIGTERM until
                they get SIGKILL. Default: None, SIGTERM immediately and SIGKILL
                after 30 seconds.

        Returns:
            bool: True if all have ended, False if the timeout has passed.

        Raises:
            ProcessRaisedException: the function raised an exception in a
                process.
            ProcessExitedException: a process was killed, or exited with a code
                other than 0.
            TypeError: a time is not a number.
            ValueError: a time is NaN.

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
        from .argument_checks import check_seconds

        check_seconds("timeout", timeout)
        check_seconds("grace_period", grace_period)
        if not self._wait(timeout):
            return False
        if self._failed is not None:
            self._stop(grace_period)
            raise self._error(self._failed)
        return True

    def _wait(self, seconds: float | None, all_of_them: bool = False) -> bool:
        """
        Returns True when all processes have ended or, unless `all_of_them` is
        set, when one has failed. Returns False when the time has passed.
        """
        from multiprocessing.connection import wait

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
            if wait(self.sentinels, pause):
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
        """Ends the processes that still run."""
        from . import spawned_process

        try:
            if grace_period is not None:
                self._wait(grace_period, all_of_them=True)
            for index in self.sentinels.values():
                self.processes[index].terminate()
            if grace_period is None:
                grace_period = spawned_process.SIGKILL_DELAY_S
            self._wait(grace_period, all_of_them=True)
        finally:
            running = [self.processes[i] for i in self.sentinels.values()]
            for process in running:
                process.kill()
            for process in running:
                process.join()
            self.sentinels.clear()

    def _error(self, index: int) -> ProcessException:
        from .spawned_process import reported

        process = self.processes[index]
        subject = f"Process {index} (pid {process.pid})"
        trace = reported(self._reports[index])
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
    start_method: str = "spawn",
    devices: str | Sequence[PlaceLike] | None = None,
) -> ProcessContext | None:
    """Runs a function in several new processes, each with its rank.

    This is :func:`start_processes` with the start method ``'spawn'``, which
    works with every device. Processes import the function by its name, so a
    script must start them below ``if __name__ == '__main__':``.

    Args:
        fn (Callable): called as ``fn(rank, *args)``, with ranks from 0.
        args (tuple, optional): the other arguments. Default: ().
        nprocs (int, optional): the number of processes. Default: 1.
        join (bool, optional): see :func:`start_processes`. Default: True.
        daemon (bool, optional): see :func:`start_processes`. Default: False.
        start_method (str, optional): must be ``'spawn'``; for other methods,
            call :func:`start_processes`. Default: ``'spawn'``.
        devices (str|Sequence[str|Place]|None, optional): see
            :func:`start_processes`. Default: None.

    Returns:
        ProcessContext|None: None if ``join`` is True.

    Raises:
        ProcessRaisedException: the function raised an exception in a process.
        ProcessExitedException: a process was killed, or exited with a code
            other than 0.
        ValueError: the start method is not ``'spawn'``; for the other cases see
            :func:`start_processes`.

    Examples:
        .. code-block:: python

            >>> import time
            >>> import paddle.multiprocessing as mp
            >>> mp.spawn(time.sleep, nprocs=2)  # one sleeps 0 s, one 1 s
    """
    if start_method != "spawn":
        raise ValueError(
            "`start_method` of spawn() must be 'spawn', but received "
            f"{start_method!r}. Call start_processes(..., "
            f"start_method={start_method!r}) instead."
        )
    return start_processes(
        fn, args, nprocs, join, daemon, start_method, devices
    )


def start_processes(
    fn: Callable,
    args: tuple = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
    devices: str | Sequence[PlaceLike] | None = None,
) -> ProcessContext | None:
    """Runs a function in several new processes, each with its rank.

    When the parent ends, in whatever way, its processes get SIGTERM, and after
    five seconds SIGKILL. A process that never releases the GIL gets only
    SIGTERM. A ``KeyboardInterrupt`` ends a process without a message and is not
    a failure.

    Args:
        fn (Callable): called as ``fn(rank, *args)``, with ranks from 0.
        args (tuple, optional): the other arguments. Tensors among them are
            shared with the processes; with ``'fork'``, only tensors that were
            in shared memory before. Default: ().
        nprocs (int, optional): the number of processes; 0 starts none. Default:
            1.
        join (bool, optional): whether to wait until all processes have ended,
            see :meth:`ProcessContext.join`. Interrupting the wait ends the
            processes. Default: True.
        daemon (bool, optional): whether this process, when it exits, ends the
            processes instead of waiting for them. Daemons cannot start
            processes. Default: False.
        start_method (str, optional): ``'spawn'``, ``'fork'`` or
            ``'forkserver'``, see ``multiprocessing``. Default: ``'spawn'``.
        devices (str|Sequence[str|Place]|None, optional): the device of each
            process. A type such as ``'gpu'`` stands for ``f'gpu:{rank}'``,
            ``'cpu'`` for the CPU; a sequence has the name or the place of one
            device per process. Default: None, the default device, or with
            ``'fork'`` the calling thread's device.

    Returns:
        ProcessContext|None: the context that joins the processes; None if
        ``join`` is True.

    Raises:
        ProcessRaisedException: the function raised an exception in a process.
        ProcessExitedException: a process was killed, or exited with a code
            other than 0.
        TypeError: an argument has a wrong type.
        ValueError: the start method or a device does not exist, ``devices``
            does not have one device per process, ``'fork'`` is used with a
            GPU, or ``nprocs`` is negative.
        RuntimeError: this process ignores SIGCHLD, which loses exit codes, or
            ``args`` contains a lock that only forked processes can use.
        NotImplementedError: this system is not Linux.

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
    from . import spawn_arguments

    spawn_arguments.check(fn, args, nprocs, start_method)
    names = spawn_arguments.devices_of_ranks(devices, nprocs)
    if start_method == "fork":
        spawn_arguments.check_fork(names)
    # Import only after the platform check.
    from . import spawned_process

    context = multiprocessing.get_context(start_method)
    call = spawned_process.Call(fn, args)
    started = ProcessContext()
    this_process = spawned_process.handle_of_this_process()
    try:
        with contextlib.ExitStack() as stack:
            if start_method == "fork":
                stack.enter_context(spawned_process.sigterm_blocked())
            for rank, name in enumerate(names):
                report = spawned_process.new_report()
                process = context.Process(
                    target=spawned_process.run,
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
        started._stop(spawned_process.ORPHAN_SIGKILL_DELAY_S)
        raise
    return None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIGRTMIN{number - signal.SIGRTMIN:+}"
