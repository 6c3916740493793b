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
"""Distinct names for unnamed tensors of threads that have their own devices.

The tracer that creates an unnamed tensor numbers it. A thread with its own
device has its own tracer, so its tensors may get the same names as the main
thread's tensors. Code that looks up tensors by name calls this module; most of
Paddle does not look up names.
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
    Renames `tensor` if one of `others` has the same name.

    Parameters keep their names, which are unique over all threads. Nothing is
    renamed until a thread sets its own device.

    Raises:
        ValueError: `tensor` must be renamed but is trainable: an optimizer may
            have stored its state under the present name.
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
            f"Two tensors that are used together are both named {name!r}. "
            "Threads with different devices may give unnamed tensors the same "
            "name: set the `name` of one of them."
        )
    tensor.name = unique_name.generate(name)


def keep_parameters_apart(parameters: list[Tensor | dict]) -> None:
    """
    Calls `keep_apart` for each tensor of an optimizer's parameter list. It
    skips parameter groups, which are dicts and contain only parameters.
    """
    seen = []
    for param in parameters:
        if not isinstance(param, dict):
            keep_apart(param, seen)
            seen.append(param)
