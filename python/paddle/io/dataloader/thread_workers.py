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
"""Worker threads of a DataLoader, instead of worker processes."""

from __future__ import annotations

import contextlib
import copy
import sys
import threading
import types
import warnings
from itertools import cycle
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import paddle
from paddle.base.threads.host_context import is_available as has_generators
from paddle.incubate.multiprocessing.blocking_queue import BlockingQueue
from paddle.incubate.multiprocessing.worker_thread import (
    Waiters,
    WorkerThread,
    wait_for,
)
from paddle.profiler.profiler import TracerEventType
from paddle.profiler.timer import benchmark
from paddle.profiler.utils import RecordEvent, in_profiler_mode

from ...framework import in_dynamic_mode
from .collate import default_collate_fn
from .collating_fetcher import ArrayPool, CollatingFetcher, make_fetcher
from .dataloader_iter import _DataLoaderIterBase
from .dataset_errors import without_frames
from .flat import _flatten_batch, _restore_batch
from .turns import takes_turns
from .worker import WorkerInfo, _DatasetKind, _thread_state

if TYPE_CHECKING:
    from paddle.io import DataLoader, Dataset

    from .fetcher import _DatasetFetcher

__all__ = []

# How often a thread that waits for a batch checks that its worker is alive. The
# `timeout` of a DataLoader sets it for worker processes; it never ends a wait.
_CHECK_S = 1.0
# Methods that define how an object is copied.
_COPYING = frozenset(
    {"__copy__", "__getstate__", "__reduce__", "__reduce_ex__"}
)


def _own_copy(dataset: Dataset) -> Dataset:
    """
    Returns a shallow copy of a dataset. Returns the dataset itself if its data
    is not in attributes, as that of a list or an array is not.
    """
    kind = type(dataset)
    bases = [base for base in kind.__mro__ if base is not object]
    try:
        attributes = object.__getattribute__(dataset, "__dict__")
        # Refuses types with data of their own.
        copied = object.__new__(kind)
    except (AttributeError, TypeError):
        return dataset
    if any(_COPYING & vars(base).keys() for base in bases):
        return copy.copy(dataset)
    # copy.copy would ask the new object, which has no attributes yet, for
    # methods. A __getattr__ that delegates to an attribute fails then.
    object.__getattribute__(copied, "__dict__").update(attributes)
    for base in bases:
        for member in vars(base).values():
            if isinstance(member, types.MemberDescriptorType):
                # Attributes in __slots__ may be unset.
                with contextlib.suppress(AttributeError):
                    member.__set__(copied, member.__get__(dataset))
    return copied


class _Exhausted(NamedTuple):
    """The outcome of a task when a worker's dataset has no items left."""

    worker: int


class _Failed(NamedTuple):
    """The outcome of a task that raised."""

    error: BaseException


class _InitFailed(_Failed):
    """The outcome of a worker's first task if its worker_init_fn raised. The
    worker ends after it."""


class Epoch:
    """One pass over the dataset, with the outcomes of its tasks.

    Neither an epoch nor a worker refers to the iterator, so dropping the
    iterator ends the workers.
    """

    def __init__(self) -> None:
        self._outcomes: dict[int, Any] = {}
        self._waiters = Waiters()
        # Fetchers check it between the samples of a batch.
        self.closed = threading.Event()

    def begin(self, worker: int) -> None:
        """Prepares the calling thread, which is worker `worker`, for tasks."""

    def outcome(self, batch: Any) -> Any:
        """Returns the outcome for a batch that the calling worker has made."""
        return batch

    def put(self, index: int, outcome: object) -> None:
        self._outcomes[index] = outcome
        self._waiters.notify_all()

    def wait(self, index: int, timeout: float) -> bool:
        """Waits until a task has an outcome. Returns False after the
        timeout. The outcome is kept until `drop`, so an exception in between
        loses no batch."""
        return wait_for(self._waiters, lambda: index in self._outcomes, timeout)

    def result(self, index: int) -> Any:
        """Returns a task's outcome, which `wait` has found."""
        return self._outcomes[index]

    def drop(self, index: int) -> None:
        del self._outcomes[index]


class _Task(NamedTuple):
    epoch: Epoch
    index: int
    samples: Any


class _BatchMaker:
    """Makes batches on a worker thread, with the settings of its DataLoader."""

    def __init__(self, loader: _DataLoaderIterBase) -> None:
        self._kind = loader._dataset_kind
        self._init = loader._worker_init_fn
        self._auto_collate = loader._auto_collate_batch
        self._collate_fn = loader._collate_fn
        self._drop_last = loader._drop_last
        (self._place,) = loader._places
        # Nothing else refers to the arrays of the default collation.
        self._zero_copy = loader._collate_fn is default_collate_fn
        self._pool = ArrayPool(loader._capacity)

    def work(self, info: WorkerInfo, tasks: BlockingQueue[_Task]) -> None:
        """Processes tasks until the thread is asked to stop."""
        _thread_state.worker_info = info
        init_failed = self._initialize(info.id)
        epoch = fetcher = None
        while True:
            task = tasks.get()
            if task.epoch.closed.is_set():
                continue
            if init_failed is not None:
                task.epoch.put(task.index, init_failed)
                # Its traceback refers to this frame, and, once the consumer has
                # raised it, to the iterator, which would never be dropped.
                del init_failed
                return
            try:
                if task.epoch is not epoch:
                    task.epoch.begin(info.id)
                    fetcher = make_fetcher(
                        self._kind,
                        info.dataset,
                        self._auto_collate,
                        self._collate_fn,
                        self._drop_last,
                        self._pool,
                    )
                    # Last: after an error the epoch has not begun.
                    epoch = task.epoch
                outcome = self._outcome(task, fetcher, info.id)
                if isinstance(outcome, _Exhausted):
                    # A dataset may start again after its end.
                    fetcher = None
            except BaseException as error:
                if threading.current_thread().should_stop():
                    return
                outcome = _Failed(self._raisable(error, info.id))
            task.epoch.put(task.index, outcome)
            # While this thread waits, only the consumer keeps the batch.
            del task, outcome

    def _initialize(self, worker: int) -> _InitFailed | None:
        try:
            if self._init is not None:
                self._init(worker)
        except BaseException as error:
            return _InitFailed(self._raisable(error, worker))
        return None

    def _outcome(
        self,
        task: _Task,
        fetcher: _DatasetFetcher | CollatingFetcher | None,
        worker: int,
    ) -> Any:
        """Makes the batch of a task. Without a fetcher, the worker's dataset
        has ended."""
        if fetcher is None:
            return _Exhausted(worker)
        try:
            fetched = fetcher.fetch(task.samples, task.epoch.closed)
        except StopIteration:
            if self._kind == _DatasetKind.ITER:
                return _Exhausted(worker)
            raise
        return task.epoch.outcome(self._batch(fetched))

    def _batch(self, fetched: Any) -> Any:
        fields, structure = _flatten_batch(fetched)
        return _restore_batch(
            [self._tensor(field) for field in fields], structure
        )

    def _tensor(self, field: np.ndarray | paddle.Tensor) -> paddle.Tensor:
        if not isinstance(field, paddle.Tensor):
            # Copying an array to a device holds the GIL; copying a tensor
            # releases it.
            field = paddle.Tensor(
                value=field, place=paddle.CPUPlace(), zero_copy=self._zero_copy
            )
            if self._place.is_cpu_place():
                return field
        if field.place._equals(self._place):
            return field.detach()
        return field.detach()._copy_to(self._place, True)

    def _raisable(self, error: BaseException, worker: int) -> Exception:
        if isinstance(error, Exception) and not isinstance(
            error, StopIteration
        ):
            return error
        # Raised unchanged by __next__, it would end the epoch or the program.
        wrapped = RuntimeError(
            f"Worker {worker} of the DataLoader failed, because the dataset, "
            f"the collate_fn or the worker_init_fn raised {error!r}. Raise "
            "another exception instead."
        )
        wrapped.__cause__ = error
        return wrapped


class ThreadWorkersIter(_DataLoaderIterBase):
    """
    An iterator over batches of a DataLoader that worker threads make.

    Batches, their order and the seeds of Paddle's random operators are the same
    as with worker processes. Worker threads differ from processes in this:

    - Each has a shallow copy of the dataset. Attributes that a worker sets are
      its own; the objects they refer to are shared with all workers. A dataset
      whose data is not in attributes, such as a list, is shared itself.
    - A tensor that the dataset or the ``collate_fn`` returns is not copied, if
      it is on the batch's device: an in-place operation on the batch changes
      it. Tensors that are stacked into a batch are copied.
    - The global generators of ``random`` and ``numpy.random`` are those of the
      process, and workers do not seed them.
    - A Paddle without per-thread random generators, a C++ part for Linux,
      warns that random operators use the process's generator.
    - Each starts in the state of the thread that creates the iterator, see
      :class:`paddle.multiprocessing.WorkerThread`, and creates its tensors on
      that thread's device.

    Several threads may take batches from one iterator. With persistent workers,
    it is the iterator of all epochs: threads that still read it when another
    one calls ``iter(loader)`` continue with the new epoch. The workers end with
    the iteration, or when the iterator is dropped, always after a whole sample.

    Raises:
        ValueError: in static mode, or for several places.
    """

    def __init__(self, loader: DataLoader) -> None:
        # First, because __del__ needs them.
        self._epoch = Epoch()
        self._workers: list[WorkerThread] = []
        super().__init__(loader)
        if not in_dynamic_mode():
            raise ValueError(
                "A DataLoader with worker_type='thread' needs dynamic mode, "
                "but this thread is in static mode. Use worker_type='process'."
            )
        if len(self._places) != 1:
            raise ValueError(
                "A DataLoader with worker_type='thread' makes batches on one "
                f"place, but received {len(self._places)}: {self._places}. "
                "Pass one place, or use worker_type='process'."
            )
        self._persistent = loader._persistent_workers
        self._capacity = self._prefetch_factor * self._num_workers
        self._tasks: list[BlockingQueue[_Task]] = [
            BlockingQueue() for _ in range(self._num_workers)
        ]
        self._order = cycle(range(self._num_workers))
        batch_maker = _BatchMaker(self)
        if not has_generators():
            warnings.warn(
                "Random operators on the CPU in this DataLoader's worker "
                "threads use the generator of the process, in no fixed order: "
                "this Paddle was built without per-thread generators, a part "
                "in C++ for Linux. Use worker_type='process' if the dataset "
                "calls such operators.",
                RuntimeWarning,
                stacklevel=4,
            )
        base_seed = np.random.randint(low=0, high=sys.maxsize)
        for worker, tasks in enumerate(self._tasks):
            info = WorkerInfo(
                id=worker,
                num_workers=self._num_workers,
                dataset=_own_copy(self._dataset),
                seed=base_seed,
            )
            thread = WorkerThread(
                batch_maker.work,
                [info, tasks],
                name=f"DataLoader worker {worker}",
                daemon=True,
                seed=base_seed + worker if has_generators() else None,
            )
            thread.start()
            self._workers.append(thread)
        self._begin_epoch()

    def _begin_epoch(self) -> None:
        self._epoch.closed.set()
        self._epoch = self._new_epoch()
        self._exhausted: set[int] = set()
        self._next_task = self._next_batch = 0
        # By the number of the task.
        self._makers: dict[int, WorkerThread] = {}
        for _ in range(self._capacity):
            self._put_task()

    def _new_epoch(self) -> Epoch:
        return Epoch()

    def _reset(self) -> None:
        """Starts another epoch with the same workers."""
        self._sampler_iter = iter(self._index_sampler)
        self._begin_epoch()

    def _put_task(self) -> None:
        if len(self._exhausted) == self._num_workers:
            return
        try:
            samples = next(self._sampler_iter)
        except StopIteration:
            return
        except Exception as error:
            # In order: the batches before it are still to come.
            self._epoch.put(self._next_task, _Failed(without_frames(error)))
            self._next_task += 1
            self._sampler_iter = iter(())
            return
        worker = next(w for w in self._order if w not in self._exhausted)
        self._makers[self._next_task] = self._workers[worker]
        # Not put(): a stopped worker thread would end there, and lose this task
        # and the batch that it is about to return.
        self._tasks[worker].put_nowait(
            _Task(self._epoch, self._next_task, samples)
        )
        self._next_task += 1

    @takes_turns
    def __next__(self) -> Any:
        if not in_profiler_mode():
            return self._next()
        with RecordEvent(
            name="ThreadWorkersIter", event_type=TracerEventType.Dataloader
        ):
            return self._next()

    def _next(self) -> Any:
        benchmark().check_if_need_record(self)
        benchmark().before_reader()
        while self._next_batch < self._next_task:
            index = self._next_batch
            self._wait_for_maker(index)
            outcome = self._epoch.result(index)
            try:
                self._advance(outcome)
            except BaseException:
                # For example Ctrl-C in the sampler. The batch is lost.
                self._end()
                raise
            if isinstance(outcome, _Failed):
                if isinstance(outcome, _InitFailed):
                    self._end()
                else:
                    self._end_epoch()
                try:
                    raise outcome.error
                finally:
                    # Avoids a cycle: its traceback refers to this frame.
                    del outcome
            if not isinstance(outcome, _Exhausted):
                benchmark().after_reader()
                return outcome
        self._end_epoch()
        raise StopIteration

    def _advance(self, outcome: Any) -> None:
        """Drops the next task's outcome, and puts another task."""
        index = self._next_batch
        self._next_batch = index + 1
        self._epoch.drop(index)
        self._makers.pop(index, None)
        if isinstance(outcome, _Exhausted):
            self._exhausted.add(outcome.worker)
        if not isinstance(outcome, _Failed):
            self._put_task()

    def _wait_for_maker(self, index: int) -> None:
        """Waits for a task's outcome. Raises if its worker has ended without
        one, which only code that stops or kills the thread can cause."""
        while not self._epoch.wait(index, _CHECK_S):
            maker = self._makers[index]
            # It may have ended after putting the outcome.
            if maker.is_alive() or self._epoch.wait(index, 0):
                continue
            self._end_epoch()
            raise RuntimeError(
                f"The thread {maker.name!r} ended before it had made its "
                "batch. Do not stop the worker threads of a DataLoader. Create "
                "a new DataLoader to continue."
            ) from maker._error

    def _end_epoch(self) -> None:
        self._epoch.closed.set()
        self._next_task = self._next_batch
        if not self._persistent:
            self._stop_workers()

    def _end(self) -> None:
        """Ends the iterator: the loader starts new workers for its next
        epoch."""
        self._thread_done_event.set()
        self._end_epoch()
        self._stop_workers()

    def _stop_workers(self) -> None:
        for thread in self._workers:
            thread.stop()

    def __del__(self) -> None:
        self._epoch.closed.set()
        self._stop_workers()
