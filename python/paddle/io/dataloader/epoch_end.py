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
"""Waits for a batch of persistent workers, or for the end of the epoch."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .dataloader_iter import _DataLoaderIterMultiProcess

__all__ = []

# How often a waiting thread checks whether the iterator was shut down.
_CHECK_S = 0.1


class BatchOrEnd:
    """Lets the thread that iterates wait until the next batch has arrived, or
    all workers of an iterable dataset have ended.

    Workers may report their ends long after their last batches. The C++ queue
    of batches cannot report an end: it stays open for the next epoch.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()

    def notify(self) -> None:
        """Called after a batch has arrived or a worker has ended."""
        with self._changed:
            self._changed.notify_all()

    def wait(self, iterator: _DataLoaderIterMultiProcess) -> None:
        """Returns at the next batch, at the end, and after a shutdown."""
        needed = len(iterator._places)
        with self._changed:
            while (
                len(iterator._structure_infos) < needed
                and iterator._batches_outstanding >= needed
                and not iterator._thread_done_event.is_set()
            ):
                self._changed.wait(_CHECK_S)
