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

import functools
import threading
from typing import Any, Callable

__all__ = []


def ends_when_stopped(next_batch: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """
    Decorates the `__next__` of an iterator that reads from a blocking C++
    queue: the wait ends when the calling `paddle.multiprocessing.WorkerThread`
    is asked to stop. The iterator cannot be used after that.
    """

    @functools.wraps(next_batch)
    def wrapped(iterator: Any) -> Any:
        woken_by = getattr(threading.current_thread(), "_woken_by", None)
        if woken_by is None:
            return next_batch(iterator)
        with woken_by(iterator._exit_thread_unexpectedly):
            return next_batch(iterator)

    return wrapped
