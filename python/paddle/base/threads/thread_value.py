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
"""Values with two levels: a thread's own value, else the process's.

The levels, and the sentinel for "not set", follow JAX's configuration state.
"""

from __future__ import annotations

from typing import Any, ClassVar, Generic, TypeVar, Union

from paddle.base import core

from .main_thread import is_main_thread

__all__ = []

T = TypeVar("T")


class Unset:
    """The type of UNSET."""

    def __repr__(self) -> str:
        return "UNSET"


UNSET = Unset()

OrUnset = Union[T, Unset]


# In C++: each operator looks up the current device.
_Base: Any = core.libpaddle._thread_value.ThreadValue


class ThreadValue(_Base, Generic[T]):
    """A value that each thread can set for itself.

    A thread without its own value, such as a new thread, uses the process's
    value, and sees each change of it.

    Thread-safe: a thread writes only its own value, and the process's value is
    a single attribute.

    Args:
        process: the process's initial value.
    """

    __slots__ = ()

    def __init__(self, process: T) -> None:
        super().__init__(process, UNSET)


class MainThreadValue(ThreadValue[T]):
    """A ThreadValue for which the main thread's value is the process's.

    The main thread never has its own value. After a fork, the forking thread is
    the main thread, and its value is the process's.
    """

    __slots__ = ("before_fork",)

    _all: ClassVar[list[MainThreadValue]] = []

    def __init__(self, process: T) -> None:
        super().__init__(process)
        # The process's value at the fork. A context that the forking thread
        # entered before the fork may have saved UNSET, which stood for it.
        self.before_fork: OrUnset[T] = UNSET
        self._all.append(self)

    def saved(self) -> OrUnset[T]:
        """
        Returns the argument with which `swap` restores the calling thread's
        present value: on the main thread the process's value, elsewhere the
        thread's own value, or UNSET.
        """
        return self.process if is_main_thread() else self.get_local()

    def swap(self, value: OrUnset[T]) -> OrUnset[T]:
        """
        Sets the process's value on the main thread, and elsewhere the calling
        thread's own value. Returns the argument for a call that undoes this
        one.

        Requires: on the main thread, UNSET is only passed to undo a call that
        returned it before a fork.
        """
        saved = self.saved()
        if not is_main_thread():
            self.set_local(value)
        else:
            self.process = self.before_fork if value is UNSET else value
        return saved

    @classmethod
    def take_over_all(cls) -> None:
        """Makes the calling thread's values the process's.

        Requires: runs in a child, right after a thread other than the main one
        forked: no other thread exists.
        """
        for value in cls._all:
            own = value.get_local()
            value.set_local(UNSET)
            value.before_fork = value.get()
            if own is not UNSET:
                value.process = own
