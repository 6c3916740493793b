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
"""The groups of the backend ``shm``: processes of one machine that communicate
through shared memory.
"""

from __future__ import annotations

import atexit
import datetime
import os
from typing import TYPE_CHECKING

from paddle.base.cpp_module import find_cpp_module
from paddle.framework import in_dynamic_mode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from paddle.base.core import ProcessGroup, TCPStore
    from paddle.distributed.communication.group import Group

_MILLISECOND = datetime.timedelta(milliseconds=1)

# The groups that this process has joined and not left.
_joined: list[ProcessGroup] = []


def check_mode(backend: str) -> None:
    """Raises an error if the backend does not work in the current mode."""
    if backend == "shm" and not in_dynamic_mode():
        raise NotImplementedError(
            "The backend shm works in dynamic mode only. Call "
            "paddle.disable_static(), or use the backend gloo."
        )


def host_backend() -> str:
    """
    Returns the backend of ranks on the CPU that paddle.distributed.launch
    starts: shm if the environment asks for it.
    """
    backend = os.environ.get("PADDLE_DISTRI_BACKEND")
    return "shm" if backend == "shm" else "gloo"


def join(
    store: TCPStore,
    rank: int,
    world_size: int,
    group_id: int,
    timeout: datetime.timedelta,
) -> ProcessGroup:
    """Makes a group together with its other ranks.

    Args:
        store: what the ranks find each other by.
        rank: this process's rank in the group.
        world_size: the number of ranks.
        group_id: the number of the group.
        timeout: how long an operation waits for other ranks.
    """
    if timeout < _MILLISECOND:
        raise ValueError(
            f"The timeout of a group is {timeout}, but no operation ends in "
            "less than a millisecond. Pass a longer datetime.timedelta."
        )
    binding = find_cpp_module("_process_group_shm")
    if binding is None:
        raise NotImplementedError(
            "This Paddle was built without the backend shm, which needs Linux. "
            "Use the backend gloo."
        )
    storage = find_cpp_module("_shared_storage")
    group = binding.ProcessGroupShm.create(
        store,
        rank,
        world_size,
        group_id,
        timeout // _MILLISECOND,
        storage and storage.locator(),
    )
    if not _joined:
        # The last registered runs first: before Paddle destroys its groups.
        atexit.register(_leave_all)
    _joined.append(group)
    return group


def leave(groups: Iterable[Group]) -> None:
    """Leaves the groups of this backend among `groups`."""
    for group in groups:
        if group.process_group in _joined:
            _joined.remove(group.process_group)
            group.process_group.leave()


def _leave_all() -> None:
    while _joined:
        _joined.pop().leave()
