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
import tempfile
import threading
import unittest
import weakref
from collections import OrderedDict, namedtuple
from unittest import mock

from concurrent_base import WAIT_S, Worker

import paddle
from paddle.framework import io
from paddle.framework.state_copy import copy_state


class TestAsyncSave(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "state")
        self.addCleanup(paddle.set_device, paddle.get_device())
        paddle.set_device("cpu")

    def saved_after(self, state, change):
        """
        Starts to save `state`, calls `change` before the thread that saves it
        reads it, and returns what is in the file.
        """
        may_save = threading.Event()
        save = io.save

        def save_later(*args):
            if not may_save.wait(WAIT_S):
                raise TimeoutError("the state has not been changed")
            save(*args)

        with mock.patch.object(io, "save", save_later):
            paddle.async_save(state, self.path)
            change()
            may_save.set()
            paddle.clear_async_save_task_queue()
        return paddle.load(self.path)

    def test_a_state_is_saved_as_it_was_at_the_call(self):
        layer = paddle.nn.Linear(2, 2)
        optimizer = paddle.optimizer.SGD(0.5, layer.parameters())
        layer(paddle.ones([1, 2])).sum().backward()
        before = layer.weight.numpy()
        saved = self.saved_after(layer.state_dict(), optimizer.step)
        self.assertTrue((layer.weight.numpy() != before).all())
        self.assertEqual(saved["weight"].tolist(), before.tolist())

    def test_values_inside_of_other_values_are_saved_as_they_were(self):
        one = paddle.ones([2])
        state = {"a": {"b": one}, "list": [one, 1], "tuple": (one,)}

        def change():
            one.fill_(2.0)
            state["list"].append(2)
            state["a"]["c"] = 3

        saved = self.saved_after(state, change)
        self.assertEqual(saved["a"].keys(), {"b"})
        self.assertEqual(saved["a"]["b"].tolist(), [1.0, 1.0])
        self.assertEqual(saved["list"][0].tolist(), [1.0, 1.0])
        self.assertEqual(saved["list"][1:], [1])
        self.assertEqual(saved["tuple"][0].tolist(), [1.0, 1.0])

    def test_a_tensor_is_saved_as_it_was(self):
        one = paddle.ones([2])
        saved = self.saved_after(one, lambda: one.fill_(2.0))
        self.assertEqual(saved.tolist(), [1.0, 1.0])

    def test_the_file_is_that_of_save(self):
        layer = paddle.nn.Linear(2, 2)
        optimizer = paddle.optimizer.Adam(parameters=layer.parameters())
        layer(paddle.ones([1, 2])).sum().backward()
        optimizer.step()
        weight = layer.weight
        shared = {"weight": weight}
        for name, state in (
            ("layer", layer.state_dict()),
            ("optimizer", optimizer.state_dict()),
            ("parameter", weight),
            ("empty", {}),
            ("nested", {"model": layer.state_dict(), "epoch": 3}),
            ("shared", OrderedDict(a={"b": weight, "c": [weight, weight]})),
            ("shared dictionary", {"a": shared, "b": [shared, shared]}),
            ("without elements", {"a": paddle.zeros([0, 2])}),
        ):
            with self.subTest(name):
                paddle.save(state, self.path)
                with open(self.path, "rb") as file:
                    expected = file.read()
                paddle.async_save(state, self.path)
                paddle.clear_async_save_task_queue()
                with open(self.path, "rb") as file:
                    self.assertEqual(file.read(), expected)

    def test_two_threads_wait_for_all_tasks(self):
        may_save, begun = threading.Event(), threading.Semaphore(0)
        save = io.save

        def save_later(*args):
            begun.release()
            self.assertTrue(may_save.wait(WAIT_S))
            save(*args)

        def wait_and_load():
            paddle.clear_async_save_task_queue()
            return paddle.load(self.path).tolist()

        with mock.patch.object(io, "save", save_later):
            paddle.async_save(paddle.ones([2]), self.path)
            workers = [Worker(wait_and_load) for _ in range(2)]
            self.assertTrue(begun.acquire(timeout=WAIT_S))
            may_save.set()
            for worker in workers:
                self.assertEqual(worker.result(), [1.0, 1.0])

    def test_another_thread_may_remove_a_task_first(self):
        class Tasks(list):
            def remove(self, task):
                # On another thread, right before this one.
                super().remove(task)
                super().remove(task)

        with mock.patch.object(io, "async_save_queue", Tasks()):
            paddle.async_save(paddle.ones([2]), self.path)
            paddle.clear_async_save_task_queue()
            self.assertEqual(io.async_save_queue, [])

    def test_nothing_keeps_the_state_or_its_copy(self):
        weight = paddle.ones([2])
        state = {"a": {"b": weight}}
        kept = weakref.ref(weight)
        gc.disable()
        self.addCleanup(gc.enable)
        kept_copy = weakref.ref(copy_state(state)["a"]["b"])
        del weight, state
        self.assertIsNone(kept_copy())
        self.assertIsNone(kept())

    def test_a_named_tuple_is_copied(self):
        one = paddle.ones([2])
        Pair = namedtuple("Pair", "first second")
        copied = copy_state({"a": Pair(one, 2)})["a"]
        one.fill_(2.0)
        self.assertEqual(copied.first.tolist(), [1.0, 1.0])
        self.assertEqual(copied.second, 2)

    def test_the_state_of_the_caller_stays_the_same(self):
        weight = paddle.nn.Linear(2, 2).weight
        inner = {"b": weight}
        state = {"a": inner, "c": weight}
        paddle.async_save(state, self.path)
        paddle.clear_async_save_task_queue()
        self.assertIs(state["a"], inner)
        self.assertIs(inner["b"], weight)
        self.assertIs(state["c"], weight)
        self.assertFalse(weight.stop_gradient)


if __name__ == "__main__":
    unittest.main()
