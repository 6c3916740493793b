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
"""Memory that this process shares: strategy, limit, figures, collection."""

from __future__ import annotations

import paddle
from paddle.base import core
from paddle.base.shared_storage import native

_FILE_DESCRIPTOR_FLAG = "FLAGS_dataloader_use_file_descriptor"

_STRATEGIES = frozenset({"file_descriptor", "file_system"})


def get_all_sharing_strategies() -> set[str]:
    """Returns the names of the sharing strategies of this system.

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
    """Returns how this process shares the memory of tensors that it sends.

    Returns:
        str: ``'file_system'`` or ``'file_descriptor'``, see
        :func:`set_sharing_strategy`.

    Examples:
        .. code-block:: python

            >>> import paddle.incubate.multiprocessing as mp
            >>> print(mp.get_sharing_strategy())
            file_system
    """
    use_file_descriptor = core.globals()[_FILE_DESCRIPTOR_FLAG]
    return "file_descriptor" if use_file_descriptor else "file_system"


def set_sharing_strategy(strategy: str) -> None:
    """Sets how this process shares the tensors that it sends from now on.

    It is the same as setting ``FLAGS_dataloader_use_file_descriptor``. With
    ``fork`` a process inherits it; with ``spawn`` and ``forkserver`` each sets
    its own. Tensors sent before stay where they are.

    Args:
        strategy (str): ``'file_system'`` (the default) puts tensors into one
            file a process in ``/dev/shm``, whose size limits them; a message
            outlives its sender. ``'file_descriptor'`` puts them into memory
            without a name, which ``/dev/shm`` does not limit; the sender has to
            live until another process has received a first tensor of it.

    Raises:
        ValueError: there is no such strategy.

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
    paddle.set_flags({_FILE_DESCRIPTOR_FLAG: strategy == "file_descriptor"})


def get_shared_memory_limit() -> int:
    """Returns how much shared memory this process may occupy with tensors.

    Returns:
        int: the limit in bytes; at first, the memory of the machine.

    Examples:
        .. code-block:: python

            >>> import paddle.incubate.multiprocessing as mp
            >>> print(mp.get_shared_memory_limit() > 0)
            True
    """
    return native.stats()["limit"]


def set_shared_memory_limit(limit: int) -> None:
    """Sets how much shared memory this process may occupy with tensors.

    A send that needs more raises ``MemoryError``; the tensor stays as it was.

    Args:
        limit (int): the limit in bytes, of all that this process shares by
            either strategy. What is there already is not taken away.

    Raises:
        TypeError: the limit is no integer.
        ValueError: it is negative or 2**64 and more.

    Examples:
        .. code-block:: python

            >>> import paddle.incubate.multiprocessing as mp
            >>> mp.set_shared_memory_limit(8 * 1024**3)
            >>> print(mp.get_shared_memory_limit())
            8589934592
    """
    if not isinstance(limit, int):
        raise TypeError(
            "The limit of shared memory must be an integer number of bytes, "
            f"but received {limit!r}."
        )
    if not 0 <= limit < 2**64:
        raise ValueError(
            "The limit of shared memory must be at least 0 and less than "
            f"2**64 bytes, but received {limit}."
        )
    native.set_limit(limit)


def shared_memory_stats() -> dict[str, int]:
    """Returns what shared memory this process uses for tensors.

    Returns:
        dict[str, int]: in bytes, ``reserved`` (what its segments occupy),
        ``used`` (the part in blocks that a process holds or a message carries),
        ``cached`` (the part kept for the next tensors) and ``limit``; in
        numbers, ``blocks`` (in use), ``messages`` (that carry one of its blocks
        and were not received yet), ``segments`` (its own), ``attached``
        (those of other processes that it has mapped) and ``detached`` (those
        of processes that have ended, of which only tensors are left).

    Examples:
        .. code-block:: python

            >>> import paddle.incubate.multiprocessing as mp
            >>> stats = mp.shared_memory_stats()
            >>> print(stats['reserved'] == stats['used'] + stats['cached'])
            True
    """
    return native.stats()


def shared_memory_summary() -> str:
    """Returns the figures of :func:`shared_memory_stats` as a table.

    Returns:
        str: one line a figure; sizes in bytes and MiB.

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
    """Returns what GPU memory this process has in common with others.

    Returns:
        dict[str, int]: ``sent`` (storages of this process that were sent and
        not freed yet), ``limbo`` (those of them that this process has dropped
        and others still hold, or a message carries), ``received`` (storages of
        others that it uses), with ``sent_bytes``, ``limbo_bytes`` and
        ``received_bytes``; ``handles`` (allocations of others that it has
        opened) and ``events`` (that order work between processes).

    Examples:
        .. code-block:: python

            >>> import paddle.incubate.multiprocessing as mp
            >>> print(mp.ipc_memory_stats()['limbo'])
            0
    """
    return native.cuda_stats()


def ipc_memory_summary() -> str:
    """Returns :func:`ipc_memory_stats` as a table, with who holds what.

    Returns:
        str: one line a figure, then one for each of the first ten storages of
        this process that others need: its size, the processes that hold it and
        the number of messages that carry it and were not received.

    Examples:
        .. code-block:: python

            >>> import paddle.incubate.multiprocessing as mp
            >>> print(mp.ipc_memory_summary().splitlines()[0])
            GPU memory in common with other processes
    """
    lines = ["GPU memory in common with other processes"]
    for name, value in native.cuda_stats().items():
        lines.append(f"  {name:<14}{value:>22,}")
    return "\n".join([*lines, *native.cuda_users().splitlines()])


def collect_shared_memory(message_timeout: float | None = None) -> None:
    """Gives shared memory that is not in use back to the system.

    That is: blocks whose holders have died, blocks kept for reuse, and files
    that dead processes left; also GPU memory that was sent and that nobody uses
    any more. It happens by itself when memory is needed.

    Args:
        message_timeout (float|None, optional): if given, messages that were
            sent longer ago than this many seconds and that nobody has received
            are given up too: those that died with a process, or in a queue that
            was thrown away, hold their tensors else. Who receives one of them
            later gets a ``RuntimeError``. Default: None, give up none.

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
