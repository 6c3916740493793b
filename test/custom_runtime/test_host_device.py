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

"""What Paddle does with the devices of the plugin in host_device/.

CUSTOM_DEVICE_ROOT must name the folder of the built plugin.
"""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import unittest
from typing import TYPE_CHECKING

import numpy as np

import paddle
from paddle import nn

if TYPE_CHECKING:
    from paddle.base.core import Place

DEVICE_TYPE = "custom_cpu"
MEBI = 1 << 20


def setUpModule() -> None:
    if DEVICE_TYPE not in paddle.device.get_all_custom_device_type():
        raise unittest.SkipTest(
            f"there is no device type {DEVICE_TYPE}: build the plugin in "
            "host_device/ and set CUSTOM_DEVICE_ROOT to its folder"
        )


def name_of(index: int) -> str:
    return f"{DEVICE_TYPE}:{index}"


def place_of(index: int) -> paddle.CustomPlace:
    return paddle.CustomPlace(DEVICE_TYPE, index)


def on_host(values: np.ndarray) -> paddle.Tensor:
    return paddle.to_tensor(values, place=paddle.CPUPlace())


def run_python(
    program: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a program in a Python of its own, with these variables set."""
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=120,
    )


class HostDeviceTest(unittest.TestCase):
    """Starts each test on device 0 and restores the device after it."""

    def setUp(self) -> None:
        self.addCleanup(paddle.set_device, paddle.get_device())
        paddle.set_device(name_of(0))


class TestDevices(HostDeviceTest):
    def test_four_devices_are_visible_and_named(self):
        self.assertEqual(
            paddle.device.get_available_custom_device(),
            [name_of(index) for index in range(4)],
        )
        self.assertEqual(paddle.device.device_count(DEVICE_TYPE), 4)

    def test_new_tensors_land_on_the_current_device(self):
        for index in range(4):
            paddle.set_device(name_of(index))
            for tensor in (
                paddle.zeros([2]),
                paddle.full([2], 3.0),
                paddle.rand([2]),
                paddle.to_tensor([1, 2]),
            ):
                self.assertEqual(tensor.place, place_of(index))


class TestCopies(HostDeviceTest):
    DTYPES = (
        "bool",
        "uint8",
        "int32",
        "int64",
        "float16",
        "bfloat16",
        "float32",
        "float64",
        "complex64",
    )

    def assert_copies_keep(self, host: paddle.Tensor) -> None:
        """Send a tensor of the host to a device, another one and back."""
        first = host.to(name_of(1))
        second = first.to(name_of(2))
        twin = second._copy_to(place_of(2), True)
        self.assertEqual(first.place, place_of(1))
        self.assertEqual(second.place, place_of(2))
        self.assertEqual(twin.place, place_of(2))
        for tensor in (first, second, twin):
            back = tensor.cpu()
            self.assertTrue(back.place.is_cpu_place())
            self.assertEqual(back.dtype, host.dtype)
            np.testing.assert_array_equal(back.numpy(), host.numpy())

    def test_copies_keep_values_of_every_dtype(self):
        for dtype in self.DTYPES:
            with self.subTest(dtype=dtype):
                values = np.arange(-3, 3, dtype="float32").reshape(2, 3)
                self.assert_copies_keep(on_host(np.abs(values)).astype(dtype))

    def test_copies_keep_empty_tensors(self):
        for dtype in self.DTYPES:
            with self.subTest(dtype=dtype):
                values = np.empty([0, 3], dtype="float32")
                self.assert_copies_keep(on_host(values).astype(dtype))

    def test_copies_share_no_memory(self):
        original = paddle.ones([4])
        copy = original.to(name_of(1))
        original.fill_(5)
        np.testing.assert_array_equal(copy.numpy(), np.ones([4]))


class TestMemory(HostDeviceTest):
    def test_allocated_bytes_grow_and_shrink(self):
        before = paddle.device.memory_allocated(name_of(2))
        tensor = paddle.zeros([MEBI], "uint8").to(name_of(2))
        self.assertEqual(
            paddle.device.memory_allocated(name_of(2)), before + MEBI
        )
        del tensor
        self.assertEqual(paddle.device.memory_allocated(name_of(2)), before)

    def test_devices_account_for_memory_separately(self):
        others = [name_of(index) for index in (0, 1, 3)]
        paddle.set_device(name_of(2))
        before = [paddle.device.memory_allocated(name) for name in others]
        tensor = paddle.zeros([MEBI], "uint8")
        after = [paddle.device.memory_allocated(name) for name in others]
        self.assertEqual(tensor.place, place_of(2))
        self.assertEqual(after, before)

    def test_a_full_device_raises_and_stays_usable(self):
        program = f"""
import paddle

def zeros(device, size):
    paddle.set_device(device)
    return paddle.zeros([size], 'uint8')

kept = zeros('{name_of(1)}', {MEBI})
try:
    zeros('{name_of(1)}', {2 * MEBI})
except OSError:
    print('refused')
print((kept + 1).numpy().max())
print(zeros('{name_of(2)}', {2 * MEBI}).place)
del kept
paddle.device.empty_cache()
print(zeros('{name_of(1)}', {2 * MEBI}).place)
"""
        done = run_python(program, HOST_DEVICE_MEMORY=str(3 * MEBI - 1))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(
            done.stdout.splitlines(),
            ["refused", "1", str(place_of(2)), str(place_of(1))],
        )
        self.assertIn(
            f"device 1 cannot allocate {2 * MEBI} bytes: "
            f"{2 * MEBI - 1} of {3 * MEBI - 1} are free",
            done.stderr,
        )


class TestStreams(HostDeviceTest):
    def test_streams_are_distinct(self):
        streams = [
            paddle.device.Stream(name_of(index)) for index in (0, 0, 1, 1)
        ]
        handles = {stream.stream_base.raw_stream for stream in streams}
        self.assertEqual(len(handles), len(streams))

    def test_each_device_has_a_current_stream(self):
        streams = [
            paddle.device.current_stream(name_of(index)) for index in range(4)
        ]
        handles = {stream.stream_base.raw_stream for stream in streams}
        self.assertEqual(len(handles), len(streams))
        for index, stream in enumerate(streams):
            self.assertEqual(stream.device, place_of(index))

    def test_stream_guard_switches_the_stream_of_its_device_only(self):
        def current(index: int) -> int:
            stream = paddle.device.current_stream(name_of(index))
            return stream.stream_base.raw_stream

        stream = paddle.device.Stream(name_of(1))
        before = [current(0), current(1)]
        with paddle.device.stream_guard(stream):
            self.assertEqual(current(0), before[0])
            self.assertEqual(current(1), stream.stream_base.raw_stream)
        self.assertEqual([current(0), current(1)], before)

    def test_an_event_completes_with_the_work_before_it(self):
        event = paddle.device.Event()
        self.assertTrue(event.query())
        stream = paddle.device.Stream(name_of(0))
        with paddle.device.stream_guard(stream):
            total = paddle.ones([8]).sum()
            event.record(stream)
        event.synchronize()
        self.assertTrue(event.query())
        self.assertEqual(total.item(), 8)

    def test_an_event_refuses_a_stream_of_another_device(self):
        event = paddle.device.Event()
        with self.assertRaises(OSError):
            event.record(paddle.device.Stream(name_of(1)))

    def test_a_stream_waits_for_events_of_any_device(self):
        event = paddle.device.Stream(name_of(0)).record_event()
        for index in range(2):
            stream = paddle.device.Stream(name_of(index))
            stream.wait_event(event)
            stream.synchronize()
            self.assertTrue(stream.query())

    def test_a_stream_waits_for_a_stream(self):
        producer = paddle.device.Stream(name_of(0))
        consumer = paddle.device.Stream(name_of(0))
        with paddle.device.stream_guard(producer):
            value = paddle.ones([4]) + 1
        consumer.wait_stream(producer)
        with paddle.device.stream_guard(consumer):
            value = value * 2
        paddle.device.synchronize(name_of(0))
        np.testing.assert_array_equal(value.numpy(), np.full([4], 4.0))


class TestKernels(HostDeviceTest):
    """Paddle's CPU kernels stand in for those that the device has not."""

    def train(
        self, layer: nn.Layer, inputs: np.ndarray, place: Place
    ) -> list[np.ndarray]:
        """Take one step of Adam, all of it on one place.

        Args:
            layer: what to train, which maps two samples to three classes.
            inputs: the two samples.
            place: where the layer and every result must be.

        Returns:
            The output, the loss, the gradients and the new parameters.
        """
        paddle.set_device(place)
        layer.to(place)
        parameters = layer.parameters()
        optimizer = paddle.optimizer.Adam(0.1, parameters=parameters)
        output = layer(paddle.to_tensor(inputs))
        loss = nn.functional.cross_entropy(output, paddle.to_tensor([2, 0]))
        loss.backward()
        optimizer.step()
        gradients = [parameter.grad for parameter in parameters]
        results = [output, loss, *gradients, *parameters]
        for tensor in results:
            self.assertEqual(tensor.place, place)
        return [tensor.numpy() for tensor in results]

    def assert_trains_as_on_host(
        self, layer: nn.Layer, inputs: np.ndarray
    ) -> None:
        expected = self.train(copy.deepcopy(layer), inputs, paddle.CPUPlace())
        actual = self.train(layer, inputs, place_of(3))
        for got, want in zip(actual, expected):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)

    def test_a_linear_layer_trains_as_on_the_host(self):
        inputs = np.linspace(-1, 1, 8, dtype="float32").reshape(2, 4)
        self.assert_trains_as_on_host(nn.Linear(4, 3), inputs)

    def test_a_convolution_trains_as_on_the_host(self):
        inputs = np.linspace(-1, 1, 96, dtype="float32").reshape(2, 3, 4, 4)
        layer = nn.Sequential(
            nn.Conv2D(3, 2, 3), nn.Flatten(), nn.Linear(8, 3), nn.Softmax()
        )
        self.assert_trains_as_on_host(layer, inputs)


class TestConfiguration(unittest.TestCase):
    PROGRAM = "import paddle; print(paddle.device.get_all_custom_device_type())"

    def test_a_bad_variable_is_named_and_leaves_no_devices(self):
        for name, value in (
            ("HOST_DEVICE_COUNT", "0"),
            ("HOST_DEVICE_COUNT", "17"),
            ("HOST_DEVICE_MEMORY", "1G"),
        ):
            with self.subTest(name=name, value=value):
                done = run_python(self.PROGRAM, **{name: value})
                self.assertEqual(done.stdout.strip(), "[]", done.stderr)
                self.assertIn(f'no devices: {name} is "{value}"', done.stderr)

    def test_the_number_of_devices_is_configurable(self):
        program = "import paddle; print(paddle.device.device_count())"
        done = run_python(program, HOST_DEVICE_COUNT="16")
        self.assertEqual(done.stdout.strip(), "16", done.stderr)


if __name__ == "__main__":
    unittest.main()
