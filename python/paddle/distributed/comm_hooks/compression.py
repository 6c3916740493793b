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
"""Hooks that average gradients in their own data type or in a 16-bit type."""

from __future__ import annotations

from typing import TYPE_CHECKING

import paddle
from paddle.distributed.data_parallel.communication import start_mean

if TYPE_CHECKING:
    from paddle import Tensor
    from paddle.distributed.communication.group import Group
    from paddle.distributed.data_parallel.buckets import Bucket
    from paddle.distributed.data_parallel.future import Future


def allreduce_hook(group: Group | None, bucket: Bucket) -> Future:
    """Averages gradients without compression, which is the default."""
    return start_mean(bucket.buffer(), group or bucket.group)


def fp16_compress_hook(group: Group | None, bucket: Bucket) -> Future:
    """Averages gradients as float16: a gradient above 65504 becomes infinite.

    Gloo's own float16 sums are wrong. Over gloo each rank therefore gathers the
    gradients of all ranks, which saves bytes only with two or three ranks.
    """
    return _average_as(paddle.float16, group, bucket)


def bf16_compress_hook(group: Group | None, bucket: Bucket) -> Future:
    """Averages gradients as bfloat16: 8 bits of precision, no overflow."""
    return _average_as(paddle.bfloat16, group, bucket)


def _average_as(
    dtype: paddle.dtype, group: Group | None, bucket: Bucket
) -> Future:
    buffer = bucket.buffer()
    compressed = buffer.astype(dtype)

    def decompress(mean: Tensor) -> Tensor:
        return mean.astype(buffer.dtype)

    return start_mean(compressed, group or bucket.group).then(decompress)
