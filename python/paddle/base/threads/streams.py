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
"""The current streams of each thread.

Invariant: a thread other than the main one that has set a stream uses, on that
stream's device, a device context that is permanently bound to that stream. A
thread that has set none uses the context of the device's default stream,
whatever the main thread sets. The main thread uses the process's context and
binds it to the stream that it sets, as in Paddle 3.3.0.

So "no stream of its own" and "the default stream" are one state, and only
`set_stream` depends on threads: a guard that restores the stream that it found
on entry handles both.

torch's current streams follow the same rule. The context lookup is C++ code, in
phi/backends/thread_contexts.h.
"""

from __future__ import annotations

import functools
import threading
import weakref
from typing import TYPE_CHECKING, Any, Callable, Union

from paddle.base import core

from ..device_strings import with_devices
from . import fork
from .devices import concrete_place, current_place, set_place
from .main_thread import is_main_thread
from .thread_value import UNSET, ThreadValue

if TYPE_CHECKING:
    from paddle import Tensor
    from paddle.device import Event

    StreamBase = Union[core.CUDAStream, core.CustomDeviceStream]

__all__ = []

native = core.libpaddle._thread_contexts

if is_main_thread():
    native.become_main_thread()

_PLACES_OF_STREAMS = (core.CUDAPlace, core.CustomPlace)
# They need no order of streams: they work in host memory, or with operators of
# the calling thread.
_BACKENDS_WITHOUT_STREAMS = frozenset({"GLOO", "SHM", "THREAD"})

# Keyed by hash(place): places are equal if their hashes are.
_default_streams: dict[int, StreamBase] = {}
# The places where the main thread has ever set a stream. There, threads that
# have set none need the context of the default stream.
_set_by_main_thread: set[int] = set()


class _KnownStream:
    """
    The properties of a stream that `set_stream` uses. They are cached because
    asking C++ for them takes longer than the rest of `set_stream`.
    """

    _context = None

    def __init__(self, stream: StreamBase) -> None:
        self.place = stream.place
        self.key = hash(self.place)
        # Whether Paddle has per-thread contexts for this type of stream.
        self.has_contexts = isinstance(stream, native.stream_types)
        self.is_default = (
            self.has_contexts
            and stream.raw_stream == default_stream(self.place).raw_stream
        )

    def context(self, stream: StreamBase) -> Any:
        if self._context is None:
            # Threads that get here concurrently all use the first one's.
            made = native.StreamContext(stream)
            vars(self).setdefault("_context", made)
        return self._context


# An entry, with its context, is removed together with its stream.
_known: weakref.WeakKeyDictionary[StreamBase, _KnownStream] = (
    weakref.WeakKeyDictionary()
)


class _OwnStreams:
    """The streams that a thread has set, with their contexts."""

    def __init__(self) -> None:
        self._ident = threading.get_ident()
        self._in_use = None
        self.by_place: dict[int, tuple[StreamBase, Any]] = {}

    def __del__(self) -> None:
        if self._in_use is None:
            return
        if self._ident == threading.get_ident():
            native.use_thread_contexts(self, {})
        else:
            # A fork drops the state of all other threads; interpreter exit
            # drops the state of threads that still run. Destroying a context
            # would wait for their work.
            native.keep_forever((self._in_use, self.by_place))


_own_streams: ThreadValue[_OwnStreams] = ThreadValue(_OwnStreams())


def _current(place: core.Place) -> StreamBase:
    if isinstance(place, core.CustomPlace):
        return core._get_current_custom_device_stream(
            place.get_device_type(), place.get_device_id()
        )
    return core._get_current_stream(place.get_device_id())


def _bind_process_context(stream: StreamBase, place: core.Place) -> None:
    if isinstance(place, core.CustomPlace):
        core._set_current_custom_device_stream(
            place.get_device_type(), place.get_device_id(), stream
        )
    else:
        core._set_current_stream(stream)


def default_stream(place: core.Place) -> StreamBase:
    """
    Returns the default stream of a device. `place` may be a tensor's place.
    Thread-safe.

    Requires: the first call for a device precedes the first set_stream on it.

    Raises:
        TypeError: the device is not a GPU and not a custom device.
    """
    concrete = concrete_place(place)
    if not isinstance(concrete, _PLACES_OF_STREAMS):
        raise TypeError(
            with_devices(
                "The device must be a GPU or a custom device, which have "
                f"per-thread streams, but received {place!r}."
            )
        )
    key = hash(concrete)
    stream = _default_streams.get(key)
    if stream is None:
        # C++ code may have set another stream for this thread.
        found = native.with_process_contexts(_current, concrete)
        stream = _default_streams.setdefault(key, found)
    return stream


def _know(stream: StreamBase) -> _KnownStream:
    known = _known.get(stream)
    if known is None:
        known = _known.setdefault(stream, _KnownStream(stream))
    return known


def _prepare_process_stream(place: core.Place) -> None:
    default = default_stream(place)
    # No context can be created during a CUDA graph capture. Threads that have
    # set no stream then use the main thread's stream, as in Paddle 3.3.0.
    if native.is_capturing():
        return
    context = _know(default).context(default)
    native.become_main_thread()
    native.keep_default_context(context)
    _set_by_main_thread.add(hash(place))


def set_stream(stream: StreamBase) -> StreamBase | None:
    """
    Makes a stream the current stream of the calling thread on its device.

    Thread-safe.

    Args:
        stream (core.CUDAStream|core.CustomDeviceStream): any stream of the
            device. With the default stream, the thread no longer has its own
            stream.

    Returns:
        The previous current stream. None if nothing was done, because Paddle
        has no per-thread contexts for this type of stream: the caller then sets
        the process's stream.

    Raises:
        RuntimeError: the thread is inside a C++ guard that has set a stream of
            this device. Nothing changes.
    """
    known = _known.get(stream)
    # First, since a guard would hide the default stream that _know records.
    place = stream.place if known is None else known.place
    native.enforce_no_context_guard(place)
    known = known or _know(stream)
    if not known.has_contexts:
        return None
    if is_main_thread():
        return _set_process_stream(stream, known)
    by_place = dict(_own_streams.get().by_place)
    previous, _ = by_place.pop(known.key, (_default_streams[known.key], None))
    if not known.is_default:
        by_place[known.key] = (stream, known.context(stream))
    _use_own_streams(by_place)
    return previous


def _set_process_stream(stream: StreamBase, known: _KnownStream) -> StreamBase:
    if known.key not in _set_by_main_thread:
        _prepare_process_stream(known.place)
    previous = _current(known.place)
    _bind_process_context(stream, known.place)
    return previous


def _use_own_streams(by_place: dict[int, tuple[StreamBase, Any]]) -> None:
    own = _own_streams.get_local()
    if own is UNSET:
        own = _OwnStreams()
        _own_streams.set_local(own)
    native.use_thread_contexts(own, by_place)


class WorkerStreams:
    """
    The streams of threads that work for the calling thread, such as those of a
    loader: if it is the main thread, the process's streams; else the streams
    that are current there now. Thread-safe.
    """

    def __init__(self) -> None:
        self._of_main_thread = is_main_thread()
        if self._of_main_thread:
            # Paddle may have been imported on another thread.
            native.become_main_thread()
        # The main thread has none.
        own = _own_streams.get().by_place.values()
        self._raw = {stream.raw_stream for stream, _ in own}

    def are_current(self) -> bool:
        """
        Returns whether new threads that work for the calling thread would use
        the same streams.
        """
        now = WorkerStreams()
        return self._raw == now._raw and (
            self._of_main_thread == now._of_main_thread
            # Then all threads without their own streams use the same ones.
            or not _set_by_main_thread
        )


def wait_for(tensor: Tensor) -> None:
    """
    Waits, without the GIL, until the calling thread's current stream has
    computed a tensor on a custom device. Thread-safe.
    """
    place = tensor.place
    if place.is_custom_place():
        _current(concrete_place(place)).synchronize()


def threads_have_streams(place: core.Place) -> bool:
    """
    Returns whether threads can have their own current streams on a device.
    Thread-safe. Has the same precondition as `default_stream`.
    """
    place = concrete_place(place)
    return isinstance(place, _PLACES_OF_STREAMS) and isinstance(
        default_stream(place), native.stream_types
    )


def gpu_to_leave(place: core.Place | None) -> int | None:
    """
    Returns the index of CUDA's current device if it has to be switched for work
    on a place, else None. CUDA creates events on its own current device, not on
    Paddle's. Thread-safe.
    """
    if not isinstance(place, core.CUDAPlace):
        return None
    before = core.get_cuda_current_device_id()
    return None if before == place.get_device_id() else before


def new_event(place: core.Place) -> Event:
    """
    Returns an event of a device that need not be the current one. A guard would
    change the current device: on the main thread, other threads may follow it.
    Thread-safe.
    """
    from paddle import device

    event = device.Event.__new__(device.Event)
    event.device = place
    custom = isinstance(place, core.CustomPlace)
    gpu_before = gpu_to_leave(place)
    if gpu_before is not None:
        core.set_cuda_current_device_id(place.get_device_id())
    try:
        event.event_base = device._create_event_base(
            device_type=place.get_device_type() if custom else None,
            device_id=place.get_device_id(),
        )
    finally:
        if gpu_before is not None:
            core.set_cuda_current_device_id(gpu_before)
    return event


def event_after_work(place: core.Place) -> Event:
    """
    Returns an event recorded after the work that the calling thread has started
    on its current stream of a device. Thread-safe.
    """
    from paddle.device import current_stream

    place = concrete_place(place)
    event = new_event(place)
    event.record(current_stream(place))
    return event


def others_have_streams(place: core.Place) -> bool:
    """
    Returns whether the calling thread uses the default stream of a device on
    which other threads have set streams. The data that it passes on may then
    come from their streams. Thread-safe.
    """
    if is_main_thread():
        return False
    key = hash(place)
    return key in _default_streams and key not in _own_streams.get().by_place


def with_streams_of_creator(
    target: Callable[..., None],
) -> Callable[..., None]:
    """
    Returns a function that calls `target` with the streams that are current on
    the calling thread now. It is for a new thread that works for the calling
    thread. Thread-safe.
    """
    current = [
        (_current(default.place), default)
        for default in list(_default_streams.values())
    ]
    # A stream that no context can be bound to is the process's stream: the new
    # thread is on it in any case.
    streams = [
        stream
        for stream, default in current
        if stream.raw_stream != default.raw_stream
        and isinstance(stream, native.stream_types)
    ]
    if not streams:
        return target
    for stream in streams:
        # Create the context here, where the caller sees an error.
        _know(stream).context(stream)

    def on_streams_of_creator(*args: Any) -> None:
        for stream in streams:
            set_stream(stream)
        target(*args)

    return on_streams_of_creator


class CreatorsThread(threading.Thread):
    """
    A thread that works for its creator, on the device and the streams that are
    current there at creation. If the creator does not have its own device, this
    thread does not either.
    """

    def __init__(self, target: Callable[..., None], args: Any = ()) -> None:
        place = current_place.get_local()

        def on_device_of_creator(*args: Any) -> None:
            set_place(place)
            target(*args)

        super().__init__(
            target=with_streams_of_creator(on_device_of_creator), args=args
        )


def per_context_set(program_id: Callable[..., int]) -> Callable[..., int]:
    """
    Decorates a function that returns the id under which a program is cached. A
    program keeps the contexts that it was built on. So the result differs for
    each set of contexts, and the program is built once per set.

    The decorated function is as thread-safe as `program_id`. A program stays in
    the cache until the process ends.
    """

    @functools.wraps(program_id)
    def program_id_of_contexts(*program: Any) -> int:
        contexts = native.thread_contexts_id()
        if contexts == 0:
            return program_id(*program)
        # Not negative: it becomes an attribute of type int64.
        return hash((program_id(*program), contexts)) & (2**62 - 1)

    return program_id_of_contexts


def on_process_contexts(function: Callable[..., Any]) -> Callable[..., Any]:
    """
    Decorates a function that builds or runs an object that keeps its contexts
    and that any thread may run, such as a predictor. Inside it, the calling
    thread uses the process's contexts. The work there is ordered after the
    thread's earlier work and before its later work.

    The decorated function is as thread-safe as `function`.
    """

    @functools.wraps(function)
    def function_on_process_contexts(*args: Any, **kwargs: Any) -> Any:
        if is_main_thread():
            return function(*args, **kwargs)
        return native.with_process_contexts(function, *args, **kwargs)

    return function_on_process_contexts


def enforce_process_streams(process_group: Any) -> None:
    """
    Raises an error if the calling thread uses streams that the operations of a
    process group would not wait for, since they wait for the process's streams
    only. Thread-safe.

    Args:
        process_group (ProcessGroup|None): nothing is raised for a group that
            has no streams, such as gloo's.

    Raises:
        RuntimeError: the thread's stream is not the process's stream.
    """
    if (
        is_main_thread()
        or process_group is None
        or process_group.name() in _BACKENDS_WITHOUT_STREAMS
    ):
        return
    places = native.places_on_other_streams()
    if places:
        raise RuntimeError(
            "A process group waits for the stream of the process, but thread "
            f"{threading.current_thread().name!r} is on another stream of "
            f"{places[0]}, whose work it would not wait for. Call "
            "stream.synchronize() and leave stream_guard first, here and on "
            "the main thread."
        )


@fork.run_in_child(fork.Step.STREAMS)
def _make_own_streams_the_process_ones(was_main: bool) -> None:
    if was_main:
        return
    by_place = _own_streams.get().by_place
    if by_place:
        # Destroying a context would wait for the work of threads that do not
        # exist in the child.
        native.keep_forever(by_place)
        _use_own_streams({})
    native.become_main_thread()
    replaced = [
        set_stream(_default_streams[key])
        for key in _set_by_main_thread - by_place.keys()
    ]
    replaced += [set_stream(stream) for stream, _ in by_place.values()]
    if replaced:
        # The destructor of the main thread's stream would wait for its threads.
        native.keep_forever(replaced)
