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
import os
import threading
import unittest
import weakref

from concurrent_base import WAIT_S, Worker, in_fork, in_thread, in_threads
from forked_script import run_forked_script

import paddle
from paddle.autograd import saved_tensors_hooks
from paddle.distributed.fleet.utils import recompute


def leaf(*values: float) -> paddle.Tensor:
    return paddle.to_tensor(values, dtype="float32", stop_gradient=False)


def grad_of_square(x: paddle.Tensor) -> list[float]:
    """Returns the gradient of the sum of x * x, which is 2 * x."""
    (x * x).sum().backward()
    return x.grad.tolist()


def times(factor: float) -> saved_tensors_hooks:
    """
    Returns hooks that multiply each saved tensor by `factor`, which shows in a
    gradient.
    """
    return saved_tensors_hooks(lambda x: x * factor, lambda x: x)


def fail(value):
    raise KeyError


class HooksTestCase(unittest.TestCase):
    def setUp(self):
        before = paddle.get_device()
        self.addCleanup(paddle.set_device, before)
        paddle.set_device("cpu")


class TestHooksOfThreads(HooksTestCase):
    def test_hooks_act_on_the_thread_that_entered_them(self):
        with times(10):
            self.assertEqual(in_thread(grad_of_square, leaf(1, 2)), [2, 4])
            self.assertEqual(grad_of_square(leaf(1, 2)), [20, 40])

    def test_each_thread_has_its_own_hooks(self):
        both_inside = threading.Barrier(2, timeout=WAIT_S)

        def run(factor):
            with times(factor):
                both_inside.wait()
                gradient = grad_of_square(leaf(1))
                both_inside.wait()
                return gradient

        self.assertEqual(
            in_threads(lambda: run(10), lambda: run(100)), [[20], [200]]
        )

    def test_hooks_of_a_thread_outlive_those_of_another(self):
        entered, may_go_on = threading.Event(), threading.Event()

        def run():
            with times(10):
                entered.set()
                self.assertTrue(may_go_on.wait(WAIT_S))
                return grad_of_square(leaf(1))

        worker = Worker(run)
        self.assertTrue(entered.wait(WAIT_S))
        with times(100):
            pass
        may_go_on.set()
        self.assertEqual(worker.result(), [20])
        self.assertEqual(grad_of_square(leaf(1)), [2])

    def test_backward_on_another_thread_uses_the_hooks_of_the_forward_pass(
        self,
    ):
        x = leaf(1, 2)
        with times(10):
            loss = (x * x).sum()
        with times(100):
            in_thread(loss.backward)
        self.assertEqual(x.grad.tolist(), [20, 40])

    def test_hooks_apply_to_what_a_pylayer_saves(self):
        class Square(paddle.autograd.PyLayer):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x, x)
                return x * x

            @staticmethod
            def backward(ctx, grad):
                x, same = ctx.saved_tensor()
                return grad * (x + same)

        def grad():
            x = leaf(1, 2)
            Square.apply(x).sum().backward()
            return x.grad.tolist()

        with times(10):
            self.assertEqual(grad(), [20, 40])
            self.assertEqual(in_thread(grad), [2, 4])

    def test_a_pylayer_may_save_again_inside_hooks(self):
        class Doubled(paddle.autograd.PyLayer):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                with paddle.enable_grad(), times(10):
                    ctx.save_for_backward(x)
                return x * 2

            @staticmethod
            def backward(ctx, grad):
                return grad * ctx.saved_tensor()[0]

        x = leaf(1)
        Doubled.apply(x).sum().backward()
        self.assertEqual(x.grad.tolist(), [10])

    def test_the_innermost_hooks_apply(self):
        with times(10):
            with times(100):
                self.assertEqual(grad_of_square(leaf(1)), [200])
            self.assertEqual(grad_of_square(leaf(1)), [20])
        self.assertEqual(grad_of_square(leaf(1)), [2])

    def test_hooks_entered_without_gradients_do_not_apply(self):
        with paddle.no_grad(), times(10), paddle.enable_grad():
            self.assertEqual(grad_of_square(leaf(1)), [2])
            with times(100):
                self.assertEqual(grad_of_square(leaf(1)), [200])
            self.assertEqual(grad_of_square(leaf(1)), [2])

    def test_hooks_left_on_another_thread_are_refused(self):
        hooks = times(10)
        with hooks:
            with self.assertRaisesRegex(RuntimeError, "has not entered it"):
                in_thread(hooks.__exit__, None, None, None)
            self.assertEqual(grad_of_square(leaf(1)), [20])

    def test_an_error_of_a_hook_leaves_gradients_enabled(self):
        with saved_tensors_hooks(fail, lambda x: x):
            self.assertRaises(OSError, lambda: leaf(1) * leaf(2))
            self.assertTrue(paddle.is_grad_enabled())
        with saved_tensors_hooks(lambda x: x, fail):
            loss = leaf(1) * leaf(2)
        self.assertRaises(OSError, loss.backward)
        self.assertTrue(paddle.is_grad_enabled())

    def test_an_error_of_a_hook_keeps_the_gradient_mode_of_a_pylayer(self):
        modes = []

        class Twice(paddle.autograd.PyLayer):
            @staticmethod
            def forward(ctx, x):
                with (
                    paddle.enable_grad(),
                    saved_tensors_hooks(fail, lambda x: x),
                    paddle.no_grad(),
                ):
                    self.assertRaises(OSError, ctx.save_for_backward, x)
                    modes.append(paddle.is_grad_enabled())
                return x * 2

            @staticmethod
            def backward(ctx, grad):
                return grad * 2

        Twice.apply(leaf(1)).sum().backward()
        self.assertEqual(modes, [False])
        self.assertTrue(paddle.is_grad_enabled())

    def test_recomputation_on_several_threads_gives_the_gradients(self):
        def run():
            for _ in range(20):
                x = leaf(1, 2, 3)
                y = recompute(lambda x: x * x * x, x, use_reentrant=False)
                y.sum().backward()
                self.assertEqual(x.grad.tolist(), [3, 12, 27])

        in_threads(run, run, run)

    def test_nested_recomputation_gives_the_gradients(self):
        def inner(x):
            return x * x

        def outer(x):
            return recompute(inner, x * 1, use_reentrant=False) * x

        x = leaf(1, 2)
        recompute(outer, x, use_reentrant=False).sum().backward()
        self.assertEqual(x.grad.tolist(), [3, 12])


class TestOtherThreads(HooksTestCase):
    """A thread without hooks, while another thread has hooks."""

    def setUp(self):
        super().setUp()
        hooks = times(10)
        hooks.__enter__()
        self.addCleanup(hooks.__exit__, None, None, None)

    def test_a_dropped_graph_is_freed(self):
        class Hook:
            def __call__(self, grad):
                pass

        def build():
            hook = Hook()
            y = leaf(1) * 2
            y.register_hook(hook)
            # Its backward pass needs its output.
            y.exp()
            return weakref.ref(hook)

        gone = in_thread(build)
        gc.collect()
        self.assertIsNone(gone())

    def test_a_saved_tensor_that_was_modified_in_place_is_an_error(self):
        def run():
            x = leaf(1) * 1
            loss = (x * x).sum()
            x.add_(paddle.ones([1]))
            try:
                loss.backward()
            finally:
                self.assertTrue(paddle.is_grad_enabled())

        with self.assertRaises(Exception) as caught:
            in_thread(run)
        cause = caught.exception.__cause__ or caught.exception
        self.assertIn("modified in place", str(cause))

    def test_reentrant_recomputation_gives_the_gradients(self):
        def run():
            x = leaf(2)
            recompute(lambda y: y * 3, x * 1).sum().backward()
            return x.grad.tolist()

        self.assertEqual(in_thread(run), [3])

    def test_a_pylayer_gets_what_it_saved(self):
        saved = leaf(1), None, "text"

        class Doubled(paddle.autograd.PyLayer):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(*saved)
                return x * 2

            @staticmethod
            def backward(ctx, grad):
                got = ctx.saved_tensor()
                self.assertEqual(len(got), len(saved))
                for value, expected in zip(got, saved):
                    self.assertIs(value, expected)
                self.assertIs(ctx.container, got)
                ctx.container = None
                self.assertIsNone(ctx.saved_tensor())
                return grad * 2

        def run():
            x = leaf(1)
            Doubled.apply(x).sum().backward()
            return x.grad.tolist()

        self.assertEqual(in_thread(run), [2])

    @unittest.skipUnless(hasattr(os, "fork"), "processes are not forked here")
    def test_a_child_that_it_forks_has_no_hooks(self):
        def check():
            self.assertEqual(grad_of_square(leaf(1)), [2])
            with times(100):
                self.assertEqual(grad_of_square(leaf(1)), [200])
            self.assertEqual(grad_of_square(leaf(1)), [2])

        in_thread(in_fork, check)

    @unittest.skipUnless(hasattr(os, "fork"), "processes are not forked here")
    def test_a_child_of_the_thread_with_hooks_keeps_them(self):
        in_fork(lambda: self.assertEqual(grad_of_square(leaf(1)), [20]))


class TestExit(HooksTestCase):
    def test_a_program_ends_after_a_thread_ran_beside_hooks(self):
        run_forked_script(
            self,
            "from test_saved_tensors_hooks_threads import *\n"
            "paddle.set_device('cpu')\n"
            "with times(10):\n"
            "    in_thread(grad_of_square, leaf(1))\n",
        )


if __name__ == "__main__":
    unittest.main()
