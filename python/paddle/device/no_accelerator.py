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
"""Functions of paddle.device for a process whose only device is the CPU."""

from __future__ import annotations

from typing import Any, NoReturn

__all__ = []


# Paddle's functions call each other, so the error names none of them.
def _needs_accelerator(*args: Any, **kwargs: Any) -> NoReturn:
    raise ValueError(
        "This function of paddle.device needs a GPU, an XPU or a plugin's "
        "device, but the only device of this process is the CPU. Call "
        "paddle.device.is_available() first."
    )


create_event = _needs_accelerator
create_stream = _needs_accelerator
get_device_properties = _needs_accelerator
max_memory_allocated = _needs_accelerator
max_memory_reserved = _needs_accelerator
memory_allocated = _needs_accelerator
memory_reserved = _needs_accelerator
reset_max_memory_allocated = _needs_accelerator
reset_max_memory_reserved = _needs_accelerator


def empty_cache() -> None:
    """Does nothing: no accelerator has cached memory."""
