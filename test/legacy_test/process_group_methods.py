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

"""Checks of the methods that process groups written in Python must have."""

from __future__ import annotations

import pathlib
import re
from typing import TYPE_CHECKING

import paddle
from paddle.base import core

if TYPE_CHECKING:
    import unittest

_CALL = re.compile(r"(?:\.process_group|\bpg)\.(?!process_group)(\w+)")


def _methods_in_use() -> set[str]:
    found = set(dir(core.ProcessGroup)) - set(dir(object))
    found.remove("_pybind11_conduit_v1_")
    package = pathlib.Path(paddle.__file__).parent
    for folder in ("distributed", "incubate", "optimizer"):
        for path in package.glob(f"{folder}/**/*.py"):
            found.update(_CALL.findall(path.read_text()))
    # Methods of one kind of group only, and an attribute of another class.
    return found - {"leave", "ranks", "timeout"}


def call_missing_methods(group: object) -> dict[str, str]:
    """Calls the methods that a group written in Python does not implement.

    Returns the error of each.
    """
    found = {}
    for name in _methods_in_use():
        if not hasattr(type(group), name):
            try:
                getattr(group, name)(paddle.ones([1]), dst=0)
                found[name] = "nothing"
            except NotImplementedError as error:
                found[name] = str(error)
    return found


def check_refusals(
    case: unittest.TestCase, found: dict[str, str], kind: str, cure: str
) -> None:
    """Asserts that each text names the method, the group and an alternative."""
    # The search has found methods of each sort in Paddle's code.
    for name in ("set_outer_wait", "send_partial", "all_reduce_on_calc_stream"):
        case.assertIn(name, found)
    for name, text in found.items():
        operation = name.removesuffix("_on_calc_stream")
        case.assertIn(f"{kind} has no {operation}", text)
        case.assertIn(
            cure if operation == name else "Leave that argument out", text
        )


def check_task(case: unittest.TestCase, kind: type) -> None:
    """Asserts that a task class has the methods of Paddle's tasks."""
    methods = {name for name in dir(core.task) if name[0] != "_"}
    case.assertLessEqual(methods, set(dir(kind)))
