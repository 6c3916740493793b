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
"""SIGTERM in children of `multiprocessing`.

Importing Paddle sets a handler that prints a long report. It deadlocks if it
interrupts a thread that holds a lock which the report needs, such as malloc's.
In children this is likely: `terminate`, and a pool that is left, send SIGTERM
to children that are still starting.
"""

from __future__ import annotations

import signal
import threading
from multiprocessing import process, util

__all__ = []


def restore_handler() -> None:
    """
    Restores the handler that Python has set. By default, SIGTERM then ends this
    process immediately. Requires: runs on the main thread.
    """
    # Python does not see a handler that C++ has set; this replaces it.
    handler = signal.getsignal(signal.SIGTERM)
    if handler is not None:  # None: set by C before Python started
        signal.signal(signal.SIGTERM, handler)


def restore_handler_in_child() -> None:
    """
    Calls `restore_handler` if this process is a child of `multiprocessing`, and
    this is its main thread.
    """
    # The first while a child unpickles its target, the second while it runs it.
    is_child = (
        getattr(process.current_process(), "_inheriting", False)
        or process.parent_process() is not None
    )
    if is_child and threading.current_thread() is threading.main_thread():
        restore_handler()


# For children that inherit Paddle.
util.register_after_fork(restore_handler, lambda function: function())
