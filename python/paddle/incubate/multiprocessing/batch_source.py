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
"""Reads one dataset on a thread, for several reader threads."""

from __future__ import annotations

import contextlib
import itertools
import operator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Callable

import numpy as np

import paddle
from paddle.base.device_counts import device_counts
from paddle.base.framework import _current_expected_place
from paddle.base.threads.host_context import (
    cpu_generator,
    is_available as has_generators,
)
from paddle.base.threads.streams import event_after_work, threads_have_streams
from paddle.io import IterableDataset
from paddle.io.dataloader.collate import default_collate_fn
from paddle.io.dataloader.collating_fetcher import ArrayPool, make_fetcher
from paddle.io.dataloader.dataset_errors import forbid_stop_iteration
from paddle.io.dataloader.flat import _flatten_batch, _restore_batch
from paddle.io.dataloader.tensors_in_objects import tensors_in_objects
from paddle.io.dataloader.worker import _DatasetKind

from .argument_checks import check_count
from .blocking_queue import BlockingQueue, ShutDown
from .interruptible import poll
from .worker_thread import WorkerThread, checked_seed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from paddle.base import core
    from paddle.device import Event
    from paddle.io import BatchSampler, Dataset

__all__ = []

_END_OF_EPOCH = object()
# The poll interval of a device event.
_PAUSE_S = 0.001


class _Batches:
    """The batches of all epochs, as arrays, in their order."""

    def __init__(
        self,
        dataset: Dataset | IterableDataset,
        batch_size: int,
        shuffle: bool,
        drop_last: bool,
        batch_sampler: BatchSampler | None,
        collate_fn: Callable[[list], Any] | None,
        seed: int,
        max_free: int,
    ) -> None:
        self._dataset = dataset
        self._batch_size = batch_size
        self._shuffle = shuffle
        self._drop_last = drop_last
        self._batch_sampler = batch_sampler
        self._collate_fn = collate_fn or default_collate_fn
        self._seed = seed
        self._is_iterable = isinstance(dataset, IterableDataset)
        self._pool = ArrayPool(max_free)

    def iter_epoch(self, epoch: int, thread: WorkerThread) -> Iterator[Any]:
        """Yields the batches of an epoch; `thread` is the calling thread."""
        # The fetcher checks it between the samples of a batch.
        stop = SimpleNamespace(is_set=thread.should_stop)
        fetcher = make_fetcher(
            _DatasetKind.ITER if self._is_iterable else _DatasetKind.MAP,
            self._dataset,
            True,
            self._collate_fn,
            self._drop_last,
            self._pool,
        )
        fetch = fetcher.fetch
        if not self._is_iterable:
            fetch = forbid_stop_iteration(fetch)
        for samples in self._samples(epoch):
            try:
                batch = fetch(samples, stop)
            except StopIteration:
                return
            if thread.should_stop():
                return
            yield batch
            # Only the reader keeps it while the next batch is read.
            del batch

    def _samples(self, epoch: int) -> Iterator[Iterable[int]]:
        if self._is_iterable:
            # Only the number of the indices matters.
            yield from itertools.repeat(range(self._batch_size))
        if self._batch_sampler is not None:
            if hasattr(self._batch_sampler, "set_epoch"):
                self._batch_sampler.set_epoch(epoch)
            yield from self._batch_sampler
            return
        order = np.arange(len(self._dataset))
        if self._shuffle:
            np.random.default_rng([self._seed, epoch]).shuffle(order)
        for begin in range(0, len(order), self._batch_size):
            samples = order[begin : begin + self._batch_size].tolist()
            if len(samples) == self._batch_size or not self._drop_last:
                yield samples


class _SourceThread(WorkerThread):
    """Distributes the batches. The thread does not refer to the BatchSource or
    to the readers, so that dropping them ends the thread."""

    def __init__(
        self, batches: _Batches, nreaders: int, capacity: int, seed: int | None
    ) -> None:
        super().__init__(self._distribute, [batches], daemon=True, seed=seed)
        self.queues = [BlockingQueue(capacity) for _ in range(nreaders)]
        # For each reader that has left, by rank: its epoch, and the number of
        # batches that it took in that epoch.
        self.left: dict[int, tuple[int, int]] = {}

    def run(self) -> None:
        super().run()
        for queue in self.queues:
            queue.shutdown()

    def leave(self, rank: int, epoch: int, taken: int) -> None:
        """Records that a reader has left. Finalizers may call this."""
        self.left.setdefault(rank, (epoch, taken))
        self.queues[rank].shutdown(immediate=True)

    def _distribute(self, batches: _Batches) -> None:
        nreaders = len(self.queues)
        place = _current_expected_place()
        # Only devices have streams, and the search takes time.
        has_devices = any(device_counts().values())
        events_after = _events_after if has_devices else lambda *_: []
        for epoch in itertools.count():
            # enumerate() would keep each batch until the next one is read.
            numbers = itertools.count()
            for batch in batches.iter_epoch(epoch, self):
                turn, rank = divmod(next(numbers), nreaders)
                # The other readers may take as many batches as one that left,
                # so readers that all leave after the same number get no error.
                if rank == 0 and self._ends_at((epoch, turn)):
                    return
                self._put(rank, (batch, events_after(batch, place)))
                # Only the reader keeps it while the next batch is read.
                del batch
            for rank in range(nreaders):
                self._put(rank, _END_OF_EPOCH)
            if self._ends_at((epoch + 1, 0)):
                return

    def _ends_at(self, position: tuple[int, int]) -> bool:
        return any(position >= left for left in self.left.copy().values())

    def _put(self, rank: int, item: Any) -> None:
        # The queue is shut down if the reader has left.
        with contextlib.suppress(ShutDown):
            self.queues[rank].put(item)


def _events_after(batch: Any, place: core.Place) -> list[Event]:
    """
    Returns one event per device, after the work that the calling thread has
    started there: on `place` and on the devices of the batch's tensors.
    """
    fields, structure = _flatten_batch(batch)
    places = {hash(place): place}
    for field in fields:
        if isinstance(field, paddle.Tensor):
            places.setdefault(hash(field.place), field.place)
    for tensor, owner in tensors_in_objects(structure):
        if threads_have_streams(tensor.place):
            raise TypeError(
                f"A batch of the BatchSource has a tensor on {tensor.place} in "
                f"an object of type {type(owner).__name__}, where it cannot be "
                "copied to the reader's device. Put tensors into lists, tuples "
                "or dictionaries."
            )
    return [
        event_after_work(place)
        for place in places.values()
        if threads_have_streams(place)
    ]


def _copied(tensor: paddle.Tensor, place: core.Place) -> paddle.Tensor:
    """Returns a finished copy of a tensor."""
    if not tensor.place._equals(place) and threads_have_streams(place):
        # A copy from another custom device does not wait for the stream here,
        # whose earlier work may still use the memory that the copy gets.
        poll(event_after_work(place).query, _PAUSE_S)
    return tensor._copy_to(place, True)


class BatchReader:
    """Iterates over one thread's batches of a :class:`BatchSource`.

    Each iteration is one epoch. The tensors are on the current device of the
    iterating thread. Leaving an iteration before its end, or dropping the
    reader, leaves the source permanently.
    """

    def __init__(
        self, thread: _SourceThread, rank: int, zero_copy: bool
    ) -> None:
        self._thread = thread
        self._rank = rank
        self._zero_copy = zero_copy
        self._epoch = self._taken = 0

    def __iter__(self) -> Iterator[Any]:
        """Yields the batches of the next epoch, waiting for each if necessary.

        Raises:
            BaseException: the exception that the dataset raised, after the
                batches that were read before it.
            RuntimeError: this reader or another one has left the source, or the
                reader was created before this process was forked.
        """
        ended = False
        try:
            while True:
                item = self._take()
                if item is _END_OF_EPOCH:
                    self._epoch += 1
                    self._taken = 0
                    ended = True
                    return
                self._taken += 1
                yield self._tensors(*item)
                del item
        finally:
            if not ended:
                self._leave()

    def _take(self) -> Any:
        self._thread._enforce_same_process()
        try:
            return self._thread.queues[self._rank].get()
        except ShutDown:
            if self._thread._error is not None:
                self._thread.join()
            raise RuntimeError(self._why_ended()) from None

    def _why_ended(self) -> str:
        if not self._thread.left:
            return (
                "The BatchSource was stopped because the program is exiting. "
                "Join the reader threads before that."
            )
        rank, (epoch, taken) = min(
            self._thread.left.copy().items(), key=lambda entry: entry[1]
        )
        return (
            f"Reader {self._rank} of the BatchSource gets no more batches, "
            f"because reader {rank} left after {taken} batches of epoch "
            f"{epoch}. Let all readers take the same number, and create a new "
            "BatchSource to continue."
        )

    def _tensors(self, batch: Any, made: list[Event]) -> Any:
        # The copies below may run on any stream of any device. Synchronizing
        # would block all threads.
        for event in made:
            poll(event.query, _PAUSE_S)
        place = _current_expected_place()
        zero_copy = self._zero_copy and place.is_cpu_place()
        fields, structure = _flatten_batch(batch)
        tensors = [
            _copied(field, place)
            if isinstance(field, paddle.Tensor)
            else paddle.Tensor(value=field, place=place, zero_copy=zero_copy)
            for field in fields
        ]
        return _restore_batch(tensors, structure)

    def _leave(self) -> None:
        self._thread.leave(self._rank, self._epoch, self._taken)

    def __del__(self) -> None:
        self._leave()


class BatchSource:
    """Reads one dataset on a thread, for several reader threads.

    Batch ``i`` of an epoch goes to reader ``i % nreaders``. So each sample goes
    to exactly one reader, and the batches of a reader depend only on the seed,
    not on the speed of the readers. One reader may get one batch more than
    another in an epoch. The number of epochs is unlimited.

    The thread starts immediately, before there is a model, and prefetches up to
    ``capacity`` batches for each reader. All readers must read: one that is
    ahead waits for the others. When a reader leaves, the other readers may take
    as many batches as it took, and get an error after that. The thread ends
    when it has read these batches, or when Python exits.

    The thread is a :class:`WorkerThread`, so that Paddle's random operators in
    the dataset depend on the seed, too. In a Paddle built without per-thread
    generators, a C++ part for Linux, they use the process-wide generator. The
    global generators of ``random`` and ``numpy.random`` do not depend on the
    seed.

    The design follows Caffe's ``DataReader`` (Berkeley Vision and Learning
    Center), which reads a source once for all solvers.

    Args:
        dataset (Dataset|IterableDataset): the source of the samples. Only the
            thread uses it.
        nreaders (int): the number of readers.
        batch_size (int, optional): the number of samples per batch. Default: 1.
        shuffle (bool, optional): whether each epoch has its own order, which
            the seed determines. Default: False.
        drop_last (bool, optional): whether to leave out an incomplete batch.
            Default: False.
        batch_sampler (BatchSampler|None, optional): yields the indices of each
            batch, in place of ``batch_size``, ``shuffle`` and ``drop_last``.
            Its ``set_epoch``, if any, is called. Default: None.
        collate_fn (Callable|None, optional): collates a list of samples into a
            batch. Default: None, the default of ``DataLoader``, which reuses
            the memory of large batches when nothing refers to them.
        capacity (int, optional): the maximum number of prefetched batches per
            reader. Default: 2.
        seed (int|None, optional): the seed, at least 0 and less than 2**64.
            Default: None, a number drawn from the generator of the calling
            thread.

    Raises:
        TypeError: a number is not an integer.
        ValueError: a number is out of range, or arguments conflict.

    Examples:
        .. code-block:: python

            >>> import paddle.multiprocessing as mp
            >>> source = mp.BatchSource(range(8), nreaders=2, batch_size=2)
            >>> sums = {0: [], 1: []}
            >>> def train(rank):
            ...     reader = source.reader(rank)
            ...     for epoch in range(2):
            ...         for batch in reader:
            ...             sums[rank].append(batch.sum().item())
            >>> mp.start_threads(train, nthreads=2)
            >>> print(sums)
            {0: [1, 9, 1, 9], 1: [5, 13, 5, 13]}
    """

    def __init__(
        self,
        dataset: Dataset | IterableDataset,
        nreaders: int,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        batch_sampler: BatchSampler | None = None,
        collate_fn: Callable[[list], Any] | None = None,
        capacity: int = 2,
        seed: int | None = None,
    ) -> None:
        check_count("nreaders", nreaders, 1)
        check_count("batch_size", batch_size, 1)
        check_count("capacity", capacity, 1)
        if batch_sampler is not None and (
            batch_size != 1 or shuffle or drop_last
        ):
            raise ValueError(
                "A BatchSource with a `batch_sampler` takes no `batch_size`, "
                "`shuffle` or `drop_last`, since the sampler decides these. "
                "Pass them to the sampler."
            )
        if isinstance(dataset, IterableDataset) and (
            batch_sampler is not None or shuffle
        ):
            raise ValueError(
                "A BatchSource of an IterableDataset takes no `batch_sampler` "
                "or `shuffle`, since the dataset decides the order. Shuffle in "
                "the dataset."
            )
        self._seed = (
            cpu_generator().random() if seed is None else checked_seed(seed)
        )
        batches = _Batches(
            dataset,
            batch_size,
            shuffle,
            drop_last,
            batch_sampler,
            collate_fn,
            self._seed,
            nreaders * capacity,
        )
        # No other code holds the arrays of the default collation.
        self._zero_copy = collate_fn is None
        # The ranks whose reader was returned; it may have been dropped.
        self._taken: dict[int, object] = {}
        self._thread = _SourceThread(
            batches,
            nreaders,
            capacity,
            self._seed if has_generators() else None,
        )
        self._thread.start()

    @property
    def seed(self) -> int:
        """The seed that was given or drawn."""
        return self._seed

    def reader(self, rank: int) -> BatchReader:
        """Returns the reader of a rank, only once per rank.

        Args:
            rank (int): the number of the reader, from 0.

        Returns:
            BatchReader: an iterable; each iteration is an epoch. Only one
            thread at a time may use it.

        Raises:
            TypeError: the rank is not an integer.
            ValueError: there is no such rank.
            RuntimeError: the reader of this rank was already returned.
        """
        nreaders = len(self._thread.queues)
        try:
            rank = operator.index(rank)
        except TypeError:
            raise TypeError(
                "The rank of a reader must be an integer, but received "
                f"{rank!r}."
            ) from None
        if rank not in range(nreaders):
            raise ValueError(
                "The rank of a reader must be at least 0 and less than "
                f"{nreaders}, but received {rank!r}."
            )
        token = object()
        if self._taken.setdefault(rank, token) is not token:
            raise RuntimeError(
                f"Reader {rank} of the BatchSource was already returned, and "
                "each reader is for one thread. Keep the reader, and iterate "
                "over it again for the next epoch."
            )
        return BatchReader(self._thread, rank, self._zero_copy)

    def __del__(self) -> None:
        # The constructor may have failed.
        thread = getattr(self, "_thread", None)
        if thread is not None:
            # The other ranks' readers cannot be requested any more.
            for rank in range(len(thread.queues)):
                if rank not in self._taken:
                    thread.leave(rank, 0, 0)
