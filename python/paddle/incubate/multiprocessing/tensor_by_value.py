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
"""Tensors whose memory other processes cannot have are sent as copies."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Callable

import paddle
from paddle.base import core
from paddle.base.framework import EagerParamBase
from paddle.base.tensor_sharing import is_uninitialized

from .device_names import device_counts, parse
from .shared_allocator import empty_shared
from .tensor_parts import (
    in_dynamic_mode,
    parameter_over,
    rebuilt_of_parts,
    subclass_over,
    taken_apart,
)

if TYPE_CHECKING:
    from paddle._typing import PlaceLike


class TensorByValue:
    """A copy of a tensor, to be sent; :func:`by_value` makes it."""

    def __init__(self, tensor: paddle.Tensor, device: str):
        self._tensor = _copied(tensor, _in_shared_memory)
        self._device = device

    def __reduce__(self) -> tuple:
        return _rebuild, (self._tensor, self._device)


def by_value(
    tensor: paddle.Tensor, device: PlaceLike | None = None
) -> TensorByValue:
    """Makes a copy of a tensor that can be sent to where its memory cannot.

    What is sent arrives as a tensor on ``device``, with memory of its own: no
    other process sees what the receiver writes, nor the other way round. The
    copy is made here and now, in shared memory of the host, and is copied once
    more at each receiver. It is of any kind of tensor: dense, also a view,
    which arrives contiguous, sparse, or a parameter with its attributes. Its
    gradient does not go along. Tensors that share memory arrive apart.

    Tensors on custom devices always go so, without a call of this function, to
    the device of the same name. Tensors on a CPU or a GPU are shared instead,
    unless they are wrapped: that is for a receiver on a GPU that cannot reach
    the sender's. Copies from and to a GPU have not been tested on one.

    Args:
        tensor (Tensor): what is to be copied; a leaf, if it requires grad.
        device (str|Place|None, optional): where it shall be at the receiver,
            which need not be a device that there is here: ``'cpu'``,
            ``'gpu:0'``, ``'xpu:0'``, or the name of a custom device. Without a
            number, it is the one that ``paddle.set_device`` takes there.
            Default: None, the name of the device where it is.

    Returns:
        TensorByValue: what to put in the place of the tensor into a queue, a
        container or the arguments of a process. It may be sent any number of
        times. Who receives it on a machine without the device gets a
        ``RuntimeError``, and the memory of the message is given back.

    Raises:
        MemoryError: there is no room for the copy in shared memory.
        NotImplementedError: Paddle was built without memory that processes
            share.
        RuntimeError: it requires grad and is no leaf, or has no values yet.
        TypeError: it is not a tensor.
        ValueError: the device is not the name of one.

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
            "What is sent by value must be a Tensor, but received "
            f"{type(tensor).__name__}."
        )
    if not tensor.stop_gradient and not tensor.is_leaf:
        raise RuntimeError(
            f"The tensor {tensor.name!r} that is sent by value must be a leaf, "
            "but is the result of operators that are to be differentiated. "
            "Send tensor.detach() instead."
        )
    if is_uninitialized(tensor):
        raise RuntimeError(
            f"The tensor {tensor.name!r} that is sent by value must have "
            "values, but has none yet. Initialize it first."
        )
    if device is None:
        # Pinned memory is the host's, and who receives it may have no GPU.
        pinned = tensor.place.is_cuda_pinned_place()
        device = "cpu" if pinned else tensor.place
    return TensorByValue(tensor, name_of(device))


def name_of(device: PlaceLike) -> str:
    """Returns what `place_of` finds a device by."""
    name = str(device)
    if isinstance(device, core.Place) or name.startswith("Place("):
        name = name[len("Place(") : -1]
    if not parse(name).is_valid:
        raise ValueError(
            "The device must be a Place or a name like 'cpu' or 'gpu:0', but "
            f"received {device!r}."
        )
    return name


def place_of(device: str) -> core.Place:
    """Returns the place of a device of this process, by its name.

    Raises:
        RuntimeError: there is no such device.
    """
    kind, index, _ = parse(device)
    counted_as = "gpu" if kind in ("cuda", "gpu_pinned") else kind
    there = 1 if kind == "cpu" else device_counts().get(counted_as, 0)
    if (index or 0) >= there:
        raise RuntimeError(
            f"What was sent must arrive on {device!r}, but this process has no "
            "such device, only "
            f"{['cpu', *paddle.device.get_available_device()]}. Send "
            "paddle.incubate.multiprocessing.by_value(tensor, device) with one "
            "that it has; 'cpu' always is."
        )
    if kind == "cpu":
        return core.CPUPlace()
    if kind == "gpu_pinned":
        return core.CUDAPinnedPlace()
    return paddle.device._convert_to_place(device)


def _rebuild(tensor: paddle.Tensor, device: str) -> paddle.Tensor:
    place = place_of(device)
    return _copied(tensor, lambda part: part._copy_to(place, True))


@in_dynamic_mode
def _copied(
    tensor: paddle.Tensor, copy_of: Callable[[paddle.Tensor], paddle.Tensor]
) -> paddle.Tensor:
    """Returns a copy of a tensor, of the same kind; `copy_of` copies data."""
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
        parts, *rest = taken_apart(tensor)
        copied = rebuilt_of_parts([copy_of(part) for part in parts], *rest)
    return copied


def _view_on_host(part: paddle.Tensor) -> paddle.Tensor:
    """Returns a copy of a view, with the strides that it has."""
    # A device need not have a kernel that makes a view contiguous, so all goes
    # that lies between its first element in memory and its last.
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
            # The work on it may be that of another thread's stream.
            paddle.device.synchronize(name_of(part.place))
        if not part.is_contiguous():
            part = _view_on_host(part)
    copied.copy_(part, True)
    return copied
