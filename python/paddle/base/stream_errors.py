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
"""Errors of the classes of streams and events that name the device.

The classes are bindings of C++ classes, whose errors do not say which devices
exist: "Class CUDAStream can only be initialized on the GPU platform",
"nonsense interface not found". Where a constructor fails, it now raises the
error of device strings if the device is the reason. An error with another
reason, such as an unknown priority, stays. All functions are thread-safe.
"""

from __future__ import annotations

import functools
from typing import Any, Callable

from . import core, device_strings

__all__ = []


def _check_type(kind: str, /, *others: Any, **named: Any) -> None:
    device_strings.place_of(kind)


def _check_index(
    kind: str, /, device: Any = None, *others: Any, **named: Any
) -> None:
    is_current = device is None or (isinstance(device, int) and device < 0)
    if isinstance(device, core.Place):
        if not getattr(device, f"is_{kind}_place")():
            raise device_strings.error_of_type(device)
        is_current = True
    device_strings.place_of(
        kind if is_current else f"{kind}:{device_strings.checked_index(device)}"
    )


def _check_plugin(
    device: Any = None, device_id: Any = -1, *others: Any, **named: Any
) -> None:
    if isinstance(device, core.Place):
        if not device.is_custom_place():
            raise device_strings.error_of_type(device)
        return
    # Unlike device strings, the classes take only the exact name.
    if device_strings.plugin_type(device) != device:
        raise device_strings.error_of_plugin_type(device)
    if not isinstance(device_id, int) or device_id != -1:
        device_strings.place_of(
            f"{device}:{device_strings.checked_index(device_id)}"
        )


def _explain(binding: type, check: Callable[..., None]) -> None:
    """Makes the constructor of `binding` raise the errors of `check`, which
    takes the same arguments, if it fails."""
    init = binding.__init__

    @functools.wraps(init)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            init(self, *args, **kwargs)
            return
        except (IndexError, RuntimeError, TypeError, ValueError) as error:
            unexplained = error
        try:
            check(*args, **kwargs)
        except (
            device_strings.DeviceTypeError,
            device_strings.MissingDeviceError,
        ):
            raise
        except ValueError as error:
            unexplained = device_strings.MissingDeviceError(*error.args)
        raise unexplained

    binding.__init__ = wrapped


def explain_errors() -> None:
    """Makes the classes of streams and events name the device in their
    errors."""
    for name, check in {
        "CUDAStream": functools.partial(_check_index, "gpu"),
        "CUDAEvent": functools.partial(_check_type, "gpu"),
        "XPUStream": functools.partial(_check_index, "xpu"),
        "XPUEvent": functools.partial(_check_type, "xpu"),
        "CustomDeviceStream": _check_plugin,
        "CustomDeviceEvent": _check_plugin,
    }.items():
        # A Paddle that takes no plugins lacks the last two.
        if hasattr(core, name):
            _explain(getattr(core, name), check)
