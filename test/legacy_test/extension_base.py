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
"""Test helper that compiles custom operators."""

from __future__ import annotations

import os
import site
import tempfile
import unittest
from pathlib import Path
from typing import TYPE_CHECKING

from paddle.utils import cpp_extension

if TYPE_CHECKING:
    from types import ModuleType


def load_extension(name: str, source: Path) -> tuple[ModuleType, str]:
    """
    Compiles a file with custom operators until the end of the test module, and
    returns the Python module of the operators and the file of the library.
    """
    folder = tempfile.TemporaryDirectory()
    unittest.addModuleCleanup(folder.cleanup)
    module = load_extension_into(folder.name, name, source)
    (library,) = Path(folder.name).rglob(f"{name}.so")
    return module, str(library)


def load_extension_into(folder: str, name: str, source: Path) -> ModuleType:
    """Compiles a file with custom operators in a folder, unless it is there."""
    return cpp_extension.load(
        name=name,
        sources=[str(source)],
        # In Paddle's build tree, only the installed Paddle has headers.
        extra_include_paths=[
            os.path.join(packages, "paddle", "include", below)
            for packages in site.getsitepackages()
            for below in ("", "third_party")
        ],
        extra_cxx_cflags=["-O0", "-g0", "-std=c++17"],
        build_directory=folder,
    )
