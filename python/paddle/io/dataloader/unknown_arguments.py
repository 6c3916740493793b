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
"""Errors for arguments that DataLoader lacks, with alternatives."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Callable

from typing_extensions import ParamSpec

if TYPE_CHECKING:
    from collections.abc import Iterable

_InputT = ParamSpec("_InputT")

# Alternatives to arguments of torch's DataLoader, for ported programs.
_INSTEAD = {
    "generator": "Call numpy.random.seed(...): the samplers use numpy.random.",
    "multiprocessing_context": "Workers use the process's start method: call "
    "multiprocessing.set_start_method(...).",
    "pin_memory": "Leave it out: use_buffer_reader, which is on by default, "
    "prefetches batches to the GPU.",
    "sampler": "Pass batch_sampler=paddle.io.BatchSampler(sampler=..., "
    "batch_size=...).",
}


def reject_unknown_arguments(
    init: Callable[_InputT, None],
) -> Callable[_InputT, None]:
    """
    Decorates `DataLoader.__init__`, whose signature it keeps: unknown keyword
    arguments raise TypeError, which suggests alternatives.
    """
    own = frozenset(inspect.signature(init).parameters)

    @functools.wraps(init)
    def checked_init(*args: _InputT.args, **arguments: _InputT.kwargs) -> None:
        others = arguments.keys() - own
        if others:
            raise TypeError(_refusal(others))
        init(*args, **arguments)

    return checked_init


def _refusal(names: Iterable[str]) -> str:
    names = sorted(names)
    known = [f"{name}: {_INSTEAD[name]}" for name in names if name in _INSTEAD]
    help_on_all = "help(paddle.io.DataLoader) lists all arguments."
    return (
        f"DataLoader() has no argument {', '.join(map(repr, names))}. "
        + " ".join([*known, help_on_all])
    )
