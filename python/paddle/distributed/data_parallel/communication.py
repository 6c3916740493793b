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
"""Averages tensors over ranks, and exchanges integers and strings."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

import paddle
import paddle.distributed as dist
from paddle.distributed import shared_memory_group
from paddle.distributed.collective import _get_global_env
from paddle.distributed.thread_rank_groups import is_thread_group

from .future import Future

if TYPE_CHECKING:
    from paddle import Tensor
    from paddle.base.core import Place
    from paddle.distributed.communication.group import Group

    from .buckets import Bucket


# Backends whose AVG is rounded like a sum in rank order and a division.
_AVERAGING_BACKENDS = ("SHM",)


# The share of free shared memory that the buffers of one bucket may use, on all
# ranks together. The rest is for other users.
_SHARE_OF_FREE_MEMORY = 0.25


def move_to_shared_memory(buffer: Tensor, group: Group) -> None:
    """Moves a buffer of backend `shm` to shared memory, if there is room.

    Other ranks then read the buffer without a copy.
    """
    if group.backend != "SHM" or not buffer.place.is_cpu_place():
        return
    memory = os.statvfs("/dev/shm")
    free = memory.f_bavail * memory.f_frsize
    # All ranks may read `free` before any of them allocates.
    needed = buffer.size * buffer.element_size() * group.nranks
    if needed <= _SHARE_OF_FREE_MEMORY * free:
        # This process's limit on shared memory may be lower.
        with contextlib.suppress(MemoryError):
            buffer.share_memory_()


def timeout_of(group: Group) -> float:
    """Returns how many seconds an operation waits for the other ranks."""
    if is_thread_group(group):
        return group.process_group.timeout()
    timeout = shared_memory_group.timeout_of(group.process_group)
    if timeout is not None:
        return timeout.total_seconds()
    return _get_global_env().pg_timeout / 1000


def allreduce_hook(group: Group | None, bucket: Bucket) -> Future:
    """Averages gradients in their own data type, which is the default.

    Args:
        group (Group|None): The group to average over. None means the group of
            the ``DataParallel``.
        bucket (Bucket): Gradients of this rank.

    Returns:
        Future: A future of the averages, a tensor with the size and data type
        of ``bucket.buffer()``.

    Examples:
        .. code-block:: python

            >>> import paddle
            >>> import paddle.distributed as dist
            >>> import paddle.multiprocessing as mp
            >>> from paddle.distributed import comm_hooks
            >>> groups = dist.new_thread_groups(2)
            >>> found = {}
            >>> def train(rank):
            ...     layer = paddle.nn.Linear(1, 1, bias_attr=False)
            ...     model = paddle.DataParallel(layer, group=groups[rank])
            ...     model.register_comm_hook(None, comm_hooks.allreduce_hook)
            ...     model(paddle.full([1, 1], rank + 1.0)).sum().backward()
            ...     found[rank] = layer.weight.grad.item()
            >>> mp.start_threads(train, nthreads=2, devices="cpu")
            >>> print(sorted(found.items()))
            [(0, 1.5), (1, 1.5)]
    """
    return start_mean(bucket.buffer(), group or bucket.group)


def start_mean(tensor: Tensor, group: Group) -> Future:
    """Starts to replace `tensor` by its mean over the ranks of `group`."""
    if group.backend in _AVERAGING_BACKENDS:
        task = dist.all_reduce(
            tensor, dist.ReduceOp.AVG, group=group, sync_op=False
        )
        return Future(lambda: _wait(task, tensor))
    if tensor.dtype == paddle.float16:
        return _start_mean_of_float16(tensor, group)
    task = dist.all_reduce(tensor, group=group, sync_op=False)

    return Future(lambda: divide(_wait(task, tensor), group.nranks))


def divide(tensor: Tensor, divisor: int) -> Tensor:
    """Divides `tensor` in place, with the rounding of a division."""
    is_wide = tensor.dtype not in (paddle.float16, paddle.bfloat16)
    if tensor.place.is_cpu_place():
        if divisor & (divisor - 1) == 0:
            # The inverse of a power of two is exact, and scale_ much faster.
            return tensor.scale_(1 / divisor)
        if is_wide:
            return tensor.divide_(_scalar_beside(tensor, divisor))
    # The CPU has no 16-bit division. On another device without an in-place
    # kernel, the tensor would get new memory, and its views keep the old.
    dividend = tensor if is_wide else tensor.astype("float32")
    quotient = dividend.divide(_scalar_beside(dividend, divisor))
    tensor.copy_(quotient.astype(tensor.dtype), False)
    return tensor


def _scalar_beside(tensor: Tensor, value: int) -> Tensor:
    """Returns a scalar of the tensor's type and place.

    With a scalar on the current device, if that is another one, in-place
    operations would move the tensor there, away from its views.
    """
    return paddle.full([], value, tensor.dtype, device=tensor.place)


def _start_mean_of_float16(tensor: Tensor, group: Group) -> Future:
    if group.backend == "GLOO":
        # Gloo's float16 sums are infinite, whatever the values.
        return Future(lambda: _mean_of_gathered(tensor, group))
    # The sum may overflow float16 where the mean does not.
    divide(tensor, group.nranks)
    task = dist.all_reduce(tensor, group=group, sync_op=False)
    return Future(lambda: _wait(task, tensor))


def _wait(task: object, tensor: Tensor) -> Tensor:
    """Waits for a task, and returns the tensor that it changed."""
    task.wait()
    return tensor


def _mean_of_gathered(tensor: Tensor, group: Group) -> Tensor:
    parts = gather(tensor, group)
    total = parts[0].astype("float32")
    for part in parts[1:]:
        total.add_(part.astype("float32"))
    tensor.copy_(divide(total, group.nranks).astype(tensor.dtype), False)
    return tensor


def gather(tensor: Tensor, group: Group) -> list[Tensor]:
    """Returns each rank's tensor; all have the same shape and data type."""
    parts: list[Tensor] = []
    dist.all_gather(parts, tensor, group)
    return parts


def gather_integers(
    values: list[int], group: Group, place: Place
) -> list[list[int]]:
    """Returns each rank's values; ranks may have different numbers of them.

    They are sent from `place`, which the group must support. The current device
    may be another one.
    """
    lengths = gather(paddle.to_tensor([len(values)], "int64", place), group)
    lengths = [length.item() for length in lengths]
    padded = values + [0] * (max(*lengths, 1) - len(values))
    parts = gather(paddle.to_tensor(padded, "int64", place), group)
    return [part.tolist()[:length] for part, length in zip(parts, lengths)]


def broadcast_first(values: list[int], group: Group, place: Place) -> list[int]:
    """Returns the values of the first rank that has any; sent from `place`."""
    counts = gather(paddle.to_tensor([len(values)], "int64", place), group)
    for rank, count in enumerate(counts):
        if count.item() > 0:
            sent = values if rank == group.rank else [0] * count.item()
            found = paddle.to_tensor(sent, "int64", place)
            dist.broadcast(found, group.ranks[rank], group=group)
            return found.tolist()
    return []


def gather_texts(text: str, group: Group, place: Place) -> list[str]:
    """Returns each rank's string, sent like those of `gather_integers`."""
    by_rank = gather_integers(list(text.encode()), group, place)
    return [bytes(values).decode() for values in by_rank]
