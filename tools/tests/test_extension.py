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
"""The compiler commands of the extension modules, for made-up wheels."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tools.series import PatchError
from tools.tests.conftest import write
from tools.wheel import EXTENSION, REPO, beside_python, run

VERSION = "version/__init__.py"
WHEEL = {
    "base/libpaddle.so": "",
    "include/third_party/pybind11/pybind11.h": "",
    "libs/libphi_core.so": "",
    "libs/libcommon.so": "",
}
# CMake asks nvcc for the location and the version of the toolkit.
NVCC = """#!/bin/sh
echo 'Cuda compilation tools, release 12.6, V12.6.20'
echo '#$ TOP={root}' >&2
"""


def version_of_cuda(text: str) -> dict[str, str]:
    return {VERSION: f"full_version     = '3.3.0'\ncuda_version     = {text}\n"}


@pytest.fixture
def toolkit(tmp_path, monkeypatch):
    """A made-up CUDA toolkit that CMake finds."""
    root = tmp_path / "cuda"
    nvcc = root / "bin" / "nvcc"
    write(
        root,
        {
            "bin/nvcc": NVCC.format(root=root),
            "include/cuda_runtime.h": "",
            "lib64/libcudart.so": "",
        },
    )
    nvcc.chmod(0o755)
    monkeypatch.setenv("CUDAToolkit_ROOT", str(root))
    return root


def commands(package: Path, folder: Path) -> dict[str, list[str]]:
    """Returns the compiler commands of each module, for a wheel's package."""
    run(
        *(beside_python("cmake"), "-G", "Ninja"),
        *("-S", REPO / EXTENSION, "-B", folder),
        f"-DCMAKE_MAKE_PROGRAM={beside_python('ninja')}",
        "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON",
        f"-DPADDLE_ROOT={package}",
        "-DPYBIND_ABI=_gcc_abi7",
        f"-DPython_EXECUTABLE={sys.executable}",
    )
    of: dict[str, list[str]] = {}
    for entry in json.loads((folder / "compile_commands.json").read_text()):
        module = Path(entry["output"]).parts[1]
        of.setdefault(module, []).append(entry["command"])
    return of


def assert_defined(package, folder, define, other):
    modules = commands(package, folder)
    assert sorted(modules) == [
        "_amp_lists.dir",
        "_generator_threads.dir",
        "_predictor_threads.dir",
        "_process_group_shm.dir",
        "_program_threads.dir",
        "_reader_threads.dir",
        "_shared_storage.dir",
        "_thread_contexts.dir",
        "_thread_value.dir",
        "paddle_device_guards.dir",
        "paddle_thread_contexts.dir",
    ]
    for module in modules.values():
        for command in module:
            assert f"-D{define} " in command
            assert other not in command


def test_cuda_modules_are_compiled_with_paddles_definitions(tmp_path, toolkit):
    write(tmp_path / "paddle", {**WHEEL, **version_of_cuda("'12.6'")})
    assert_defined(
        tmp_path / "paddle",
        tmp_path / "build",
        "PADDLE_WITH_CUDA",
        "PADDLE_WITH_CUSTOM_DEVICE",
    )
    for module in commands(tmp_path / "paddle", tmp_path / "build").values():
        for command in module:
            assert str(toolkit / "include") in command
            assert "include/paddle/phi/api/include/compat " in command


def test_cpu_modules_are_compiled_with_paddles_definitions(tmp_path):
    write(tmp_path / "paddle", {**WHEEL, **version_of_cuda("'False'")})
    assert_defined(
        tmp_path / "paddle",
        tmp_path / "build",
        "PADDLE_WITH_CUSTOM_DEVICE",
        "PADDLE_WITH_CUDA",
    )


def test_wheel_without_a_version_file_is_refused(tmp_path):
    write(tmp_path / "paddle", WHEEL)
    with pytest.raises(PatchError, match=r"version/__init__\.py"):
        commands(tmp_path / "paddle", tmp_path / "build")
