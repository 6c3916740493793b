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
"""Pickles events for other processes."""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler

from paddle.base import core
from paddle.device import Event, interprocess_event


def _rebuild_event(handle: bytes) -> Event:
    return interprocess_event.event_of(Event, handle)


def _reduce_event(
    event: Event | core.CUDAEvent | core.CustomDeviceEvent | core.XPUEvent,
) -> tuple:
    try:
        return _rebuild_event, (interprocess_event.ipc_handle(event),)
    except Exception as error:
        from .feeder_errors import reduce_error

        return reduce_error(error, "an event")


def register() -> None:
    """
    Registers how `multiprocessing` pickles events. Events of Paddle's internal
    classes have no handle, and are refused with the reason.
    """
    for kind in (
        Event,
        core.CUDAEvent,
        core.CustomDeviceEvent,
        core.XPUEvent,
    ):
        ForkingPickler.register(kind, _reduce_event)
