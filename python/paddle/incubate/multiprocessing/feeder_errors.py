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

`Queue.put` of multiprocessing leaves pickling to a feeder thread. If pickling
fails there, the thread prints the error and drops the object, and the receiver
waits for it forever.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

# Errors that any process can construct from a message alone.
_KINDS = (
    MemoryError,
    NotImplementedError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)


def reduce_error(error: Exception, sent: str = "a tensor") -> tuple:
    """
    Returns a reduction that raises the error in the receiver. If the calling
    thread does not drop errors, this raises the error itself. `sent` names the
    object in the message.
    """
    if not _is_feeder_thread():
        raise error
    kind = type(error) if type(error) in _KINDS else RuntimeError
    return _raise, (kind, str(error), os.getpid(), sent)


def _raise(
    kind: type[Exception], text: str, sender: int, sent: str
) -> NoReturn:
    raise kind(
        f"Process {sender} could not send {sent} through a queue: {text}"
    )


def _is_feeder_thread() -> bool:
    """
    Returns whether the caller runs in a feeder thread that drops errors. The
    feeder thread of a ProcessPoolExecutor, for example, handles them.
    """
    queues = sys.modules.get("multiprocessing.queues")
    frame = sys._getframe() if queues else None
    while frame is not None:
        if frame.f_code is queues.Queue._feed.__code__:
            on_error = frame.f_locals["onerror"]
            return on_error is queues.Queue._on_queue_feeder_error
        frame = frame.f_back
    return False
