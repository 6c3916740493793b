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
"""Operator lists of auto_cast per thread, from the first use of auto_cast on.

A source build has them per thread in C++. `tools/wheel.py` adds this file to a
wheel made from the official one.
"""

from __future__ import annotations

import functools
import importlib
from importlib.util import find_spec
from typing import Any, Callable

from . import libpaddle


@functools.lru_cache(None)
def _redirect() -> None:
    importlib.import_module(f"{__package__}._amp_lists")


def _after_redirection(set_lists: Callable[..., None]) -> Callable[..., None]:
    """Decorates a function that sets the lists. No list is set before."""

    @functools.wraps(set_lists)
    def wrapped(*args: Any) -> None:
        _redirect()
        set_lists(*args)

    return wrapped


# A Python-only wheel does not have it.
if find_spec(f"{__package__}._amp_lists"):
    for owner in (libpaddle, libpaddle.Tracer):
        owner._set_amp_op_list = _after_redirection(owner._set_amp_op_list)
