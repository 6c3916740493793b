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
"""Helpers for `spawn` tests: they may leave nothing behind."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import sys
import tempfile
import time
import unittest
from multiprocessing import forkserver, resource_tracker
from multiprocessing.reduction import ForkingPickler
from unittest import mock

from concurrent_base import WAIT_S, descriptors, wait_until

import paddle
from paddle.incubate.multiprocessing.processes import (
    ProcessException,
    start_processes,
)

START_METHODS = ("fork", "spawn", "forkserver")


def over_start_methods(case: type) -> None:
    """
    Class decorator: replaces a test case that reads `self.method` with one test
    case per start method.
    """
    module = sys.modules[case.__module__]
    for method in START_METHODS:
        name = f"{case.__name__}_{method}"
        members = {"method": method, "__module__": case.__module__}
        setattr(module, name, type(name, (case,), members))


class SpawnTestCase(unittest.TestCase):
    """
    Checks that each test leaves no additional processes, descriptors or
    temporary files.
    """

    method = "fork"

    @classmethod
    def setUpClass(cls):
        # These live until the end of the run and are not leaks.
        resource_tracker.ensure_running()
        share(paddle.ones([1]))
        if cls.method == "forkserver":
            forkserver.ensure_running()

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.addCleanup(self._check_nothing_left, resources(), folder.name)
        patch = mock.patch.object(tempfile, "tempdir", folder.name)
        patch.start()
        self.addCleanup(patch.stop)

    def _check_nothing_left(self, before, folder):
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not resources() - before, "nothing is left")
        # Says what is. What other tests have left may have gone by now.
        self.assertEqual(resources() - before, set())
        self.assertEqual(os.listdir(folder), [])

    def start(self, function, *args, nprocs=2, **options):
        """Starts processes that run a function, and returns their context."""
        return start_processes(
            function,
            args,
            nprocs,
            join=False,
            start_method=self.method,
            **options,
        )

    def failure(self, function, *args, **options) -> ProcessException:
        """Starts such processes and returns the error that join raises."""
        context = self.start(function, *args, **options)
        with self.assertRaises(ProcessException) as caught:
            self.join(context)
        return caught.exception

    def join(self, context, **options) -> None:
        """Joins processes, which must end in time."""
        self.assertTrue(context.join(WAIT_S, **options), "not ended in time")


def share(tensor: paddle.Tensor) -> None:
    """Moves a tensor into shared memory, where a forked child sees it."""
    ForkingPickler.loads(ForkingPickler.dumps(tensor))


def resources() -> set[tuple[str, str] | int]:
    """
    Returns the descriptors, with their targets, and the child processes of this
    process.
    """
    # Errors that tests have caught refer to the failed processes. While another
    # thread collects garbage, collect() returns immediately.
    gc.collect()
    multiprocessing.active_children()
    return set(descriptors().items()) | children()


def children() -> set[int]:
    """Returns the child processes of this process, zombies included."""
    found = set()
    for name in filter(str.isdecimal, os.listdir("/proc")):
        if parent_of(int(name)) == os.getpid():
            found.add(int(name))
    return found


def parent_of(pid: int) -> int | None:
    """Returns the parent of a process, or None if it does not exist."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return int(stat.read().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None


# Functions for processes.


def wait_forever(rank):
    time.sleep(10 * WAIT_S)


def exit_with(rank, code):
    if rank == 1:
        sys.exit(code)
    wait_forever(rank)
