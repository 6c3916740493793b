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
"""Lets several threads take batches from one iterator over a DataLoader."""

from __future__ import annotations

import functools
import threading
from typing import Any, Callable

from .interruption import woken_when_stopped
from .iterator_lifetime import enforce_same_process

__all__ = []


class Turns:
    """
    The turns of the threads that take batches from one iterator. A WorkerThread
    that is stopped while it waits for its turn ends.
    """

    # Whether a thread has found the end of an iterator that has shut down.
    has_ended = False

    def __init__(self) -> None:
        # Reentrant: a signal handler on this thread may call stop() for a
        # WorkerThread that waits here.
        self._changed = threading.Condition(threading.RLock())
        # The thread whose turn it is.
        self._owner: int | None = None

    def __enter__(self) -> None:
        with self._changed:
            while not self._is_free():
                self._wait()
            self._owner = threading.get_ident()

    def __exit__(self, *error: object) -> None:
        with self._changed:
            self._owner = None
            # All, because the one that is woken may end instead.
            self._changed.notify_all()

    def _is_free(self) -> bool:
        # A signal handler that raised may have left this thread its turn.
        return self._owner in (None, threading.get_ident())

    def _wait(self) -> None:
        stops = []

        def wake() -> None:
            with self._changed:
                stops.append(True)
                self._changed.notify_all()

        with woken_when_stopped(wake):
            self._changed.wait_for(lambda: stops or self._is_free())


def takes_turns(method: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """
    Decorates a method of an iterator over a DataLoader that takes a batch or
    begins an epoch. One thread at a time runs it; the others wait for their
    turn. After the last batch, each call raises StopIteration.

    The decorated function is thread-safe.
    """

    @functools.wraps(method)
    def in_turn(iterator: Any) -> Any:
        # First, since the thread whose turn it is may not exist here.
        enforce_same_process(iterator)
        turns = iterator._turns
        with turns:
            if turns.has_ended:
                raise StopIteration
            try:
                return method(iterator)
            except StopIteration:
                # Only the C++ reader of an iterator that has shut down may not
                # be read again.
                turns.has_ended = vars(iterator).get("_shutdown", False)
                raise

    return in_turn
