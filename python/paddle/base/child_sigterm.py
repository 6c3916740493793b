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

Importing Paddle sets a handler that prints a long report, and deadlocks if it
interrupts a thread that holds a lock it needs, such as malloc's. Here it would
often do so: `terminate` sends SIGTERM to children that still start.
"""

from __future__ import annotations

import signal
import threading
from multiprocessing import process, util

__all__ = []


def end_at_sigterm() -> None:
    """
    Makes SIGTERM end this process immediately, unless Python has a handler for
    it. Requires: runs on the main thread.
    """
    # Python does not see a handler that C++ has set; this replaces it.
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def end_at_sigterm_if_child() -> None:
    """
    Does the same while a child that `multiprocessing` has not forked starts,
    and otherwise nothing.
    """
    # While the child unpickles its target, which imports Paddle.
    is_starting = getattr(process.current_process(), "_inheriting", False)
    if is_starting and threading.current_thread() is threading.main_thread():
        end_at_sigterm()


# For children that inherit Paddle.
util.register_after_fork(end_at_sigterm, lambda function: function())
