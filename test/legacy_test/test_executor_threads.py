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
"""Programs of static graph mode on threads, and the scopes that they run in."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import unittest
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Callable
from unittest import mock

import numpy as np
from concurrent_base import (
    WAIT_S,
    Worker,
    in_fork,
    in_thread,
    in_threads,
    wait_until,
)

import paddle
from paddle import nn
from paddle.base.threads import programs
from paddle.framework.io_utils import _load_program_scope
from paddle.jit import api
from paddle.static import InputSpec, Scope, global_scope, scope_guard

if TYPE_CHECKING:
    from collections.abc import Iterator


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

    def test_load_program_state_waits_for_the_trace(self):
        def load() -> None:
            with tempfile.TemporaryDirectory() as folder:
                prefix = os.path.join(folder, "model")
                paddle.static.save(self.static.program, prefix)
                paddle.static.load_program_state(prefix)

        self.assertTrue(self.waits_for_trace(load))


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


@contextmanager
def guard_on_another_thread(scope: Scope) -> Iterator[None]:
    """A context during which another thread is inside a guard of `scope`."""
    inside, may_leave = threading.Event(), threading.Event()

    def stay_inside() -> None:
        with scope_guard(scope):
            inside.set()
            assert may_leave.wait(WAIT_S)

    worker = Worker(stay_inside)
    try:
        assert inside.wait(WAIT_S)
        yield
    finally:
        may_leave.set()
        worker.result()


class TestScopeGuard(unittest.TestCase):
    def setUp(self) -> None:
        self.process = global_scope()

    def test_a_guard_on_a_thread_acts_on_that_thread_only(self):
        def scopes_inside() -> list[Scope]:
            with scope_guard(own):
                return [global_scope(), in_thread(global_scope)]

        own = Scope()
        with guard_on_another_thread(Scope()):
            self.assertIs(global_scope(), self.process)
            inside, of_new_thread = in_thread(scopes_inside)
        self.assertIs(inside, own)
        self.assertIs(of_new_thread, self.process)

    def test_threads_outside_of_guards_follow_the_main_thread(self):
        own, of_main = Scope(), Scope()
        left, main_entered = threading.Event(), threading.Event()

        def scopes() -> list[Scope]:
            with scope_guard(own):
                pass
            found = [global_scope()]
            left.set()
            self.assertTrue(main_entered.wait(WAIT_S))
            return [*found, global_scope()]

        worker = Worker(scopes)
        self.assertTrue(left.wait(WAIT_S))
        with scope_guard(of_main):
            main_entered.set()
            self.assertEqual(worker.result(), [self.process, of_main])

    def test_guards_that_overlap_restore_the_scope(self):
        first, both, left = (threading.Event() for _ in range(3))

        def leave_first() -> None:
            with scope_guard(Scope()):
                first.set()
                self.assertTrue(both.wait(WAIT_S))
            left.set()

        def leave_last() -> None:
            self.assertTrue(first.wait(WAIT_S))
            with scope_guard(Scope()):
                both.set()
                self.assertTrue(left.wait(WAIT_S))

        in_threads(leave_first, leave_last)
        self.assertIs(global_scope(), self.process)

    def test_a_guard_of_a_finished_thread_does_not_move_another_thread(self):
        def suspend() -> Iterator[None]:
            with scope_guard(Scope()):
                yield

        def begin() -> Iterator[None]:
            suspended = suspend()
            next(suspended)
            return suspended

        suspended = in_thread(begin)
        own = Scope()
        with scope_guard(own):
            suspended.close()
            self.assertIs(global_scope(), own)

    def test_a_guard_left_on_another_thread_is_an_error(self):
        guard = scope_guard(Scope())
        in_thread(guard.__enter__)
        with self.assertRaisesRegex(RuntimeError, "has not entered it"):
            guard.__exit__(None, None, None)
        self.assertIs(global_scope(), self.process)

    @unittest.skipUnless(hasattr(os, "fork"), "processes are not forked here")
    def test_a_fork_inside_a_guard_keeps_the_threads_scope(self):
        own = Scope()

        def fork_inside() -> None:
            guard = scope_guard(own)

            def in_child() -> None:
                assert global_scope() is own
                assert in_thread(global_scope) is own
                guard.__exit__(None, None, None)
                assert global_scope() is self.process
                assert in_thread(global_scope) is self.process

            with guard:
                in_fork(in_child)

        in_thread(fork_inside)


class TestScopesOfCalls(unittest.TestCase):
    """Functions that save or load use a scope that no other thread uses."""

    def setUp(self) -> None:
        paddle.set_device("cpu")
        self.process = global_scope()
        ones = paddle.ParamAttr(initializer=nn.initializer.Constant(1.0))
        self.layer = nn.Linear(2, 2, ones, ones)

    def save(self, during_save: Callable[[], Any]) -> list[list[float]]:
        """
        Saves the layer, calls a function before the parameters are written, and
        returns the loaded layer's answer for zeros, which is its bias.
        """
        write = api.save_inference_model

        def call_and_write(*args: Any, **kwargs: Any) -> None:
            during_save()
            write(*args, **kwargs)

        with (
            mock.patch.object(api, "save_inference_model", call_and_write),
            tempfile.TemporaryDirectory() as folder,
        ):
            path = os.path.join(folder, "model")
            spec = [InputSpec([None, 2], "float32")]
            paddle.jit.save(self.layer, path, input_spec=spec)
            return paddle.jit.load(path)(paddle.zeros([1, 2])).tolist()

    def test_jit_save_leaves_the_scopes_of_other_threads(self):
        def look() -> None:
            found.append((global_scope(), in_thread(global_scope)))

        found: list[tuple[Scope, Scope]] = []
        self.save(look)
        in_thread(self.save, look)
        self.assertEqual(len(found), 2)
        for of_save, of_other_thread in found:
            self.assertIsNot(of_save, self.process)
            self.assertIs(of_other_thread, self.process)
        self.assertIs(global_scope(), self.process)

    def test_jit_save_beside_a_guard_writes_the_parameters_of_its_layer(self):
        other = Scope()
        for parameter in self.layer.parameters():
            twos = np.full(parameter.shape, 2.0, "float32")
            variable = other.var(parameter.name)
            variable.get_tensor().set(twos, paddle.CPUPlace())
        with contextlib.ExitStack() as stack:

            def enter_guard() -> None:
                stack.enter_context(guard_on_another_thread(other))

            self.assertEqual(self.save(enter_guard), [[1.0, 1.0]])

    def test_loading_leaves_the_scopes_of_other_threads(self):
        def scopes_inside() -> list[Scope]:
            with _load_program_scope(scope=own):
                return [global_scope(), in_thread(global_scope)]

        own = Scope()
        self.assertEqual(scopes_inside(), [own, self.process])
        self.assertEqual(in_thread(scopes_inside), [own, self.process])

    def test_a_guard_inside_a_call_acts_on_its_thread_only(self):
        own = Scope()
        with _load_program_scope(scope=Scope()):
            of_call = global_scope()
            with scope_guard(own):
                self.assertIs(global_scope(), own)
                self.assertIs(in_thread(global_scope), self.process)
            self.assertIs(global_scope(), of_call)
        self.assertIs(global_scope(), self.process)

    @unittest.skipUnless(hasattr(os, "fork"), "processes are not forked here")
    def test_a_fork_inside_a_call_keeps_the_threads_scope(self):
        def fork_inside() -> None:
            own = Scope()
            call = _load_program_scope(scope=own)

            def in_child() -> None:
                assert global_scope() is own
                assert in_thread(global_scope) is self.process
                call.__exit__(None, None, None)
                assert global_scope() is self.process

            with call:
                in_fork(in_child)

        fork_inside()
        in_thread(fork_inside)


class TestLearningRate(unittest.TestCase):
    def test_a_run_sets_the_learning_rate_in_its_scope(self):
        paddle.set_device("cpu")
        paddle.enable_static()
        self.addCleanup(paddle.disable_static)
        main, startup = paddle.static.Program(), paddle.static.Program()
        with paddle.static.program_guard(main, startup):
            x = paddle.static.data("x", [1, 2], "float32")
            loss = nn.Linear(2, 2)(x).mean()
            schedule = paddle.optimizer.lr.StepDecay(0.5, 1)
            paddle.optimizer.SGD(schedule).minimize(loss)
        schedule.step()
        executor, scope = paddle.static.Executor(paddle.CPUPlace()), Scope()
        executor.run(startup, scope=scope)
        feed = {"x": np.ones([1, 2], "float32")}
        executor.run(main, feed=feed, scope=scope)
        rate = scope.find_var(schedule._var_name).get_tensor()
        self.assertAlmostEqual(float(np.array(rate)), 0.05)


if __name__ == "__main__":
    unittest.main()
