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
"""The memory and the random numbers that a thread uses on the host.

Invariant: a thread inside `host_context` uses a device context of the host of
its own, in phi/backends/thread_contexts.h; every other one that of the process.
"""

from __future__ import annotations

import functools
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Callable

from . import core
from .thread_device import left_elsewhere
from .thread_stream import _native

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = []


class _InUse:
    """
    Makes the thread that makes it use a context of the host, until it drops it
    or ends.
    """

    def __init__(self, context: Any):
        # The interpreter may have cleared this module when a thread ends.
        self._use, self._ident = _native.use_host_context, threading.get_ident
        self._thread = threading.get_ident()
        self.context = context
        self._use(context)

    def __del__(self):
        if self._ident() == self._thread:
            self._use(None)


class _Local(threading.local):
    """What the calling thread has chosen; None: what the process has."""

    allocator: Any = None
    generator: core.Generator | None = None
    in_use: _InUse | None = None


_local = _Local()


def cpu_generator() -> core.Generator:
    """Returns what draws the calling thread's random numbers on the host."""
    return _local.generator or core.default_cpu_generator()


def _use(allocator: Any, generator: core.Generator | None) -> None:
    context = None
    if allocator is not None or generator is not None:
        context = _native.HostContext(allocator, generator)
    # First, since it makes the thread use none.
    _local.in_use = None
    _local.allocator, _local.generator = allocator, generator
    if context is not None:
        _local.in_use = _InUse(context)


def on_process_host(function: Callable[..., Any]) -> Callable[..., Any]:
    """
    Decorator of a function that builds or runs a program, which keeps the
    contexts that it is built on: inside it the calling thread uses the context
    of the process on the host.
    """
    if _native is None:
        return function

    @functools.wraps(function)
    def function_on_process_host(*args: Any, **kwargs: Any) -> Any:
        if _local.in_use is None:
            return function(*args, **kwargs)
        _native.use_host_context(None)
        try:
            return function(*args, **kwargs)
        finally:
            if _local.in_use is not None:
                _native.use_host_context(_local.in_use.context)

    return function_on_process_host


@contextmanager
def host_context(
    *, allocator: Any = None, generator: core.Generator | None = None
) -> Iterator[None]:
    """
    Makes operators of the calling thread on the host use other memory, other
    random numbers or both; what is None stays as it was outside.

    Programs that are compiled, by `to_static` for example, do not notice.

    Args:
        allocator: a capsule with a `phi::Allocator` that is never destroyed.
        generator: draws the random numbers.

    Raises:
        NotImplementedError: this Paddle was built without contexts of threads.
        RuntimeError: the context is left on another thread, which it does not
            change.
    """
    if _native is None:
        raise NotImplementedError(
            "This Paddle was built without device contexts of threads, which "
            "need Linux."
        )
    if hasattr(_native, "redirect_look_ups"):
        _native.redirect_look_ups()
    outside = _local.allocator, _local.generator
    entered_on = threading.get_ident()
    _use(
        outside[0] if allocator is None else allocator,
        outside[1] if generator is None else generator,
    )
    try:
        yield
    finally:
        if threading.get_ident() != entered_on:
            raise left_elsewhere("host_context")
        _use(*outside)
