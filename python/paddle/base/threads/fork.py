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
"""Makes the forking thread the main thread of the child.

A child runs the steps below in their order, independent of the import order of
the modules that register them. A module may also delay a fork until its state
is consistent.
"""

from __future__ import annotations

import os
from typing import Callable

from .main_thread import become_main_thread, is_main_thread
from .thread_value import MainThreadValue

__all__ = []


# Not an enum: defining one takes longer than importing the rest of this module.
class Step:
    """The steps of a child after a fork, in this order."""

    # Hooks on saved tensors are those of its only thread. Needs no other step.
    SAVED_TENSORS_HOOKS = 0
    # The forking thread becomes the main thread.
    MAIN_THREAD = 1
    # Its current device and its operator device become the process's.
    VALUES = 2
    # It uses the process's tracer, on its own device.
    TRACER = 3
    # The streams that it has set become the process's.
    STREAMS = 4
    # It may build programs.
    PROGRAMS = 5


_steps: dict[int, Callable[[bool], None]] = {}
_waits: list[Callable[[], None]] = []
_steps_in_parent: list[Callable[[], None]] = []


def run_in_child(
    step: int,
) -> Callable[[Callable[[bool], None]], Callable[[bool], None]]:
    """Returns a decorator that registers a function as a step of the child.

    The function is called on the forking thread, the only thread of the child.
    Its argument says whether that thread was the main thread before the fork.
    """

    def add(function: Callable[[bool], None]) -> Callable[[bool], None]:
        _steps[step] = function
        return function

    return add


def before_fork(
    wait: Callable[[], None], in_parent: Callable[[], None]
) -> None:
    """
    Registers functions that the forking thread calls before a fork, and in the
    parent after it.
    """
    _waits.append(wait)
    _steps_in_parent.append(in_parent)


@run_in_child(Step.MAIN_THREAD)
def _become_main_thread(was_main: bool) -> None:
    become_main_thread()


@run_in_child(Step.VALUES)
def _take_over_values(was_main: bool) -> None:
    if not was_main:
        MainThreadValue.take_over_all()


def _run_steps() -> None:
    was_main = is_main_thread()
    for step in sorted(_steps):
        _steps[step](was_main)


def _wait() -> None:
    for wait in _waits:
        wait()


def _continue_in_parent() -> None:
    for step in _steps_in_parent:
        step()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_wait,
        after_in_parent=_continue_in_parent,
        after_in_child=_run_steps,
    )
