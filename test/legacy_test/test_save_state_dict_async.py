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

import functools
import multiprocessing
import os
import tempfile
import threading
import types
import unittest
from unittest import mock

from concurrent_base import WAIT_S, Worker

import paddle
import paddle.distributed as dist
from paddle.distributed.flex_checkpoint.dcp import save_state_dict as module

KIND = "custom_cpu"
needs_device = unittest.skipIf(
    KIND not in paddle.device.get_all_custom_device_type(),
    f"needs a device of the kind {KIND!r}: the plugin in "
    "test/custom_runtime/host_device, built and named by CUSTOM_DEVICE_ROOT",
)


class LateProcess:
    """Stands for a process that begins when another one waits for its end."""

    exitcode = None

    def __init__(self, target, args, kwargs):
        self.run = functools.partial(target, *args, **kwargs)

    def start(self):
        pass

    def is_alive(self):
        return self.exitcode is None

    def join(self, timeout=None):
        self.run()
        self.exitcode = 0


class TestAsyncSave(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = folder.name
        self.addCleanup(paddle.set_device, paddle.get_device())
        paddle.set_device("cpu")

    def start_late(self, state):
        context = types.SimpleNamespace(Process=LateProcess)
        with mock.patch.object(
            multiprocessing, "get_context", return_value=context
        ):
            dist.save_state_dict(state, self.path, async_save=True)

    def saved_after(self, state, change):
        """
        Starts to save `state`, calls `change` before the process that saves it
        reads it, and returns what is in the file.
        """
        self.start_late(state)
        change()
        return self.saved()

    def saved(self):
        module.clear_async_save_task_queue()
        return paddle.load(os.path.join(self.path, "0_0.distcp"))

    def test_tensors_on_the_cpu_are_saved_as_they_were_at_the_call(self):
        one = paddle.ones([2])
        saved = self.saved_after({"a": one}, lambda: one.fill_(2.0))
        self.assertEqual(one.tolist(), [2.0, 2.0])
        self.assertEqual(saved["a"].tolist(), [1.0, 1.0])

    def check_tensors_on_two_devices(self, current):
        paddle.set_device(KIND)
        one = paddle.ones([2])
        host = paddle.to_tensor([1.0, 1.0], place=paddle.CPUPlace())
        state = {"a": one, "b": host}
        paddle.set_device(current)

        def change():
            for tensor in state.values():
                tensor[:] = paddle.full([2], 2.0)

        saved = self.saved_after(state, change)
        for key, tensor in state.items():
            self.assertEqual(tensor.tolist(), [2.0, 2.0])
            self.assertEqual(saved[key].tolist(), [1.0, 1.0])

    @needs_device
    def test_tensors_on_a_device_and_on_the_cpu_are_saved_as_they_were(self):
        self.check_tensors_on_two_devices(KIND)

    @needs_device
    def test_tensors_on_a_device_are_saved_while_the_cpu_is_current(self):
        self.check_tensors_on_two_devices("cpu")

    def test_another_process_saves_the_state(self):
        layer = paddle.nn.Linear(2, 2)
        optimizer = paddle.optimizer.SGD(0.5, layer.parameters())
        layer(paddle.ones([1, 2])).sum().backward()
        before = layer.weight.tolist()
        dist.save_state_dict(layer.state_dict(), self.path, async_save=True)
        optimizer.step()
        self.assertNotEqual(layer.weight.tolist(), before)
        self.assertEqual(self.saved()["weight"].tolist(), before)

    def test_each_thread_waits_for_the_process_that_another_waits_for(self):
        self.start_late({"a": paddle.ones([2])})
        inside, ended = threading.Event(), threading.Event()
        early = []
        join = LateProcess.join

        def join_late(*args, **kwargs):
            inside.set()
            # Times out unless the second thread does not wait.
            early.append(ended.wait(0.5))
            join(*args, **kwargs)

        def wait_second():
            if not inside.wait(WAIT_S):
                raise TimeoutError("the first thread does not wait")
            module.clear_async_save_task_queue()
            ended.set()

        with mock.patch.object(LateProcess, "join", join_late):
            second = Worker(wait_second)
            first = Worker(self.saved)
            self.assertEqual(first.result()["a"].tolist(), [1.0, 1.0])
            second.result()
        self.assertEqual(early, [False])


if __name__ == "__main__":
    unittest.main()
