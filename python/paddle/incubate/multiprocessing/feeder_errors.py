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
"""Delivers errors of a queue's feeder thread to the receiver.

`Queue.put` of multiprocessing leaves the pickling to a feeder thread. If it
fails there, the thread prints the error and drops the object, for which the
receiver then waits in vain.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any, Callable, NoReturn

# Errors that can be made from a message alone, in every process.
_KINDS = (
    MemoryError,
    NotImplementedError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)


def raised_at_receiver(reduce: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """
    Returns `reduce`, except that an error in a feeder thread that would drop it
    is sent in place of the object, and raised by the receiver's get().
    """

    @functools.wraps(reduce)
    def reduce_or_send_error(value: Any) -> Any:
        try:
            return reduce(value)
        except Exception as error:
            if not _in_thread_that_drops_errors():
                raise
            kind = type(error) if type(error) in _KINDS else RuntimeError
            return _raise, (kind, str(error), os.getpid())

    return reduce_or_send_error


def _raise(kind: type[Exception], text: str, sender: int) -> NoReturn:
    raise kind(f"Process {sender} could not send a tensor by a queue: {text}")


def _in_thread_that_drops_errors() -> bool:
    """
    Returns whether the caller runs in a feeder thread that drops errors. That
    of a ProcessPoolExecutor, for example, handles them.
    """
    queues = sys.modules.get("multiprocessing.queues")
    frame = sys._getframe() if queues else None
    while frame is not None:
        if frame.f_code is queues.Queue._feed.__code__:
            on_error = frame.f_locals["onerror"]
            return on_error is queues.Queue._on_queue_feeder_error
        frame = frame.f_back
    return False
