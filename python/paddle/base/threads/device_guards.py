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
"""The state that device and stream context managers restore on exit.

Invariant: leaving a context on a thread restores the state of that thread when
it last entered the same context, "no device of its own" included. The thread
stores the value to restore, not the context. So a context object is reentrant,
and several threads may use it concurrently.

If a context is never left on its thread, for example because its generator is
dropped on another thread, its entry is removed together with the context
object. Otherwise such entries would pile up on a server's long-lived threads.
"""

from __future__ import annotations

import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any

from .devices import current_place, set_place
from .thread_value import UNSET, ThreadValue

if TYPE_CHECKING:
    from paddle.base import core

    from .thread_value import OrUnset

__all__ = []


# The contexts that a thread is inside of, innermost last, with the values to
# restore. The process's value is not used.
_entered: ThreadValue[list[tuple[weakref.ref, Any]]] = ThreadValue([])


def _entered_by_thread() -> list[tuple[weakref.ref, Any]]:
    entered = _entered.get_local()
    if entered is UNSET:
        entered = []
        _entered.set_local(entered)
    return entered


def push(context: object, saved: Any) -> None:
    """
    Records that the calling thread has entered `context` and restores `saved`
    when it leaves. Thread-safe.
    """
    entered = _entered_by_thread()
    if entered:
        entered[:] = [entry for entry in entered if entry[0]() is not None]
    entered.append((weakref.ref(context), saved))


def pop(context: object) -> Any:
    """
    Returns the value to restore when the calling thread leaves `context`.
    Thread-safe.

    Raises:
        RuntimeError: the thread is not inside `context`. Nothing changes.
    """
    entered = _entered_by_thread()
    for i in reversed(range(len(entered))):
        if entered[i][0]() is context:
            return entered.pop(i)[1]
    name = f"{type(context).__module__}.{type(context).__qualname__}"
    raise left_on_wrong_thread(name)


def enter(context: object, place: OrUnset[core.Place] | None) -> None:
    """
    Enters `context`, in which the calling thread uses `place`, or the main
    thread's place if `place` is UNSET. Thread-safe.
    """
    saved = current_place.saved()
    set_place(place)
    push(context, saved)


def leave(context: object) -> None:
    """
    Leaves `context` and restores the calling thread's place. Thread-safe.

    Raises:
        RuntimeError: the thread is not inside `context`. Nothing changes.
    """
    set_place(pop(context))


class Guard:
    """
    A helper for context managers written as generators. Create it on entry. In
    the generator's `finally`, it tells whether the context is being left or the
    generator is being dropped.

    Args:
        name (str): the name of the context manager, for the error.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        # This object identifies the thread. Unlike the thread's ident, it is
        # never reused for a later thread.
        self._entered = _entered_by_thread()

    def left_by_owner(self) -> bool:
        """
        Returns whether the context is being left and must restore its state.

        Otherwise the generator is being dropped: by another thread, or together
        with the state of a thread that has ended. After a fork, all threads
        except the forking one have ended.

        Raises:
            RuntimeError: the context is left on a thread that has not entered
                it.
        """
        if self._entered is _entered_by_thread():
            return True
        if isinstance(sys.exc_info()[1], GeneratorExit):
            return False
        raise left_on_wrong_thread(self._name)


def left_on_wrong_thread(name: str) -> RuntimeError:
    """Returns the error for leaving a context on a thread that is not in it."""
    return RuntimeError(
        f"The context {name} was left on thread "
        f"{threading.current_thread().name!r}, which has not entered it. What "
        "a context sets belongs to a thread: leave it on the thread that "
        "entered it, and enter one on each thread that needs it."
    )
