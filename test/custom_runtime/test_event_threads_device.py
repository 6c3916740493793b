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

"""Event.wait on a thread that did not record the event.

The work before an event is delayed, so that a missing wait gives a wrong value.
test_thread_stream_order.py tests the other event functions on threads.

CUSTOM_DEVICE_ROOT must name the folder of the built plugin in host_device/.
"""

from __future__ import annotations

import sys
import unittest
from pathlib import Path
from unittest import mock

from host_device_control import check_pending, delay, with_ample_delay
from test_host_device import name_of, setUpModule

sys.path.append(str(Path(__file__).parents[1] / "legacy_test"))

from concurrent_base import in_thread
from thread_device_base import handle

import paddle
from paddle.device import Event, Stream, current_stream, stream_guard

__all__ = ["setUpModule"]

# In microseconds: ample time for an operation that does not wait.
DELAY = 300_000


class TestEventWait(unittest.TestCase):
    def setUp(self) -> None:
        self.addCleanup(paddle.set_device, paddle.get_device())
        paddle.set_device(name_of(0))
        self.addCleanup(paddle.device.synchronize)
        self.x = paddle.ones([4])
        current_stream().synchronize()
        self.stream = Stream()

    def scale_late(self) -> Event:
        """Start to scale x by three; return the event of its completion."""
        event = Event()
        with stream_guard(self.stream):
            with delay(0, DELAY, handle(self.stream)):
                self.x.scale_(3.0)
            event.record()
        return event

    def doubled(self) -> list[float]:
        """Return twice the value of x that the current stream reads."""
        y = self.x * 2
        current_stream().synchronize()
        return y.tolist()

    @with_ample_delay
    def test_without_a_wait_the_work_is_not_ordered(self):
        event = in_thread(self.scale_late)
        early = self.doubled()
        check_pending(event)
        self.assertEqual(early, [2.0] * 4)

    def test_wait_orders_the_current_stream_of_the_calling_thread(self):
        event = in_thread(self.scale_late)

        def read() -> list[float]:
            with stream_guard(Stream()):
                event.wait()
                return self.doubled()

        self.assertEqual(in_thread(read), [6.0] * 4)

    def test_wait_orders_the_given_stream(self):
        event = in_thread(self.scale_late)
        stream = Stream()
        event.wait(stream)

        def read() -> list[float]:
            with stream_guard(stream):
                return self.doubled()

        self.assertEqual(in_thread(read), [6.0] * 4)

    @with_ample_delay
    def test_wait_does_not_block_other_streams(self):
        event = in_thread(self.scale_late)
        event.wait(Stream())
        early = self.doubled()
        check_pending(event)
        self.assertEqual(early, [2.0] * 4)

    @with_ample_delay
    def test_wait_stream_orders_a_stream_of_another_device(self):
        in_thread(self.scale_late)
        consumer = Stream(name_of(1))
        consumer.wait_stream(self.stream)
        check_pending(consumer)
        consumer.synchronize()
        self.assertTrue(self.stream.query())
        self.assertEqual(self.x.tolist(), [3.0] * 4)

    def test_elapsed_time_raises_a_clear_error(self):
        event = Event(enable_timing=True)
        timed = Event.__new__(Event)
        timed.event_base = mock.Mock(spec=["elapsed_time"])
        for first, last in ((event, event), (timed, event)):
            with self.assertRaisesRegex(NotImplementedError, "custom_cpu:0"):
                first.elapsed_time(last)
        timed.event_base.elapsed_time.assert_not_called()


if __name__ == "__main__":
    unittest.main()
