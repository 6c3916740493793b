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

import gc
import threading
import unittest
import weakref

from concurrent_base import WAIT_S, Worker, in_threads

import paddle


class Pause:
    """Lets a test run code while another thread is inside a function."""

    def __init__(self) -> None:
        self.inside, self.may_go_on = threading.Event(), threading.Event()

    def wait(self) -> None:
        self.inside.set()
        if not self.may_go_on.wait(WAIT_S):
            raise TimeoutError("the test has not gone on")


class TestGradMode(unittest.TestCase):
    def check_modes(self, decorate, mode_inside):
        """
        Calls one decorated function on two threads, of which one has gradients
        disabled. The calls overlap, and end in the order of their begin.
        """
        first, second = Pause(), Pause()

        @decorate
        def function(pause):
            pause.wait()
            return paddle.is_grad_enabled()

        def run(pause, mode):
            with paddle.set_grad_enabled(mode):
                inside = function(pause)
                return inside, paddle.is_grad_enabled()

        for outer in ((True, False), (False, True)):
            workers = []
            for pause, mode in zip((first, second), outer):
                pause.__init__()
                workers.append(Worker(run, pause, mode))
                self.assertTrue(pause.inside.wait(WAIT_S))
            for pause, mode, worker in zip((first, second), outer, workers):
                pause.may_go_on.set()
                self.assertEqual(worker.result(), (mode_inside, mode))

    def test_a_function_without_gradients_restores_the_mode_of_each_thread(
        self,
    ):
        self.check_modes(paddle.no_grad(), False)

    def test_a_function_with_gradients_restores_the_mode_of_each_thread(self):
        self.check_modes(paddle.enable_grad(), True)

    def test_a_function_with_a_set_mode_restores_the_mode_of_each_thread(self):
        self.check_modes(paddle.set_grad_enabled(False), False)

    def test_a_generator_restores_the_mode_of_each_thread(self):
        both_inside = threading.Barrier(2, timeout=WAIT_S)

        @paddle.no_grad()
        def generate():
            both_inside.wait()
            yield paddle.is_grad_enabled()
            both_inside.wait()

        def run(mode):
            with paddle.set_grad_enabled(mode):
                return [*generate(), paddle.is_grad_enabled()]

        self.assertEqual(
            in_threads(lambda: run(True), lambda: run(False)),
            [[False, True], [False, False]],
        )

    def test_a_generator_has_its_mode_only_while_it_runs(self):
        at_close = []

        @paddle.no_grad()
        def generate():
            try:
                got = yield paddle.is_grad_enabled()
                while True:
                    try:
                        got = yield got, paddle.is_grad_enabled()
                    except KeyError as error:
                        got = str(error)
            finally:
                at_close.append(paddle.is_grad_enabled())

        generator = generate()
        for step, result in (
            (lambda: next(generator), False),
            (lambda: generator.send("sent"), ("sent", False)),
            (lambda: generator.throw(KeyError(1)), ("1", False)),
            (generator.close, None),
        ):
            self.assertEqual(step(), result)
            self.assertTrue(paddle.is_grad_enabled())
        self.assertEqual(at_close, [False])

    def test_a_generator_keeps_the_mode_in_which_it_yielded(self):
        for outer, inner, expected in (
            (paddle.no_grad, paddle.enable_grad, [True, True, False]),
            (paddle.enable_grad, paddle.no_grad, [False, False, True]),
        ):

            @outer()
            def generate(inner=inner):
                with inner():
                    yield paddle.is_grad_enabled()
                    yield paddle.is_grad_enabled()
                yield paddle.is_grad_enabled()

            self.assertEqual([*generate()], expected)
            self.assertTrue(paddle.is_grad_enabled())

    def test_a_generator_keeps_neither_its_items_nor_its_arguments(self):
        class Kept:
            pass

        @paddle.no_grad()
        def generate(argument):
            yield Kept()
            yield None

        def first_of_two(argument):
            for item in generate(argument):
                return item

        gc.disable()
        self.addCleanup(gc.enable)
        argument = Kept()
        kept_argument = weakref.ref(argument)
        kept_item = weakref.ref(first_of_two(argument))
        del argument
        self.assertIsNone(kept_argument())
        self.assertIsNone(kept_item())
        generator = generate(None)
        kept_item = weakref.ref(next(generator))
        self.assertIsNone(kept_item())

    def test_a_generator_does_not_keep_an_error_that_was_thrown_into_it(self):
        class Error(Exception):
            pass

        @paddle.no_grad()
        def generate():
            yield

        def throw():
            generator = generate()
            next(generator)
            error = Error()
            kept_error = weakref.ref(error)
            try:
                generator.throw(error)
            except Error:
                return kept_error
            finally:
                del error

        gc.disable()
        self.addCleanup(gc.enable)
        self.assertIsNone(throw()())

    def test_a_decorated_generator_returns_its_value(self):
        @paddle.no_grad()
        def generate():
            yield 1
            return 2

        def outer():
            self.assertEqual((yield from generate()), 2)

        self.assertEqual([*outer()], [1])

    def test_a_recursive_call_restores_the_mode(self):
        @paddle.no_grad()
        def recurse(depth):
            return recurse(depth - 1) if depth else paddle.is_grad_enabled()

        self.assertFalse(recurse(2))
        self.assertTrue(paddle.is_grad_enabled())

    def test_a_context_with_arguments_may_decorate(self):
        class NoGradWithName(paddle.no_grad):
            def __init__(self, name):
                super().__init__()
                self.name = name

        @NoGradWithName("evaluation")
        def function():
            return paddle.is_grad_enabled()

        self.assertFalse(function())
        self.assertTrue(paddle.is_grad_enabled())

    def test_each_call_of_a_function_has_its_set_mode(self):
        @paddle.set_grad_enabled(False)
        def function():
            return paddle.is_grad_enabled()

        self.assertTrue(paddle.is_grad_enabled())
        for _ in range(2):
            self.assertFalse(function())
            self.assertTrue(paddle.is_grad_enabled())


class TestLazyGuard(unittest.TestCase):
    def test_a_lazy_guard_acts_on_the_calling_thread(self):
        def weights_are_initialized():
            return paddle.nn.Linear(2, 2).weight._is_initialized()

        inside = threading.Barrier(2, timeout=WAIT_S)

        def lazy():
            with paddle.LazyGuard():
                inside.wait()
                layer = paddle.nn.Linear(2, 2)
                inside.wait()
            self.assertFalse(layer.weight._is_initialized())
            layer.weight.initialize()
            return layer.weight._is_initialized()

        def eager():
            inside.wait()
            initialized = weights_are_initialized()
            inside.wait()
            return initialized

        self.assertEqual(in_threads(lazy, eager), [True, True])


if __name__ == "__main__":
    unittest.main()
