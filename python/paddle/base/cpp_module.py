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
"""Finds optional C++ parts of Python modules."""

from __future__ import annotations

import functools
import importlib
from importlib.util import find_spec
from typing import TYPE_CHECKING

from . import libpaddle

if TYPE_CHECKING:
    from types import ModuleType


@functools.cache
def find_cpp_module(name: str) -> ModuleType | None:
    """
    Returns the submodule `name` of libpaddle, else the module `name` of this
    package, else None.
    """
    if hasattr(libpaddle, name):
        return getattr(libpaddle, name)
    module = f"{__package__}.{name}"
    try:
        return importlib.import_module(module)
    except ImportError:
        # A module that exists but cannot be loaded is an error.
        if find_spec(module) is not None:
            raise
        return None
