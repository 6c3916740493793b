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
"""Errors of the place classes that name the device and those that exist.

The classes of official Paddle raise "use wrong place", and write the reason to
the log. A source build has the errors in C++, in place_errors.cc.
`tools/wheel.py` adds this file to a wheel made from the official one.
"""

from __future__ import annotations

import functools
from typing import Any, Callable

from . import libpaddle


def _check(kind: str, index: int = 0) -> None:
    """
    Raises:
        ValueError: the device does not exist; the error is that of its device
            string.
    """
    # Not at the top: this module needs core.py, which imports this file.
    from . import device_strings

    device_strings.checked_index(index)
    device_strings.place_of(f"{kind}:{index}")


def _check_plugin(kind: str, index: int) -> None:
    """
    Raises:
        ValueError: no plugin here has the device.
    """
    from . import device_strings

    if index >= 0 and kind not in libpaddle.get_all_custom_device_type():
        raise ValueError(
            device_strings.with_devices(
                f"The device must be a plugin's, but received '{kind}:{index}'."
            )
        )
    _check(kind, index)


def _explain_errors(place: type, check: Callable[..., None]) -> None:
    """Makes a place class raise the errors of `check`."""
    init = place.__init__

    @functools.wraps(init)
    def wrapped(self: Any, *args: Any) -> None:
        try:
            init(self, *args)
            return
        except ValueError as error:
            unexplained = error
        check(*args)
        raise unexplained

    place.__init__ = wrapped


_explain_errors(libpaddle.CustomPlace, _check_plugin)
_explain_errors(libpaddle.CUDAPlace, functools.partial(_check, "gpu"))
_explain_errors(libpaddle.XPUPlace, functools.partial(_check, "xpu"))
_explain_errors(libpaddle.IPUPlace, functools.partial(_check, "ipu"))
