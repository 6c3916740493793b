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

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from . import core
from .thread_device import left_elsewhere
from .thread_stream import _native

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = []


class _Local(threading.local):
    """What the calling thread has chosen; None: what the process has."""

    allocator: Any = None
    generator: core.Generator | None = None
    # Kept as long as the thread uses it.
    context: Any = None


_local = _Local()


def cpu_generator() -> core.Generator:
    """Returns what draws the calling thread's random numbers on the host."""
    return _local.generator or core.default_cpu_generator()


def _use(allocator: Any, generator: core.Generator | None) -> None:
    context = None
    if allocator is not None or generator is not None:
        context = _native.HostContext(allocator, generator)
    _native.use_host_context(context)
    _local.allocator, _local.generator = allocator, generator
    _local.context = context


@contextmanager
def host_context(
    *, allocator: Any = None, generator: core.Generator | None = None
) -> Iterator[None]:
    """
    Makes operators of the calling thread on the host use other memory, other
    random numbers or both; what is None stays as it was outside.

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
