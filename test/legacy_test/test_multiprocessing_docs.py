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
"""Documentation and types of the names of paddle.incubate.multiprocessing."""

from __future__ import annotations

import ast
import contextlib
import doctest
import importlib.util
import inspect
import multiprocessing
import os
import re
import signal
import unittest
from multiprocessing import connection
from pathlib import Path
from typing import Any, Callable, NamedTuple

from concurrent_base import WAIT_S
from shared_tensor_base import (  # noqa: F401
    setUpModule,
    tearDownModule,
)

import paddle
import paddle.incubate.multiprocessing as sharing
from paddle.base import core

OURS = "paddle.incubate.multiprocessing."
# One of Paddle's own files, whose functions have no underscore either.
PADDLES = OURS + "reductions"
_NOTHING = ("None", "Iterator[None]")


class Callee(NamedTuple):
    """A callable public name. A class documents its constructor."""

    function: Callable
    documentation: str
    returns: bool

    @property
    def parameters(self) -> list[inspect.Parameter]:
        found = inspect.signature(self.function).parameters.values()
        return [parameter for parameter in found if parameter.name != "self"]

    def section(self, title: str) -> str:
        """Returns the indented lines below a title, or "" if it is missing."""
        text = self.documentation + "\n"
        lines = re.search(rf"^{title}:\n((?: .*\n|\n)*)", text, re.MULTILINE)
        return lines[1] if lines else ""


def public_names() -> dict[str, Any]:
    """Returns our own functions and classes."""
    found = {
        "Tensor.share_memory_": paddle.Tensor.share_memory_,
        "Tensor.is_shared": paddle.Tensor.is_shared,
        "Layer.share_memory": paddle.nn.Layer.share_memory,
    }
    for name in dir(sharing):
        value = getattr(sharing, name)
        module = getattr(value, "__module__", None) or ""
        is_ours = module.startswith(OURS) and module != PADDLES
        if is_ours and not name.startswith("_"):
            found[name] = value
    return found


def is_exception(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, Exception)


def callees() -> dict[str, Callee]:
    """Returns the callables of the interface: functions, classes, methods."""
    found = {}
    for name, value in public_names().items():
        if not inspect.isclass(value):
            found[name] = callee(value)
            continue
        # Users do not construct our exceptions.
        if not is_exception(value):
            documentation = inspect.getdoc(value) or ""
            found[name] = Callee(value.__init__, documentation, False)
        for member, method in vars(value).items():
            if not member.startswith("_") and callable_in(method):
                found[f"{name}.{member}"] = callee(method)
    return found


def callable_in(member: Any) -> Callable | None:
    """Returns the function of a method or a property."""
    function = getattr(member, "fget", getattr(member, "__func__", member))
    return function if inspect.isfunction(function) else None


def callee(member: Any) -> Callee:
    function = callable_in(member)
    result = inspect.signature(function).return_annotation
    # A property describes its result, and a context may yield nothing.
    nothing = isinstance(member, property) or result in _NOTHING
    return Callee(function, inspect.getdoc(function) or "", not nothing)


def examples_of(name: str) -> list[doctest.DocTest]:
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = finder.find(public_names()[name], name, module=False, globs={})
    return [test for test in found if test.examples]


def run_examples(name: str, pipe: connection.Connection) -> None:
    """Runs the examples of a name and sends their failures."""
    # Their processes end with them, see `wrong_in_examples`.
    os.setsid()
    wrong = []
    for test in examples_of(name):
        doctest.DocTestRunner(verbose=False).run(test, out=wrong.append)
    pipe.send("".join(wrong))


def wrong_in_examples(name: str) -> str:
    """Runs the examples of a name in a process, and returns their failures."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=run_examples, args=(name, theirs))
    process.start()
    theirs.close()
    try:
        if not ours.poll(WAIT_S):
            return f"not done in {WAIT_S} s"
        wrong = ours.recv()
        # Joined later: until then, the id of its process group is not reused.
        if not connection.wait([process.sentinel], WAIT_S):
            return "does not end"
        return wrong
    except EOFError:
        return "its process died"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.join()
        ours.close()


class TestDocumentation(unittest.TestCase):
    def test_every_public_name_is_documented(self):
        # Its own docstring: an exception would inherit that of its base.
        documentation = {
            **{name: value.__doc__ for name, value in public_names().items()},
            **{name: found.documentation for name, found in callees().items()},
        }
        missing = [name for name, text in documentation.items() if not text]
        self.assertEqual(missing, [])

    def test_every_parameter_is_described(self):
        described, there = {}, {}
        for name, found in callees().items():
            there[name] = [parameter.name for parameter in found.parameters]
            described[name] = re.findall(
                r"^ {4}\*{0,2}(\w+) ?\(", found.section("Args"), re.MULTILINE
            )
        self.assertEqual(described, there)

    def test_every_result_is_described(self):
        described = {
            name
            for name, found in callees().items()
            if found.section("Returns")
        }
        there = {name for name, found in callees().items() if found.returns}
        self.assertEqual(described, there)

    def test_every_name_has_an_example(self):
        without = [
            name
            for name, value in public_names().items()
            if not examples_of(name) and not is_exception(value)
        ]
        self.assertEqual(without, [])

    def test_no_example_is_left_out(self):
        left_out = [
            name
            for name in public_names()
            for test in examples_of(name)
            if "SKIP" in test.docstring
        ]
        self.assertEqual(left_out, [])

    def test_examples_pass(self):
        names = set(public_names())
        if not hasattr(core.libpaddle, "_process_group_shm"):
            names.remove("wait_for_key")  # it raises without that module
        wrong = {name: wrong_in_examples(name) for name in names}
        self.assertEqual({n: text for n, text in wrong.items() if text}, {})


class TestTypes(unittest.TestCase):
    def test_every_parameter_has_a_type(self):
        untyped = [
            f"{parameter.name} of {name}"
            for name, found in callees().items()
            for parameter in found.parameters
            if parameter.annotation is parameter.empty
        ]
        self.assertEqual(untyped, [])

    def test_every_result_has_a_type(self):
        untyped = [
            name
            for name, found in callees().items()
            if inspect.signature(found.function).return_annotation
            is inspect.Signature.empty
        ]
        self.assertEqual(untyped, [])

    def test_type_checkers_find_every_name_by_the_short_name(self):
        source = importlib.util.find_spec("paddle.incubate").origin
        short_name = Path(source).parent.parent / "multiprocessing.py"
        imported = {
            name.asname
            for node in ast.walk(ast.parse(short_name.read_text()))
            if isinstance(node, ast.ImportFrom)
            for name in node.names
        }
        functions = {n for n in public_names() if "." not in n}
        self.assertEqual(functions - imported, set())

    def test_package_has_a_py_typed_file(self):
        package = Path(importlib.util.find_spec("paddle").origin).parent
        self.assertTrue((package / "py.typed").is_file())


if __name__ == "__main__":
    unittest.main()
