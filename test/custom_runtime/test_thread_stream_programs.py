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

"""Per-thread streams: static graph programs and predictors.

CUSTOM_DEVICE_ROOT must name the folder of the built plugin in host_device/.
"""

from __future__ import annotations

import os
import signal
import tempfile
import traceback
import unittest
from typing import TYPE_CHECKING

import numpy as np
from host_device_control import take_trace
from test_host_device import DEVICE_TYPE, setUpModule
from test_thread_stream_order import (
    SIZE,
    WAIT_S,
    StreamTest,
    filled,
    handle,
    in_thread,
    slow,
)

import paddle
from paddle.device import Stream, current_stream, stream_guard
from paddle.inference import Config, Predictor, create_predictor
from paddle.nn.functional import relu

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["setUpModule"]


class TwiceItsWeight(paddle.nn.Layer):
    """A predictor computes the factor once, at its creation."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = self.create_parameter([4, 4])

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        return relu(paddle.matmul(x, self.weight * 2))


class TestStaticGraphs(StreamTest):
    """Their work is ordered with the work of the thread."""

    def setUp(self) -> None:
        super().setUp()
        self.three = filled(3.0)
        # The first run loads kernels, which is slow.
        (self.three * 2).numpy()

    def run_program(self, feed: paddle.Tensor) -> np.ndarray:
        paddle.enable_static()
        try:
            program = paddle.static.Program()
            with paddle.static.program_guard(program):
                x = paddle.static.data("x", [SIZE], "float32")
                twice = paddle.scale(x, 2.0)
            executor = paddle.static.Executor(
                paddle.CustomPlace("custom_cpu", 0)
            )
            (answer,) = executor.run(
                program, feed={"x": feed.get_tensor()}, fetch_list=[twice]
            )
            return answer
        finally:
            paddle.disable_static()

    def check_executor(self) -> None:
        with slow(current_stream()):
            answer = self.run_program(self.three * 5)
        self.assertEqual(set(answer.tolist()), {30.0})

    def test_executor_waits_for_pending_work_of_a_thread_in_a_guard(self):
        def run():
            with stream_guard(Stream()):
                self.check_executor()

        in_thread(run)

    def test_executor_waits_for_pending_work_of_both_threads(self):
        with stream_guard(Stream()):
            in_thread(self.check_executor)

    def assert_executor_runs_on(self, stream: Stream) -> None:
        """Check that the kernels of a static program run on a stream."""
        main, startup = paddle.static.Program(), paddle.static.Program()
        paddle.enable_static()
        with paddle.static.program_guard(main, startup):
            x = paddle.static.data("x", [2], "float32")
            fetched = relu(x * 2)
        executor = paddle.static.Executor(paddle.CustomPlace(DEVICE_TYPE, 0))
        feed = {"x": np.ones(2, "float32")}
        trace = self.trace_of(
            lambda: executor.run(main, feed=feed, fetch_list=[fetched])
        )
        paddle.disable_static()
        # The executor copies the results back on its own stream.
        kernels = [
            (each.stream, each.kind)
            for each in trace
            if each.kind in ("scale", "relu")
        ]
        on = handle(stream)
        self.assertEqual(kernels, [(on, "scale"), (on, "relu")])

    def test_executor_runs_on_the_stream_of_the_main_thread(self):
        def on_own_stream() -> None:
            with stream_guard(Stream()):
                self.assert_executor_runs_on(self.default)

        in_thread(on_own_stream)
        stream = Stream()
        with stream_guard(stream):
            self.assert_executor_runs_on(stream)

    @unittest.skipUnless(hasattr(os, "fork"), "this system has no fork")
    def test_executor_in_a_forked_process(self):
        # The forking thread is the main thread of the child.
        def in_child(stream: Stream) -> None:
            signal.alarm(WAIT_S)
            try:
                self.assert_executor_runs_on(stream)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)

        def fork_inside() -> None:
            stream = Stream()
            with stream_guard(stream):
                pid = os.fork()
                if pid == 0:
                    in_child(stream)
                self.assertEqual(os.waitpid(pid, 0)[1], 0)

        in_thread(fork_inside)
        with stream_guard(Stream()):
            in_thread(fork_inside)


class PredictorTest(StreamTest):
    def setUp(self) -> None:
        super().setUp()
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.path = os.path.join(temporary.name, "model")
        net = paddle.jit.to_static(
            TwiceItsWeight(),
            full_graph=True,
            input_spec=[paddle.static.InputSpec([None, 4], "float32")],
        )
        paddle.jit.save(net, self.path)
        self.ones = paddle.ones([2, 4])
        self.expected = net(self.ones * 5).numpy()
        self.predictor = self.make(create_predictor)

    def make(self, function: Callable[[Config], Predictor]) -> Predictor:
        config = Config(self.path + ".json", self.path + ".pdiparams")
        config.disable_glog_info()
        config.disable_mkldnn()  # so that predictors run in parallel
        config.enable_custom_device("custom_cpu", 0)
        return function(config)

    def run_predictor(self, predictor: Predictor) -> None:
        (name,) = predictor.get_input_names()
        # The predictor does not keep the memory of the tensor.
        self.input = self.ones * 5
        predictor.get_input_handle(name).share_external_data(self.input)
        predictor.run()

    def check_output(self, predictor: Predictor) -> None:
        (name,) = predictor.get_output_names()
        output = predictor.get_output_handle(name).copy_to_cpu()
        np.testing.assert_allclose(output, self.expected, rtol=1e-6)

    def check(self, predictor: Predictor) -> None:
        self.run_predictor(predictor)
        self.check_output(predictor)

    def assert_kernels_run_on(
        self, stream: Stream, run: Callable[[], object], *kernels: str
    ) -> None:
        streams = {each.kind: each.stream for each in self.trace_of(run)}
        for kernel in kernels:
            self.assertEqual(streams[kernel], handle(stream), kernel)


class TestPredictors(PredictorTest):
    """
    Predictors that the main thread creates run on the process's stream, in
    order with the thread's stream.
    """

    def check_runs_on(self, stream: Stream) -> None:
        self.check(self.predictor)
        self.assert_kernels_run_on(stream, self.predictor.run, "matmul", "relu")

    def test_run_waits_for_pending_work_of_a_thread(self):
        def predict():
            with stream_guard(Stream()), slow(current_stream()):
                self.check(self.predictor)

        in_thread(predict)

    def test_work_of_a_thread_is_ordered_before_and_after_the_run(self):
        def predict():
            with stream_guard(Stream()):
                self.check(self.predictor)
                self.finish()
                take_trace()
                with slow(current_stream()):
                    self.run_predictor(self.predictor)
                with slow(self.default):
                    self.predictor.run()
                relu(self.ones)
                stream = handle(current_stream())
                self.finish()
            operations = [
                (each.kind, each.stream == stream) for each in take_trace()
            ]
            run = operations.index(("matmul", False))
            self.assertLess(operations.index(("scale", True)), run)
            self.assertEqual(operations[-1], ("relu", True))

        in_thread(predict)

    def test_run_is_on_the_stream_of_the_process(self):
        def predict():
            with stream_guard(Stream()):
                self.check_runs_on(self.default)

        in_thread(predict)

    def test_run_is_on_the_current_stream_of_the_main_thread(self):
        stream = Stream()
        with stream_guard(stream):
            self.check_runs_on(stream)
            in_thread(self.check_runs_on, stream)
        # Until the main thread calls it again.
        in_thread(self.check_runs_on, stream)
        self.check_runs_on(self.default)
        in_thread(self.check_runs_on, self.default)


if __name__ == "__main__":
    unittest.main()
