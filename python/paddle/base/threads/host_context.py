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
"""Per-thread allocators and random number generators on the CPU.

Invariant: a thread inside `host_context` uses its own device context for the
CPU, see phi/backends/thread_contexts.h. Other threads use the process's.
"""

from __future__ import annotations

import functools
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Callable

from paddle.base import core

from .device_guards import Guard
from .streams import native
from .thread_value import UNSET, ThreadValue

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = []


class _Host:
    """
    An allocator, a generator and the device context that uses them. None stands
    for the process's own.
    """

    is_used = False  # whether `context` is the calling thread's context

    def __init__(
        self,
        allocator: Any = None,
        generator: core.Generator | None = None,
        context: Any = None,
    ):
        self.allocator = allocator
        self.generator = generator
        self.context = context


class _OwnHost(_Host):
    """
    The host of the thread that creates it, until that thread drops it or ends.
    """

    def __init__(self, *args: Any, is_used: bool):
        super().__init__(*args)
        # Kept here, since a thread may outlive this module's globals.
        self._use = native.use_host_context
        self._get_ident = threading.get_ident
        self._ident = self._get_ident()
        self.use(is_used)

    def use(self, is_used: bool) -> None:
        """Sets the thread's context to this host's or the process's."""
        self.is_used = is_used
        self._use(self.context if is_used else None)

    def __del__(self):
        if self._get_ident() == self._ident:
            self._use(None)


_host: ThreadValue[_Host] = ThreadValue(_Host())


def cpu_generator() -> core.Generator:
    """
    Returns the CPU random number generator of the calling thread. Thread-safe.
    """
    return _host.get().generator or core.default_cpu_generator()


def is_available() -> bool:
    """
    Returns whether threads can have their own host. They cannot in a build
    without the C++ part for Linux.
    """
    return hasattr(native, "HostContext")


def _set_host(
    allocator: Any, generator: core.Generator | None, is_used: bool
) -> None:
    if allocator is None and generator is None:
        _host.set_local(UNSET)
        return
    context = native.HostContext(allocator, generator)
    # Drop the old host before creating the new one: its destructor resets the
    # context of the thread.
    _host.set_local(UNSET)
    _host.set_local(_OwnHost(allocator, generator, context, is_used=is_used))


def _use_own_host(is_used: bool) -> None:
    host = _host.get_local()
    if host is not UNSET:
        host.use(is_used)


def on_process_host(function: Callable[..., Any]) -> Callable[..., Any]:
    """
    Decorates a function that builds or runs a program. A program keeps the
    contexts that it was built on, so the calling thread uses the CPU context of
    the process inside the function.

    The decorated function is as thread-safe as `function`.
    """

    @functools.wraps(function)
    def function_on_process_host(*args: Any, **kwargs: Any) -> Any:
        if not _host.get().is_used:
            return function(*args, **kwargs)
        _use_own_host(False)
        try:
            return function(*args, **kwargs)
        finally:
            # `function` may have left the context or entered another.
            _use_own_host(True)

    return function_on_process_host


@contextmanager
def host_context(
    *, allocator: Any = None, generator: core.Generator | None = None
) -> Iterator[None]:
    """
    Makes the calling thread's CPU operators use another allocator, another
    generator or both. For an argument that is None, the outer setting stays in
    effect.

    Compiled programs, for example of `to_static`, are not affected.

    Thread-safe. One context object serves one thread, once.

    Args:
        allocator: a capsule with a `phi::Allocator` that is never destroyed.
        generator: draws the random numbers.

    Raises:
        NotImplementedError: this build has no C++ part for it.
        RuntimeError: the context is left on another thread. Nothing is changed
            on either.
    """
    if not is_available():
        raise NotImplementedError(
            "This build has no device contexts per thread, a C++ part for "
            "Linux. Use the process's allocator and generator."
        )
    # Do not keep the host itself: its destructor resets the thread's context.
    outside = _host.get().allocator, _host.get().generator, _host.get().is_used
    guard = Guard("host_context")
    _set_host(
        outside[0] if allocator is None else allocator,
        outside[1] if generator is None else generator,
        is_used=True,
    )
    try:
        yield
    finally:
        if guard.left_by_owner():
            _set_host(*outside)
