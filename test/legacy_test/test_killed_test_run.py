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
"""A run of the tests that is killed leaves no process behind."""

from __future__ import annotations

import os
import subprocess
import sys
import unittest
import uuid

from concurrent_base import wait_until

FOLDER = os.path.dirname(os.path.abspath(__file__))
MARK = "PADDLE_KILLED_TEST_RUN"
ATTEMPTS = 10
# A file, the tests of it that run, and how many processes there are, the one of
# the tests among them, when it is killed.
RUNS = (
    ("test_multiprocessing_orphans.py", "inherits_the_pipes", 6),
    ("test_multiprocessing_orphans.py", "TestOrphans_fork", 5),
    ("test_multiprocessing_spawn.py", "that_was_forked_lives_on", 2),
    ("test_multiprocessing_spawn.py", "daemons_end_with", 3),
    ("test_shared_tensor_lifetime.py", "TestTrees", 4),
    ("test_dataloader_shared_memory_kill.py", "all_are_killed", 4),
)


def marked(value: str) -> set[int]:
    """Returns the processes that were started with a mark, or forked."""
    entry, found = f"{MARK}={value}".encode(), set()
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/environ", "rb") as environ:
                if entry in environ.read().split(b"\0"):
                    found.add(int(name))
        except OSError:
            # It has ended, or is another user's.
            continue
    return found


class TestKilledRuns(unittest.TestCase):
    def test_nothing_outlives_a_run_that_is_killed(self):
        for file, tests, count in RUNS:
            with self.subTest(file=file, tests=tests):
                # A busy machine may let a run end before it is looked at.
                codes = []
                while codes[-1:] != [-9] and len(codes) < ATTEMPTS:
                    codes.append(self.kill_run(file, tests, count))
                self.assertEqual(codes[-1], -9, "it ended before it was killed")

    def kill_run(self, file: str, tests: str, count: int) -> int:
        """
        Kills a run once it has `count` processes, unless it ends before, and
        waits until there is none; returns its exit code.
        """
        value = uuid.uuid4().hex
        run = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-q", file, "-k", tests],
            cwd=FOLDER,
            env={**os.environ, MARK: value},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            wait_until(
                lambda: run.poll() is not None or len(marked(value)) >= count,
                f"{count} processes run",
            )
        finally:
            run.kill()
            code = run.wait()
        wait_until(lambda: not marked(value), "the processes of the run end")
        return code


if __name__ == "__main__":
    unittest.main()
