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
"""The registration of the tests in Paddle's build."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tools.apply import own_file, write_files
from tools.series import load_series
from tools.tree import git
from tools.wheel import REPO, beside_python, run

ALLOCATION = "paddle/phi/core/memory/allocation"

# Uses Paddle's own functions, with stand-ins for what they link to.
PADDLES_BUILD = """
cmake_minimum_required(VERSION 3.18)
project(paddle LANGUAGES CXX)
set(PADDLE_SOURCE_DIR "${CMAKE_SOURCE_DIR}")
set(PADDLE_BINARY_DIR "${CMAKE_BINARY_DIR}")
set(PYTHON_EXECUTABLE python3)
set(WITH_TESTING ON)
set(WITH_PYTHON ON)
set(WITH_CUSTOM_DEVICE ON)
set(WITH_SHARED_PHI ON)
file(WRITE "${CMAKE_BINARY_DIR}/empty.cc" "")
foreach(target paddle phi common gtest paddle_gtest_main_new)
  add_library(${target} SHARED "${CMAKE_BINARY_DIR}/empty.cc")
endforeach()
set_property(GLOBAL PROPERTY PADDLE_LIB_NAME paddle)
enable_testing()
include("${CMAKE_SOURCE_DIR}/cmake/generic.cmake")
function(check_coverage_opt)
endfunction()
function(common_link)
endfunction()
function(bash_test_modules name)
  add_test(NAME ${name} COMMAND true)
endfunction()
foreach(folder api common core kernels ops)
  file(WRITE "test/cpp/phi/${folder}/CMakeLists.txt" "")
endforeach()
add_subdirectory(test/cpp/phi)
add_subdirectory(test/custom_runtime)
"""


def own_files() -> list[str]:
    return [path for patch in load_series(REPO) for path in patch.own_files]


def test_the_sources_are_those_that_paddles_build_lists():
    text = (REPO / "tools" / "core_sources.cmake").read_text()
    added = [
        line
        for patch in load_series(REPO)
        for part in patch.files
        if part.path == f"{ALLOCATION}/CMakeLists.txt"
        for hunk in part.hunks
        for _, line in hunk.added
    ]
    of_ours, of_paddles_build = (
        set(re.findall(r"\b\w+\.cc\b", lines))
        for lines in (text, "\n".join(added))
    )
    assert of_ours == of_paddles_build
    assert of_ours == {
        Path(path).name
        for path in own_files()
        if path.startswith(ALLOCATION) and path.endswith(".cc")
    }


@pytest.fixture(scope="session")
def registered(tmp_path_factory):
    """
    The tests that Paddle's functions register, each with the words of its
    command and its environment.
    """
    paddle = os.environ.get("PADDLE_CHECKOUT")
    if not paddle:
        pytest.skip("set PADDLE_CHECKOUT to a clone of Paddle at tag v3.3.0")
    root = tmp_path_factory.mktemp("paddle")
    files = "cmake test/cpp/phi/CMakeLists.txt test/custom_runtime"
    git(root, "init --quiet")
    git(root, "fetch --quiet --depth=1", paddle, "tag", "v3.3.0")
    git(root, f"checkout v3.3.0 -- {files}")
    for patch in load_series(REPO):
        for part in patch.files:
            if (root / part.path).exists():
                git(root, "apply -", text=part.text)
    write_files({root / path: own_file(REPO, path) for path in own_files()})
    (root / "CMakeLists.txt").write_text(PADDLES_BUILD)
    build = root / "build"
    run(
        *(beside_python("cmake"), "-G", "Ninja", "-S", root, "-B", build),
        f"-DCMAKE_MAKE_PROGRAM={beside_python('ninja')}",
    )
    shown = subprocess.run(
        [beside_python("ctest"), "--show-only=json-v1"],
        cwd=build,
        check=True,
        capture_output=True,
    )
    tests = json.loads(shown.stdout)["tests"]
    return {
        test["name"]: [
            *test.get("command", []),
            *(
                word
                for shown in test["properties"]
                if shown["name"] == "ENVIRONMENT"
                for word in shown["value"]
            ),
        ]
        for test in tests
    }


def test_paddles_build_registers_every_test_program(registered):
    programs = {
        Path(path).stem
        for path in own_files()
        if path.endswith("_test.cc") and path != "test/cpp/isolated_test.cc"
    }
    assert programs
    assert programs <= registered.keys()


def test_paddles_build_runs_tests_of_gpu_memory_on_the_stand_in(registered):
    for name, words in registered.items():
        if name.startswith("cuda_ipc_"):
            assert re.match(r"LD_LIBRARY_PATH=[^:]*/stand_in:", words[-1])


def test_paddles_build_runs_tests_on_the_test_device(registered):
    tests = {
        Path(path).stem
        for path in own_files()
        if re.match(r"test/custom_runtime/test_.*\.py", path)
    }
    assert tests
    assert tests <= registered.keys()
    tests.add("test_thread_device_host_device")
    for test in tests:
        words = registered[test]
        assert any(
            re.fullmatch("CUSTOM_DEVICE_ROOT=.*/host_device", word)
            for word in words
        )
        # It has one allocator for all streams.
        assert "FLAGS_allocator_strategy=naive_best_fit" not in words


def test_paddles_build_runs_its_own_tests_as_before(registered):
    words = registered["test_custom_cpu_plugin"]
    assert "FLAGS_allocator_strategy=naive_best_fit" in words
    assert not any(word.startswith("CUSTOM_DEVICE_ROOT=") for word in words)
