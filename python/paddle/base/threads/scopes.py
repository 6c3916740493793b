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
"""The scope that `static.global_scope` returns to each thread.

A `static.scope_guard` on the main thread acts on all threads that are not
inside their own guard. A guard on any other thread acts on that thread only.

Functions that save or load a program use a scope of their own for the duration
of a call. No other thread must run in that scope, even if the main thread makes
the call. So it is a second level, for the calling thread only.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from paddle.base import core

from . import device_guards
from .thread_value import UNSET, MainThreadValue, ThreadValue

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .thread_value import OrUnset

__all__ = []

_guarded: MainThreadValue[core._Scope] = MainThreadValue(core.Scope())
_of_call: ThreadValue[OrUnset[core._Scope]] = ThreadValue(UNSET)


def current() -> core._Scope:
    """Returns the calling thread's scope. Thread-safe."""
    scope = _of_call.get()
    return _guarded.get() if scope is UNSET else scope


def switch(scope: core._Scope) -> core._Scope:
    """
    Sets the scope of the innermost guard of the calling thread; outside of its
    guards the thread's scope, and on the main thread the process's. Returns
    the previous scope. Thread-safe.
    """
    previous = current()
    if _of_call.get() is UNSET:
        _guarded.swap(scope)
    else:
        _swap_of_call(scope)
    return previous


def _swap_of_call(scope: OrUnset[core._Scope]) -> OrUnset[core._Scope]:
    saved = _of_call.get()
    _of_call.set_local(scope)
    return saved


@contextmanager
def guard(scope: core._Scope) -> Iterator[None]:
    """
    A context in which the calling thread uses `scope`. On the main thread, so
    do the threads that follow it. Thread-safe.
    """
    # Inside guard_of_call, only the thread that makes the call.
    swap = _guarded.swap if _of_call.get() is UNSET else _swap_of_call
    entered = device_guards.Guard("static.scope_guard")
    saved = swap(scope)
    try:
        yield
    finally:
        if entered.left_by_owner():
            swap(saved)


@contextmanager
def guard_of_call(scope: core._Scope) -> Iterator[None]:
    """
    A context in which the calling thread uses `scope`, and no other thread,
    even if the calling thread is the main one. Thread-safe.

    Requires: left by the thread that has entered it.
    """
    saved = _swap_of_call(scope)
    try:
        yield
    finally:
        _of_call.set_local(saved)
