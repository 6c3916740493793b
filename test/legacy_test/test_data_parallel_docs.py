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
"""Documentation of the public names for data parallel training."""

from __future__ import annotations

import doctest
import inspect
import re
import unittest
from typing import Any, Callable

import paddle
import paddle.distributed as dist
from paddle.distributed import comm_hooks
from paddle.distributed.data_parallel.reducer_methods import ReducerMethods

_NOTHING = ("None", inspect.Signature.empty)


def public_names() -> dict[str, Any]:
    """Returns our own functions, classes, and methods of `DataParallel`."""
    found = {
        "Join": dist.Join,
        "new_thread_groups": dist.new_thread_groups,
        **{name: getattr(comm_hooks, name) for name in comm_hooks.__all__},
    }
    for name in ("register_comm_hook", "statistics", "statistics_table"):
        found[f"DataParallel.{name}"] = getattr(ReducerMethods, name)
    return found


def functions() -> dict[str, tuple[Callable, str]]:
    """Returns functions, constructors and public methods, and their texts."""
    found = {}
    for name, value in public_names().items():
        text = inspect.getdoc(value) or ""
        if not inspect.isclass(value):
            found[name] = value, text
            continue
        found[name] = value.__init__, text
        for member, method in vars(value).items():
            # The methods of Join are called by DataParallel.
            is_public = not member.startswith("_") and value is not dist.Join
            if is_public and inspect.isfunction(method):
                found[f"{name}.{member}"] = method, inspect.getdoc(method) or ""
    return found


def section(text: str, title: str) -> str:
    """Returns the indented lines below a title, or "" if it is missing."""
    lines = re.search(rf"^{title}:\n((?: .*\n|\n)*)", text + "\n", re.MULTILINE)
    return lines[1] if lines else ""


class TestDocumentation(unittest.TestCase):
    def setUp(self):
        device = paddle.get_device()
        self.addCleanup(paddle.set_device, device)
        paddle.set_device("cpu")

    def test_every_parameter_is_described(self):
        for name, (function, text) in functions().items():
            with self.subTest(name=name):
                described = re.findall(
                    r"^ {4}(\w+) \(", section(text, "Args"), re.MULTILINE
                )
                there = [
                    parameter
                    for parameter in inspect.signature(function).parameters
                    if parameter != "self"
                ]
                self.assertEqual(described, there)

    def test_every_result_is_described(self):
        for name, (function, text) in functions().items():
            returns = inspect.signature(function).return_annotation
            with self.subTest(name=name):
                self.assertEqual(
                    bool(section(text, "Returns")), returns not in _NOTHING
                )

    def test_the_example_of_every_name_passes(self):
        finder = doctest.DocTestFinder(exclude_empty=True)
        for name, value in public_names().items():
            with self.subTest(name=name):
                found = finder.find(value, name, module=False, globs={})
                tests = [test for test in found if test.examples]
                self.assertNotEqual(tests, [])
                wrong = []
                for test in tests:
                    self.assertNotIn("SKIP", test.docstring)
                    runner = doctest.DocTestRunner(verbose=False)
                    runner.run(test, out=wrong.append)
                self.assertEqual("".join(wrong), "")


if __name__ == "__main__":
    unittest.main()
