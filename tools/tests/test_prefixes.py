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
"""Every prefix of the series is a Paddle that can be imported, with tests."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path

import pytest

from tools.apply import REPO
from tools.fork_server import PACKAGES, fork_server
from tools.prefixes import (
    all_tests,
    changes_python,
    import_prefix,
    make_cpp_prefix,
    make_prefix,
    python_tests,
)
from tools.series import load_sections, load_series
from tools.tests.conftest import (
    CORE,
    DEVICE,
    OWN,
    OWN_TEST,
    diff_text,
    snapshot,
    write,
)


def claim(repo: Path, number: int, path: str) -> None:
    """Adds an own file to a patch of the small series."""
    patch = repo / "patches" / f"{number:04}-p.patch"
    line = f"Own-File: {path}\n---\n"
    patch.write_text(patch.read_text().replace("---\n", line, 1))
    write(repo, {path: "// ours\n"})


@pytest.fixture
def prefix(repo, wheel, tmp_path):
    """Creates a prefix of the small series."""
    own = {f"paddle/base/_{name}.so": "" for name in ("early", "late")}
    write(tmp_path / "ours", own)
    claim(repo, 1, "paddle/fluid/pybind/early.cc")

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


def test_a_prefix_built_on_a_shorter_one_is_the_same(
    repo, wheel, prefix, tmp_path
):
    at_once, one, ours = prefix(3), prefix(1), tmp_path / "ours"
    make_prefix(repo, 3, wheel, ours, one, made=1)
    assert snapshot(one) == snapshot(at_once)


def test_a_prefix_has_own_files_as_its_patches_leave_them(
    repo, prefix, wheel, tmp_path
):
    write(repo, {OWN: "# ours\n# later\n"})
    diff = diff_text("@@ -1 +1,2 @@\n # ours\n+# later\n", OWN)
    with (repo / "patches" / "0003-p.patch").open("a") as patch:
        patch.write(diff)
    one = prefix(1)
    assert (one / in_package(OWN)).read_text() == "# ours\n"
    assert (prefix(3) / in_package(OWN)).read_text() == "# ours\n# later\n"
    make_prefix(repo, 3, wheel, tmp_path / "ours", one, made=1)
    assert (one / in_package(OWN)).read_text() == "# ours\n# later\n"


def test_a_prefix_has_its_own_tests_and_no_more(prefix):
    assert not (prefix(2) / OWN_TEST).exists()
    assert (prefix(3) / OWN_TEST).exists()


def test_a_prefix_has_the_bindings_that_it_brings(prefix):
    modules = (prefix(3) / "paddle" / "base").glob("*.so")
    assert [module.name for module in modules] == ["_early.so"]


def test_a_prefix_has_the_modules_that_only_the_wheel_has(repo, prefix):
    write(repo, {"tools/extension/late_module.cc": "// ours\n"})
    modules = (prefix(1) / "paddle" / "base").glob("*.so")
    assert {module.name for module in modules} == {"_early.so", "_late.so"}


def test_a_prefix_has_the_headers_that_it_brings(repo, prefix, tmp_path):
    names = [f"paddle/phi/api/include/{name}.h" for name in ("one", "two")]
    for number, header in enumerate(names, 1):
        claim(repo, number, header)
        write(tmp_path / "ours" / "paddle" / "include", {header: ""})
    include = prefix(1) / "paddle" / "include"
    assert (include / names[0]).exists()
    assert not (include / names[1]).exists()


def test_a_cpp_prefix_has_only_the_files_of_its_patches(repo, tmp_path):
    early, late = "paddle/phi/early.cc", "test/cpp/CMakeLists.txt"
    claim(repo, 1, early)
    claim(repo, 2, late)
    source = tmp_path / "source"
    assert make_cpp_prefix(repo, 2, source)
    assert (source / early).exists()
    assert (source / late).exists()
    assert not make_cpp_prefix(repo, 3, source)
    assert make_cpp_prefix(repo, 1, source)
    assert (source / early).exists()
    assert not (source / late).exists()


def test_a_cpp_prefix_has_own_files_as_its_patches_leave_them(repo, tmp_path):
    early = "paddle/phi/early.cc"
    claim(repo, 1, early)
    write(repo, {early: "// ours\n// later\n"})
    diff = diff_text("@@ -1 +1,2 @@\n // ours\n+// later\n", early)
    with (repo / "patches" / "0003-p.patch").open("a") as patch:
        patch.write(diff)
    source = tmp_path / "source"
    assert not make_cpp_prefix(repo, 2, source)
    assert (source / early).read_text() == "// ours\n"
    assert make_cpp_prefix(repo, 3, source)
    assert (source / early).read_text() == "// ours\n// later\n"


@pytest.fixture
def server():
    with fork_server(sys.executable, ["pytest"]) as server:
        yield server


def test_a_prefix_whose_tests_cannot_be_imported_fails(server, tmp_path):
    one, two = "test/test_one.py", "test/test_two.py"
    write(tmp_path, {"paddle/__init__.py": "", one: "def test(): pass\n"})
    assert import_prefix(server, tmp_path, [one]) == ""
    write(tmp_path, {two: "import helper_of_a_later_patch\n"})
    assert import_prefix(server, tmp_path, [one]) == ""
    error = import_prefix(server, tmp_path, [one, two])
    assert "helper_of_a_later_patch" in error


def test_a_prefix_whose_paddle_cannot_be_imported_fails(server, tmp_path):
    write(tmp_path, {"paddle/__init__.py": "import paddle.later\n"})
    error = import_prefix(server, tmp_path, [])
    assert "No module named 'paddle.later'" in error


def test_each_prefix_is_imported_anew(server, tmp_path):
    for name in ("one", "two"):
        init = f"import sys\nprint({name!r})\nsys.exit(1)\n"
        write(tmp_path / name, {"paddle/__init__.py": init})
        assert import_prefix(server, tmp_path / name, []) == f"{name}\n"


def test_a_prefix_whose_import_crashes_without_output_fails(server, tmp_path):
    init = "import os\nos.kill(os.getpid(), 9)\n"
    write(tmp_path, {"paddle/__init__.py": init})
    assert import_prefix(server, tmp_path, []) == "exit status -9"


def test_paddle_from_another_folder_fails(server, tmp_path, monkeypatch):
    write(tmp_path, {"other/paddle/__init__.py": ""})
    monkeypatch.syspath_prepend(tmp_path / "other")
    (tmp_path / "empty").mkdir()
    assert import_prefix(server, tmp_path / "empty", []) != ""


def test_python_imports_python_files_and_bindings(repo):
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
def real_prefix(tmp_path_factory, wheel_tree):
    """Creates prefixes of the real series, each from the previous one."""
    python = Path(os.environ["PADDLE_PYTHON"])
    ours = next(python.parents[1].glob("lib/python3*/site-packages"))
    folder = tmp_path_factory.mktemp("prefix")
    made = 0

    def make(number: int) -> Path:
        nonlocal made
        assert number > made, "prefixes must be created in order"
        make_prefix(REPO, number, wheel_tree, ours, folder, made)
        made = number
        return folder

    return make


def imported_tests():
    """
    Returns the number of each patch that changes a file that Python imports,
    with its own tests, or with all tests so far if the patch is the last one of
    a pull request.
    """
    last = {part.names[-1] for part in load_sections(REPO) if part.names}
    series = load_series(REPO)
    found = []
    for number, patch in enumerate(series, 1):
        if patch.name in last:
            found.append((number, all_tests(series[:number])))
        elif changes_python(patch):
            found.append((number, python_tests(patch)))
    return found


@pytest.fixture(scope="module")
def paddle_server(wheel_tree):
    python = os.environ["PADDLE_PYTHON"]
    with fork_server(python, PACKAGES, wheel_tree / "paddle") as server:
        yield server


@pytest.mark.parametrize(("number", "tests"), imported_tests())
def test_every_prefix_and_its_tests_can_be_imported(
    number, tests, real_prefix, paddle_server
):
    assert import_prefix(paddle_server, real_prefix(number), tests) == ""
