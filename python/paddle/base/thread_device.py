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
"""One current device a thread.

Invariant: the place of the main thread is the place of the process. Any other
thread has a place of its own, or has none and follows the main thread, also
when that one moves on.

Python's half of the rule is in `framework._current_expected_place_`; kernels
read the other half, the place of the C++ tracer of the calling thread. Hence
a thread other than the main one is always on one of two kinds of tracer:

- `followers_tracer`, which `framework._set_expected_place` keeps on the place
  of the process, while the thread has no place of its own;
- the tracer of its own place, one a place in the whole process. Its place is
  set once, before any thread can see it, so that a thread that changes its
  device switches a thread-local pointer and writes to nothing that another
  thread reads.

The two levels, "the thread's value, else the process's", are those of JAX's
configuration state.
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any

from . import core, thread_fork

if TYPE_CHECKING:
    from .dygraph.tracer import Tracer
    from .framework import GlobalThreadLocal

__all__ = []

followers_tracer: Tracer | None = None
# The key is the hash of the place, which is what Place's own equality compares.
_place_tracers: dict[int, Tracer] = {}


def concrete_place(place: core.Place) -> core.Place | None:
    """
    Returns a place, such as a tensor's, as an object of the class of its
    device, as a current place has to be; None for an undefined place.

    Raises:
        TypeError: `place` is no place.
    """
    if not isinstance(place, core.Place):
        raise TypeError(
            "The device of a thread should be a paddle.base.core.Place, but "
            f"received {place!r} of type {type(place).__name__}. Please pass a "
            "place like paddle.CPUPlace(), or a string like 'cpu' or 'gpu:0' "
            "to paddle.set_device."
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
    return None


def _tracer_of_place(place: core.Place) -> Tracer:
    key = hash(place)
    tracer = _place_tracers.get(key)
    if tracer is None:
        from .dygraph.tracer import Tracer

        tracer = Tracer()
        tracer._expected_place = place
        # Of two threads that come here at once both go on with one tracer.
        tracer = _place_tracers.setdefault(key, tracer)
    return tracer


def note_first_tracer(tracer: Tracer | None) -> bool:
    """
    Makes the first tracer of the process the one of the threads that follow
    the main thread. Returns whether `tracer` is that one.
    """
    global followers_tracer
    if tracer is None or followers_tracer is not None:
        return False
    from .framework import _current_expected_place_

    tracer._expected_place = _current_expected_place_()
    followers_tracer = tracer
    return True


def tracer_of_thread(
    local: GlobalThreadLocal, tracer: Tracer | None
) -> Tracer | None:
    """
    Returns the tracer to use when the calling thread, which is not the main
    one, is given `tracer`: None leaves dynamic graph mode; any other tracer
    enters it, on the device that is the thread's at this moment.
    """
    if tracer is None:
        return None
    if local.thread_expected_place_ is None:
        return followers_tracer
    return _tracer_of_place(local.thread_expected_place_)


def set_thread_place(state: dict[str, Any], place: core.Place | None) -> None:
    """
    Gives the calling thread, which is not the main one, a place of its own.

    Args:
        state (dict): what `framework.global_var` holds of the calling thread.
        place (Place|None): None, or an undefined place, makes the thread
            follow the main thread.

    Raises:
        TypeError: `place` is no place. Nothing is changed.
    """
    if place is not None:
        place = concrete_place(place)
    tracer = followers_tracer if place is None else _tracer_of_place(place)
    state["thread_expected_place_"] = place
    current = state["_dygraph_tracer_"]
    if current is not None and current is not tracer:
        state["_dygraph_tracer_"] = tracer
        core._switch_tracer(tracer)


def is_left(scopes: list[Any], guard: str) -> bool:
    """
    Tells a guard written as a generator, in its `finally`, whether to put back
    what it found when it was entered.

    Args:
        scopes (list): `global_var.device_scopes_` of then. Its identity tells
            the thread, and unlike an ident is not used again.
        guard (str): the name of the guard.

    Returns:
        bool: False when the guard is not left but dropped, by another thread or
        with the state of a thread that ends: after a fork, that of every thread
        but the forking one.

    Raises:
        RuntimeError: the guard is left on a thread that has not entered it.
    """
    from .framework import global_var

    if global_var.device_scopes_ is scopes:
        return True
    if isinstance(sys.exc_info()[1], GeneratorExit):
        return False
    raise left_elsewhere(guard)


def left_elsewhere(guard: str) -> RuntimeError:
    """
    Returns the error for a device context that is left on a thread that has not
    entered it.
    """
    return RuntimeError(
        f"The device context {guard} is left on thread "
        f"{threading.current_thread().name!r}, which has not entered it. The "
        "current device belongs to a thread: please leave a context on the "
        "thread that entered it, and enter one on each thread that needs it."
    )


def has_inherited_mode(local: GlobalThreadLocal) -> bool:
    """
    Returns whether the calling thread began in dynamic graph mode, rather than
    entered it by a guard that it can leave.
    """
    from .framework import _is_main_thread

    return not _is_main_thread() or local._dygraph_tracer_ is followers_tracer


def _make_forking_thread_the_main_one(was_main: bool) -> None:
    from . import framework

    framework._main_thread_ident = threading.get_ident()
    framework.global_var.is_main_thread_ = True
    # A guard that the fork interrupts may put one of them back as the tracer
    # of the main thread, which writes to its tracer.
    _place_tracers.clear()
    if was_main:
        return

    local = framework.global_var
    followed = framework._init_global_expected_place()
    own = local.thread_expected_place_
    local.thread_expected_place_ = None
    local.device_scopes_[:] = [
        (scope, followed if saved is None else saved)
        for scope, saved in local.device_scopes_
    ]
    in_dygraph_mode = local._dygraph_tracer_ is not None
    local._dygraph_tracer_ = followers_tracer if in_dygraph_mode else None
    framework._set_expected_place(followed if own is None else own)


thread_fork.set_step(thread_fork.DEVICE, _make_forking_thread_the_main_one)
