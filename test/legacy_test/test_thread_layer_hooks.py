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

import os
import tempfile
import threading
import unittest
from collections import OrderedDict

from concurrent_base import WAIT_S, Worker, in_thread

import paddle


class Fails(paddle.nn.Layer):
    def forward(self, x):
        raise ValueError("from forward")


class TestHooksOfLayers(unittest.TestCase):
    def setUp(self):
        self.layer = paddle.nn.Identity()
        self.x = paddle.ones([1])
        self.called = []

    def hook(self, name):
        return lambda *args: self.called.append((name, len(args)))

    def during_the_first_hook(self, register, change, call, **options):
        """
        Registers a hook, and calls `change` while `call`, on another thread, is
        inside this hook. Returns what `call` returns.
        """
        inside, changed = threading.Event(), threading.Event()

        def first(*args):
            self.called.append(("first", len(args)))
            inside.set()
            if not changed.wait(WAIT_S):
                raise TimeoutError("the hooks have not changed")

        register(first, prepend=True, **options)
        worker = Worker(call)
        self.assertTrue(inside.wait(WAIT_S))
        change()
        changed.set()
        return worker.result()

    def check_add(self, register, call, **options):
        """A hook that is added during a call is called from the next call."""
        register(self.hook("second"), **options)
        self.during_the_first_hook(
            register,
            lambda: register(self.hook("third"), **options),
            call,
            **options,
        )
        self.assertEqual([name for name, _ in self.called], ["first", "second"])
        self.called.clear()
        call()
        self.assertEqual(
            [name for name, _ in self.called], ["first", "second", "third"]
        )

    def check_remove(self, register, number_of_args, call, **options):
        """A hook that is removed during a call is not called any more."""
        second = register(self.hook("second"), with_kwargs=True, **options)
        register(self.hook("third"), with_kwargs=True, **options)
        self.during_the_first_hook(register, second.remove, call, **options)
        self.assertEqual(
            self.called,
            [("first", number_of_args - 1), ("third", number_of_args)],
        )

    def call(self):
        return self.layer(self.x)

    def call_that_fails(self):
        self.layer.__class__ = Fails
        with self.assertRaisesRegex(ValueError, "from forward"):
            self.layer(self.x)

    def test_another_thread_adds_a_pre_hook_during_a_call(self):
        self.check_add(self.layer.register_forward_pre_hook, self.call)

    def test_another_thread_removes_a_pre_hook_during_a_call(self):
        self.check_remove(self.layer.register_forward_pre_hook, 3, self.call)

    def test_another_thread_adds_a_post_hook_during_a_call(self):
        self.check_add(self.layer.register_forward_post_hook, self.call)

    def test_another_thread_removes_a_post_hook_during_a_call(self):
        self.check_remove(self.layer.register_forward_post_hook, 4, self.call)

    def test_another_thread_adds_a_hook_during_a_call_that_fails(self):
        self.check_add(
            self.layer.register_forward_post_hook,
            self.call_that_fails,
            always_call=True,
        )

    def test_another_thread_removes_a_hook_during_a_call_that_fails(self):
        self.check_remove(
            self.layer.register_forward_post_hook,
            4,
            self.call_that_fails,
            always_call=True,
        )

    def test_another_thread_adds_a_hook_while_state_dict_runs(self):
        def register(hook, prepend=False):
            self.layer.register_state_dict_hook(hook)
            if prepend:
                self.layer._state_dict_hooks.move_to_end(
                    next(reversed(self.layer._state_dict_hooks)), last=False
                )

        self.check_add(register, self.layer.state_dict)

    def check_add_while_saving(self, register):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        spec = [paddle.static.InputSpec([1], "float32")]
        self.check_add(
            register,
            lambda: paddle.jit.save(
                paddle.jit.to_static(self.layer, full_graph=True),
                os.path.join(folder.name, "model"),
                input_spec=spec,
            ),
        )

    def test_another_thread_adds_a_pre_hook_while_the_layer_is_saved(self):
        self.check_add_while_saving(self.layer.register_forward_pre_hook)

    def test_another_thread_adds_a_post_hook_while_the_layer_is_saved(self):
        self.check_add_while_saving(self.layer.register_forward_post_hook)

    def call_while_registering(self, hooks):
        """Returns hooks during whose registration another thread calls them."""

        class CallsWhenChanged(OrderedDict):
            def __setitem__(self, key, hook):
                super().__setitem__(key, hook)
                in_thread(call)

        call = self.call
        return CallsWhenChanged(hooks)

    def test_a_pre_hook_gets_keyword_arguments_from_its_first_call_on(self):
        self.layer._forward_pre_hooks = self.call_while_registering({})
        self.layer.register_forward_pre_hook(
            self.hook("hook"), with_kwargs=True
        )
        self.assertEqual(self.called, [("hook", 3)])

    def test_a_post_hook_gets_keyword_arguments_from_its_first_call_on(self):
        self.layer._forward_post_hooks = self.call_while_registering({})
        self.layer.register_forward_post_hook(
            self.hook("hook"), with_kwargs=True
        )
        self.assertEqual(self.called, [("hook", 4)])


if __name__ == "__main__":
    unittest.main()
