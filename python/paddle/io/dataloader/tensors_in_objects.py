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
"""Tensors that a batch has outside of lists, tuples and dictionaries."""

from __future__ import annotations

import numbers
import types
from typing import TYPE_CHECKING, Any

import numpy as np

import paddle

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paddle import Tensor

__all__ = []

# Objects without attributes of their own, or with attributes that belong to
# more than a batch.
_LEAVES = (
    np.ndarray,
    numbers.Number,
    str,
    bytes,
    type,
    types.BuiltinFunctionType,
    types.FunctionType,
    types.MethodType,
    types.ModuleType,
    type(None),
)


def tensors_in_objects(structure: Any) -> Iterator[tuple[Tensor, object]]:
    """
    Finds the tensors that `_flatten_batch` does not: those in attributes of
    other objects, and in sets. The objects of a batch that are datasets or
    layers are not searched.

    Args:
        structure: the structure that `_flatten_batch` returns, which has the
            other objects of the batch.

    Yields:
        Each tensor, and the object or set that contains it.
    """
    # Their attributes belong to more than a batch, and may be many. They are
    # not defined yet when this file is imported.
    leaves = (*_LEAVES, paddle.io.Dataset, paddle.nn.Layer)
    seen = set()
    stack = [(structure, structure)]
    while stack:
        part, owner = stack.pop()
        if isinstance(part, leaves) or id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, paddle.Tensor):
            yield part, owner
        elif isinstance(part, dict):
            stack += [(value, owner) for value in part.values()]
        elif isinstance(part, (list, tuple)):
            stack += [(value, owner) for value in part]
        elif isinstance(part, (set, frozenset)):
            stack += [(value, part) for value in part]
        else:
            stack += [(value, part) for value in _attributes(part)]


def _attributes(value: object) -> list[Any]:
    found = [*getattr(value, "__dict__", {}).values()]
    for kind in type(value).__mro__:
        names = kind.__dict__.get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            if hasattr(value, name):
                found.append(getattr(value, name))
    return found
