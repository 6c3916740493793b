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
"""Sends copies of tensors whose memory cannot be shared."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Callable

import paddle
from paddle.base import core
from paddle.base.framework import EagerParamBase
from paddle.base.tensor_sharing import is_uninitialized

from .device_names import name_of, place_of
from .shared_allocator import empty_shared
from .tensor_parts import (
    in_dynamic_mode,
    parameter_over,
    rebuild_from_parts,
    split_into_parts,
    subclass_over,
)

if TYPE_CHECKING:
    from paddle._typing import PlaceLike


class TensorByValue:
    """A copy of a tensor, to be sent, that :func:`by_value` has made."""

    def __init__(self, tensor: paddle.Tensor, device: str):
        self._tensor = _copied(tensor, _in_shared_memory)
        self._device = device

    def __reduce__(self) -> tuple:
        return _rebuild, (self._tensor, self._device)


def by_value(
    tensor: paddle.Tensor, device: PlaceLike | None = None
) -> TensorByValue:
    """Copies a tensor, to send it to a process that cannot share its memory.

    The receiver gets a tensor on ``device`` with its own memory: neither side
    sees what the other writes. The copy is made now, in shared memory of the
    host, and once more at each receiver. The tensor may be dense (a view
    arrives contiguous), sparse, or a parameter, which keeps its attributes. Its
    gradient is not sent. Tensors that share memory no longer do on arrival.

    Tensors on custom devices are always sent like this, to the device of the
    same name, without a call of this function. Tensors on a CPU or a GPU are
    shared unless they are wrapped by it, which helps a receiver whose GPU
    cannot reach the sender's. Copies from and to a GPU have not been tested on
    a GPU.

    Args:
        tensor (Tensor): the tensor to copy; a leaf if it requires grad.
        device (str|Place|None, optional): the device of the tensor at the
            receiver, which this process need not have: ``'cpu'``, ``'gpu:0'``,
            ``'xpu:0'``, or the name of a custom device. Without a number, the
            receiver takes the device that its ``paddle.set_device`` would.
            Default: None, the device of the tensor.

    Returns:
        TensorByValue: an object to send in place of the tensor, in a queue, a
        container or the arguments of a process, any number of times. A receiver
        that lacks the device gets a ``RuntimeError``; the memory of the message
        is freed.

    Raises:
        MemoryError: there is not enough shared memory for the copy.
        NotImplementedError: this Paddle was built without shared memory.
        RuntimeError: the tensor requires grad and is not a leaf, or it has no
            values.
        TypeError: the argument is not a tensor.
        ValueError: the device is not the name of a device.

    Examples:
        .. code-block:: python

            >>> import paddle
            >>> import paddle.incubate.multiprocessing as mp
            >>> queue = mp.get_context('spawn').SimpleQueue()
            >>> x = paddle.ones([2])
            >>> queue.put(mp.by_value(x, 'cpu'))
            >>> y = queue.get()
            >>> x[:] = 5
            >>> print(y.tolist())
            [1.0, 1.0]
    """
    if not isinstance(tensor, core.eager.Tensor):
        raise TypeError(
            "The argument of by_value must be a Tensor, but received "
            f"{type(tensor).__name__}."
        )
    if not tensor.stop_gradient and not tensor.is_leaf:
        raise RuntimeError(
            f"The tensor {tensor.name!r} that is sent by value must be a leaf, "
            "but is the result of operators and requires grad. Send "
            "tensor.detach() instead."
        )
    if is_uninitialized(tensor):
        raise RuntimeError(
            f"The tensor {tensor.name!r} that is sent by value must have "
            "values, but has none yet. Initialize it first."
        )
    if device is None:
        # Pinned memory is the host's, and the receiver may have no GPU.
        pinned = tensor.place.is_cuda_pinned_place()
        device = "cpu" if pinned else tensor.place
    return TensorByValue(tensor, name_of(device))


def _rebuild(tensor: paddle.Tensor, device: str) -> paddle.Tensor:
    place = place_of(device)
    return _copied(tensor, lambda part: part._copy_to(place, True))


@in_dynamic_mode
def _copied(
    tensor: paddle.Tensor, copy_of: Callable[[paddle.Tensor], paddle.Tensor]
) -> paddle.Tensor:
    """Returns a copy of the same kind; `copy_of` copies each dense part."""
    if tensor.is_dense():
        copied = copy_of(tensor.detach())
        kind = type(tensor)
        if kind is EagerParamBase:
            copied = parameter_over(copied, copy.deepcopy(tensor.__dict__))
        elif kind is not core.eager.Tensor:
            state = copy.deepcopy(tensor.__dict__)
            copied = subclass_over(kind, copied, state)
        copied.stop_gradient = tensor.stop_gradient
    else:
        parts, *rest = split_into_parts(tensor)
        copied = rebuild_from_parts([copy_of(part) for part in parts], *rest)
    return copied


def _view_on_host(part: paddle.Tensor) -> paddle.Tensor:
    """Returns a copy of a view on the host, with the same strides."""
    # The device may lack a kernel that makes a view contiguous, so copy
    # everything between the view's first and last element in memory.
    ends = [
        (size - 1) * stride for size, stride in zip(part.shape, part.strides)
    ]
    before = -sum(end for end in ends if end < 0)
    count = sum(abs(end) for end in ends) + 1
    start = part.offset - before * part.element_size()
    memory = paddle.as_strided(part, [count], [1], start)
    return paddle.as_strided(
        memory._copy_to(core.CPUPlace(), True),
        part.shape,
        part.strides,
        before * part.element_size(),
    )


def _in_shared_memory(part: paddle.Tensor) -> paddle.Tensor:
    copied = empty_shared(part.shape, part.dtype)
    if part.size == 0:
        return copied
    if not part.place.is_cpu_place():
        if not part.place.is_cuda_pinned_place():
            # Another thread's stream may still be writing to it.
            paddle.device.synchronize(name_of(part.place))
        if not part.is_contiguous():
            part = _view_on_host(part)
    copied.copy_(part, True)
    return copied
