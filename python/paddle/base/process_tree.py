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
"""The process tree of this process.

Processes of one tree may receive each other's messages, even after the sender
has ended. The tree's files in /dev/shm are removed when its last process ends.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
from multiprocessing import util
from typing import TYPE_CHECKING, Callable

if TYPE_CHECKING:
    from types import ModuleType

# Runs after multiprocessing has joined its queues' feeder threads (-5).
_LAST = -100

# By binding, the function that this process calls when it exits.
_at_exit: dict[ModuleType, Callable[[], None]] = {}


class _AfterOtherThreads(threading.Thread):
    """Calls its target when all other threads that Python joins have ended."""

    def run(self) -> None:
        while others := [
            thread
            for thread in threading.enumerate()
            if not (thread.daemon or isinstance(thread, _AfterOtherThreads))
            and thread is not threading.main_thread()
        ]:
            for thread in others:
                # Another thread may be about to start it.
                with contextlib.suppress(RuntimeError):
                    thread.join()
        super().run()


def join(binding: ModuleType, variable: str) -> str:
    """
    Makes this process a member of its tree, and removes the files of trees that
    have ended. The messages of a member live as long as any member. Returns the
    value of the given environment variable, which identifies the tree.
    """

    def leave() -> None:
        binding.leave()
        if multiprocessing.parent_process() is None:
            binding.leave_cuda()
        else:
            # multiprocessing calls this before it joins a child's threads, and
            # a forked child calls nothing after that, not even atexit handlers.
            _AfterOtherThreads(target=binding.leave_cuda).start()

    def leave_at_exit() -> None:
        util.Finalize(None, leave, exitpriority=_LAST)

    inherited = os.environ.get(variable, "")
    tree = (
        int(inherited, 16) if _is_tree_id(inherited) else binding.random_bits()
    )
    # A signal handler may have joined meanwhile: the first call counts.
    tree_id = f"{binding.join(tree):016x}"
    os.environ[variable] = tree_id
    # Atomic, so that a signal handler that joins does not register it, too.
    if _at_exit.setdefault(binding, leave) is leave:
        leave_at_exit()
        # Register both: a child that multiprocessing forks drops all
        # finalizers.
        os.register_at_fork(after_in_child=leave_at_exit)
        util.register_after_fork(leave_at_exit, lambda function: function())
    return tree_id


def _is_tree_id(text: str) -> bool:
    try:
        return 0 < int(text, 16) < 2**64
    except ValueError:
        return False
