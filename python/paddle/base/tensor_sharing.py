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
"""Tensors and layers in memory that other processes can see."""

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
    Returns the dense tensors that a tensor is made of, over the same memory:
    the indices and values of a sparse one, the values of selected rows, or the
    tensor itself.
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
    """Returns whether a tensor should have elements, and has no memory."""
    return tensor.size > 0 and not tensor._is_initialized()


def check_initialized(tensor: Tensor) -> None:
    """Raises RuntimeError for a parameter that will get its values later."""
    if is_uninitialized(tensor) and isinstance(tensor, EagerParamBase):
        raise RuntimeError(
            f"The parameter {tensor.name!r} must be initialized before other "
            "processes can have it, but has no values yet. Call its "
            "initialize() first."
        )


def _check_can_be_shared(tensor: Tensor) -> None:
    place = tensor.place
    if place.is_custom_place() or place.is_xpu_place():
        raise NotImplementedError(
            "The memory of a tensor that is shared must be on the CPU or on a "
            f"GPU, but received a tensor on {place}. Processes can have copies "
            "of it: send paddle.incubate.multiprocessing.by_value(tensor)."
        )
    check_initialized(tensor)


def _move(tensor: Tensor) -> None:
    for part in dense_parts(tensor):
        if not (part.place.is_gpu_place() or is_uninitialized(part)):
            native.move(part, isinstance(tensor, EagerParamBase))


def _is_shared(part: Tensor) -> bool:
    if part.size == 0 or part.place.is_gpu_place():
        return True
    return is_in_use() and native.is_shared(part)


def initializes_in_place(call: Callable[..., Any]) -> Callable[..., Any]:
    """
    Decorator of `Initializer.__call__`, which makes a new tensor and puts its
    memory in the place of the parameter's: where other processes see the
    parameter, the values are copied into the memory that they see.
    """

    @functools.wraps(call)
    def call_in_place(
        self: Initializer, param: Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        if not _has_values_that_others_see(param):
            return call(self, param, *args, **kwargs)
        # Not by detach(), which returns what changes with the tensor.
        shared = _alias(param)
        result = call(self, param, *args, **kwargs)
        filled = _alias(param)
        shared._share_underline_tensor_to(param)
        if filled.shape != shared.shape:
            raise ValueError(
                f"The values for {param.name!r} must be of shape "
                f"{list(shared.shape)}, since other processes see its memory, "
                f"but received shape {list(filled.shape)}. Make a new one for "
                "these, and send it."
            )
        if filled.data_ptr() != shared.data_ptr():
            # Some initializers leave another data type.
            shared.copy_(filled.astype(shared.dtype), True)
        return result

    return call_in_place


def _has_values_that_others_see(param: Any) -> bool:
    return (
        isinstance(param, core.eager.Tensor)
        and param.is_dense()
        and param._is_initialized()
        and _is_shared(param)
    )


def _alias(tensor: Tensor) -> Tensor:
    inside = tensor.get_tensor()
    return core.eager.Tensor(inside, inside._place())


def share_memory_(self: Tensor) -> Tensor:
    """
    Moves the memory of this tensor to where other processes see it, as sending
    it does. All views of it, and what it is a view of, go with it. Processes
    that are forked later share it; others, when it is sent.

    It happens once: a tensor that is shared stays where it is, and so does one
    on a GPU, whose memory can always be shared. The gradient is not moved. The
    idea is torch's.

    Returns:
        Tensor: this tensor.

    Raises:
        MemoryError: there is no room for it in shared memory.
        NotImplementedError: it is on a device whose memory cannot be shared, or
            Paddle was built without memory that processes share.
        RuntimeError: it is a parameter that is not initialized yet.
        ValueError: its memory is not Paddle's, it came by DLPack, for example.

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
    Tells whether other processes can have the memory of this tensor: after
    `share_memory_()`, after it was sent, if it was received, or if it is on a
    GPU. So it is for a sparse tensor when all its parts are.

    Returns:
        bool: whether it is shared; True for a tensor without elements.

    Examples:
        .. code-block:: python

            >>> import paddle
            >>> x = paddle.zeros([2, 3]).cpu()
            >>> print(x.is_shared(), x.share_memory_().is_shared())
            False True
    """
    return all(_is_shared(part) for part in dense_parts(self))


def share_memory(self: Layer) -> Layer:
    """
    Moves the parameters and buffers of this layer and of its sublayers to where
    other processes see them. See `Tensor.share_memory_`; tensors that are tied
    stay tied.

    A process that has the layer then, by `fork` or sent to it, has the same
    parameters: what one writes, as its optimizer does, all see. Gradients are
    not moved, so that each process has its own. The idea is torch's.

    Returns:
        Layer: this layer.

    Raises:
        MemoryError: there is no room for all in shared memory; what had room is
            moved, and all values are as they were.
        NotImplementedError: a tensor is on a device whose memory cannot be
            shared. Nothing is moved then, nor in the following cases.
        RuntimeError: a parameter is not initialized yet.

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
