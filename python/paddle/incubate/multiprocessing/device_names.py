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
"""Parses device names such as 'cpu' and 'gpu:0', and finds their places."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import paddle
from paddle.base import core
from paddle.base.device_counts import device_counts, device_names

if TYPE_CHECKING:
    from paddle._typing import PlaceLike


_ALIASES = {"cuda": "gpu", "dcu": "gpu"}


def parse(name: str) -> tuple[str, int | None]:
    """
    Returns the type and the index of a device name. The index is None without a
    number after the colon.

    As in other device names of Paddle, the case and spaces around the name do
    not matter, and 'cuda' and 'dcu' mean 'gpu'.
    """
    kind, _, number = name.strip().partition(":")
    if kind not in device_counts():
        kind = kind.lower()
        kind = _ALIASES.get(kind, kind)
    number = number.strip()
    return kind, int(number) if number.isdecimal() else None


def name_of(device: PlaceLike) -> str:
    """Returns the name by which `place_of` finds a device, maybe in another
    process."""
    name = str(device).strip()
    if name.startswith("Place("):
        name = name[len("Place(") : -1]
    if not re.fullmatch(r"[A-Za-z]\w*(: *\d+)?", name):
        raise ValueError(
            "The device must be a Place or a name like 'cpu' or 'gpu:0', but "
            f"received {device!r}."
        )
    return name


def place_of(device: str) -> core.Place:
    """Returns the place of this process's device with the given name.

    Raises:
        RuntimeError: this process has no such device.
    """
    kind, index = parse(device)
    counted_as = "gpu" if kind == "gpu_pinned" else kind
    there = 1 if kind == "cpu" else device_counts().get(counted_as, 0)
    if (index or 0) >= there:
        raise RuntimeError(
            f"Cannot place the received object on {device!r}: this process has "
            f"only {device_names()}. Send "
            "paddle.incubate.multiprocessing.by_value(tensor, device) with a "
            "device it has; 'cpu' always works."
        )
    if kind == "cpu":
        return core.CPUPlace()
    if kind == "gpu_pinned":
        return core.CUDAPinnedPlace()
    return paddle.device._convert_to_place(
        kind if index is None else f"{kind}:{index}"
    )
