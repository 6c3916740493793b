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
"""Stands in for pybind/thread_contexts.cc: only the main thread sets streams.

It has what paddle/base/threads/streams.py calls there. The streams that the
main thread sets are the process's, as in the official wheel.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Callable

if TYPE_CHECKING:
    from paddle.base import core

# No stream has a context of its own.
stream_types = ()


def enforce_no_context_guard(place: core.Place) -> None:
    """
    Refuses a stream that the calling thread sets, unless it is the main one.

    Raises:
        NotImplementedError: the calling thread is not the main one.
    """
    from paddle.base.threads import main_thread, streams

    if not main_thread.is_main_thread():
        raise NotImplementedError(
            f"Thread {threading.current_thread().name!r} cannot set a stream: "
            "this wheel has no per-thread streams, a C++ part for Linux. Set "
            "streams on the main thread, or use default streams."
        )
    if not place.is_xpu_place():
        # Record it before the caller sets another stream.
        streams.default_stream(place)


def with_process_contexts(
    function: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Calls a function: all contexts are the process's."""
    return function(*args, **kwargs)


def thread_contexts_id() -> int:
    """Returns the id of the process's contexts."""
    return 0


def places_on_other_streams() -> list[core.Place]:
    """Returns no place: each thread is on the process's streams."""
    return []


def become_main_thread() -> None:
    """Does nothing: no thread has contexts."""
