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
"""A process joins its process tree when it first shares memory or starts a
child, and its children inherit the tree."""

from __future__ import annotations

import sys
import unittest

from concurrent_base import pristine_environment, run_command, script_command
from forked_script import run_forked_script

VARIABLE = "PADDLE_SHARED_MEMORY_TREE"
START_METHODS = ("fork", "spawn", "forkserver")
HEAD = """
import multiprocessing
import os
import paddle
import paddle.incubate.multiprocessing
paddle.set_device("cpu")
"""


@unittest.skipUnless(sys.platform == "linux", "shared memory needs Linux")
class TestProcessTree(unittest.TestCase):
    def run_script(self, script):
        run_forked_script(self, HEAD + script)

    def test_first_share_joins(self):
        self.run_script(
            f"""
assert "{VARIABLE}" not in os.environ
paddle.ones([2]).share_memory_()
assert "{VARIABLE}" in os.environ
"""
        )

    def test_fork_of_any_kind_joins(self):
        self.run_script(
            f"""
ours, theirs = os.pipe()
if os.fork() == 0:
    os.write(theirs, os.environ["{VARIABLE}"].encode())
    os._exit(0)
os.close(theirs)
assert os.read(ours, 99).decode() == os.environ["{VARIABLE}"]
"""
        )

    def test_children_of_a_process_that_has_not_shared_are_in_its_tree(self):
        for method in START_METHODS:
            with self.subTest(method):
                self.run_script(
                    f"""
context = multiprocessing.get_context("{method}")
with context.Pool(1) as pool:
    tree = pool.apply(os.getenv, ["{VARIABLE}"])
assert tree is not None
assert tree == os.environ["{VARIABLE}"]
"""
                )

    def test_tree_stays_one_when_the_environment_is_restored(self):
        for method in START_METHODS:
            with self.subTest(method):
                self.run_script(
                    f"""
before = dict(os.environ)
paddle.ones([2]).share_memory_()
tree = os.environ["{VARIABLE}"]
os.environ.clear()
os.environ.update(before)
context = multiprocessing.get_context("{method}")
with context.Pool(1) as pool:
    got = pool.apply(os.getenv, ["{VARIABLE}"])
assert got == tree, (got, tree)
"""
                )

    def test_invalid_number_of_a_tree_is_replaced(self):
        for number in ("", "0", "none", "1" * 17):
            with self.subTest(number):
                # In a new Python: the import of Paddle reads the variable.
                script = f"""
paddle.ones([2]).share_memory_()
assert 0 < int(os.environ["{VARIABLE}"], 16) < 1 << 64
"""
                run_command(
                    self,
                    script_command(HEAD + script),
                    {**pristine_environment(), VARIABLE: number},
                )


if __name__ == "__main__":
    unittest.main()
