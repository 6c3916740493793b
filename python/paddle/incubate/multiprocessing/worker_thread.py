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
"""Threads that inherit the state of the thread that starts them."""

from __future__ import annotations

import atexit
import contextlib
import math
import operator
import os
import sys
import threading
import time
import weakref
from multiprocessing import parent_process, util
from traceback import walk_stack, walk_tb
from typing import TYPE_CHECKING, Any, Callable

from paddle.base import core, framework
from paddle.base.threads import streams
from paddle.base.threads.host_context import (
    cpu_generator,
    host_context,
    is_available as has_generators,
)

from .argument_checks import check_seconds
from .caller_modes import modes_of_caller

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from types import TracebackType

    from typing_extensions import Self

__all__ = []

_WAIT_AT_EXIT_S = 5

# How often a worker that joins another one checks whether it has ended: the end
# of a worker wakes it, but a subclass may have its own `run`.
_JOIN_CHECK_S = 1.0


class Waiters:
    """The threads that wait for a change of some state.

    No lock guards this object. So finalizers, signal handlers and forked
    children may call `notify_all` at any time, which a `threading.Condition`
    does not allow. No wakeup is lost, because a thread registers before it
    evaluates its predicate for the last time. A `queue.SimpleQueue` would work
    too, but cannot wake one particular thread, which `WorkerThread.stop` needs.
    """

    def __init__(self) -> None:
        self._locked: set[threading.Lock] = set()

    def wait_for(
        self, predicate: Callable[[], object], timeout: float | None = None
    ) -> bool:
        """Waits until `predicate` holds. Returns False after the timeout."""
        deadline = None if timeout is None else time.monotonic() + timeout
        remaining = -1.0
        while not predicate():
            if deadline is not None:
                # A lock accepts no longer timeout.
                remaining = min(
                    deadline - time.monotonic(), threading.TIMEOUT_MAX
                )
                if remaining <= 0:
                    return False
            lock = threading.Lock()
            lock.acquire()
            self._locked.add(lock)
            try:
                if not predicate():
                    lock.acquire(timeout=remaining)
            finally:
                self._locked.discard(lock)
        return True

    def notify_all(self) -> None:
        for lock in list(self._locked):
            # Another thread may have released it already.
            with contextlib.suppress(RuntimeError):
                lock.release()


class _Stopped(BaseException):
    """Ends a worker thread that is asked to stop while it waits."""


def _call(target: Callable[[], None]) -> None:
    target()


def _in_state_of_caller(
    generator: core.Generator | None,
) -> Callable[[Callable[[], None]], None]:
    """
    Captures the state of the calling thread. Returns a function that runs a
    target on a new thread in that state, except that random numbers on the host
    come from `generator`, or from the process-wide generator if it is None.
    """
    place = framework._own_expected_place()
    tracer = framework._dygraph_tracer()
    set_modes = modes_of_caller()
    call_on_streams = streams.with_streams_of_creator(_call)
    nothing = contextlib.nullcontext()

    # All of this state is thread-local, and ends with the thread.
    def in_state_of_caller(target: Callable[[], None]) -> None:
        framework._set_expected_place(place)
        # disable_static would change the process-wide default program.
        framework.global_var._dygraph_tracer_ = tracer
        set_modes()
        with host_context(generator=generator) if generator else nothing:
            call_on_streams(target)

    return in_state_of_caller


class _LocalsOfCallers:
    """The local variables of the functions that called a thread's target.

    They refer to the thread, and the traceback of the thread's exception refers
    to them. This cycle would keep a dropped thread alive until the next garbage
    collection. The variables are cleared together with the thread-local state,
    because the variables of a running function cannot be cleared.
    """

    def __init__(self, trace: TracebackType) -> None:
        self._frames = [frame for frame, _ in walk_stack(trace.tb_frame)]
        for frame, _ in walk_tb(trace):
            self._frames.append(frame)
            if frame.f_code is threading.Thread.run.__code__:
                break

    def __del__(self) -> None:
        for frame in self._frames:
            # After a fork, the state may be dropped while the frame runs.
            with contextlib.suppress(RuntimeError):
                frame.clear()


_local = threading.local()

# Threads with an unreported exception.
_failed: weakref.WeakSet[WorkerThread] = weakref.WeakSet()


class WorkerThread(threading.Thread):
    """A stoppable thread that inherits the state of the thread that starts it.

    When :meth:`start` is called, the worker inherits from the calling thread:

    - the current device. Later changes on either thread do not affect the
      other. If the caller has set no device, the worker follows the main
      thread too;
    - the current stream on each device. Using the worker's results on another
      stream requires the usual synchronization;
    - the ``paddle.no_grad`` mode, and dynamic or static graph mode;
    - the level, data type and operator lists of ``paddle.amp.auto_cast``.

    A ``threading.Thread`` has only the device and graph mode of the main
    thread. Process-wide settings apply to both: the default data type, default
    programs, flags.

    Random operators on the host use the worker's own generator, so that their
    results depend on its seed and not on other threads. On this thread,
    ``paddle.seed`` and ``paddle.get_rng_state`` for the CPU refer to that
    generator. Random operators on other devices, and in programs compiled by
    ``paddle.jit.to_static``, use the process-wide generators. Per-thread
    generators need per-thread device contexts, a C++ part for Linux. A Paddle
    built without it uses the process-wide generator on the host too, and does
    not accept a seed.

    Stopping is cooperative: the target must call
    ``threading.current_thread().should_stop()`` from time to time. A worker
    that was asked to stop also ends, without an error, when it starts one of
    these calls or waits in it: taking a batch of a ``DataLoader`` or a
    :class:`BatchSource`, or an item of a :class:`Prefetcher`; ``get`` and
    ``put`` of a :class:`BlockingQueue`; ``wait`` of an
    :class:`InterruptibleEvent`; ``acquire`` of an :class:`InterruptibleLock`;
    :meth:`join` of a worker that was not asked to stop, or of a group of them;
    :func:`wait_for_result`; :func:`wait_for_key`. Other calls are not
    interrupted.

    As a context manager, a worker is started on entry, and stopped and joined
    on exit. When Python exits, daemon workers are asked to stop and get five
    seconds to end.

    The design follows Caffe's ``InternalThread`` (Berkeley Vision and Learning
    Center), which passes device, mode and a seed on to threads that read data.

    Args:
        target (Callable): the function that the thread calls.
        args (Sequence, optional): positional arguments of the target.
            Default: ``()``.
        kwargs (Mapping|None, optional): keyword arguments of the target.
            Default: None, no keyword arguments.
        name (str|None, optional): the name of the thread. Default: None, a new
            unique name.
        daemon (bool|None, optional): whether Python may exit before the thread
            ends. Default: None, the same as the creating thread.
        seed (int|None, optional): the seed of the thread's random numbers on
            the host, at least 0 and less than 2**64. Default: None, a number
            drawn from the generator of the thread that calls :meth:`start`.

    Raises:
        NotImplementedError: a seed was given, but this Paddle was built without
            per-thread generators.
        TypeError: the target is not callable, or the seed is not an integer.
        ValueError: the seed is out of range.

    Examples:
        .. code-block:: python

            >>> import threading
            >>> import paddle
            >>> import paddle.multiprocessing as mp

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

    # Class attributes, because __del__ needs them even if __init__ has failed.
    _error: BaseException | None = None
    _trace: TracebackType | None = None
    _is_error_known = False

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
        if not callable(target):
            raise TypeError(
                "The target of a WorkerThread must be callable, but received "
                f"{target!r}."
            )
        super().__init__(
            target=target, args=args, kwargs=kwargs, name=name, daemon=daemon
        )
        self._seed = None if seed is None else _own_seed(seed)
        self._generator = core.Generator() if has_generators() else None
        self._process: int | None = None
        self._in_state: Callable[[Callable[[], None]], None] | None = None
        self._stop_requested = False
        self._wake: Callable[[], object] | None = None
        self._has_ended = False
        self._joining = Waiters()

    @property
    def seed(self) -> int | None:
        """The seed of the thread's random numbers on the host. None until
        :meth:`start` has drawn it, and without per-thread generators."""
        return self._seed

    def start(self) -> None:
        """Starts the thread in the state of the calling thread.

        Raises:
            RuntimeError: the thread was started before, or cannot be created.
        """
        if self._process is None:
            if self._generator is not None:
                if self._seed is None:
                    self._seed = cpu_generator().random()
                self._generator.manual_seed(self._seed)
            self._in_state = _in_state_of_caller(self._generator)
            self._process = os.getpid()
        super().start()

    def run(self) -> None:
        """Calls the target, on the thread that :meth:`start` creates.

        Raises:
            RuntimeError: the thread was not started.
        """
        if self._in_state is None:
            raise RuntimeError(
                f"Thread {self.name!r} runs once, and only after start(), but "
                "run() was called directly or again: call start() instead."
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
            self._has_ended = True
            self._joining.notify_all()

    def should_stop(self) -> bool:
        """Returns whether the thread was asked to stop.

        Returns:
            bool: True after :meth:`stop`.
        """
        return self._stop_requested

    def stop(self) -> None:
        """Asks the thread to stop, without waiting for it to end. Any thread
        may call this, any number of times."""
        self._stop_requested = True
        wake = self._wake
        if wake is not None:
            wake()

    def join(self, timeout: float | None = None) -> None:
        """Waits until the thread has ended.

        A worker that is asked to stop ends in this call, unless this thread was
        asked to stop before the call. So the code that cleans up after a worker
        can stop other workers and wait for them.

        Args:
            timeout (float|None, optional): the longest time to wait, in
                seconds; ``is_alive`` then returns whether the thread still
                runs. Default: None, no limit.

        Raises:
            BaseException: the exception that ended the target; every call
                raises the same object, with its traceback. If no call has
                raised it, ``threading.excepthook`` reports it when the thread
                object is dropped, or when Python exits.
            RuntimeError: the thread was not started, is the calling thread, or
                was started before this process was forked.
            TypeError: the timeout is not a number.
            ValueError: the timeout is NaN.
        """
        check_seconds("timeout", timeout)
        self._enforce_same_process()
        self._wait_until_ended(timeout)
        if self._error is not None:
            self._is_error_known = True
            # Without the frames of earlier calls of join().
            raise self._error.with_traceback(self._trace)

    def __enter__(self) -> Self:
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
            # Keep the body's error; the worker's error is reported.
            super().join()

    def __del__(self) -> None:
        self._report()

    def _report(self) -> None:
        error = self._error
        if error is None or self._is_error_known:
            return
        if self._process != os.getpid():
            # The thread ran in the parent, which reports the error.
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
                f"Thread {self.name!r} belongs to process {self._process} and "
                f"does not exist in this forked process ({os.getpid()}). Start "
                "a new one."
            )

    def _wait_until_ended(self, timeout: float | None) -> None:
        """Does the same as `Thread.join`, but also ends the calling thread if
        it is a worker that is asked to stop, and this thread is not."""
        caller = threading.current_thread()
        if isinstance(caller, WorkerThread) and not self._stop_requested:
            # Raises an error if the wait below would never end.
            super().join(0)
            end = math.inf if timeout is None else time.monotonic() + timeout
            while not caller._wait_for(
                self._joining,
                lambda: self._has_ended or not self.is_alive(),
                min(end - time.monotonic(), _JOIN_CHECK_S),
            ):
                if time.monotonic() >= end:
                    break
            if timeout is not None:
                timeout = max(0, end - time.monotonic())
        if timeout is not None:
            # Thread.join accepts no longer timeout.
            timeout = min(timeout, threading.TIMEOUT_MAX)
        super().join(timeout)

    def _wait_for(
        self,
        waiters: Waiters,
        predicate: Callable[[], object],
        timeout: float | None,
    ) -> bool:
        with self._woken_by(waiters.notify_all):
            holds = waiters.wait_for(
                lambda: self._stop_requested or predicate(), timeout
            )
        if self._stop_requested:
            raise _Stopped
        return holds

    @contextlib.contextmanager
    def _woken_by(self, wake: Callable[[], object]) -> Iterator[None]:
        """
        Makes `stop` call `wake`, which must end the wait in the body. After
        that, an exception of the body ends this thread, which must be the
        calling thread. If the thread was already asked to stop, it ends without
        running the body.
        """
        outer = self._wake
        # `stop` sets its flag before it reads `_wake`, and this thread sets
        # `_wake` before it reads the flag, so no request is missed.
        self._wake = wake
        try:
            if self._stop_requested:
                raise _Stopped
            yield
        except BaseException:
            if self._stop_requested:
                raise _Stopped from None
            raise
        finally:
            self._wake = outer


def checked_seed(seed: int) -> int:
    """Returns the seed of a thread as an `int`, or raises TypeError or
    ValueError."""
    try:
        if isinstance(seed, bool):
            raise TypeError
        value = operator.index(seed)
    except (TypeError, AssertionError):  # a Tensor raises the latter
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


def _own_seed(seed: int) -> int:
    value = checked_seed(seed)
    if not has_generators():
        raise NotImplementedError(
            f"A WorkerThread cannot have the seed {seed}: this Paddle was built"
            " without random numbers per thread, a C++ part for Linux. Omit the"
            " seed: random operators then use the process-wide generator."
        )
    return value


def wait_for(
    waiters: Waiters,
    predicate: Callable[[], object],
    timeout: float | None = None,
) -> bool:
    """
    Waits until `predicate` holds. Returns False after the timeout. Ends the
    calling thread if it is a worker that is asked to stop.
    """
    thread = threading.current_thread()
    if isinstance(thread, WorkerThread):
        return thread._wait_for(waiters, predicate, timeout)
    return waiters.wait_for(predicate, timeout)


def woken_by(wake: Callable[[], object]) -> AbstractContextManager[None]:
    """
    Returns a context for a wait that only `wake` can end. If the calling thread
    is a worker that is asked to stop, `wake` is called and the thread ends. On
    other threads, the context does nothing.
    """
    thread = threading.current_thread()
    if isinstance(thread, WorkerThread):
        return thread._woken_by(wake)
    return contextlib.nullcontext()


def _other_workers() -> list[WorkerThread]:
    return [
        thread
        for thread in threading.enumerate()
        if isinstance(thread, WorkerThread)
        and thread is not threading.current_thread()
    ]


def _join(thread: WorkerThread, timeout: float | None = None) -> None:
    # Another thread may be about to start it.
    with contextlib.suppress(RuntimeError):
        threading.Thread.join(thread, timeout)


def stop_workers() -> None:
    """Stops all worker threads at exit, and reports their errors."""
    # A thread that is ended inside an operator may crash the process.
    workers = _other_workers()
    for thread in workers:
        thread.stop()
    deadline = time.monotonic() + _WAIT_AT_EXIT_S
    for thread in workers:
        _join(thread, max(0, deadline - time.monotonic()))
    for thread in list(_failed):
        thread._report()


def _leave_child() -> None:
    # Python joins threads that are not daemons only after this function. They
    # may use daemon workers, which must not be stopped before. But the error
    # that ends a child, which Python reports after this, must not wait.
    error = sys.exc_info()[1]
    if error is None or (isinstance(error, SystemExit) and not error.code):
        while others := [t for t in _other_workers() if not t.daemon]:
            for thread in others:
                _join(thread)
    stop_workers()


def _leave_child_before_joins() -> None:
    if parent_process() is None:
        return
    frame = sys._getframe()
    while frame is not None and frame.f_code.co_name != "_bootstrap":
        frame = frame.f_back
    if frame is not None and frame.f_locals.get("exitcode"):
        # The child has failed. Its error is no longer in sys.exc_info().
        stop_workers()
    else:
        _leave_child()


def _leave_at_exit_of_child() -> None:
    util.Finalize(None, _leave_child, exitpriority=10)


# Here Python has joined the threads that are not daemons, unless Ctrl-C has
# interrupted it.
atexit.register(stop_workers)
# Children of multiprocessing skip atexit handlers.
util.register_after_fork(_leave_at_exit_of_child, lambda register: register())
if parent_process() is not None:
    _leave_at_exit_of_child()
# Python calls this before it joins threads that are not daemons, and from
# Python 3.13 on before finalizers. A spawned child that imported this module
# before its process object began to run has no finalizer.
with contextlib.suppress(RuntimeError):  # if that has already begun
    threading._register_atexit(_leave_child_before_joins)
