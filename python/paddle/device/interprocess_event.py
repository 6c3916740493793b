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
"""GPU events that processes send to each other.

`InterprocessEvent` is the `event_base` of a `paddle.device.Event` that was
created with `interprocess=True` on a GPU, or received. It replaces
core.CUDAEvent, which does not provide a handle.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from paddle.base import core, shared_storage
from paddle.base.shared_storage import native

if TYPE_CHECKING:
    from . import Event

    _EventBase = core.CUDAEvent | core.CustomDeviceEvent | core.XPUEvent

__all__ = []

_POLL_S = 0.00005


class InterprocessEvent:
    """A GPU event that other processes may receive. Thread-safe."""

    def __init__(self, event: Any):
        self._event = event

    @classmethod
    def make(
        cls, device_id: int | None, enable_timing: bool
    ) -> InterprocessEvent:
        """
        Creates an event on a GPU.

        Raises:
            ValueError: the event should also measure time, or the current
                device is not a GPU.
            MemoryError: the driver cannot create more events.
        """
        if device_id is None:
            raise ValueError(
                "An event with interprocess=True needs a GPU, but the current "
                "device is the CPU. Call paddle.set_device('gpu') first."
            )
        if enable_timing:
            raise ValueError(
                "An event cannot have both interprocess=True and "
                "enable_timing=True, which CUDA does not support. Measure time "
                "with two separate events with enable_timing=True."
            )
        return cls(native.InterprocessEvent(device_id))

    @classmethod
    def from_ipc_handle(
        cls, handle: bytes, device_id: int | None
    ) -> InterprocessEvent:
        """Opens an event by its handle. Without an ID, accepts any GPU."""
        return cls(native.InterprocessEvent.from_ipc_handle(handle, device_id))

    @property
    def place(self) -> core.CUDAPlace:
        """The GPU that the event is on."""
        return self._event.place

    def ipc_handle(self) -> bytes:
        """Returns a handle, which keeps the event alive until it is opened."""
        return self._event.ipc_handle()

    def record(self, stream: core.CUDAStream | None = None) -> None:
        """
        Records the event on a stream, by default the current stream.

        Raises:
            RuntimeError: the process that recorded the event last was killed
                before its work was done, or the one that created it has ended.
        """
        device_id = self.place.gpu_device_id()
        if stream is None:
            stream = core._get_current_stream(device_id)
        if stream.place.gpu_device_id() != device_id:
            raise ValueError(
                "An event must be recorded on a stream of its own GPU, but the "
                f"event is on {self.place} and the stream on {stream.place}. "
                "Pass a stream of the event's GPU."
            )
        self._event.record(stream.cuda_stream)

    def wait(self, stream: core.CUDAStream) -> None:
        """
        Makes a stream wait for the last recorded work. If the process that
        recorded it is killed before that work is done, the stream waits
        forever; `synchronize` on the event does not.
        """
        self._event.wait(stream.place.gpu_device_id(), stream.cuda_stream)

    def query(self) -> bool:
        """
        Returns whether none of the last recorded work is left. This is also
        true if the process that recorded it was killed: the driver has stopped
        its work. If that was incomplete, the event cannot be recorded again.
        """
        return self._event.query()

    def synchronize(self) -> None:
        """Waits until none of the last recorded work is left."""
        # The driver's own function could wait forever for a killed process, and
        # signals do not interrupt it.
        while not self.query():
            time.sleep(_POLL_S)


def _enforce_available() -> None:
    if not shared_storage.is_available():
        raise NotImplementedError(
            "This Paddle cannot send events to other processes: it was built "
            "without shared memory, a C++ part for Linux, or this system lacks "
            "what shared memory needs. Call the event's synchronize() instead, "
            "and then notify the other process."
        )


def ipc_handle(event: Event | _EventBase) -> bytes:
    """
    Returns a handle of an event, which keeps the event alive until the handle
    is opened.

    Raises:
        NotImplementedError: the event is not on a GPU, or there is no shared
            memory.
        RuntimeError: the process that created the event has ended.
        ValueError: the event was created without interprocess=True.
    """
    base = getattr(event, "event_base", event)
    if isinstance(base, InterprocessEvent):
        return base.ipc_handle()
    if isinstance(base, core.CUDAEvent):
        _enforce_available()
        raise ValueError(
            "An event that is sent to another process must be created with "
            "paddle.device.Event(interprocess=True), but received an event "
            "without interprocess=True, or a paddle.device.cuda.Event. Create "
            "such an event, and record it at the same point."
        )
    raise NotImplementedError(
        "Only GPU events can be sent to another process, but received "
        f"{event!r}. Call its synchronize() instead, and then notify the other "
        "process."
    )


def event_of(
    kind: type[Event], handle: bytes, device_id: int | None = None
) -> Event:
    """
    Opens another process's event, or finds this process's own event.

    Raises:
        NotImplementedError: there is no shared memory.
        RuntimeError: the event no longer exists, the process that created it
            has ended, or this process cannot use its GPU.
        ValueError: the handle is invalid, or the event is not on the device.
    """
    _enforce_available()
    event = kind.__new__(kind)
    event.event_base = InterprocessEvent.from_ipc_handle(handle, device_id)
    event.device = event.event_base.place
    return event
