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
"""A hook that sends gradients as 8-bit integers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import paddle
import paddle.distributed as dist
from paddle.distributed.data_parallel.communication import divide
from paddle.distributed.data_parallel.future import Future

if TYPE_CHECKING:
    from paddle import Tensor
    from paddle.distributed.communication.group import Group
    from paddle.distributed.data_parallel.buckets import Bucket

_LARGEST = 127


def quantization_8bit_hook(group: Group | None, bucket: Bucket) -> Future:
    """Sends gradients as multiples of 1/127 of a rank's largest gradient.

    Each rank gathers the integers of all ranks and adds them as float32, in
    rank order. The error of a gradient is at most 1/254 of the largest gradient
    in its bucket. A gradient that is not finite makes the whole bucket NaN. The
    idea is that of torch's ``quantization_pertensor_hook``.

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
            ...     hook = comm_hooks.quantization_8bit_hook
            ...     model.register_comm_hook(None, hook)
            ...     model(paddle.full([1, 1], 1.0)).sum().backward()
            ...     found[rank] = layer.weight.grad.item()
            >>> mp.start_threads(train, nthreads=2, devices="cpu")
            >>> print(sorted(found.items()))
            [(0, 1.0), (1, 1.0)]
    """
    group = group or bucket.group
    buffer = bucket.buffer()
    if buffer.size == 0:
        # It has no largest gradient.
        return Future(lambda: buffer)
    scale = paddle.max(paddle.abs(buffer.astype("float32"))).reshape([1])
    scale = scale / _LARGEST
    # The scale of a bucket of zeros is 0.
    divisor = paddle.where(scale == 0, paddle.ones_like(scale), scale)
    numbers = paddle.round(buffer.astype("float32") / divisor).astype("int8")
    scales, wait_for_scales = _start_gather(scale, group)
    by_rank, wait_for_numbers = _start_gather(numbers, group)

    def mean() -> Tensor:
        wait_for_scales.wait()
        wait_for_numbers.wait()
        total = by_rank[0].astype("float32") * scales[0]
        for numbers, scale in zip(by_rank[1:], scales[1:]):
            total.add_(numbers.astype("float32") * scale)
        return divide(total, group.nranks).astype(buffer.dtype)

    return Future(mean)


def _start_gather(tensor: Tensor, group: Group) -> tuple[list[Tensor], object]:
    parts = [paddle.empty_like(tensor) for _ in range(group.nranks)]
    return parts, dist.all_gather(parts, tensor, group, sync_op=False)
