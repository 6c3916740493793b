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
"""Custom device events cannot be sent to other processes.

CUSTOM_DEVICE_ROOT must name the folder of the built plugin in host_device/.
"""

from __future__ import annotations

import multiprocessing
import unittest

from test_host_device import name_of, setUpModule

import paddle
from paddle.device import Event

__all__ = ["setUpModule"]

_REFUSED = "Only GPU events can be sent.*custom_cpu:0.*synchronize"


class TestCustomDeviceEvents(unittest.TestCase):
    def setUp(self) -> None:
        self.addCleanup(paddle.set_device, paddle.get_device())
        paddle.set_device(name_of(0))
        self.event = Event(interprocess=True)

    def test_pipe_refuses_the_event(self):
        ours, theirs = multiprocessing.Pipe()
        self.addCleanup(theirs.close)
        self.addCleanup(ours.close)
        with self.assertRaisesRegex(NotImplementedError, _REFUSED):
            ours.send(self.event)
        with self.assertRaisesRegex(NotImplementedError, "Only GPU events"):
            ours.send(self.event.event_base)
        self.assertFalse(theirs.poll())

    def test_receiver_of_a_queue_gets_the_error(self):
        queue = multiprocessing.get_context("spawn").Queue()
        self.addCleanup(queue.join_thread)
        self.addCleanup(queue.close)
        queue.put(self.event)
        with self.assertRaisesRegex(NotImplementedError, _REFUSED):
            queue.get(timeout=180)

    def test_handle_is_refused(self):
        with self.assertRaisesRegex(NotImplementedError, _REFUSED):
            self.event.ipc_handle()

    def test_event_of_another_process_is_not_on_the_device(self):
        with self.assertRaisesRegex(ValueError, f"on a GPU.*'{name_of(0)}'"):
            Event.from_ipc_handle(name_of(0), b"")

    def test_event_orders_streams_of_this_process(self):
        stream = paddle.device.Stream()
        self.event.record(stream)
        self.event.wait()
        self.event.synchronize()
        self.assertTrue(self.event.query())


if __name__ == "__main__":
    unittest.main()
