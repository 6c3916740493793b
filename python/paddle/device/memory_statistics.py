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
"""Paddle's memory statistics of a device, as one dict."""

from __future__ import annotations

from typing import TYPE_CHECKING

import paddle
from paddle.base import core

if TYPE_CHECKING:
    from paddle._typing.device_like import PlaceLike

__all__ = []


def memory_stats(device: PlaceLike | int | None = None) -> dict[str, int]:
    """
    Returns how many bytes of a device's memory tensors use ("allocated") and
    Paddle's allocator holds ("reserved"), each as the current and the peak
    value. Thread-safe.

    Note:
        If every thread that has allocated memory on a device has ended, Paddle
        loses their counts, and later figures are too small or negative. To
        avoid this, allocate a tensor on the device on a thread that does not
        end, such as the main thread, before other threads use it.

    Args:
        device (str|int|paddle.Place, optional): the device, such as "cpu" or
            "gpu:0", or its index among the devices of the current type.
            Default: None, the current device, unlike `memory_allocated`, which
            then uses device 0 of a plugin.

    Returns:
        dict: the keys are "allocated_bytes.all.current",
            "allocated_bytes.all.peak", "reserved_bytes.all.current" and
            "reserved_bytes.all.peak".

    Raises:
        ValueError: the device does not exist, or Paddle keeps no memory
            statistics for it.

    Examples:
        .. code-block:: python

            >>> import paddle

            >>> before = paddle.device.memory_stats("cpu")
            >>> x = paddle.ones([1024], device="cpu")
            >>> after = paddle.device.memory_stats("cpu")
            >>> key = "allocated_bytes.all.current"
            >>> print(after[key] - before[key])
            4096
    """
    place = paddle.device.device_to_place(device)
    if isinstance(place, core.CPUPlace):
        index, kind = 0, "host"
    else:
        index, kind = _index_of_statistics(place), "device"
    stats = {}
    for name in ("Allocated", "Reserved"):
        for figure in ("current", "peak"):
            read = getattr(core, f"{kind}_memory_stat_{figure}_value")
            stats[f"{name.lower()}_bytes.all.{figure}"] = read(name, index)
    return stats


def _index_of_statistics(place: core.Place) -> int:
    custom_types = core.get_all_custom_device_type() or []
    # Paddle's statistics are per index only: those of a second custom device
    # type would be mixed with those of the first.
    if isinstance(place, (core.CUDAPlace, core.XPUPlace)) or (
        isinstance(place, core.CustomPlace)
        and place.get_device_type() == custom_types[0]
    ):
        return place.get_device_id()
    raise ValueError(
        f"Paddle keeps no memory statistics for {place}. Please pass the CPU, "
        "a GPU, an XPU or a device of the first custom device type of "
        f"{custom_types}."
    )
