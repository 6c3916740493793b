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
"""The sharing strategy, limit, statistics and collection of shared memory."""

from __future__ import annotations

from numbers import Integral

import paddle
from paddle.base import core
from paddle.base.shared_storage import FILE_DESCRIPTOR_FLAG, native

_STRATEGIES = frozenset({"file_descriptor", "file_system"})


def get_all_sharing_strategies() -> set[str]:
    """Returns the names of all sharing strategies.

    Returns:
        set[str]: ``'file_system'`` and ``'file_descriptor'``.

    Examples:
        .. code-block:: python

            >>> import paddle.incubate.multiprocessing as mp
            >>> print(sorted(mp.get_all_sharing_strategies()))
            ['file_descriptor', 'file_system']
    """
    return set(_STRATEGIES)


def get_sharing_strategy() -> str:
    """Returns the name of the current sharing strategy.

    Returns:
        str: ``'file_system'`` or ``'file_descriptor'``, see
        :func:`set_sharing_strategy`.

    Examples:
        .. code-block:: python

            >>> import paddle.incubate.multiprocessing as mp
            >>> print(mp.get_sharing_strategy())
            file_system
    """
    use_file_descriptor = core.globals()[FILE_DESCRIPTOR_FLAG]
    return "file_descriptor" if use_file_descriptor else "file_system"


def set_sharing_strategy(strategy: str) -> None:
    """Sets how this process shares the tensors that it sends from now on.

    This sets ``FLAGS_dataloader_use_file_descriptor``. Forked processes inherit
    the flag; processes started with ``spawn`` or ``forkserver`` set their own.
    Tensors that were sent before stay where they are.

    Args:
        strategy (str): ``'file_system'`` (the default) allocates tensors in
            files in ``/dev/shm``, whose size limits them; a message outlives
            its sender. ``'file_descriptor'`` allocates them in memfds, which
            ``/dev/shm`` does not limit; the sender must live until each
            receiver has received its first tensor from it.

    Raises:
        ValueError: the strategy does not exist.

    Examples:
        .. code-block:: python

            >>> import paddle.incubate.multiprocessing as mp
            >>> mp.set_sharing_strategy('file_descriptor')
            >>> print(mp.get_sharing_strategy())
            file_descriptor
            >>> mp.set_sharing_strategy('file_system')
    """
    if strategy not in _STRATEGIES:
        raise ValueError(
            f"The sharing strategy must be one of {sorted(_STRATEGIES)}, but "
            f"received {strategy!r}."
        )
    paddle.set_flags({FILE_DESCRIPTOR_FLAG: strategy == "file_descriptor"})


def get_shared_memory_limit() -> int:
    """Returns how much shared memory the tensors of this process may occupy.

    Returns:
        int: the limit in bytes; by default, the memory of the machine or
        container.

    Examples:
        .. code-block:: python

            >>> import paddle.incubate.multiprocessing as mp
            >>> print(mp.get_shared_memory_limit() > 0)
            True
    """
    return native.stats()["limit"]


def set_shared_memory_limit(limit: int) -> None:
    """Sets how much shared memory the tensors of this process may occupy.

    Sending a tensor that would exceed the limit raises ``MemoryError`` and
    leaves the tensor as it was.

    Args:
        limit (int): the limit in bytes, for both strategies together. Memory
            that is already shared stays shared.

    Raises:
        TypeError: the limit is not an integer.
        ValueError: the limit is negative, or at least 2**64.

    Examples:
        .. code-block:: python

            >>> import paddle.incubate.multiprocessing as mp
            >>> mp.set_shared_memory_limit(8 * 1024**3)
            >>> print(mp.get_shared_memory_limit())
            8589934592
    """
    if not isinstance(limit, Integral) or isinstance(limit, bool):
        raise TypeError(
            "The limit on shared memory must be an integer number of bytes, "
            f"but received {limit!r}."
        )
    if not 0 <= limit < 2**64:
        raise ValueError(
            "The limit on shared memory must be at least 0 and less than "
            f"2**64 bytes, but received {limit}."
        )
    native.set_limit(int(limit))


def shared_memory_stats() -> dict[str, int]:
    """Returns how much shared memory the tensors of this process use.

    Returns:
        dict[str, int]: in bytes, ``reserved`` (occupied by its segments),
        ``used`` (blocks that a process holds or a message carries),
        ``cached`` (free blocks kept for reuse) and ``limit``; as counts,
        ``blocks`` (in use), ``messages`` (in flight with one of its blocks),
        ``segments`` (its own), ``attached`` (mapped segments of other
        processes) and ``detached`` (segments of ended processes, reduced to
        the pages of their tensors).

    Examples:
        .. code-block:: python

            >>> import paddle.incubate.multiprocessing as mp
            >>> stats = mp.shared_memory_stats()
            >>> print(stats['reserved'] == stats['used'] + stats['cached'])
            True
    """
    return native.stats()


def shared_memory_summary() -> str:
    """Returns the statistics of :func:`shared_memory_stats` as a table.

    Returns:
        str: one line per value; sizes in bytes and MiB.

    Examples:
        .. code-block:: python

            >>> import paddle.incubate.multiprocessing as mp
            >>> print(mp.shared_memory_summary().splitlines()[0])
            Shared memory of tensors, strategy file_system
    """
    sizes = ("limit", "reserved", "used", "cached")
    lines = [f"Shared memory of tensors, strategy {get_sharing_strategy()}"]
    for name, value in native.stats().items():
        size = f"  ({value / 2**20:,.1f} MiB)" if name in sizes else ""
        lines.append(f"  {name:<9}{value:>22,}{size}")
    return "\n".join(lines)


def ipc_memory_stats() -> dict[str, int]:
    """Returns how much GPU memory this process shares with other processes.

    Returns:
        dict[str, int]: ``sent`` (storages of this process that were sent and
        are not freed yet), ``limbo`` (sent storages that this process has
        dropped, but another process holds or a message carries), ``received``
        (storages of other processes that this process holds), each also as
        ``sent_bytes``, ``limbo_bytes`` and ``received_bytes``; ``handles``
        (open allocations of other processes) and ``events`` (which order work
        between processes).

    Examples:
        .. code-block:: python

            >>> import paddle.incubate.multiprocessing as mp
            >>> print(mp.ipc_memory_stats()['limbo'])
            0
    """
    return native.cuda_stats()


def ipc_memory_summary() -> str:
    """Returns :func:`ipc_memory_stats` as a table, with the holders.

    Returns:
        str: one line per value, then one line for each of the first ten
        storages of this process that other processes hold: its size, its
        holders, and the number of messages in flight that carry it.

    Examples:
        .. code-block:: python

            >>> import paddle.incubate.multiprocessing as mp
            >>> print(mp.ipc_memory_summary().splitlines()[0])
            GPU memory shared with other processes
    """
    lines = ["GPU memory shared with other processes"]
    for name, value in native.cuda_stats().items():
        lines.append(f"  {name:<14}{value:>22,}")
    return "\n".join([*lines, *native.cuda_users().splitlines()])


def collect_shared_memory(message_timeout: float | None = None) -> None:
    """Returns unused shared memory to the system.

    It frees blocks whose holders have died, blocks kept for reuse, files of
    dead processes, and GPU memory that was sent and that no process holds any
    more. Paddle does this automatically when it needs memory.

    Args:
        message_timeout (float|None, optional): if given, messages that were
            sent more than this many seconds ago and have not been received
            expire. Otherwise a message keeps its tensor alive, even if it was
            lost with a process or a queue. Receiving an expired message raises
            a ``RuntimeError``. Default: None, no message expires.

    Raises:
        ValueError: the timeout is negative or not a number.

    Examples:
        .. code-block:: python

            >>> import paddle.incubate.multiprocessing as mp
            >>> mp.collect_shared_memory()
            >>> print(mp.shared_memory_stats()['cached'])
            0
    """
    if message_timeout is not None and not message_timeout >= 0:
        raise ValueError(
            "The timeout of messages must be at least 0 seconds, but received "
            f"{message_timeout!r}."
        )
    native.collect(message_timeout)
    native.collect_cuda()
