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
"""Makes the bindings of a wheel attributes of libpaddle, as in a source build.

A source build compiles the bindings into libpaddle. A wheel that is made from
the official one has each as a module beside it: an extension module, or one of
tools/without_native_parts. `tools/wheel.py` adds this file to such a wheel.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import weakref
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NoReturn

from . import libpaddle

if TYPE_CHECKING:
    from types import ModuleType

    import paddle

# The bindings that this wheel has, found before any is imported: find_spec
# fails for a module that another thread is importing. Without
# _predictor_threads, which the first predictor loads.
_NAMES = frozenset(
    name
    for name in (
        "_process_group_shm",
        "_program_threads",
        "_shared_storage",
        "_thread_contexts",
        "_thread_value",
    )
    if find_spec(f"{__package__}.{name}")
)
# Those whose import has begun, and has not failed, once for each thread.
_begun: list[str] = []
# What _UnloadedSharedStorage keeps alive, by a reference to the user.
_kept: dict[weakref.ref, paddle.Tensor] = {}


class _UnloadedSharedStorage:
    """
    Stands in for the binding of shared memory while its module cannot be
    loaded: no file descriptor is free, the process can no longer read the file
    because it has changed its user or root folder, or the interpreter is
    exiting.

    In a source build, `get_tensor` needs nothing that could fail then, so
    `keep_alive` works here. The other functions raise an OSError, as they do
    without a free descriptor in a source build.
    """

    def __init__(self, error: Exception):
        self._error = error

    def __getattr__(self, name: str) -> NoReturn:
        raise OSError(
            f"Cannot load the module {__package__}._shared_storage: "
            f"{self._error}. Free file descriptors, or call "
            "Tensor.share_memory_() once before this process changes its user "
            "or root folder."
        ) from self._error

    @staticmethod
    def keep_alive(dense: Any, tensor: paddle.Tensor) -> None:
        # Others have nothing inside that could be freed.
        if not (tensor.is_dense() or tensor.is_dist()):
            return
        kept = tensor
        if tensor._is_initialized():
            # `tensor` may get another implementation, so keep this one in a new
            # Tensor. Without __init__, which needs dynamic mode and NumPy.
            kept = libpaddle.eager.Tensor.__new__(libpaddle.eager.Tensor)
            tensor._share_underline_tensor_to(kept)
        _kept[weakref.ref(dense, _kept.pop)] = kept


def _import_binding(name: str) -> ModuleType | _UnloadedSharedStorage:
    """
    Imports a binding when code first reads it from libpaddle, so that an import
    of Paddle loads only what it uses. Thread-safe.

    Raises:
        AttributeError: there is no such binding.
        ImportError, OSError: its module cannot be loaded.
    """
    if name not in _NAMES:
        raise AttributeError(
            f"module {libpaddle.__name__!r} has no attribute {name!r}"
        )
    _begun.append(name)
    try:
        binding = importlib.import_module(f"{__package__}.{name}")
    except (ImportError, OSError) as error:
        _begun.remove(name)
        if name != "_shared_storage":
            raise
        # Not kept: a later import may succeed.
        return _UnloadedSharedStorage(error)
    setattr(libpaddle, name, binding)
    return binding


def _finish_imports() -> None:
    # A child must not inherit the import lock of a thread that it lacks.
    for name in set(_begun):
        # The thread that imports the module gets the error.
        with contextlib.suppress(ImportError, OSError):
            importlib.import_module(f"{__package__}.{name}")


libpaddle.__getattr__ = _import_binding
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_finish_imports)
