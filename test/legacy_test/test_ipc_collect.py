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
"""`ipc_collect` in a process that has sent no tensors."""

from __future__ import annotations

import unittest

from forked_script import run_forked_script

import paddle
from paddle.base import shared_storage

# A Paddle without GPUs has no such function.
SCRIPT = """
import paddle
from paddle.base import libpaddle, shared_storage

calls = []
libpaddle._ipc_collect = lambda: calls.append(1)
paddle.device.cuda.ipc_collect()
assert calls == [1], calls
assert not shared_storage.is_in_use()
"""


class TestIpcCollect(unittest.TestCase):
    def test_every_public_name_is_the_same_function(self):
        for module in (paddle.device, paddle.device.cuda, paddle.cuda):
            with self.subTest(module.__name__):
                self.assertIs(module.ipc_collect, shared_storage.ipc_collect)
                self.assertIn("ipc_collect", module.__all__)

    def test_a_process_that_has_sent_nothing_joins_no_process_tree(self):
        run_forked_script(self, SCRIPT)


if __name__ == "__main__":
    unittest.main()
