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
"""Values with two levels: a thread's own value, else the process's."""

from __future__ import annotations

import os
import unittest
import weakref
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

from concurrent_base import WAIT_S, in_fork, in_thread, wait_until

from paddle.base.threads import fork
from paddle.base.threads.thread_value import (
    UNSET,
    MainThreadValue,
    ThreadValue,
)


class ThreadValueTestCase(unittest.TestCase):
    def setUp(self):
        pool = ThreadPoolExecutor(1)
        self.addCleanup(pool.shutdown)
        # Runs functions on another thread, always the same one.
        self.on_thread = lambda *call: pool.submit(*call).result(WAIT_S)


class TestThreadValue(ThreadValueTestCase):
    def test_thread_without_an_own_value_sees_the_process_value_live(self):
        value = ThreadValue(1)
        self.assertEqual(self.on_thread(value.get), 1)
        value.process = 2
        self.assertEqual(self.on_thread(value.get), 2)

    def test_own_value_hides_the_process_value_only_on_its_thread(self):
        value = ThreadValue(1)
        self.on_thread(value.set_local, 2)
        value.process = 3
        self.assertEqual(self.on_thread(value.get), 2)
        self.assertEqual(self.on_thread(value.get_local), 2)
        self.assertEqual(value.get(), 3)
        self.assertIs(value.get_local(), UNSET)

    def test_main_thread_may_have_its_own_value(self):
        value = ThreadValue(1)
        value.set_local(2)
        self.addCleanup(value.set_local, UNSET)
        self.assertEqual(value.get(), 2)
        self.assertEqual(self.on_thread(value.get), 1)

    def test_unset_removes_the_own_value(self):
        value = ThreadValue(1)
        self.on_thread(value.set_local, 2)
        self.on_thread(value.set_local, UNSET)
        self.assertEqual(self.on_thread(value.get), 1)

    def test_none_is_a_value(self):
        value = ThreadValue(1)
        self.on_thread(value.set_local, None)
        self.assertIsNone(self.on_thread(value.get))

    def test_values_of_one_thread_are_independent(self):
        one, other = ThreadValue(1), ThreadValue(2)
        self.on_thread(one.set_local, 3)
        self.assertEqual(self.on_thread(other.get), 2)

    def test_own_value_does_not_outlive_its_thread(self):
        value = ThreadValue(1)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(value.set_local, 2).result(WAIT_S)
        # New threads may reuse a finished thread's ident, but not its value.
        for _ in range(50):
            with ThreadPoolExecutor(1) as pool:
                self.assertEqual(pool.submit(value.get).result(WAIT_S), 1)

    def test_own_value_is_released_with_its_thread(self):
        class Own:
            pass

        value = ThreadValue(1)
        own = Own()
        dropped = weakref.ref(own)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(value.set_local, own).result(WAIT_S)
            del own
            self.assertIsNotNone(dropped())
        wait_until(lambda: dropped() is None, "the value is dropped")

    def test_replaced_or_removed_value_is_released(self):
        class Own:
            pass

        value = ThreadValue(1)
        for replaced_by in (2, UNSET):
            own = Own()
            dropped = weakref.ref(own)
            value.set_local(own)
            del own
            value.set_local(replaced_by)
            self.assertIsNone(dropped())

    def test_flag_tells_whether_any_thread_has_set_a_value(self):
        value = ThreadValue(1)
        value.process = 2
        self.on_thread(value.set_local, UNSET)
        self.assertFalse(value.any_thread_has_set)
        self.on_thread(value.set_local, 3)
        self.assertTrue(value.any_thread_has_set)


class TestMainThreadValue(ThreadValueTestCase):
    def test_swap_on_the_main_thread_sets_the_process_value(self):
        value = MainThreadValue(1)
        self.assertEqual(value.swap(2), 1)
        self.assertEqual(self.on_thread(value.get), 2)

    def test_swap_on_another_thread_sets_its_own_value(self):
        value = MainThreadValue(1)
        self.assertIs(self.on_thread(value.swap, 2), UNSET)
        self.assertEqual(self.on_thread(value.swap, 3), 2)
        self.assertEqual(value.get(), 1)

    def test_swap_undoes_another_swap(self):
        value = MainThreadValue(1)

        def swap_and_restore():
            value.swap(value.swap(2))
            return value.get(), value.get_local()

        self.assertEqual(swap_and_restore(), (1, UNSET))
        self.assertEqual(self.on_thread(swap_and_restore), (1, UNSET))

    def test_saved_value_restores_the_present_value(self):
        value = MainThreadValue(1)
        self.assertEqual(value.saved(), 1)
        self.assertIs(self.on_thread(value.saved), UNSET)
        self.on_thread(value.swap, 2)
        self.assertEqual(self.on_thread(value.saved), 2)


@unittest.skipUnless(hasattr(os, "fork"), "this system has no fork")
class TestFork(ThreadValueTestCase):
    def test_value_of_the_forking_thread_becomes_that_of_the_child(self):
        value = MainThreadValue(1)

        def check():
            self.assertIs(value.get_local(), UNSET)
            self.assertEqual(value.get(), 2)
            self.assertEqual(in_thread(value.get), 2)

        self.on_thread(value.swap, 2)
        self.on_thread(in_fork, check)

    def test_forking_thread_without_a_value_keeps_the_process_value(self):
        value = MainThreadValue(1)

        def check():
            self.assertIs(value.get_local(), UNSET)
            self.assertEqual(value.get(), 1)
            self.assertEqual(in_thread(value.get), 1)

        self.on_thread(in_fork, check)

    def test_forking_thread_is_the_main_thread_of_the_child(self):
        value = MainThreadValue(1)

        def swap():
            self.assertEqual(value.swap(2), 1)
            self.assertEqual(in_thread(value.get), 2)

        self.on_thread(in_fork, swap)

    def test_fork_changes_no_value_of_the_parent(self):
        value = MainThreadValue(1)
        self.on_thread(value.swap, 2)
        self.on_thread(in_fork, value.get)
        self.assertEqual(value.get(), 1)
        self.assertEqual(self.on_thread(value.get_local), 2)

    def test_own_value_that_is_not_a_main_thread_value_stays_local(self):
        value = ThreadValue(1)

        def check():
            self.assertEqual(value.get_local(), 2)
            self.assertEqual(in_thread(value.get), 1)

        self.on_thread(value.set_local, 2)
        self.on_thread(in_fork, check)

    def check_restores(self, value, saved, present, restored):
        """Checks that `swap(saved)` replaces `present` by `restored`."""
        self.assertEqual(value.swap(saved), present)
        self.assertEqual(value.get(), restored)
        self.assertEqual(in_thread(value.get), restored)

    def test_unset_saved_before_the_fork_restores_the_process_value(self):
        value = MainThreadValue(1)
        saved = self.on_thread(value.swap, 2)
        self.assertIs(saved, UNSET)
        self.on_thread(in_fork, self.check_restores, value, saved, 2, 1)

    def test_unset_saved_before_the_fork_restores_in_a_child_of_the_child(self):
        value = MainThreadValue(1)
        saved = self.on_thread(value.swap, 2)
        self.on_thread(
            in_fork, in_fork, self.check_restores, value, saved, 2, 1
        )

    def test_own_value_saved_before_the_fork_is_restored_in_the_child(self):
        value = MainThreadValue(1)
        self.on_thread(value.swap, 2)
        saved = self.on_thread(value.swap, 3)
        self.on_thread(in_fork, self.check_restores, value, saved, 3, 2)

    def test_value_saved_by_the_main_thread_is_restored_in_its_child(self):
        value = MainThreadValue(1)
        saved = value.swap(2)
        in_fork(self.check_restores, value, saved, 2, 1)

    def test_steps_of_the_child_run_in_the_order_of_their_numbers(self):
        numbers = [max(fork._steps) + i for i in (2, 1, 3)]
        calls = []
        with mock.patch.dict(fork._steps):
            for number in numbers:
                fork.run_in_child(number)(lambda _, n=number: calls.append(n))
            in_fork(lambda: self.assertEqual(calls, sorted(numbers)))

    def test_steps_are_told_whether_the_main_thread_forked(self):
        told = []
        with mock.patch.dict(fork._steps):
            fork.run_in_child(max(fork._steps) + 1)(told.append)
            in_fork(lambda: self.assertEqual(told, [True]))
            self.on_thread(in_fork, lambda: self.assertEqual(told, [False]))


if __name__ == "__main__":
    unittest.main()
