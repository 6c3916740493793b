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

"""Controls the plugin in host_device/ beyond the functions of Paddle.

CUSTOM_DEVICE_ROOT must name the folder of the plugin, which Paddle must have
loaded.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from unittest import mock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from unittest import TestCase

    from paddle.device import Event, Stream


class Operation(NamedTuple):
    """An operation that a stream has completed.

    Attributes:
        number: its position among all operations, in completion order.
        device: the number of the stream's device.
        stream: the stream's handle, equal to `stream_base.raw_stream`.
        kind: the function of the plugin's interface that submitted it, such as
            "async_memory_copy_h2d", or the name of its kernel.
        begin_ns: when the stream reached it, before its delays and waits.
        end_ns: when it was complete.
    """

    number: int
    device: int
    stream: int
    kind: str
    begin_ns: int
    end_ns: int


class _Operation(ctypes.Structure):
    # HostDeviceOperation of host_device/control.h.
    _fields_ = [
        ("number", ctypes.c_uint64),
        ("device", ctypes.c_int32),
        ("stream", ctypes.c_void_p),
        ("kind", ctypes.c_char_p),
        ("begin_ns", ctypes.c_uint64),
        ("end_ns", ctypes.c_uint64),
    ]


_TRACE_CAPACITY = 4096  # The capacity of the plugin's trace.


@functools.cache
def _plugin() -> ctypes.CDLL:
    # Only the library instance that Paddle loaded has the devices' state.
    library = Path(os.environ["CUSTOM_DEVICE_ROOT"]) / "libhost_device.so"
    plugin = ctypes.CDLL(str(library), mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    plugin.HostDeviceSetDelay.argtypes = [
        ctypes.c_int32,
        ctypes.c_void_p,
        ctypes.c_uint64,
    ]
    plugin.HostDeviceSetDelay.restype = ctypes.c_int
    plugin.HostDeviceTakeTrace.argtypes = [
        ctypes.POINTER(_Operation),
        ctypes.c_size_t,
    ]
    plugin.HostDeviceTakeTrace.restype = ctypes.c_size_t
    return plugin


def _set_delay(device: int, stream: int | None, microseconds: int) -> None:
    if _plugin().HostDeviceSetDelay(device, stream, microseconds) != 0:
        raise ValueError(
            f"cannot delay stream {stream} of device {device} by "
            f"{microseconds} microseconds: stderr has the reason"
        )


@contextlib.contextmanager
def delay(
    device: int, microseconds: int, stream: int | None = None
) -> Iterator[None]:
    """Delay operations that are submitted within the context.

    Args:
        device: the number of the device that they run on.
        microseconds: how long each operation sleeps, at most 10 seconds.
        stream: the handle of the stream that they run on; None for all streams
            of the device.

    Raises:
        ValueError: the device or stream does not exist, or the delay is too
            long.
    """
    _set_delay(device, stream, microseconds)
    try:
        yield
    finally:
        _set_delay(device, stream, 0)


class TooSlow(AssertionError):
    """Delayed work was complete too early, so that its test proves nothing."""


def check_pending(*delayed: Stream | Event) -> None:
    """Raise TooSlow unless the delayed work of each argument is pending.

    Call it after the work that must not wait, and before checking its results:
    a wrong result is then never excused by a short delay.
    """
    if any(each.query() for each in delayed):
        raise TooSlow("delayed work was complete before the test checked it")


def check_overlap(first: Operation, second: Operation) -> None:
    """Raise TooSlow unless two delayed operations ran at the same time."""
    if first.end_ns <= second.begin_ns or second.end_ns <= first.begin_ns:
        raise TooSlow(f"one operation ran after the other: {first}, {second}")


def with_ample_delay(test: Callable) -> Callable:
    """Decorator: repeats a test that is TooSlow with a longer DELAY.

    On a busy machine, work that does not wait for a delayed stream may take
    longer than the delay. So the test sees DELAY of its module multiplied by
    1, 10 and then 30. All other failures are final.
    """
    names = test.__globals__
    ample = names["DELAY"]

    @functools.wraps(test)
    def repeat(case: TestCase) -> None:
        for factor in (1, 10, 30):
            with mock.patch.dict(names, DELAY=factor * ample):
                try:
                    return test(case)
                except TooSlow:
                    if factor == 30:
                        raise
            case.tearDown()
            case.doCleanups()
            case.setUp()

    return repeat


def take_trace() -> list[Operation]:
    """Return the operations completed since the last call, oldest first.

    Only the last 4096 are kept; a gap between their numbers means that others
    were discarded. Pending operations are not included, so synchronize first.
    """
    operations = (_Operation * _TRACE_CAPACITY)()
    count = _plugin().HostDeviceTakeTrace(operations, _TRACE_CAPACITY)
    return [
        Operation(
            operation.number,
            operation.device,
            operation.stream,
            operation.kind.decode(),
            operation.begin_ns,
            operation.end_ns,
        )
        for operation in operations[:count]
    ]
