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

"""Host contexts in separate and in forked processes."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import unittest
from multiprocessing import get_context

from shared_tensor_base import Peer
from test_host_context import (
    Doubled,
    HostTestCase,
    draw,
    is_shared,
    seeded,
)

import paddle
from paddle import inference
from paddle.base.shared_storage import native
from paddle.base.threads import streams
from paddle.base.threads.host_context import host_context


class Asking:
    """Records where its thread allocates tensors when it is destroyed."""

    def __init__(self, answers):
        self._answers = answers

    def __del__(self):
        self._answers.append(is_shared())


def end_threads_inside(kept):
    contexts, answers = [], []
    mine = threading.local()

    def end_inside():
        contexts.append(host_context(allocator=native.allocator()))
        contexts[-1].__enter__()
        mine.last = Asking(answers)

    for _ in range(20):
        thread = threading.Thread(target=end_inside)
        thread.start()
        thread.join()
    # Destroying them would leave them on this thread, which is an error.
    streams.native.keep_forever(contexts)
    return answers


def predictor_of(layer, x):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "layer")
        paddle.jit.save(layer, path, input_spec=[x])
        config = inference.Config(f"{path}.json", f"{path}.pdiparams")
        config.disable_gpu()
        config.disable_glog_info()
        return inference.create_predictor(config)


def predict(predictor, x):
    name = predictor.get_input_names()[0]
    predictor.get_input_handle(name).copy_from_cpu(x.numpy())
    predictor.run()
    name = predictor.get_output_names()[0]
    return paddle.to_tensor(predictor.get_output_handle(name).copy_to_cpu())


def static_program():
    """Returns a function that runs a program of a static Executor."""
    paddle.enable_static()
    program = paddle.static.Program()
    with paddle.static.program_guard(program):
        x = paddle.static.data("x", [8])
        y = Doubled()(x)
    executor = paddle.static.Executor(paddle.CPUPlace())
    paddle.disable_static()

    def run(x):
        feed = {"x": x.numpy()}
        paddle.enable_static()
        (fetched,) = executor.run(program, feed=feed, fetch_list=[y])
        paddle.disable_static()
        return paddle.to_tensor(fetched)

    return run


def loaded(net, x):
    with tempfile.TemporaryDirectory() as folder:
        paddle.jit.save(net, f"{folder}/net", input_spec=[x])
        return paddle.jit.load(f"{folder}/net")


def run_programs_inside_and_outside(kept):
    paddle.set_device("cpu")
    x = paddle.ones([8])
    predictor = predictor_of(Doubled(), x)
    compiled = {
        "to_static": paddle.jit.to_static(Doubled(), full_graph=True),
        "loaded": loaded(Doubled(), x),
        "executor": static_program(),
        "predictor": lambda x: predict(predictor, x),
    }
    values = {}
    for name, function in compiled.items():
        with host_context(allocator=native.allocator()):
            function(x)
        # Reuse the memory that the context had.
        paddle.to_tensor([[0.0] * 8] * 100)
        values[name] = set(function(x).tolist())
    return values


def draw_in_shared_memory(kept):
    return draw(), is_shared()


class TestThreads(HostTestCase):
    def test_thread_that_ends_inside_leaves_before_its_context_ends(
        self,
    ):
        peer = Peer(get_context("spawn"), "file_system")
        self.addCleanup(peer.close)
        answers = peer.call(end_threads_inside)
        # From Python 3.13 on, the object that asks is destroyed first.
        self.assertEqual(answers, [sys.version_info >= (3, 13)] * 20)


class TestPrograms(HostTestCase):
    def test_program_built_inside_runs_outside(self):
        peer = Peer(get_context("spawn"), "file_system")
        self.addCleanup(peer.close)
        values = peer.call(run_programs_inside_and_outside)
        self.assertLessEqual(values["to_static"], {0.0, 4.0})
        self.assertLessEqual(values["executor"], {0.0, 4.0})
        # A saved program applies no dropout.
        self.assertEqual(values["loaded"], {2.0})
        self.assertEqual(values["predictor"], {2.0})


class TestFork(HostTestCase):
    def test_a_forked_process_stays_inside_the_context(self):
        with host_context(generator=seeded(5)):
            expected = draw()
        with host_context(allocator=native.allocator(), generator=seeded(5)):
            peer = Peer(get_context("fork"), "file_system")
        self.addCleanup(peer.close)
        answer = peer.call(draw_in_shared_memory)
        self.assertEqual(answer, (expected, True))


if __name__ == "__main__":
    unittest.main()
