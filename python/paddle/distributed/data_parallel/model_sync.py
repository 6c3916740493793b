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
"""Checks that the models of all ranks are equal, and broadcasts buffers."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import paddle
import paddle.distributed as dist
from paddle.distributed.exact_operators import exact_operators

from .communication import gather, gather_texts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from paddle import Tensor
    from paddle.base.core import Place
    from paddle.distributed.communication.group import Group
    from paddle.nn import Layer

    from .buckets import ReducedParameter


def check_models_equal(
    parameters: Sequence[ReducedParameter], group: Group, place: Place
) -> None:
    """Raises on all ranks if the ranks' trainable parameters differ.

    The ranks exchange digests of descriptions of the parameters, on `place`,
    and the descriptions themselves if they differ.
    """
    lines = [
        f"{each.name} of shape {list(each.tensor.shape)}"
        f" and {each.tensor.dtype}"
        for each in parameters
    ]
    text = "\n".join(lines)
    digest = list(hashlib.sha256(text.encode()).digest())
    digests = gather(paddle.to_tensor(digest, "int64", place), group)
    if all(each.tolist() == digest for each in digests):
        return
    first, *others = gather_texts(text, group, place)
    for rank, text in enumerate(others, start=1):
        if text != first:
            raise ValueError(_difference(first, text, rank))


def _difference(first: str, other: str, rank: int) -> str:
    pairs = list(zip(first.splitlines(), other.splitlines()))
    for number, (one, another) in enumerate(pairs):
        if one != another:
            found = f"parameter {number} is {one} on rank 0 and {another}"
            break
    else:
        counts = len(first.splitlines()), len(other.splitlines())
        found = f"rank 0 has {counts[0]} trainable parameters, and {counts[1]}"
    return (
        "The models of DataParallel must be the same on all ranks, but "
        f"{found} on rank {rank}. Build the same layers in the same order and "
        "freeze the same parameters on each rank."
    )


@exact_operators()
def broadcast_buffers(layer: Layer, group: Group, source: int) -> None:
    """Broadcasts the buffers of rank `source` of the group to all ranks."""
    by_type: dict[object, list[Tensor]] = {}
    for buffer in _buffers(layer):
        if buffer.size:
            by_type.setdefault(buffer.dtype, []).append(buffer)
    for buffers in by_type.values():
        flat = paddle.concat([buffer.detach().flatten() for buffer in buffers])
        dist.broadcast(flat, group.ranks[source], group=group)
        if group.rank != source:
            _copy_parts(flat, buffers)


def _buffers(layer: Layer) -> Iterator[Tensor]:
    """Yields the buffers of the state dict, except those with `no_sync`."""
    seen = set()
    for sublayer in layer.sublayers(include_self=True):
        found = {
            name: buffer
            for name, buffer in sublayer._buffers.items()
            if name not in sublayer._non_persistable_buffer_names_set
        }
        # Batch norm keeps its statistics in untrained parameters.
        for name in ("_mean", "_variance"):
            found[name] = sublayer._parameters.get(name)
        for tensor in found.values():
            if tensor is None or id(tensor) in seen:
                continue
            seen.add(id(tensor))
            if not getattr(tensor, "no_sync", False):
                yield tensor


def _copy_parts(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    begin = 0
    for tensor in tensors:
        end = begin + tensor.size
        tensor.copy_(flat[begin:end].reshape(tensor.shape), False)
        begin = end
