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
"""Prefetches the items of an iterable on a worker thread."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .argument_checks import check_count
from .worker_thread import Waiters, WorkerThread, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

__all__ = []

T = TypeVar("T")


class _Buffer:
    """The state that a Prefetcher and its thread share.

    The thread does not refer to the Prefetcher, so that dropping the Prefetcher
    ends the thread.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.items: deque[Any] = deque()
        self.waiters = Waiters()
        # True when the thread adds no more items.
        self.ended = False
        # True when the Prefetcher is closed, or its thread is stopped, before
        # the last item.
        self.closed = False

    def fill(self, iterable: Iterable[Any]) -> None:
        iterator = iter(iterable)
        while True:
            # Wait first: the item in progress counts towards the capacity.
            wait_for(self.waiters, lambda: len(self.items) < self.capacity)
            try:
                item = next(iterator)
            except StopIteration:
                return
            self.items.append(item)
            del item
            self.waiters.notify_all()


class _FillingThread(WorkerThread):
    def __init__(self, buffer: _Buffer, iterable: Iterable[Any]) -> None:
        super().__init__(buffer.fill, [iterable], daemon=True)
        self._buffer = buffer

    def run(self) -> None:
        super().run()
        if self.should_stop():
            self._buffer.closed = True
        self._buffer.ended = True
        self._buffer.waiters.notify_all()


class Prefetcher(Generic[T]):
    """An iterator whose own thread prepares items before they are needed.

    The items come in the order of the iterable, without copies, followed by its
    end or its exception. Several threads may take items: each item goes to one
    of them, and the end or the exception goes to all.

    Device tensors are computed on the stream that was current when the
    Prefetcher was created. Using them on another stream requires the usual
    synchronization, and ``Tensor.record_stream``.

    The thread is a :class:`WorkerThread`, started by the constructor. It ends
    with the iterable, when the Prefetcher is closed or dropped, or when Python
    exits, but always completes the current item.

    The design follows Caffe's ``BlockingQueue`` (Berkeley Vision and Learning
    Center), through which threads pass prefetched batches.

    Args:
        iterable (Iterable): the source of the items. Only the thread iterates
            over it.
        capacity (int, optional): the maximum number of items that are ready or
            in progress and have not been taken. Default: 2.

    Raises:
        TypeError: the capacity is not an integer.
        ValueError: the capacity is less than 1.

    Examples:
        .. code-block:: python

            >>> import paddle
            >>> import paddle.multiprocessing as mp

            >>> def batches():
            ...     for i in range(3):
            ...         yield paddle.full([2], float(i))
            >>> for batch in mp.Prefetcher(batches(), capacity=2):
            ...     print(batch.tolist())
            [0.0, 0.0]
            [1.0, 1.0]
            [2.0, 2.0]

            >>> with mp.Prefetcher(batches()) as prefetcher:
            ...     first = next(prefetcher)
            >>> print(first.tolist())
            [0.0, 0.0]
    """

    def __init__(self, iterable: Iterable[T], capacity: int = 2) -> None:
        check_count("capacity", capacity, 1)
        self._buffer = _Buffer(capacity)
        self._thread = _FillingThread(self._buffer, iterable)
        self._thread.start()

    def __iter__(self) -> Prefetcher[T]:
        return self

    def __next__(self) -> T:
        """Returns the next item, waiting for it if necessary.

        Raises:
            StopIteration: there are no more items.
            BaseException: the exception that the iterable has raised, in this
                and every later call.
            RuntimeError: the Prefetcher was closed before its end, or was
                created before this process was forked.
        """
        buffer = self._buffer
        self._thread._enforce_same_process()
        # Another thread may take the item that this one has waited for.
        while not buffer.ended or buffer.items:
            wait_for(
                buffer.waiters,
                lambda: buffer.items or buffer.ended or buffer.closed,
            )
            if buffer.closed:
                break
            with contextlib.suppress(IndexError):
                item = buffer.items.popleft()
                buffer.waiters.notify_all()
                return item
        if buffer.closed:
            raise RuntimeError(
                "The Prefetcher was closed before all of its items were taken. "
                "Close it after taking the last one."
            )
        self._thread.join()
        raise StopIteration

    def close(self) -> None:
        """Drops the items that are ready, and ends the thread.

        This waits until the item in progress is complete. Later calls do
        nothing. An exception of the iterable that no call has raised is
        reported, see :meth:`WorkerThread.join`.
        """
        thread, buffer = self._thread, self._buffer
        if buffer.items or not buffer.ended:
            buffer.closed = True
        buffer.waiters.notify_all()
        thread.stop()
        if thread is not threading.current_thread():
            threading.Thread.join(thread)
        buffer.items.clear()

    def __enter__(self) -> Prefetcher[T]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # Not close(), which would block the garbage collector.
        if hasattr(self, "_thread"):
            self._thread.stop()
