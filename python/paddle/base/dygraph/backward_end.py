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
"""Functions at the end of the calling thread's backward pass, and hook errors.

The engine cannot stop at an error of a hook of ``_register_backward_hook``. So
the hooks keep their first error for the end of the pass, and later hooks run as
usual. A hook that needs the end of the pass registers a function with
``at_end_of_backward``.
"""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING

from paddle.base import core

if TYPE_CHECKING:
    from collections.abc import Callable

    from paddle import Tensor

__all__ = []

# The engine's own method, which a method of the same name replaces.
_register = core.eager.Tensor._register_backward_hook


class _Passes(threading.local):
    """The nested backward passes that the calling thread is running."""

    depth = 0
    # What the innermost pass will raise.
    error: BaseException | None = None

    def __init__(self):
        self.functions: list[Callable[[bool], None]] = []


_passes = _Passes()


def at_end_of_backward(function: Callable[[bool], None]) -> None:
    """Calls `function` once, at the end of the outermost backward pass.

    The function's argument is whether the pass succeeded. `backward()` raises
    the first error of the pass and of these functions; an error that is no
    `Exception`, such as KeyboardInterrupt, takes precedence. Outside of a
    backward pass, the function waits for the next pass of the calling thread.
    """
    _passes.functions.append(function)


@functools.wraps(_register)
def register_backward_hook(tensor: Tensor, hook: Callable[[], None]) -> None:
    _register(tensor, functools.partial(_call_hook, hook))


def _call_hook(hook: Callable[[], None]) -> None:
    if _passes.depth > 0:
        _call(hook)
    else:
        # Not called from `run_backward`, which would raise a kept error.
        hook()


def run_backward(*arguments) -> None:
    """Runs a backward pass, then the functions registered for its end."""
    outer_error, _passes.error = _passes.error, None
    _passes.depth += 1
    succeeded = False
    try:
        _call(core.eager.run_backward, *arguments)
        succeeded = _passes.error is None
    finally:
        _passes.depth -= 1
        if _passes.depth == 0:
            functions, _passes.functions = _passes.functions, []
            for function in functions:
                _call(function, succeeded)
        error, _passes.error = _passes.error, outer_error
    try:
        if error is not None:
            raise error
    finally:
        # Its traceback refers to this frame: do not leave a cycle.
        error = None


def _call(function: Callable, *arguments) -> None:
    """Calls a function, and keeps its error for the end of the pass."""
    try:
        function(*arguments)
    except BaseException as error:
        first, found = _passes.error, _pending_error(error)
        if first is None or (
            isinstance(first, Exception) and not isinstance(found, Exception)
        ):
            _passes.error = found
        # The error's traceback refers to this frame: do not leave a cycle.
        del found


def _pending_error(error: BaseException) -> BaseException:
    """Returns what was raised before `error` reported that it was pending.

    KeyboardInterrupt can be raised on entry to a hook, before any Python code
    could keep it.
    """
    while (
        isinstance(error, SystemError)
        and error.__cause__ is not None
        and "with an exception set" in str(error)
    ):
        error = error.__cause__
    return error
