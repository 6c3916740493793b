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

from __future__ import annotations

import signal
import sys
import time
import unittest

from concurrent_base import run_command, script_command
from forked_script import run_forked_script

import paddle  # noqa: F401

TERMINATE = """
import multiprocessing, os, signal
{before_import}
from test_child_sigterm import *
{after_import}
context = multiprocessing.get_context({method!r})
queue = context.Queue()
child = context.Process(target=sleep, args=(queue,))
child.start()
queue.get()
child.terminate()
child.join()
assert child.exitcode == {exitcode}, child.exitcode
"""

# A child that imports Paddle only when it runs its target.
TERMINATE_AFTER_LATE_IMPORT = """
import multiprocessing, os, signal, tempfile, time
code = "import paddle, time; open(path, 'w').close(); time.sleep(100)"
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "has begun")
    context = multiprocessing.get_context("spawn")
    child = context.Process(target=exec, args=(code, {"path": path}))
    child.start()
    while child.is_alive() and not os.path.exists(path):
        time.sleep(0.01)
    child.terminate()
    child.join()
assert child.exitcode == -signal.SIGTERM, child.exitcode
"""

# A child that multiprocessing does not know.
KILL_FORKED = """
import os, signal
import paddle
reader, writer = os.pipe()
child = os.fork()
if child == 0:
    os.write(writer, b".")
    signal.pause()
os.read(reader, 1)
os.kill(child, signal.SIGTERM)
os.waitpid(child, 0)
"""


def sleep(queue):
    queue.put("has begun")
    # Short: a Python handler of a signal that comes just before waits for it.
    for _ in range(1000):
        time.sleep(0.1)


@unittest.skipUnless(
    sys.platform == "linux", "forks, and needs Paddle's handler"
)
class TestSigterm(unittest.TestCase):
    def printed_by(self, script: str, in_new_python: bool = False) -> str:
        """Returns what a script and its children print."""
        if in_new_python:
            done = run_command(self, script_command(script), None)
        else:
            done = run_forked_script(self, script)
        return done.stdout + done.stderr

    def printed_by_terminated_child(
        self,
        method: str,
        exitcode: int,
        before_import: str = "",
        after_import: str = "",
    ) -> str:
        return self.printed_by(
            TERMINATE.format(
                method=method,
                exitcode=exitcode,
                before_import=before_import,
                after_import=after_import,
            ),
            in_new_python=bool(before_import),
        )

    def test_sigterm_ends_a_child_without_a_report(self):
        for method in ("fork", "spawn", "forkserver"):
            with self.subTest(method=method):
                self.assertNotIn(
                    "FatalError",
                    self.printed_by_terminated_child(method, -signal.SIGTERM),
                )

    def test_a_child_that_imports_paddle_late_ends_without_a_report(self):
        printed = self.printed_by(
            TERMINATE_AFTER_LATE_IMPORT, in_new_python=True
        )
        self.assertNotIn("FatalError", printed)

    def test_a_child_keeps_the_python_handler_of_its_parent(self):
        set_handler = "signal.signal(signal.SIGTERM, lambda *_: os._exit(7))"
        for when in ("before_import", "after_import"):
            with self.subTest(when=when):
                self.printed_by_terminated_child(
                    "fork", 7, **{when: set_handler}
                )

    def test_other_processes_keep_the_handler_of_paddle(self):
        self.assertIn("FatalError", self.printed_by(KILL_FORKED))


if __name__ == "__main__":
    unittest.main()
