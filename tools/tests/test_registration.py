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
"""The registration of our tests in Paddle's build."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tools.apply import write_files
from tools.lint_patches import imported
from tools.own_files import own_file
from tools.series import load_series
from tools.tree import git
from tools.wheel import REPO, beside_python, run

if TYPE_CHECKING:
    from tools.series import Patch

ALLOCATION = "paddle/phi/core/memory/allocation"
LEGACY_TEST = "test/legacy_test"

# Uses Paddle's own CMake functions, with stubs for the libraries they link.
PADDLES_BUILD = """
cmake_minimum_required(VERSION 3.18)
project(paddle LANGUAGES CXX)
if(AS_ON STREQUAL "macOS")
  set(APPLE ON)
endif()
set(PADDLE_SOURCE_DIR "${CMAKE_SOURCE_DIR}")
set(PADDLE_BINARY_DIR "${CMAKE_BINARY_DIR}")
set(PYTHON_EXECUTABLE python3)
set(WITH_TESTING ON)
set(WITH_PYTHON ON)
set(WITH_CUSTOM_DEVICE ON)
set(WITH_SHARED_PHI ON)
file(WRITE "${CMAKE_BINARY_DIR}/empty.cc" "")
foreach(target paddle phi common gtest paddle_gtest_main_new pir python)
  add_library(${target} SHARED "${CMAKE_BINARY_DIR}/empty.cc")
endforeach()
set_property(GLOBAL PROPERTY PADDLE_LIB_NAME paddle)
enable_testing()
include("${CMAKE_SOURCE_DIR}/cmake/generic.cmake")
function(check_coverage_opt)
endfunction()
function(common_link)
endfunction()
foreach(function bash_test_modules py_test_modules)
  function(${function} name)
    add_test(NAME ${name} COMMAND true)
  endfunction()
endforeach()
function(set_pir_tests_properties)
endfunction()
foreach(folder api common core kernels ops)
  file(WRITE "test/cpp/phi/${folder}/CMakeLists.txt" "")
endforeach()
add_subdirectory(test/cpp/fluid/program_threads)
add_subdirectory(test/cpp/fluid/pybind)
add_subdirectory(test/cpp/phi)
add_subdirectory(test/custom_runtime)
add_subdirectory(test/legacy_test)
"""


class Registered(NamedTuple):
    """A test as Paddle's build registers it."""

    # The words of its command and of its environment.
    words: list[str]
    timeout_s: float | None


def own_files() -> list[str]:
    return [path for patch in load_series(REPO) for path in patch.own_files]


def test_paddles_build_lists_all_sources_of_shared_memory():
    added = [
        line
        for patch in load_series(REPO)
        for part in patch.files
        if part.path == f"{ALLOCATION}/CMakeLists.txt"
        for hunk in part.hunks
        for _, line in hunk.added
    ]
    assert set(re.findall(r"\b[\w/]+\.cc\b", "\n".join(added))) == {
        path[len(ALLOCATION) + 1 :]
        for path in own_files()
        if path.startswith(f"{ALLOCATION}/") and path.endswith(".cc")
    }


def registered_on(
    system: str, root: Path, gloo: str = "ON"
) -> dict[str, Registered]:
    """
    Returns the tests that Paddle's CMake functions register on a system, using
    a new folder.
    """
    paddle = os.environ.get("PADDLE_CHECKOUT")
    if not paddle:
        pytest.skip("set PADDLE_CHECKOUT to a clone of Paddle at tag v3.3.0")
    files = (
        f"cmake test/cpp/phi/CMakeLists.txt test/custom_runtime {LEGACY_TEST}"
    )
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
        f"-DAS_ON={system}",
        f"-DWITH_GLOO={gloo}",
    )
    shown = subprocess.run(
        [beside_python("ctest"), "--show-only=json-v1"],
        cwd=build,
        check=True,
        capture_output=True,
    )
    found = {}
    for test in json.loads(shown.stdout)["tests"]:
        properties = {p["name"]: p["value"] for p in test["properties"]}
        words = [*test.get("command", []), *properties.get("ENVIRONMENT", [])]
        found[test["name"]] = Registered(words, properties.get("TIMEOUT"))
    return found


@pytest.fixture(scope="session")
def registered(tmp_path_factory):
    return registered_on("Linux", tmp_path_factory.mktemp("linux"))


@pytest.fixture(scope="session")
def registered_on_macos(tmp_path_factory):
    return registered_on("macOS", tmp_path_factory.mktemp("macos"))


def test_paddles_build_registers_every_test_program(registered):
    programs = {
        Path(path).stem
        for path in own_files()
        if path.endswith("_test.cc") and path != "test/cpp/isolated_test.cc"
    }
    assert programs
    assert programs <= registered.keys()


def test_paddles_build_runs_gpu_memory_tests_on_the_stand_in(registered):
    for name, test in registered.items():
        if name.startswith("cuda_ipc_"):
            assert re.match(r"LD_LIBRARY_PATH=[^:]*/stand_in:", test.words[-1])


def device_tests() -> set[str]:
    """Returns the names of the tests that need the test device."""
    return {
        Path(path).stem
        for path in own_files()
        if re.match(r"test/custom_runtime/test_.*\.py", path)
    }


def test_the_names_of_device_tests_show_that_they_need_the_test_device():
    # The patterns of test/custom_runtime/host_device/CMakeLists.txt.
    needs_device = re.compile("test_thread_.*|test_.*_device")
    tests = device_tests()
    assert tests
    assert [t for t in tests if not needs_device.fullmatch(t)] == []


def test_paddles_build_runs_tests_on_the_test_device(registered):
    tests = device_tests()
    assert tests
    assert tests <= registered.keys()
    tests.add("test_thread_device_host_device")
    for test in tests:
        words = registered[test].words
        assert any(
            re.fullmatch("CUSTOM_DEVICE_ROOT=.*/host_device", word)
            for word in words
        )
        # This strategy has one allocator for all streams.
        assert "FLAGS_allocator_strategy=naive_best_fit" not in words


def test_paddles_build_has_no_test_device_on_macos(registered_on_macos):
    assert not device_tests() & registered_on_macos.keys()
    assert "test_custom_cpu_plugin" in registered_on_macos


def test_paddles_build_runs_its_own_tests_as_before(registered):
    words = registered["test_custom_cpu_plugin"].words
    assert "FLAGS_allocator_strategy=naive_best_fit" in words
    assert not any(word.startswith("CUSTOM_DEVICE_ROOT=") for word in words)


def legacy_tests(paths: tuple[str, ...] | list[str]) -> set[str]:
    """Returns the names of those files that are tests in test/legacy_test."""
    return {
        Path(path).stem
        for path in paths
        if re.match(rf"{LEGACY_TEST}/test_.*\.py", path)
    }


def added_to_cmake(patch: Patch) -> str:
    """Returns the lines that a patch adds to the tests' CMake file."""
    return "\n".join(
        line
        for part in patch.files
        if part.path == f"{LEGACY_TEST}/CMakeLists.txt"
        for hunk in part.hunks
        for _, line in hunk.added
    )


def named(command: str) -> set[str]:
    """Returns the tests that follow a CMake command in the patches."""
    text = "\n".join(map(added_to_cmake, load_series(REPO)))
    return set(re.findall(rf"{command}(test_\w+)", text))


@pytest.mark.parametrize("patch", load_series(REPO), ids=lambda p: p.name[:4])
def test_a_patch_registers_only_its_own_tests(patch):
    tests = re.findall(r"\btest_\w+", added_to_cmake(patch))
    assert legacy_tests(patch.own_files).issuperset(tests)


def modules_used(path: Path, found: set[str]) -> set[str]:
    """Adds to `found` the modules that a test and its helpers import."""
    for name in imported(str(path.relative_to(REPO)), path.read_text()) - found:
        found.add(name)
        helper = path.with_name(f"{name}.py")
        if helper.exists():
            modules_used(helper, found)
    return found


def test_process_tests_are_not_run_on_windows_and_macos():
    module = re.compile(r"paddle\.(incubate\.)?multiprocessing\b")
    of_processes = {
        name
        for name in legacy_tests(own_files())
        if any(
            map(
                module.match,
                modules_used(REPO / LEGACY_TEST / f"{name}.py", set()),
            )
        )
    }
    assert of_processes
    assert of_processes <= named(r"REMOVE_ITEM TEST_OPS ")


def test_paddles_build_runs_every_python_test_on_linux(registered):
    assert legacy_tests(own_files()) <= registered.keys()


def test_paddles_build_without_gloo_lacks_only_tests_that_start_gloo(
    registered, tmp_path
):
    lacking = registered.keys() - registered_on("Linux", tmp_path, "OFF").keys()
    assert lacking & legacy_tests(own_files()) == {
        "test_shm_data_parallel",
        "test_shm_fleet",
        "test_shm_group",
        "test_shm_machine_transfers",
        "test_shm_machines",
    }


def test_paddles_build_runs_tests_on_macos_unless_they_need_linux(
    registered_on_macos,
):
    own = legacy_tests(own_files())
    run = own & registered_on_macos.keys()
    assert run == own - named(r"REMOVE_ITEM TEST_OPS ")


def test_long_tests_may_take_more_than_the_15_s_of_paddles_ci(registered):
    long = named(r"set_tests_properties\(")
    assert long
    assert all(registered[name].timeout_s > 15 for name in long)
