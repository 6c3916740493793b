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

import itertools
import multiprocessing
import os
import sys
import threading
import unittest
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import paddle
from paddle.base import process_tree
from paddle.base.shared_storage import native

WAIT_S = 100
VARIABLE = "PADDLE_TREE_OF_TEST"


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

    def test_a_flag_that_would_overwrite_the_old_memory_is_refused(self):
        tensor = paddle.ones([6])
        paddle.set_flags({"FLAGS_alloc_fill_value": 0})
        self.addCleanup(paddle.set_flags, {"FLAGS_alloc_fill_value": -1})
        with self.assertRaisesRegex(RuntimeError, "FLAGS_alloc_fill_value=0"):
            native.move(tensor, False)
        self.assertFalse(native.is_shared(tensor))

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
        self._tree = None
        self._random = itertools.count(1)

    def random_bits(self):
        return next(self._random)

    def join(self, tree):
        self._tree = self._tree or tree
        return self._tree

    def leave(self):
        self._calls.send("leave")

    def leave_cuda(self):
        self._calls.send("leave_cuda")


def join_interrupted_at_line(number, binding):
    """
    Joins, and joins again when the given line runs, as a signal handler may.
    Returns the results of both calls; the second is None after the last line.
    """
    lines, result = itertools.count(), None

    def trace(frame, event, argument):
        nonlocal result
        if event == "line" and next(lines) == number:
            sys.settrace(None)
            result = process_tree.join(binding, VARIABLE)
        return trace

    sys.settrace(trace)
    try:
        return process_tree.join(binding, VARIABLE), result
    finally:
        sys.settrace(None)


def join_interrupted_at_each_line(calls):
    for number in itertools.count():
        os.environ.pop(VARIABLE, None)
        binding = RecordedBinding(calls)
        outer, inner = join_interrupted_at_line(number, binding)
        if inner is None:
            calls.send("the last line")
            return
        calls.send((outer, inner, os.environ[VARIABLE]))


def end_after_threads(calls):
    process_tree.join(RecordedBinding(calls), VARIABLE)
    main_ended, executor = threading.Event(), ThreadPoolExecutor(1)
    # Python ends the executor's thread only when it joins all threads.
    executor.submit(main_ended.wait, WAIT_S)

    def end() -> None:
        main_ended.wait(WAIT_S)
        calls.send("a thread ends")

    threading.Thread(target=end).start()
    threading.Timer(0.5, main_ended.set).start()


class TestProcessTree(unittest.TestCase):
    def sent_by_child(self, method, target):
        context = multiprocessing.get_context(method)
        calls, theirs = context.Pipe(duplex=False)
        child = context.Process(target=target, args=[theirs])
        child.start()
        self.addCleanup(child.kill)
        theirs.close()
        sent = []
        with self.assertRaises(EOFError):
            while calls.poll(WAIT_S):
                sent.append(calls.recv())
        child.join(WAIT_S)
        self.assertEqual(child.exitcode, 0)
        return sent

    def test_children_leave_gpu_memory_when_their_threads_have_ended(self):
        for method in multiprocessing.get_all_start_methods():
            with self.subTest(method=method):
                *before, last = self.sent_by_child(method, end_after_threads)
                self.assertEqual(last, "leave_cuda")
                self.assertCountEqual(before, ["leave", "a thread ends"])

    def test_a_signal_handler_that_joins_during_join_gets_the_same_tree(self):
        sent = self.sent_by_child("spawn", join_interrupted_at_each_line)
        trees = sent[: sent.index("the last line")]
        self.assertEqual(
            [len(set(results)) for results in trees], [1] * len(trees)
        )

    def test_a_process_leaves_once_if_a_signal_handler_joined_during_join(self):
        sent = self.sent_by_child("spawn", join_interrupted_at_each_line)
        joins = sent.index("the last line") + 1
        for call in ("leave", "leave_cuda"):
            self.assertEqual(sent.count(call), joins)


if __name__ == "__main__":
    unittest.main()
