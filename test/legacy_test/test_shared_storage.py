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
"""Tensor storages in shared memory, tested through the binding alone."""

from __future__ import annotations

import multiprocessing
import sys
import threading
import unittest
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import paddle
from paddle.base import process_tree
from paddle.base.shared_storage import native

WAIT_S = 100


def no_stream(device):
    return None


def handle_of(tensor):
    return native.share_tensor(tensor, no_stream)


def double(handle):
    native.rebuild_tensor(handle, no_stream).scale_(2.0)


@unittest.skipUnless(sys.platform == "linux", "shared memory needs Linux")
class TestSharedStorage(unittest.TestCase):
    def setUp(self):
        paddle.set_device("cpu")

    def test_a_storage_moves_with_its_values(self):
        tensor = paddle.arange(6, dtype="float32")
        self.assertFalse(native.is_shared(tensor))
        native.move(tensor, False)
        self.assertTrue(native.is_shared(tensor))
        np.testing.assert_array_equal(tensor, np.arange(6, dtype="float32"))

    def test_a_tensor_over_the_same_storage_follows(self):
        tensor = paddle.zeros([6])
        other = tensor.detach()
        native.move(tensor, False)
        self.assertTrue(native.is_shared(other))
        other.fill_(3.0)
        np.testing.assert_array_equal(tensor, np.full(6, 3.0))

    def test_another_process_writes_into_the_memory_of_a_handle(self):
        tensor = paddle.ones([1000])
        child = multiprocessing.get_context("fork").Process(
            target=double, args=[handle_of(tensor)]
        )
        child.start()
        child.join(WAIT_S)
        self.assertEqual(child.exitcode, 0)
        np.testing.assert_array_equal(tensor, np.full(1000, 2.0))

    def test_a_block_is_used_again_once_its_tensors_are_gone(self):
        before = native.stats()["used"]
        tensor = paddle.ones([1000])
        native.move(tensor, False)
        self.assertGreater(native.stats()["used"], before)
        del tensor
        self.assertEqual(native.stats()["used"], before)


class RecordedBinding:
    """Stands in for the binding, and sends the names of calls."""

    def __init__(self, calls):
        self._calls = calls

    def random_bits(self):
        return 1

    def join(self, tree_id):
        pass

    def leave(self):
        self._calls.send("leave")

    def leave_cuda(self):
        self._calls.send("leave_cuda")


def end_after_threads(calls):
    process_tree.join(RecordedBinding(calls), "PADDLE_TREE_OF_TEST")
    main_ended, executor = threading.Event(), ThreadPoolExecutor(1)
    # Python ends the executor's thread only when it joins all threads.
    executor.submit(main_ended.wait, WAIT_S)

    def end() -> None:
        main_ended.wait(WAIT_S)
        calls.send("a thread ends")

    threading.Thread(target=end).start()
    threading.Timer(0.5, main_ended.set).start()


class TestProcessTree(unittest.TestCase):
    def test_children_leave_gpu_memory_when_their_threads_have_ended(self):
        for method in multiprocessing.get_all_start_methods():
            with self.subTest(method=method):
                context = multiprocessing.get_context(method)
                calls, theirs = context.Pipe(duplex=False)
                child = context.Process(target=end_after_threads, args=[theirs])
                child.start()
                self.addCleanup(child.kill)
                theirs.close()
                seen = []
                with self.assertRaises(EOFError):
                    while calls.poll(WAIT_S):
                        seen.append(calls.recv())
                self.assertEqual(seen, ["leave", "a thread ends", "leave_cuda"])
                child.join(WAIT_S)
                self.assertEqual(child.exitcode, 0)


if __name__ == "__main__":
    unittest.main()
