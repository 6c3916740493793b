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
"""Waits that end when the waiting worker thread is asked to stop."""

from __future__ import annotations

import threading
import time
import weakref
from typing import TYPE_CHECKING, Callable, TypeVar

from paddle.base import core

from .argument_checks import check_seconds
from .blocking_queue import deadline_after, remaining_until
from .worker_thread import Waiters, wait_for

if TYPE_CHECKING:
    from concurrent.futures import Future
    from types import TracebackType

__all__ = []

T = TypeVar("T")

# The poll interval of a store.
_PAUSE_S = 0.01

_waiters_of: weakref.WeakKeyDictionary[Future, Waiters] = (
    weakref.WeakKeyDictionary()
)
_locks_of: weakref.WeakKeyDictionary[core.Store, threading.Lock] = (
    weakref.WeakKeyDictionary()
)


class InterruptibleEvent:
    """A ``threading.Event`` whose :meth:`wait` ends when a worker is stopped.

    A :class:`WorkerThread` that is asked to stop ends in :meth:`wait`.
    Finalizers and signal handlers may call :meth:`set`, too.

    Examples:
        .. code-block:: python

            >>> import paddle.multiprocessing as mp
            >>> event = mp.InterruptibleEvent()
            >>> worker = mp.WorkerThread(event.wait)
            >>> worker.start()
            >>> worker.stop()
            >>> worker.join()
            >>> print(event.is_set())
            False
    """

    def __init__(self) -> None:
        self._is_set = False
        # A new object after each `set`, which waiting threads notice even if
        # `clear` follows immediately.
        self._last_set = object()
        self._waiters = Waiters()

    def is_set(self) -> bool:
        """Returns whether the event is set.

        Returns:
            bool: True if it is set.
        """
        return self._is_set

    def set(self) -> None:
        """Sets the event and wakes all threads that wait for it."""
        self._is_set = True
        self._last_set = object()
        self._waiters.notify_all()

    def clear(self) -> None:
        """Clears the event. Threads that were waiting when it was set still
        wake up."""
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until the event is set.

        Args:
            timeout (float|None, optional): the longest time to wait, in
                seconds. Default: None, no limit.

        Returns:
            bool: True if the event was set, False after the timeout.

        Raises:
            TypeError: the timeout is not a number.
            ValueError: the timeout is NaN.
        """
        check_seconds("timeout", timeout)
        last_set = self._last_set
        return wait_for(
            self._waiters,
            lambda: self._is_set or self._last_set is not last_set,
            timeout,
        )


class InterruptibleLock:
    """A ``threading.Lock`` whose :meth:`acquire` ends when a worker is stopped.

    A :class:`WorkerThread` that is asked to stop ends in :meth:`acquire`,
    without the lock. Its cleanup code, such as a ``finally`` block, must use a
    ``threading.Lock`` instead. A signal handler must not wait for the lock,
    because the interrupted thread may hold it.

    Examples:
        .. code-block:: python

            >>> import paddle.multiprocessing as mp
            >>> lock = mp.InterruptibleLock()
            >>> with lock:
            ...     worker = mp.WorkerThread(lock.acquire)
            ...     worker.start()
            ...     worker.stop()
            ...     worker.join()
            >>> print(lock.locked())
            False
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiters = Waiters()

    def locked(self) -> bool:
        """Returns whether a thread holds the lock.

        Returns:
            bool: True if a thread holds it.
        """
        return self._lock.locked()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Acquires the lock, and waits for it if necessary.

        Args:
            blocking (bool, optional): whether to wait. Default: True.
            timeout (float, optional): the longest time to wait, in seconds.
                Default: -1, no limit.

        Returns:
            bool: whether the calling thread now holds the lock.

        Raises:
            TypeError: the timeout is not a number.
            ValueError: the timeout is negative or NaN, or ``blocking`` is False
                and there is a timeout.
        """
        check_seconds("timeout", timeout, optional=False)
        if not blocking and timeout == -1:
            return self._lock.acquire(blocking=False)
        if not blocking:
            raise ValueError(
                "acquire(blocking=False) does not wait, but received timeout="
                f"{timeout}. Pass blocking=True to wait, or no timeout."
            )
        if timeout != -1 and timeout < 0:
            raise ValueError(
                "The timeout of a lock must be at least 0 seconds, or -1 for "
                f"no limit, but received {timeout}."
            )
        deadline = None if timeout == -1 else time.monotonic() + timeout
        remaining = None
        while True:
            if deadline is not None:
                remaining = max(0, deadline - time.monotonic())
            free = wait_for(
                self._waiters, lambda: not self._lock.locked(), remaining
            )
            # Another thread may have taken it.
            if self._lock.acquire(blocking=False):
                return True
            if not free:
                return False

    def release(self) -> None:
        """Releases the lock.

        Raises:
            RuntimeError: no thread holds the lock.
        """
        self._lock.release()
        self._waiters.notify_all()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def wait_for_result(future: Future[T], timeout: float | None = None) -> T:
    """Returns the result of a ``concurrent.futures.Future``.

    A :class:`WorkerThread` that is asked to stop ends here, unlike in
    ``future.result()``. The future continues.

    Args:
        future (concurrent.futures.Future): the future.
        timeout (float|None, optional): the longest time to wait, in seconds.
            Default: None, no limit.

    Returns:
        Any: the result of the future.

    Raises:
        concurrent.futures.TimeoutError: there was no result within the timeout.
        concurrent.futures.CancelledError: the future was cancelled.
        TypeError: the argument is not a future, or the timeout not a number.
        ValueError: the timeout is NaN.
        BaseException: the exception of the future.

    Examples:
        .. code-block:: python

            >>> from concurrent.futures import ThreadPoolExecutor
            >>> import paddle.multiprocessing as mp
            >>> with ThreadPoolExecutor() as pool:
            ...     print(mp.wait_for_result(pool.submit(max, 3, 5)))
            5
    """
    if not hasattr(future, "add_done_callback"):
        raise TypeError(
            "The argument of wait_for_result must be a "
            f"concurrent.futures.Future, but received {future!r}."
        )
    check_seconds("timeout", timeout)
    waiters = _waiters_of.get(future)
    if waiters is None:
        # One callback for all calls, because callbacks cannot be removed.
        waiters = _waiters_of.setdefault(future, Waiters())
        future.add_done_callback(lambda _: waiters.notify_all())
    wait_for(waiters, future.done, timeout)
    return future.result(timeout=0)


def wait_for_key(
    store: core.Store, key: str, timeout: float | None = None
) -> bytes:
    """Waits until a key of a ``paddle.distributed`` store is set.

    A :class:`WorkerThread` that is asked to stop ends here, unlike in ``wait``
    and ``get`` of the store, which wait in C++ and have no timeout.

    Several threads may call this for one store. They must not call methods of
    the store meanwhile: all calls share one connection, and would read each
    other's replies.

    Args:
        store (core.Store): the store.
        key (str): the key.
        timeout (float|None, optional): the longest time to wait, in seconds.
            Default: None, no limit.

    Returns:
        bytes: the value of the key.

    Raises:
        NotImplementedError: Paddle was built without the backend shm, whose
            C++ part looks up keys.
        TimeoutError: the key was not set within the timeout.
        TypeError: the timeout is not a number.
        ValueError: the timeout is negative or NaN.

    Examples:
        .. code-block:: python

            >>> import socket
            >>> import paddle.multiprocessing as mp
            >>> from paddle.base import core
            >>> with socket.create_server(("127.0.0.1", 0)) as server:
            ...     port = server.getsockname()[1]
            >>> store = core.TCPStore("127.0.0.1", port, True, 1)
            >>> store.set("address", "10.0.0.1")
            >>> print(mp.wait_for_key(store, "address"))
            b'10.0.0.1'
    """
    native = getattr(core.libpaddle, "_process_group_shm", None)
    if native is None:
        raise NotImplementedError(
            f"Cannot wait for the key {key!r}: this Paddle was built without "
            "the backend shm, a C++ part for Linux. Call store.get(...) "
            "instead; a worker thread cannot be stopped while it waits there."
        )
    lock = _locks_of.setdefault(store, threading.Lock())

    def is_set() -> bool:
        with lock:
            return native.has_key(store, key)

    if not poll(is_set, _PAUSE_S, timeout):
        raise TimeoutError(
            f"The key {key!r} of the store was not set within {timeout} s. "
            "Check the process that sets it for errors, or pass a longer "
            "timeout."
        )
    with lock:
        return store.get(key)


def poll(
    predicate: Callable[[], object],
    pause: float,
    timeout: float | None = None,
) -> bool:
    """
    Does the same as `wait_for` for state that changes without a notification:
    evaluates `predicate` every `pause` seconds. May take one pause longer.
    """
    deadline = deadline_after(timeout)
    # Only `WorkerThread.stop` wakes the thread before the end of a pause.
    while not wait_for(Waiters(), predicate, pause):
        if remaining_until(deadline) == 0:
            return False
    return True
