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

import gc
import unittest
import weakref
from concurrent.futures import ThreadPoolExecutor

from concurrent_base import WAIT_S, wait_until

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

    def test_cycle_through_the_process_value_is_collected(self):
        class Holder:
            pass

        holder = Holder()
        holder.value = ThreadValue(holder)
        dropped = weakref.ref(holder)
        del holder
        gc.collect()
        self.assertIsNone(dropped())

    def test_deleted_process_value_is_an_error(self):
        value = ThreadValue(1)
        del value.process
        with self.assertRaisesRegex(AttributeError, "process"):
            value.get()
        value.process = 2
        self.assertEqual(value.get(), 2)

    def test_uninitialized_object_is_an_error(self):
        for name, *args in (("get",), ("get_local",), ("set_local", 1)):
            value = ThreadValue.__new__(ThreadValue)
            with self.assertRaises(AttributeError):
                getattr(value, name)(*args)

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


if __name__ == "__main__":
    unittest.main()
