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
"""Streams that are made once and handed out in turn, per device and priority.

To make a stream, with the device context that a thread needs for it, takes long
and costs memory. A pool makes up to `SIZE` of them, each when its turn comes
first, and keeps them until the process ends. So threads that come and go make
no streams. The stream that is handed out may be one that other threads use;
what they all start there runs in order.
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

# As in torch: more than a device runs at a time.
SIZE = 32


class _Pool:
    # No lock, which a fork could leave locked: next() and setdefault() are one
    # step each.
    def __init__(self, place: core.Place) -> None:
        self.place = place
        self.turns: Iterator[int] = itertools.count()
        self.streams: dict[int, Stream] = {}


# By the hash of the place, which is what Place's own equality compares, and the
# priority.
_pools: dict[tuple[int, int], _Pool] = {}


def next_stream(
    place: core.Place,
    priority: int,
    make: Callable[[core.Place, int], Stream],
) -> Stream:
    """
    Returns the stream whose turn it is in the pool of a device and a priority.
    Thread-safe.

    Args:
        place (core.Place): the place of the device, or of a tensor on it.
        priority (int): as `make` takes it.
        make (Callable): makes a stream of a device and a priority.

    Raises:
        TypeError: the device has no streams.
    """
    key = (hash(place), priority)
    pool = _pools.get(key)
    if pool is None:
        # The default stream refuses a device without streams.
        pool = _pools.setdefault(key, _Pool(default_stream(place).place))
    number = next(pool.turns) % SIZE
    stream = pool.streams.get(number)
    if stream is None:
        # Two threads that get here at once both use the first one's stream.
        stream = pool.streams.setdefault(number, make(pool.place, priority))
    return stream
