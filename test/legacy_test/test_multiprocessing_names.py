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
"""`paddle.multiprocessing`: one module, two names, and all Python names."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import multiprocessing
import pickle
import pkgutil
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import paddle
import paddle.incubate.multiprocessing
import paddle.multiprocessing as mp

PACKAGE = "paddle.incubate.multiprocessing"
# `mp.spawn` is the function, as in torch; Python's own `spawn` is undocumented.
OWN = {
    "spawn",
    *(
        module.name
        for module in pkgutil.iter_modules(
            paddle.incubate.multiprocessing.__path__
        )
    ),
}
# The names that return our pools.
REPLACED = {"Pool", "get_context"}
STANDARD = {
    module.name
    for module in pkgutil.walk_packages(multiprocessing.__path__)
    if "win32" not in module.name and module.name not in OWN
}


def run(*statements: str) -> str:
    """Runs code in a new Python process and returns its output."""
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", "\n".join(statements)],
        check=True,
        timeout=120,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout.strip()


class TestNames(unittest.TestCase):
    def test_both_modules_have_the_same_names(self):
        theirs = set(dir(paddle.incubate.multiprocessing))
        self.assertEqual(set(dir(mp)), theirs)
        for name in theirs:
            if not name.startswith("__"):
                with self.subTest(name):
                    self.assertIs(
                        getattr(mp, name),
                        getattr(paddle.incubate.multiprocessing, name),
                    )

    def test_public_names_are_listed(self):
        ours = {
            name
            for name in dir(mp)
            if callable(getattr(mp, name))
            and (getattr(mp, name).__module__ or "").startswith(PACKAGE + ".")
            and not name.startswith("_")
        }
        # It is Python's own from Python 3.13 on.
        ours.add("ShutDown")
        self.assertEqual(ours - {"init_reductions"}, set(mp.__all__))

    def test_short_name_is_there_after_the_import_of_paddle(self):
        self.assertEqual(
            run(
                "import paddle",
                "print(paddle.multiprocessing.Queue.__name__)",
            ),
            "Queue",
        )

    def test_short_name_may_be_imported_first(self):
        self.assertEqual(
            run(
                "from paddle.multiprocessing import connection",
                "import multiprocessing.connection",
                "print(connection is multiprocessing.connection)",
            ),
            "True",
        )

    def test_unknown_name_is_an_attribute_error(self):
        for module in mp, paddle.incubate.multiprocessing:
            with self.assertRaisesRegex(AttributeError, "'nothing'"):
                module.nothing  # noqa: B018

    def test_help_begins_with_the_contents_of_the_module(self):
        first, _, rest = mp.__doc__.partition("\n")
        self.assertIn("multiprocessing", first)
        mentioned = set(re.findall(r"\w+", rest))
        classes = {
            "ProcessContext",
            "ThreadGroup",
            *filter(re.compile("Exception").search, mp.__all__),
        }
        self.assertEqual(set(mp.__all__) - mentioned, classes)

    def test_pickles_name_the_long_name(self):
        content = pickle.dumps((mp.start_processes, mp.ProcessContext))
        self.assertIn(b"paddle.incubate.multiprocessing.processes", content)
        self.assertEqual(
            pickle.loads(content), (mp.start_processes, mp.ProcessContext)
        )


class TestStandardLibrary(unittest.TestCase):
    def test_public_names_of_python_are_the_same_objects(self):
        for name in multiprocessing.__all__:
            if name in REPLACED:
                continue
            with self.subTest(name):
                self.assertEqual(
                    getattr(mp, name), getattr(multiprocessing, name)
                )

    def test_every_attribute_of_python_is_available(self):
        for name, value in inspect.getmembers(multiprocessing):
            if name.startswith("_") or name in OWN | REPLACED:
                continue
            with self.subTest(name):
                self.assertEqual(getattr(mp, name), value)

    def test_every_submodule_of_python_is_an_attribute(self):
        self.assertGreater(len(STANDARD), 15)
        for name in STANDARD:
            with self.subTest(name):
                self.assertIs(
                    getattr(mp, name),
                    importlib.import_module(f"multiprocessing.{name}"),
                )

    def test_submodule_that_cannot_be_imported_says_why(self):
        for module in ("popen_spawn_win32", "broken"):
            with tempfile.TemporaryDirectory() as folder:
                Path(folder, "broken.py").write_text("import msvcrt")
                found = run(
                    "import multiprocessing, paddle",
                    f"multiprocessing.__path__.append({folder!r})",
                    "try:",
                    f"    paddle.multiprocessing.{module}",
                    "except AttributeError as error:",
                    "    print(error)",
                )
            self.assertRegex(found, f"'{module}'.*No module named 'msvcrt'")

    def test_submodule_that_cannot_be_imported_is_no_attribute(self):
        self.assertFalse(hasattr(mp, "popen_spawn_win32"))

    def test_submodule_of_python_is_not_imported_by_this_name(self):
        for package in ("paddle.multiprocessing", PACKAGE):
            with self.assertRaises(ModuleNotFoundError):
                importlib.import_module(f"{package}.connection")

    def test_contexts_have_the_queues_of_python(self):
        for method in mp.get_all_start_methods():
            context = mp.get_context(method)
            theirs = multiprocessing.get_context(method)
            self.assertIs(type(context.Queue()), type(theirs.Queue()))


if __name__ == "__main__":
    unittest.main()
