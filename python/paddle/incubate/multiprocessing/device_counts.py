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
"""How many devices of each type this process has."""

from __future__ import annotations

import paddle
from paddle.base import core


def device_counts() -> dict[str, int]:
    """
    Returns the number of devices per type, by the names of `paddle.set_device`
    and without the CPU.
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
