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

import unittest
from unittest import mock

import numpy as np
from test_device_strings import ErrorTestCase, machine_with
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


def custom_place(kind):
    """Returns a function that makes the place of a plugin's device."""

    def place(index):
        return core.CustomPlace(kind, index)

    return place


class TestOtherValues(ErrorTestCase):
    def test_error_names_the_value(self):
        for value in (1.5, [1], object(), b"cpu", np.int64(0), True, False):
            self.check_is_not_a_device(value, TAKERS_OF_ONE_TYPE)


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


class OneType:
    """The tests of the functions of `paddle.device.cuda` and of
    `paddle.device.xpu`."""

    def converters(self):
        return self.module.current_stream, self.module.synchronize

    def test_error_names_a_device_of_another_type(self):
        for cpu in ("cpu", core.CPUPlace()):
            self.check_is_refused(
                cpu,
                f"must be of type '{self.kind}'",
                "cpu",
                converters=self.converters(),
            )

    def test_error_names_the_missing_toolkit(self):
        toolkit = self.toolkit
        if getattr(core, f"is_compiled_with_{toolkit.lower()}")():
            self.skipTest(f"this Paddle was built with {toolkit}")
        for device in (None, -1, 0, 99, self.kind):
            self.check_is_refused(
                device, f"with {toolkit}", converters=self.converters()
            )

    def test_place_names_the_missing_toolkit(self):
        toolkit = self.toolkit
        if getattr(core, f"is_compiled_with_{toolkit.lower()}")():
            self.skipTest(f"this Paddle was built with {toolkit}")
        for index in (0, 99):
            self.check_is_refused(
                index,
                f"'{self.kind}:{index}'",
                f"with {toolkit}",
                converters=(self.place,),
            )

    def test_each_device_is_taken(self):
        indices = {None: 1, -1: 1, 0: 0, 1: 1, self.kind: 0}
        indices |= {f"{alias}:1": 1 for alias in (self.kind, *self.aliases)}
        for device, index in indices.items():
            for convert, binding in zip(self.converters(), self.bindings):
                with (
                    self.subTest(device=device, binding=binding),
                    machine_with(self.kind, 2),
                    mock.patch.object(core, binding) as called,
                ):
                    convert(device)
                    called.assert_called_once_with(index)

    def test_device_that_does_not_exist_is_refused(self):
        with machine_with(self.kind, 2):
            for device in (2, f"{self.kind}:2"):
                self.check_is_refused(
                    device,
                    f"'{self.kind}:2'",
                    f"2 of type '{self.kind}'",
                    converters=(
                        *self.converters(),
                        self.module.max_memory_allocated,
                    ),
                )


class TestGpus(OneType, ErrorTestCase):
    kind, aliases, toolkit = "gpu", ("cuda",), "CUDA"
    place = core.CUDAPlace
    module = paddle.device.cuda
    bindings = ("_get_current_stream", "_device_synchronize")

    def test_properties_of_a_gpu_that_does_not_exist_are_refused(self):
        with machine_with("gpu", 2):
            for device in (2, "gpu:2"):
                self.check_is_refused(
                    device,
                    "'gpu:2'",
                    "2 of type 'gpu'",
                    converters=(paddle.device.cuda.get_device_properties,),
                )


class TestXpus(OneType, ErrorTestCase):
    kind, aliases, toolkit = "xpu", (), "XPU"
    place = core.XPUPlace
    module = paddle.device.xpu
    bindings = ("_xpu_get_current_stream", "_xpu_device_synchronize")

    def test_extract_xpu_device_id_takes_each_xpu(self):
        id_of = paddle.device.xpu.extract_xpu_device_id
        indices = {None: 1, -1: 1, 0: 0, "xpu": 0, "xpu:1": 1}
        with machine_with("xpu", 2):
            for device, index in indices.items():
                self.assertEqual(id_of(device, "a test"), index)


class TestPlaces(ErrorTestCase):
    def test_place_refuses_a_negative_index(self):
        for place in (
            core.CUDAPlace,
            core.XPUPlace,
            custom_place("custom_cpu"),
        ):
            self.check_is_refused(-1, "0 or more", converters=(place,))

    def test_custom_place_refuses_a_type_of_no_plugin(self):
        for kind in ("nonsense", "cpu", "gpu"):
            self.check_is_refused(
                0,
                f"'{kind}:0'",
                "must be a plugin's",
                converters=(custom_place(kind),),
            )

    @unittest.skipIf(core.is_compiled_with_ipu(), "this Paddle has IPUs")
    def test_ipu_place_names_the_missing_toolkit(self):
        with self.assertRaisesRegex(ValueError, "'ipu:0'.* compiled with IPU"):
            core.IPUPlace()


@on_every_device_list
class TestAccelerators(ErrorTestCase):
    def setUp(self):
        super().setUp()
        if len(self.devices) == 1:
            self.skipTest("no accelerator here")
        self.kind, _, _ = self.devices[0].partition(":")

    def test_place_refuses_an_index_that_does_not_exist(self):
        count = len(self.devices) - 1
        place = {"gpu": core.CUDAPlace, "xpu": core.XPUPlace}.get(
            self.kind, custom_place(self.kind)
        )
        self.check_is_refused(
            count,
            f"'{self.kind}:{count}'",
            f"{count} of type '{self.kind}'",
            converters=(place,),
        )

    def test_random_state_takes_the_place_of_a_tensor(self):
        place = paddle.zeros([1]).to(self.devices[0]).place
        paddle.set_rng_state(paddle.get_rng_state(place), place)

    def test_memory_statistics_refuse_devices_of_no_plugin(self):
        if self.kind == "gpu":
            self.skipTest("GPUs have their own statistics")
        statistics = (
            paddle.device.cuda.max_memory_allocated,
            paddle.device.cuda.memory_reserved,
        )
        for wrong in ("cpu", "nonsense:0", "custom_cpu:99", "custom_cpu:x"):
            self.check_is_refused(wrong, f"'{wrong}'", converters=statistics)

    def test_default_of_memory_statistics_is_the_current_device(self):
        kept = []
        expected = {name: name for name in self.devices[:-1]}
        if self.kind != "gpu":  # CUDA has a current device of its own.
            expected["cpu"] = self.devices[0]
        for index, (current, name) in enumerate(expected.items()):
            # A different amount on each device.
            kept.append(paddle.zeros([1 << 12 << index], device=current))
            with paddle.device.device(current):
                self.assertEqual(
                    paddle.device.cuda.memory_allocated(),
                    paddle.device.memory_allocated(name),
                )

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


class TestWithoutAccelerators(ErrorTestCase):
    @unittest.skipIf(core.is_compiled_with_cuda(), "this Paddle has GPUs")
    def test_tensor_cuda_is_refused(self):
        no_plugin = mock.patch.object(core, "get_all_custom_device_type", list)
        tensor = paddle.zeros([1])
        with no_plugin, paddle.device.device("cpu"):
            for index in (None, 0):
                self.check_is_refused(
                    index, "'gpu:0'", "with CUDA", converters=(tensor.cuda,)
                )


if __name__ == "__main__":
    unittest.main()
