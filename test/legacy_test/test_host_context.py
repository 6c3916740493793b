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

import threading
import unittest

import numpy as np
from concurrent_base import WAIT_S, in_thread

import paddle
from paddle.base import core
from paddle.base.shared_storage import native
from paddle.base.threads.host_context import host_context, on_process_host
from paddle.distributed.fleet.utils import recompute


def seeded(seed):
    generator = core.Generator()
    generator.manual_seed(seed)
    return generator


def draw(count=4):
    return paddle.rand([count]).tolist()


def is_shared():
    return native.is_shared(paddle.zeros([2]))


class HostTestCase(unittest.TestCase):
    def setUp(self):
        self.addCleanup(paddle.set_device, paddle.get_device())
        paddle.set_device("cpu")


class TestRandomNumbers(HostTestCase):
    def test_operators_draw_from_the_generator_that_is_given(self):
        expected = {
            "rand": lambda: paddle.rand([3]),
            "randperm": lambda: paddle.randperm(9),
            "normal": lambda: paddle.normal(shape=[3]),
            "dropout": lambda: paddle.nn.functional.dropout(paddle.ones([9])),
            "parameter": lambda: paddle.nn.Linear(3, 3).weight,
        }
        for name, operator in expected.items():
            with self.subTest(name), host_context(generator=seeded(5)):
                first = operator().numpy()
            with self.subTest(name), host_context(generator=seeded(5)):
                np.testing.assert_array_equal(operator().numpy(), first)
                self.assertTrue((operator().numpy() != first).any())

    def test_the_sequence_of_the_process_is_not_affected(self):
        paddle.seed(3)
        expected = draw(8)
        paddle.seed(3)
        before = draw()
        with host_context(generator=seeded(5)):
            draw()
        self.assertEqual(before + draw(), expected)

    def test_a_sequence_continues_when_its_generator_is_used_again(self):
        with host_context(generator=seeded(5)):
            expected = draw(8)
        generator = seeded(5)
        with host_context(generator=generator):
            first = draw()
        with host_context(generator=generator):
            self.assertEqual(first + draw(), expected)

    def test_a_seed_that_is_set_inside_seeds_the_given_generator(self):
        paddle.seed(3)
        expected = draw(8)
        paddle.seed(3)
        before = draw()
        with host_context(generator=seeded(5)):
            first = draw()
            paddle.seed(5)
            self.assertEqual(draw(), first)
        self.assertEqual(before + draw(), expected)

    def test_state_functions_use_the_given_generator(self):
        functions = {
            "paddle": (paddle.get_rng_state, paddle.set_rng_state),
            "device": (
                paddle.device.get_rng_state,
                paddle.device.set_rng_state,
            ),
            "cuda": (
                paddle.device.cuda.get_rng_state,
                paddle.device.cuda.set_rng_state,
            ),
            # In Paddle 3.3.0, its setter takes no device.
            "incubate": (
                paddle.incubate.framework.get_rng_state,
                lambda state, _: paddle.incubate.framework.set_rng_state(state),
            ),
        }
        with host_context(generator=seeded(5)):
            for name, (get_state, set_state) in functions.items():
                state = get_state("cpu")
                first = draw()
                set_state(state, "cpu")
                self.assertEqual(draw(), first, name)
            for seed in (paddle.seed, paddle.device.manual_seed):
                seed(8)
                first = draw()
                seed(8)
                self.assertEqual(draw(), first)
            self.assertEqual(paddle.random.initial_seed(), 8)
            seed = paddle.compat.seed()
            self.assertEqual(paddle.random.initial_seed(), seed)
        self.assertNotEqual(paddle.random.initial_seed(), seed)

    def test_recompute_draws_the_same_numbers(self):
        x = paddle.ones([100])
        x.stop_gradient = False
        with host_context(generator=seeded(5)):
            y = recompute(paddle.nn.functional.dropout, x)
            y.sum().backward()
        np.testing.assert_array_equal(y.numpy() != 0, x.grad.numpy() != 0)

    def test_the_generator_stays_as_long_as_it_is_used(self):
        with host_context(generator=seeded(5)):
            first = draw()
            filler = [seeded(n) for n in range(100)]
            self.assertNotEqual(draw(), first)
            del filler


class TestMemory(HostTestCase):
    def test_operators_use_the_given_allocator(self):
        x = paddle.ones([2, 2])
        operators = {
            "zeros": lambda: paddle.zeros([3]),
            "empty": lambda: paddle.empty([3]),
            "to_tensor": lambda: paddle.to_tensor(np.ones(3)),
            "stack": lambda: paddle.stack([x, x]),
            "matmul": lambda: x @ x,
            "cast": lambda: x.astype("int64"),
            "rand": lambda: paddle.rand([3]),
        }
        for name, operator in operators.items():
            self.assertFalse(native.is_shared(operator()), name)
            with host_context(allocator=native.allocator()):
                self.assertTrue(native.is_shared(operator()), name)
        self.assertFalse(is_shared())

    def test_gradients_are_allocated_there_too(self):
        weight = paddle.nn.Linear(3, 3).weight
        with host_context(allocator=native.allocator()):
            (weight * 2).sum().backward()
        self.assertTrue(native.is_shared(weight.grad))

    def test_memory_allocated_inside_is_freed_outside(self):
        used = native.stats()["used"]
        with host_context(allocator=native.allocator()):
            x = paddle.ones([1000])
        self.assertGreaterEqual(native.stats()["used"], used + 4000)
        del x
        self.assertEqual(native.stats()["used"], used)

    def test_lack_of_memory_is_an_error(self):
        self.addCleanup(native.set_limit, native.stats()["limit"])
        native.collect(None)
        native.set_limit(native.stats()["reserved"] + 2**20)
        with host_context(allocator=native.allocator()):
            with self.assertRaisesRegex(MemoryError, "set_shared_memory_limit"):
                paddle.zeros([2**20])
            self.assertTrue(is_shared())


class TestScope(HostTestCase):
    def test_omitted_arguments_keep_the_outer_setting(self):
        with host_context(generator=seeded(5)):
            expected = draw(8)
        with host_context(generator=seeded(5)):
            first = draw()
            with host_context(allocator=native.allocator()):
                self.assertTrue(is_shared())
                self.assertEqual(first + draw(), expected)
            self.assertFalse(is_shared())

    def test_an_error_leaves_it(self):
        with self.assertRaises(KeyError):
            with host_context(allocator=native.allocator()):
                raise KeyError
        self.assertFalse(is_shared())

    def test_other_threads_are_outside(self):
        with host_context(allocator=native.allocator()):
            self.assertFalse(in_thread(is_shared))
            self.assertTrue(is_shared())

    def test_threads_have_their_own_contexts(self):
        def inside(seed):
            with host_context(generator=seeded(seed)):
                return draw(1000)

        alone = [inside(seed) for seed in range(4)]
        together = [None] * 4
        barrier = threading.Barrier(4, timeout=WAIT_S)

        def run(seed):
            barrier.wait()
            together[seed] = inside(seed)

        threads = [threading.Thread(target=run, args=[n]) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(together, alone)

    def test_leaving_it_on_another_thread_is_an_error_and_changes_nothing(self):
        context = host_context(allocator=native.allocator())

        def leave():
            with self.assertRaisesRegex(RuntimeError, "has not entered it"):
                context.__exit__(None, None, None)

        with host_context(generator=seeded(5)):
            in_thread(context.__enter__)
            leave()
            first = draw()
        with host_context(generator=seeded(5)):
            self.assertEqual(draw(), first)

    def test_leaving_it_on_a_thread_of_the_same_ident_is_an_error(self):
        entered = host_context(allocator=native.allocator())

        def enter():
            entered.__enter__()
            return threading.get_ident()

        def leave(ident):
            if threading.get_ident() != ident:
                return None
            with host_context(allocator=native.allocator()):
                with self.assertRaisesRegex(RuntimeError, "host_context"):
                    entered.__exit__(None, None, None)
                return is_shared()

        # Sooner or later, a new thread gets the ident of an ended thread.
        ident = in_thread(enter)
        answers = (in_thread(lambda: leave(ident)) for _ in range(1000))
        self.assertIs(next(filter(None, answers), None), True)


class Doubled(paddle.nn.Layer):
    def forward(self, x):
        return paddle.nn.functional.dropout(x + x)


class TestPrograms(HostTestCase):
    def test_program_draws_from_the_generator_of_the_process(self):
        def dropped():
            function = paddle.jit.to_static(Doubled(), full_graph=True)
            return function(paddle.ones([100])).tolist()

        paddle.seed(3)
        expected = dropped()
        paddle.seed(3)
        with host_context(generator=seeded(5)):
            self.assertEqual(dropped(), expected)
            first = draw()
        with host_context(generator=seeded(5)):
            self.assertEqual(draw(), first)

    def test_a_program_that_another_one_calls_leaves_it_on_the_process(self):
        inner = on_process_host(is_shared)

        @on_process_host
        def outer():
            return is_shared(), inner(), is_shared()

        with host_context(allocator=native.allocator()):
            self.assertEqual(outer(), (False, False, False))
            self.assertTrue(is_shared())

    def test_a_context_left_inside_a_program_leaves_it_on_the_process(self):
        @on_process_host
        def program():
            with host_context(generator=seeded(5)):
                self.assertTrue(is_shared())
            return is_shared()

        with host_context(allocator=native.allocator()):
            self.assertFalse(program())
            self.assertTrue(is_shared())


if __name__ == "__main__":
    unittest.main()
