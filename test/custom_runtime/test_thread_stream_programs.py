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

"""Per-thread streams: programs, and threads that work for another thread.

CUSTOM_DEVICE_ROOT must name the folder of the built plugin in host_device/.
"""

from __future__ import annotations

import gc
import os
import signal
import tempfile
import threading
import traceback
import unittest
from typing import TYPE_CHECKING
from unittest import mock

import numpy as np
from host_device_control import delay, take_trace
from test_host_device import DEVICE_TYPE, name_of, setUpModule
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
from paddle.device import Stream, current_stream, set_stream, stream_guard
from paddle.distributed.communication.group import Group
from paddle.inference import Config, Predictor, create_predictor
from paddle.io import DataLoader, Dataset
from paddle.nn.functional import relu

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["setUpModule"]


class Doubling(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.linear = paddle.nn.Linear(4, 4)

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        return relu(self.linear(x) * 2)


class TwiceItsWeight(paddle.nn.Layer):
    """A predictor computes the factor once, at its creation."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = self.create_parameter([4, 4])

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        return relu(paddle.matmul(x, self.weight * 2))


class Numbers(Dataset):
    """Samples that the reader thread computes on the current device."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> paddle.Tensor:
        return paddle.to_tensor(np.full(SIZE, index, "float32")) * 2


class TestProgramsOfToStatic(StreamTest):
    def setUp(self) -> None:
        super().setUp()
        self.program = paddle.jit.to_static(Doubling(), full_graph=True)
        self.x = paddle.ones([2, 4])

    def loss(self) -> paddle.Tensor:
        return self.program(self.x).sum()

    def gradient(self) -> list:
        weight = self.program.linear.weight
        gradient = weight.grad.numpy().tolist()
        weight.clear_grad()
        return gradient

    def test_runs_on_the_stream_of_the_calling_thread(self):
        @paddle.jit.to_static(full_graph=True)
        def program(x: paddle.Tensor) -> paddle.Tensor:
            return relu(x * 2)

        x = paddle.ones([2])
        self.assert_runs_on_streams_of_threads(
            lambda: program(x), "scale", "record_event", "relu"
        )

    def test_backward_on_a_destroyed_stream_does_not_affect_others(self):
        self.loss().backward()
        expected = self.gradient()
        loss = self.loss()
        loss.numpy()

        def backward_on_a_stream():
            with stream_guard(Stream()):
                loss.backward()
                return self.gradient()

        self.assertEqual(in_thread(backward_on_a_stream), expected)
        gc.collect()
        for _ in range(3):
            self.loss().backward()
            self.assertEqual(self.gradient(), expected)

    def test_first_backward_on_another_stream_than_the_forward_pass(self):
        stream = Stream()

        def forward_on_a_stream():
            with stream_guard(stream):
                loss = self.loss()
                loss.numpy()
                return loss

        loss = in_thread(forward_on_a_stream)
        loss.backward()
        expected = self.gradient()
        self.loss().backward()
        self.assertEqual(self.gradient(), expected)


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


class TestWorkForAThread(StreamTest):
    def check_loader(self) -> None:
        loader = DataLoader(
            Numbers(),
            batch_size=None,
            places=paddle.CustomPlace("custom_cpu", 0),
        )
        with delay(0, 5_000, handle(self.default)):
            for i, batch in enumerate(loader):
                once = batch * 1
                current_stream().synchronize()
                self.assertEqual(set(once.numpy().tolist()), {2.0 * i})

    def test_loader_computes_on_the_stream_of_its_creator(self):
        def run():
            with stream_guard(Stream()):
                self.check_loader()

        in_thread(run)

    def test_loader_computes_on_the_stream_of_the_main_thread(self):
        with stream_guard(Stream()):
            self.check_loader()

    def test_process_group_is_refused_on_another_stream(self):
        group = Group(0, 0, [0], pg=mock.Mock(**{"name.return_value": "XCCL"}))

        def use_in_a_guard():
            with stream_guard(Stream(name_of(0))):
                return group.process_group

        with self.assertRaisesRegex(RuntimeError, "stream of the process"):
            in_thread(use_in_a_guard)
        self.assertEqual(in_thread(lambda: group.process_group), group._pg)
        with stream_guard(Stream()):
            self.assertEqual(group.process_group, group._pg)
            with self.assertRaisesRegex(RuntimeError, "stream of the process"):
                in_thread(lambda: group.process_group)

    def test_process_group_of_the_host_is_allowed_on_another_stream(self):
        group = Group(0, 0, [0], pg=mock.Mock(**{"name.return_value": "GLOO"}))

        def use_in_a_guard():
            with stream_guard(Stream(name_of(0))):
                return group.process_group

        self.assertEqual(in_thread(use_in_a_guard), group._pg)


class TestMainThreadMemory(StreamTest):
    def test_memory_freed_in_a_guard_is_not_reused_by_others_too_early(self):
        five = np.full(SIZE, 5.0, "float32")
        seven = np.full(SIZE, 7.0, "float32")

        def take_memory():
            taken = [paddle.to_tensor(seven) for _ in range(3)]
            current_stream().synchronize()
            return taken

        stream = Stream()
        with stream_guard(stream):
            x = paddle.to_tensor(five)
            stream.synchronize()
            with slow(stream):
                twice = x * 2
                del x
                in_thread(take_memory)
            stream.synchronize()
            self.assert_holds(twice, 10.0)


class TestForkWithThreads(StreamTest):
    def test_child_does_not_wait_for_the_streams_of_other_threads(self):
        is_set, may_end = threading.Event(), threading.Event()

        def own():
            # Only the thread keeps the stream alive.
            set_stream(Stream())
            filled(1.0)
            is_set.set()
            may_end.wait(WAIT_S)

        thread = threading.Thread(target=own)
        thread.start()
        self.addCleanup(thread.join, WAIT_S)
        self.addCleanup(may_end.set)
        self.assertTrue(is_set.wait(WAIT_S))
        loader = DataLoader(
            paddle.io.TensorDataset([np.arange(4)]), num_workers=1
        )
        self.assertEqual(len(list(loader)), 4)


if __name__ == "__main__":
    unittest.main()
