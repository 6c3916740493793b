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

import contextlib
import functools
import os
import threading
import traceback
from typing import TYPE_CHECKING, Any, Callable

from .interruption import woken_when_stopped
from .iterator_lifetime import end_after_error, enforce_same_process

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = []


class Turns:
    """
    The turns of the threads that take batches from one iterator. A WorkerThread
    that is stopped while it waits for its turn ends.
    """

    def __init__(self) -> None:
        # Reentrant: a signal handler on this thread may call stop() for a
        # WorkerThread that waits here.
        self._changed = threading.Condition(threading.RLock())
        # The thread whose turn it is.
        self._owner: int | None = None
        # Threads that wait to begin an epoch, which precede all others.
        self._beginning: set[int] = set()
        # The error that the last call raised, as a list of its message. Not the
        # exception, whose traceback refers to the iterator.
        self._failure: list[str] | None = None
        # Its `failure` is the one that was raised to the calling thread. Not by
        # the thread's number, which a later thread may get.
        self._told = threading.local()

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

    @contextlib.contextmanager
    def to_begin(self) -> Iterator[None]:
        """Takes the next turn, which is not for a batch but for an epoch.

        Otherwise, a thread that takes batch after batch could have all turns.
        """
        thread = threading.get_ident()
        try:
            # Here, because a signal handler may raise after it.
            self._beginning.add(thread)
            self.__enter__()
        finally:
            with self._changed:
                self._beginning.discard(thread)
                self._changed.notify_all()
        with self:
            yield

    def set_error(self, error: BaseException | None) -> None:
        """Records the error that the calling thread is about to get, or with
        None that there is none."""
        self._failure = None
        if error is not None:
            message = "".join(traceback.format_exception_only(error)).rstrip()
            self._failure = self._told.failure = [message]

    def enforce_complete(self) -> None:
        """Raises RuntimeError if an error has ended the epoch and was raised to
        another thread: this one must not take it for the end of the data."""
        failure = self._failure
        if failure is None or getattr(self._told, "failure", None) is failure:
            return
        raise RuntimeError(
            "The epoch of this DataLoader iterator is not complete, because of "
            f"an error on another thread: {failure[0]}"
        ) from None

    def _is_free(self) -> bool:
        thread = threading.get_ident()
        if self._owner is None:
            return not self._beginning or thread in self._beginning
        # A signal handler that raised may have left this thread its turn.
        return self._owner == thread

    def _wait(self) -> None:
        stops = []

        def wake() -> None:
            with self._changed:
                stops.append(True)
                self._changed.notify_all()

        with woken_when_stopped(wake):
            self._changed.wait_for(lambda: stops or self._is_free())


def begins_epochs_in_turn(
    iterate: Callable[[Any], Any],
) -> Callable[[Any], Any]:
    """
    Decorates `DataLoader.__iter__`. One thread at a time begins an epoch of
    persistent workers, so that only the first one starts workers.

    The decorated function is thread-safe.
    """

    @functools.wraps(iterate)
    def iterate_in_turn(loader: Any) -> Any:
        if not loader._persistent_workers:
            return iterate(loader)
        # A forked child has turns of its own: the thread whose turn it was may
        # not exist there. setdefault is atomic.
        turns = loader.__dict__.setdefault("_turns_of_processes", {})
        with turns.setdefault(os.getpid(), Turns()):
            return iterate(loader)

    return iterate_in_turn


def begin_epoch(iterator: Any) -> bool:
    """
    Begins another epoch of an iterator with persistent workers. Returns False
    if the iterator has ended, or has to end because its reader kept batches
    that are too few for all places. Otherwise, threads that still read it
    continue with the new epoch: it is one iterator for all epochs. An error
    ends it.
    """
    with iterator._turns.to_begin():
        # Only now: another thread may have ended it during this thread's wait.
        if iterator._thread_done_event.is_set():
            return False
        iterator._turns.set_error(None)
        try:
            iterator._reset()
        except BaseException as error:
            # For example Ctrl-C. Workers may still report that they have begun,
            # which must not count for another epoch.
            iterator._turns.set_error(error)
            end_after_error(iterator)
            raise
        return not iterator._ended


def takes_turns(next_batch: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """
    Decorates the `__next__` of an iterator over a DataLoader. One thread at a
    time takes a batch; the others wait for their turn. If an error ends the
    epoch, the others get a RuntimeError that names it.

    The decorated function is thread-safe.
    """

    @functools.wraps(next_batch)
    def next_in_turn(iterator: Any) -> Any:
        # First, since the thread whose turn it is may not exist here.
        enforce_same_process(iterator)
        turns = iterator._turns
        with turns:
            try:
                batch = next_batch(iterator)
            except StopIteration:
                turns.enforce_complete()
                raise
            except BaseException as error:
                turns.set_error(error)
                raise
            turns.set_error(None)
            return batch

    return next_in_turn
