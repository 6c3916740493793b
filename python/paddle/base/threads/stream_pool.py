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
"""Stream pools: streams created once and handed out round-robin.

Creating a stream, and the device context that a thread needs for it, costs time
and memory. There is one pool per device and priority. It creates up to `SIZE`
streams, each on first use, and keeps them until the process ends. So
short-lived threads need not create streams. Several threads may get the same
stream; their work on it runs in order.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Callable

from .streams import default_stream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paddle.base import core
    from paddle.device import Stream

__all__ = []

# As in torch: more streams than a device runs concurrently.
SIZE = 32
# For each priority of a stream, the level that Paddle creates it with.
_HIGH, _NORMAL = 1, 2
_LEVELS = {-1: _HIGH, 1: _HIGH, 0: _NORMAL, 2: _NORMAL}


class _Pool:
    # Lock-free, since a fork could leave a lock locked: next() and setdefault()
    # are atomic.
    def __init__(self, place: core.Place) -> None:
        self.place = place
        self.turns: Iterator[int] = itertools.count()
        self.streams: dict[int, Stream] = {}


# Keyed by hash(place) and the priority: places are equal if their hashes are.
_pools: dict[tuple[int, int], _Pool] = {}


def level_of_priority(priority: int) -> int:
    """
    Returns the level that Paddle creates a stream of a priority with.
    Thread-safe.

    Raises:
        ValueError: there is no such priority.
    """
    try:
        level = _LEVELS.get(priority)
    except TypeError:  # It cannot be hashed.
        level = None
    if level is None:
        raise ValueError(
            "The priority of a stream must be 1 or -1 (high), or 0 or 2 "
            f"(normal), but received {priority!r}."
        )
    return level


def next_stream(
    place: core.Place,
    priority: int,
    make: Callable[[core.Place, int], Stream],
) -> Stream:
    """
    Returns the next stream from the pool of a device and a priority.
    Thread-safe.

    Args:
        place (core.Place): the place of the device, not of the base class.
        priority (int): the priority to pass to `make`.
        make (Callable): creates a stream with a given device and priority.

    Raises:
        TypeError: the device has no streams.
    """
    key = (hash(place), priority)
    pool = _pools.get(key)
    if pool is None:
        default_stream(place)  # Refuses a device without streams.
        pool = _pools.setdefault(key, _Pool(place))
    number = next(pool.turns) % SIZE
    stream = pool.streams.get(number)
    if stream is None:
        # Threads that get here concurrently all use the first one's stream.
        stream = pool.streams.setdefault(number, make(pool.place, priority))
    return stream
