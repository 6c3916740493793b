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
"""Worker threads of a DataLoader, each on its own stream.

A worker's copies and kernels then overlap with those of the thread that takes
the batches. Streams are not ordered with each other, so these waits order them:

- For each epoch, a worker's stream waits for the work that the thread that
  begins the epoch has launched, such as creating the dataset's tensors.
- For each batch, the stream of the thread that takes it waits for the worker's
  stream.
- A batch's memory is reused only after that thread's stream has finished its
  work, because that stream is recorded for the memory.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import paddle
from paddle.base.framework import _current_expected_place
from paddle.base.threads.streams import (
    event_after_work,
    threads_have_streams,
)
from paddle.device import current_stream, get_stream_from_pool, set_stream

from ...framework import in_dynamic_mode
from .flat import _flatten_batch, _restore_batch
from .tensors_in_objects import tensors_in_objects
from .thread_workers import Epoch, ThreadWorkersIter

if TYPE_CHECKING:
    from paddle import Tensor
    from paddle.base import core
    from paddle.device import Event, Stream
    from paddle.io import DataLoader

__all__ = []


class _MadeBatch(NamedTuple):
    """A batch, its tensors, and an event recorded after their work."""

    batch: Any
    tensors: list[Tensor]
    made: Event


class _StreamEpoch(Epoch):
    def __init__(self, place: core.Place, streams: list[Stream]) -> None:
        super().__init__()
        self._place = place
        self._streams = streams
        # Events on which streams already wait. They are recorded again, because
        # destroying an event on a custom device waits for it.
        self._free: list[Event] = []
        self._began = event_after_work(place)

    def begin(self, worker: int) -> None:
        # worker_init_fn ran on the current stream.
        initialized = self._event_after_work()
        stream = self._streams[worker]
        set_stream(stream)
        stream.wait_event(initialized)
        stream.wait_event(self._began)
        self._free.append(initialized)

    def outcome(self, batch: Any) -> _MadeBatch:
        fields, structure = _flatten_batch(batch)
        fields = [self._recorded_or_copied(field) for field in fields]
        hidden = [
            tensor
            for tensor, _ in tensors_in_objects(structure)
            if self._try_record_stream(tensor)
        ]
        # It removes the fields from the list that is passed in.
        batch = _restore_batch([*fields], structure)
        return _MadeBatch(batch, [*fields, *hidden], self._event_after_work())

    def result(self, index: int) -> Any:
        outcome = super().result(index)
        if not isinstance(outcome, _MadeBatch):
            return outcome
        stream = current_stream(self._place)
        stream.wait_event(outcome.made)
        for tensor in outcome.tensors:
            tensor.record_stream(stream)
        return outcome.batch

    def drop(self, index: int) -> None:
        outcome = self._outcomes[index]
        super().drop(index)
        if isinstance(outcome, _MadeBatch):
            self._free.append(outcome.made)

    def _event_after_work(self) -> Event:
        try:
            event = self._free.pop()
        except IndexError:
            return event_after_work(self._place)
        return current_stream(self._place).record_event(event)

    def _recorded_or_copied(self, field: Tensor) -> Tensor:
        """Returns a field, or a finished copy if Paddle did not allocate its
        memory, because then no stream can be recorded for it."""
        if self._try_record_stream(field):
            return field
        return field._copy_to(self._place, True)

    def _try_record_stream(self, tensor: Tensor) -> bool:
        """Records the worker's stream for a tensor, and returns whether that is
        possible: not if the tensor is elsewhere, or if Paddle did not allocate
        its memory."""
        try:
            tensor.record_stream(current_stream(self._place))
        except ValueError:
            return False
        return True


class StreamWorkersIter(ThreadWorkersIter):
    """An iterator over batches of a DataLoader that worker threads make, each
    on its own stream of the creating thread's current device."""

    @functools.cached_property
    def _streams(self) -> list[Stream]:
        # From a pool, since each loop over a loader has its own workers.
        return [
            get_stream_from_pool(self._places[0])
            for _ in range(self._num_workers)
        ]

    def _new_epoch(self) -> Epoch:
        return _StreamEpoch(self._places[0], self._streams)


def _have_own_streams(places: list[core.Place]) -> bool:
    """Returns whether worker threads can make batches for these places on their
    own streams, and hand the batches' memory to other streams."""
    here = _current_expected_place()
    if not (
        in_dynamic_mode()
        and [*map(hash, places)] == [hash(here)]
        and threads_have_streams(here)
    ):
        return False
    try:
        paddle.empty([1]).record_stream(current_stream())
    except RuntimeError:
        # The allocators of this process do not wait for streams.
        return False
    return True


def iterator_type(loader: DataLoader) -> type[ThreadWorkersIter]:
    """Returns the worker thread iterator type that the calling thread uses for
    a loader."""
    if _have_own_streams(loader.places):
        return StreamWorkersIter
    return ThreadWorkersIter
