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
"""Groups of the backend ``shm``: processes that communicate through shared
memory, and between machines through gloo.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import datetime
import functools
import numbers
import os
import socket
import sys
import time
from multiprocessing import parent_process, util
from typing import TYPE_CHECKING, Any

from paddle.base import core
from paddle.framework import in_dynamic_mode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import ModuleType

    from paddle.base.core import ProcessGroup, Store
    from paddle.distributed.communication.group import Group
    from paddle.distributed.hierarchical_group import HierarchicalGroup

_MILLISECOND = datetime.timedelta(milliseconds=1)
# Longer timeouts are shortened to this: they could overflow clocks.
_LONGEST_TIMEOUT = datetime.timedelta(days=36500)
# The shortest timeout for joining, however short the group's timeout is: ranks
# need time to start.
_SHORTEST_JOIN = datetime.timedelta(minutes=1)
_WORKER_THREAD = "paddle.incubate.multiprocessing.worker_thread"
_JOINED = "joined"
# The prefix of the text that a failed rank publishes; the reason follows.
_FAILURE = "!"
# How long a rank that fails waits for the others to fail, too.
_TIME_TO_FAIL_S = 2.0
# How long a rank waits before it looks for a key of the store again.
_PAUSE_S = 0.002
# In place of a process that may be on another machine.
_UNKNOWN = (0, 0)
# The largest id of a group across machines. The ids of its inner groups have 12
# more bits.
_LARGEST_ID = (1 << 19) - 1

# The groups that this process has joined and not left, and their timeouts.
_joined: dict[ProcessGroup | HierarchicalGroup, datetime.timedelta] = {}
_finalizer: util.Finalize | None = None


def check_mode(backend: str) -> None:
    """Raises an error if the backend does not work in the current mode."""
    if backend == "shm" and not in_dynamic_mode():
        raise NotImplementedError(
            "The backend shm works in dynamic mode only. Call "
            "paddle.disable_static(), or use the backend gloo."
        )


def check_ranks(backend: str, ranks: list[int], world: list[int]) -> None:
    """Raises an error, the same on all ranks, if no group can have `ranks`.

    Otherwise the ranks of the group would wait for missing ones.
    """
    if backend == "shm" and not (
        len(set(ranks)) == len(ranks) and set(ranks) <= set(world)
    ):
        raise ValueError(
            f"A group cannot have the ranks {list(ranks)}. Pass each of its "
            f"ranks once, as numbers from 0 to {len(world) - 1}."
        )


def host_backend() -> str:
    """
    Returns the backend of ranks on the CPU that paddle.distributed.launch
    starts: shm if the environment asks for it.
    """
    backend = os.environ.get("PADDLE_DISTRI_BACKEND")
    return "shm" if backend == "shm" else "gloo"


def join(
    store: Store,
    rank: int,
    world_size: int,
    group_id: int,
    timeout: datetime.timedelta | float,
) -> ProcessGroup | HierarchicalGroup:
    """Creates a group together with its other ranks, on any machines.

    Args:
        store: the store through which the ranks find each other.
        rank: this process's rank in the group.
        world_size: the number of ranks.
        group_id: the id of the group.
        timeout: how long an operation waits for other ranks; a number is in
            seconds.
    """
    timeout = _valid_timeout(timeout)
    processes: dict[int, tuple[int, int]] = {}
    try:
        group = _join(store, rank, world_size, group_id, timeout, processes)
    except Exception:
        _wait_for_failures(store, group_id, rank, world_size, processes)
        raise
    if not _joined:
        _leave_at_exit()
    _joined[group] = timeout
    return group


def _valid_timeout(timeout: datetime.timedelta | float) -> datetime.timedelta:
    # Over gloo, which ignores the timeout, a number is not an error.
    seconds = timeout
    if isinstance(timeout, datetime.timedelta):
        seconds = timeout.total_seconds()
    if not isinstance(seconds, numbers.Real):
        raise TypeError(
            "The timeout of a group must be a datetime.timedelta or a number "
            f"of seconds, but is {timeout!r}."
        )
    # Not `seconds < ...`, which is false for NaN.
    if not seconds >= _MILLISECOND.total_seconds():
        raise ValueError(
            f"The timeout of a group is {timeout}, but it must be at least one "
            "millisecond. Pass a longer datetime.timedelta."
        )
    longest = _LONGEST_TIMEOUT.total_seconds()
    return datetime.timedelta(seconds=float(min(seconds, longest)))


def _join(
    store: Store,
    rank: int,
    world_size: int,
    group_id: int,
    timeout: datetime.timedelta,
    processes: dict[int, tuple[int, int]],
) -> ProcessGroup | HierarchicalGroup:
    """Adds the processes of the other ranks of this machine to `processes`."""
    time_to_join = max(timeout, _SHORTEST_JOIN)
    prefix = _prefix(group_id)
    try:
        binding = _find_binding()
        # A store with separate keys, because gloo uses the same in each group.
        own_store = binding.GroupStore(
            store, prefix, time_to_join // _MILLISECOND
        )
        here, clock = machine(), _clock()
        process, start = binding.this_process()
        storage = getattr(core.libpaddle, "_shared_storage", None)
        locator = storage and storage.locator()
    except Exception as error:
        _publish(store, f"{prefix}machine", rank, f"{_FAILURE}{error}")
        raise
    _publish(own_store, "machine", rank, f"{here} {process} {start} {clock}")
    machines = {}
    try:
        for other, text in _collect(
            own_store, "machine", rank, world_size, group_id, time_to_join
        ):
            machines[other], its_process, its_start, its_clock = text.rsplit(
                " ", 3
            )
            if other != rank and (machines[other], its_clock) == (here, clock):
                processes[other] = int(its_process), int(its_start)
                _watch(own_store, processes)
    except Exception as error:
        # Ranks on other machines do not watch the processes of this one.
        with contextlib.suppress(Exception):
            _publish(own_store, "joined", rank, f"{_FAILURE}{error}")
        raise
    if len(set(machines.values())) == 1:
        return _join_machine(
            own_store,
            rank,
            world_size,
            group_id,
            timeout,
            time_to_join,
            locator,
        )
    return _join_machines(
        own_store,
        rank,
        [machines[other] for other in range(world_size)],
        group_id,
        timeout,
        time_to_join,
        processes,
        locator,
    )


def _prefix(group_id: int) -> str:
    return f"shm_group/{group_id}/"


def _watch(store: Store, processes: dict[int, tuple[int, int]]) -> None:
    """Makes waits for keys of the store fail when one of the processes dies."""
    store.watch([(rank, *process) for rank, process in processes.items()])


def _wait_for_failures(
    store: Store,
    group_id: int,
    rank: int,
    world_size: int,
    processes: dict[int, tuple[int, int]],
) -> None:
    """Waits for the other ranks to fail or die, too.

    The process that created the store must live until the other ranks have read
    the failure that this rank published there.
    """
    key = f"{_prefix(group_id)}failed"
    deadline = time.monotonic() + _TIME_TO_FAIL_S
    with contextlib.suppress(Exception):
        binding = _find_binding()
        _publish(store, key, rank, "")
        for other in range(world_size):
            while not (
                binding.has_key(store, f"{key}/{other}")
                or binding.has_ended(*processes.get(other, _UNKNOWN))
            ):
                if time.monotonic() > deadline:
                    return
                time.sleep(_PAUSE_S)


def machine() -> str:
    """Returns a text that is equal in processes that can share memory."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    # Ranks open each other's descriptors, and the files of shared tensors.
    processes = os.readlink("/proc/self/ns/pid")
    memory = os.stat("/dev/shm").st_dev
    return f"{socket.gethostname()} {boot} {processes} {memory} {os.getuid()}"


def _clock() -> str:
    """
    Returns a text that is equal in processes that see the same start time of a
    process.
    """
    with contextlib.suppress(OSError):
        return os.readlink("/proc/self/ns/time")
    return ""  # older kernels have one clock


def _find_binding() -> ModuleType:
    binding = getattr(core.libpaddle, "_process_group_shm", None)
    if binding is None:
        raise NotImplementedError(
            "This Paddle was built without the backend shm, which is a C++ "
            "module for Linux. Use the backend gloo."
        )
    return binding


def _publish(store: Store, key: str, rank: int, text: str) -> None:
    store.set(f"{key}/{rank}", text)


def _collect(
    store: Store,
    key: str,
    rank: int,
    world_size: int,
    group_id: int,
    timeout: datetime.timedelta,
) -> Iterator[tuple[int, str]]:
    """
    Waits until all ranks have published a text. Yields the ranks and their
    texts. Raises an error as soon as it finds the failure of a rank, or that a
    rank which the store watches has died.
    """
    has_key = _find_binding().has_key
    deadline = time.monotonic() + timeout.total_seconds()
    missing = collections.deque(range(world_size))
    while missing:
        other = missing.popleft()
        # Not store.wait, whose error names no rank.
        if not has_key(store, f"{key}/{other}"):
            # Look at the next rank meanwhile: it may have failed.
            missing.append(other)
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"Rank {rank} of group {group_id} waited {timeout} for "
                    f"rank {min(missing)} to create the group. Create it on "
                    "all its ranks, or pass a longer timeout."
                )
            time.sleep(_PAUSE_S)
            continue
        text = store.get(f"{key}/{other}").decode()
        if text.startswith(_FAILURE):
            reason = text[len(_FAILURE) :].rstrip(". \n")
            raise RuntimeError(
                f"Rank {other} failed to join group {group_id}: "
                f"{reason}. Fix the cause, then create a new group."
            )
        yield other, text


def _join_machine(
    store: Store,
    rank: int,
    world_size: int,
    group_id: int,
    timeout: datetime.timedelta,
    time_to_join: datetime.timedelta,
    locator: Any,
) -> ProcessGroup:
    try:
        return _find_binding().ProcessGroupShm.create(
            store,
            rank,
            world_size,
            group_id,
            timeout // _MILLISECOND,
            time_to_join // _MILLISECOND,
            locator,
        )
    except RuntimeError as error:
        # The error of a rank that did not find the memory of rank 0 does not
        # say which rank has died.
        death = _find_death(store)
        if death not in str(error):
            raise RuntimeError(f"{death} {error}") from error
        raise


def _find_death(store: Store) -> str:
    """Returns which rank that the store watches has died, or an empty text."""
    try:
        store.raise_if_died()
    except RuntimeError as error:
        return str(error)
    return ""


def _join_machines(
    store: Store,
    rank: int,
    machines: list[str],
    group_id: int,
    timeout: datetime.timedelta,
    time_to_join: datetime.timedelta,
    processes: dict[int, tuple[int, int]],
    locator: Any,
) -> HierarchicalGroup:
    from .hierarchical_group import HierarchicalGroup, Topology
    from .leader_links import LeaderLinks, create_gloo_group
    from .machine_connections import Listener
    from .machine_transfers import MachineTransfers

    if group_id > _LARGEST_ID:
        raise ValueError(
            f"A group of the backend shm whose ranks are on several machines "
            f"cannot have the number {group_id}: the largest is {_LARGEST_ID}. "
            "Choose a smaller number, or use the backend gloo."
        )
    topology = Topology.of(machines, rank)
    here, leaders = topology.ranks_here(), topology.leaders()

    def inner_id(number: int) -> int:
        # Programs look up groups by id, and never by a negative one.
        return -(group_id << 12 | number) - 1

    local = links = between = None
    listeners = []  # for sends between machines, and then for leaders
    try:
        # Errors on this machine have the numbers of the ranks here.
        _watch(
            store,
            {here.index(other): found for other, found in processes.items()},
        )
        local = _join_machine(
            store,
            here.index(rank),
            len(here),
            inner_id(1 + topology.machine),
            timeout,
            time_to_join,
            locator,
        )
        # Create the listeners only now: before, the ranks here would not be
        # notified of an error.
        for _ in range(2 if rank in leaders else 1):
            listeners.append(Listener())
    except Exception as error:
        for listener in listeners:
            listener.close()
        if local is not None:
            local.leave()
        text = (
            f"On the machine of the ranks {here}, which are numbered from 0 in "
            f"the following error: {error}"
        )
        _publish(store, "joined", rank, f"{_FAILURE}{text}")
        raise RuntimeError(text) from error
    try:
        # Collect the outcomes before creating the gloo group: a leader that
        # waits in gloo would not detect a failed rank.
        texts = [_JOINED, *(listener.address for listener in listeners)]
        _publish(store, "joined", rank, ",".join(texts))
        _watch(store, processes)
        outcomes = dict(
            _collect(
                store, "joined", rank, len(machines), group_id, time_to_join
            )
        )
        # From here on, ranks that are not leaders may leave the group.
        _watch(store, {})
        addresses = {
            other: text.split(",")[1:] for other, text in outcomes.items()
        }
        if rank in leaders:
            number = leaders.index(rank)
            between = create_gloo_group(
                store, number, len(leaders), inner_id(0)
            )
            links = LeaderLinks(
                listeners[1],
                leaders,
                [addresses[leader][1] for leader in leaders],
                number,
                time_to_join.total_seconds(),
            )
    except BaseException:
        for listener in listeners:
            listener.close()
        local.leave()
        raise
    transfers = MachineTransfers(
        rank,
        listeners[0],
        {
            other: addresses[other][0]
            for other in addresses
            if other not in here
        },
        timeout,
    )
    return HierarchicalGroup(
        rank, topology, local, between, links, transfers, timeout
    )


def leave(groups: Iterable[Group]) -> None:
    """Leaves those of `groups` that belong to this backend."""
    for group in groups:
        if group.process_group in _joined:
            del _joined[group.process_group]
            group.process_group.leave()


def timeout_of(process_group: object) -> datetime.timedelta | None:
    """Returns the timeout of a group; None if another backend created it."""
    return _joined.get(process_group)


def _leave_at_exit() -> None:
    """Makes this process leave its groups when it exits."""
    global _finalizer
    _register_exit_functions()
    # Children that multiprocessing forks skip atexit handlers, and do not
    # inherit finalizers. Worker threads are stopped before, with a higher
    # priority.
    if parent_process() is not None and not (
        _finalizer is not None and _finalizer.still_active()
    ):
        _finalizer = util.Finalize(None, _leave_all, exitpriority=5)


@functools.cache
def _register_exit_functions() -> None:
    # atexit runs the last registered function first, so this runs before Paddle
    # destroys its groups.
    atexit.register(_leave_all)
    _stop_workers_before_leaving()


def _stop_workers_before_leaving() -> None:
    """Makes worker threads, which may use the groups, stop before `_leave_all`.

    A module of worker threads that is imported later does so by itself.
    """
    # Another thread may be importing it.
    stop_workers = getattr(
        sys.modules.get(_WORKER_THREAD), "stop_workers", None
    )
    if stop_workers is not None:
        atexit.unregister(stop_workers)
        atexit.register(stop_workers)


def _leave_all() -> None:
    while _joined:
        group, _ = _joined.popitem()
        group.leave()
