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
"""The state that stream guards set on entry and restore on exit.

Invariant: leaving a guard undoes all of its changes in reverse order, even if
undoing one of them raises an error. A guard that fails on entry has changed
nothing.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any, Callable

from paddle.base import core

from . import device_guards, streams as streams_of_threads
from .devices import current_place, set_place
from .thread_value import UNSET

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paddle.device import Stream

    SetStream = Callable[[Stream], Stream]

__all__ = []


def _check_one_per_device(streams: Sequence[Stream]) -> None:
    by_place: dict[int, Stream] = {}
    for stream in streams:
        if not hasattr(stream, "stream_base"):
            continue  # Not a stream: setting it raises the error.
        first = by_place.setdefault(hash(stream.device), stream)
        if first != stream:
            raise ValueError(
                "A guard takes one stream per device, but received two of "
                f"{stream.device}: {first} and {stream}. Please pass only the "
                "stream that work should run on."
            )


def _swap(stream: Stream, set_stream: SetStream) -> Callable[[], Any]:
    """Sets a stream and returns a function that restores the previous one."""
    # Do not create a Stream for the previous stream: that takes longer than the
    # rest of this function.
    base = getattr(stream, "stream_base", None)
    previous = None if base is None else streams_of_threads.set_stream(base)
    if previous is None:
        return functools.partial(set_stream, set_stream(stream))
    return lambda: streams_of_threads.set_stream(previous)


def _enter_one(stream: Stream, set_stream: SetStream) -> Callable[[], Any]:
    # An object without a device is no stream: _swap raises the error.
    place = getattr(stream, "device", None)
    gpu_before = streams_of_threads.gpu_to_leave(place)
    restore_stream = _swap(stream, set_stream)
    # UNSET on a thread that follows the main thread, whose device may change
    # inside the context.
    saved = current_place.saved()
    # Place's own operator compares hashes, too, but is slower.
    is_current = saved is not UNSET and hash(place) == hash(saved)
    if is_current and gpu_before is None:
        return restore_stream

    # An ExitStack would add almost half to the time of a guard.
    def restore() -> None:
        try:
            if not is_current:
                set_place(saved)
        finally:
            try:
                if gpu_before is not None:
                    core.set_cuda_current_device_id(gpu_before)
            finally:
                restore_stream()

    try:
        if gpu_before is not None:
            core.set_cuda_current_device_id(place.get_device_id())
        if not is_current:
            set_place(place)
    except BaseException:
        restore()
        raise
    return restore


def _enter_several(
    streams: Sequence[Stream], set_stream: SetStream
) -> Callable[[], Any]:
    _check_one_per_device(streams)
    with contextlib.ExitStack() as stack:
        for stream in streams:
            stack.callback(_swap(stream, set_stream))
        return stack.pop_all().close


def enter(
    guard: object, streams: Stream | Sequence[Stream], set_stream: SetStream
) -> None:
    """
    Enters `guard`, which makes each stream the calling thread's current stream
    on its device. A single stream also makes its device the current one; on the
    main thread, this also applies to threads that have set no device. A
    sequence does not change the current device. Thread-safe.

    Args:
        guard (object): the context that `leave` is called with.
        streams (Stream|Sequence[Stream]): a stream, or one stream per device.
        set_stream (Callable): sets a stream and returns the previous one.

    Raises:
        ValueError: two of the streams are on the same device. Nothing changes.
    """
    several = isinstance(streams, (list, tuple))
    enter_streams = _enter_several if several else _enter_one
    device_guards.push(guard, enter_streams(streams, set_stream))


def leave(guard: object) -> None:
    """
    Leaves `guard`, and restores the streams and the device of the calling
    thread. Thread-safe.

    Raises:
        RuntimeError: the thread is not inside `guard`. Nothing changes.
    """
    device_guards.pop(guard)()
