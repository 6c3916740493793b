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

The errors of official Paddle do not say which devices exist: "Class CUDAStream
can only be initialized on the GPU platform", "nonsense interface not found". A
source build has the errors in C++, in stream_errors.cc. `tools/wheel.py` adds
this file to a wheel made from the official one.

The device is checked only after a constructor has failed. If the device is not
the reason, for example for an unknown priority, the error stays.
"""

from __future__ import annotations

import functools
from typing import Any, Callable

from . import libpaddle


def _check_any_device(kind: str, /, *others: Any, **named: Any) -> None:
    # Not at the top: this module needs core.py, which imports this file.
    from . import device_strings

    device_strings.check_stream_device(kind)


def _check_device(
    kind: str, /, device: Any = None, *others: Any, **named: Any
) -> None:
    from . import device_strings

    device_strings.check_stream_device(kind, device)


def _check_plugin(
    device: Any = None, device_id: Any = -1, *others: Any, **named: Any
) -> None:
    from . import device_strings

    device_strings.check_plugin_stream_device(device, device_id)


def _explain_errors(binding: type, check: Callable[..., None]) -> None:
    """Makes the constructor of `binding` call `check` with the same arguments
    if it fails. `check` raises a better error, or returns to keep the first."""
    init = binding.__init__

    @functools.wraps(init)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            init(self, *args, **kwargs)
            return
        except (IndexError, RuntimeError, TypeError, ValueError) as error:
            unexplained = error
        check(*args, **kwargs)
        raise unexplained

    binding.__init__ = wrapped


for _name, _check in {
    "CUDAStream": functools.partial(_check_device, "gpu"),
    "CUDAEvent": functools.partial(_check_any_device, "gpu"),
    "XPUStream": functools.partial(_check_device, "xpu"),
    "XPUEvent": functools.partial(_check_any_device, "xpu"),
    "CustomDeviceStream": _check_plugin,
    "CustomDeviceEvent": _check_plugin,
}.items():
    # A Paddle that takes no plugins lacks the last two.
    if hasattr(libpaddle, _name):
        _explain_errors(getattr(libpaddle, _name), _check)
