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
"""Sends batches from worker processes of a DataLoader through shared memory.

The arrays and tensors of a batch are stored next to each other in one block of
shared memory. The pickle contains the block's handle, and each array's data
type, shape and offset. The default collation stacks directly into the block.
Everything else is copied there, also a tensor that is in shared memory already:
the dataset or another process may keep it, and must not see what the reader
writes to its batch. A block is reused when the last tensor of its batch is
dropped. The reader copies small tensors out of a large block, so that kept
labels do not keep the images.

A batch's message expires with the worker that sent it, so a killed worker
leaves nothing behind.
"""

from __future__ import annotations

import math
import os
import reprlib
from collections.abc import Mapping, Sequence
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, Callable

import numpy as np

from paddle.base import core
from paddle.base.shared_storage import (
    FILE_DESCRIPTOR_FLAG,
    is_available,
    native,
)
from paddle.pir.core import vartype_to_datatype

from .batches_without_tensors import flatten_batch
from .collate import default_collate_fn
from .worker import _WorkerException

if TYPE_CHECKING:
    import paddle

_SWITCH = "PADDLE_DATALOADER_SHARED_BATCH"
_OFF = frozenset({"0", "f", "false", "n", "no", "off"})

# The same conversion of data types as DenseTensor.set.
_DTYPES = {
    np.dtype(np.bool_): core.DataType.BOOL,
    np.dtype(np.uint8): core.DataType.UINT8,
    np.dtype(np.int8): core.DataType.INT8,
    np.dtype(np.int16): core.DataType.INT16,
    np.dtype(np.int32): core.DataType.INT32,
    np.dtype(np.int64): core.DataType.INT64,
    np.dtype(np.uint16): core.DataType.BFLOAT16,
    np.dtype(np.float16): core.DataType.FLOAT16,
    np.dtype(np.float32): core.DataType.FLOAT32,
    np.dtype(np.float64): core.DataType.FLOAT64,
    np.dtype(np.complex64): core.DataType.COMPLEX64,
    np.dtype(np.complex128): core.DataType.COMPLEX128,
}

_ITEM_SIZES = {dtype: array.itemsize for array, dtype in _DTYPES.items()}

# Layouts whose meaning does not depend on the process.
_PLAIN_LAYOUTS = frozenset({"NCHW", "NHWC", "NCDHW", "NDHWC"})

# In bytes: a cache line, and the width of the widest vector register.
_ALIGNMENT = 64
# In bytes: the block for a worker's first batch, whose size is unknown.
_FIRST_SIZE = 1 << 16
# The reader copies fields up to _SMALL_FIELD_BYTES out of a block that also has
# a field larger than _LARGE_FIELD_BYTES.
_SMALL_FIELD_BYTES = 1 << 16
_LARGE_FIELD_BYTES = 1 << 20
# Marks a field that is sent separately in an order of block numbers.
_SEPARATE = -1


def is_enabled() -> bool:
    """Returns whether workers send batches with this module.

    They do, unless the environment variable ``PADDLE_DATALOADER_SHARED_BATCH``
    is ``0`` or ``false``, or there is no shared memory, see ``is_available`` of
    ``paddle.base.shared_storage``. Then each tensor of a batch is sent
    separately, as in Paddle 3.3.0.
    """
    switch = os.environ.get(_SWITCH, "")
    return is_available() and switch.lower() not in _OFF


class _Block:
    """A block of shared memory, filled from its start."""

    def __init__(self, tensor: paddle.Tensor) -> None:
        self.tensor = tensor
        self.memory = native.array_of(tensor)
        self.used = 0

    def has_room(self, size: int) -> bool:
        return self.used + size <= self.memory.size

    def take(self, size: int) -> int:
        """Reserves `size` bytes, for which there must be room, and returns
        their offset."""
        start = self.used
        self.used += -(-size // _ALIGNMENT) * _ALIGNMENT
        return start


# Not a NamedTuple: defining one takes as long as importing the rest of this
# file.
class _Position:
    """An array's position. Keeps the array alive, so that its id is unique."""

    def __init__(self, array: np.ndarray, block: int, offset: int) -> None:
        self.array = array
        self.block = block
        self.offset = offset


class _Memory:
    """Allocates a worker's blocks, with the current sharing strategy.

    /dev/shm is small in containers. Once it has no room for a block, this
    worker's blocks are memfds, which /dev/shm does not limit. The strategy for
    all other allocations does not change.
    """

    def __init__(self) -> None:
        self._dev_shm_is_full = False

    def allocate(self, size: int) -> paddle.Tensor:
        """Returns `size` uninitialized bytes of shared memory.

        Raises:
            MemoryError: there is not enough shared memory.
        """
        if not self._dev_shm_is_full:
            try:
                return native.empty([size], core.DataType.UINT8)
            except MemoryError:
                if core.globals()[FILE_DESCRIPTOR_FLAG]:
                    raise
        # Raises again if the user's limit was exceeded.
        memfd = native.empty([size], core.DataType.UINT8, file_descriptor=True)
        self._dev_shm_is_full = True
        return memfd


class _Arena:
    """The shared memory of one batch: one block, or more if it was too small.

    Args:
        memory: allocates the blocks.
        size: the size of the first block in bytes.
    """

    def __init__(self, memory: _Memory, size: int) -> None:
        self._memory = memory
        self._size = size
        self._blocks: list[_Block] = []
        self._filling: int | None = None
        self._positions: dict[int, _Position] = {}

    def used(self) -> int:
        """Returns the size, in bytes, of the arrays in all blocks."""
        return sum(block.used for block in self._blocks)

    def handles(self) -> list[bytes]:
        """Returns one handle per block, which one process can receive."""
        return [
            native.share_while_alive(block.tensor) for block in self._blocks
        ]

    def new_array(self, shape: tuple[int, ...], dtype: np.dtype) -> _Position:
        """Returns a new, uninitialized array.

        Raises:
            MemoryError: there is not enough shared memory.
        """
        size = math.prod(shape) * dtype.itemsize
        number = self._filling
        if number is None or not self._blocks[number].has_room(size):
            planned = self._size if number is None else self.used() // 4
            tensor = self._memory.allocate(max(size, planned, 1))
            number = self._filling = len(self._blocks)
            self._blocks.append(_Block(tensor))
        block = self._blocks[number]
        offset = block.take(size)
        array = np.ndarray(shape, dtype, block.memory, offset)
        position = _Position(array, number, offset)
        self._positions[id(array)] = position
        return position

    def position_of(self, array: np.ndarray) -> _Position:
        """Returns the position of an array. Copies it here if necessary."""
        position = self._positions.get(id(array))
        if position is None:
            position = self.new_array(array.shape, array.dtype)
            position.array[...] = array
        return position

    def stack(self, arrays: Sequence[Any]) -> np.ndarray:
        """Like `numpy.stack`, with the result in the arena where possible."""
        shape, dtype = arrays[0].shape, arrays[0].dtype
        for array in arrays:
            if (
                type(array) is not np.ndarray
                or array.shape != shape
                or array.dtype != dtype
            ):
                return np.stack(arrays)
        if dtype not in _DTYPES:
            return np.stack(arrays)
        stacked = self.new_array((len(arrays), *shape), dtype).array
        if shape:
            # Takes a third of the time of numpy.stack for small arrays.
            joined = stacked.reshape(len(arrays) * shape[0], *shape[1:])
            np.concatenate(arrays, out=joined)
        else:
            np.stack(arrays, out=stacked)
        return stacked


def _collate(
    samples: Sequence[Any], stack: Callable[[Sequence[Any]], np.ndarray]
) -> Any:
    """Like `default_collate_fn`, but stacks arrays with `stack`."""
    sample = samples[0]
    if isinstance(sample, np.ndarray):
        return stack(samples)
    if isinstance(sample, Mapping):
        return {
            key: _collate([other[key] for other in samples], stack)
            for key in sample
        }
    if (
        isinstance(sample, Sequence)
        and not isinstance(sample, (str, bytes))
        and all(len(other) == len(sample) for other in samples)
    ):
        return [_collate(fields, stack) for fields in zip(*samples)]
    return default_collate_fn(samples)


class _SharedBatch:
    """A batch in shared memory. Unpickling it gives a list of DenseTensor.

    Args:
        batch: the result of the collation.
        arena: contains some arrays of the batch; the others are copied to it.
    """

    def __init__(self, batch: Any, arena: _Arena) -> None:
        fields, self.structure = flatten_batch(batch)
        self._separate: list[core.DenseTensor] = []
        self._order: list[int] = []
        views: dict[int, list[tuple]] = {}
        for field in fields:
            view = _view(field, arena)
            if view is None:
                self._separate.append(_dense_tensor(field))
                self._order.append(_SEPARATE)
            else:
                self._order.append(view[0])
                views.setdefault(view[0], []).append(view[1:])
        self._sources = [
            (handle, views[number])
            for number, handle in enumerate(arena.handles())
        ]

    def __reduce__(self) -> tuple:
        return _rebuild, (self._sources, self._separate, self._order)


def _view(field: np.ndarray | paddle.Tensor, arena: _Arena) -> tuple | None:
    """
    Returns the block, data type, shape and offset of a field, or None if it
    cannot be stored in the arena. Copies the field there, unless the default
    collation has created it there.
    """
    if isinstance(field, np.ndarray):
        if field.dtype not in _DTYPES:
            return None
        position = arena.position_of(field)
        dtype = _DTYPES[field.dtype]
        return position.block, dtype, field.shape, position.offset
    if not (
        field.is_dense()
        and field._is_initialized()
        and field.place.is_cpu_place()
        and field.layout in _PLAIN_LAYOUTS
    ):
        return None
    # Tensor.contiguous() would change the tensor, which may belong to the
    # dataset.
    whole = field if field.is_contiguous() else field.clone()
    position = arena.position_of(native.array_of(whole))
    # FLAGS_enable_pir_api decides which of two types a tensor's dtype has.
    dtype = vartype_to_datatype.get(field.dtype, field.dtype)
    return position.block, dtype, field.shape, position.offset


def _dense_tensor(field: np.ndarray | paddle.Tensor) -> core.DenseTensor:
    if not isinstance(field, np.ndarray):
        return field.get_tensor()
    tensor = core.DenseTensor()
    tensor.set(field, core.CPUPlace())
    return tensor


def _rebuild(
    sources: list[tuple[bytes, list[tuple]]],
    separate: list[core.DenseTensor],
    order: list[int],
) -> list[core.DenseTensor]:
    tensors = [
        iter(_fields_of_block(handle, views)) for handle, views in sources
    ]
    tensors.append(iter(separate))
    try:
        return [next(tensors[source]) for source in order]
    except (IndexError, StopIteration):
        # A StopIteration in a loader would silently end the epoch.
        raise ValueError(
            f"The order {order} of a received batch refers to a missing "
            f"tensor: its blocks have {[len(views) for _, views in sources]} "
            f"tensors, and {len(separate)} were sent separately. The message "
            "is damaged, or was sent by another version of Paddle."
        ) from None


def _fields_of_block(
    handle: bytes, views: list[tuple]
) -> list[core.DenseTensor]:
    """Returns the fields in a received block, as views of it. Small fields next
    to large ones are copied, because each view keeps the whole block."""
    tensors = native.rebuild_views(handle, views)
    sizes = [
        # The types that NumPy lacks are not copied.
        math.prod(shape) * _ITEM_SIZES.get(dtype, _SMALL_FIELD_BYTES + 1)
        for dtype, shape, _ in views
    ]
    if max(sizes, default=0) <= _LARGE_FIELD_BYTES:
        return tensors
    return [
        _dense_tensor(np.array(tensor))
        if 0 < size <= _SMALL_FIELD_BYTES
        else tensor
        for tensor, size in zip(tensors, sizes)
    ]


class BatchMessage:
    """An object that is pickled immediately. Unpickling gives the object.

    A queue pickles on its own thread, which drops objects that cannot be
    pickled; the reader would wait for them forever.
    """

    def __init__(self, content: Any) -> None:
        self._pickled = bytes(ForkingPickler.dumps(content))

    def __reduce__(self) -> tuple:
        return ForkingPickler.loads, (self._pickled,)


def message_or_error(
    worker: int, number: int, fields: list[Any], structure: Any
) -> tuple[int, list[Any] | _WorkerException, Any]:
    """Returns the message that sends batch `number` to the reader, or the one
    that sends the error if the batch cannot be pickled."""
    try:
        # First: a tensor that is pickled occupies shared memory until it is
        # received or expires.
        pickled_structure = BatchMessage(structure)
        # The queue's thread pickles arrays, which cannot fail, while the worker
        # makes the next batch.
        checked = [
            field if _is_plain_array(field) else BatchMessage(field)
            for field in fields
        ]
        return number, checked, pickled_structure
    except Exception:
        return number, _WorkerException(worker), None


def _is_plain_array(field: Any) -> bool:
    return type(field) is np.ndarray and not field.dtype.hasobject


def pickled_indices(indices: Any) -> BatchMessage:
    """Returns the message that sends `indices`, which a sampler has yielded, to
    a worker process. The sampler may then change them.

    Raises:
        TypeError: they cannot be pickled.
    """
    try:
        return BatchMessage(indices)
    except Exception as error:
        raise TypeError(
            f"The sampler of the DataLoader yielded {reprlib.repr(indices)}, "
            f"which cannot be sent to a worker process: {error}. Yield a list "
            "of indices, or use worker_type='thread'."
        ) from error


class BatchSharer:
    """Puts the batches of a worker into shared memory.

    Attributes:
        collate_fn: replaces the loader's collate_fn.

    Args:
        collate_fn: the loader's collate_fn. Its results are copied to shared
            memory; those of the default one are allocated there.
    """

    def __init__(self, collate_fn: Callable[[Any], Any]) -> None:
        is_default = collate_fn is default_collate_fn
        self.collate_fn = self._collate_default if is_default else collate_fn
        self._memory = _Memory()
        self._size = _FIRST_SIZE
        self._arena = _Arena(self._memory, self._size)

    def _collate_default(self, samples: Sequence[Any]) -> Any:
        # After an error, the previous arena may be half filled.
        self._arena = _Arena(self._memory, self._size)
        return _collate(samples, self._arena.stack)

    def message(self, number: int, batch: Any) -> BatchMessage:
        """Returns the message that sends batch `number` to the reader.

        Raises:
            MemoryError: there is not enough shared memory.
            ValueError: an array has a data type that tensors lack.
            Exception: another part of the batch cannot be pickled.
        """
        arena = self._arena
        self._arena = _Arena(self._memory, self._size)
        shared = _SharedBatch(batch, arena)
        # The next batch should fit, but the effect of a rare large one fades.
        self._size = max(arena.used(), self._size - self._size // 16)
        return BatchMessage((number, shared, shared.structure))
