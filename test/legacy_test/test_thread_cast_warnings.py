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

from __future__ import annotations

import threading
import types
import unittest
import warnings
from unittest import mock

from concurrent_base import WAIT_S, Worker

import paddle
from paddle.amp.auto_cast import amp_initialize
from paddle.utils.dlpack import DLDeviceType


class OnGPU:
    """A tensor of another library that says that it is on a GPU."""

    def __init__(self):
        self._tensor, self.stream = paddle.ones([2]).cpu(), None

    def __dlpack_device__(self):
        return DLDeviceType.kDLCUDA, 0

    def __dlpack__(self, *, stream, **kwargs):
        self.stream = stream
        return paddle.to_dlpack(self._tensor)


class TestWarningsDuringCasts(unittest.TestCase):
    def setUp(self):
        # The filters of the process, for the time of the test.
        keep = warnings.catch_warnings()
        keep.__enter__()
        self.addCleanup(keep.__exit__, None, None, None)
        warnings.resetwarnings()
        warnings.simplefilter("always")

    def replace(self, target, name, function, **kwargs):
        patch = mock.patch.object(target, name, function, **kwargs)
        patch.start()
        self.addCleanup(patch.stop)

    def check_overlapping_casts(self, first_cast, second_cast):
        """
        The second cast begins before the first one ends, and ends after it.
        UserWarnings of the program are shown meanwhile and afterwards.
        """
        cast = paddle.Tensor.cast
        first, second = threading.Event(), threading.Event()
        both_run, first_ended = threading.Event(), threading.Event()

        def wait(event):
            if not event.wait(WAIT_S):
                raise TimeoutError("the other thread has not gone on")

        def slow_cast(tensor, *args, **kwargs):
            if not first.is_set():
                first.set()
                wait(both_run)
            else:
                second.set()
                wait(first_ended)
            return cast(tensor, *args, **kwargs)

        filters = list(warnings.filters)
        self.replace(paddle.Tensor, "cast", slow_cast)
        first_worker = Worker(first_cast)
        self.assertTrue(first.wait(WAIT_S))
        second_worker = Worker(second_cast)
        self.assertTrue(second.wait(WAIT_S))
        during = list(warnings.filters)
        both_run.set()
        first_worker.result()
        first_ended.set()
        second_worker.result()
        self.assertEqual(during, filters)
        self.assertEqual(warnings.filters, filters)
        with self.assertWarns(UserWarning):
            warnings.warn("from the program", UserWarning, stacklevel=1)

    def test_casts_of_tensors_leave_the_filters_of_the_process_alone(self):
        tensors = paddle.ones([1]), paddle.ones([1])
        self.check_overlapping_casts(
            lambda: tensors[0].to("float64"), lambda: tensors[1].to("float64")
        )

    def test_casts_of_layers_leave_the_filters_of_the_process_alone(self):
        layers = [paddle.nn.Linear(1, 1, bias_attr=False) for _ in range(2)]
        self.check_overlapping_casts(
            lambda: layers[0].to(dtype="float64"),
            lambda: layers[1].to(dtype="float64"),
        )

    def test_casts_of_static_layers_leave_the_filters_alone(self):
        filters, during, cast = list(warnings.filters), [], paddle.cast

        def cast_with_filters(*args):
            during.append(list(warnings.filters))
            return cast(*args)

        self.replace(paddle, "cast", cast_with_filters)
        with paddle.pir_utils.IrGuard():
            programs = paddle.static.Program(), paddle.static.Program()
            with paddle.static.program_guard(*programs):
                amp_initialize([paddle.nn.Linear(1, 1)], "float16", [])
        self.assertEqual(during, [filters] * 2)

    def test_tensors_on_gpus_of_other_libraries_leave_the_filters_alone(self):
        during, tensor = [], OnGPU()

        def current_stream(index):
            self.assertEqual(index, 0)
            during.append(list(warnings.filters))
            return types.SimpleNamespace(cuda_stream=123)

        self.replace(
            paddle.base.core, "_get_current_stream", current_stream, create=True
        )
        self.replace(
            paddle.base.device_strings, "id_of_type", lambda kind, index: index
        )
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            filters = list(warnings.filters)
            paddle.from_dlpack(tensor)
        self.assertEqual(during, [filters])
        self.assertEqual(tensor.stream, 123)

    def test_casts_do_not_warn(self):
        layer = paddle.nn.Sequential(
            paddle.nn.Linear(2, 2), paddle.nn.BatchNorm1D(2)
        )
        layer(paddle.ones([2, 2])).sum().backward()
        warnings.simplefilter("error")
        for dtype in ("float64", "float16", "bfloat16", "float32"):
            layer.to(dtype=dtype)
            layer.to("cpu")
            for tensor in (
                layer[0].weight,
                paddle.ones([2], "int32"),
                paddle.ones([2], "complex64"),
            ):
                self.assertEqual(tensor.to(dtype).dtype, getattr(paddle, dtype))


if __name__ == "__main__":
    unittest.main()
