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
"""Groups of threads that have ranks and fail together."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Callable

import paddle

from . import spawn_arguments
from .argument_checks import check_seconds
from .worker_thread import WorkerThread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paddle._typing import PlaceLike

__all__ = []


class _RankedThread(WorkerThread):
    """A worker thread of a group.

    Attributes:
        rank (int): its number, from 0.
        world_size (int): the number of threads of the group.
    """

    def __init__(
        self, group: ThreadGroup, rank: int, world_size: int, **options: Any
    ) -> None:
        super().__init__(**options)
        self._group: ThreadGroup | None = group
        self.rank = rank
        self.world_size = world_size

    def run(self) -> None:
        super().run()
        # Break the reference cycle, so that an error that no call has raised is
        # reported when the thread is dropped.
        group, self._group = self._group, None
        if self._error is not None:
            group._failed.append(self)
            group.stop()


class ThreadGroup:
    """The threads that :func:`start_threads` has started.

    Attributes:
        threads (list): the threads, in the order of their ranks.
    """

    def __init__(self) -> None:
        self.threads: list[WorkerThread] = []
        # In the order in which they failed.
        self._failed: list[WorkerThread] = []

    def stop(self) -> None:
        """Asks all threads to stop, without waiting for them to end, see
        :meth:`WorkerThread.stop`."""
        for thread in self.threads:
            thread.stop()

    def join(self, timeout: float | None = None) -> bool:
        """Waits until all threads have ended.

        When one fails, the others are asked to stop, and this waits for them.
        A :class:`WorkerThread` that is asked to stop ends in this call, unless
        the threads that it waits for were asked to stop before the call.

        Args:
            timeout (float|None, optional): the longest time to wait, in
                seconds. Default: None, no limit.

        Returns:
            bool: True if all have ended, False if the timeout has passed.

        Raises:
            BaseException: the earliest exception that the function raised in a
                thread, with its traceback.
            TypeError: the timeout is not a number.
            ValueError: the timeout is NaN.

        Examples:
            .. code-block:: python

                >>> import threading
                >>> import paddle.multiprocessing as mp
                >>> event = threading.Event()
                >>> group = mp.start_threads(
                ...     lambda rank: event.wait(), nthreads=2, join=False
                ... )
                >>> print(group.join(timeout=0))
                False
                >>> event.set()
                >>> print(group.join())
                True
        """
        check_seconds("timeout", timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        remaining = None
        for thread in self.threads:
            thread._enforce_same_process()
            if deadline is not None:
                remaining = max(0, deadline - time.monotonic())
            thread._wait_until_ended(remaining)
            if thread.is_alive():
                return False
        if self._failed:
            self._failed[0].join()
        return True


def start_threads(
    fn: Callable,
    args: tuple = (),
    nthreads: int = 1,
    join: bool = True,
    daemon: bool = False,
    devices: str | Sequence[PlaceLike] | None = None,
) -> ThreadGroup | None:
    """Runs a function in several new threads, each with its rank.

    The threads are :class:`WorkerThread`, which start in the state of the
    calling thread. In them, ``threading.current_thread()`` has the attributes
    ``rank`` and ``world_size``. When one thread fails, the others are asked to
    stop: this ends the waits that :class:`WorkerThread` lists and makes
    ``threading.current_thread().should_stop()`` true.

    Args:
        fn (Callable): called as ``fn(rank, *args)``, with ranks from 0.
        args (tuple, optional): the other arguments; all threads get the same
            objects. Default: ().
        nthreads (int, optional): the number of threads; 0 starts none. Default:
            1.
        join (bool, optional): whether to wait until all threads have ended, see
            :meth:`ThreadGroup.join`. If an exception ends the wait, or the
            calling worker is stopped, the threads are asked to stop. Default:
            True.
        daemon (bool, optional): whether Python may exit before the threads end.
            Default: False.
        devices (str|Sequence[str|Place]|None, optional): the device of each
            thread. A type such as ``'gpu'`` stands for ``f'gpu:{rank}'``,
            ``'cpu'`` for the CPU; a sequence has the name or the place of one
            device per thread. Default: None, the device of the calling thread.

    Returns:
        ThreadGroup|None: the group, which joins the threads; None if ``join``
        is True.

    Raises:
        BaseException: the earliest exception that the function raised in a
            thread, with its traceback.
        TypeError: an argument has a wrong type.
        ValueError: a device does not exist, or the number of devices differs
            from the number of threads.
        RuntimeError: the system cannot start more threads.

    Examples:
        .. code-block:: python

            >>> import threading
            >>> import paddle.multiprocessing as mp
            >>> def square(rank, squares):
            ...     squares[rank] = rank * threading.current_thread().world_size
            >>> squares = {}
            >>> mp.start_threads(square, (squares,), nthreads=3)
            >>> print(sorted(squares.items()))
            [(0, 0), (1, 3), (2, 6)]
    """
    spawn_arguments.check_call(fn, args, nthreads, "nthreads")
    names = spawn_arguments.devices_of_ranks(devices, nthreads)

    def call(rank: int) -> None:
        if names[rank] is not None:
            paddle.set_device(names[rank])
        fn(rank, *args)

    group = ThreadGroup()
    # Create all threads first: one may fail before the last one is started.
    group.threads += [
        _RankedThread(
            group, rank, nthreads, target=call, args=(rank,), daemon=daemon
        )
        for rank in range(nthreads)
    ]
    try:
        for thread in group.threads:
            thread.start()
        if not join:
            return group
        group.join()
    except BaseException:
        group.stop()
        raise
    return None
