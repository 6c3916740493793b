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
"""The device that a thread places the operators of a static graph on.

Invariant: the main thread's is `framework._current_device`, which is the
process's. Any other thread has one of its own from the time it sets one until
it puts "not set" back, and the process's otherwise.
"""

from __future__ import annotations

import threading

from . import thread_fork

__all__ = []

_NOT_SET = object()


class _OpDevice(threading.local):
    own = _NOT_SET


_op_device = _OpDevice()


def switch(device: str | None) -> object:
    """
    Sets the device of the calling thread, which is not the main one. Returns
    what was set, for another call to put back.
    """
    previous, _op_device.own = _op_device.own, device
    return previous


def of_process(device: object) -> str | None:
    """
    Returns the device that the main thread sets when it is given `device`: one
    that `switch` returned to it before a fork made it the main thread may say
    "not set", which there means no device.
    """
    return None if device is _NOT_SET else device


def current(device_of_process: str | None) -> str | None:
    """Returns the calling thread's device."""
    own = _op_device.own
    return device_of_process if own is _NOT_SET else own


def _make_own_device_the_process_one(was_main: bool) -> None:
    from . import framework

    if not was_main and _op_device.own is not _NOT_SET:
        framework._current_device = _op_device.own
        _op_device.own = _NOT_SET


thread_fork.set_step(
    thread_fork.OPERATOR_DEVICE, _make_own_device_the_process_one
)
