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
"""Context managers that change the current device, or the current stream.

Invariant: leaving a context on a thread puts back what that thread had when it
entered the same context last, "no place of its own" included. What is to be
put back is kept with the thread, not with the context, so that one context
object may be entered again before it is left, and by several threads at once.

A context that is never left on its thread, such as that of a generator which is
dropped on another one, is forgotten when its object goes: threads of a server
never end.
"""

from __future__ import annotations

import weakref
from typing import Any

from . import core, framework
from .thread_device import left_elsewhere

__all__ = []


class Guard:
    """Stands for a context that is a generator."""


def push(scope: object, saved: Any) -> None:
    """
    Notes that the calling thread has entered the context `scope` and that
    `saved` is to be put back when it leaves.
    """
    scopes = framework.global_var.device_scopes_
    if scopes:
        scopes[:] = [entry for entry in scopes if entry[0]() is not None]
    scopes.append((weakref.ref(scope), saved))


def pop(scope: object) -> Any:
    """
    Returns what is to be put back now that the calling thread leaves `scope`.

    Raises:
        RuntimeError: the thread is not inside `scope`. Nothing is changed.
    """
    scopes = framework.global_var.device_scopes_
    for i in reversed(range(len(scopes))):
        if scopes[i][0]() is scope:
            return scopes.pop(i)[1]
    name = f"{type(scope).__module__}.{type(scope).__qualname__}"
    raise left_elsewhere(name)


def enter(scope: object, place: core.Place | None) -> None:
    """
    Enters the context `scope`, in which the calling thread is on `place`, or
    follows the main thread.
    """
    saved = framework._own_expected_place()
    framework._set_expected_place(place)
    push(scope, saved)


def leave(scope: object) -> None:
    """
    Leaves the context `scope`, see `pop` for the error it may raise.
    """
    framework._set_expected_place(pop(scope))
