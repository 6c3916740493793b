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
"""Predictors on threads whose model has a custom operator that calls Python.

The operator acquires the GIL, which `run` has released.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
import threading
import unittest
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from concurrent_base import WAIT_S, in_thread, in_threads
from extension_base import load_extension
from inference_threads_base import call, save_layer, switch_interval

import paddle
from paddle.inference import Config, Predictor, create_predictor

SOURCE = Path(__file__).with_name("inference_threads_operator.cc")
X = np.full([2, 4], 3, "float32")

operator: Any = None
library: Any = None


def setUpModule() -> None:
    global operator, library
    operator, file = load_extension("inference_threads_operator", SOURCE)
    library = ctypes.PyDLL(file)
    library.set_called.argtypes = [ctypes.py_object]
    library.set_called.restype = None


class CallAndDouble(paddle.nn.Layer):
    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        return operator.call_and_double(x) + 1


class TestOperatorThatCallsPython(unittest.TestCase):
    def predictor(self) -> Predictor:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = os.path.join(folder.name, "model")
        save_layer(CallAndDouble(), path, x=[None, 4])
        config = Config(path + ".json", path + ".pdiparams")
        config.disable_glog_info()
        return create_predictor(config)

    def test_it_calls_python_on_the_thread_that_runs(self):
        idents = []
        library.set_called(lambda: idents.append(threading.get_ident()))
        first = self.predictor()

        def run() -> tuple[int, list]:
            predictor = first.clone()
            answers = [call(predictor, X) for _ in range(50)]
            return threading.get_ident(), answers

        expected = {}
        with switch_interval(1e-6):
            for ident, answers in in_threads(run, run, run):
                expected[ident] = len(answers)
                for answer in answers:
                    np.testing.assert_array_equal(answer, X * 2 + 1)
        self.assertEqual(Counter(idents), expected)

    def test_it_may_wait_for_a_thread_that_runs_another_predictor(self):
        library.set_called(lambda: None)
        first, second = self.predictor(), self.predictor()
        answers = []

        def run_other() -> None:
            library.set_called(lambda: None)
            answers.append(in_thread(call, second, X))

        library.set_called(run_other)
        np.testing.assert_array_equal(call(first, X), X * 2 + 1)
        np.testing.assert_array_equal(answers, [X * 2 + 1])

    def test_others_run_predictors_while_it_waits_in_python(self):
        first, second = self.predictor(), self.predictor()
        waits, goes_on = threading.Event(), threading.Event()

        def wait() -> None:
            waits.set()
            self.assertTrue(goes_on.wait(WAIT_S))

        def run_second() -> np.ndarray:
            self.assertTrue(waits.wait(WAIT_S))
            library.set_called(goes_on.set)
            return call(second, X)

        library.set_called(wait)
        for answer in in_threads(lambda: call(first, X), run_second):
            np.testing.assert_array_equal(answer, X * 2 + 1)

    def test_an_error_in_python_is_raised_by_run(self):
        calls = []

        def fail() -> None:
            calls.append(None)
            raise LookupError

        predictor = self.predictor()
        library.set_called(fail)
        # Paddle does not keep the text of an operator's std::exception.
        with self.assertRaisesRegex(RuntimeError, "std::exception"):
            in_thread(call, predictor, X)
        self.assertEqual(len(calls), 1)
        library.set_called(lambda: None)
        np.testing.assert_array_equal(in_thread(call, predictor, X), X * 2 + 1)


if __name__ == "__main__":
    unittest.main()
