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
"""Unnamed tensors of threads with devices of their own are kept apart.

A tensor that nobody names gets a number from the tracer that makes it. A thread
with a device of its own has another tracer than the main thread, so two tensors
may have one name. Most of Paddle never looks a name up; what does, calls this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import framework, unique_name
from .threads import devices

if TYPE_CHECKING:
    from collections.abc import Iterable

    from paddle import Tensor

__all__ = []


def keep_apart(tensor: Tensor, others: Iterable[Tensor]) -> None:
    """
    Gives `tensor` another name when one of `others` has its name.

    Parameters have names that are unique over all threads, and are left alone,
    as is everything while no thread has ever set a device of its own.

    Raises:
        ValueError: `tensor` would be renamed but is trainable, so that an
            optimizer may keep its state by the name that it has.
    """
    if not devices.current_place.any_thread_has_set:
        return
    if isinstance(tensor, framework.EagerParamBase):
        return
    name = tensor.name
    if all(other is tensor or other.name != name for other in others):
        return
    if not tensor.stop_gradient:
        raise ValueError(
            f"Two tensors that are used together are named {name!r}. Tensors "
            "that threads with different devices make, and nobody names, may "
            "get one name. Please set `name` of one of them."
        )
    tensor.name = unique_name.generate(name)


def keep_parameters_apart(parameters: list[Tensor | dict]) -> None:
    """
    Calls `keep_apart` for the tensors that an optimizer is given. Groups, which
    are dicts, hold parameters alone.
    """
    seen = []
    for param in parameters:
        if not isinstance(param, dict):
            keep_apart(param, seen)
            seen.append(param)
