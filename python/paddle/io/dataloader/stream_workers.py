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
"""Worker threads of a DataLoader, each on a stream of its own.

The copies and kernels of a worker then run beside those of the thread that
takes the batches. Streams are not ordered with each other, so these waits order
them:

- for each epoch, the stream of a worker waits for what the thread that begins
  it has started until then, such as the tensors of the dataset;
- for each batch, the stream of the thread that takes it waits for the worker's;
- the memory of a batch is used again only after the stream of that thread has
  done its work, because that stream is recorded for it.
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
from .thread_workers import Epoch, ThreadWorkersIter

if TYPE_CHECKING:
    from paddle import Tensor
    from paddle.base import core
    from paddle.device import Event, Stream
    from paddle.io import DataLoader

__all__ = []


class _MadeBatch(NamedTuple):
    """A batch, its fields, and an event after their work."""

    batch: Any
    fields: list[Tensor]
    made: Event


class _StreamEpoch(Epoch):
    def __init__(self, place: core.Place, streams: list[Stream]) -> None:
        super().__init__()
        self._place = place
        self._streams = streams
        # Events that streams wait for already, which are recorded again: to
        # drop one waits for it on a custom device.
        self._free: list[Event] = []
        self._began = event_after_work(place)

    def begin(self, worker: int) -> None:
        # The init function ran on the current stream.
        initialized = self._event_after_work()
        stream = self._streams[worker]
        set_stream(stream)
        stream.wait_event(initialized)
        stream.wait_event(self._began)
        self._free.append(initialized)

    def outcome(self, batch: Any) -> _MadeBatch:
        fields, structure = _flatten_batch(batch)
        fields = [self._with_own_memory(field) for field in fields]
        # It takes the fields out of the list that it is given.
        batch = _restore_batch([*fields], structure)
        return _MadeBatch(batch, fields, self._event_after_work())

    def look(self, index: int) -> Any:
        outcome = super().look(index)
        if not isinstance(outcome, _MadeBatch):
            return outcome
        stream = current_stream(self._place)
        stream.wait_event(outcome.made)
        for field in outcome.fields:
            field.record_stream(stream)
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

    def _with_own_memory(self, field: Tensor) -> Tensor:
        """Returns a field, or a complete copy if Paddle has not allocated its
        memory, for which no stream can be recorded."""
        try:
            field.record_stream(current_stream(self._place))
        except ValueError:
            return field._copy_to(self._place, True)
        return field


class StreamWorkersIter(ThreadWorkersIter):
    """An iterator over the batches of a DataLoader that worker threads make on
    streams of their own, of the current device of the thread that makes it."""

    @functools.cached_property
    def _streams(self) -> list[Stream]:
        # Of a pool, since each loop over a loader has workers of its own.
        return [
            get_stream_from_pool(self._places[0])
            for _ in range(self._num_workers)
        ]

    def _new_epoch(self) -> Epoch:
        return _StreamEpoch(self._places[0], self._streams)


def _have_own_streams(places: list[core.Place]) -> bool:
    """Returns whether worker threads can make batches for these places on
    streams of their own, and hand their memory to other streams."""
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
    """Returns the type of the iterator with worker threads that the calling
    thread makes for a loader."""
    if _have_own_streams(loader.places):
        return StreamWorkersIter
    return ThreadWorkersIter
