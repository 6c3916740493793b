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
"""Threads that work for the one that starts them."""

from __future__ import annotations

import atexit
import contextlib
import operator
import os
import threading
import time
import warnings
import weakref
from multiprocessing import parent_process, util
from traceback import walk_stack, walk_tb
from typing import TYPE_CHECKING, Any, Callable

from paddle.base import core, framework
from paddle.base.threads import streams
from paddle.base.threads.host_context import cpu_generator, host_context

from .caller_modes import modes_of_caller

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

__all__ = []

_WAIT_AT_EXIT_S = 5


class Waiters:
    """The threads that wait for something to change.

    Unlike a `threading.Condition` it may be told so by a finalizer or a signal
    handler, in the middle of anything, and after a fork: no lock guards it, and
    a thread counts as waiting before it looks for the last time.
    """

    def __init__(self) -> None:
        self._locked: set[threading.Lock] = set()

    def wait_for(self, predicate: Callable[[], object]) -> None:
        while not predicate():
            lock = threading.Lock()
            lock.acquire()
            self._locked.add(lock)
            try:
                if not predicate():
                    lock.acquire()
            finally:
                self._locked.discard(lock)

    def notify_all(self) -> None:
        for lock in list(self._locked):
            # Somebody else may have released it already.
            with contextlib.suppress(RuntimeError):
                lock.release()


class _Stopped(BaseException):
    """Ends a worker thread that was asked to stop while it waited."""


def _call(target: Callable[[], None]) -> None:
    target()


def _in_state_of_caller(
    generator: core.Generator,
) -> Callable[[Callable[[], None]], None]:
    """
    Returns what a new thread is to call with a target so that the target runs
    there as it would here and now, but for host random numbers, which come from
    `generator`.
    """
    place = framework._own_expected_place()
    tracer = framework._dygraph_tracer()
    set_modes = modes_of_caller()
    level = core._get_amp_attrs()._amp_level
    op_lists = core._get_amp_op_list()
    call_on_streams = streams.with_streams_of_creator(_call)

    # All of it belongs to the thread, and ends with it.
    def in_state_of_caller(target: Callable[[], None]) -> None:
        framework._set_expected_place(place)
        # disable_static would change the default program of the process.
        framework.global_var._dygraph_tracer_ = tracer
        set_modes()
        with host_context(generator=generator):
            call_on_streams(target)
        if level != core.AmpLevel.O0 and core._get_amp_op_list() != op_lists:
            warnings.warn(
                "The operators that paddle.amp.auto_cast casts changed while "
                f"thread {threading.current_thread().name!r} ran: they are the "
                "whole process's. Please leave auto_cast after the thread has "
                "been joined, or enter it in the thread alone.",
                stacklevel=2,
            )

    return in_state_of_caller


class _LocalsOfCallers:
    """Local variables of the functions that have called a thread's target.

    They refer to the thread, which keeps its exception, which keeps them by its
    traceback: the thread would go with the next garbage collection, and not
    when it is dropped. They are cleared when the state of the thread is, since
    those of a function that runs cannot be.
    """

    def __init__(self, trace: TracebackType) -> None:
        self._frames = [frame for frame, _ in walk_stack(trace.tb_frame)]
        for frame, _ in walk_tb(trace):
            self._frames.append(frame)
            if frame.f_code is threading.Thread.run.__code__:
                break

    def __del__(self) -> None:
        for frame in self._frames:
            # A fork drops the state of a thread that may be inside one.
            with contextlib.suppress(RuntimeError):
                frame.clear()


_local = threading.local()

# Those with an exception, of which somebody has to be told.
_failed: weakref.WeakSet[WorkerThread] = weakref.WeakSet()


class WorkerThread(threading.Thread):
    """A thread that begins as the one that starts it is, and can be stopped.

    When :meth:`start` is called, the worker takes over from the calling thread:

    - its current device. Neither is moved when the other changes its device
      later. If the caller has set none, and so follows the main thread, then
      the worker does;
    - its current stream on each device. Whoever uses on another stream what the
      worker makes has to wait for it, as always;
    - whether gradients are recorded (``paddle.no_grad``), and whether it is in
      dynamic or static graph mode;
    - level and data type of ``paddle.amp.auto_cast``. The lists of operators
      belong to the process: a worker that is started inside ``auto_cast``
      should be joined there. It warns if they have changed.

    A ``threading.Thread`` has the device and the mode of the main thread, and
    loses the rest. What belongs to the process is shared as before: the default
    data type, default programs, flags.

    Random operators on the host draw from a sequence of the worker's own, so
    that their numbers depend on its seed, and not on what other threads draw
    meanwhile; ``paddle.seed`` and ``paddle.get_rng_state`` on the CPU are about
    that sequence too. Those on other devices, and those in programs that
    ``paddle.jit.to_static`` has compiled, use the generators of the process.

    Stopping is cooperative: the target asks
    ``threading.current_thread().should_stop()`` from time to time. A worker
    that was asked to stop ends when it takes an item from a
    :class:`Prefetcher`, also if it is waiting for one.

    As a context manager it is started at the beginning; at the end it is asked
    to stop, and joined. When Python ends, workers that are daemons are asked to
    stop, and get five seconds for it.

    The idea is that of Caffe's ``InternalThread`` (Berkeley Vision and Learning
    Center), which hands device, mode and a seed on to threads that read data.

    Args:
        target (Callable): what the thread calls.
        args (Sequence, optional): positional arguments of the target.
            Default: ``()``.
        kwargs (Mapping|None, optional): keyword arguments of the target.
            Default: None, there are none.
        name (str|None, optional): the name of the thread. Default: None, a new
            one.
        daemon (bool|None, optional): whether Python may end before the thread.
            Default: None, as the thread that makes this one.
        seed (int|None, optional): of the thread's random numbers on the host,
            at least 0 and less than 2**64. Default: None, a number that is
            drawn from the sequence of the thread that calls :meth:`start`, so
            that its seed also decides on the numbers here.

    Raises:
        TypeError: the target cannot be called, or the seed is no integer.
        ValueError: the seed is out of range.

    Examples:
        .. code-block:: python

            >>> import threading
            >>> import paddle
            >>> import paddle.incubate.multiprocessing as mp

            >>> weight = paddle.ones([2])
            >>> weight.stop_gradient = False
            >>> def evaluate(results):
            ...     results.append((weight * 2).stop_gradient)
            >>> results = []
            >>> with paddle.no_grad():
            ...     worker = mp.WorkerThread(evaluate, args=[results])
            ...     worker.start()
            >>> worker.join()
            >>> print(results)
            [True]

            >>> def count(steps):
            ...     worker = threading.current_thread()
            ...     while not worker.should_stop():
            ...         steps.append(len(steps))
            >>> with mp.WorkerThread(count, args=[results]) as worker:
            ...     while len(results) < 9:
            ...         pass
            >>> print(worker.is_alive())
            False
    """

    def __init__(
        self,
        target: Callable[..., object],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        daemon: bool | None = None,
        seed: int | None = None,
    ) -> None:
        # First of all, for __del__.
        self._error: BaseException | None = None
        self._trace: TracebackType | None = None
        self._is_error_known = False
        if not callable(target):
            raise TypeError(
                "The target of a WorkerThread must be callable, but received "
                f"{target!r}."
            )
        super().__init__(
            target=target, args=args, kwargs=kwargs, name=name, daemon=daemon
        )
        self._seed = None if seed is None else _checked_seed(seed)
        self._generator = core.Generator()
        self._process: int | None = None
        self._in_state: Callable[[Callable[[], None]], None] | None = None
        self._stop_requested = False
        self._waits_on: Waiters | None = None

    @property
    def seed(self) -> int | None:
        """The seed of the thread's random numbers on the host; None if it is
        yet to be drawn, by :meth:`start`."""
        return self._seed

    def start(self) -> None:
        """Starts the thread, in the state of the one that calls this.

        Raises:
            RuntimeError: it was started before, or no thread can be made.
        """
        if self._process is None:
            if self._seed is None:
                self._seed = cpu_generator().random()
            self._generator.manual_seed(self._seed)
            self._in_state = _in_state_of_caller(self._generator)
            self._process = os.getpid()
        super().start()

    def run(self) -> None:
        """Calls the target; :meth:`start` has a new thread do it.

        Raises:
            RuntimeError: the thread was not started.
        """
        if self._in_state is None:
            raise RuntimeError(
                f"Thread {self.name!r} runs once, after start(). Please call "
                "start(), not run()."
            )
        try:
            self._in_state(super().run)
        except _Stopped:
            pass
        except BaseException as error:  # raised again by join()
            self._error, self._trace = error, error.__traceback__
            _local.kept = _LocalsOfCallers(error.__traceback__)
            _failed.add(self)
        finally:
            self._in_state = None

    def should_stop(self) -> bool:
        """Returns whether the thread was asked to stop.

        Returns:
            bool: True after :meth:`stop`.
        """
        return self._stop_requested

    def stop(self) -> None:
        """Asks the thread to stop, and does not wait until it has; from any
        thread, as often as you like."""
        self._stop_requested = True
        waiters = self._waits_on
        if waiters is not None:
            waiters.notify_all()

    def join(self, timeout: float | None = None) -> None:
        """Waits until the thread has ended.

        Args:
            timeout (float|None, optional): seconds to wait at most;
                ``is_alive`` then tells whether the thread goes on. Default:
                None, no limit.

        Raises:
            BaseException: the exception that ended the target, the same object
                with its traceback, in every call. One that no call has raised
                is reported by ``threading.excepthook`` when the thread object
                is dropped, or when Python ends.
            RuntimeError: it was not started, is the calling thread, or was
                started before this process was forked.
        """
        self._enforce_same_process()
        super().join(timeout)
        if self._error is not None:
            self._is_error_known = True
            # Without the places where it was raised again before.
            raise self._error.with_traceback(self._trace)

    def __enter__(self) -> WorkerThread:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        if error is None:
            self.join()
        else:
            # The error on its way goes on; one of the worker is reported.
            super().join()

    def __del__(self) -> None:
        self._report()

    def _report(self) -> None:
        error = self._error
        if error is None or self._is_error_known:
            return
        if self._process != os.getpid():
            # Not that of this process, which is a fork.
            return
        self._is_error_known = True
        threading.excepthook(
            threading.ExceptHookArgs(
                (type(error), error, error.__traceback__, self)
            )
        )

    def _enforce_same_process(self) -> None:
        if self._process is not None and self._process != os.getpid():
            raise RuntimeError(
                f"Thread {self.name!r} was started in process {self._process}, "
                f"of which this one, {os.getpid()}, is a fork. Threads do not "
                "go on in a fork: please start one here."
            )

    def _wait_for(
        self, waiters: Waiters, predicate: Callable[[], object]
    ) -> None:
        # `stop` sets the flag and then looks here, so that one of the two sides
        # sees the other.
        self._waits_on = waiters
        try:
            waiters.wait_for(lambda: self._stop_requested or predicate())
        finally:
            self._waits_on = None
        if self._stop_requested:
            raise _Stopped


def _checked_seed(seed: int) -> int:
    try:
        value = operator.index(seed)
    except TypeError:
        raise TypeError(
            "The seed of a WorkerThread must be an integer, but received "
            f"{seed!r}."
        ) from None
    if not 0 <= value < 2**64:
        raise ValueError(
            "The seed of a WorkerThread must be at least 0 and less than "
            f"2**64, but received {seed}."
        )
    return value


def wait_for(waiters: Waiters, predicate: Callable[[], object]) -> None:
    """
    Waits until `predicate` holds; ends the calling thread if it is a worker
    that was asked to stop.
    """
    thread = threading.current_thread()
    if isinstance(thread, WorkerThread):
        thread._wait_for(waiters, predicate)
    else:
        waiters.wait_for(predicate)


def _leave() -> None:
    # Threads cut off inside an operator may take the process down.
    threads = [
        thread
        for thread in threading.enumerate()
        if isinstance(thread, WorkerThread)
        and thread is not threading.current_thread()
    ]
    for thread in threads:
        thread.stop()
    deadline = time.monotonic() + _WAIT_AT_EXIT_S
    for thread in threads:
        remaining = max(0, deadline - time.monotonic())
        threading.Thread.join(thread, remaining)
    for thread in list(_failed):
        thread._report()


def _leave_at_exit_of_child() -> None:
    util.Finalize(None, _leave, exitpriority=10)


atexit.register(_leave)
# Children of multiprocessing forget what is registered there.
util.register_after_fork(_leave_at_exit_of_child, lambda register: register())
if parent_process() is not None:
    _leave_at_exit_of_child()
