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
"""Makes the thread that forks the main thread of the child.

A child takes the steps below in their order, whichever order the modules that
add them are imported in. A module may also wait before a fork until the state
that the child gets of it is whole.
"""

from __future__ import annotations

import os
from typing import Callable

from .main_thread import become_main_thread, is_main_thread
from .thread_value import MainThreadValue

__all__ = []


# No enum: to define one takes longer than to import the rest of this module.
class Step:
    """What a child does after a fork, in this order."""

    # The forking thread becomes the main thread.
    MAIN_THREAD = 1
    # Its current device, and its operator device, become the process's.
    VALUES = 2
    # It uses the tracer of the process, on its own device.
    TRACER = 3
    # The streams that it has set become the process's.
    STREAMS = 4
    # It may build programs.
    PROGRAMS = 5


_steps: dict[int, Callable[[bool], None]] = {}
_waits: list[Callable[[], None]] = []
_steps_in_parent: list[Callable[[], None]] = []


def take_step(
    step: int,
) -> Callable[[Callable[[bool], None]], Callable[[bool], None]]:
    """Decorates the function that takes a step in the child.

    The function is called on the forking thread, the only thread of the child,
    with whether that thread was the main thread before the fork.
    """

    def add(function: Callable[[bool], None]) -> Callable[[bool], None]:
        _steps[step] = function
        return function

    return add


def wait_before(
    wait: Callable[[], None], in_parent: Callable[[], None]
) -> None:
    """
    Adds what the forking thread does before a fork, and after it in the parent.
    """
    _waits.append(wait)
    _steps_in_parent.append(in_parent)


@take_step(Step.MAIN_THREAD)
def _become_main_thread(was_main: bool) -> None:
    become_main_thread()


@take_step(Step.VALUES)
def _take_over_values(was_main: bool) -> None:
    if not was_main:
        MainThreadValue.take_over_all()


def _take_steps() -> None:
    was_main = is_main_thread()
    for step in sorted(_steps):
        _steps[step](was_main)


def _wait() -> None:
    for wait in _waits:
        wait()


def _take_steps_in_parent() -> None:
    for take_step_in_parent in _steps_in_parent:
        take_step_in_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_wait,
        after_in_parent=_take_steps_in_parent,
        after_in_child=_take_steps,
    )
