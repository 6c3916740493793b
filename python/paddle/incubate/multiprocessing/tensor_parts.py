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
"""Takes parameters, subclasses and sparse tensors apart, and rebuilds them."""

from __future__ import annotations

import functools
from typing import Any, Callable

import paddle
from paddle.base import core
from paddle.base.framework import (
    EagerParamBase,
    _dygraph_guard,
    in_dygraph_mode,
)
from paddle.base.shared_storage import native
from paddle.base.tensor_sharing import dense_parts


def in_dynamic_mode(function: Callable[..., Any]) -> Callable[..., Any]:
    """
    Decorates a function that makes tensors by operators, so that threads in
    static graph mode may call it.
    """

    @functools.wraps(function)
    def function_in_dynamic_mode(*args: Any) -> Any:
        if in_dygraph_mode():
            return function(*args)
        with _dygraph_guard(core.Tracer()):
            return function(*args)

    return function_in_dynamic_mode


@in_dynamic_mode
def parameter_over(
    data: paddle.Tensor, attributes: dict[str, Any]
) -> EagerParamBase:
    """Returns a parameter over the memory of a dense tensor."""
    # The constructor needs some shape and type; those of the data replace them.
    parameter = EagerParamBase([1], paddle.float32, **attributes)
    parameter._set_impl(data)
    parameter.__dict__.update(attributes)
    return parameter


def subclass_over(
    kind: type[paddle.Tensor], data: paddle.Tensor, state: dict[str, Any]
) -> paddle.Tensor:
    """
    Returns a tensor of a user's class over the memory of a dense tensor. Like
    pickle, it does not call `__init__`.
    """
    tensor = kind.__new__(kind)
    tensor._set_impl(data)
    tensor.__dict__.update(state)
    tensor.persistable = issubclass(kind, EagerParamBase)
    return tensor


@in_dynamic_mode
def split_into_parts(
    tensor: paddle.Tensor,
) -> tuple[list[paddle.Tensor], str, tuple, bool]:
    """Returns the arguments with which `rebuild_from_parts` makes it."""
    if tensor.is_sparse_coo():
        kind, rest = "coo", (list(tensor.shape), tensor.is_coalesced())
    elif tensor.is_sparse_csr():
        kind, rest = "csr", (list(tensor.shape),)
    elif tensor.is_selected_rows():
        rows = tensor.get_selected_rows()
        kind, rest = "rows", (rows.rows(), rows.height())
    else:
        raise NotImplementedError(
            "A tensor that is sent to another process must be dense, sparse or "
            f"selected rows, but {tensor.name!r} is of another kind. Send the "
            "dense tensors that it consists of."
        )
    return dense_parts(tensor), kind, rest, tensor.stop_gradient


@in_dynamic_mode
def rebuild_from_parts(
    parts: list[paddle.Tensor], kind: str, rest: tuple, stop_gradient: bool
) -> paddle.Tensor:
    """Returns the tensor that was split, over the memory of its parts.

    Raises:
        ValueError: the shapes of the parts do not fit together.
    """
    if not _fit([list(part.shape) for part in parts], kind, rest):
        raise ValueError(
            "The parts of a tensor that is received must fit each other, but "
            f"received {kind!r}, {rest} and parts of the shapes "
            f"{[list(part.shape) for part in parts]}. The message was damaged, "
            "or made by another version of Paddle."
        )
    if kind == "coo":
        shape, coalesced = rest
        tensor = core.eager.sparse_coo_tensor(*parts, shape, True)
        native.set_coalesced(tensor, coalesced)
    elif kind == "csr":
        tensor = core.eager.sparse_csr_tensor(*parts, *rest, True)
    else:
        tensor = _selected_rows(*rest, *parts)
    tensor.stop_gradient = stop_gradient
    return tensor


def _fit(shapes: list[list[int]], kind: str, rest: tuple) -> bool:
    if kind == "coo":
        indices, values = shapes
        return (
            len(indices) == 2
            and len(values) > 0
            and indices[1] == values[0]
            and len(rest[0]) == indices[0] + len(values) - 1
            and rest[0][indices[0] :] == values[1:]
        )
    if kind == "csr":
        crows, cols, values = shapes
        return len(crows) == len(cols) == 1 and cols == values
    (values,) = shapes
    return len(values) > 0 and len(rest[0]) == values[0]


def _selected_rows(
    rows: list[int], height: int, values: paddle.Tensor
) -> paddle.Tensor:
    types = core.VarDesc.VarType
    name = paddle.utils.unique_name.generate("received_rows")
    tensor = core.eager.Tensor(types.FP32, [], name, types.SELECTED_ROWS, False)
    inside = tensor.get_selected_rows()
    inside.set_rows(rows)
    inside.set_height(height)
    # This replaces the data type too.
    inside.get_tensor()._share_data_with(values.get_tensor())
    return tensor
