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
"""The process tree of this process, which is called its family in C++.

Processes of one tree may receive each other's messages, even after the sender
has ended. The files of a tree in /dev/shm are removed with its last process.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
from multiprocessing import util
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

# After multiprocessing has joined the threads that feed its queues (-5).
_LAST = -100


def join(binding: ModuleType, variable: str) -> None:
    """
    Makes this process a member of its tree, so that its messages live as long
    as any member does, and removes the files of trees that have ended. The
    environment variable of the given name identifies the tree.
    """

    def leave() -> None:
        binding.leave()
        if multiprocessing.parent_process() is None:
            binding.leave_cuda()
        else:
            # multiprocessing comes here before it waits for a child's threads.
            atexit.register(binding.leave_cuda)

    def leave_at_exit() -> None:
        util.Finalize(None, leave, exitpriority=_LAST)

    binding.join(_family(binding, variable))
    leave_at_exit()
    # Both: a child that multiprocessing forks forgets all finalizers.
    os.register_at_fork(after_in_child=leave_at_exit)
    util.register_after_fork(leave_at_exit, lambda function: function())


def _family(binding: ModuleType, variable: str) -> int:
    """Returns the number that the processes of this tree have in common."""
    try:
        family = int(os.environ.get(variable, ""), 16)
    except ValueError:
        family = 0
    if not 0 < family < 2**64:
        family = binding.random_bits()
        os.environ[variable] = f"{family:016x}"
    return family
