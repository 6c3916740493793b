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
"""Waits for what the reader thread of persistent workers has received."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .dataloader_iter import _DataLoaderIterMultiProcess

__all__ = []

# How often a waiting thread checks whether the iterator was shut down.
_CHECK_S = 0.1


class EpochProgress:
    """Lets the thread that iterates over persistent workers wait for events
    that only the reader thread sees: a batch has arrived, all workers of an
    iterable dataset have ended, or all workers have left the last epoch.

    Workers may report their ends long after their last batches. The C++ queue
    of batches cannot report an end: it stays open for the next epoch.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()

    def notify(self) -> None:
        """Called by the reader thread after an event."""
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

    def wait_for_workers(self, iterator: _DataLoaderIterMultiProcess) -> None:
        """Returns when all workers have left the last epoch. Raises
        RuntimeError after a shutdown, for example if a worker has failed."""
        with self._changed:
            while iterator._resume_worker_cnt > 0:
                if iterator._thread_done_event.is_set():
                    raise RuntimeError(
                        "The workers of the DataLoader ended before the next "
                        "epoch began, because one of them failed or was "
                        "killed. Iterate over the loader again to start new "
                        "ones."
                    ) from vars(iterator).pop("_error", None)
                self._changed.wait(_CHECK_S)
