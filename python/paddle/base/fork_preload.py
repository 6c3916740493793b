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
"""Modules that are loaded at first use, or before the first fork.

A fork during an import leaves the import lock held in the child, where no
thread ever releases it: the child hangs when it needs the module.
"""

from __future__ import annotations

import contextlib
import importlib
import os

_names: set[str] = set()


def load_before_fork(*names: str) -> None:
    """
    Registers modules to be loaded before the first fork of this process.
    Thread-safe.
    """
    _names.update(names)


def _load() -> None:
    for name in tuple(_names):
        # An import may fail, for example because too many files are open.
        with contextlib.suppress(ImportError, OSError):
            importlib.import_module(name)
            _names.discard(name)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_load)
