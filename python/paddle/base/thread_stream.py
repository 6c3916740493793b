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
"""One current stream a thread.

Invariant: a thread other than the main one that has set a stream uses, for that
stream's device, the device context of that stream, which is bound to no other;
one that has set none uses the context of the device's default stream, whatever
the main thread sets. The main thread uses the context of the process, and binds
it to the stream that it sets, as it always did.

Hence "no stream of its own" and "the default stream" are one state, and nothing
but `set_stream` has to know of threads: a guard that sets the stream it has
found on entry puts back either.

The rule is that of torch's current streams. Contexts are kept from each other
in C++, in phi/backends/thread_contexts.h.
"""

from __future__ import annotations

import functools
import threading
import weakref
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Callable, Union

from . import core, framework, libpaddle, thread_fork

if TYPE_CHECKING:
    from types import ModuleType

    StreamBase = Union[core.CUDAStream, core.CustomDeviceStream]

__all__ = []


def _binding() -> ModuleType | None:
    """
    Part of libpaddle, or a module of its own beside it, which then has to see
    to it that libraries ask it, those that are loaded later too.
    """
    if hasattr(libpaddle, "_thread_contexts"):
        return libpaddle._thread_contexts
    try:
        from . import _thread_contexts
    except ImportError:
        # One that is there and cannot be loaded is not to be passed over.
        if find_spec("._thread_contexts", __package__) is not None:
            raise
        return None
    return _thread_contexts


_native = _binding()

# All keys are hashes of places, which is what Place's own equality compares.
_default_streams: dict[int, StreamBase] = {}
# The places whose default stream threads find where they have set none, since
# the main thread has set a stream there once.
_set_by_main: set[int] = set()
# A context goes with its stream.
_contexts: weakref.WeakKeyDictionary[StreamBase, Any] = (
    weakref.WeakKeyDictionary()
)


class _Own:
    """The streams that a thread has set, with their contexts."""

    def __init__(self) -> None:
        self._ident = threading.get_ident()
        self._native = None
        self.streams: dict[int, tuple[StreamBase, Any]] = {}

    def use(self, streams: dict[int, tuple[StreamBase, Any]]) -> None:
        native = _native.ThreadContexts(list(streams.values()))
        _native.use_thread_contexts(native if streams else None)
        # What was in use until now may go from here on.
        self._native = native
        self.streams = streams

    def __del__(self) -> None:
        if not self.streams:
            return
        if self._ident == threading.get_ident():
            _native.use_thread_contexts(None)
        else:
            # A fork drops what other threads had, whose work would be waited
            # for; the end of the interpreter what they have yet.
            _native.keep_for_ever((self._native, self.streams))


class _Local(threading.local):
    def __init__(self) -> None:
        self.own = _Own()


_local = _Local()


def _current(place: core.Place) -> StreamBase:
    if isinstance(place, core.CustomPlace):
        return core._get_current_custom_device_stream(
            place.get_device_type(), place.get_device_id()
        )
    return core._get_current_stream(place.get_device_id())


def _bind_process_context(stream: StreamBase) -> None:
    place = stream.place
    if isinstance(place, core.CustomPlace):
        core._set_current_custom_device_stream(
            place.get_device_type(), place.get_device_id(), stream
        )
    else:
        core._set_current_stream(stream)


def _default_stream(place: core.Place) -> StreamBase:
    """
    Returns the stream that a device began with. To be called before any thread
    sets another one on it.
    """
    key = hash(place)
    stream = _default_streams.get(key)
    if stream is None:
        stream = _default_streams.setdefault(key, _current(place))
    return stream


def _context_of(stream: StreamBase) -> Any:
    context = _contexts.get(stream)
    if context is None:
        # Of two threads that come here at once both go on with one context.
        made = _native.StreamContext(stream)
        context = _contexts.setdefault(stream, made)
    return context


def _keep_default(place: core.Place) -> None:
    key = hash(place)
    if key not in _set_by_main:
        context = _context_of(_default_stream(place))
        _native.become_main_thread()
        _native.keep_default_context(context)
        _set_by_main.add(key)


def set_stream(stream: StreamBase) -> StreamBase | None:
    """
    Makes a stream the current one of the calling thread, on its device.

    Args:
        stream (core.CUDAStream|core.CustomDeviceStream): any stream of the
            device, the default one included.

    Returns:
        The stream that was current before; None where nothing was done, since
        the device has no such streams: the caller then sets the process's.
    """
    if _native is None or not isinstance(stream, _native.stream_types):
        return None
    place = stream.place
    if hasattr(_native, "redirect_look_ups"):
        _native.redirect_look_ups()
    if framework._is_main_thread():
        # In a capture no context can be made: then other threads are moved.
        if not _native.is_capturing():
            _keep_default(place)
        previous = _current(place)
        _native.use_memory_of(stream)
        try:
            _bind_process_context(stream)
        except BaseException:
            _native.use_memory_of(previous)
            raise
        return previous
    default = _default_stream(place)
    own = _local.own
    streams = dict(own.streams)
    key = hash(place)
    previous, _ = streams.pop(key, (default, None))
    if stream.raw_stream != default.raw_stream:
        streams[key] = (stream, _context_of(stream))
    own.use(streams)
    return previous


def others_have_streams(place: core.Place) -> bool:
    """
    Returns whether threads have ever set streams on a device, and the calling
    one, on the default stream, may be handing over their work.
    """
    if framework._is_main_thread():
        return False
    key = hash(place)
    return key in _default_streams and key not in _local.own.streams


def with_streams_of_creator(
    target: Callable[..., None],
) -> Callable[..., None]:
    """
    Returns what a thread is to run that works for the calling one: `target`, on
    the streams that are current now.
    """
    current = [
        (_current(default.place), default)
        for default in list(_default_streams.values())
    ]
    streams = [
        stream
        for stream, default in current
        if stream.raw_stream != default.raw_stream
    ]
    if not streams:
        return target
    for stream in streams:
        # Where an error reaches somebody.
        _context_of(stream)

    def on_streams_of_creator(*args: Any) -> None:
        for stream in streams:
            set_stream(stream)
        target(*args)

    return on_streams_of_creator


class CreatorsThread(threading.Thread):
    """
    A thread that works for the one that makes it, and so is on the device and
    the streams that are current there at that time. Where the maker follows the
    main thread's device, it does too.
    """

    def __init__(self, target: Callable[..., None], args: Any = ()) -> None:
        place = framework.global_var.thread_expected_place_

        def on_device_of_creator(*args: Any) -> None:
            framework._set_expected_place(place)
            target(*args)

        super().__init__(
            target=with_streams_of_creator(on_device_of_creator), args=args
        )


def of_contexts_in_use(program_id: Callable[..., int]) -> Callable[..., int]:
    """
    Decorator of a function that returns the number under which a program is
    built for its first run and found again: a program keeps the contexts that
    it is built on, so that it is one program for each set of them.

    What a program was built on stays until the process ends.
    """
    if _native is None:
        return program_id

    @functools.wraps(program_id)
    def program_id_of_contexts(*program: Any) -> int:
        contexts = _native.number_of_thread_contexts()
        if contexts == 0:
            return program_id(*program)
        return hash((program_id(*program), contexts)) & (2**62 - 1)

    return program_id_of_contexts


def on_process_contexts(function: Callable[..., Any]) -> Callable[..., Any]:
    """
    Decorator of a function that builds or runs what keeps its contexts and may
    be run by any thread, such as a predictor: inside it the calling thread uses
    the contexts of the process. The work there comes after what the thread has
    started, and before what it starts next.
    """
    if _native is None:
        return function

    @functools.wraps(function)
    def function_on_process_contexts(*args: Any, **kwargs: Any) -> Any:
        if framework._is_main_thread():
            return function(*args, **kwargs)
        # `function` may set a stream: what is current now is still waited for.
        kept = _local.own.streams
        try:
            return _native.with_process_contexts(function, *args, **kwargs)
        finally:
            del kept

    return function_on_process_contexts


def enforce_process_streams(what: str) -> None:
    """
    Raises:
        RuntimeError: the calling thread's work goes to another stream than the
            process's, which alone `what` would wait for.
    """
    if _native is None or framework._is_main_thread():
        return
    for place in _native.places_apart():
        raise RuntimeError(
            f"{what} waits for work on the stream of the process, but the "
            f"work of thread {threading.current_thread().name!r} on "
            f"{place} goes to another one. Please leave stream_guard "
            "first, after stream.synchronize(), here and on the main thread."
        )


def _make_own_streams_the_process_ones(was_main: bool) -> None:
    if was_main:
        return
    own = _local.own.streams
    if own:
        # To destroy a context waits for work of threads that are not here.
        _native.keep_for_ever(own)
        _local.own.use({})
    _native.become_main_thread()
    for key in _set_by_main - own.keys():
        set_stream(_default_streams[key])
    for stream, _ in own.values():
        set_stream(stream)


if _native is not None:
    thread_fork.set_step(
        thread_fork.STREAMS, _make_own_streams_the_process_ones
    )
