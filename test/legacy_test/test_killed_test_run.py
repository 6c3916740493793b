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
"""A killed test run leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import unittest
import uuid
from multiprocessing.connection import wait
from pkgutil import resolve_name

from concurrent_base import WAIT_S, wait_until

FOLDER = os.path.dirname(os.path.abspath(__file__))
MARK = "PADDLE_KILLED_TEST_RUN"
# A module, the tests of it to run, the owner of a function and the function.
# The run is killed at the call of the function, while its processes run.
RUNS = (
    (
        "test_multiprocessing_orphans",
        "inherits_the_pipes",
        "test_multiprocessing_orphans:Parent",
        "kill",
    ),
    (
        "test_multiprocessing_orphans",
        "TestOrphans_fork",
        "test_multiprocessing_orphans:Parent",
        "kill",
    ),
    (
        "test_multiprocessing_join",
        "that_was_forked_lives_on",
        "test_multiprocessing_join",
        "exists",
    ),
    (
        "test_multiprocessing_join",
        "daemons_end_with",
        "multiprocessing.util",
        "_exit_function",
    ),
    ("test_shared_tensor_lifetime", "TestTrees", "os", "killpg"),
    ("test_dataloader_shared_memory_kill", "all_are_killed", "os", "killpg"),
)

RUN_UNTIL_CALL = """
import sys
import test_killed_test_run
test_killed_test_run.run_until_call(*sys.argv[1:])
"""


def run_until_call(
    module: str, tests: str, owner: str, function: str, pipe: str
) -> None:
    """Runs tests until they call a function, then waits to be killed."""

    def wait_to_be_killed(*args):
        os.write(int(pipe), b"called")
        while True:
            signal.pause()

    setattr(resolve_name(owner), function, wait_to_be_killed)
    unittest.main(module, argv=["run", "-k", tests])


def marked(value: str) -> set[int]:
    """Returns the processes that have a mark in their environment."""
    entry, found = f"{MARK}={value}".encode(), set()
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/environ", "rb") as environ:
                if entry in environ.read().split(b"\0"):
                    found.add(int(name))
        except OSError:
            # The process has ended, or belongs to another user.
            continue
    return found


class TestKilledRuns(unittest.TestCase):
    def test_nothing_outlives_a_run_that_is_killed(self):
        for module, tests, owner, function in RUNS:
            with self.subTest(module=module, tests=tests):
                self.kill_run_at_call(module, tests, owner, function)

    def kill_run_at_call(self, *call: str) -> None:
        value = uuid.uuid4().hex
        read, write = os.pipe()
        run = subprocess.Popen(
            [sys.executable, "-c", RUN_UNTIL_CALL, *call, str(write)],
            cwd=FOLDER,
            env={**os.environ, MARK: value},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[write],
        )
        os.close(write)
        with open(read, "rb", buffering=0) as pipe:
            try:
                self.assertTrue(wait([pipe], WAIT_S), "the call is not made")
                self.assertEqual(pipe.read(6), b"called", "the run has ended")
                self.assertGreater(len(marked(value)), 1, "it has children")
            finally:
                run.kill()
                run.wait()
        wait_until(lambda: not marked(value), "the processes of the run end")


if __name__ == "__main__":
    unittest.main()
