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

They are our own names and the submodules of Python's `multiprocessing`. Loading
them lazily keeps `import paddle` fast.
"""

from __future__ import annotations

import importlib
import importlib.util
import multiprocessing
import sys
from typing import Any

from paddle.base.fork_preload import load_before_fork

_NAME = "paddle.incubate.multiprocessing"

# The module of each of our names. No module may be called like one of the
# functions, because importing the module would replace the function.
_MODULES = {
    "BatchSource": "batch_source",
    "BlockingQueue": "blocking_queue",
    "InterruptibleEvent": "interruptible",
    "InterruptibleLock": "interruptible",
    "Pool": "pools",
    "Prefetcher": "prefetcher",
    "ProcessContext": "processes",
    "ProcessException": "processes",
    "ProcessExitedException": "processes",
    "ProcessRaisedException": "processes",
    "ShutDown": "blocking_queue",
    "ThreadGroup": "thread_group",
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
    "spawn": "processes",
    "start_processes": "processes",
    "start_threads": "thread_group",
    "wait_for_key": "interruptible",
    "wait_for_result": "interruptible",
}
# The names that the package exports.
PUBLIC_NAMES = list(_MODULES)


def __getattr__(name: str) -> Any:
    """
    Returns one of our names, or an attribute that `multiprocessing` has but
    does not export, such as a submodule, which need not be imported yet.
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
        submodule = f"multiprocessing.{name}"
        if importlib.util.find_spec(submodule) is not None:
            try:
                return importlib.import_module(submodule)
            except ImportError as error:
                # For example, it is for Windows only.
                raise AttributeError(
                    f"module {_NAME!r} cannot import its attribute {name!r}: "
                    f"{error}"
                ) from error
    raise AttributeError(f"module {_NAME!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    names = {*vars(sys.modules[_NAME]), *_MODULES, *dir(multiprocessing)}
    return sorted(names)


load_before_fork(*(f"{_NAME}.{module}" for module in _MODULES.values()))
