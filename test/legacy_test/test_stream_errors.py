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
"""Errors of streams, events and lists of devices name what exists."""

import os
import unittest
from unittest import mock

from test_device_strings import ErrorTestCase, machine_with
from thread_device_base import on_every_device_list

import paddle
from paddle.base import core

NOT_AN_INDEX = ("nonsense", "gpu:0", "xpu:0", "", 1.5, b"cpu", True)


class StreamErrorTestCase(ErrorTestCase):
    def check_is_missing(self, make, *parts, args=()):
        """
        Checks that the error of make(*args) contains `parts` and the devices
        that exist, and is also of the classes of Paddle 3.3.0.
        """
        with self.subTest(args=args):
            with self.assertRaises(ValueError) as caught:
                make(*args)
            self.assertIsInstance(caught.exception, RuntimeError)
            self.assertIsInstance(caught.exception, IndexError)
            for part in (*parts, "The devices of this process are cpu"):
                self.assertIn(part, str(caught.exception))

    def check_is_not_an_index(self, take, values=NOT_AN_INDEX):
        for value in values:
            with (
                self.subTest(value=value),
                self.assertRaisesRegex(
                    TypeError,
                    f"index must be an integer, but received {value!r} of type "
                    f"{type(value).__name__}. The devices of this process",
                ),
            ):
                take(value)


class OneType:
    """The tests of the classes of `paddle.device.cuda` and of
    `paddle.device.xpu`."""

    def setUp(self):
        super().setUp()
        if getattr(core, f"is_compiled_with_{self.toolkit.lower()}")():
            self.skipTest(f"this Paddle was built with {self.toolkit}")

    def test_stream_names_the_missing_toolkit(self):
        current = f"'{self.kind}'"
        names = {(): current, (None,): current, (-1,): current, (-2,): current}
        names |= {(index,): f"'{self.kind}:{index}'" for index in (0, 99)}
        for args, name in names.items():
            self.check_is_missing(
                self.module.Stream, name, f"with {self.toolkit}", args=args
            )

    def test_event_names_the_missing_toolkit(self):
        self.check_is_missing(
            self.module.Event, f"'{self.kind}'", f"with {self.toolkit}"
        )

    def test_stream_names_a_value_that_is_not_an_index(self):
        values = [value for value in NOT_AN_INDEX if value is not True]
        self.check_is_not_an_index(self.module.Stream, values)

    def test_true_is_an_error_that_lists_the_devices(self):
        # A binding may take it for 1.
        with self.assertRaisesRegex(ValueError, "The devices of this process"):
            self.module.Stream(True)

    def test_stream_names_a_place_of_another_type(self):
        place = core.CPUPlace()
        with self.assertRaisesRegex(
            TypeError, r"received Place\(cpu\) of type CPUPlace. The devices"
        ):
            self.module.Stream(place)

    def test_stream_names_an_index_that_does_not_exist(self):
        with machine_with(self.kind, 2):
            self.check_is_missing(
                self.module.Stream,
                f"'{self.kind}:2'",
                f"2 of type '{self.kind}'",
                args=(2,),
            )

    def test_errors_for_other_reasons_stay(self):
        with machine_with(self.kind, 2):
            for make in (self.module.Stream, self.module.Event):
                with self.assertRaisesRegex(RuntimeError, "can only be init"):
                    make()
            with self.assertRaisesRegex(TypeError, "incompatible constructor"):
                self.module.Stream(0, nonsense=0)

    def test_layer_names_a_value_that_is_not_an_index(self):
        layer = paddle.nn.Linear(1, 1)
        move = {"gpu": layer.cuda, "xpu": layer.xpu}[self.kind]
        self.check_is_not_an_index(move, ("nonsense", "gpu:0", "", 1.5, b"cpu"))
        with self.assertRaisesRegex(TypeError, r"received Place\(cpu\) of"):
            move(core.CPUPlace())


class TestGpuStreams(OneType, StreamErrorTestCase):
    kind, toolkit, module = "gpu", "CUDA", paddle.device.cuda


class TestXpuStreams(OneType, StreamErrorTestCase):
    kind, toolkit, module = "xpu", "XPU", paddle.device.xpu


PLUGIN_CLASSES = (
    paddle.device.custom_device.Stream,
    paddle.device.custom_device.Event,
)


class TestTypesOfPlugins(StreamErrorTestCase):
    def takers(self):
        return (*PLUGIN_CLASSES, paddle.device.custom_device.device_count)

    def test_type_of_no_plugin_is_named(self):
        for take in self.takers():
            for kind in ("nonsense", "gpu", "cpu", "custom_cpu:0", "xpu:0"):
                self.check_is_missing(
                    take, "a plugin registered", repr(kind), args=(kind,)
                )

    def test_value_that_is_not_a_type_is_named(self):
        for take in self.takers():
            for value in (99, 1.5, True):
                with (
                    self.subTest(take=take, value=value),
                    self.assertRaisesRegex(
                        TypeError,
                        f"must be a name, but received {value!r} of type .*"
                        "The devices of this process are cpu",
                    ),
                ):
                    take(value)

    def test_bytes_are_an_error_that_lists_the_devices(self):
        # A binding may take them for a string.
        for take in self.takers():
            with self.assertRaisesRegex(ValueError, "nonsense'.*The devices"):
                take(b"nonsense")

    def test_empty_type_is_named(self):
        for make in PLUGIN_CLASSES:
            self.check_is_missing(make, "received ''", args=("",))

    def test_missing_type_is_an_error_that_lists_the_devices(self):
        for make in PLUGIN_CLASSES:
            with self.assertRaisesRegex(TypeError, "The devices of this"):
                make()

    def test_place_of_another_type_is_named(self):
        for make in PLUGIN_CLASSES:
            with self.assertRaisesRegex(
                TypeError, r"received Place\(cpu\) of type CPUPlace. The dev"
            ):
                make(core.CPUPlace())

    def test_count_without_a_plugin(self):
        cpu = paddle.device.cpu.device_count
        self.assertEqual(cpu(), 0)
        self.check_is_missing(cpu, "'nonsense'", args=("nonsense",))


@on_every_device_list
class TestDevicesOfPlugins(StreamErrorTestCase):
    def setUp(self):
        super().setUp()
        if len(self.devices) == 1:
            self.skipTest("no accelerator here")
        self.kind, _, _ = self.devices[0].partition(":")
        if self.kind in ("gpu", "xpu"):
            self.skipTest("needs a plugin's device")

    def test_index_that_does_not_exist_is_named(self):
        count = len(self.devices) - 1
        for make in PLUGIN_CLASSES:
            self.check_is_missing(
                make,
                f"'{self.kind}:{count}'",
                f"{count} of type '{self.kind}'",
                args=(self.kind, count),
            )

    def test_negative_index_is_named(self):
        for make in PLUGIN_CLASSES:
            with self.assertRaisesRegex(
                ValueError, "0 or more, but received -2. The devices of this"
            ):
                make(self.kind, -2)

    def test_value_that_is_not_an_index_is_named(self):
        for make in PLUGIN_CLASSES:
            self.check_is_not_an_index(
                lambda value, make=make: make(self.kind, value),
                ("x", "", 1.5, None),
            )

    def test_type_in_another_case_is_named(self):
        for make in PLUGIN_CLASSES:
            name = self.kind.upper()
            self.check_is_missing(make, repr(name), args=(name,))

    def test_errors_for_other_reasons_stay(self):
        for make in PLUGIN_CLASSES:
            with self.assertRaisesRegex(TypeError, "incompatible constructor"):
                make(self.kind, nonsense=1)

    def test_each_device_is_taken(self):
        for index, name in enumerate(self.devices[:-1]):
            place = core.CustomPlace(self.kind, index)
            for make in PLUGIN_CLASSES:
                for made in (make(self.kind, index), make(place)):
                    self.assertTrue(made.place._equals(place))
                with paddle.device.device(name):
                    for made in (make(self.kind), make(self.kind, -1)):
                        self.assertTrue(made.place._equals(place))

    def test_devices_are_counted(self):
        count = paddle.device.custom_device.device_count
        for kind in (None, "", self.kind, f" {self.kind.upper()} "):
            self.assertEqual(count(kind), len(self.devices) - 1)
        self.assertEqual(count(), len(self.devices) - 1)


class TestLists(StreamErrorTestCase):
    def test_missing_toolkit_is_named(self):
        for places, kind, toolkit in (
            (paddle.static.cuda_places, "gpu", "CUDA"),
            (paddle.static.xpu_places, "xpu", "XPU"),
        ):
            if getattr(core, f"is_compiled_with_{toolkit.lower()}")():
                continue
            for indices, name in (
                (None, f"'{kind}'"),
                (99, f"'{kind}:99'"),
                ([0, 1], f"'{kind}:0'"),
            ):
                self.check_is_refused(
                    indices, name, f"with {toolkit}", converters=(places,)
                )

    def test_value_that_is_not_an_index_is_named(self):
        for places in (paddle.static.cuda_places, paddle.static.xpu_places):
            self.check_is_not_an_index(places)
            self.check_is_not_an_index(
                lambda value, places=places: places([value])
            )

    def test_each_device_is_listed(self):
        for places, kind in (
            (paddle.static.cuda_places, "gpu"),
            (paddle.static.xpu_places, "xpu"),
        ):
            with machine_with(kind, 2):
                self.assertEqual(places(), [(kind, 0), (kind, 1)])
                self.assertEqual(places(1), [(kind, 1)])
                self.assertEqual(places((1, 0)), [(kind, 1), (kind, 0)])
                self.assertEqual(places([]), [])
                self.check_is_refused(
                    [0, 2], f"'{kind}:2'", "2 of type", converters=(places,)
                )
                self.check_is_refused(-1, "0 or more", converters=(places,))

    def test_variable_that_is_not_a_list_of_numbers_is_named(self):
        for places, kind in (
            (paddle.static.cuda_places, "gpu"),
            (paddle.static.xpu_places, "xpu"),
        ):
            variable = f"FLAGS_selected_{kind}s"
            with machine_with(kind, 2):
                with mock.patch.dict(os.environ, {variable: "1,x"}):
                    self.check_is_refused(
                        None, f"{variable}=1,x", converters=(places,)
                    )
                with mock.patch.dict(os.environ, {variable: "1"}):
                    self.assertEqual(places(), [(kind, 1)])

    def test_count_of_cpus_that_is_not_an_integer_is_named(self):
        for value in ("nonsense", "", 1.5, b"cpu"):
            with self.assertRaisesRegex(
                TypeError,
                f"must be an integer, but received {value!r} of type .*cpu",
            ):
                paddle.static.cpu_places(value)
        self.assertEqual(len(paddle.static.cpu_places(3)), 3)


class TestOtherFunctions(ErrorTestCase):
    def test_index_is_refused_while_the_cpu_is_the_current_device(self):
        with paddle.device.device("cpu"):
            for index in (0, 99):
                self.check_is_refused(
                    index,
                    f"received {index}",
                    converters=(paddle.cuda.set_device,),
                )

    def test_states_of_random_generators_refuse_invalid_devices(self):
        def set_state(device):
            paddle.incubate.set_rng_state([], device)

        def register(device):
            paddle.incubate.register_rng_state_as_index(device=device)

        takers = (paddle.incubate.get_rng_state, set_state, register)
        for wrong in ("nonsense", "ipu:x", "", "cpu:0", -2):
            self.check_is_refused(wrong, converters=takers)
        for value in (1.5, b"cpu", True):
            self.check_is_not_a_device(value, takers)

    def test_states_of_random_generators_take_the_cpu(self):
        states = paddle.incubate.get_rng_state("cpu")
        paddle.incubate.set_rng_state(states, "cpu")
        paddle.incubate.register_rng_state_as_index(states, "cpu")


if __name__ == "__main__":
    unittest.main()
