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

Functions that save or load a program use a scope of their own during a call.
Only the calling thread may use it, even if that is the main thread, which other
threads follow. So it is kept apart from the scope of the guards, and comes
first.
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
_thread_only: ThreadValue[OrUnset[core._Scope]] = ThreadValue(UNSET)


def current() -> core._Scope:
    """Returns the calling thread's scope. Thread-safe."""
    scope = _thread_only.get()
    return _guarded.get() if scope is UNSET else scope


def _swap_thread_only(scope: OrUnset[core._Scope]) -> OrUnset[core._Scope]:
    saved = _thread_only.get()
    _thread_only.set_local(scope)
    return saved


@contextmanager
def guard(scope: core._Scope) -> Iterator[None]:
    """
    A context in which the calling thread uses `scope`. On the main thread, so
    do the threads that follow it. Thread-safe.
    """
    # Inside thread_only_guard, only the thread that makes the call.
    swap = _guarded.swap if _thread_only.get() is UNSET else _swap_thread_only
    entered = device_guards.Guard("static.scope_guard")
    saved = swap(scope)
    try:
        yield
    finally:
        if entered.left_by_owner():
            swap(saved)


@contextmanager
def thread_only_guard(scope: core._Scope) -> Iterator[None]:
    """
    A context in which the calling thread uses `scope`, and no other thread,
    even if the calling thread is the main one. Thread-safe.

    Requires: left by the thread that has entered it.
    """
    saved = _swap_thread_only(scope)
    try:
        yield
    finally:
        _thread_only.set_local(saved)
