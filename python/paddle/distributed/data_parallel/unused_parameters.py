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
"""Finds the parameters that a backward pass will reach."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from paddle.base import core

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from paddle import Tensor


def find_tensors(value: object) -> Iterator[Tensor]:
    """Yields the tensors in nested lists, tuples, dicts and dataclasses."""
    values = [value]
    # Values may contain themselves. Keeping the values keeps their ids unique.
    seen: dict[int, object] = {}
    while values:
        value = values.pop()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        if isinstance(value, core.eager.Tensor):
            yield value
        else:
            values.extend(reversed(_items(value)))


def _items(value: object) -> list:
    """Returns what a list, a tuple, a dict or a dataclass object contains."""
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, (list, tuple)):
        return list(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        # An object with slots has no `__dict__`, and a field may not be set.
        items = [getattr(value, name, None) for name in names]
        return items + list(getattr(value, "__dict__", {}).values())
    return []


def find_unused(
    parameters: Sequence[Tensor], outputs: Sequence[Tensor]
) -> list[int]:
    """Returns the indices of the parameters that no output depends on."""
    nodes = [output.grad_fn for output in outputs if not output.stop_gradient]
    seen = set()
    while nodes:
        node = nodes.pop()
        if node is not None and node.node_ptr() not in seen:
            seen.add(node.node_ptr())
            nodes.extend(node.next_functions)
    return [
        index
        for index, parameter in enumerate(parameters)
        if parameter.grad_fn.node_ptr() not in seen
    ]
