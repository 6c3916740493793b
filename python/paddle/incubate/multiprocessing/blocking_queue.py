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
"""A bounded queue between threads, whose waits end when a worker is stopped."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
import weakref
from collections import deque
from typing import Generic, TypeVar

from .argument_checks import check_count, check_seconds
from .worker_thread import Waiters, wait_for

__all__ = []

T = TypeVar("T")

if hasattr(queue, "ShutDown"):
    ShutDown = queue.ShutDown
else:

    class ShutDown(Exception):
        """A queue was shut down; the same as ``queue.ShutDown`` from Python
        3.13 on."""


# The queues of this process.
_queues: weakref.WeakSet[BlockingQueue] = weakref.WeakSet()


class BlockingQueue(Generic[T]):
    """A queue for several producer and consumer threads.

    It has the methods of Python's ``queue.Queue``, including :meth:`shutdown`
    from Python 3.13, with three differences: a :class:`WorkerThread` that is
    asked to stop ends in :meth:`get` and :meth:`put`, finalizers and signal
    handlers may call :meth:`shutdown`, and there are no ``task_done`` and
    ``join``. A forked child has its own queue, with the same items.

    Args:
        maxsize (int, optional): the number of items at which :meth:`put` starts
            to wait. Default: 0, no limit.

    Raises:
        TypeError: ``maxsize`` is not an integer.
        ValueError: ``maxsize`` is less than 0.

    Examples:
        .. code-block:: python

            >>> import paddle.multiprocessing as mp
            >>> queue = mp.BlockingQueue(maxsize=2)
            >>> def produce():
            ...     for i in range(5):
            ...         queue.put(i)
            ...     queue.shutdown()
            >>> with mp.WorkerThread(produce):
            ...     total = 0
            ...     try:
            ...         while True:
            ...             total += queue.get()
            ...     except mp.ShutDown:
            ...         print(total)
            10
    """

    def __init__(self, maxsize: int = 0) -> None:
        check_count("maxsize", maxsize, 0)
        self.maxsize = maxsize
        self._items: deque[T] = deque()
        # Held while items are counted and an item is added or taken, but not
        # during waits.
        self._mutex = threading.Lock()
        self._is_shut_down = False
        self._drops_items = False
        self._not_empty = Waiters()
        self._not_full = Waiters()
        _queues.add(self)

    def qsize(self) -> int:
        """Returns the number of items.

        Returns:
            int: the number, which other threads may change at any time.
        """
        return len(self._items)

    def empty(self) -> bool:
        """Returns whether the queue is empty.

        Returns:
            bool: True if there are no items.
        """
        return not self._items

    def full(self) -> bool:
        """Returns whether the queue is full.

        Returns:
            bool: True if there is no room for another item.
        """
        return 0 < self.maxsize <= len(self._items)

    def put(
        self, item: T, block: bool = True, timeout: float | None = None
    ) -> None:
        """Adds an item, and waits for room if necessary.

        Args:
            item (Any): the item, which is not copied.
            block (bool, optional): whether to wait. Default: True.
            timeout (float|None, optional): the longest time to wait, in
                seconds. Default: None, no limit.

        Raises:
            queue.Full: there was no room within the timeout.
            ShutDown: the queue was shut down; the item was not added.
            TypeError: the timeout is not a number.
            ValueError: the timeout is negative or NaN.
        """
        deadline = deadline_after(timeout) if block else None
        while True:
            if block:
                wait_for(
                    self._not_full,
                    lambda: self._is_shut_down or not self.full(),
                    remaining_until(deadline),
                )
            with self._mutex:
                self._raise_if_shut_down()
                if not self.full():
                    self._items.append(item)
                    if not self._drops_items:
                        break
                    # `shutdown` may have dropped the items before this one.
                    self._items.clear()
                    self._raise_if_shut_down()
            if not block or remaining_until(deadline) == 0:
                raise queue.Full
        self._not_empty.notify_all()

    def get(self, block: bool = True, timeout: float | None = None) -> T:
        """Takes the oldest item, and waits for one if necessary.

        Args:
            block (bool, optional): whether to wait. Default: True.
            timeout (float|None, optional): the longest time to wait, in
                seconds. Default: None, no limit.

        Returns:
            Any: the item.

        Raises:
            queue.Empty: there was no item within the timeout.
            ShutDown: the queue was shut down and has no items.
            TypeError: the timeout is not a number.
            ValueError: the timeout is negative or NaN.
        """
        deadline = deadline_after(timeout) if block else None
        while True:
            if block:
                wait_for(
                    self._not_empty,
                    lambda: self._is_shut_down or self._items,
                    remaining_until(deadline),
                )
            with self._mutex:
                # Do not check for an item first: `shutdown` may drop it.
                with contextlib.suppress(IndexError):
                    item = self._items.popleft()
                    break
                self._raise_if_shut_down()
            if not block or remaining_until(deadline) == 0:
                raise queue.Empty
        self._not_full.notify_all()
        return item

    def put_nowait(self, item: T) -> None:
        """Does the same as ``put(item, block=False)``.

        Args:
            item (Any): the item.
        """
        self.put(item, block=False)

    def get_nowait(self) -> T:
        """Does the same as ``get(block=False)``.

        Returns:
            Any: the item.
        """
        return self.get(block=False)

    def shutdown(self, immediate: bool = False) -> None:
        """Makes later calls of :meth:`put` raise ShutDown, and calls of
        :meth:`get` too once the queue is empty. Wakes all waiting threads.

        Args:
            immediate (bool, optional): whether to drop the items that are in
                the queue. Default: False.
        """
        # Do not take the mutex: the thread that a finalizer interrupts may hold
        # it. A `put` that has passed its check completes, and `get` still takes
        # that item, because it looks for items before it checks for a shutdown.
        # A `put` that adds its item after the items are dropped sees
        # `_drops_items`, and drops its item.
        self._is_shut_down = True
        if immediate:
            self._drops_items = True
            self._items.clear()
        self._not_empty.notify_all()
        self._not_full.notify_all()

    def _raise_if_shut_down(self) -> None:
        if self._is_shut_down:
            raise ShutDown(
                "This BlockingQueue was shut down: put() adds no more items, "
                "and get() returns only those that are left. Create a new one."
            )


def _renew_mutexes() -> None:
    # A thread that does not exist in the child may hold them. The items are
    # consistent at any time.
    for queue_of_parent in _queues:
        queue_of_parent._mutex = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_mutexes)


def deadline_after(timeout: float | None) -> float | None:
    """Returns the end of a timeout, or None for None. Raises TypeError if the
    timeout is not a number, and ValueError if it is negative or NaN."""
    check_seconds("timeout", timeout)
    if timeout is None:
        return None
    if timeout < 0:
        raise ValueError(
            f"A timeout must be at least 0 seconds, but received {timeout}."
        )
    return time.monotonic() + timeout


def remaining_until(deadline: float | None) -> float | None:
    """Returns the seconds until a deadline, at least 0, or None for None."""
    if deadline is None:
        return None
    return max(0, deadline - time.monotonic())
