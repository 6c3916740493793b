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
"""Loads the names of `paddle.multiprocessing` when they are first used.

These are our own names and the submodules of Python's `multiprocessing`, which
`import paddle` should not pay for. `__getattr__` serves attributes. A finder,
which Python asks only about submodules of this package, serves imports.

`paddle.multiprocessing` and `paddle.incubate.multiprocessing` are one module.
Python would import a submodule once per name; the finder prevents that.
"""

from __future__ import annotations

import importlib
import importlib.util
import multiprocessing
import pkgutil
import sys
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Any

from paddle.base.lazy_modules import load_before_fork

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_NAME = "paddle.incubate.multiprocessing"
_SHORT_NAME = "paddle.multiprocessing"
_STANDARD = "multiprocessing"

# The module of each name of ours. `spawn` and its companions are imported at
# once: a later import of the module `spawn` would replace the function.
_MODULES = {
    "Pool": "pools",
    "Prefetcher": "prefetcher",
    "WorkerThread": "worker_thread",
    "by_value": "tensor_reductions",
    "collect_shared_memory": "shared_memory_settings",
    "empty_shared": "shared_allocator",
    "get_all_sharing_strategies": "shared_memory_settings",
    "get_context": "pools",
    "get_shared_memory_limit": "shared_memory_settings",
    "get_sharing_strategy": "shared_memory_settings",
    "ipc_memory_stats": "shared_memory_settings",
    "ipc_memory_summary": "shared_memory_settings",
    "set_shared_memory_limit": "shared_memory_settings",
    "set_sharing_strategy": "shared_memory_settings",
    "shared_allocation": "shared_allocator",
    "shared_memory_stats": "shared_memory_settings",
    "shared_memory_summary": "shared_memory_settings",
}


def __getattr__(name: str) -> Any:
    """
    Returns one of our names, or an attribute of `multiprocessing` that it does
    not export: a submodule, imported or not, or one of a few others.
    """
    if name in _MODULES:
        module = importlib.import_module(f"{_NAME}.{_MODULES[name]}")
        value = getattr(module, name)
        # From now on, attribute lookup does not reach this function.
        setattr(sys.modules[_NAME], name, value)
        return value
    if name.isidentifier() and not name.startswith("_"):
        if hasattr(multiprocessing, name):
            return getattr(multiprocessing, name)
        submodule = f"{_STANDARD}.{name}"
        if importlib.util.find_spec(submodule) is not None:
            return importlib.import_module(submodule)
    raise AttributeError(f"module {_NAME!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    names = {*vars(sys.modules[_NAME]), *_MODULES, *dir(multiprocessing)}
    return sorted(names)


# The spec of each module that has an alias, by the module's name.
_specs: dict[str, ModuleSpec] = {}


class _Alias:
    """Makes a module known by another name."""

    def __init__(self, name: str):
        self._name = name

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        # Here, not in exec_module: another thread may take the module from
        # sys.modules before exec_module runs.
        module = importlib.import_module(self._name)
        # Another thread may be between here and exec_module.
        _specs.setdefault(self._name, module.__spec__)
        for inner in pkgutil.iter_modules(getattr(module, "__path__", ())):
            # Python does not ask the finder about modules of a subpackage.
            sys.modules[f"{spec.name}.{inner.name}"] = importlib.import_module(
                f"{self._name}.{inner.name}"
            )
        return module

    def exec_module(self, module: ModuleType) -> None:
        # Python has replaced the spec by that of the alias.
        module.__spec__ = _specs[self._name]


class _Finder:
    """Finds submodules whose real name differs from the given one."""

    # An entry of __path__ by which Python finds the finder, and not a file.
    PATH = __file__ + "/submodules"

    def find_spec(
        self, fullname: str, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, submodule = fullname.rpartition(".")
        name = f"{_NAME}.{submodule}"
        folder = sys.modules[_NAME].__path__[1:]
        if PathFinder.find_spec(name, folder) is None:
            name = f"{_STANDARD}.{submodule}"
            if importlib.util.find_spec(name) is None:
                return None
        elif package == _NAME:
            return None
        return importlib.util.spec_from_loader(fullname, _Alias(name))


def add_finder(path: list[str]) -> None:
    """Adds the finder to the `__path__` of the package, in first place."""
    load_before_fork(*(f"{_NAME}.{module}" for module in _MODULES.values()))
    path.insert(0, _Finder.PATH)
    sys.path_importer_cache[_Finder.PATH] = _Finder()


def add_short_name() -> None:
    """Makes `paddle.multiprocessing`, which calls this, the package itself."""
    package = sys.modules[_NAME]
    sys.modules[_SHORT_NAME] = package
    # An import by the finder would replace the function by this module.
    sys.modules[f"{_SHORT_NAME}.spawn"] = sys.modules[f"{_NAME}.spawn"]
