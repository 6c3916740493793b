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
"""Allocates tensors in shared memory, so that sending them copies nothing."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager
from numbers import Integral
from typing import TYPE_CHECKING

import paddle
from paddle.base import core
from paddle.base.data_feeder import convert_dtype
from paddle.base.shared_storage import native
from paddle.base.threads.host_context import host_context
from paddle.pir.core import convert_np_dtype_to_dtype_

from .device_names import name_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paddle._typing import DTypeLike


def empty_shared(
    shape: Sequence[int], dtype: DTypeLike | None = None
) -> paddle.Tensor:
    """Allocates a CPU tensor in shared memory.

    The result equals that of ``paddle.empty(shape, dtype).share_memory_()``,
    but the tensor is allocated in shared memory directly, with the current
    sharing strategy, so that filling and sending it copies nothing.

    Args:
        shape (Sequence[int]): the size of each dimension.
        dtype (str|paddle.dtype|numpy.dtype|None, optional): the data type.
            Default: None, ``paddle.get_default_dtype()``.

    Returns:
        Tensor: an uninitialized tensor on the CPU, whatever the current device
        is.

    Raises:
        MemoryError: there is not enough shared memory.
        NotImplementedError: this Paddle was built without shared memory.
        TypeError: the data type does not exist, or a size is not an integer.
        ValueError: a size is negative.

    Examples:
        .. code-block:: python

            >>> import paddle
            >>> import paddle.incubate.multiprocessing as mp
            >>> batch = mp.empty_shared([2, 3], 'int64')
            >>> batch[:] = 5
            >>> print(batch.is_shared(), batch.tolist())
            True [[5, 5, 5], [5, 5, 5]]
    """
    if not isinstance(shape, Sequence) or not all(
        isinstance(size, Integral) and not isinstance(size, bool)
        for size in shape
    ):
        raise TypeError(
            "The shape of a tensor must be a sequence of integers, but "
            f"received {shape!r}."
        )
    if any(size < 0 for size in shape):
        raise ValueError(
            "The sizes of the dimensions of a tensor must be at least 0, but "
            f"received {shape!r}."
        )
    name = convert_dtype(dtype or paddle.get_default_dtype())
    sizes = [int(size) for size in shape]
    return native.empty(sizes, convert_np_dtype_to_dtype_(name))


@contextmanager
def shared_allocation() -> Iterator[None]:
    """Makes CPU operators allocate their results in shared memory.

    A worker that builds a batch with Paddle's operators inside this context
    sends it without a copy. The context affects only the calling thread and
    only CPU tensors, and may be nested. All allocations of operators come from
    shared memory, including temporary tensors, with the sharing strategy that
    is current when the context is entered.

    Programs (of ``to_static``, an executor or a predictor) allocate as usual.

    Raises:
        NotImplementedError: this Paddle was built without shared memory.
        RuntimeError: a thread leaves a context that another thread entered.

    Examples:
        .. code-block:: python

            >>> import paddle
            >>> import paddle.incubate.multiprocessing as mp
            >>> _ = paddle.set_device('cpu')
            >>> images = [paddle.zeros([3, 4]), paddle.ones([3, 4])]
            >>> with mp.shared_allocation():
            ...     batch = paddle.stack(images)
            >>> print(batch.is_shared(), images[0].is_shared())
            True False
    """
    with host_context(allocator=native.allocator()):
        yield


def shared_copy(tensor: paddle.Tensor) -> paddle.Tensor:
    """Returns a copy, in shared memory, of a dense tensor on any device."""
    copied = empty_shared(tensor.shape, tensor.dtype)
    if tensor.size == 0:
        return copied
    if not tensor.place.is_cpu_place():
        if not tensor.place.is_cuda_pinned_place():
            # Another thread's stream may still be writing to it.
            paddle.device.synchronize(name_of(tensor.place))
        if not tensor.is_contiguous():
            tensor = _view_on_host(tensor)
    copied.copy_(tensor, True)
    return copied


def _view_on_host(view: paddle.Tensor) -> paddle.Tensor:
    """Returns a copy of a view on the host, with the same strides."""
    # The device may lack a kernel that makes a view contiguous, so copy all
    # memory between the view's first and last element.
    ends = [
        (size - 1) * stride for size, stride in zip(view.shape, view.strides)
    ]
    before = -sum(end for end in ends if end < 0)
    count = sum(abs(end) for end in ends) + 1
    start = view.offset - before * view.element_size()
    memory = paddle.as_strided(view, [count], [1], start)
    return paddle.as_strided(
        memory._copy_to(core.CPUPlace(), True),
        view.shape,
        view.strides,
        before * view.element_size(),
    )
