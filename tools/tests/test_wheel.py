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
"""The custom wheel, built from a made-up official one."""

from __future__ import annotations

import ast
import base64
import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from packaging.tags import sys_tags
from packaging.version import Version

from tools import wheel as wheel_tool
from tools.series import PatchError
from tools.tests.conftest import (
    AMP_SETTERS,
    CORE_MODULE,
    DEVICE,
    GRAD_FN,
    LOADER,
    OWN,
    PLACE_ERRORS,
    STAND_IN,
    STREAM_ERRORS,
    VERSION,
    commit,
    replace,
    write,
)
from tools.tree import git
from tools.wheel import beside_python, build, official_wheel, version_of

ADAPTERS = (AMP_SETTERS, LOADER, GRAD_FN, PLACE_ERRORS, STREAM_ERRORS)
METADATA = "Metadata-Version: 2.2\nName: {}\nVersion: {}\n\nVersion: none\n"
TAGS = str(next(sys_tags()))
LIBPADDLE = "paddle/base/libpaddle.so"
MODULE = "paddle/base/_shared_storage.so"
STUB = "paddle/tensor/tensor.pyi"
STUB_TEXT = """class AbstractTensor:
    def abs(self): ...

class Tensor(AbstractTensor): ...
"""
METHODS = "python/paddle/base/tensor_sharing.py"
METHODS_TEXT = """def is_shared(self: Tensor) -> bool:
    'Tells whether.'
    return True

def share_memory(self: Layer) -> Layer:
    return self
"""
HEAP = "paddle/phi/core/memory/allocation/shared_memory/shared_heap.cc"
HEADER = "paddle/phi/api/include/device_guards.h"


def pack(folder, output, name="paddlepaddle", version="3.3.0"):
    """Packs an unpacked made-up wheel as an official wheel."""
    (old,) = folder.glob("*.dist-info")
    info = old.rename(folder / f"{name}-{version}.dist-info")
    write(
        info,
        {
            "METADATA": METADATA.format(name, version),
            "WHEEL": "Wheel-Version: 1.0\nGenerator: made up\n"
            f"Root-Is-Purelib: false\nTag: {TAGS}\n",
        },
    )
    output.mkdir()
    command = [sys.executable, "-m", "wheel", "pack", "-d", output, folder]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return next(output.iterdir())


@pytest.fixture(autouse=True)
def compiled(monkeypatch):
    """The arguments of cmake_build, which writes a text as the module."""
    arguments = {}

    def cmake_build(source, folder, **variables):
        arguments.update(variables, source=source)
        write(folder, {Path(MODULE).name: "compiled"})

    monkeypatch.setattr(wheel_tool, "cmake_build", cmake_build)
    return arguments


@pytest.fixture
def wheel(wheel):
    names = "\0".join(["", "__pybind11_internals_v4_gcc_abi7__", "module"])
    write(wheel, {LIBPADDLE: names, STUB: STUB_TEXT})
    return wheel


@pytest.fixture
def repo(repo):
    write(repo, {METHODS: METHODS_TEXT, HEADER: "class Guard;\n"})
    return repo


@pytest.fixture
def official(wheel, tmp_path):
    return pack(wheel, tmp_path / "official")


def test_wheel_holds_patched_and_own_files(official, repo, tmp_path):
    made = build(official, tmp_path / "out", repo)
    with zipfile.ZipFile(made) as archive:
        own = archive.read(OWN[len("python/") :])
        patched = archive.read(DEVICE[len("python/") :])
    assert own == (repo / OWN).read_bytes()
    assert b"def f2(x, w=1):" in patched


def test_wheel_adapts_libpaddle_after_it_has_imported_it(
    official, repo, tmp_path
):
    made = build(official, tmp_path / "out", repo)
    with zipfile.ZipFile(made) as archive:
        core = archive.read(CORE_MODULE).decode()
        added = {
            source: archive.read(f"paddle/base/_{Path(source).name}")
            for source in ADAPTERS
        }
    names = "_amp_setters, _bindings, _grad_fn, _place_errors, _stream_errors"
    imports = f"from . import {names}"
    assert f"import libpaddle\n    {imports}" in core
    assert added == {each: (repo / each).read_bytes() for each in added}


def test_paddle_that_imports_libpaddle_in_another_way_is_refused(
    wheel, repo, tmp_path
):
    write(wheel, {CORE_MODULE: "import libpaddle\n"})
    base = pack(wheel, tmp_path / "official")
    with pytest.raises(PatchError, match="core.py does not have the line"):
        build(base, tmp_path / "out", repo)


@pytest.mark.parametrize("native", [True, False])
def test_stand_ins_are_in_the_wheel_without_native_parts(
    native, official, repo, tmp_path
):
    made = build(official, tmp_path / "out", repo, native=native)
    with zipfile.ZipFile(made) as archive:
        stand_in = f"paddle/base/{Path(STAND_IN).name}"
        assert (stand_in in archive.namelist()) is not native


def test_windows_line_ends_become_unix_line_ends(wheel, repo, tmp_path):
    path = DEVICE[len("python/") :]
    unix = (wheel / path).read_bytes()
    (wheel / path).write_bytes(unix.replace(b"\n", b"\r\n"))
    base = pack(wheel, tmp_path / "official")
    made = build(base, tmp_path / "out", repo, native=False)
    with zipfile.ZipFile(made) as archive:
        patched = archive.read(path)
    assert b"def f2(x, w=1):\n" in patched
    assert b"\r" not in patched


def test_wheel_without_native_parts_is_for_any_python_and_platform(
    official, repo, tmp_path, compiled
):
    other = official.with_name("paddlepaddle-3.3.0-cp39-cp39-win_amd64.whl")
    official.rename(other)
    made = build(other, tmp_path / "out", repo, native=False)
    assert made.name.startswith("paddlepaddle-3.3.0+threadsafe.python.")
    assert made.name.endswith("-cp39-cp39-win_amd64.whl")
    with zipfile.ZipFile(made) as archive:
        assert MODULE not in archive.namelist()
        assert OWN[len("python/") :] in archive.namelist()
    assert compiled == {}


def test_wheels_with_and_without_native_parts_differ_in_name(
    official, repo, tmp_path
):
    output = tmp_path / "out"
    names = {
        build(official, output, repo, native=native).name
        for native in (True, False)
    }
    assert len(names) == 2


def test_wheel_of_another_platform_is_downloaded_by_pip(tmp_path, monkeypatch):
    commands = []

    def run(*command):
        commands.append(command)
        folder = command[command.index("--dest") + 1]
        write(folder, {"paddlepaddle-3.3.0-cp39-cp39-win_amd64.whl": ""})

    monkeypatch.setattr(wheel_tool, "run", run)
    for _ in range(2):
        found = official_wheel("3.3.0", tmp_path, "win_amd64", "3.9")
        assert found.name == "paddlepaddle-3.3.0-cp39-cp39-win_amd64.whl"
    (command,) = commands
    assert command[command.index("--platform") + 1] == "win_amd64"
    assert command[command.index("--python-version") + 1] == "3.9"


def test_another_python_without_a_platform_is_refused(capsys):
    with pytest.raises(SystemExit):
        wheel_tool.main(["--python", "2.7"])
    assert "--python 2.7 needs --platform" in capsys.readouterr().err


# The second one is only the end of the file's platform name.
@pytest.mark.parametrize("platform", ["win_amd64", "x86_64"])
def test_file_of_another_platform_than_the_named_one_is_refused(
    official, capsys, platform
):
    assert official.stem.endswith("x86_64")
    arguments = ["--base", str(official), "--platform", platform]
    assert wheel_tool.main(arguments) == 1
    assert f"not for {platform}" in capsys.readouterr().err


def test_type_checkers_know_our_methods_of_tensor(official, repo, tmp_path):
    made = build(official, tmp_path / "out", repo)
    with zipfile.ZipFile(made) as archive:
        stub = archive.read(STUB).decode()
    abstract, _ = ast.parse(stub).body
    assert [method.name for method in abstract.body] == ["abs", "is_shared"]
    method = abstract.body[1]
    assert ast.unparse(method.args) == "self"
    assert ast.unparse(method.returns) == "bool"
    assert ast.get_docstring(method) == "Tells whether."


def test_stub_without_the_class_is_named(wheel, repo, tmp_path):
    write(wheel, {STUB: "class Other: ..."})
    base = pack(wheel, tmp_path / "official")
    with pytest.raises(PatchError, match=r"tensor\.pyi has no class"):
        build(base, tmp_path / "out", repo)


def test_version_is_local_and_the_same_everywhere(official, repo, tmp_path):
    made = build(official, tmp_path / "out", repo)
    version = version_of(made)
    assert version.public == "3.3.0"
    assert version.local.startswith("threadsafe.")
    assert version > Version("3.3.0")
    assert made.name.endswith(f"-{TAGS}.whl")
    with zipfile.ZipFile(made) as archive:
        info = f"paddlepaddle-{version}.dist-info"
        metadata = archive.read(f"{info}/METADATA").decode()
        infos = {
            n.split("/")[0] for n in archive.namelist() if "dist-info" in n
        }
    assert infos == {info}
    assert f"\nVersion: {version}\n" in metadata
    assert metadata.endswith("\nVersion: none\n")


def version_module(made):
    """Returns the names and values in `paddle.version` of a wheel."""
    with zipfile.ZipFile(made) as archive:
        source = archive.read(VERSION[len("python/") :]).decode()
    names = {}
    exec(source, names)
    return names


def test_paddle_version_names_the_wheel(official, repo, tmp_path, capsys):
    made = build(official, tmp_path / "out", repo)
    names = version_module(made)
    assert names["local_version"] == str(version_of(made))
    assert names["patches_commit"] is None
    capsys.readouterr()
    names["show"]()
    assert capsys.readouterr().out.splitlines() == [
        "full_version: 3.3.0",
        f"local_version: {version_of(made)}",
        "patches_commit: None",
        "base_commit: cbf34691",
        "cuda: False",
    ]


def test_versions_that_code_compares_are_those_of_the_base(
    official, repo, tmp_path
):
    names = version_module(build(official, tmp_path / "out", repo))
    assert names["full_version"] == "3.3.0"
    assert names["commit"] == "cbf34691"
    assert Version(names["local_version"]) > Version(names["full_version"])
    assert Version(names["local_version"]) in SpecifierSet("==3.3.0")


def test_paddle_version_has_the_commit_of_the_patches(official, repo, tmp_path):
    git(repo, "init --quiet")
    commit(repo, "The patches")
    head = git(repo, "rev-parse HEAD").strip()
    made = build(official, tmp_path / "clean", repo)
    assert version_module(made)["patches_commit"] == head
    with (repo / OWN).open("a") as file:
        file.write("# changed\n")
    made = build(official, tmp_path / "changed", repo)
    assert version_module(made)["patches_commit"] == f"{head}-dirty"


def test_unexpected_version_module_is_named(wheel, repo, tmp_path):
    path = VERSION[len("python/") :]
    replace(wheel / path, "    print('cuda:', cuda_version)\n", "")
    base = pack(wheel, tmp_path / "official")
    with pytest.raises(PatchError, match=r"version/__init__\.py has 0 lines"):
        build(base, tmp_path / "out", repo)
    assert list((tmp_path / "out").iterdir()) == []


def test_local_version_of_the_base_is_kept(wheel, repo, tmp_path):
    base = pack(wheel, tmp_path / "gpu", "paddlepaddle_gpu", "3.3.0+cu126")
    made = build(base, tmp_path / "out", repo)
    assert made.name.startswith("paddlepaddle_gpu-3.3.0+cu126.threadsafe.")


def test_record_has_every_file_with_its_hash(official, repo, tmp_path):
    made = build(official, tmp_path / "out", repo)
    with zipfile.ZipFile(made) as archive:
        (record,) = (n for n in archive.namelist() if n.endswith("/RECORD"))
        lines = archive.read(record).decode().splitlines()
        rows = [line.rsplit(",", 2) for line in lines]
        assert sorted(row[0] for row in rows) == sorted(archive.namelist())
        for name, digest, size in rows:
            if name == record:
                continue
            data = archive.read(name)
            sha = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
            assert digest == f"sha256={sha.decode().rstrip('=')}"
            assert int(size) == len(data)


def test_wheel_holds_the_extension_module(official, repo, tmp_path):
    made = build(official, tmp_path / "out", repo)
    with zipfile.ZipFile(made) as archive:
        assert archive.read(MODULE) == b"compiled"
        (record,) = (n for n in archive.namelist() if n.endswith("/RECORD"))
        assert f"{MODULE},sha256=" in archive.read(record).decode()


@pytest.mark.parametrize("native", [True, False])
def test_wheel_with_native_parts_holds_their_public_headers(
    native, official, repo, tmp_path
):
    made = build(official, tmp_path / "out", repo, native=native)
    with zipfile.ZipFile(made) as archive:
        assert (f"paddle/include/{HEADER}" in archive.namelist()) is native


def test_extension_is_compiled_for_this_python_and_libpaddle(
    official, repo, tmp_path, compiled
):
    build(official, tmp_path / "out", repo)
    assert compiled["source"] == repo / "tools" / "extension"
    assert compiled["PADDLE_ROOT"].name == "paddle"
    assert compiled["PYBIND_ABI"] == "_gcc_abi7"
    assert compiled["Python_EXECUTABLE"] == sys.executable


def test_cpp_sources_are_not_in_the_wheel(official, repo, tmp_path):
    patch = repo / "patches" / "0001-p.patch"
    replace(patch, f"Own-File: {OWN}\n", f"Own-File: {OWN}\nOwn-File: {HEAP}\n")
    write(repo, {HEAP: "int heap;\n"})
    made = build(official, tmp_path / "out", repo)
    with zipfile.ZipFile(made) as archive:
        assert HEAP not in archive.namelist()
        assert OWN[len("python/") :] in archive.namelist()


def test_libpaddle_without_pybind_is_named(wheel, repo, tmp_path):
    write(wheel, {LIBPADDLE: "something else"})
    base = pack(wheel, tmp_path / "official")
    with pytest.raises(PatchError, match="libpaddle.so.*pybind11"):
        build(base, tmp_path / "out", repo)
    assert list((tmp_path / "out").iterdir()) == []


def test_failing_compiler_leaves_no_wheel(
    official, repo, tmp_path, monkeypatch
):
    def fail(*_, **__):
        raise PatchError("shared_heap.cc:7: error")

    monkeypatch.setattr(wheel_tool, "cmake_build", fail)
    with pytest.raises(PatchError, match="shared_heap.cc:7"):
        build(official, tmp_path / "out", repo)
    assert list((tmp_path / "out").iterdir()) == []


def test_wheel_for_another_python_is_refused(official, repo, tmp_path):
    other = official.with_name("paddlepaddle-3.3.0-cp27-cp27mu-linux_ppc64.whl")
    official.rename(other)
    with pytest.raises(PatchError, match=f"cp27mu.*{TAGS}"):
        build(other, tmp_path / "out", repo)
    assert not (tmp_path / "out").exists()


def test_missing_compiler_is_reported_before_anything_is_built(
    official, repo, tmp_path, monkeypatch
):
    monkeypatch.setenv("PATH", os.devnull)
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(PatchError, match=r"no C\+\+ compiler.*install g"):
        build(official, tmp_path / "out", repo)
    assert not (tmp_path / "out").exists()


def test_missing_python_headers_are_reported(
    official, repo, tmp_path, monkeypatch
):
    monkeypatch.setattr(
        wheel_tool.sysconfig, "get_path", lambda _: str(tmp_path / "include")
    )
    with pytest.raises(PatchError, match="include/Python.h.*-dev"):
        build(official, tmp_path / "out", repo)
    assert not (tmp_path / "out").exists()


def test_missing_cmake_is_reported_with_a_remedy(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(PatchError, match="pip install cmake ninja"):
        beside_python("cmake")


def test_existing_wheel_is_not_built_again(official, repo, tmp_path):
    made = build(official, tmp_path / "out", repo)
    made.write_bytes(b"as it was")
    assert build(official, tmp_path / "out", repo) == made
    assert made.read_bytes() == b"as it was"


@pytest.mark.parametrize(
    "source",
    [OWN, HEAP, *ADAPTERS, STAND_IN],
)
def test_changed_source_gives_another_version(source, official, repo, tmp_path):
    write(repo, {source: "as it was"})
    native = source != STAND_IN
    before = build(official, tmp_path / "out", repo, native=native)
    write(repo, {source: "changed"})
    after = build(official, tmp_path / "out", repo, native=native)
    assert after.name != before.name


def test_failing_hunk_leaves_no_wheel(official, repo, tmp_path):
    patch = repo / "patches" / "0001-p.patch"
    replace(patch, "-    y = x + 3\n", "-    y = x + 33\n")
    with pytest.raises(PatchError, match="0001-p.patch"):
        build(official, tmp_path / "out", repo)
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    ("name", "fragment"),
    [
        ("paddlepaddle-3.2.2-cp311-cp311-linux_x86_64.whl", "3.2.2"),
        ("torch-3.3.0-cp311-cp311-linux_x86_64.whl", "torch"),
        ("paddle.zip", "paddle.zip"),
    ],
)
def test_base_that_is_not_supported_is_named(name, fragment, repo, tmp_path):
    base = tmp_path / name
    base.write_bytes(b"")
    with pytest.raises(PatchError, match=fragment):
        build(base, tmp_path / "out", repo)


def test_base_that_does_not_exist_is_named(repo, tmp_path):
    with pytest.raises(PatchError, match="'3.3.7'.*3.3.0"):
        build(tmp_path.__class__("3.3.7"), tmp_path / "out", repo)
