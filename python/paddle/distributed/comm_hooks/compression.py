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
"""Hooks that average gradients in a 16-bit type."""

from __future__ import annotations

from typing import TYPE_CHECKING

import paddle
from paddle.distributed.data_parallel.communication import start_mean

if TYPE_CHECKING:
    from paddle import Tensor
    from paddle.distributed.communication.group import Group
    from paddle.distributed.data_parallel.buckets import Bucket
    from paddle.distributed.data_parallel.future import Future


def fp16_compress_hook(group: Group | None, bucket: Bucket) -> Future:
    """Averages gradients as float16: a gradient above 65504 becomes infinite.

    Gloo's own float16 sums are wrong. Over gloo each rank therefore gathers the
    gradients of all ranks, which saves bytes only with two or three ranks.

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
            ...     hook = comm_hooks.fp16_compress_hook
            ...     model.register_comm_hook(None, hook)
            ...     model(paddle.full([1, 1], rank + 1.0)).sum().backward()
            ...     found[rank] = layer.weight.grad.item()
            >>> mp.start_threads(train, nthreads=2, devices="cpu")
            >>> print(sorted(found.items()))
            [(0, 1.5), (1, 1.5)]
    """
    return _average_as(paddle.float16, group, bucket)


def bf16_compress_hook(group: Group | None, bucket: Bucket) -> Future:
    """Averages gradients as bfloat16: 8 bits of precision, no overflow.

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
            ...     hook = comm_hooks.bf16_compress_hook
            ...     model.register_comm_hook(None, hook)
            ...     model(paddle.full([1, 1], rank + 1.0)).sum().backward()
            ...     found[rank] = layer.weight.grad.item()
            >>> mp.start_threads(train, nthreads=2, devices="cpu")
            >>> print(sorted(found.items()))
            [(0, 1.5), (1, 1.5)]
    """
    return _average_as(paddle.bfloat16, group, bucket)


def _average_as(
    dtype: paddle.dtype, group: Group | None, bucket: Bucket
) -> Future:
    buffer = bucket.buffer()
    compressed = buffer.astype(dtype)

    def decompress(mean: Tensor) -> Tensor:
        return mean.astype(buffer.dtype)

    return start_mean(compressed, group or bucket.group).then(decompress)
