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
"""Tensors made in shared memory: sending them copies nothing."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager
from numbers import Integral
from typing import TYPE_CHECKING

import paddle
from paddle.base.data_feeder import convert_dtype
from paddle.base.shared_storage import native
from paddle.base.threads.host_context import host_context
from paddle.pir.core import convert_np_dtype_to_dtype_

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paddle._typing import DTypeLike


def empty_shared(
    shape: Sequence[int], dtype: DTypeLike | None = None
) -> paddle.Tensor:
    """Makes a tensor on the CPU whose memory other processes can see.

    It is what ``paddle.empty(shape, dtype).share_memory_()`` makes, but for the
    memory that the move would leave: who fills it, and sends it then, copies
    nothing. The memory is had by the present sharing strategy.

    Args:
        shape (Sequence[int]): the size of each dimension.
        dtype (str|paddle.dtype|numpy.dtype|None, optional): the data type.
            Default: None, what ``paddle.get_default_dtype()`` says.

    Returns:
        Tensor: the tensor, on the CPU whatever the current device is. Its
        values are anything.

    Raises:
        MemoryError: there is no room for it in shared memory.
        NotImplementedError: Paddle was built without memory that processes
            share.
        TypeError: there is no such data type, or a size is no integer.
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
    """Makes operators on the CPU put their results into shared memory.

    That is for a worker that fills a batch with Paddle's operators: what it
    makes within the context is sent without a copy. It acts on the calling
    thread, and on tensors on the CPU only; contexts may be nested. All that
    operators allocate comes from there, temporary tensors too, by the sharing
    strategy at the time when the context is entered.

    Programs, which ``to_static`` makes or an executor or a predictor runs,
    allocate as they do outside.

    Raises:
        NotImplementedError: Paddle was built without memory that processes
            share.
        RuntimeError: the context is left on another thread than it was entered
            on.

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
