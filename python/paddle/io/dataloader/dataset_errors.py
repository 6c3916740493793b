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
"""Raises errors of a dataset or collate_fn on the thread that takes batches."""

from __future__ import annotations

import functools
import traceback
from typing import TYPE_CHECKING, Any, Callable

from .worker import _DatasetKind

if TYPE_CHECKING:
    import threading

    from paddle.io import Dataset

__all__ = []


def store_error(thread_loop: Callable[..., None]) -> Callable[..., None]:
    """
    Decorates `thread_loop`, which puts batches into an iterator's queue: stores
    its exception, and closes the queue after those batches.
    """

    @functools.wraps(thread_loop)
    def wrapped(iterator: Any, *args: Any) -> None:
        try:
            thread_loop(iterator, *args)
        except BaseException as error:  # __next__ raises it.
            iterator._error = error
            iterator._exit_thread_expectedly()

    return wrapped


def raise_stored_error(
    next_batch: Callable[[Any], Any],
) -> Callable[[Any], Any]:
    """
    Decorates `__next__`: raises the exception that is stored as `_error`, once,
    when there are no more batches.
    """

    @functools.wraps(next_batch)
    def wrapped(iterator: Any) -> Any:
        try:
            return next_batch(iterator)
        except StopIteration:
            error = vars(iterator).pop("_error", None)
            if error is None:
                raise
        if isinstance(error, StopIteration):
            # It would end the loop silently. Its message has the traceback.
            error = RuntimeError(str(error))
        try:
            raise error
        finally:
            # Avoids a cycle: its traceback refers to this frame.
            del error

    return wrapped


def error_with_message(error_type: type[Exception], message: str) -> Exception:
    """
    Returns an error of the type with the message, or a RuntimeError if the type
    takes other arguments or drops the message.
    """
    try:
        if getattr(error_type, "message", None):
            error = error_type(message=message)
        else:
            error = error_type(message)
    except Exception:
        return RuntimeError(message)
    kept = (*error.args, getattr(error, "message", None))
    return error if message in kept else RuntimeError(message)


def without_frames(error: Exception) -> Exception:
    """
    Returns the error with its traceback as text, which is its cause now. A
    frame in a traceback refers to the frames of its callers. So an iterator
    that keeps an error of code that it has called would keep itself alive.
    """
    # Only here: loading it takes time.
    from multiprocessing.pool import RemoteTraceback

    lines = traceback.format_exception(type(error), error, error.__traceback__)
    error.__cause__ = RemoteTraceback(f'\n"""\n{"".join(lines)}"""')
    error.__context__ = None
    return error.with_traceback(None)


def picklable_type(error_type: type[BaseException]) -> type[BaseException]:
    """
    Returns the type of an error in a worker process. Returns RuntimeError for a
    type that cannot be pickled, for example one that a function defines: the
    queue would drop the error, and the loop would wait for it forever.
    """
    # Only here: loading it takes time.
    from multiprocessing.reduction import ForkingPickler

    try:
        ForkingPickler.dumps(error_type)
    except Exception:
        return RuntimeError
    return error_type


def forbid_stop_iteration(function: Callable[..., Any]) -> Callable[..., Any]:
    """
    Decorates a dataset's method or a collate_fn: turns its StopIteration, which
    would end the epoch, into RuntimeError.
    """

    def checked(*args: Any) -> Any:
        try:
            return function(*args)
        except StopIteration as error:
            raise RuntimeError(
                "The dataset or the collate_fn raised StopIteration, which "
                "only the iterator of an IterableDataset may raise, at its "
                "end. Raise another exception instead."
            ) from error

    return checked


class CheckedFetcher:
    """A fetcher like those of `_DatasetKind` that raises StopIteration only at
    the end of an iterable dataset."""

    def __init__(
        self,
        kind: int,
        dataset: Dataset,
        auto_collate_batch: bool,
        collate_fn: Callable[[Any], Any],
        drop_last: bool,
    ) -> None:
        fetcher = _DatasetKind.create_fetcher(
            kind,
            dataset,
            auto_collate_batch,
            forbid_stop_iteration(collate_fn),
            drop_last,
        )
        self.fetch: Callable[[Any, threading.Event], Any] = fetcher.fetch
        if kind == _DatasetKind.MAP:
            self.fetch = forbid_stop_iteration(fetcher.fetch)
