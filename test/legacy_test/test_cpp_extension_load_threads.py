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
"""Loading of custom operators on several threads and in several processes."""

from __future__ import annotations

import atexit
import os
import sys
import tempfile
import threading
import unittest
from pathlib import Path
from unittest import mock

from concurrent_base import WAIT_S, Worker, in_fork, in_thread
from extension_base import load_extension_into

from paddle.utils.cpp_extension import extension_utils

SOURCE = Path(__file__).with_name("inference_threads_operator.cc")
ON_LINUX = sys.platform == "linux"


class WithFolder(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def patch(self, module: object, name: str, function: object) -> None:
        patch = mock.patch.object(module, name, function)
        patch.start()
        self.addCleanup(patch.stop)


@unittest.skipUnless(ON_LINUX, "compiles as on Linux")
class TestSecondLoad(WithFolder):
    def test_modules_of_all_loads_have_the_operator(self):
        # Under another name: Paddle aborts if one process registers an operator
        # from two libraries, for example for two test files.
        source = self.folder / "operator.cc"
        code = SOURCE.read_text().replace("call_and_double", "doubled_twice")
        source.write_text(code)

        def load():
            return load_extension_into(self.folder, "loaded_twice", source)

        for module in [load(), load(), in_thread(load)]:
            self.assertTrue(callable(module.doubled_twice))


class TestRegistering(WithFolder):
    """The operators are new to the process in one call only."""

    def setUp(self) -> None:
        super().setUp()
        self.library = self.folder / "library.so"
        self.library.touch()
        self.registered = set()
        holder = mock.Mock()
        holder.instance().update_op_proto = lambda names: names
        self.patch(extension_utils, "OpProtoHolder", holder)
        self.patch(
            extension_utils.core,
            "load_op_meta_info_and_register_op",
            self.register,
        )

    def register(self, library: str) -> list[str]:
        new = set(Path(library).read_text().split()) - self.registered
        self.registered |= new
        return sorted(new)

    def load(self, library: Path | None = None) -> list[str]:
        return extension_utils.load_op_meta_info_and_register_op(
            str(library or self.library)
        )

    def test_second_thread_gets_operators_while_first_is_inside(self):
        self.library.write_text("a b")
        inside, second_calls = threading.Event(), threading.Event()

        def register(library):
            names = self.register(library)
            inside.set()
            self.assertTrue(second_calls.wait(WAIT_S))
            return names

        self.patch(
            extension_utils.core, "load_op_meta_info_and_register_op", register
        )
        first = Worker(self.load)
        self.assertTrue(inside.wait(WAIT_S))

        def load_second():
            second_calls.set()
            return self.load()

        second = Worker(load_second)
        self.assertEqual(second.result(), ["a", "b"])
        self.assertEqual(first.result(), ["a", "b"])

    def test_libraries_have_operators_of_their_own(self):
        other = self.folder / "other.so"
        self.library.write_text("a")
        other.write_text("b")
        for _ in range(2):
            self.assertEqual(self.load(), ["a"])
            self.assertEqual(self.load(other), ["b"])

    def test_caller_may_change_the_list(self):
        self.library.write_text("a")
        self.load().clear()
        self.assertEqual(self.load(), ["a"])

    def test_failed_load_is_not_remembered(self):
        self.library.write_text("a")
        with mock.patch.object(
            extension_utils.core,
            "load_op_meta_info_and_register_op",
            side_effect=RuntimeError,
        ):
            self.assertRaises(RuntimeError, self.load)
        self.assertEqual(self.load(), ["a"])


@unittest.skipUnless(hasattr(os, "fork"), "needs fork")
class TestPythonFile(WithFolder):
    """The file with the Python functions of the operators."""

    def generate(self) -> set[Path]:
        """Generates a module, and returns the files that it has added."""
        before = set(self.folder.glob("*.py"))
        extension_utils._generate_python_module("name", [], str(self.folder))
        return set(self.folder.glob("*.py")) - before

    def test_process_and_child_write_files_of_their_own(self):
        self.assertEqual(len(self.generate()), 1)
        in_fork(lambda: self.assertEqual(len(self.generate()), 1))

    def test_exit_of_child_leaves_the_file_of_its_parent(self):
        with mock.patch.object(atexit, "register") as register:
            (file,) = self.generate()
        (at_exit,) = register.call_args.args
        in_fork(at_exit)
        self.assertTrue(file.exists())
        at_exit()
        self.assertFalse(file.exists())


if __name__ == "__main__":
    unittest.main()
