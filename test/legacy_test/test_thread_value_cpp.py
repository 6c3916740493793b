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
"""The C++ base class of ThreadValue, and the Python one that replaces it."""

from __future__ import annotations

import os
import subprocess
import sys
import unittest

from concurrent_base import WAIT_S

from paddle.base.cpp_module import find_cpp_module
from paddle.base.threads.thread_value import ThreadValue


@unittest.skipIf(
    find_cpp_module("_thread_contexts") is None,
    "this Paddle has no parts in C++",
)
class TestInCpp(unittest.TestCase):
    def test_base_class_is_the_type_in_the_cpp_module(self):
        base = ThreadValue.__mro__[1]
        module = find_cpp_module("_thread_value")
        self.assertIs(base, module.ThreadValue)
        self.assertEqual(base.__module__, module.__name__)

    def test_set_flag_does_not_replace_init(self):
        value = ThreadValue.__new__(ThreadValue)
        value.any_thread_has_set = True
        with self.assertRaisesRegex(AttributeError, "unset"):
            value.get()


IN_PYTHON = """
import importlib
import unittest
from unittest import mock
from paddle.base import cpp_module
from paddle.base.threads import thread_value
with mock.patch.object(cpp_module, "find_cpp_module", return_value=None):
    importlib.reload(thread_value)
import test_thread_value
base = thread_value._PythonThreadValue
assert issubclass(test_thread_value.MainThreadValue, base)
names = ["TestThreadValue", "TestMainThreadValue"]
unittest.main(test_thread_value, argv=["", *names])
"""


class TestWithoutCpp(unittest.TestCase):
    def test_python_base_class_passes_the_same_tests(self):
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", IN_PYTHON],
            cwd=os.path.dirname(os.path.abspath(__file__)),
            check=True,
            timeout=WAIT_S,
        )


if __name__ == "__main__":
    unittest.main()
