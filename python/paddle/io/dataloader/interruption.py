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
"""Wakes worker threads that are stopped while they wait for a batch."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from typing import TYPE_CHECKING, Any, Callable

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

__all__ = []

# Worker threads exist only after it was imported, which takes time.
_WORKER_THREAD = "paddle.incubate.multiprocessing.worker_thread"


def woken_when_stopped(
    wake: Callable[[], object],
) -> AbstractContextManager[None]:
    """
    Returns a context for a wait that only `wake` can end. If the calling thread
    is a worker thread that is asked to stop, `wake` is called, and the thread
    ends.
    """
    # Another thread may be importing it.
    woken_by = getattr(sys.modules.get(_WORKER_THREAD), "woken_by", None)
    return contextlib.nullcontext() if woken_by is None else woken_by(wake)


def interruptible(method: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """
    Decorates a method of an iterator that waits for its reader thread: the wait
    ends when the calling `paddle.multiprocessing.WorkerThread` is asked to
    stop. That ends the iterator: other threads get an error.
    """

    def call_unless_ended(iterator: Any) -> Any:
        # The C++ reader must not be entered again: it would read the same
        # std::future twice, which is undefined.
        _enforce_not_ended(iterator)
        try:
            return method(iterator)
        except Exception as error:
            _enforce_not_ended(iterator, error)
            raise

    @functools.wraps(method)
    def wrapped(iterator: Any) -> Any:
        if _WORKER_THREAD not in sys.modules:
            return method(iterator)
        name = threading.current_thread().name

        def end_iterator() -> None:
            # The first one ended it.
            vars(iterator).setdefault("_stopped_thread", name)
            iterator._exit_thread_unexpectedly()

        with woken_when_stopped(end_iterator):
            return call_unless_ended(iterator)

    return wrapped


def _enforce_not_ended(iterator: Any, error: Exception | None = None) -> None:
    stopped = vars(iterator).get("_stopped_thread")
    if stopped is not None:
        raise RuntimeError(
            f"The iterator was ended because WorkerThread {stopped!r} was "
            "stopped while it waited for a batch. Create a new iterator."
        ) from error
