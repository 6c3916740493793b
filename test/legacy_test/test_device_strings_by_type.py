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
"""Functions of one type of device name the value and the devices that exist."""

import contextlib
import unittest
from unittest import mock

import numpy as np
from test_device_strings import (
    ErrorTestCase,
    StandInPlace,
    on_a_machine_with_gpus,
)
from thread_device_base import on_every_device_list

import paddle
from paddle.base import core

# Functions that take a device of one type, which this Paddle may lack.
TAKERS_OF_ONE_TYPE = (
    paddle.device.cpu.get_rng_state,
    paddle.device.cuda.current_stream,
    paddle.device.cuda.get_rng_state,
    paddle.device.cuda.synchronize,
    paddle.device.xpu.current_stream,
    paddle.device.xpu.get_rng_state,
    paddle.device.xpu.synchronize,
    paddle.get_rng_state,
)


@contextlib.contextmanager
def on_a_machine_with_xpus(count):
    """
    Makes Paddle see `count` XPUs, of which the last one is the current one.
    """
    with (
        mock.patch.object(core, "is_compiled_with_xpu", lambda: True),
        mock.patch.object(
            core, "get_xpu_device_count", lambda: count, create=True
        ),
        mock.patch.object(
            core, "get_xpu_current_device_id", lambda: count - 1, create=True
        ),
        mock.patch.object(
            core, "XPUPlace", lambda index: StandInPlace("xpu", index)
        ),
    ):
        yield


class TestOtherValues(ErrorTestCase):
    def test_error_names_the_value(self):
        for value in (1.5, [1], object(), b"cpu", np.int64(0), True, False):
            self.check_is_not_a_device(value, TAKERS_OF_ONE_TYPE)

    def test_error_names_a_device_of_another_type(self):
        for cpu in ("cpu", core.CPUPlace()):
            self.check_is_refused(
                cpu,
                "must be of type 'gpu'",
                "cpu",
                converters=(
                    paddle.device.cuda.current_stream,
                    paddle.device.cuda.synchronize,
                ),
            )
            self.check_is_refused(
                cpu,
                "must be of type 'xpu'",
                "cpu",
                converters=(
                    paddle.device.xpu.current_stream,
                    paddle.device.xpu.synchronize,
                ),
            )


class TestStateOfTheCpu(ErrorTestCase):
    def test_the_cpu_has_a_state(self):
        cpu = paddle.device.cpu
        for device in (None, "cpu", 0, core.CPUPlace()):
            cpu.set_rng_state(cpu.get_rng_state(device), device)

    def test_other_devices_are_refused(self):
        def set_state(device):
            paddle.device.cpu.set_rng_state(None, device)

        for device in ("gpu", "gpu:99", "nonsense", 1, -1, core.Place()):
            self.check_is_refused(
                device, converters=(paddle.device.cpu.get_rng_state, set_state)
            )


@unittest.skipIf(core.is_compiled_with_cuda(), "this Paddle has GPUs")
class TestWithoutGpus(ErrorTestCase):
    def test_functions_of_gpus_name_the_missing_toolkit(self):
        for device in (None, -1, 0, 99, "gpu"):
            self.check_is_refused(
                device,
                "with CUDA",
                converters=(
                    paddle.device.cuda.current_stream,
                    paddle.device.cuda.synchronize,
                ),
            )

    def test_functions_of_xpus_name_the_missing_toolkit(self):
        for device in (None, -1, 0, 99, "xpu"):
            self.check_is_refused(
                device,
                "with XPU",
                converters=(
                    paddle.device.xpu.current_stream,
                    paddle.device.xpu.synchronize,
                ),
            )

    def test_tensor_cuda_without_an_accelerator_is_refused(self):
        no_plugin = mock.patch.object(core, "get_all_custom_device_type", list)
        tensor = paddle.zeros([1])
        with no_plugin, paddle.device.device("cpu"):
            for index in (None, 0):
                self.check_is_refused(
                    index, "'gpu:0'", "with CUDA", converters=(tensor.cuda,)
                )


class TestGpus(ErrorTestCase):
    def setUp(self):
        gpus = on_a_machine_with_gpus(2)
        gpus.__enter__()
        self.addCleanup(gpus.__exit__, None, None, None)

    def test_functions_of_gpus_take_each_gpu(self):
        for name, index in {
            None: 1,
            -1: 1,
            0: 0,
            1: 1,
            "gpu": 0,
            "gpu:1": 1,
            "cuda:1": 1,
        }.items():
            with mock.patch.object(core, "_device_synchronize") as synchronize:
                paddle.device.cuda.synchronize(name)
            synchronize.assert_called_once_with(index)
            with mock.patch.object(core, "_get_current_stream") as current:
                paddle.device.cuda.current_stream(name)
            current.assert_called_once_with(index)

    def test_functions_of_gpus_refuse_a_gpu_that_does_not_exist(self):
        for device in (2, "gpu:2"):
            self.check_is_refused(
                device,
                "'gpu:2'",
                "2 of type 'gpu'",
                converters=(
                    paddle.device.cuda.current_stream,
                    paddle.device.cuda.get_device_properties,
                    paddle.device.cuda.max_memory_allocated,
                    paddle.device.cuda.synchronize,
                ),
            )


class TestXpus(ErrorTestCase):
    def setUp(self):
        xpus = on_a_machine_with_xpus(2)
        xpus.__enter__()
        self.addCleanup(xpus.__exit__, None, None, None)

    def test_functions_of_xpus_take_each_xpu(self):
        for name, index in {None: 1, -1: 1, 0: 0, "xpu": 0, "xpu:1": 1}.items():
            with mock.patch.object(core, "_xpu_device_synchronize") as called:
                paddle.device.xpu.synchronize(name)
            called.assert_called_once_with(index)
            with mock.patch.object(core, "_xpu_get_current_stream") as called:
                paddle.device.xpu.current_stream(name)
            called.assert_called_once_with(index)
            found = paddle.device.xpu.extract_xpu_device_id(name, "a test")
            self.assertEqual(found, index)

    def test_functions_of_xpus_refuse_an_xpu_that_does_not_exist(self):
        for device in (2, "xpu:2"):
            self.check_is_refused(
                device,
                "'xpu:2'",
                "2 of type 'xpu'",
                converters=(
                    paddle.device.xpu.current_stream,
                    paddle.device.xpu.max_memory_allocated,
                    paddle.device.xpu.synchronize,
                ),
            )


@on_every_device_list
class TestTensorCuda(ErrorTestCase):
    def setUp(self):
        super().setUp()
        if len(self.devices) == 1:
            self.skipTest("no accelerator here")
        self.kind, _, _ = self.devices[0].partition(":")

    def test_tensor_cuda_takes_the_index_of_an_accelerator(self):
        for index, name in enumerate(self.devices[:-1]):
            there = paddle.zeros([1]).to("cpu").cuda(index)
            self.assertEqual(str(there.place), f"Place({name})")

    def test_tensor_cuda_without_an_index_means_the_current_device(self):
        tensor = paddle.zeros([1]).to("cpu")
        for current in self.devices:
            with paddle.device.device(current):
                there = tensor.cuda()
            expected = self.devices[0] if current == "cpu" else current
            self.assertEqual(str(there.place), f"Place({expected})")

    def test_tensor_cuda_refuses_what_is_no_index(self):
        cuda = paddle.zeros([1]).cuda
        count = len(self.devices) - 1
        self.check_is_refused(
            count, f"'{self.kind}:{count}'", converters=(cuda,)
        )
        self.check_is_refused(-1, "0 or more", converters=(cuda,))
        for index in (True, 1.5, self.devices[0]):
            with self.assertRaisesRegex(ValueError, f"received {index!r} of"):
                cuda(index)


if __name__ == "__main__":
    unittest.main()
