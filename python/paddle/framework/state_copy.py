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
"""Copies of states, for `paddle.async_save`."""

from __future__ import annotations

import copy
from typing import Any

from paddle.base import core

__all__ = []


def _copy_tensor(tensor: core.eager.Tensor) -> core.eager.Tensor:
    if not tensor._is_initialized():
        # paddle.save reports it, unless the tensor has no elements.
        return tensor
    place = tensor.place
    if place.is_gpu_place():
        return tensor.pin_memory()
    if not tensor.is_dense():
        # Sparse tensors cannot be copied this way, nor saved.
        return tensor
    if place.is_custom_place() and core.is_compiled_with_custom_device("npu"):
        # paddle.save converts it from the NPU's own format first.
        return tensor
    # Not Tensor.cpu, which returns a tensor on the CPU itself.
    return tensor._copy_to(core.CPUPlace(), True)


def copy_state(
    state: dict[Any, Any] | core.eager.Tensor,
) -> dict[Any, Any] | core.eager.Tensor:
    """
    Returns a copy of `state` which later changes of its tensors, dictionaries,
    lists and tuples do not affect. `paddle.save` saves the same for both:
    tensors keep their names, and what occurs twice is copied once. Other
    values, such as arrays of NumPy, and tensors on NPUs are not copied.
    Thread-safe if no other thread changes `state` during the call.

    Args:
        state (dict|Tensor): a tensor, or a dictionary of tensors, dictionaries,
            lists, tuples and other values.
    """
    return _copy_value(state, {})


def _copy_value(value: Any, copied: dict[int, tuple[Any, Any]]) -> Any:
    # `copied` keeps the originals, too, so that no other object gets their ids.
    if id(value) in copied:
        return copied[id(value)][1]
    if isinstance(value, core.eager.Tensor):
        result = _copy_tensor(value)
    elif isinstance(value, (dict, list)):
        # Keeps its type, and comes first: it may contain itself.
        result = copy.copy(value)
        copied[id(value)] = value, result
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            result[key] = _copy_value(item, copied)
    elif isinstance(value, tuple):
        items = [_copy_value(item, copied) for item in value]
        # A named tuple takes its items one by one.
        make = getattr(type(value), "_make", type(value))
        result = make(items)
    else:
        return value
    copied[id(value)] = value, result
    return result
