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
"""Names of devices, such as 'cpu' and 'gpu:0', and which devices there are."""

from __future__ import annotations

import re
from typing import NamedTuple

import paddle
from paddle.base import core


class DeviceName(NamedTuple):
    """The parts of the name of a device."""

    kind: str
    # None without a number after the colon.
    index: int | None
    # Whether the name has the form of one; the device need not exist.
    is_valid: bool


def parse(name: str) -> DeviceName:
    """Returns the parts of the name of a device."""
    kind, _, number = name.partition(":")
    return DeviceName(
        kind,
        int(number) if number.isdecimal() else None,
        re.fullmatch(r"[A-Za-z]\w*(:\d+)?", name) is not None,
    )


def device_counts() -> dict[str, int]:
    """
    Returns the number of devices per type, keyed by the name that
    `paddle.set_device` takes. The CPU is not included.
    """
    counts = {
        kind: core.get_custom_device_count(kind)
        for kind in core.get_all_custom_device_type()
    }
    if paddle.is_compiled_with_cuda():
        counts["gpu"] = paddle.device.cuda.device_count()
    if paddle.is_compiled_with_xpu():
        counts["xpu"] = paddle.device.xpu.device_count()
    return counts
