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
"""Helpers for handle tests: damaged handles, and extents of tensors."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

import paddle
from paddle.base import core
from paddle.base.shared_storage import native

if TYPE_CHECKING:
    import random

# The position, in a handle, of the tensor's byte offset in its block.
_OFFSET_AT = 56
# Errors that an impossible handle may raise.
REFUSALS = (MemoryError, OSError, RuntimeError, TypeError, ValueError)
SIZES = {
    core.DataType.UINT8: 1,
    core.DataType.FLOAT32: 4,
    core.DataType.COMPLEX128: 16,
}


class View(NamedTuple):
    """A view as `native.rebuild_views` takes it."""

    dtype: core.DataType
    dims: list[int]
    offset: int


def no_stream(device: int) -> int:
    """Returns the stream for a received tensor: the default stream."""
    return 0


def with_offset(handle: bytes, offset: int) -> bytes:
    """Returns a handle whose tensor starts at another offset in its block."""
    moved = bytearray(handle)
    struct.pack_into("<Q", moved, _OFFSET_AT, offset)
    return bytes(moved)


def extent(tensor: paddle.Tensor) -> tuple[int, int]:
    """Returns the address of a tensor's first byte, and of its end.

    Both are 0 if it has no elements.
    """
    if 0 in tensor.shape or tensor.data_ptr() is None:
        return 0, 0
    first = last = tensor.data_ptr()
    for size, stride in zip(tensor.shape, tensor.strides):
        reach = (size - 1) * stride * tensor.element_size()
        first += min(reach, 0)
        last += max(reach, 0)
    return first, last + tensor.element_size()


def rebuilt_views(handle: bytes, views: list[View]) -> list[tuple[int, int]]:
    """Returns the extents of the given views of a handle."""
    made = native.rebuild_views(handle, views)
    assert len(made) == len(views)
    return [
        (begin, begin + math.prod(view.dims) * SIZES[view.dtype])
        for view, begin in zip(views, [tensor._ptr() for tensor in made])
    ]


def rebuilt_tensor(handle: bytes) -> list[tuple[int, int]]:
    """Returns the extent of the tensor that a handle describes."""
    return [extent(native.rebuild_tensor(handle, no_stream))]


def rebuilt_dense_tensor(handle: bytes) -> list[tuple[int, int]]:
    """Does the same as `rebuilt_tensor`, but through a DenseTensor."""
    dense = native.rebuild_dense_tensor(handle, no_stream)
    return [extent(paddle.Tensor(dense))] if dense._is_initialized() else []


def outcome(
    rebuild: Callable[..., list[tuple[int, int]]],
    arguments: tuple,
    blocks: list[tuple[int, int]],
) -> str:
    """
    Returns the name of the error that a call raises, or "inside" if its results
    lie inside blocks. Raises AssertionError if they lie elsewhere.
    """
    try:
        made = rebuild(*arguments)
    except REFUSALS as error:
        return type(error).__name__
    for begin, end in made:
        inside = any(low <= begin and end <= high for low, high in blocks)
        assert inside or begin == end, (arguments, begin, end, blocks)
    return "inside"


def damaged(value: Any, rng: random.Random, amount: int) -> Any:
    """Returns a value with some of its bytes and numbers changed."""
    if isinstance(value, tuple):
        where = rng.randrange(len(value)) if value else 0
        return tuple(
            damaged(item, rng, amount) if index == where else item
            for index, item in enumerate(value)
        )
    if isinstance(value, bytes):
        data = bytearray(value)
        for _ in range(amount):
            damage(data, rng)
        return bytes(data)
    if isinstance(value, int) and not isinstance(value, bool):
        return rng.choice((0, -1, value + 1, value - 1, 1 << 31, 1 << 62))
    return value


def damage(data: bytearray, rng: random.Random) -> None:
    kind = rng.choice(("bit", "byte", "number", "cut", "longer", "swap"))
    if not data or kind == "longer":
        data += rng.randbytes(rng.randrange(1, 9))
        return
    place = rng.randrange(len(data))
    if kind == "bit":
        data[place] ^= 1 << rng.randrange(8)
    elif kind == "byte":
        data[place] = rng.choice((0, 1, 127, 128, 255))
    elif kind == "number":
        # The numbers in a handle are aligned to their size.
        width = rng.choice((2, 4, 8))
        place -= place % width
        number = rng.choice((0, 1, 1 << 20, 2**31 - 1, 2**63 - 1, -1, -8))
        new = (number % (1 << (8 * width))).to_bytes(width, "little")
        data[place : place + width] = new
    elif kind == "cut":
        del data[place:]
    else:
        other = rng.randrange(len(data))
        data[place], data[other] = data[other], data[place]
