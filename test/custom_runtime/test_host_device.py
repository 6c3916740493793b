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

"""Paddle on the devices of the plugin in host_device/.

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
from host_device_control import (
    Operation,
    TooSlow,
    check_overlap,
    check_pending,
    delay,
    take_trace,
    with_ample_delay,
)

import paddle
from paddle import nn

if TYPE_CHECKING:
    from collections.abc import Callable

    from paddle.base.core import Place

DEVICE_TYPE = "custom_cpu"
MEBI = 1 << 20
DELAY = 200_000  # In microseconds: ample time for work that does not wait.


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


def random(shape: list[int]) -> np.ndarray:
    return np.asarray(np.random.rand(*shape), dtype="float32")


def run_python(
    program: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a program in a new Python process, with environment variables."""
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=600,
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
        """Copy a host tensor to a device, to another device and back."""
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
        stream = paddle.device.Stream(name_of(1))
        with self.assertRaises(OSError):
            # Not through Event.record, which may check the devices itself.
            event.event_base.record(stream.stream_base)

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
    """The device has kernels for float32, which run on its streams."""

    def operations_of(self, run: Callable[[], object]) -> list[Operation]:
        """Return the operations on device 0 that a call causes."""
        paddle.device.synchronize(name_of(0))
        take_trace()
        run()
        paddle.device.synchronize(name_of(0))
        return take_trace()

    def assert_computes(
        self,
        kind: str,
        compute: Callable[..., paddle.Tensor],
        expected: np.ndarray,
        *operands: np.ndarray,
    ) -> None:
        """Check a kernel's result, and that the kernel ran on the device."""
        tensors = [on_host(operand).to(name_of(0)) for operand in operands]
        answers = []
        trace = self.operations_of(lambda: answers.append(compute(*tensors)))
        self.assertEqual([operation.kind for operation in trace], [kind])
        self.assertEqual(answers[0].place, place_of(0))
        got = answers[0].numpy()
        self.assertEqual(got.dtype, np.float32)
        self.assertEqual(got.shape, expected.shape)
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)

    def test_full_matches_numpy(self):
        for shape in ([2, 3], [], [0, 3]):
            with self.subTest(shape=shape):
                self.assert_computes(
                    "full",
                    lambda shape=shape: paddle.full(shape, 2.5),
                    np.full(shape, 2.5),
                )

    def test_scale_matches_numpy(self):
        for shape in ([2, 3], [], [0, 3]):
            x = random(shape)
            for after, expected in ((True, 2 * x + 3), (False, 2 * (x + 3))):
                with self.subTest(shape=shape, bias_after_scale=after):
                    self.assert_computes(
                        "scale",
                        lambda x, after=after: paddle.scale(x, 2.0, 3.0, after),
                        expected,
                        x,
                    )

    def test_relu_matches_numpy(self):
        x = np.array([[-1, -0.0, 0, 2], [np.nan, np.inf, -np.inf, 1]])
        x = x.astype("float32")
        self.assert_computes("relu", nn.functional.relu, np.maximum(x, 0), x)

    def test_add_broadcasts_like_numpy(self):
        for x_shape, y_shape in (
            ([2, 3], [2, 3]),
            ([2, 3], [3]),
            ([2, 1, 3], [4, 1]),
            ([], [2, 2]),
            ([0, 3], [3]),
        ):
            x = random(x_shape)
            y = random(y_shape)
            with self.subTest(x=x_shape, y=y_shape):
                self.assert_computes("add", paddle.add, x + y, x, y)

    def test_matmul_matches_numpy(self):
        for x_shape, y_shape in (
            ([2, 3], [3, 4]),
            ([3], [3]),
            ([3], [3, 4]),
            ([2, 3], [3]),
            ([5, 2, 3], [3, 4]),
            ([5, 1, 2, 3], [6, 3, 4]),
            ([3], [5, 3, 4]),
            ([2, 0], [0, 4]),
        ):
            x = random(x_shape)
            y = random(y_shape)
            with self.subTest(x=x_shape, y=y_shape):
                self.assert_computes("matmul", paddle.matmul, x @ y, x, y)

    def test_matmul_transposes_like_numpy(self):
        def turned(values: np.ndarray) -> np.ndarray:
            return np.ascontiguousarray(np.swapaxes(values, -1, -2))

        for batch in ([], [5]):
            x = random([*batch, 2, 3])
            y = random([*batch, 3, 4])
            for flags, operands in (
                ((True, False), (turned(x), y)),
                ((False, True), (x, turned(y))),
                ((True, True), (turned(x), turned(y))),
            ):
                with self.subTest(batch=batch, flags=flags):
                    self.assert_computes(
                        "matmul",
                        lambda x, y, flags=flags: paddle.matmul(x, y, *flags),
                        x @ y,
                        *operands,
                    )

    def test_matmul_transposes_no_vector(self):
        x, y = random([3]), random([3])
        self.assert_computes(
            "matmul", lambda x, y: paddle.matmul(x, y, True, True), x @ y, x, y
        )
        matrix = random([3, 4])
        self.assert_computes(
            "matmul",
            lambda x, y: paddle.matmul(x, y, True),
            x @ matrix,
            x,
            matrix,
        )

    def test_a_kernel_works_in_place(self):
        x = paddle.full([3], 2.0)
        x.scale_(3.0)
        x.add_(x)
        np.testing.assert_array_equal(x.numpy(), np.full([3], 12.0))

    def test_a_kernel_runs_on_the_current_stream(self):
        x = paddle.ones([4])
        stream = paddle.device.Stream(name_of(0))

        def on_both_streams() -> None:
            paddle.add(x, x)
            with paddle.device.stream_guard(stream):
                nn.functional.relu(x)

        default = paddle.device.current_stream(name_of(0))
        trace = self.operations_of(on_both_streams)
        self.assertEqual(
            [(each.device, each.stream, each.kind) for each in trace],
            [
                (0, default.stream_base.raw_stream, "add"),
                (0, stream.stream_base.raw_stream, "relu"),
            ],
        )

    def test_the_host_waits_for_delayed_kernels(self):
        # Intermediate results are released, so that their memory is reused,
        # before they have been computed.
        for stream in (None, paddle.device.Stream(name_of(0))):
            with paddle.device.stream_guard(stream):
                with delay(0, 5_000):
                    total = paddle.zeros([4])
                    for _ in range(10):
                        total = total + 1
                np.testing.assert_array_equal(total.numpy(), np.full([4], 10.0))

    def test_a_cpu_kernel_waits_for_delayed_kernels(self):
        x = paddle.zeros([4])
        with delay(0, DELAY):
            x = x + 1
        np.testing.assert_allclose(paddle.exp(x).numpy(), np.full([4], np.e))

    @with_ample_delay
    def test_a_stream_that_does_not_wait_for_another_reads_too_early(self):
        x = paddle.ones([4])
        producer = paddle.device.Stream(name_of(0))
        consumer = paddle.device.Stream(name_of(0))
        with delay(0, DELAY, producer.stream_base.raw_stream):
            with paddle.device.stream_guard(producer):
                x.scale_(5.0)
        with paddle.device.stream_guard(consumer):
            early = (x + 1).numpy()
        check_pending(producer)
        paddle.device.synchronize(name_of(0))
        np.testing.assert_array_equal(early, np.full([4], 2.0))
        np.testing.assert_array_equal(x.numpy(), np.full([4], 5.0))

    def test_a_stream_that_waits_for_an_event_reads_the_result_before_it(self):
        x = paddle.ones([4])
        producer = paddle.device.Stream(name_of(0))
        consumer = paddle.device.Stream(name_of(0))
        results = []

        def produce_and_consume() -> None:
            with delay(0, DELAY, producer.stream_base.raw_stream):
                with paddle.device.stream_guard(producer):
                    x.scale_(5.0)
            consumer.wait_event(producer.record_event())
            with paddle.device.stream_guard(consumer):
                results.append(x + x)

        trace = self.operations_of(produce_and_consume)
        np.testing.assert_array_equal(results[0].numpy(), np.full([4], 10.0))
        ran = {operation.kind: operation for operation in trace}
        self.assertLessEqual(ran["scale"].end_ns, ran["add"].begin_ns)

    @with_ample_delay
    def test_kernels_on_streams_without_order_overlap(self):
        x = paddle.ones([4])

        def on_two_streams() -> None:
            with delay(0, DELAY):
                for kernel in (paddle.scale, nn.functional.relu):
                    stream = paddle.device.Stream(name_of(0))
                    with paddle.device.stream_guard(stream):
                        kernel(x)

        first, second = self.operations_of(on_two_streams)
        self.assertNotEqual(first.stream, second.stream)
        check_overlap(first, second)

    def test_kernels_on_one_stream_run_one_after_the_other(self):
        x = paddle.ones([4])

        def twice() -> None:
            with delay(0, 5_000):
                paddle.scale(x)
                nn.functional.relu(x)

        first, second = self.operations_of(twice)
        self.assertEqual((first.kind, second.kind), ("scale", "relu"))
        self.assertLessEqual(first.end_ns, second.begin_ns)


class TestControl(HostDeviceTest):
    def test_a_delay_ends_with_its_context(self):
        stream = paddle.device.current_stream(name_of(0))
        for of in (None, stream.stream_base.raw_stream):
            with self.assertRaises(KeyError), delay(0, 10_000_000, of):
                raise KeyError
        event = paddle.device.Event()
        paddle.ones([2])
        event.record(stream)
        self.assertTrue(event.query())

    def delayed_stream(self) -> paddle.device.Stream:
        stream = paddle.device.Stream(name_of(0))
        with paddle.device.stream_guard(stream), delay(0, DELAY):
            paddle.ones([2])
        self.addCleanup(stream.synchronize)
        return stream

    @with_ample_delay
    def test_pending_work_is_not_too_slow(self):
        stream = self.delayed_stream()
        check_pending(stream, stream.record_event())

    def test_complete_work_is_too_slow(self):
        idle = paddle.device.Stream(name_of(0))
        with self.assertRaises(TooSlow):
            check_pending(self.delayed_stream(), idle)

    def test_operations_are_too_slow_unless_they_overlap(self):
        first, second, third = (
            Operation(0, 0, i, "add", begin_ns=begin, end_ns=end)
            for i, (begin, end) in enumerate([(1, 4), (3, 6), (4, 5)])
        )
        check_overlap(first, second)
        check_overlap(second, first)
        check_overlap(second, third)
        for one, other in ((first, third), (third, first)):
            with self.assertRaises(TooSlow):
                check_overlap(one, other)

    def test_a_delay_that_the_device_refuses_raises(self):
        for device, microseconds, stream in (
            (4, 1, None),
            (0, 10_000_001, None),
            (0, 1, 12345678),
        ):
            with self.assertRaisesRegex(ValueError, f"{microseconds} micro"):
                with delay(device, microseconds, stream):
                    self.fail("the device has taken the delay")

    def test_the_trace_is_taken_once_in_the_order_of_completion(self):
        take_trace()
        for _ in range(3):
            paddle.full([1], 1.0)
        paddle.device.synchronize(name_of(0))
        trace = take_trace()
        numbers = [operation.number for operation in trace]
        self.assertEqual(numbers, list(range(numbers[0], numbers[0] + 3)))
        self.assertEqual(take_trace(), [])


class TestAmpleDelay(unittest.TestCase):
    def run_test(
        self, *errors: Exception | None
    ) -> tuple[unittest.TestResult, list]:
        """
        Return the result of a test whose tries raise these errors, and what it
        did: its setup, the delay of each try, and its cleanup.
        """
        steps = []
        remaining = iter(errors)

        class Case(unittest.TestCase):
            def setUp(self) -> None:
                steps.append("setUp")
                self.addCleanup(steps.append, "cleanup")

            def tearDown(self) -> None:
                steps.append("tearDown")

            @with_ample_delay
            def test(self) -> None:
                steps.append(DELAY)
                error = next(remaining)
                if error is not None:
                    raise error

        result = unittest.TestResult()
        Case("test").run(result)
        return result, steps

    def test_a_test_that_is_too_slow_is_repeated_with_longer_delays(self):
        result, steps = self.run_test(TooSlow(), TooSlow(), None)
        self.assertTrue(result.wasSuccessful())
        self.assertEqual(
            [step for step in steps if not isinstance(step, str)],
            [DELAY, 10 * DELAY, 30 * DELAY],
        )

    def test_a_test_that_is_too_slow_with_the_longest_delay_fails(self):
        result, _ = self.run_test(TooSlow(), TooSlow(), TooSlow())
        self.assertEqual(len(result.failures), 1)

    def test_any_other_failure_is_final(self):
        for number, tries in enumerate(
            ([AssertionError(), None], [TooSlow(), AssertionError(), None])
        ):
            result, steps = self.run_test(*tries)
            self.assertEqual(len(result.failures), 1)
            self.assertEqual(steps.count("setUp"), number + 1)

    def test_each_try_is_set_up_and_cleaned_up(self):
        _, steps = self.run_test(TooSlow(), None)
        self.assertEqual(
            steps,
            [
                *("setUp", DELAY, "tearDown", "cleanup"),
                *("setUp", 10 * DELAY, "tearDown", "cleanup"),
            ],
        )

    def test_a_cleanup_that_fails_between_two_tries_fails_the_test(self):
        class Case(unittest.TestCase):
            tries = 0

            @with_ample_delay
            def test(self) -> None:
                self.tries += 1
                if self.tries == 1:
                    self.addCleanup(self.fail)
                    raise TooSlow

        result = unittest.TestResult()
        Case("test").run(result)
        self.assertFalse(result.wasSuccessful())


class TestFallback(HostDeviceTest):
    """Paddle's CPU kernels replace kernels that the device does not have."""

    def test_other_dtypes_compute_on_the_host(self):
        for dtype in ("float64", "int32", "int64"):
            with self.subTest(dtype=dtype):
                x = np.arange(1, 5).astype(dtype).reshape(2, 2)
                tensor = paddle.to_tensor(x)
                take_trace()
                self.assertEqual(tensor.dtype, getattr(paddle, dtype))
                got = paddle.matmul(tensor * 2 + tensor, tensor)
                self.assertEqual(got.place, place_of(0))
                np.testing.assert_array_equal(got.numpy(), (x * 3) @ x)
                self.assertEqual(take_trace(), [])

    def test_a_view_with_strides_is_copied_or_refused(self):
        program = """
import paddle
paddle.set_device('custom_cpu')
x = paddle.to_tensor([[1.0, 2.0], [3.0, 4.0]])
print((x.T + 1).tolist())
"""
        copied = run_python(program, FLAGS_use_stride_kernel="0")
        self.assertEqual(
            copied.stdout.strip(), "[[2.0, 4.0], [3.0, 5.0]]", copied.stderr
        )
        refused = run_python(program, FLAGS_use_stride_kernel="1")
        self.assertEqual(refused.stdout, "")
        self.assertIn("kernel `contiguous` is not registered", refused.stderr)

    def train(
        self, layer: nn.Layer, inputs: np.ndarray, place: Place
    ) -> list[np.ndarray]:
        """Take one step of Adam on a single place.

        Args:
            layer: the layer to train, which maps two samples to three classes.
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
