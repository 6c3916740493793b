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
"""Processes of `spawn` start on the device of their rank."""

from __future__ import annotations

import unittest
from unittest import mock

from multiprocessing_spawn_base import SpawnTestCase, over_start_methods

import paddle
import paddle.multiprocessing as mp
from paddle.base import core

KIND = "custom_cpu"
COUNT = (
    core.get_custom_device_count(KIND)
    if KIND in paddle.device.get_all_custom_device_type()
    else 0
)

needs_devices = unittest.skipIf(
    COUNT < 2,
    f"needs two devices of the kind {KIND!r}: the plugin in "
    "test/custom_runtime/host_device, built and named by CUSTOM_DEVICE_ROOT",
)


def put_devices(rank, queue):
    """Sends the device of the rank, and the device of its tensors."""
    place = str(paddle.zeros([1]).place)
    queue.put((rank, paddle.get_device(), place))


class DevicesTestCase(SpawnTestCase):
    def devices(self, nprocs, devices) -> list[tuple[str, str]]:
        """Returns the devices of the processes and their tensors, by rank."""
        queue = mp.get_context(self.method).SimpleQueue()
        self.addCleanup(queue.close)
        self.join(
            self.start(put_devices, queue, nprocs=nprocs, devices=devices)
        )
        found = sorted(queue.get() for _ in range(nprocs))
        return [(device, place) for _, device, place in found]


@over_start_methods
@needs_devices
class TestDevices(DevicesTestCase):
    def test_device_type_selects_the_device_of_the_rank(self):
        self.assertEqual(
            self.devices(2, KIND),
            [(f"{KIND}:{rank}", f"Place({KIND}:{rank})") for rank in (0, 1)],
        )


class TestForkedDevices(DevicesTestCase):
    @needs_devices
    def test_device_names_are_used_as_given(self):
        self.assertEqual(
            self.devices(2, [f"{KIND}:1", "cpu"]),
            [(f"{KIND}:1", f"Place({KIND}:1)"), ("cpu", "Place(cpu)")],
        )

    @needs_devices
    def test_device_names_may_have_upper_case_and_spaces(self):
        self.assertEqual(
            self.devices(2, [f" {KIND.upper()}:1", "CPU "]),
            [(f"{KIND}:1", f"Place({KIND}:1)"), ("cpu", "Place(cpu)")],
        )

    def test_cpu_is_the_device_of_all_ranks(self):
        self.assertEqual(self.devices(2, "cpu"), [("cpu", "Place(cpu)")] * 2)

    @needs_devices
    def test_process_without_a_name_starts_on_the_device_of_the_caller(self):
        before = paddle.get_device()
        self.addCleanup(paddle.set_device, before)
        paddle.set_device(f"{KIND}:1")
        self.assertEqual(
            self.devices(1, None), [(f"{KIND}:1", f"Place({KIND}:1)")]
        )

    @needs_devices
    def test_fewer_devices_than_processes(self):
        with self.assertRaisesRegex(
            ValueError, f"{KIND}.* there are {COUNT} for {COUNT + 1} ranks"
        ):
            self.devices(COUNT + 1, KIND)

    def test_number_of_names_differs_from_the_processes(self):
        with self.assertRaisesRegex(
            ValueError, "received 3 devices for 2 ranks"
        ):
            self.devices(2, ["cpu"] * 3)

    def test_device_type_that_does_not_exist(self):
        for devices in ("tpu", ["tpu:0"]):
            with self.assertRaisesRegex(
                ValueError, "one of .*'cpu'.* received 'tpu(:0)?'"
            ):
                self.devices(1, devices)

    def test_missing_device_type_error_says_what_to_install(self):
        if paddle.is_compiled_with_cuda():
            self.skipTest("this Paddle has CUDA")
        with self.assertRaisesRegex(ValueError, "install paddlepaddle-gpu"):
            self.devices(1, "gpu")

    @needs_devices
    def test_device_that_does_not_exist(self):
        for wrong in (f"{KIND}:{COUNT}", f"{KIND}:x", f"{KIND}:-1"):
            with self.assertRaisesRegex(
                ValueError, f"index less than {COUNT}, but received '{wrong}'"
            ):
                self.devices(1, [wrong])

    def test_cpu_has_no_index(self):
        with self.assertRaisesRegex(ValueError, "'cpu:0'.* Write 'cpu'"):
            self.devices(1, ["cpu:0"])

    def test_name_that_is_not_a_string(self):
        with self.assertRaisesRegex(TypeError, "'gpu:0', but received 0"):
            self.devices(1, [0])

    def test_gpu_in_a_forked_process(self):
        with (
            mock.patch.object(core, "is_compiled_with_cuda", lambda: True),
            mock.patch.object(
                core, "get_cuda_device_count", lambda: 2, create=True
            ),
        ):
            for devices in ("gpu", ["cpu", "gpu:1"]):
                with self.assertRaisesRegex(
                    ValueError, "must be 'spawn' or 'forkserver'.*'gpu:1'"
                ):
                    self.devices(2, devices)


if __name__ == "__main__":
    unittest.main()
