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
"""Runs functions at the end of the backward pass of the calling thread.

A gradient hook runs inside the pass. The engine turns an error of a hook into
SystemError, and runs later hooks with the error pending. A hook that may fail,
or that needs the end of the pass, therefore registers a function with
``at_end_of_backward``.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from paddle.base import core

if TYPE_CHECKING:
    from collections.abc import Callable


class _Passes(threading.local):
    """The nested backward passes that the calling thread is running."""

    depth = 0

    def __init__(self):
        self.functions: list[Callable[[bool], None]] = []


_passes = _Passes()


def at_end_of_backward(function: Callable[[bool], None]) -> None:
    """Calls `function` once, at the end of the outermost backward pass.

    The function's argument is whether the pass succeeded. If it did,
    `backward()` raises the first error of these functions; after a failed pass,
    their errors are dropped. Outside of a backward pass, the function waits for
    the next pass of the calling thread.
    """
    _passes.functions.append(function)


def run_backward(*arguments) -> None:
    """Runs a backward pass, then the functions registered for its end."""
    _passes.depth += 1
    succeeded = False
    hook_error = None
    try:
        try:
            core.eager.run_backward(*arguments)
        except SystemError as error:
            hook_error = error.__cause__
            if hook_error is None:
                raise
        if hook_error is not None:
            # The error of a Python hook. Not raised in the except block, which
            # would replace its context.
            raise hook_error
        succeeded = True
    finally:
        # Its traceback refers to this frame: do not leave a cycle.
        hook_error = None
        _passes.depth -= 1
        if _passes.depth == 0:
            _call_functions(succeeded)


def _call_functions(succeeded: bool) -> None:
    functions, _passes.functions = _passes.functions, []
    first_error = None
    for function in functions:
        try:
            function(succeeded)
        except BaseException as error:
            first_error = first_error or error
    if succeeded and first_error is not None:
        raise first_error
