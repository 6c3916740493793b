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
"""Programs of static graph mode that run beside a trace of another thread."""

from __future__ import annotations

import os
import tempfile
import threading
import unittest
from typing import Any, Callable
from unittest import mock

import numpy as np
from concurrent_base import WAIT_S, in_threads, wait_until

import paddle
from paddle.base.threads import programs


class ObservedLock:
    """Wraps the lock of traces. `has_waiter` is set when a thread waits."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self.has_waiter = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lock, name)

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self.has_waiter.set()
            self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


class StaticProgram:
    """A program of static graph mode that doubles its input."""

    def __init__(self) -> None:
        self.program = paddle.static.Program()
        paddle.enable_static()
        try:
            with paddle.static.program_guard(self.program):
                self.x = paddle.static.data("x", [None, 2], "float32")
                self.doubled = self.x * 2
            self.executor = paddle.static.Executor(paddle.CPUPlace())
        finally:
            paddle.disable_static()
        self.scope = paddle.static.Scope()

    def run(self) -> list[list[float]]:
        feed = {"x": np.ones([1, 2], "float32")}
        (doubled,) = self.executor.run(
            self.program,
            feed=feed,
            fetch_list=[self.doubled],
            scope=self.scope,
        )
        return doubled.tolist()

    def normalize(self) -> None:
        paddle.static.normalize_program(self.program, self.x, self.doubled)

    def save(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            paddle.static.save_inference_model(
                os.path.join(folder, "model"),
                self.x,
                self.doubled,
                self.executor,
                program=self.program,
            )


class TestStaticProgramsBesideATrace(unittest.TestCase):
    def setUp(self) -> None:
        paddle.set_device("cpu")
        self.static = StaticProgram()

    def waits_for_trace(self, in_static_mode: Callable[[], Any]) -> bool:
        """Returns whether the function waits while another thread traces."""
        tracing, ended = threading.Event(), threading.Event()
        lock = ObservedLock(programs._building)
        waits = []

        def traced(x: paddle.Tensor) -> paddle.Tensor:
            x = x + 1
            tracing.set()
            wait_until(
                lambda: ended.is_set() or lock.has_waiter.is_set(),
                "the other thread has ended, or waits",
            )
            waits.append(not ended.is_set())
            return x * 3

        def trace() -> list[float]:
            function = paddle.jit.to_static(traced, full_graph=True)
            return function(paddle.ones([2])).tolist()

        def use_static_program() -> None:
            paddle.enable_static()
            self.assertTrue(tracing.wait(WAIT_S))
            in_static_mode()
            ended.set()

        with mock.patch.object(programs, "_building", lock):
            answer, _ = in_threads(trace, use_static_program)
        self.assertEqual(answer, [6.0, 6.0])
        return waits[0]

    def test_first_run_waits_for_the_trace(self):
        self.assertTrue(self.waits_for_trace(self.static.run))
        paddle.enable_static()
        self.addCleanup(paddle.disable_static)
        self.assertEqual(self.static.run(), [[2.0, 2.0]])

    def test_later_runs_do_not_wait(self):
        def check() -> None:
            self.assertEqual(self.static.run(), [[2.0, 2.0]])

        in_threads(lambda: (paddle.enable_static(), check()))
        self.assertFalse(self.waits_for_trace(check))

    def test_run_of_the_default_program_waits_for_the_trace(self):
        # The trace has another default program.
        def run() -> None:
            with self.assertWarnsRegex(UserWarning, "no operator"):
                self.static.executor.run(scope=self.static.scope)

        in_threads(lambda: (paddle.enable_static(), run()))
        self.assertTrue(self.waits_for_trace(run))

    def test_normalize_program_waits_for_the_trace(self):
        self.assertTrue(self.waits_for_trace(self.static.normalize))

    def test_save_inference_model_waits_for_the_trace(self):
        self.assertTrue(self.waits_for_trace(self.static.save))


class TestFirstRuns(unittest.TestCase):
    def test_threads_run_programs_for_the_first_time(self):
        statics = [[StaticProgram() for _ in range(10)] for _ in range(4)]

        def run_all(part: list[StaticProgram]) -> list[list[list[float]]]:
            paddle.enable_static()
            return [static.run() for static in part]

        answers = in_threads(
            *(lambda part=part: run_all(part) for part in statics)
        )
        self.assertEqual(answers, [[[[2.0, 2.0]]] * 10] * 4)


if __name__ == "__main__":
    unittest.main()
