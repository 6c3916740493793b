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
"""
Reads the results of worker processes, which may be killed while they write.

A result larger than a pipe's buffer arrives in parts. If its worker is killed,
the rest never comes, and there is no end of file, because the other workers
keep the pipe open. So a read that has to wait also watches the workers.
"""

from __future__ import annotations

import os
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from typing import Any

__all__ = []


class _WatchingConnection(Connection):
    """
    Reads one message of the result queue of `iterator`, on its reader thread.
    Where multiprocessing would wait for a part forever, it raises EOFError.
    """

    def __init__(self, iterator: Any) -> None:
        reader = iterator._data_queue._reader
        os.set_blocking(reader.fileno(), False)
        super().__init__(reader.fileno(), writable=False)
        self._iterator = iterator

    def __del__(self) -> None:
        """Does not close the handle, which belongs to the queue."""

    def _recv(self, size: int, read: object = None) -> Any:
        return super()._recv(size, self._read)

    def _read(self, handle: int, size: int) -> bytes:
        iterator = self._iterator
        is_last_try = False
        while True:
            try:
                return os.read(handle, size)
            except BlockingIOError:
                if is_last_try:
                    raise EOFError(
                        "A worker process ended in the middle of a result."
                    ) from None
            ready = wait([handle, iterator._woken], iterator._timeout)
            # A worker may have written its last part just before it ended.
            is_last_try = handle not in ready and _may_be_incomplete(iterator)


def _may_be_incomplete(iterator: Any) -> bool:
    """Returns whether the rest of a result may never come. Workers that were
    asked to end do not wait until their results are written."""
    return iterator._thread_done_event.is_set() or any(
        should_run and not worker.is_alive()
        for should_run, worker in zip(
            iterator._worker_status, iterator._workers
        )
    )


def receive(iterator: Any) -> Any:
    """
    Returns the next result of the workers of `iterator`, of which a part has
    arrived. Raises EOFError if the rest may never come.
    """
    results = iterator._data_queue
    # Not a `with` statement: after an error, the lock is kept, so that nobody
    # reads the rest as another result.
    results._rlock.acquire()
    content = _WatchingConnection(iterator).recv_bytes()
    results._sem.release()
    results._rlock.release()
    return ForkingPickler.loads(content)
