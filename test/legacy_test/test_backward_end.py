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
"""Functions that run at the end of a backward pass, and hook errors."""

from __future__ import annotations

import _thread
import unittest

from concurrent_base import in_thread

import paddle
from paddle import nn
from paddle.autograd import PyLayer
from paddle.base.dygraph import backward_end
from paddle.base.dygraph.backward_end import at_end_of_backward


class NestedBackward(PyLayer):
    """Runs a nested backward pass, as recomputation does."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        inner = paddle.ones([1])
        inner.stop_gradient = False
        (inner * 3).backward()
        return gradient * 2


def fail() -> None:
    raise KeyError("of a hook")


def interrupt() -> None:
    raise KeyboardInterrupt


class TestBackwardEnd(unittest.TestCase):
    def setUp(self):
        self.layer = nn.Linear(2, 2)
        self.calls = []

    def loss(self) -> paddle.Tensor:
        return self.layer(paddle.ones([1, 2])).sum()

    def call_at_end(self, name="end") -> None:
        at_end_of_backward(
            lambda succeeded: self.calls.append((name, succeeded))
        )

    def test_a_function_runs_once_after_all_hooks(self):
        self.layer.bias._register_backward_hook(self.call_at_end)
        for parameter in self.layer.parameters():
            parameter._register_backward_hook(lambda: self.calls.append("hook"))
        self.loss().backward()
        self.assertEqual(self.calls, ["hook", "hook", ("end", True)])
        self.calls.clear()
        paddle.ones([1]).backward()
        self.assertEqual(self.calls, [])

    def test_a_function_also_runs_after_autograd_backward(self):
        self.layer.bias._register_backward_hook(self.call_at_end)
        paddle.autograd.backward([self.loss()])
        self.assertEqual(self.calls, [("end", True)])

    def test_the_end_of_a_nested_backward_pass_is_ignored(self):
        self.layer.bias._register_backward_hook(self.call_at_end)
        hidden = self.layer(NestedBackward.apply(self.new_input()))
        outputs = NestedBackward.apply(hidden)
        self.layer.weight._register_backward_hook(
            lambda: self.calls.append("weight")
        )
        outputs.sum().backward()
        self.assertEqual(self.calls, ["weight", ("end", True)])

    def new_input(self) -> paddle.Tensor:
        x = paddle.ones([1, 2])
        x.stop_gradient = False
        return x

    def test_backward_on_another_thread_does_not_run_a_function(self):
        self.call_at_end()
        in_thread(lambda: paddle.ones([1]).backward())
        self.assertEqual(self.calls, [])
        paddle.ones([1]).backward()
        self.assertEqual(self.calls, [("end", True)])

    def test_a_hook_error_is_raised_unchanged(self):
        self.layer.weight._register_backward_hook(fail)
        with self.assertRaisesRegex(KeyError, "of a hook"):
            self.loss().backward()

    def add_hooks(self, *hooks) -> None:
        """Adds hooks that run in this order."""
        for hook in hooks:
            self.layer.weight._register_backward_hook(hook)

    def add_call(self) -> None:
        try:
            self.calls.append("later")
        except Exception:
            self.calls = ["an error was pending"]

    def test_later_hooks_run_normally_after_a_hook_error(self):
        self.add_hooks(fail, self.add_call)
        with self.assertRaisesRegex(KeyError, "of a hook"):
            self.loss().backward()
        self.assertEqual(self.calls, ["later"])

    def test_the_first_hook_error_is_raised(self):
        self.add_hooks(fail, lambda: self.calls[0])
        with self.assertRaisesRegex(KeyError, "of a hook"):
            self.loss().backward()

    def test_an_interrupt_of_a_later_hook_is_raised(self):
        self.add_hooks(fail, interrupt, fail)
        with self.assertRaises(KeyboardInterrupt):
            self.loss().backward()

    def test_an_interrupt_on_entry_to_a_hook_is_raised(self):
        # A C function, after which the engine calls the next Python code.
        backward_end._register(self.layer.weight, _thread.interrupt_main)
        self.add_hooks(self.add_call, lambda: self.calls.append("last"))
        with self.assertRaises(KeyboardInterrupt):
            self.loss().backward()
        self.assertNotIn("later", self.calls)

    def test_a_hook_may_handle_the_error_of_a_nested_backward_pass(self):
        inner = nn.Linear(1, 1)
        inner.weight._register_backward_hook(fail)

        def handle_error() -> None:
            with self.assertRaises(KeyError):
                inner(paddle.ones([1, 1])).backward()
            self.calls.append("handled")

        self.add_hooks(handle_error)
        self.loss().backward()
        self.assertEqual(self.calls, ["handled"])

    def error_of_hook(self, hook) -> BaseException:
        self.layer.weight._register_backward_hook(hook)
        with self.assertRaises(KeyError) as caught:
            self.loss().backward()
        return caught.exception

    def test_a_hook_error_keeps_its_cause(self):
        def fail_with_cause() -> None:
            raise KeyError from ValueError("the cause")

        self.assertEqual(
            repr(self.error_of_hook(fail_with_cause).__cause__),
            "ValueError('the cause')",
        )

    def test_a_hook_error_keeps_its_context(self):
        def fail_with_context() -> None:
            try:
                raise ValueError("the context")
            finally:
                fail()

        error = self.error_of_hook(fail_with_context)
        self.assertEqual(repr(error.__context__), "ValueError('the context')")
        self.assertFalse(error.__suppress_context__)

    def test_a_function_is_notified_of_a_failed_pass(self):
        self.layer.bias._register_backward_hook(self.call_at_end)
        self.layer.weight._register_backward_hook(fail)
        with self.assertRaises(KeyError):
            self.loss().backward()
        self.assertEqual(self.calls, [("end", False)])

    def test_a_function_error_is_raised_after_all_functions(self):
        at_end_of_backward(lambda _: fail())
        self.call_at_end("second")
        with self.assertRaisesRegex(KeyError, "of a hook"):
            self.loss().backward()
        self.assertEqual(self.calls, [("second", True)])

    def test_function_errors_are_dropped_after_a_failed_pass(self):
        def fail_at_end(succeeded: bool) -> None:
            self.calls.append(succeeded)
            raise ValueError

        at_end_of_backward(fail_at_end)
        self.layer.weight._register_backward_hook(fail)
        with self.assertRaisesRegex(KeyError, "of a hook"):
            self.loss().backward()
        self.assertEqual(self.calls, [False])

    def test_an_interrupt_of_a_function_is_raised_after_an_error(self):
        at_end_of_backward(lambda _: fail())
        at_end_of_backward(lambda _: interrupt())
        self.call_at_end("third")
        with self.assertRaises(KeyboardInterrupt):
            self.loss().backward()
        self.assertEqual(self.calls, [("third", True)])

    def test_an_interrupt_of_a_function_is_raised_after_a_failed_pass(self):
        at_end_of_backward(lambda _: interrupt())
        self.layer.weight._register_backward_hook(fail)
        with self.assertRaises(KeyboardInterrupt):
            self.loss().backward()


if __name__ == "__main__":
    unittest.main()
