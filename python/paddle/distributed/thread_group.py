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
"""Groups whose ranks are threads of one process.

Their operations are imported where they are used: every import of Paddle gets
here, and would pay for them in programs that have no such group.
"""

from __future__ import annotations

from .communication.group import Group

__all__ = []


def new_thread_groups(nranks: int, timeout: float = 1800) -> list[Group]:
    """Makes a group of threads of this process, one object per rank.

    The thread that is rank ``r`` passes the object of that number as ``group``
    to ``paddle.DataParallel``, or to ``all_reduce`` (``SUM``, ``MAX`` and
    ``MIN``), ``broadcast``, ``all_gather``, ``gather``, ``scatter``, those of
    objects, and ``barrier``; other operations raise NotImplementedError.
    Numbers are added as a binary tree whose shape depends on the ranks alone:
    all ranks get the same bits in every run.

    Groups are for one set of threads: make new groups for new threads.

    When a thread that is a rank has ended, or does not come in time, the
    operations of all other ranks raise an error that names it. A worker thread
    that is asked to stop ends its wait.

    Args:
        nranks (int): the number of threads.
        timeout (float, optional): how many seconds an operation waits for other
            ranks. Default: 1800.

    Returns:
        list[Group]: the group as each of the ranks sees it.

    Raises:
        ValueError: the number of threads is less than 1.

    Examples:
        .. code-block:: python

            >>> import paddle
            >>> import paddle.distributed as dist
            >>> import paddle.multiprocessing as mp
            >>> groups = dist.new_thread_groups(2)
            >>> found = {}
            >>> def add(rank):
            ...     x = paddle.full([1], rank + 1.0)
            ...     dist.all_reduce(x, group=groups[rank])
            ...     found[rank] = x.item()
            >>> mp.start_threads(add, nthreads=2)
            >>> print(sorted(found.items()))
            [(0, 3.0), (1, 3.0)]
    """
    if nranks < 1:
        raise ValueError(
            f"A group needs at least 1 thread, but received nranks={nranks}. "
            "Pass the number of threads that train."
        )
    from .thread_process_group import new_process_groups

    ranks = list(range(nranks))
    return [
        Group(rank, -1, ranks, process_group, "threads")
        for rank, process_group in enumerate(
            new_process_groups(nranks, timeout)
        )
    ]


def is_thread_group(group: Group | None) -> bool:
    """Returns whether the ranks of a group are threads."""
    if group is None:
        return False
    from .thread_process_group import ThreadProcessGroup

    return isinstance(group._pg, ThreadProcessGroup)
