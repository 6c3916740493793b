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
"""Copies each sample into its batch before the next sample is made.

`default_collate_fn` needs all samples of a batch in memory. Here each sample is
copied into the batch's arrays, and may be dropped, before the next one is made.
The memory of large arrays is reused when nothing refers to it any more: new
memory costs a page fault for every 4 KiB, and all threads of a process wait for
each other when memory is returned to the system.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Callable, Union

import numpy as np

from .collate import default_collate_fn
from .dataset_errors import forbid_stop_iteration
from .worker import _DatasetKind

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterable

    from paddle.io import Dataset

    from .fetcher import _DatasetFetcher

__all__ = []

# malloc reuses smaller memory well enough.
_MIN_POOLED_BYTES = 1 << 16
# `dtype.kind` of the data types whose elements are plain bytes.
_PLAIN_KINDS = frozenset("biufc")


class _PooledMemory:
    """The owner of an array's memory. The array and its views refer to it; when
    the last of them is dropped, it returns the memory to the pool."""

    def __init__(
        self,
        memory: np.ndarray,
        free: deque[np.ndarray],
        shape: tuple[int, ...],
        dtype: np.dtype,
    ) -> None:
        # Weak: an array that outlives the pool must not keep the pool's memory.
        self._free = weakref.ref(free)
        self._memory = memory
        # Lets numpy.asarray create an array whose base is this object.
        self.__array_interface__ = {
            "version": 3,
            "data": (memory.ctypes.data, False),
            "shape": shape,
            "typestr": dtype.str,
        }

    def __del__(self) -> None:
        free = self._free()
        if free is not None:
            free.append(self._memory)


class ArrayPool:
    """Allocates arrays, and reuses the memory of dropped arrays.

    Thread-safe. Finalizers may drop arrays at any time.

    Args:
        max_free: the maximum number of unused pieces of memory to keep.
    """

    def __init__(self, max_free: int) -> None:
        # The methods used here are atomic.
        self._free: deque[np.ndarray] = deque(maxlen=max_free)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Like `numpy.empty`. The data type must not contain Python objects."""
        size = math.prod(shape) * dtype.itemsize
        if size < _MIN_POOLED_BYTES:
            return np.empty(shape, dtype)
        return np.asarray(
            _PooledMemory(self._take(size), self._free, shape, dtype)
        )

    def _take(self, size: int) -> np.ndarray:
        for _ in range(len(self._free)):
            try:
                # The piece returned last may still be in the CPU's caches.
                memory = self._free.pop()
            except IndexError:
                break
            if size <= memory.size <= 2 * size:
                return memory
            self._free.appendleft(memory)
        return np.empty(size, np.uint8)


class _Arrays:
    """Arrays with one shape and data type, as rows of a larger array."""

    def __init__(self, first: np.ndarray, count: int, pool: ArrayPool) -> None:
        self._rows = pool.empty((count, *first.shape), first.dtype)
        self._filled = 0
        # All arrays, once one of them has another shape or type.
        self._unequal: list[Any] = []

    def add(self, array: Any) -> None:
        rows = self._rows
        if self._unequal:
            self._unequal.append(array)
        elif (
            type(array) is np.ndarray
            and array.shape == rows.shape[1:]
            and array.dtype == rows.dtype
        ):
            rows[self._filled] = array
            self._filled += 1
        else:
            self._unequal = [*rows[: self._filled], array]

    def result(self) -> np.ndarray:
        if self._unequal:
            # Converts to their common type, or raises.
            return np.stack(self._unequal)
        return self._rows[: self._filled]


class _Values:
    """Other fields, for `default_collate_fn` to collate or refuse."""

    def __init__(self) -> None:
        self._values: list[Any] = []

    def add(self, value: Any) -> None:
        self._values.append(value)

    def result(self) -> Any:
        return default_collate_fn(self._values)


class _Mappings:
    def __init__(self, first: Mapping, count: int, pool: ArrayPool) -> None:
        self._fields = {
            key: _new_collator(first[key], count, pool) for key in first
        }

    def add(self, mapping: Mapping) -> None:
        for key, field in self._fields.items():
            field.add(mapping[key])

    def result(self) -> dict:
        return {key: field.result() for key, field in self._fields.items()}


class _Sequences:
    def __init__(self, first: Sequence, count: int, pool: ArrayPool) -> None:
        self._fields = [_new_collator(value, count, pool) for value in first]

    def add(self, values: Sequence) -> None:
        if len(values) != len(self._fields):
            raise RuntimeError(
                f"Cannot collate samples with {len(self._fields)} fields and "
                f"with {len(values)}: {values!r}. Return the same number of "
                "fields for every sample, or pass a collate_fn."
            )
        for field, value in zip(self._fields, values):
            field.add(value)

    def result(self) -> list:
        return [field.result() for field in self._fields]


_Collator = Union[_Arrays, _Values, _Mappings, _Sequences]


def _new_collator(first: Any, count: int, pool: ArrayPool) -> _Collator:
    """
    Returns an empty collator of at most `count` samples with the structure of
    `first`.
    """
    if type(first) is np.ndarray:
        if first.dtype.kind in _PLAIN_KINDS and first.dtype.isnative:
            # Without memory for `count` samples, fall back to a list: an
            # iterable dataset may end long before.
            with contextlib.suppress(MemoryError):
                return _Arrays(first, count, pool)
    elif isinstance(first, Mapping):
        return _Mappings(first, count, pool)
    elif isinstance(first, Sequence) and not isinstance(first, (str, bytes)):
        return _Sequences(first, count, pool)
    return _Values()


@forbid_stop_iteration
def _with_sample(
    collator: _Collator | None, sample: Any, count: int, pool: ArrayPool
) -> _Collator:
    """Adds a sample to a batch of at most `count`; None makes a new batch."""
    if collator is None:
        collator = _new_collator(sample, count, pool)
    collator.add(sample)
    return collator


class CollatingFetcher:
    """
    Makes the same batches as the fetchers of `_DatasetKind` with
    `default_collate_fn`, but copies each sample before the next one is made.
    """

    def __init__(
        self, kind: int, dataset: Dataset, drop_last: bool, pool: ArrayPool
    ) -> None:
        # With None as collate_fn it returns lists of samples.
        self._fetcher = _DatasetKind.create_fetcher(
            kind, dataset, True, None, False
        )
        self._may_end = kind == _DatasetKind.ITER
        self._drop_last = drop_last
        self._pool = pool

    def fetch(self, indices: Iterable[Any], done: threading.Event) -> Any:
        """Returns the batch of the given samples, or None if `done` is set
        before it is complete. Raises StopIteration at the end of an iterable
        dataset."""
        indices = list(indices)
        collator = None
        for index in indices:
            try:
                samples = self._fetcher.fetch([index], done)
            except StopIteration:
                if collator is None or self._drop_last or not self._may_end:
                    raise
                break
            if samples is None:
                return None
            collator = _with_sample(
                collator, samples.pop(), len(indices), self._pool
            )
        return default_collate_fn([]) if collator is None else collator.result()


def make_fetcher(
    kind: int,
    dataset: Dataset,
    auto_collate: bool,
    collate_fn: Callable[[Any], Any],
    drop_last: bool,
    pool: ArrayPool,
) -> _DatasetFetcher | CollatingFetcher:
    """Returns a fetcher of `_DatasetKind`, or a `CollatingFetcher` for the
    default collation. A StopIteration of the collate_fn does not end the
    epoch."""
    if auto_collate and collate_fn is default_collate_fn:
        return CollatingFetcher(kind, dataset, drop_last, pool)
    return _DatasetKind.create_fetcher(
        kind,
        dataset,
        auto_collate,
        forbid_stop_iteration(collate_fn),
        drop_last,
    )
