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

A hook of a gradient is called inside of the pass. Whatever it raises there
reaches the caller as SystemError, after other hooks were run with the error
pending. A hook that may fail, or that has to see the end of the pass, calls
``at_end_of_backward`` instead.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from paddle.base import core

if TYPE_CHECKING:
    from collections.abc import Callable


class _Passes(threading.local):
    """The backward passes that the calling thread is in, each in the last."""

    depth = 0

    def __init__(self):
        self.functions: list[Callable[[bool], None]] = []


_passes = _Passes()


def at_end_of_backward(function: Callable[[bool], None]) -> None:
    """Calls `function` once, when the outermost backward pass has ended.

    It gets whether the pass succeeded. What it raises, if the pass succeeded,
    is raised by `backward()`.
    """
    _passes.functions.append(function)


def run_backward(*arguments) -> None:
    """Runs a backward pass, then the functions that wait for its end."""
    _passes.depth += 1
    succeeded = False
    try:
        core.eager.run_backward(*arguments)
        succeeded = True
    except SystemError as error:
        if error.__cause__ is None:
            raise
        # A hook that is a Python function has raised this.
        raise error.__cause__ from None
    finally:
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
