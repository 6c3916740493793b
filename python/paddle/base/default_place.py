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
"""Finding the default device never undoes a `set_device` that comes meanwhile.

Invariant: while a thread searches for the default, `is_sought` is true and the
thread holds `lock`. The search writes `framework._global_expected_place_` when
it found none at its start. `_set_expected_place` writes it first and looks at
`is_sought` next; the search raises `is_sought` first and looks at the place
next. So either the search sees the place that was set and leaves it, or the
setter sees the search, waits for its end and writes again.

The lock may be taken again by the thread that has it: the search warns, and
what a program does about a warning may ask for the device.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Callable

if TYPE_CHECKING:
    from . import core

__all__ = []

lock = threading.RLock()
is_sought = False


def seek(search: Callable[[], core.Place]) -> core.Place:
    """
    Returns the place of the process, after `search` has set it to the default
    one if there was none.
    """
    global is_sought
    with lock:
        is_sought = True
        try:
            return search()
        finally:
            is_sought = False


def _forget_searches_of_parent() -> None:
    global lock, is_sought
    lock = threading.RLock()
    is_sought = False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_searches_of_parent)
