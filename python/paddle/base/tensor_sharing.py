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
"""Moves tensors and layers into shared memory."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Callable

from . import core
from .dygraph.base import no_grad
from .framework import EagerParamBase
from .shared_storage import is_in_use, native

if TYPE_CHECKING:
    from paddle import Tensor
    from paddle.nn import Layer
    from paddle.nn.initializer import Initializer

__all__ = []


@no_grad
def dense_parts(tensor: Tensor) -> list[Tensor]:
    """
    Returns the dense tensors that make up a tensor, without a copy: the indices
    and values of a sparse tensor, the values of selected rows, or the tensor
    itself.
    """
    if tensor.is_sparse_coo():
        return [tensor.indices(), tensor.values()]
    if tensor.is_sparse_csr():
        return [tensor.crows(), tensor.cols(), tensor.values()]
    if tensor.is_selected_rows():
        values = tensor.get_selected_rows().get_tensor()
        return [core.eager.Tensor(values, values._place())]
    return [tensor]


def is_uninitialized(tensor: Tensor) -> bool:
    """Returns whether a tensor's shape has elements but it has no memory."""
    return tensor.size > 0 and not tensor._is_initialized()


def check_initialized(tensor: Tensor) -> None:
    """Raises RuntimeError if a parameter has not been initialized yet."""
    if is_uninitialized(tensor) and isinstance(tensor, EagerParamBase):
        raise RuntimeError(
            f"The parameter {tensor.name!r} must be initialized before other "
            "processes can receive it, but has no values yet. Call its "
            "initialize() first."
        )


def _check_can_be_shared(tensor: Tensor) -> None:
    place = tensor.place
    if place.is_custom_place() or place.is_xpu_place():
        raise NotImplementedError(
            "The memory of a shared tensor must be on the CPU or on a GPU, but "
            f"received a tensor on {place}. Send a copy instead: "
            "paddle.incubate.multiprocessing.by_value(tensor)."
        )
    check_initialized(tensor)


def _move(tensor: Tensor) -> None:
    for part in dense_parts(tensor):
        if not (part.place.is_gpu_place() or is_uninitialized(part)):
            # Trimming costs time, and most other tensors are dropped soon.
            native.move(part, isinstance(tensor, EagerParamBase))


def _is_shared(part: Tensor) -> bool:
    if part.size == 0 or part.place.is_gpu_place():
        return True
    return is_in_use() and native.is_shared(part)


def initializes_in_place(call: Callable[..., Any]) -> Callable[..., Any]:
    """
    Decorates `Initializer.__call__`, which writes to a parameter's memory or
    replaces it. For a shared parameter, the initializer gets a copy of the
    memory. If it succeeds, its values are copied into the shared memory, where
    other processes see them. If it raises, or its values have another shape,
    the shared memory does not change.
    """

    @functools.wraps(call)
    def call_in_place(
        self: Initializer, param: Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        if not _is_initialized_and_shared(param):
            return call(self, param, *args, **kwargs)
        # The result of detach() would change together with the tensor.
        shared = _alias(param)
        copied = shared._copy_to(shared.place, True)
        copied._share_underline_tensor_to(param)
        try:
            result = call(self, param, *args, **kwargs)
            filled = _alias(param)
        finally:
            shared._share_underline_tensor_to(param)
        if filled.shape != shared.shape:
            raise ValueError(
                f"The values for {param.name!r} must have shape "
                f"{list(shared.shape)}, because other processes share its "
                f"memory, but received shape {list(filled.shape)}. Create a "
                "new parameter of that shape, and send it."
            )
        # Some initializers produce another data type.
        shared.copy_(filled.astype(shared.dtype), True)
        return result

    return call_in_place


def _is_initialized_and_shared(param: Any) -> bool:
    return (
        isinstance(param, core.eager.Tensor)
        and param.is_dense()
        and param._is_initialized()
        and is_in_use()
        and _is_shared(param)
    )


def _alias(tensor: Tensor) -> Tensor:
    inside = tensor.get_tensor()
    return core.eager.Tensor(inside, inside._place())


def share_memory_(self: Tensor) -> Tensor:
    """
    Moves the storage of this tensor into shared memory, as sending it does. Its
    base and views have the same storage and move too. Processes that are forked
    afterwards share the memory; other processes share it when they receive the
    tensor.

    A tensor that is already shared is not moved again. A GPU tensor is not
    moved, because its memory can always be shared. The gradient is not moved.
    No other thread may use the tensor during the call. The method follows
    torch's.

    Returns:
        Tensor: this tensor.

    Raises:
        MemoryError: there is not enough shared memory.
        NotImplementedError: the tensor is on a device whose memory cannot be
            shared, or this Paddle was built without shared memory.
        RuntimeError: the tensor is a parameter without values.
        ValueError: the memory belongs to another library, such as NumPy.

    Examples:
        .. code-block:: python

            >>> import paddle
            >>> x = paddle.zeros([2, 3]).cpu()
            >>> row = x[1]
            >>> print(x.share_memory_() is x)
            True
            >>> print(row.is_shared())
            True
    """
    for part in dense_parts(self):
        _check_can_be_shared(part)
    _move(self)
    return self


def is_shared(self: Tensor) -> bool:
    """
    Returns whether the memory of this tensor can be shared as it is: it was
    moved by `share_memory_()`, sent or received, or it is on a GPU. A sparse
    tensor is shared if all its parts are.

    Returns:
        bool: whether the tensor is shared; True for a tensor without elements.

    Examples:
        .. code-block:: python

            >>> import paddle
            >>> x = paddle.zeros([2, 3]).cpu()
            >>> print(x.is_shared(), x.share_memory_().is_shared())
            False True
    """
    if self.is_dist():
        return False
    return all(_is_shared(part) for part in dense_parts(self))


def share_memory(self: Layer) -> Layer:
    """
    Moves the parameters and buffers of this layer and of its sublayers into
    shared memory, see `Tensor.share_memory_`. Tied tensors stay tied.

    Processes that are forked afterwards, or receive the layer, have the same
    parameters: each process sees the others' writes, for example from an
    optimizer. Gradients are not moved: each process has its own. The method
    follows torch's.

    Returns:
        Layer: this layer.

    Raises:
        MemoryError: there is not enough shared memory. Some tensors may have
            been moved; all keep their values.
        NotImplementedError: a tensor is on a device whose memory cannot be
            shared. No tensor has been moved.
        RuntimeError: a parameter has no values. No tensor has been moved.
        ValueError: the memory of a tensor belongs to another library, such as
            NumPy. Tensors before it may have been moved; all keep their values.

    Examples:
        .. code-block:: python

            >>> import paddle
            >>> _ = paddle.set_device('cpu')
            >>> layer = paddle.nn.Linear(4, 2).share_memory()
            >>> print(layer.weight.is_shared())
            True
    """
    tensors = [*self.parameters(), *self.buffers()]
    for tensor in tensors:
        for part in dense_parts(tensor):
            _check_can_be_shared(part)
    for tensor in tensors:
        _move(tensor)
    return self
