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

"""Waits for a stream, an event or a device leave the GIL to other threads.

CUSTOM_DEVICE_ROOT must name the folder of the built plugin in host_device/.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import unittest
from typing import TYPE_CHECKING

from host_device_control import TooSlow, delay, with_ample_delay
from test_host_device import name_of, run_python, setUpModule
from test_thread_stream_order import WAIT_S, StreamTest, filled, handle

import paddle

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["setUpModule"]

# In microseconds.
DELAY = 300_000
# More turns than another thread can have before and after a wait.
TURNS = 10


class TestWaits(StreamTest):
    def check_others_run(self, wait: Callable[[], None]) -> None:
        """Check that another thread runs Python code during a wait."""
        turns = 0
        is_over = threading.Event()

        def take_turns() -> None:
            nonlocal turns
            while not is_over.is_set():
                if not self.default.query():
                    turns += 1
                time.sleep(0.001)

        other = threading.Thread(target=take_turns)
        x = filled(1.0)
        with delay(0, DELAY, handle(self.default)):
            x.scale_(3.0)
        other.start()
        try:
            wait()
        finally:
            is_over.set()
            other.join(WAIT_S)
        self.assert_holds(x, 3.0)
        if turns < TURNS:
            raise TooSlow(f"another thread had {turns} turns during the wait")

    @with_ample_delay
    def test_stream(self):
        self.check_others_run(self.default.synchronize)

    @with_ample_delay
    def test_event(self):
        self.check_others_run(lambda: self.default.record_event().synchronize())

    @with_ample_delay
    def test_device(self):
        self.check_others_run(lambda: paddle.device.synchronize(name_of(0)))

    def test_process_exits_while_daemon_threads_wait(self):
        done = run_python(
            """
import threading, time
import paddle
from host_device_control import delay
paddle.set_device("custom_cpu:0")
stream = paddle.device.current_stream()
x = paddle.ones([4])
with delay(0, 1_000_000):
    x.scale_(3.0)
event = stream.record_event()
waits = stream.synchronize, event.synchronize, paddle.device.synchronize
for wait in waits:
    threading.Thread(target=wait, daemon=True).start()
time.sleep(0.1)
print("exits", flush=True)
""",
            PYTHONPATH=os.pathsep.join(sys.path),
        )
        self.assertEqual((done.stdout, done.returncode), ("exits\n", 0))
        self.assertNotIn("terminate", done.stderr)


if __name__ == "__main__":
    unittest.main()
