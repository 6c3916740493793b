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
"""Device-independent functions of paddle.device, on each kind of device."""

import os
import unittest

from concurrent_base import run_command, script_command
from thread_device_base import on_every_device_list

import paddle
from paddle import device

CPU_ALONE = """
import re

import paddle
from paddle import device

exec('from paddle.device import *', {})
assert not device.is_available() and device.device_count() == 0
assert (device.get_device(), device.current_device()) == ("cpu", 0)
device.empty_cache()

def fails(call, error, *parts):
    try:
        call()
    except error as caught:
        for part in parts:
            assert part in str(caught), caught
    else:
        raise AssertionError(f"{call} does not fail")

for name in (
    "Event", "Stream", "get_device_properties", "get_device_name",
    "get_device_capability", "memory_allocated", "memory_reserved",
    "max_memory_allocated", "max_memory_reserved",
    "reset_max_memory_allocated", "reset_max_memory_reserved",
    "reset_peak_memory_stats",
):
    function = getattr(device, name)
    fails(function, ValueError, "needs a GPU", "only device", "CPU")
    # No function that the caller has not called.
    try:
        function()
    except ValueError as caught:
        named = re.findall(r"paddle[.]device[.](\\w+)", str(caught))
        assert named == ["is_available"], caught
fails(lambda: device.Stream("cpu"), ValueError, "needs a GPU")
for name in ("get_device_properties", "get_device_name"):
    fails(lambda: getattr(device, name)("gpu:x"), ValueError, "'gpu:x'")
fails(lambda: device.Stream(priority=7), ValueError, "received 7")
state = device.get_rng_state()
device.set_rng_state(state, "cpu")
for wrong in ("gpu", "gpu:x", "nonsense", True, 1.5, 1):
    fails(lambda: device.get_rng_state(wrong), ValueError, str(wrong))
    fails(lambda: device.set_rng_state(state, wrong), ValueError, str(wrong))
for name in ("current_stream", "default_stream", "synchronize"):
    fails(getattr(device, name), TypeError, "streams", "Place(cpu)")
    fails(lambda: getattr(device, name)(5), ValueError, "index 0", "5")
    fails(lambda: getattr(device, name)(1.5), TypeError, "1.5")
fails(lambda: device.set_device(1), ValueError, "index 0", "1")
"""


@unittest.skipIf(
    paddle.is_compiled_with_cuda() or paddle.is_compiled_with_xpu(),
    "this Paddle has another device than the CPU",
)
class TestCpuAlone(unittest.TestCase):
    def test_functions_work_or_report_the_missing_accelerator(self):
        environment = {
            name: value
            for name, value in os.environ.items()
            if name != "CUSTOM_DEVICE_ROOT"
        }
        run_command(self, script_command(CPU_ALONE), environment)


@on_every_device_list
class TestAccelerators(unittest.TestCase):
    def setUp(self):
        super().setUp()
        if len(self.devices) < 3:
            self.skipTest("needs two accelerators")
        self.second = self.devices[1]
        paddle.set_device(self.second)

    def test_current_device_and_device_count(self):
        self.assertTrue(device.is_available())
        self.assertEqual(device.device_count(), len(self.devices) - 1)
        self.assertEqual(device.get_device(), self.second)
        self.assertEqual(device.current_device(), 1)
        paddle.set_device(0)
        self.assertEqual(device.get_device(), self.devices[0])
        with device.device(1):
            self.assertEqual(device.get_device(), self.second)

    def test_synchronize_and_streams(self):
        stream = device.Stream()
        with device.stream_guard(stream):
            paddle.ones([2]) * 2
            device.synchronize()
        self.assertTrue(stream.query())
        device.synchronize(self.second)

    def test_index_stands_for_a_device_of_the_current_type(self):
        for index, name in enumerate(self.devices[:2]):
            device.synchronize(index)
            self.assertEqual(
                device.current_stream(index).stream_base.place,
                device.current_stream(name).stream_base.place,
            )
        missing = len(self.devices) - 1
        for function in (device.current_stream, device.synchronize):
            with self.assertRaisesRegex(
                ValueError, f"There is no device.*{missing}"
            ):
                function(missing)

    def test_peak_is_reset_to_the_present_usage_of_the_given_device(self):
        figures = (device.max_memory_allocated, device.max_memory_reserved)
        other = paddle.zeros([1 << 22], device=self.devices[0])
        large = paddle.zeros([1 << 22])
        del other, large
        device.synchronize()
        device.empty_cache()
        before = [figure(self.devices[0]) for figure in figures]
        device.reset_peak_memory_stats(self.second)
        self.assertEqual(
            device.max_memory_allocated(self.second),
            device.memory_allocated(self.second),
        )
        self.assertEqual(
            device.max_memory_reserved(self.second),
            device.memory_reserved(self.second),
        )
        # The peaks of other devices do not change.
        after = [figure(self.devices[0]) for figure in figures]
        self.assertEqual(after, before)
        self.assertGreater(before[0], device.memory_allocated(self.devices[0]))


if __name__ == "__main__":
    unittest.main()
