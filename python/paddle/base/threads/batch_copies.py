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
"""The copies of a loader's batches to its devices."""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING

from paddle.base import core

from .main_thread import is_main_thread
from .streams import on_default_stream, synchronize, threads_have_streams

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = []


class BatchCopies:
    """
    Who copies the batches of a loader to its places: the thread of Paddle's
    BufferedReader, or the loader's reader thread.

    Invariant: copies are ordered with the work on the streams of the thread
    that creates the loader.

    The BufferedReader's thread uses the contexts of the process, that is the
    current streams of the main thread. If the creator is on another stream, it
    would overwrite memory of a batch that this stream still reads. So the
    reader thread copies then: it has the creator's streams. In any case, a
    sample on a custom device is complete before the BufferedReader copies it.

    Args:
        places: the loader's places. Batches go to them in turn.
        use_buffer_reader: whether batches are copied at all.
        pin_memory: whether batches for GPUs go to pinned host memory. No
            stream takes part in this.
    """

    def __init__(
        self,
        places: Sequence[core.Place],
        use_buffer_reader: bool,
        pin_memory: bool,
    ) -> None:
        on_streams = [
            place
            for place in places
            if threads_have_streams(place)
            and not (pin_memory and isinstance(place, core.CUDAPlace))
        ]
        on_process_streams = is_main_thread() and all(
            map(on_default_stream, on_streams)
        )
        in_reader_thread = bool(on_streams) and not on_process_streams
        self.use_buffer_reader = use_buffer_reader and not in_reader_thread
        self._places = (
            cycle(places) if use_buffer_reader and in_reader_thread else None
        )

    def on_next_place(
        self, batch: core.DenseTensorArray
    ) -> core.DenseTensorArray:
        """
        Returns the batch for the loader's queue: copied to the next place,
        unless the BufferedReader copies it or none is to be copied.

        Not thread-safe: only the loader's reader thread calls it.
        """
        if self._places is None:
            if self.use_buffer_reader:
                _wait_for(batch)
            return batch
        place = next(self._places)
        copies = core.DenseTensorArray()
        for tensor in batch:
            # A Tensor's copy releases the GIL, a DenseTensor's does not.
            copy = core.eager.Tensor(tensor)._copy_to(place, True)
            copied = copy.value().get_tensor()
            copied.set_lod(tensor.lod())
            copies.append(copied)
        return copies


def _wait_for(batch: core.DenseTensorArray) -> None:
    for tensor in batch:
        place = tensor._place()
        # For a GPU, the BufferedReader waits for the creator's stream.
        if place.is_custom_place():
            synchronize(place)
