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
"""`multiprocessing`'s submodules as submodules of Paddle's, by both its names.

`paddle.multiprocessing` is `paddle.incubate.multiprocessing`. Python imports a
submodule once for each name that it is asked for; here, each is one module.
"""

from __future__ import annotations

import importlib
import importlib.util
import multiprocessing
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_NAME = "paddle.incubate.multiprocessing"
_SHORT_NAME = "paddle.multiprocessing"
_STANDARD = "multiprocessing"


def __getattr__(name: str) -> Any:
    """
    Returns what `multiprocessing` has and does not export: its submodules,
    imported or not, and a few names.
    """
    if not name.startswith("_"):
        if hasattr(multiprocessing, name):
            return getattr(multiprocessing, name)
        submodule = f"{_STANDARD}.{name}"
        if importlib.util.find_spec(submodule) is not None:
            return importlib.import_module(submodule)
    raise AttributeError(f"module {_NAME!r} has no attribute {name!r}")


# Of modules that have an alias, by their names.
_specs: dict[str, ModuleSpec] = {}


class _Alias(Loader):
    def __init__(self, name: str):
        self._name = name

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        # Here, not in exec_module: other threads may take what is returned from
        # sys.modules before it is executed.
        module = importlib.import_module(self._name)
        # Another alias may be between here and exec_module.
        _specs.setdefault(self._name, module.__spec__)
        return module

    def exec_module(self, module: ModuleType) -> None:
        # Python has put that of the alias in its place.
        module.__spec__ = _specs[self._name]


class _Submodules(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: object = None, target: object = None
    ) -> ModuleSpec | None:
        for package in (_SHORT_NAME, _NAME):
            if fullname.startswith(f"{package}."):
                name = _real_name(fullname[len(package) + 1 :])
                if name not in (None, fullname):
                    return importlib.util.spec_from_loader(
                        fullname, _Alias(name)
                    )
        return None


def _real_name(submodule: str) -> str | None:
    first = f"{_NAME}.{submodule.partition('.')[0]}"
    if PathFinder.find_spec(first, sys.modules[_NAME].__path__) is not None:
        return f"{_NAME}.{submodule}"
    name = f"{_STANDARD}.{submodule}"
    return None if importlib.util.find_spec(name) is None else name


def add_short_name() -> None:
    """Makes `paddle.multiprocessing`, which is being imported, this module."""
    package = sys.modules[_NAME]
    sys.modules[_SHORT_NAME] = package
    # Not by the finder: then `spawn`, the module, would hide the function.
    for name, module in list(sys.modules.items()):
        if name.startswith(f"{_NAME}."):
            sys.modules[_SHORT_NAME + name[len(_NAME) :]] = module


sys.meta_path.insert(0, _Submodules())
