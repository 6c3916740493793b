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
"""Device counts and names of this process."""

from __future__ import annotations

from . import core

__all__ = []


def device_count(kind: str) -> int:
    """
    Returns the number of devices of a type, which is given by its name for
    `paddle.set_device`: a type that Paddle was compiled with, or a plugin's.
    Thread-safe.
    """
    if kind == "gpu":
        return core.get_cuda_device_count()
    if kind == "xpu":
        return core.get_xpu_device_count()
    if kind == "ipu":
        return core.get_ipu_device_count()
    return core.get_custom_device_count(kind)


def device_counts() -> dict[str, int]:
    """
    Returns the number of devices of each type that Paddle was compiled with or
    that a plugin provides. The keys are names for `paddle.set_device`.
    Thread-safe.
    """
    kinds = list(core.get_all_custom_device_type() or [])
    if core.is_compiled_with_cuda():
        kinds.append("gpu")
    if core.is_compiled_with_xpu():
        kinds.append("xpu")
    if core.is_compiled_with_ipu():
        kinds.append("ipu")
    return {kind: device_count(kind) for kind in kinds}


def device_names() -> list[str]:
    """Returns the names of all devices, the CPU first. Thread-safe."""
    return [
        "cpu",
        *(
            f"{kind}:{index}"
            for kind, count in device_counts().items()
            for index in range(count)
        ),
    ]
