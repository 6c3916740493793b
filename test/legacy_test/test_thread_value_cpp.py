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
"""The C++ base class of ThreadValue."""

import gc
import unittest
import weakref

from paddle.base import core
from paddle.base.threads.thread_value import ThreadValue


class TestInCpp(unittest.TestCase):
    def test_base_class_is_the_type_in_the_binding(self):
        binding = core.libpaddle._thread_value
        self.assertIs(ThreadValue.__mro__[1], binding.ThreadValue)

    def test_set_flag_does_not_replace_init(self):
        value = ThreadValue.__new__(ThreadValue)
        value.any_thread_has_set = True
        with self.assertRaisesRegex(AttributeError, "unset"):
            value.get()

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


if __name__ == "__main__":
    unittest.main()
