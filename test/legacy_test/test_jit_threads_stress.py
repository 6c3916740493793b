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
"""Eight threads that concurrently load, call, differentiate and save."""

from __future__ import annotations

import os
import random
import unittest

from concurrent_base import switch_threads_often
from jit_threads_base import (
    JitTestCase,
    Scaled,
    runs_of_parts,
    together,
    wrong_answers,
    wrong_gradients,
)
from thread_device_base import StreamTestCase, on_every_device_list

import paddle
from paddle.device import Stream, stream_guard

SEED = int(os.environ.get("JIT_THREADS_SEED", random.randrange(2**32)))
ROUNDS = int(os.environ.get("JIT_THREADS_ROUNDS", 12))
THREADS = 8


class TestStress(JitTestCase):
    def setUp(self):
        super().setUp()
        self.compile_small_parts()
        print(f"JIT_THREADS_SEED={SEED}")
        self.path = self.save()
        self.evaluated = paddle.jit.load(self.path)
        self.trained = paddle.jit.load(self.path)
        self.trained.train()
        self.static = paddle.jit.to_static(Scaled(), full_graph=True)
        self.in_parts = paddle.jit.to_static(Scaled(), full_graph=False)

    def steps(self, thread: int, chooser: random.Random):
        """Returns the steps of a thread: functions of a seed, which return the
        number of wrong results."""
        calls = chooser.randrange(1, 20)
        common = [
            lambda seed: wrong_answers(self.evaluated, seed, calls),
            lambda seed: wrong_answers(self.static, seed, 2),
            lambda seed: wrong_answers(self.in_parts, seed, 2),
            lambda seed: wrong_gradients(self.trained, seed, calls),
            lambda seed: wrong_gradients(self.static, seed, 2),
        ]
        rare = [
            lambda seed: wrong_answers(paddle.jit.load(self.path), seed, 2),
            lambda seed: self.save(3, f"other{thread}") == "",
        ]
        return common if chooser.random() < 0.9 else rare

    def test_all_results_and_gradients_are_correct(self):
        def run_random_steps(thread):
            chooser = random.Random(SEED + thread)
            return sum(
                chooser.choice(self.steps(thread, chooser))(
                    chooser.randrange(2**31)
                )
                for _ in range(ROUNDS)
            )

        with runs_of_parts() as runs:
            self.assertEqual(together(THREADS, run_random_steps), [0] * THREADS)
        self.assertTrue(runs)


@on_every_device_list
class TestStreams(StreamTestCase):
    def test_program_runs_concurrently_on_several_streams(self):
        switch_threads_often(self)
        print(f"JIT_THREADS_SEED={SEED}")
        program = paddle.jit.to_static(Scaled(), full_graph=True)

        def wrong_answers_on_streams(thread):
            chooser = random.Random(SEED + thread)
            streams = [Stream(), Stream()]
            wrong = 0
            for _ in range(3 * ROUNDS):
                with stream_guard(chooser.choice(streams)):
                    wrong += wrong_answers(program, chooser.randrange(2**31), 1)
            return wrong

        self.assertEqual(together(4, wrong_answers_on_streams), [0] * 4)


if __name__ == "__main__":
    unittest.main()
