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
"""Remembers which operators each library has brought into this process."""

from __future__ import annotations

import functools
import os
import threading
from typing import Callable

__all__ = []

_operators: dict[tuple[int, ...], list[str]] = {}
_lock = threading.RLock()


def once_per_library(
    register: Callable[[str], list[str]],
) -> Callable[[str], list[str]]:
    """
    Decorates a function that registers the operators of a library, and returns
    those that are new to the process. The decorated function returns the
    operators of the first call to each later call with the same library.

    Thread-safe: calls wait for each other, so no call gets the operators of
    another one's library. A library that was built again is another library.
    """

    @functools.wraps(register)
    def register_once(lib_filename: str) -> list[str]:
        with _lock:
            try:
                status = os.stat(lib_filename)
            except OSError:
                # The loader may find it in its search path.
                return register(lib_filename)
            library = (status.st_dev, status.st_ino, status.st_mtime_ns)
            if library not in _operators:
                _operators[library] = register(lib_filename)
            return list(_operators[library])

    return register_once


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
