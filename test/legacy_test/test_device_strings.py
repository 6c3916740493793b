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
"""Device strings, indices and places, and the errors for other values."""

import os
import unittest
from unittest import mock

import numpy as np
from thread_device_base import on_every_device_list

import paddle
from paddle.base import core, device_strings, framework

# Functions that convert a device string, each with its own default index.
CONVERTERS = (
    paddle.device._convert_to_place,
    paddle.device.device_to_place,
    framework._get_paddle_place,
)


class StandInPlace(core.Place):
    """A place that equals the tuple of its type and its index."""

    def __init__(self, *name):
        super().__init__()
        self.name = name

    def __eq__(self, other):
        return self.name == other

    def is_gpu_place(self):
        return self.name[0] == "gpu"

    def is_xpu_place(self):
        return self.name[0] == "xpu"

    def get_device_id(self):
        return self.name[1]


def machine_with(kind, count):
    """
    Returns a patch that makes Paddle see `count` devices of the type "gpu" or
    "xpu", of which the last one is the current one.
    """
    toolkit = {"gpu": "cuda", "xpu": "xpu"}[kind]
    stand_ins = {
        f"is_compiled_with_{toolkit}": lambda: True,
        f"get_{toolkit}_device_count": lambda: count,
        f"get_{toolkit}_current_device_id": lambda: count - 1,
        f"{toolkit.upper()}Place": lambda index: StandInPlace(kind, index),
        f"{toolkit.upper()}PinnedPlace": lambda: StandInPlace(kind, "pinned"),
    }
    return mock.patch.multiple(core, create=True, **stand_ins)


def name_of(function):
    return getattr(function, "__name__", repr(function))


class ErrorTestCase(unittest.TestCase):
    def check_is_refused(self, device, *parts, converters=CONVERTERS):
        """
        Checks that the error of each converter contains `parts` and the devices
        that exist.
        """
        for convert in converters:
            with self.subTest(convert=convert.__name__, device=device):
                with self.assertRaises(ValueError) as caught:
                    convert(device)
                for part in (*parts, "The devices of this process are cpu"):
                    self.assertIn(part, str(caught.exception))

    def check_is_not_a_device(self, value, takers):
        for take in takers:
            with self.subTest(take=name_of(take), value=value):
                with self.assertRaises(TypeError) as caught:
                    take(value)
                # Most functions of Paddle 3.3.0 raise a ValueError.
                self.assertIsInstance(caught.exception, ValueError)
                for part in (
                    f"received {value!r} of type {type(value).__name__}",
                    "The devices of this process are cpu",
                ):
                    self.assertIn(part, str(caught.exception))


# Functions that take a device string, index or place.
TAKERS = (
    paddle.set_device,
    paddle.set_default_device,
    paddle.device,
    paddle.device.device,
    paddle.device.device_to_place,
    paddle.device.Stream,
    paddle.device.current_stream,
    paddle.device.synchronize,
    paddle.device.get_device_module,
    paddle.device.get_device_properties,
    paddle.device.custom_device.get_rng_state,
    paddle.cuda.current_stream,
    paddle.cuda.set_device,
    paddle.cuda.synchronize,
    paddle.Generator,
    paddle.device.custom_device.memory_allocated,
    paddle.device.custom_device.memory_reserved,
    paddle.device.custom_device.max_memory_allocated,
    paddle.device.custom_device.max_memory_reserved,
    paddle.device.custom_device.reset_max_memory_allocated,
    paddle.device.custom_device.reset_max_memory_reserved,
    paddle.device.custom_device.current_stream,
    paddle.device.custom_device.synchronize,
)


def operators(device):
    with paddle.static.device_guard(device):
        pass


class TestOtherValues(ErrorTestCase):
    def test_error_names_the_value_in_every_function_that_takes_a_device(self):
        def device_id_of(device):
            return paddle.device.extract_device_id(device, "a test")

        def stream_from_outside(device):
            return paddle.device.get_stream_from_external(0, device)

        def tensor(device):
            return paddle.ones([1], device=device)

        for value in (1.5, [1], object(), b"cpu", np.int64(0)):
            self.check_is_not_a_device(
                value,
                (
                    *TAKERS,
                    paddle.cuda.mem_get_info,
                    framework._get_paddle_place,
                    paddle.device.device_guard,
                    device_id_of,
                    stream_from_outside,
                    tensor,
                    paddle.ones([1]).to,
                    paddle.nn.ReLU().to,
                    operators,
                ),
            )

    def test_true_and_false_are_not_indices(self):
        def device_id_of(device):
            return paddle.device.extract_device_id(device, "a test")

        before = framework._current_expected_place_()
        for value in (True, False):
            self.check_is_not_a_device(
                value, (*TAKERS, paddle.cuda.mem_get_info, device_id_of)
            )
        self.assertEqual(framework._current_expected_place_(), before)

    def test_tensor_to_takes_no_index(self):
        for value in (0, 99, True):
            self.check_is_not_a_device(value, [paddle.ones([1]).to])

    def test_paddle_device_refuses_an_unknown_type(self):
        for name in ("nonsense", "nonsense:0"):
            self.check_is_refused(
                name, f"'{name}'", converters=(paddle.device.Device,)
            )

    def test_device_guard_of_operators_refuses_what_is_no_device(self):
        for name in ("gpu:x", "gpu:1:2", "cpu:0", "nonsense", "nonsense:0"):
            self.check_is_refused(name, f"'{name}'", converters=(operators,))

    def test_device_guard_of_operators_takes_devices_of_other_machines(self):
        for name in ("gpu", "gpu:99", "dcu:1", "xpu", "cpu", "", None):
            operators(name)

    def test_device_guard_of_operators_takes_all_stages_of_a_pipeline(self):
        with paddle.pir_utils.OldIrGuard():
            program = paddle.static.Program()
            with paddle.static.program_guard(program):
                for name in ("gpu:all", "xpu:all"):
                    with paddle.static.device_guard(name):
                        paddle.static.data(name.replace(":", "_"), [1]) * 2
            ops = program.global_block().ops
            devices = [op.attr("op_device") for op in ops]
        self.assertEqual(devices, ["gpu:all", "xpu:all"])

    def test_device_guard_of_operators_refuses_other_words_as_an_index(self):
        for name in ("gpu:", "gpu:any", "cpu:all"):
            self.check_is_refused(name, f"'{name}'", converters=(operators,))

    def test_module_of_a_device_that_does_not_exist_is_refused(self):
        for name in ("", "nonsense", "nonsense:0", "ipu"):
            with self.assertRaises(RuntimeError) as caught:
                paddle.device.get_device_module(name)
            for part in (repr(name), "The devices of this process are cpu"):
                self.assertIn(part, str(caught.exception))
        with self.assertRaisesRegex(RuntimeError, "undefined.*are cpu"):
            paddle.device.get_device_module(core.Place())

    def test_module_of_an_index_that_is_not_a_number_is_refused(self):
        for name in ("gpu:x", "cpu:-1"):
            self.check_is_refused(
                name,
                f"'{name}'",
                "must be a number",
                converters=(paddle.device.get_device_module,),
            )

    def test_module_of_a_type_of_other_machines_is_returned(self):
        for name in ("gpu", "gpu:99", "cuda:0", " GPU "):
            self.assertIs(paddle.device.get_device_module(name), paddle.cuda)

    def test_properties_of_a_device_that_does_not_exist_are_refused(self):
        for name in ("nonsense", "gpu:x"):
            self.check_is_refused(
                name,
                f"'{name}'",
                converters=(
                    paddle.device.get_device_properties,
                    paddle.device.get_device_name,
                    paddle.device.get_device_capability,
                ),
            )

    def test_negative_index_is_refused(self):
        self.check_is_refused(-1, "received -1", "0 or more", converters=TAKERS)

    def test_index_of_the_cpu_is_0(self):
        with paddle.device.device("cpu"):
            self.assertTrue(paddle.device.device_to_place(0).is_cpu_place())
            self.check_is_refused(
                1,
                "received 1",
                "the CPU",
                converters=(paddle.device.device_to_place, paddle.set_device),
            )

    def test_places_are_returned_unchanged(self):
        places = [core.Place(), core.CPUPlace()]
        if core.is_compiled_with_cuda():
            places += [core.CUDAPlace(0), core.CUDAPinnedPlace()]
        if core.is_compiled_with_xpu():
            places += [core.XPUPlace(0), core.XPUPinnedPlace()]
        for kind in core.get_all_custom_device_type() or []:
            places.append(core.CustomPlace(kind, 0))
        for place in places:
            self.assertIs(paddle.device.device_to_place(place), place)
            self.assertIs(framework._get_paddle_place(place), place)

    def test_place_classes_of_missing_backends_are_accepted(self):
        for kind in (
            core.CUDAPlace,
            core.CUDAPinnedPlace,
            core.XPUPlace,
            core.XPUPinnedPlace,
            core.IPUPlace,
            core.CustomPlace,
        ):
            # The converter only checks the class.
            place = kind.__new__(kind)
            self.assertIs(device_strings.checked_place(place), place)

    def test_error_names_a_place_that_the_function_does_not_support(self):
        for take in (paddle.cuda.set_device, operators):
            with self.assertRaisesRegex(TypeError, "this function.*Place.cpu"):
                take(core.CPUPlace())

    def test_error_names_a_device_of_another_type(self):
        def stream_from_outside(device):
            return paddle.device.get_stream_from_external(0, device)

        for cpu in ("cpu", core.CPUPlace()):
            self.check_is_refused(
                cpu,
                "must be of type 'gpu'",
                "cpu",
                converters=(paddle.cuda.mem_get_info, stream_from_outside),
            )


class TestIndexOfPaddleDevice(ErrorTestCase):
    """The second argument of paddle.device(type, index)."""

    def test_value_that_is_not_an_integer_is_refused(self):
        for index in (True, False, 1.5, "0", b"0", [0]):
            for kind in ("gpu", "cuda", "xpu"):
                with (
                    self.subTest(kind=kind, index=index),
                    self.assertRaisesRegex(
                        device_strings.DeviceTypeError,
                        "index must be an integer, but received .* of type "
                        f"{type(index).__name__}. The devices",
                    ),
                ):
                    paddle.device(kind, index)

    def test_negative_index_is_refused(self):
        def gpu(index):
            return paddle.device("gpu", index)

        self.check_is_refused(-1, "0 or more", "-1", converters=(gpu,))

    def test_second_index_is_refused(self):
        def gpu_0(index):
            return paddle.device("gpu:0", index)

        for index in (0, 1):
            self.check_is_refused(
                index, "'gpu:0'", f"index {index}", converters=(gpu_0,)
            )

    def test_index_of_the_cpu_is_ignored(self):
        for index in (0, -1, 5):
            self.assertEqual(paddle.device("cpu", index), "cpu")

    def test_gpus_and_xpus_need_not_exist(self):
        for index in (2, np.int64(2)):
            for kind in ("cuda", "gpu", "xpu"):
                device = paddle.device(kind, index)
                self.assertEqual(device, f"{kind}:2")
                self.assertIs(type(device.index), int)
        self.assertEqual(paddle.device("cuda:99").index, 99)


class TestCpu(ErrorTestCase):
    def test_name_is_case_insensitive_and_may_have_spaces_around(self):
        for name in ("cpu", "CPU", " cpu", "Cpu "):
            for convert in CONVERTERS:
                self.assertTrue(convert(name).is_cpu_place())
            self.assertEqual(paddle.device(name), "cpu")
            operators(name)

    def test_has_no_index(self):
        self.check_is_refused("cpu:0", "'cpu:0'", "Please pass 'cpu'")

    def test_invalid_names_do_not_mean_the_cpu(self):
        for wrong in ("", ":", "0", "nonsense", "nonsense:0", "cpux"):
            self.check_is_refused(wrong, repr(wrong), "must be 'cpu'")


@unittest.skipIf(core.is_compiled_with_cuda(), "this Paddle has GPUs")
class TestWithoutGpus(ErrorTestCase):
    def test_error_names_the_device_and_the_missing_toolkit(self):
        for device in ("gpu", "gpu:0", "gpu:99", "dcu:1"):
            self.check_is_refused(device, f"'{device}'", "with CUDA")
        self.check_is_refused("ipu", "'ipu'", "with IPU")

    def test_pinned_memory_is_refused_like_the_device(self):
        place_of_memory = (framework._get_paddle_place,)
        self.check_is_refused(
            "gpu_pinned", "gpu_pinned", "with CUDA", converters=place_of_memory
        )


class TestGpus(ErrorTestCase):
    def setUp(self):
        gpus = machine_with("gpu", 2)
        gpus.start()
        self.addCleanup(gpus.stop)

    def test_cuda_and_dcu_are_names_of_gpus(self):
        for convert in CONVERTERS:
            for name in ("gpu:1", "GPU:1", "cuda:1", "dcu:1"):
                self.assertEqual(convert(name), ("gpu", 1))

    def test_index_that_does_not_exist_is_refused(self):
        self.check_is_refused("gpu:99", "'gpu:99'", "2 of type 'gpu'", "gpu:1")

    def test_index_that_is_not_a_number_is_refused(self):
        for index in ("", "x", "-1", "1.5", "0x1", "1:2"):
            self.check_is_refused(
                f"gpu:{index}", repr(f"gpu:{index}"), "number"
            )

    def test_gpu_selected_by_launch_is_the_default(self):
        environment = mock.patch.dict(os.environ, FLAGS_selected_gpus="1,0")
        no_plugin = mock.patch(
            "paddle.distributed.parallel.get_all_custom_device_type", list
        )
        with environment, no_plugin:
            by_device, _, by_place = (convert("gpu") for convert in CONVERTERS)
        self.assertEqual(by_device, ("gpu", 1))
        self.assertEqual(by_place, ("gpu", 0))

    def test_pinned_memory_is_a_place_but_not_a_device(self):
        pinned = ("gpu", "pinned")
        for name in ("gpu_pinned", "GPU_pinned", "cuda_pinned", " gpu_pinned"):
            self.assertEqual(framework._get_paddle_place(name), pinned)
        self.check_is_refused("gpu_pinned", converters=CONVERTERS[:2])


@on_every_device_list
class TestAccelerators(ErrorTestCase):
    def setUp(self):
        super().setUp()
        if len(self.devices) == 1:
            self.skipTest("no accelerator here")
        self.kind, _, _ = self.devices[0].partition(":")

    def test_each_device_is_found_by_its_name(self):
        for index, device in enumerate(self.devices[:-1]):
            for convert in CONVERTERS:
                self.assertEqual(convert(device).get_device_id(), index)

    def test_a_tensors_place_is_its_device(self):
        """It is of the base class of places, whatever the device."""
        place = paddle.zeros([1]).to(self.devices[0]).place
        self.assertIs(type(place), core.Place)
        for function in (
            paddle.device.current_stream,
            paddle.device.Stream,
        ):
            stream = function(place)
            self.assertTrue(stream.stream_base.place._equals(place))
        paddle.device.synchronize(place)
        paddle.cuda.set_device(place)
        self.assertEqual(paddle.get_device(), self.devices[0])

    def test_paddle_device_takes_each_device_by_name_and_by_place(self):
        for name in self.devices[:-1]:
            here = paddle.zeros([1]).to(name)
            for device in (
                paddle.device.Device(name),
                paddle.device.Device(here.place),
                here.device,
            ):
                self.assertTrue(device._to_place()._equals(here.place))

    def test_paddle_device_refuses_a_device_that_a_plugin_lacks(self):
        if self.kind == "gpu":
            self.skipTest("GPUs need not exist")

        def device_of_kind(index):
            return paddle.device(self.kind, index)

        count = len(self.devices) - 1
        named = (f"'{self.kind}:{count}'", f"{count} of type '{self.kind}'")
        self.check_is_refused(count, *named, converters=(device_of_kind,))
        self.check_is_refused(
            f"{self.kind}:{count}", *named, converters=(paddle.device,)
        )
        self.check_is_refused(-1, "0 or more", converters=(device_of_kind,))
        for index in (True, 1.5, "0"):
            with self.assertRaisesRegex(TypeError, f"received {index!r} of"):
                device_of_kind(index)

    def test_case_and_spaces_around_a_name_are_ignored(self):
        for name in self.devices:
            written = f" {name.upper()} "
            self.assertEqual(paddle.device(written), name)
            operators(written)
            with paddle.device.device(written):
                self.assertEqual(paddle.get_device(), name)

    def test_get_device_of_a_tensor_is_its_index(self):
        for index, name in enumerate(self.devices[:-1]):
            here = paddle.zeros([1]).to(name)
            self.assertEqual(paddle.device.get_device(here), index)
        there = paddle.zeros([1]).to("cpu")
        self.assertEqual(paddle.device.get_device(there), -1)

    def test_type_without_an_index_means_the_first_device(self):
        for convert in CONVERTERS:
            self.assertEqual(convert(self.kind).get_device_id(), 0)

    def test_index_out_of_range_is_refused_by_every_function(self):
        count = len(self.devices) - 1
        device = f"{self.kind}:{count}"
        named = (f"'{device}'", f"{count} of type '{self.kind}'")
        self.check_is_refused(device, *named)
        self.check_is_refused(
            device,
            *named,
            converters=(
                paddle.set_device,
                paddle.device.device_guard,
                paddle.device.Stream,
                paddle.device.current_stream,
                paddle.device.synchronize,
                paddle.ones([1]).to,
            ),
        )
        self.check_is_refused(
            count,
            *named,
            converters=(paddle.set_device, paddle.device.Stream),
        )

    def test_index_that_is_not_a_number_is_refused(self):
        for index in ("", "x", "-1", "1x"):
            device = f"{self.kind}:{index}"
            self.check_is_refused(device, f"'{device}'", "must be a number")

    def test_memory_statistics_are_those_of_the_named_device(self):
        if self.kind == "gpu":
            self.skipTest("GPUs have their own statistics")
        if len(self.devices) == 2:
            self.skipTest("needs two accelerators")
        allocated = paddle.device.custom_device.memory_allocated
        before = [allocated(device) for device in self.devices[:2]]
        kept = paddle.zeros([1 << 16], device=self.devices[1])
        after = [allocated(device) for device in self.devices[:2]]
        self.assertEqual(after[0], before[0])
        self.assertGreaterEqual(after[1] - before[1], 4 * kept.size)
        self.assertEqual(allocated(self.kind), after[0])

    def test_memory_statistics_refuse_devices_of_no_plugin(self):
        if self.kind == "gpu":
            self.skipTest("GPUs have their own statistics")
        statistics = (
            paddle.device.custom_device.max_memory_allocated,
            paddle.device.custom_device.max_memory_reserved,
            paddle.device.custom_device.memory_allocated,
            paddle.device.custom_device.memory_reserved,
            paddle.device.custom_device.current_stream,
            paddle.device.custom_device.synchronize,
        )
        for wrong in ("cpu", "nonsense:0", "custom_cpu:99", "custom_cpu:x"):
            self.check_is_refused(wrong, f"'{wrong}'", converters=statistics)

    def test_memory_statistics_take_an_index_or_a_tensors_place(self):
        if self.kind == "gpu":
            self.skipTest("GPUs have their own statistics")
        allocated = paddle.device.custom_device.memory_allocated
        last = len(self.devices) - 2
        # Negative if ended threads have allocated memory that was freed since.
        before = allocated(self.devices[last])
        kept = paddle.zeros([1 << 16], device=self.devices[last])
        found = allocated(self.devices[last])
        self.assertGreaterEqual(found - before, 4 * kept.size)
        for device in (last, kept.place, core.CustomPlace(self.kind, last)):
            self.assertEqual(allocated(device), found)
        self.assertEqual(allocated(), allocated(0))
        self.check_is_refused(
            last + 1, f"{self.kind}:{last + 1}", converters=(allocated,)
        )

    def test_memory_statistics_refuse_another_plugin(self):
        if self.kind == "gpu":
            self.skipTest("GPUs have their own statistics")
        types = ["first_plugin", self.kind]
        with (
            mock.patch.object(
                core, "get_all_custom_device_type", lambda: types
            ),
            mock.patch.object(core, "get_custom_device_count", lambda kind: 1),
            self.assertRaisesRegex(ValueError, "'first_plugin'.*received"),
        ):
            device_strings.custom_device_id(self.kind)

    def test_extract_device_id_refuses_invalid_devices(self):
        def device_id_of(device):
            return paddle.device.extract_device_id(device, "a test")

        self.assertEqual(device_id_of(self.devices[0]), 0)
        for wrong in ("nonsense:0", f"{self.kind}:x", f"{self.kind}:99"):
            self.check_is_refused(wrong, wrong, converters=(device_id_of,))

    def test_error_names_a_launch_variable_that_is_not_a_number(self):
        if self.kind == "gpu":
            self.skipTest("ParallelEnv reads the variable of GPUs")
        variable = f"FLAGS_selected_{self.kind}s"
        with mock.patch.dict(os.environ, {variable: "x"}):
            self.check_is_refused(
                self.kind,
                f"{variable}=x",
                converters=(paddle.device._convert_to_place,),
            )


class TestIndicesOfOtherFunctions(ErrorTestCase):
    def test_index_that_is_not_a_number_is_refused(self):
        self.check_is_refused(
            "gpu:x",
            "'gpu:x'",
            "must be a number",
            converters=(paddle.device.Device,),
        )

    def test_digits_of_other_scripts_are_not_numbers(self):
        self.check_is_refused(
            "gpu:\u0663", "must be a number", converters=(paddle.device.Device,)
        )

    def test_memory_info_refuses_an_index_without_a_gpu(self):
        if core.is_compiled_with_cuda():
            self.skipTest("GPUs have memory info")
        self.check_is_refused(
            0, "'gpu:0'", converters=(paddle.cuda.mem_get_info,)
        )

    def test_index_in_a_variable_is_its_first_number(self):
        with mock.patch.dict(os.environ, FLAGS_selected_xpus="3,1"):
            self.assertEqual(device_strings.selected_index("xpu"), 3)


if __name__ == "__main__":
    unittest.main()
