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
"""memory_stats of this machine's devices and of the CPU."""

import os
import unittest
from unittest import mock

from concurrent_base import run_command, script_command
from forked_script import run_forked_script
from thread_device_base import on_every_device_list

import paddle
from paddle import CustomPlace, device
from paddle.base import core
from paddle.device import memory_stats

SIZE = 1 << 20

CPU_ALONE = """
import paddle
stats = paddle.device.memory_stats()
assert stats == paddle.device.memory_stats("cpu") and len(stats) == 4, stats
"""

RESERVED = """
import paddle
for device in {devices}:
    tensor = paddle.zeros([1 << 20], "uint8", device=device)
    stats = paddle.device.memory_stats(device)
    allocated = stats["allocated_bytes.all.current"]
    reserved = stats["reserved_bytes.all.current"]
    assert reserved >= allocated >= 1 << 20, stats
"""

ENDED_THREADS = """
import os, threading, time
import paddle

def wait_for_end(thread):
    thread.join()
    # Its counts move to another thread after that.
    while os.path.exists(f"/proc/self/task/{{thread.native_id}}"):
        time.sleep(0.001)

def allocated(device):
    stats = paddle.device.memory_stats(device)
    return stats["allocated_bytes.all.current"]

for device in {devices}:
    kept = paddle.zeros([1], device=device)
    before = allocated(device)
    tensors = []
    def allocate():
        tensors.append(paddle.zeros([1 << 20], "uint8", device=device))
    for count in (1, 2, 3):
        thread = threading.Thread(target=allocate)
        thread.start()
        wait_for_end(thread)
        assert allocated(device) - before == count << 20, (device, count)
    tensors.clear()
    assert allocated(device) == before, device
"""


@on_every_device_list
class TestMemoryStats(unittest.TestCase):
    def test_statistics_count_a_tensor_of_the_device(self):
        current = "allocated_bytes.all.current"
        for name in self.devices:
            before = memory_stats(name)
            tensor = paddle.zeros([SIZE], "uint8", device=name)
            inside = memory_stats(name)
            del tensor
            after = memory_stats(name)
            self.assertEqual(inside[current] - before[current], SIZE, name)
            self.assertEqual(after[current], before[current], name)
            self.assertGreaterEqual(
                after["allocated_bytes.all.peak"], inside[current]
            )

    def test_reserved_memory_contains_the_allocated_memory(self):
        # In a new process: where threads that allocated memory have ended, the
        # count of the reserved memory is wrong.
        script = RESERVED.format(devices=self.devices)
        run_forked_script(self, script)

    def test_counts_of_ended_threads_are_kept_by_a_tensor_of_main_thread(
        self,
    ):
        script = ENDED_THREADS.format(devices=self.devices)
        run_forked_script(self, script)

    def test_default_is_the_current_device(self):
        for name in self.devices:
            paddle.set_device(name)
            tensor = paddle.zeros([SIZE])
            self.assertEqual(memory_stats(), memory_stats(name))
            del tensor

    def test_values_equal_those_of_the_single_functions(self):
        for name in self.devices[:-1]:
            tensor = paddle.zeros([SIZE], device=name)
            figures = (
                device.memory_allocated,
                device.max_memory_allocated,
                device.memory_reserved,
                device.max_memory_reserved,
            )
            self.assertEqual(
                list(memory_stats(name).values()),
                [figure(name) for figure in figures],
            )
            del tensor

    def test_device_that_does_not_exist_is_named(self):
        with self.assertRaisesRegex(ValueError, "no_device"):
            memory_stats("no_device")

    def test_value_that_is_not_a_device_is_named(self):
        with self.assertRaisesRegex(TypeError, "received 1.5 of type float"):
            memory_stats(1.5)

    def test_second_custom_device_type_has_no_statistics(self):
        first = self.devices[0]
        if not isinstance(device.device_to_place(first), CustomPlace):
            self.skipTest("needs a custom device")
        types = mock.Mock(return_value=["another", "custom_cpu"])
        with mock.patch.object(core, "get_all_custom_device_type", types):
            with self.assertRaisesRegex(
                ValueError, "keeps no memory"
            ) as caught:
                memory_stats(first)
        for part in (first, "another"):
            self.assertIn(part, str(caught.exception))


@unittest.skipIf(
    paddle.is_compiled_with_cuda() or paddle.is_compiled_with_xpu(),
    "this Paddle has another device than the CPU",
)
class TestCpuAlone(unittest.TestCase):
    def test_current_device_is_the_cpu(self):
        environment = {
            name: value
            for name, value in os.environ.items()
            if name != "CUSTOM_DEVICE_ROOT"
        }
        run_command(self, script_command(CPU_ALONE), environment)


if __name__ == "__main__":
    unittest.main()
