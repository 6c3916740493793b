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
"""Programs of to_static and jit.load that several threads build and run."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import threading
import unittest
import weakref
from typing import Callable
from unittest import mock

import numpy as np
from concurrent_base import WAIT_S, Worker, in_thread, in_threads
from forked_script import run_forked_script
from jit_threads_base import (
    SPEC,
    JitTestCase,
    Scaled,
    errors_of_second_passes,
    runs_of_parts,
    scopes_of,
    together,
    wrong_answers,
    wrong_gradients,
)

import paddle
from paddle import _C_ops, nn
from paddle.base import core
from paddle.base.threads import programs
from paddle.jit.api import _register_save_pre_hook
from paddle.jit.dy2static.pir_partial_program import PartialProgramLayer

THREADS = 4
CALLS = 25
NONE_WRONG = [0] * THREADS
SECOND_PASS = "second backward pass .* Call the layer again"


def build_on_a_thread() -> None:
    assert in_thread(square_gradient) == [6.0]


class TestLoadedLayer(JitTestCase):
    def test_threads_that_call_one_layer_get_their_own_answers(self):
        layer = self.loaded()
        wrong_answers(layer, 0, 1)
        wrong = together(
            THREADS, lambda i, layer=layer: wrong_answers(layer, i, CALLS)
        )
        self.assertEqual(wrong, NONE_WRONG)

    def test_first_calls_may_be_concurrent(self):
        for _ in range(5):
            layer = self.loaded()
            wrong = together(
                THREADS, lambda i, layer=layer: wrong_answers(layer, i, 2)
            )
            self.assertEqual(wrong, NONE_WRONG)

    def test_threads_differentiate_one_layer(self):
        layer = self.loaded()
        layer.train()
        wrong = together(
            THREADS, lambda i, layer=layer: wrong_gradients(layer, i, CALLS)
        )
        self.assertEqual(wrong, NONE_WRONG)

    def test_backward_may_run_on_another_thread_than_forward(self):
        layer = self.loaded()
        layer.train()

        def forward(i):
            x = paddle.full([i + 1, 6], float(i + 1))
            x.stop_gradient = False
            return x, layer(x)

        passes = together(THREADS, forward)

        def backward(i):
            x, answer = passes[i - 1]
            answer.sum().backward()
            return np.unique(x.grad.numpy()).tolist()

        self.assertEqual(together(THREADS, backward), [[2.0]] * THREADS)

    def test_two_layers_run_on_two_threads(self):
        two, three = self.loaded(2, "two"), self.loaded(3, "three")
        wrong = in_threads(
            lambda: wrong_answers(two, 1, CALLS, 2),
            lambda: wrong_answers(three, 2, CALLS, 3),
        )
        self.assertEqual(wrong, [0, 0])

    def test_threads_load_concurrently(self):
        path = self.save()

        def load_and_call(i):
            return sum(
                wrong_answers(paddle.jit.load(path), i, 2) for _ in range(5)
            )

        self.assertEqual(together(THREADS, load_and_call), NONE_WRONG)

    def test_one_thread_saves_while_others_call(self):
        layer = self.loaded()

        def save():
            for i in range(5):
                self.save(3, f"other{i}")
            return 0

        wrong = in_threads(
            save, *[lambda: wrong_answers(layer, 1, CALLS)] * (THREADS - 1)
        )
        self.assertEqual(wrong, NONE_WRONG)

    def test_the_main_thread_saves_while_others_call(self):
        layer = self.loaded()
        workers = [Worker(wrong_answers, layer, i, CALLS) for i in range(3)]
        for i in range(5):
            self.save(3, f"other{i}")
        self.assertEqual([worker.result() for worker in workers], [0, 0, 0])

    def test_a_failing_call_does_not_affect_other_threads(self):
        self.use_cpu()
        layer = self.loaded()

        def fail(i):
            for _ in range(CALLS):
                with self.assertRaises(ValueError):
                    layer(paddle.ones([2, 5]))
            return 0

        wrong = in_threads(
            lambda: fail(0),
            lambda: wrong_answers(layer, 1, CALLS),
            lambda: fail(2),
            lambda: wrong_answers(layer, 3, CALLS),
        )
        self.assertEqual(wrong, NONE_WRONG)


def allocated_bytes() -> int:
    return core.host_memory_stat_current_value("Allocated", 0)


class TestScopes(JitTestCase):
    """A program keeps as many scopes as it has had concurrent runs."""

    def setUp(self):
        super().setUp()
        self.layer = self.loaded()

    def scopes(self) -> int:
        return scopes_of(self.layer._get_partial_program_layer("forward"))

    def test_successive_threads_use_one_scope(self):
        for i in range(20):
            self.assertEqual(in_thread(wrong_answers, self.layer, i, 2), 0)
        self.assertEqual(self.scopes(), 1)

    def test_concurrent_threads_use_at_most_one_scope_each(self):
        together(THREADS, lambda i: wrong_answers(self.layer, i, CALLS))
        self.assertLessEqual(self.scopes(), THREADS)

    def test_failed_calls_return_their_scope(self):
        self.use_cpu()
        for _ in range(5):
            with self.assertRaises(ValueError):
                self.layer(paddle.ones([2, 5]))
        self.assertEqual(wrong_answers(self.layer, 0, 2), 0)
        self.assertEqual(self.scopes(), 1)

    def test_calls_after_a_failed_one_have_the_parameters(self):
        """Also in the mode in which only the first run in a scope gets them."""
        self.use_cpu()
        flag = "FLAGS_parameters_persistent_mode_in_dy2st"
        paddle.set_flags({flag: True})
        self.addCleanup(paddle.set_flags, {flag: False})
        layer = paddle.jit.to_static(nn.Embedding(4, 3), full_graph=True)
        layer.eval()
        with paddle.no_grad():
            expected = layer(paddle.to_tensor([1, 2])).tolist()
            with self.assertRaises(ValueError):
                layer(paddle.to_tensor([1, 99]))
            for _ in range(2):
                answer = layer(paddle.to_tensor([1, 2]))
                self.assertEqual(answer.tolist(), expected)

    def test_a_failed_call_keeps_no_memory(self):
        self.use_cpu()
        wrong_input = paddle.ones([2**16, 5])
        size = wrong_input.size * 4
        with self.assertRaises(ValueError):
            self.layer(wrong_input)
        before = allocated_bytes()
        del wrong_input
        self.assertLessEqual(allocated_bytes(), before - size)

    def test_scopes_of_calls_that_fail_before_their_run_are_reused(self):
        self.assertEqual(wrong_answers(self.layer, 0, 1), 0)

        def fail(*args):
            raise InterruptedError

        with mock.patch.object(_C_ops, "run_program", fail):
            for _ in range(5):
                with self.assertRaises(InterruptedError):
                    self.layer(paddle.ones([2, 6]))
        self.assertEqual(wrong_answers(self.layer, 0, 2), 0)
        self.assertEqual(self.scopes(), 1)

    def test_a_call_keeps_its_scope_until_its_run_begins(self):
        taken, may_run = threading.Event(), threading.Event()
        run = _C_ops.run_program

        def wait_and_run(*args):
            if not taken.is_set():
                taken.set()
                self.assertTrue(may_run.wait(WAIT_S))
            return run(*args)

        with mock.patch.object(_C_ops, "run_program", wait_and_run):
            worker = Worker(wrong_answers, self.layer, 0, 1)
            self.assertTrue(taken.wait(WAIT_S))
            self.assertEqual(wrong_answers(self.layer, 1, 2), 0)
            may_run.set()
            self.assertEqual(worker.result(), 0)
        self.assertEqual(self.scopes(), 2)

    def test_a_forward_pass_keeps_its_scope_until_the_backward_pass(self):
        self.layer.train()
        self.assertEqual(wrong_gradients(self.layer, 0, 10), 0)
        self.assertEqual(self.scopes(), 2)

    def test_a_dropped_graph_returns_its_scope(self):
        self.layer.train()
        for _ in range(5):
            x = paddle.ones([2, 6])
            x.stop_gradient = False
            in_thread(self.layer, x)
        self.assertEqual(self.scopes(), 1)


class TestToStatic(JitTestCase):
    def setUp(self):
        super().setUp()
        self.compile_small_parts()

    def check_both_kinds(self, check: Callable, calls: int):
        """
        Calls `check` with a fully traced layer and with a partially traced one.
        `check` makes `calls` calls of the layer. With partial tracing, at least
        half of them must run programs: while another thread compiles a
        program, a call may run the operators instead.
        """
        for full_graph in (True, False):
            with self.subTest(full_graph=full_graph), runs_of_parts() as runs:
                layer = paddle.jit.to_static(Scaled(), full_graph=full_graph)
                layer.eval()
                check(layer)
                if full_graph:
                    self.assertEqual(runs, [])
                else:
                    self.assertGreaterEqual(len(runs), (calls + 1) // 2)

    def test_threads_run_a_program_that_one_thread_has_traced(self):
        def check(layer):
            in_thread(wrong_answers, layer, 0, CALLS)
            wrong = together(THREADS, lambda i: wrong_answers(layer, 0, CALLS))
            self.assertEqual(wrong, NONE_WRONG)

        self.check_both_kinds(check, (1 + THREADS) * CALLS)

    def test_threads_trace_concurrently_for_different_shapes(self):
        def check(layer):
            wrong = together(THREADS, lambda i: wrong_answers(layer, i, 5))
            self.assertEqual(wrong, NONE_WRONG)

        self.check_both_kinds(check, THREADS * 5)

    def test_threads_differentiate_one_layer(self):
        def check(layer):
            layer.train()
            wrong = together(THREADS, lambda i: wrong_gradients(layer, i, 8))
            self.assertEqual(wrong, NONE_WRONG)

        self.check_both_kinds(check, THREADS * 8)

    def test_a_program_is_traced_once_for_all_threads(self):
        traced = []

        class Counted(Scaled):
            def forward(self, x):
                traced.append(threading.get_ident())
                return super().forward(x)

        layer = paddle.jit.to_static(
            Counted(), input_spec=SPEC, full_graph=True
        )
        layer.eval()
        wrong = together(
            THREADS, lambda i, layer=layer: wrong_answers(layer, i, 2)
        )
        self.assertEqual(wrong, NONE_WRONG)
        self.assertEqual(len(traced), 1)

    def test_threads_trace_different_layers_concurrently(self):
        def trace_and_call(i):
            layer = paddle.jit.to_static(Scaled(), full_graph=bool(i % 2))
            return wrong_gradients(layer, i, 3)

        with runs_of_parts() as runs:
            self.assertEqual(together(THREADS, trace_and_call), NONE_WRONG)
        self.assertTrue(runs)

    def test_a_thread_that_starts_during_a_trace_is_in_dynamic_mode(self):
        modes = []

        @paddle.jit.to_static(full_graph=True)
        def function(x):
            modes.append(in_thread(paddle.in_dynamic_mode))
            modes.append(paddle.in_dynamic_mode())
            return 2 * x

        function(paddle.ones([2]))
        self.assertEqual(modes, [True, False])
        self.assertTrue(in_thread(paddle.in_dynamic_mode))

    def test_a_thread_that_starts_during_a_partial_trace_is_in_dynamic_mode(
        self,
    ):
        modes = []
        program_guard = paddle.static.program_guard

        def start_thread(*args):
            modes.append(in_thread(paddle.in_dynamic_mode))
            modes.append(paddle.in_dynamic_mode())
            return program_guard(*args)

        function = paddle.jit.to_static(lambda x: 2 * x, full_graph=False)
        # The trace enters it to infer the type of the result.
        with mock.patch.object(paddle.static, "program_guard", start_thread):
            function(paddle.ones([2]))
        self.assertEqual(modes[:2], [True, False])

    def test_a_failed_trace_keeps_no_parameters(self):
        """Otherwise, a later program at the same address would use them."""

        class Failing(Scaled):
            def forward(self, x):
                super().forward(x)
                raise NotImplementedError

        layer = paddle.jit.to_static(Failing(), full_graph=True)
        weight = weakref.ref(layer.first.weight)
        with self.assertRaises(NotImplementedError):
            layer(paddle.ones([2, 6]))
        del layer
        gc.collect()
        self.assertIsNone(weight())

    def test_a_first_run_locks_nothing(self):
        free = []
        run = PartialProgramLayer.call_run_impl_with_hook

        def building_is_free() -> bool:
            with programs._building:
                return True

        def check_and_run(*args):
            free.append(in_thread(building_is_free))
            return run(*args)

        with mock.patch.object(
            PartialProgramLayer, "call_run_impl_with_hook", check_and_run
        ):
            self.assertEqual(wrong_answers(self.loaded(), 0, 1), 0)
            self.check_both_kinds(lambda layer: wrong_answers(layer, 0, 1), 1)
        self.assertEqual(free, [True] * 3)


def square_gradient() -> list[float]:
    """Returns the gradient of x * x at 3, computed with paddle.grad."""
    x = paddle.full([1], 3.0)
    x.stop_gradient = False
    return paddle.grad(x * x, x)[0].tolist()


class TestGradients(JitTestCase):
    def test_threads_call_paddle_grad_concurrently(self):
        layer = Scaled()

        def wrong(i):
            wrong = 0
            for _ in range(CALLS):
                x = paddle.full([i + 1, 6], 3.0)
                x.stop_gradient = False
                (gradient,) = paddle.grad([(layer(x) * x).sum()], [x])
                wrong += not np.array_equal(
                    gradient.numpy(), np.full([i + 1, 6], 12, "float32")
                )
            return wrong

        self.assertEqual(together(THREADS, wrong), NONE_WRONG)

    def test_a_graph_keeps_the_scope_of_a_layer_that_paddle_grad_skips(self):
        layer = self.loaded()
        layer.train()
        x, other, later = (paddle.full([2, 6], value) for value in (1.0, 2, 3))
        for tensor in (x, other, later):
            tensor.stop_gradient = False
        total = (layer(x) + other * other).sum()
        (gradient,) = paddle.grad(total, [other])
        self.assertEqual(np.unique(gradient.numpy()).tolist(), [4.0])
        answer = layer(later)
        del total
        answer.sum().backward()
        self.assertEqual(np.unique(later.grad.numpy()).tolist(), [2.0])
        self.assertEqual(
            scopes_of(layer._get_partial_program_layer("forward")), 2
        )

    def test_paddle_grad_returns_the_scope_that_it_has_used(self):
        layer = self.loaded()
        layer.train()
        for _ in range(3):
            x = paddle.ones([2, 6])
            x.stop_gradient = False
            paddle.grad(layer(x).sum(), x)
        self.assertEqual(
            scopes_of(layer._get_partial_program_layer("forward")), 1
        )

    def test_a_hook_of_paddle_grad_may_run_a_backward_pass(self):
        layer = self.loaded()
        layer.train()
        x, other = paddle.ones([2, 6]), paddle.ones([2, 6])
        x.stop_gradient = other.stop_gradient = False
        for _ in range(3):
            other.clear_grad()
            y = x * x
            y.register_hook(lambda gradient: layer(other).sum().backward())
            paddle.grad(layer(y).sum(), x)
            self.assertEqual(np.unique(other.grad.numpy()).tolist(), [2.0])
        self.assertLessEqual(
            scopes_of(layer._get_partial_program_layer("forward")), 2
        )

    def test_a_failed_paddle_grad_keeps_the_scopes_it_has_not_reached(self):
        def graph(value):
            x = paddle.full([2], value)
            x.stop_gradient = False
            return x, layer(x)

        @paddle.jit.to_static(full_graph=True)
        def failing(x):
            return (x * x).exp()

        @paddle.jit.to_static(full_graph=True)
        def layer(x):
            return x * x * x

        x = paddle.full([2], 0.5)
        x.stop_gradient = False
        y = failing(x)
        y.sum().backward(retain_graph=True)
        own, cube = graph(2.0)
        # The second backward pass of `failing` has no intermediate results.
        with self.assertRaises((RuntimeError, ValueError)):
            paddle.grad([cube.sum(), y.sum()], [own, x])
        later, later_cube = graph(3.0)
        cube.sum().backward()
        self.assertEqual(own.grad.tolist(), [12.0] * 2)
        later_cube.sum().backward()
        self.assertEqual(later.grad.tolist(), [27.0] * 2)

    def test_a_second_backward_pass_is_refused(self):
        compiled = paddle.jit.to_static(Scaled(), full_graph=True)
        for layer in (compiled, self.loaded()):
            layer.train()
            errors = errors_of_second_passes(layer)
            self.assertEqual(len(errors), 8, errors)
            for error in errors:
                self.assertRegex(error, SECOND_PASS)

    def test_hooks_may_call_a_layer_and_paddle_grad(self):
        layer = self.loaded()
        in_gradient, in_save = threading.Event(), threading.Event()

        def call_in_gradient():
            def call(gradient):
                in_gradient.set()
                self.assertTrue(in_save.wait(WAIT_S))
                layer(paddle.ones([2, 6]))

            x = paddle.ones([2])
            x.stop_gradient = False
            y = x * x
            y.register_hook(call)
            return paddle.grad(y.sum(), x)[0].tolist()

        def differentiate_in_save(*_):
            in_save.set()
            self.assertTrue(in_gradient.wait(WAIT_S))
            self.assertEqual(square_gradient(), [6.0])

        hook = _register_save_pre_hook(differentiate_in_save)
        self.addCleanup(hook.remove)
        gradient, _ = in_threads(call_in_gradient, lambda: self.save(3, "b"))
        self.assertEqual(gradient, [2.0, 2.0])


@unittest.skipUnless(hasattr(os, "fork"), "processes are not forked here")
class TestForks(JitTestCase):
    def child_result(self, function) -> int:
        """Returns the exit status of a forked child that calls `function`."""
        child = os.fork()
        if child == 0:
            status = 1
            try:
                status = function()
            finally:
                os._exit(status)
        waiting = Worker(os.waitpid, child, 0)
        try:
            return os.waitstatus_to_exitcode(waiting.result()[1])
        except TimeoutError:
            os.kill(child, 9)
            raise

    def test_a_fork_waits_until_another_thread_has_traced(self):
        tracing, forking = threading.Event(), threading.Event()
        # Called before the fork waits, because it is registered last.
        os.register_at_fork(before=forking.set)
        default = paddle.static.default_main_program()
        path = self.save()

        @paddle.jit.to_static(full_graph=True)
        def function(x):
            tracing.set()
            forking.wait(WAIT_S)
            return 2 * x

        def in_child() -> int:
            if paddle.static.default_main_program() is not default:
                return 99
            return wrong_answers(paddle.jit.load(path), 2, 2)

        # Only traces: a child that is forked while a program runs may inherit
        # locks of Paddle's allocators.
        worker = Worker(function.get_concrete_program, paddle.ones([2]))
        self.assertTrue(tracing.wait(WAIT_S))
        self.assertEqual(self.child_result(in_child), 0)
        worker.result()
        self.assertEqual(function(paddle.ones([2])).tolist(), [2.0, 2.0])

    def test_a_child_calls_a_layer_that_its_parent_has_called(self):
        layer = self.loaded()
        self.assertEqual(wrong_answers(layer, 0, 3), 0)
        status = self.child_result(lambda: wrong_answers(layer, 1, 3))
        self.assertEqual(status, 0)
        self.assertEqual(wrong_answers(layer, 2, 3), 0)

    def test_a_child_inherits_no_lock_that_another_thread_holds(self):
        held, forked = threading.Event(), threading.Event()

        def hold():
            with programs._taking, programs._checking:
                held.set()
                self.assertTrue(forked.wait(WAIT_S))

        def in_child() -> int:
            locks = (programs._taking, programs._checking)
            return not all(lock.acquire(timeout=1) for lock in locks)

        worker = Worker(hold)
        self.assertTrue(held.wait(WAIT_S))
        self.assertEqual(self.child_result(in_child), 0)
        forked.set()
        worker.result()

    def test_a_process_that_a_hook_has_started_builds_on_any_thread(self):
        def start_process(gradient):
            process.start()

        process = multiprocessing.get_context("fork").Process(
            target=build_on_a_thread
        )
        x = paddle.ones([2])
        x.stop_gradient = False
        y = 2 * x
        y.register_hook(start_process)
        paddle.grad(y.sum(), x)
        process.join(WAIT_S)
        if process.exitcode is None:
            process.kill()
        self.assertEqual(process.exitcode, 0)

    def check_build_after_fork(self, fork_in: Callable) -> None:
        """`fork_in` calls its argument while the thread builds, and returns.
        Afterwards, another thread builds, in the parent and in the child."""
        children = []
        fork_in(lambda: children.append(os.fork()))
        if children == [0]:
            status = 1
            try:
                status = in_thread(square_gradient) != [6.0]
            finally:
                os._exit(status)
        worker = Worker(os.waitpid, children[0], 0)
        try:
            self.assertEqual(worker.result()[1], 0)
        except TimeoutError:
            os.kill(children[0], 9)
            raise
        self.assertEqual(in_thread(square_gradient), [6.0])

    def test_a_hook_of_paddle_grad_may_fork(self):
        def fork_in_hook(fork):
            x = paddle.ones([2])
            x.stop_gradient = False
            y = 2 * x
            y.register_hook(lambda gradient: fork())
            paddle.grad(y.sum(), x)

        self.check_build_after_fork(fork_in_hook)

    def test_a_trace_may_fork(self):
        def fork_in_trace(fork):
            @paddle.jit.to_static(full_graph=True)
            def function(x):
                fork()
                return 2 * x

            function(paddle.ones([2]))

        self.check_build_after_fork(fork_in_trace)

    @mock.patch.object(programs, "_FORK_WAIT_S", 0.2)
    def test_a_fork_that_a_trace_waits_for_proceeds_with_a_warning(self):
        def in_child() -> int:
            return in_thread(square_gradient) != [6.0]

        @paddle.jit.to_static(full_graph=True)
        def function(x):
            # The trace on this thread waits for the forking thread.
            statuses.append(in_thread(self.child_result, in_child))
            return 2 * x

        statuses = []
        with self.assertWarnsRegex(RuntimeWarning, "building a program"):
            function(paddle.ones([2]))
        self.assertEqual(statuses, [0])

    def test_a_signal_that_interrupts_a_fork_leaves_nothing_locked(self):
        tracing, may_trace = threading.Event(), threading.Event()

        @paddle.jit.to_static(full_graph=True)
        def function(x):
            tracing.set()
            may_trace.wait(WAIT_S)
            return 2 * x

        def interrupt(number, frame):
            if frame.f_code is programs._lock.__code__:
                raise InterruptedError

        previous = signal.signal(signal.SIGALRM, interrupt)
        self.addCleanup(signal.signal, signal.SIGALRM, previous)
        worker = Worker(function, paddle.ones([2]))
        self.assertTrue(tracing.wait(WAIT_S))
        ignored = []
        with (
            mock.patch.object(sys, "unraisablehook", ignored.append),
            self.assertWarns(RuntimeWarning),
        ):
            signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
            try:
                status = self.child_result(lambda: 0)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        may_trace.set()
        self.assertEqual(status, 0)
        self.assertEqual(
            [error.exc_type for error in ignored], [InterruptedError]
        )
        self.assertEqual(worker.result().tolist(), [2.0, 2.0])
        self.assertEqual(in_thread(square_gradient), [6.0])


REFUSED = "a library of this process prevents it"


class _Refusing:
    """A libpaddle whose locks for programs cannot be loaded."""

    @property
    def _program_threads(self):
        raise ImportError(REFUSED)


class TestWhereThreadsAreNotSafe(JitTestCase):
    """Programs cannot run on several threads of the process."""

    def setUp(self):
        super().setUp()
        for name, value in {
            "core": mock.Mock(wraps=core, libpaddle=_Refusing()),
            "_native": None,
            "_native_error": None,
            "_only_thread": None,
        }.items():
            patch = mock.patch.object(programs, name, value)
            patch.start()
            self.addCleanup(patch.stop)

    def test_one_thread_runs_programs_in_one_scope(self):
        layer = self.loaded()
        self.assertEqual(wrong_answers(layer, 0, CALLS), 0)
        self.assertEqual(
            scopes_of(layer._get_partial_program_layer("forward")), 1
        )
        layer.train()
        self.assertEqual(wrong_gradients(layer, 0, CALLS), 0)

    def test_a_second_thread_is_refused(self):
        layer = self.loaded()
        self.assertEqual(wrong_answers(layer, 0, 1), 0)
        for _ in range(2):
            with self.assertRaisesRegex(
                RuntimeError, f"run on several threads .*: {REFUSED}"
            ):
                in_thread(wrong_answers, layer, 1, 1)
        self.assertEqual(wrong_answers(layer, 2, 1), 0)

    def test_successive_threads_may_run_programs(self):
        layer = self.loaded()
        for i in range(3):
            self.assertEqual(in_thread(wrong_answers, layer, i, 2), 0)


LEGACY = """
import sys
sys.path.insert(0, {folder!r})
import paddle
from jit_threads_base import JitTestCase, together, wrong_answers
case = JitTestCase()
case.setUp()
layer = case.loaded()
assert type(layer).__name__ == "TranslatedLayer", type(layer)
print(together(4, lambda i: wrong_answers(layer, i, 25)))
layer.train()
print(together(4, lambda i: wrong_answers(layer, i, 25)))
case.doCleanups()
"""


LEGACY_FIRST_RUN = """
import sys
sys.path.insert(0, {folder!r})
from unittest import mock
from paddle import _legacy_C_ops
from paddle.base.threads import programs
from concurrent_base import in_thread
from jit_threads_base import JitTestCase, wrong_answers
run = _legacy_C_ops.run_program
def building_is_free():
    with programs._building:
        return True
def check_and_run(*args):
    print(in_thread(building_is_free))
    return run(*args)
case = JitTestCase()
case.setUp()
layer = case.loaded()
with mock.patch.object(_legacy_C_ops, "run_program", check_and_run):
    print(wrong_answers(layer, 0, 1))
    layer.train()
    print(wrong_answers(layer, 0, 1))
case.doCleanups()
"""


LEGACY_ONE_INTERPRETER = """
import sys
sys.path.insert(0, {folder!r})
import paddle
from concurrent_base import in_thread
from jit_threads_base import JitTestCase, wrong_answers
case = JitTestCase()
case.setUp()
layer = case.loaded()
assert wrong_answers(layer, 0, 2) == 0
paddle.set_flags({{
    "FLAGS_enable_pir_in_executor": False,
    "FLAGS_enable_pir_with_pt_in_dy2st": False,
}})
assert wrong_answers(layer, 0, 2) == 0
try:
    in_thread(wrong_answers, layer, 1, 2)
except RuntimeError as error:
    print(error)
print(wrong_answers(layer, 2, 2))
case.doCleanups()
"""


LEGACY_SECOND_PASS = """
import sys
sys.path.insert(0, {folder!r})
import paddle
from jit_threads_base import SPEC, JitTestCase
case = JitTestCase()
case.setUp()
case.use_cpu()  # on custom devices, a backward pass of this format fails
path = case.folder + "/linear"
paddle.jit.save(paddle.nn.Linear(6, 6), path, input_spec=SPEC)
layer = paddle.jit.load(path)
layer.train()
def call():
    answer = layer(paddle.ones([2, 6]))
    answer.stop_gradient = False
    return answer.sum()
first, second, other = call(), call(), call()
first.backward(retain_graph=True)
paddle.grad(second, list(layer.parameters()), retain_graph=True)
for answer in (first, second):
    try:
        answer.backward()
    except RuntimeError as error:
        print("refused:", error)
other.backward()
print("done")
case.doCleanups()
"""


LEGACY_MIXED_PRECISION = """
import paddle
from paddle.base.threads import programs
from paddle.jit.dy2static import partial_program

paddle.set_device("cpu")
Layer = partial_program.PartialProgramLayer
create = Layer._create_program
alone = []
in_guard = True

def create_checked(self, *args, **kwargs):
    alone.append(programs._building._is_owned())
    return create(self, *args, **kwargs)

# There is no mixed precision on the CPU.
partial_program._in_amp_guard = lambda: in_guard
Layer._create_program = Layer._create_amp_program = create_checked
layer = paddle.jit.to_static(paddle.nn.Linear(4, 4), full_graph=True)
layer(paddle.ones([2, 4]))
created = len(alone)
in_guard = False
layer(paddle.ones([2, 4]))
assert 0 < created < len(alone), alone
print(all(alone))
"""


class TestOldFormat(unittest.TestCase):
    """Models in .pdmodel files."""

    def run_legacy(self, script: str, **environment: str) -> list[str]:
        folder = os.path.dirname(os.path.abspath(__file__))
        done = run_forked_script(
            self,
            script.format(folder=folder),
            FLAGS_enable_pir_api="0",
            **environment,
        )
        return done.stdout.splitlines()

    def test_threads_that_call_one_layer_get_their_own_answers(self):
        self.assertEqual(self.run_legacy(LEGACY), [str(NONE_WRONG)] * 2)

    def test_a_second_backward_pass_is_refused(self):
        *lines, done = self.run_legacy(LEGACY_SECOND_PASS)
        errors = "".join(lines).split("refused:")[1:]
        self.assertEqual(len(errors), 2, lines)
        for error in errors:
            self.assertRegex(error, SECOND_PASS)
        self.assertEqual(done, "done")

    def test_a_first_run_locks_nothing(self):
        self.assertEqual(
            self.run_legacy(LEGACY_FIRST_RUN), ["True", "0", "True", "0"]
        )

    def test_programs_with_and_without_mixed_precision_are_built_alone(self):
        self.assertEqual(self.run_legacy(LEGACY_MIXED_PRECISION), ["True"])

    def test_a_second_thread_is_refused_where_runs_share_an_interpreter(self):
        error, wrong = self.run_legacy(
            LEGACY_ONE_INTERPRETER,
            FLAGS_enable_pir_in_executor="0",
            FLAGS_enable_pir_with_pt_in_dy2st="0",
        )
        self.assertRegex(error, "FLAGS_enable_pir_in_executor.* are all off")
        self.assertEqual(wrong, "0")

    def test_flags_that_change_after_the_first_run_count(self):
        error, wrong = self.run_legacy(LEGACY_ONE_INTERPRETER)
        self.assertRegex(error, "FLAGS_enable_pir_in_executor.* are all off")
        self.assertEqual(wrong, "0")


if __name__ == "__main__":
    unittest.main()
