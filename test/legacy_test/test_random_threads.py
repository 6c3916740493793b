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
"""Threads that draw random numbers from one generator on the CPU."""

from __future__ import annotations

import os
import sys
import threading
import unittest

import numpy as np
from concurrent_base import WAIT_S, Worker, in_fork, in_thread, in_threads

import paddle

SEED = 2026
COUNT = 200_000
# Long enough for another thread to see a draw.
MANY = 3_000_000


def draw(count=3):
    # 53 bits: a number that occurs twice is no chance.
    return paddle.rand([count], dtype="float64").numpy()


class Repeating:
    """Calls a function again and again on another thread, inside a with."""

    def __init__(self, function):
        self._function = function

    def __enter__(self):
        self._is_over = threading.Event()
        has_called = threading.Event()

        def run():
            while not self._is_over.is_set():
                self._function()
                has_called.set()

        self._worker = Worker(run)
        if not has_called.wait(WAIT_S):
            raise TimeoutError("the thread has not called the function")
        return self

    def __exit__(self, *error):
        self._is_over.set()
        self._worker.result()


class TestRandomThreads(unittest.TestCase):
    def setUp(self):
        self.addCleanup(paddle.set_device, paddle.device.get_device())
        paddle.set_device("cpu")
        state = paddle.get_rng_state("cpu")
        self.addCleanup(paddle.set_rng_state, state, "cpu")
        paddle.seed(SEED)

    def check_distinct(self, draw_some):
        for _ in range(3):
            numbers = np.concatenate(in_threads(draw_some, draw_some))
            self.assertEqual(len(np.unique(numbers)), len(numbers))

    def test_threads_get_different_uniform_numbers(self):
        self.check_distinct(lambda: draw(COUNT))

    def test_threads_get_different_normal_numbers(self):
        self.check_distinct(
            lambda: paddle.randn([COUNT], dtype="float64").numpy()
        )

    def test_an_operator_draws_all_of_its_numbers_alone(self):
        counts = paddle.full([COUNT], 50.0)
        half = paddle.full([COUNT], 0.5)
        operators = {
            "uniform": lambda: paddle.rand([COUNT]),
            "randint": lambda: paddle.randint(2**30, shape=[COUNT]),
            "dropout": lambda: paddle.nn.functional.dropout(half),
            # It gets the engine for each number.
            "binomial": lambda: paddle.binomial(counts, half),
        }
        for name, operator in operators.items():
            with self.subTest(name):
                paddle.seed(SEED)
                expected = [operator().tolist(), operator().tolist()]
                paddle.seed(SEED)
                tensors = in_threads(operator, operator)
                drawn = [tensor.tolist() for tensor in tensors]
                self.assertIn(drawn, (expected, expected[::-1]))

    def test_seed_and_state_are_set_between_draws(self):
        state = paddle.get_rng_state("cpu")
        expected = draw(COUNT)
        later = draw(COUNT)
        for restart in 20 * (
            lambda: paddle.set_rng_state(state, "cpu"),
            lambda: paddle.seed(SEED),
        ):
            restart()
            worker = Worker(draw, COUNT)
            # Before the draw or after it, but not during it.
            restart()
            numbers = worker.result()
            self.assertTrue(np.array_equal(numbers, expected))
            rest = draw(COUNT)
            self.assertTrue(
                np.array_equal(rest, expected) or np.array_equal(rest, later)
            )

    def test_a_state_is_that_before_or_after_a_draw(self):
        before = paddle.get_rng_state("cpu")
        first = draw()
        paddle.set_rng_state(before, "cpu")
        draw(MANY)
        after = draw()
        paddle.set_rng_state(before, "cpu")
        is_over = threading.Event()

        def draw_many():
            draw(MANY)
            is_over.set()

        worker = Worker(draw_many)
        states = []
        while not is_over.is_set() and len(states) < 50:
            states.append(paddle.get_rng_state("cpu"))
        worker.result()
        states.append(paddle.get_rng_state("cpu"))
        for state in states:
            paddle.set_rng_state(state, "cpu")
            numbers = draw()
            self.assertIn(numbers.tolist(), (first.tolist(), after.tolist()))

    @unittest.skipUnless(
        sys.platform == "linux", "the numbers are those of libstdc++"
    )
    def test_one_thread_gets_the_numbers_of_its_seed(self):
        def numbers():
            paddle.seed(SEED)
            return [
                draw(2).tolist(),
                paddle.randperm(9).tolist(),
                paddle.randint(100, shape=[5]).tolist(),
                paddle.binomial(
                    paddle.full([5], 50.0), paddle.full([5], 0.5)
                ).tolist(),
                paddle.framework.core.default_cpu_generator().random(),
            ]

        expected = [
            [0.0812457001011189, 0.3077936083913936],
            [1, 7, 6, 4, 5, 3, 0, 2, 8],
            [67, 35, 82, 55, 61],
            [20, 24, 27, 30, 26],
            8175015378246045328,
        ]
        self.assertEqual(numbers(), expected)
        self.assertEqual(in_thread(numbers), expected)

    def test_other_threads_draw_after_each_operator(self):
        image = paddle.rand([1, 1, 8, 8])
        half = paddle.full([64], 0.5)
        operators = {
            "uniform_": lambda: half.clone().uniform_(),
            "exponential_": lambda: half.clone().exponential_(),
            "bernoulli": lambda: paddle.bernoulli(half),
            "poisson": lambda: paddle.poisson(half),
            "binomial": lambda: paddle.binomial(paddle.full([64], 50.0), half),
            "multinomial": lambda: paddle.multinomial(half, 3),
            "standard_gamma": lambda: paddle.standard_gamma(half),
            "randint": lambda: paddle.randint(9, shape=[9]),
            "randperm": lambda: paddle.randperm(9),
            "dropout": lambda: paddle.nn.functional.dropout(half),
            "dropout of an axis": lambda: paddle.nn.functional.dropout(
                image, axis=2
            ),
            "rrelu": lambda: paddle.nn.functional.rrelu(-half),
            "gumbel_softmax": lambda: paddle.nn.functional.gumbel_softmax(half),
            "fractional_max_pool2d": lambda: (
                paddle.nn.functional.fractional_max_pool2d(image, 3)
            ),
            "LSTM with dropout": lambda: paddle.nn.LSTM(
                8, 8, num_layers=2, dropout=0.5
            )(image[0]),
            "Dirichlet": lambda: paddle.distribution.Dirichlet(half).sample(),
        }
        for name, operator in operators.items():
            with self.subTest(name):
                operator()
                in_thread(draw)

    def test_other_threads_draw_after_an_error(self):
        with self.assertRaises(IndexError):
            paddle.bernoulli(paddle.full([64], 2.0))
        in_thread(draw)

    @unittest.skipUnless(hasattr(os, "fork"), "needs fork")
    def test_a_child_forked_during_a_draw_or_a_seed_draws(self):
        def use():
            draw()
            paddle.set_rng_state(paddle.get_rng_state("cpu"), "cpu")
            paddle.seed(SEED)
            in_thread(draw)

        for function in (lambda: draw(COUNT), lambda: paddle.seed(SEED)):
            with Repeating(function):
                for _ in range(20):
                    in_fork(use)


if __name__ == "__main__":
    unittest.main()
