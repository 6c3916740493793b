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
"""Tensors between processes that have dropped root privileges."""

from __future__ import annotations

import os
import unittest

from shared_tensor_base import run_sharing_script

NOBODY = 65534
# A process that changes its user is not dumpable, and neither are its forked
# children. Such a child sends a tensor in memory that it allocates itself.
SCRIPT = f"""
import ctypes
# The user that it becomes may not be able to read the files of Python and of
# Paddle, so that all that is needed is loaded before.
import multiprocessing.connection, multiprocessing.popen_fork
import paddle.incubate.multiprocessing.tensor_reductions
sharing.shared_memory_stats()

PR_SET_DUMPABLE = 4

def send(connection, variant):
    if variant == "dumpable":
        assert ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) == 0
    sharing.set_sharing_strategy(
        "file_system" if variant == "file_system" else "file_descriptor"
    )
    tensor = paddle.arange(6)
    connection.send_bytes(ForkingPickler.dumps(tensor))
    connection.recv_bytes()

os.setgroups([])
os.setgid({NOBODY})
os.setuid({NOBODY})
context = multiprocessing.get_context("fork")
ours, theirs = context.Pipe()
child = context.Process(target=send, args=(theirs, sys.argv[1]))
child.start()
try:
    tensor = ForkingPickler.loads(ours.recv_bytes())
    print("received", tensor.sum().item())
    del tensor
except Exception as error:
    print(type(error).__name__, child.pid, error)
ours.send_bytes(b"")
child.join()
"""


@unittest.skipUnless(os.geteuid() == 0, "needs root, to become another user")
class TestOtherUser(unittest.TestCase):
    def received(self, variant: str) -> str:
        """Returns the result of receiving a tensor from a script's child."""
        return run_sharing_script(self, SCRIPT, variant).stdout

    def test_sender_that_is_not_dumpable_is_named_with_how_to_fix_it(self):
        said = self.received("file_descriptor")
        self.assertRegex(
            said,
            r"(?s)^RuntimeError (\d+) .*memfd of process \1, .*not dumpable, "
            r"as after setuid.*'file_system'.*PR_SET_DUMPABLE",
        )

    def test_sender_that_makes_itself_dumpable_is_received(self):
        self.assertEqual(self.received("dumpable"), "received 15\n")

    def test_sender_with_file_system_strategy_is_received(self):
        self.assertEqual(self.received("file_system"), "received 15\n")


if __name__ == "__main__":
    unittest.main()
