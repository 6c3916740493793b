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
"""The per-thread namespace of generated unique names.

`unique_name.guard` is entered while a program is loaded or built. If it moved
all threads to a new namespace, a layer that another thread creates meanwhile
could get two parameters with the same name.
"""

from __future__ import annotations

import copy
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Callable

from .main_thread import is_main_thread
from .thread_value import UNSET, ThreadValue

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = []


class PerThreadNamespace:
    """
    Calls the name generator of the calling thread's namespace: that of the
    guard that the thread is in, or the process's. Other attributes are those of
    that generator.

    Thread-safe.
    """

    def __init__(self, process: Callable[[str], Any]) -> None:
        self._function: ThreadValue[Callable[[str], Any]] = ThreadValue(process)

    def __call__(self, name: str) -> Any:
        return self._function.get()(name)

    def __getattr__(self, name: str) -> Any:
        # Python looks up special methods here, also on an object that has no
        # _function yet.
        if name.startswith("__") or name == "_function":
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}"
            )
        return getattr(self._function.get(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "_function":
            super().__setattr__(name, value)
        else:
            setattr(self._function.get(), name, value)

    def __reduce_ex__(self, protocol: int) -> Any:
        # copy.copy and pickle get the thread's generator; copy.copy shares its
        # counters, as before.
        return copy.copy, (self._function.get(),)

    def swap(self, function: Callable[[str], Any]) -> Callable[[str], Any]:
        """
        Sets the process's function if called on the main thread outside guards,
        otherwise the calling thread's function. Returns the previous one.
        """
        function = _unwrap(function)
        previous = self._function.get()
        if is_main_thread() and self._function.get_local() is UNSET:
            self._function.process = function
        else:
            self._function.set_local(function)
        return previous

    def share(self) -> None:
        """Makes all threads use the function of the main thread's current
        guard, until the main thread leaves the guard. Does nothing if called on
        another thread."""
        function = self._function.get_local()
        if is_main_thread() and function is not UNSET:
            self._function.process = function
            self._function.set_local(UNSET)

    @contextmanager
    def guard(self, function: Callable[[str], Any]) -> Iterator[None]:
        """
        Makes the calling thread use `function` inside the context.

        Raises:
            RuntimeError: the context is left on a thread that has not entered
                it.
        """
        # Not above: that file imports Paddle's, which import this one.
        from .device_guards import Guard

        entered = Guard("unique_name.guard")
        function = _unwrap(function)
        previous = self._function.get_local()
        process = self._function.process
        self._function.set_local(function)
        try:
            yield
        finally:
            if entered.left_by_owner():
                if self._function.get_local() is UNSET:
                    self._function.process = process
                self._function.set_local(previous)


def _unwrap(function: Callable[[str], Any]) -> Callable[[str], Any]:
    """Returns the current generator of a namespace, which would otherwise call
    itself if it were set in itself."""
    if isinstance(function, PerThreadNamespace):
        return function._function.get()
    return function
