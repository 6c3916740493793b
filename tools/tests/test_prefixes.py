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
"""Every prefix of the series is a Paddle, with tests that can be imported."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path

import pytest

from tools.apply import REPO
from tools.prefixes import (
    changes_python,
    make_cpp_prefix,
    make_prefix,
    try_prefix,
)
from tools.series import load_series
from tools.tests.conftest import (
    CORE,
    DEVICE,
    OWN,
    OWN_TEST,
    snapshot,
    write,
)

STOCK = os.environ.get("PADDLE_WHEEL_TREE")


@pytest.fixture
def prefix(repo, wheel, tmp_path):
    """Makes a prefix of the small series."""
    own = {f"paddle/base/_{name}.so": "" for name in ("early", "late")}
    write(tmp_path / "ours", own)
    binding = "Own-File: paddle/fluid/pybind/early.cc\n"
    patch = repo / "patches" / "0001-p.patch"
    patch.write_text(patch.read_text().replace("---\n", f"{binding}---\n", 1))
    write(repo, {"paddle/fluid/pybind/early.cc": "// ours\n"})

    def make(number: int) -> Path:
        folder = tmp_path / f"prefix-{number}"
        folder.mkdir()
        make_prefix(repo, number, wheel, tmp_path / "ours", folder)
        return folder

    return make


def in_package(path: str) -> str:
    return path[len("python/") :]


def test_a_prefix_has_the_patches_so_far_and_no_more(prefix):
    first, second = prefix(1), prefix(2)
    assert (first / in_package(OWN)).exists()
    assert "w=1" not in (first / in_package(DEVICE)).read_text()
    assert "w=1" in (second / in_package(DEVICE)).read_text()


def test_the_official_wheel_stays_as_it_was(prefix, wheel):
    before = (wheel / in_package(DEVICE)).read_text()
    prefix(2)
    assert (wheel / in_package(DEVICE)).read_text() == before


def test_a_prefix_is_made_of_a_shorter_one_as_of_nothing(
    repo, wheel, prefix, tmp_path
):
    at_once, one, ours = prefix(3), prefix(1), tmp_path / "ours"
    make_prefix(repo, 3, wheel, ours, one, made=1)
    assert snapshot(one) == snapshot(at_once)


def test_a_prefix_has_its_own_tests_and_no_more(prefix):
    assert not (prefix(2) / OWN_TEST).exists()
    assert (prefix(3) / OWN_TEST).exists()


def test_a_prefix_has_the_bindings_that_it_brings(prefix):
    modules = (prefix(3) / "paddle" / "base").glob("*.so")
    assert [module.name for module in modules] == ["_early.so"]


def test_the_cpp_of_a_prefix_is_that_of_its_patches(repo, tmp_path):
    early, late = "paddle/phi/early.cc", "test/cpp/CMakeLists.txt"
    for number, path in ((1, early), (2, late)):
        patch = repo / "patches" / f"000{number}-p.patch"
        claim = f"Own-File: {path}\n---\n"
        patch.write_text(patch.read_text().replace("---\n", claim, 1))
        write(repo, {path: "ours\n"})
    source = tmp_path / "source"
    assert make_cpp_prefix(repo, 2, source)
    assert (source / early).exists()
    assert (source / late).exists()
    assert not make_cpp_prefix(repo, 3, source)
    assert make_cpp_prefix(repo, 1, source)
    assert (source / early).exists()
    assert not (source / late).exists()


def test_a_prefix_whose_tests_cannot_be_imported_fails(tmp_path):
    python = Path(sys.executable)
    write(tmp_path, {"paddle/__init__.py": "", "test/test_one.py": ""})
    assert try_prefix(python, tmp_path, tests=[]) == ""
    write(tmp_path, {"test/test_two.py": "import helper_of_a_later_patch\n"})
    assert "helper_of_a_later_patch" in try_prefix(python, tmp_path, tests=[])


def test_a_prefix_whose_paddle_cannot_be_imported_fails(tmp_path):
    write(tmp_path, {"paddle/__init__.py": "import paddle.later\n"})
    told = try_prefix(Path(sys.executable), tmp_path, tests=[])
    assert "No module named 'paddle.later'" in told


def test_what_python_imports_is_files_of_python_and_bindings(repo):
    patch = load_series(repo)[1]
    core = [part for part in patch.files if part.path == CORE]
    in_cpp = dataclasses.replace(patch, files=tuple(core))
    binding = "paddle/fluid/pybind/early.cc"
    assert core
    assert changes_python(patch)
    assert not changes_python(in_cpp)
    assert changes_python(dataclasses.replace(in_cpp, own_files=(binding,)))
    assert changes_python(dataclasses.replace(in_cpp, own_files=(OWN_TEST,)))


@pytest.fixture(scope="module")
def real_prefix(tmp_path_factory):
    """Makes prefixes of the real series, each of the one before it."""
    python = Path(os.environ["PADDLE_PYTHON"])
    ours = next(python.parents[1].glob("lib/python3*/site-packages"))
    folder = tmp_path_factory.mktemp("prefix")
    made = 0

    def make(number: int) -> Path:
        nonlocal made
        assert number > made, "prefixes are made in their order"
        make_prefix(REPO, number, Path(STOCK), ours, folder, made)
        made = number
        return folder

    return make


@pytest.mark.skipif(STOCK is None, reason="set PADDLE_WHEEL_TREE")
@pytest.mark.parametrize(
    "number",
    # The other patches leave all that is imported as it is.
    [n for n, p in enumerate(load_series(REPO), 1) if changes_python(p)],
)
def test_every_prefix_and_its_tests_can_be_imported(number, real_prefix):
    python = Path(os.environ["PADDLE_PYTHON"])
    assert try_prefix(python, real_prefix(number), tests=[]) == ""
