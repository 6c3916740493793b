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
"""What a fork makes of the state of threads, in the child.

Invariant: the forking thread becomes the main thread of the child, by steps
that are taken in one order, whatever the order in which modules are imported.
"""

from __future__ import annotations

import os
from typing import Callable

__all__ = []

# The steps, in their order. After the first one the thread is the main thread,
# whose operator device and streams are those of the process.
DEVICE, OPERATOR_DEVICE, STREAMS = range(3)

_steps: dict[int, Callable[[bool], None]] = {}


def set_step(number: int, step: Callable[[bool], None]) -> None:
    """
    Sets what a step does, on the forking thread.

    Args:
        number (int): one of the steps above.
        step (Callable): is called with whether the thread was the main one.
    """
    _steps[number] = step


def _take_steps() -> None:
    from .framework import _is_main_thread

    was_main = _is_main_thread()
    for number in sorted(_steps):
        _steps[number](was_main)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_take_steps)
