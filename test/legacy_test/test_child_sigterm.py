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

import sys
import unittest

from concurrent_base import run_command, script_command

HEAD = """
import multiprocessing, os, signal, sys, time
import paddle
import paddle.multiprocessing as mp
def sleep(queue):
    queue.put(None)
    time.sleep(100)
def length(text):
    return len(text)
def set_handler():
    signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
if __name__ == "__main__":
    context = multiprocessing.get_context("{method}")
"""

TERMINATE = """
    queue = context.Queue()
    child = context.Process(target=sleep, args=(queue,))
    child.start()
    queue.get()
    child.terminate()
    child.join()
    assert child.exitcode == -signal.SIGTERM, child.exitcode
"""

# Python tells a child's main module from its file.
RUN_AS_FILE = """
import os, runpy, sys, tempfile
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "program.py")
    with open(path, "w") as program:
        program.write({text!r})
    runpy.run_path(path, run_name="__main__")
"""


@unittest.skipUnless(sys.platform == "linux", "Windows has no SIGTERM")
class TestSigterm(unittest.TestCase):
    def run_program(self, method: str, body: str) -> str:
        """Runs a program, and returns what it and its children print."""
        text = HEAD.format(method=method) + body
        script = RUN_AS_FILE.format(text=text)
        done = run_command(self, script_command(script), None)
        return done.stdout + done.stderr

    def test_terminate_ends_a_child_without_a_report(self):
        for method in ("fork", "spawn", "forkserver"):
            with self.subTest(method=method):
                printed = self.run_program(method, TERMINATE)
                self.assertNotIn("FatalError", printed)

    def test_a_pool_may_be_left_while_its_workers_start(self):
        for method in ("spawn", "forkserver"):
            with self.subTest(method=method):
                printed = self.run_program(
                    method,
                    f"    context = mp.get_context('{method}')\n"
                    "    for _ in range(3):\n"
                    "        with context.Pool(2) as pool:\n"
                    "            assert pool.map(length, ['a']) == [1]\n"
                    "        pool.join()\n",
                )
                self.assertNotIn("FatalError", printed)

    def test_a_handler_of_the_parent_remains(self):
        self.run_program(
            "fork",
            "    set_handler()\n" + TERMINATE.replace("-signal.SIGTERM", "7"),
        )

    def test_the_handler_of_the_parent_process_is_kept(self):
        printed = self.run_program(
            "fork",
            "    reader, writer = os.pipe()\n"
            "    child = os.fork()\n"
            "    if child == 0:\n"
            "        os.write(writer, b'.')\n"
            "        signal.pause()\n"
            "    os.read(reader, 1)\n"
            "    os.kill(child, signal.SIGTERM)\n"
            "    os.waitpid(child, 0)\n",
        )
        self.assertIn("FatalError", printed)


if __name__ == "__main__":
    unittest.main()
