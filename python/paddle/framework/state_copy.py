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
    Returns a copy of `state` which later changes of its tensors, dictionaries
    and lists do not affect. `paddle.save` saves the same for both: tensors keep
    their names, and a tensor that occurs twice is copied once. Thread-safe if
    no other thread changes `state` during the call.

    Args:
        state (dict|Tensor): a tensor, or a dictionary of tensors, dictionaries,
            lists, tuples and other values. The other values are not copied.
    """
    # Keeps the originals too, so that no other object gets their ids.
    copied = {}

    def copy_value(value: Any) -> Any:
        if isinstance(value, dict):
            # Keeps the type of the dictionary.
            result = copy.copy(value)
            for key, item in value.items():
                result[key] = copy_value(item)
            return result
        if type(value) in (list, tuple):
            return type(value)(copy_value(item) for item in value)
        if isinstance(value, core.eager.Tensor):
            if id(value) not in copied:
                copied[id(value)] = (value, _copy_tensor(value))
            return copied[id(value)][1]
        return value

    return copy_value(state)
