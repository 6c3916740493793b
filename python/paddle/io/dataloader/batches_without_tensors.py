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
"""Delivers batches without tensors.

The C++ queue between a DataLoader's reader thread and its iterator carries only
tensors, and takes a batch without any for the end of the epoch. So such a batch
passes through the queue as a placeholder, and its data go with its structure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .flat import _flatten_batch, _restore_batch

if TYPE_CHECKING:
    import paddle

__all__ = []


@dataclass(frozen=True)
class _WithoutTensors:
    """The structure of a placeholder: the batch itself."""

    batch: Any


def flatten_batch(batch: Any) -> tuple[list[np.ndarray | paddle.Tensor], Any]:
    """
    Returns the tensors and arrays of a batch, at least one, and a structure
    from which `restore_batch` makes the batch again.
    """
    tensors, structure = _flatten_batch(batch)
    if tensors:
        return tensors, structure
    return [np.zeros([1], "uint8")], _WithoutTensors(structure)


def read_feed(iterator: Any) -> list[dict[str, Any]]:
    """
    Returns what an iterator without `return_list` feeds to a program next: a
    dict for each place. Raises TypeError if a batch has no tensors.
    """
    feed = iterator._reader.read_next()
    places = len(iterator._places)
    structures = iterator._structure_infos[:places]
    del iterator._structure_infos[:places]
    for structure in structures:
        if isinstance(structure, _WithoutTensors):
            raise TypeError(
                "A DataLoader cannot feed the variables "
                f"{iterator._var_names} with a batch that has no tensors: "
                f"{structure.batch!r}. Return tensors or arrays from the "
                "dataset, or create the DataLoader with return_list=True."
            )
    return feed


def restore_batch(tensors: list[paddle.Tensor], structure: Any) -> Any:
    """Returns the batch of a structure, with the given tensors in it."""
    if isinstance(structure, _WithoutTensors):
        return structure.batch
    return _restore_batch(tensors, structure)
