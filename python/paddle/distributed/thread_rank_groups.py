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

Their operations are imported at first use, because every import of Paddle
imports this module, also in programs without thread groups.
"""

from __future__ import annotations

import numbers
import operator

from .communication.group import Group

__all__ = []


class _ThreadGroup(Group):
    """A group whose ranks are threads. Each object belongs to one rank.

    A `Group` says that the rank of a group of one is no member, so that
    operations do nothing or raise an error.
    """

    def is_member(self) -> bool:
        return True


def new_thread_groups(nranks: int, timeout: float = 1800) -> list[Group]:
    """Creates a group whose ranks are threads, one group object per rank.

    The thread that is rank ``r`` passes object ``r`` as ``group`` to
    ``paddle.DataParallel``, or to ``all_reduce`` (``SUM``, ``MAX`` and
    ``MIN``), ``broadcast``, ``all_gather``, ``gather``, ``scatter``, the
    variants of these for objects, and ``barrier``. Other operations raise
    NotImplementedError. Values are added in a binary tree whose shape depends
    only on the ranks: all ranks get the same bits in every run.

    The groups belong to one set of threads: create new groups for new threads.

    When a rank's thread ends, or misses the timeout, the operations of all
    other ranks raise an error that names the rank. A worker thread that is
    asked to stop stops waiting.

    Args:
        nranks (int): the number of threads.
        timeout (float, optional): the number of seconds that an operation waits
            for other ranks. Default: 1800.

    Returns:
        list[Group]: one group object per rank.

    Raises:
        ValueError: ``nranks`` is not an integer of 1 or more, or ``timeout`` is
            not a positive number.

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
    try:
        # Also takes integers of NumPy.
        count = 0 if isinstance(nranks, bool) else operator.index(nranks)
    except TypeError:
        count = 0
    if count < 1:
        raise ValueError(
            f"nranks must be an integer of 1 or more, but received {nranks!r}. "
            "Pass the number of training threads."
        )
    # Not `timeout <= 0`, which is false for nan.
    if not isinstance(timeout, numbers.Real) or not timeout > 0:
        raise ValueError(
            f"timeout must be a positive number, but received {timeout!r}. "
            "Pass seconds, or float('inf') to wait without a limit."
        )
    from .thread_process_group import new_process_groups

    ranks = list(range(count))
    return [
        _ThreadGroup(rank, -1, ranks, process_group, "threads")
        for rank, process_group in enumerate(new_process_groups(count, timeout))
    ]


def is_thread_group(group: Group | None) -> bool:
    """Returns whether the ranks of a group are threads."""
    if group is None:
        return False
    from .thread_process_group import ThreadProcessGroup

    return isinstance(group._pg, ThreadProcessGroup)
