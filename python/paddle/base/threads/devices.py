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
"""The current device of each thread.

Invariant: the main thread's place is the process's place. Any other thread has
its own place once it sets one. Until then it uses the main thread's place, and
sees it change.

Python reads the place from `current_place`; kernels read it from the C++ tracer
of the calling thread. The two must match, so a thread other than the main one
uses one of two kinds of tracer:

- `process_tracer`, while it does not have its own place. `set_place` on the
  main thread keeps that tracer on the process's place.
- The tracer of its own place, one per place in the process. The tracer's place
  is set before any thread can see the tracer, and never changes. A thread that
  changes its device switches a thread-local pointer, and does not write to
  state that another thread reads.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from threading import get_ident
from typing import TYPE_CHECKING, Callable

from paddle.base import core, framework

from . import fork, main_thread
from .main_thread import is_main_thread
from .thread_value import UNSET, MainThreadValue, ThreadValue

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from paddle.base.dygraph.tracer import Tracer

    from .thread_value import OrUnset

__all__ = []

_USUAL_PLACES = {core.CPUPlace, core.CUDAPlace, core.CustomPlace, core.XPUPlace}

# Set while Paddle is imported, by `become_process_tracer`.
current_place: MainThreadValue[core.Place] = MainThreadValue(UNSET)

# The tracer of the threads that do not have their own place.
process_tracer: Tracer | None = None
# Whether the main thread is in static graph mode only while it builds a
# program. A thread that starts meanwhile starts in the mode that the main
# thread returns to.
mode_is_temporary = False
# Both are about threads other than the main one: whether `framework.global_var`
# has the thread's state, and whether that state starts in dynamic graph mode,
# which is fixed when the thread sets its first device.
_has_state: ThreadValue[bool] = ThreadValue(False)
_starts_dynamic: ThreadValue[bool] = ThreadValue(False)
# Keyed by hash(place): places are equal if their hashes are.
_place_tracers: dict[int, Tracer] = {}


def concrete_place(place: OrUnset[core.Place] | None) -> OrUnset[core.Place]:
    """
    Converts a place of the base class, such as a tensor's place, to the class
    of its device; a current place must be of such a class. Returns UNSET for
    None and for an undefined place. Thread-safe.

    Raises:
        TypeError: `place` is not a Place.
    """
    if place is None or place is UNSET:
        return UNSET
    if not isinstance(place, core.Place):
        raise TypeError(
            "The device of a thread must be a paddle.base.core.Place, but "
            f"received {place!r} of type {type(place).__name__}. Pass a place "
            "like paddle.CPUPlace(), or a string like 'cpu' or 'gpu:0' to "
            "paddle.set_device."
        )
    if type(place) is not core.Place:
        return place
    if place.is_cpu_place():
        return core.CPUPlace()
    if place.is_gpu_place():
        return core.CUDAPlace(place.gpu_device_id())
    if place.is_cuda_pinned_place():
        return core.CUDAPinnedPlace()
    if place.is_xpu_pinned_place():
        return core.XPUPinnedPlace()
    if place.is_xpu_place():
        return core.XPUPlace(place.xpu_device_id())
    if place.is_ipu_place():
        return core.IPUPlace()
    if place.is_custom_place():
        return core.CustomPlace(
            place.custom_device_type(), place.custom_device_id()
        )
    return UNSET


def set_place(place: OrUnset[core.Place] | None) -> None:
    """
    Sets the process's place on the main thread, and elsewhere the calling
    thread's own place.

    Thread-safe.

    Args:
        place (Place|Unset|None): UNSET, None or an undefined place makes the
            thread use the main thread's place. On the main thread, None or an
            undefined place changes nothing, and UNSET restores the place from
            before a fork, if there was one.

    Raises:
        TypeError: `place` is not a Place. On the main thread, the tracer raises
            a ValueError instead. The place does not change.
    """
    # Contexts call this twice, so it is fast: one function, at most one read of
    # `global_var`, and no check of the usual places.
    if get_ident() == main_thread.ident:
        tracer = framework.global_var.__dict__["_dygraph_tracer_"]
        if type(place) is core.Place:
            place = concrete_place(place)
        elif place is UNSET:
            place = current_place.before_fork
        if place is None or place is UNSET:
            return
        if tracer is not None:
            tracer._expected_place = place
        if tracer is not process_tracer:
            process_tracer._expected_place = place
        current_place.process = place
        return
    if type(place) not in _USUAL_PLACES:
        place = concrete_place(place)
    own_tracer = process_tracer if place is UNSET else _tracer_of_place(place)
    current_place.set_local(place)
    if _has_state.get_local() is UNSET:
        # Creating the state would add a third to the time of a thread's first
        # guard. It is created when the thread first reads `global_var`, for
        # example in its first operator.
        starts_dynamic = _starts_dynamic.get_local()
        if starts_dynamic is UNSET:
            starts_dynamic = framework._dygraph_tracer_ is not None
            _starts_dynamic.set_local(starts_dynamic)
        core._switch_tracer(own_tracer if starts_dynamic else None)
        return
    state = framework.global_var.__dict__
    tracer = state["_dygraph_tracer_"]
    if tracer is not None and tracer is not own_tracer:
        # Assigning the attribute would derive the tracer again.
        state["_dygraph_tracer_"] = own_tracer
        core._switch_tracer(own_tracer)


def _tracer_of_place(place: core.Place) -> Tracer:
    key = hash(place)
    tracer = _place_tracers.get(key)
    if tracer is None:
        from paddle.base.dygraph.tracer import Tracer

        tracer = Tracer()
        tracer._expected_place = place
        # Threads that get here concurrently all use the first one's tracer.
        tracer = _place_tracers.setdefault(key, tracer)
    return tracer


def become_process_tracer(tracer: Tracer | None) -> bool:
    """
    Makes the first tracer of the process `process_tracer`, on the process's
    default device. Returns whether `tracer` is the first.

    Requires: the thread that imports Paddle creates the first tracer.
    """
    global process_tracer
    if tracer is None or process_tracer is not None:
        return False
    if current_place.process is UNSET:
        current_place.process = framework._default_expected_place()
    tracer._expected_place = current_place.process
    process_tracer = tracer
    return True


def tracer_of_thread(tracer: Tracer | None) -> Tracer | None:
    """
    Returns the tracer that the calling thread uses when code sets its tracer to
    `tracer`. None means static graph mode and is returned as it is. Any other
    tracer means dynamic graph mode: the result matches the thread's place.

    The first call is part of creating the thread's state. If the thread has set
    a device before, the graph mode of that moment counts, not `tracer`.

    Thread-safe. Requires: the calling thread is not the main one.
    """
    if _has_state.get_local() is UNSET:
        _has_state.set_local(True)
        starts_dynamic = _starts_dynamic.get_local()
        if starts_dynamic is not UNSET:
            tracer = process_tracer if starts_dynamic else None
    if tracer is None:
        return None
    own = current_place.get_local()
    return process_tracer if own is UNSET else _tracer_of_place(own)


@contextmanager
def operators_on(place: core.Place) -> Iterator[None]:
    """
    A context in which the calling thread's operators run on a place, such as
    that of their input. The current device does not change: on the main thread,
    other threads may follow it. Does nothing in static graph mode. Thread-safe.
    """
    place = concrete_place(place)
    state = framework.global_var.__dict__
    if place is UNSET or state["_dygraph_tracer_"] is None:
        yield
        return
    core._switch_tracer(_tracer_of_place(place))
    try:
        yield
    finally:
        core._switch_tracer(state["_dygraph_tracer_"])


@contextmanager
def _temporary_mode() -> Iterator[None]:
    """
    A context in which the main thread may change the graph mode without
    affecting new threads. Does nothing on other threads. Thread-safe.
    """
    global mode_is_temporary
    if not is_main_thread():
        yield
        return
    previous = mode_is_temporary
    mode_is_temporary = True
    try:
        yield
    finally:
        mode_is_temporary = previous


def static_mode_is_temporary(
    guard: Callable[[Tracer | None], AbstractContextManager[None]],
) -> Callable[[Tracer | None], AbstractContextManager[None]]:
    """
    Decorates a context manager that sets the tracer of the calling thread. On
    the main thread, static graph mode, in which the tracer is None, then has no
    effect on new threads. The decorated context manager is thread-safe.
    """

    @contextmanager
    def temporary_guard(tracer: Tracer | None) -> Iterator[None]:
        mode = _temporary_mode() if tracer is None else nullcontext()
        with mode, guard(tracer):
            yield

    return temporary_guard


@fork.run_in_child(fork.Step.TRACER)
def _use_process_tracer(was_main: bool) -> None:
    global mode_is_temporary
    # A guard that was open at the fork may restore one of these tracers on the
    # main thread, and `set_place` then writes to it.
    _place_tracers.clear()
    if was_main:
        return
    mode_is_temporary = False
    in_dygraph_mode = _starts_dynamic.get_local()
    if _has_state.get_local() is not UNSET or in_dygraph_mode is UNSET:
        in_dygraph_mode = framework.global_var._dygraph_tracer_ is not None
    framework.global_var._dygraph_tracer_ = (
        process_tracer if in_dygraph_mode else None
    )
    set_place(current_place.get())
