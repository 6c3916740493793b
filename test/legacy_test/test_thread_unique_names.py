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
"""Unique names of threads: each thread's guard, and one numbering for all."""

from __future__ import annotations

import copy
import pickle
import threading
import unittest

from concurrent_base import WAIT_S, Worker, in_thread

import paddle
from paddle import nn
from paddle.base import unique_name as base_names
from paddle.utils import unique_name


class TestNames(unittest.TestCase):
    def test_a_guard_affects_only_its_own_thread(self):
        entered, may_leave = threading.Event(), threading.Event()

        def guarded():
            with unique_name.guard("inside_"):
                entered.set()
                self.assertTrue(may_leave.wait(WAIT_S))
                return unique_name.generate("name")

        before = unique_name.generate("name")
        worker = Worker(guarded)
        self.assertTrue(entered.wait(WAIT_S))
        meanwhile = unique_name.generate("name")
        may_leave.set()
        self.assertEqual(worker.result(), "inside_name_0")
        number = int(before.split("_")[-1])
        self.assertEqual(meanwhile, f"name_{number + 1}")

    def test_all_threads_share_one_numbering(self):
        # Not on the main thread, which is in a guard of Paddle's test runner.
        names = [in_thread(unique_name.generate, "together") for _ in range(2)]
        self.assertEqual(names, ["together_0", "together_1"])

    def test_all_threads_share_one_numbering_after_static_mode(self):
        self.assertEqual(unique_name.generate("again"), "again_0")
        paddle.enable_static()
        paddle.disable_static()
        self.assertEqual(unique_name.generate("again"), "again_0")
        self.assertEqual(in_thread(unique_name.generate, "again"), "again_1")

    def test_layers_created_during_a_guard_have_unique_names(self):
        first = nn.Linear(2, 2)
        with unique_name.guard():
            second = in_thread(nn.Linear, 2, 2)
        self.assertNotEqual(first.weight.name, second.weight.name)

    def test_used_parameter_names_can_be_forgotten(self):
        checker = base_names.dygraph_parameter_name_checker
        with unique_name.guard():
            self.assertFalse(checker("weight"))
            self.assertTrue(checker("weight"))
            # As tests of Paddle do.
            checker._name_set = set()
            self.assertFalse(checker("weight"))

    def test_generator_attributes_are_those_of_the_calling_thread(self):
        generator = base_names.generator
        with unique_name.guard("inside_"):
            unique_name.generate("name")
            self.assertEqual(generator.prefix, "inside_")
            self.assertEqual(generator.ids["name"], 1)
            self.assertEqual(in_thread(lambda: generator.prefix), "")

    def test_a_copy_of_the_generator_continues_its_numbering(self):
        with unique_name.guard("inside_"):
            unique_name.generate("name")
            generator = copy.copy(base_names.generator)
        self.assertEqual(generator("name"), "inside_name_1")

    def test_a_deep_copy_of_the_generator_has_a_numbering_of_its_own(self):
        for copied in (
            copy.deepcopy,
            lambda value: pickle.loads(pickle.dumps(value)),
        ):
            with unique_name.guard("inside_"):
                unique_name.generate("name")
                generator = copied(base_names.generator)
                self.assertEqual(generator("name"), "inside_name_1")
                self.assertEqual(unique_name.generate("name"), "inside_name_1")

    def test_the_generator_may_be_set_in_itself(self):
        with unique_name.guard("inside_"):
            with unique_name.guard(base_names.generator):
                self.assertEqual(unique_name.generate("name"), "inside_name_0")
            previous = unique_name.switch(
                base_names.generator, base_names.dygraph_parameter_name_checker
            )
            self.assertEqual(unique_name.generate("name"), "inside_name_1")
            self.assertFalse(base_names.dygraph_parameter_name_checker("name"))
            unique_name.switch(*previous)

    def test_the_generator_has_no_private_attributes(self):
        self.assertFalse(hasattr(base_names.generator, "_missing"))
        self.assertTrue(hasattr(base_names.generator, "prefix"))

    def test_a_guard_of_a_finished_thread_does_not_rename_on_another(self):
        def suspend():
            with unique_name.guard("suspended_"):
                yield

        def begin(suspended):
            with unique_name.guard("outer_"):
                next(suspended)

        suspended = suspend()
        in_thread(begin, suspended)
        with unique_name.guard("inside_"):
            suspended.close()
            self.assertEqual(unique_name.generate("name"), "inside_name_0")
        self.assertFalse(base_names.generator.prefix)

    def test_a_guard_left_on_another_thread_is_an_error(self):
        guard = unique_name.guard("inside_")
        in_thread(guard.__enter__)
        with self.assertRaisesRegex(RuntimeError, "unique_name.guard was left"):
            guard.__exit__(None, None, None)
        self.assertFalse(base_names.generator.prefix)

    def test_switch_on_the_main_thread_affects_all_threads(self):
        previous = unique_name.switch()
        try:
            self.assertEqual(in_thread(unique_name.generate, "name"), "name_0")
        finally:
            unique_name.switch(*previous)


if __name__ == "__main__":
    unittest.main()
