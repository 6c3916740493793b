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
"""Fixtures: a made-up Paddle with a series for it, and the real Paddle."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from tools.environment import site_packages
from tools.fork_server import PACKAGES, fork_server
from tools.tree import git
from tools.wheel import REPO

FRAMEWORK = "python/paddle/base/framework.py"
DEVICE = "python/paddle/device/__init__.py"
CORE = "paddle/phi/core.cc"
OWN = "python/paddle/base/thread_device.py"
OWN_TEST = "test/legacy_test/test_thread_device.py"
VERSION = "python/paddle/version/__init__.py"
# Not below python/: no patch changes it.
CORE_MODULE = "paddle/base/core.py"
AMP_SETTERS = "tools/extension/amp_setters.py"
LOADER = "tools/extension/bindings.py"
GRAD_FN = "tools/extension/grad_fn.py"
PLACE_ERRORS = "tools/extension/place_errors.py"
STREAM_ERRORS = "tools/extension/stream_errors.py"
STAND_IN = "tools/without_native_parts/_thread_value.py"


def functions(count: int) -> str:
    return "\n\n".join(
        f"def f{n}(x):\n    y = x + {n}\n    return y\n" for n in range(count)
    )


PADDLE = {
    FRAMEWORK: functions(30),
    DEVICE: functions(6) + "\n\n@cached\ndef last(x):\n    return x\n",
    CORE: "// Core\nint first() { return 1; }\nint second() { return 2; }\n",
    VERSION: """import inspect

full_version     = '3.3.0'
major            = '3'
cuda_version     = 'False'
commit           = 'cbf34691'

def show() -> None:
    print('full_version:', full_version)
    print('cuda:', cuda_version)
""",
}

# Each patch: its subject, its replacements, its own files.
PATCHES = [
    (
        "base: one current device per thread",
        [
            (FRAMEWORK, "x + 3\n", "x + 3 + 0.5\n"),
            (
                FRAMEWORK,
                "    return y\n\n\ndef f20",
                "    return -y\n\n\ndef f20",
            ),
        ],
        [OWN],
    ),
    (
        "device: follow the thread",
        [
            (FRAMEWORK, "0.5\n", "0.5\n    y = -y\n"),
            (DEVICE, "def f2(x):\n", "def f2(x, w=1):\n"),
            (
                DEVICE,
                "@cached\n",
                "@cached\ndef g(x):\n    pass\n\n\n@cached\n",
            ),
            (CORE, "return 1;", "return -1;"),
        ],
        [],
    ),
    ("test: the current device of a thread", [], [OWN_TEST]),
]

# A preimage hash that patches/preimages lists for each of Paddle's files.
LISTED = "a" * 40

TRAILERS = (
    "Bug: https://example.com/issues/1\n"
    "Forwarded: not yet; waits for a reproducer\n"
    "Last-Update: 2026-11-21\n"
    "Drop-When: the issue is closed\n"
)


def write(root: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(text.encode())


def replace(file: Path, old: str, new: str) -> None:
    text = file.read_bytes().decode()
    assert text.count(old) == 1
    file.write_bytes(text.replace(old, new).encode())


def commit(checkout: Path, message: str) -> None:
    git(checkout, "add --all")
    git(checkout, "commit --quiet --allow-empty --file=-", text=message)


def new_checkout(root: Path, files: dict[str, str] = PADDLE) -> Path:
    write(root, files)
    git(root, "init --quiet --initial-branch=develop")
    commit(root, "Paddle")
    git(root, "tag v3.3.0")
    return root


def patch_text(subject: str, diff: str, own: list[str]) -> str:
    claims = "".join(f"Own-File: {path}\n" for path in own)
    body = "A reason\nof two lines.\n\nAnd # another."
    return f"Subject: {subject}\n\n{body}\n\n{TRAILERS}{claims}---\n{diff}"


def diff_text(hunk: str, path: str = DEVICE) -> str:
    return (
        f"diff --git a/{path} b/{path}\nindex {LISTED}..{'1' * 40} 100644\n"
        f"--- a/{path}\n+++ b/{path}\n{hunk}"
    )


def add_patch(repo: Path, name: str, text: str) -> None:
    write(repo, {f"patches/{name}": text})
    with (repo / "patches" / "series").open("a") as series:
        series.write(f"{name}\n")


def new_repo(root: Path, source: Path, patches: list = PATCHES) -> Path:
    """Create the repository of a series; commit its edits in source."""
    preimages = f"{LISTED} test/b.py Paddle\n"
    for path in PADDLE:
        text = git(source, "hash-object", path).strip()
        preimages += f"{LISTED} {path} Paddle\n{text} {path} Paddle\n"
    write(
        root,
        {
            "patches/series": "# applied in this order\n",
            "patches/preimages": f"# taken from real files\n{preimages}",
            AMP_SETTERS: "# amp_setters\n",
            LOADER: "# the loader\n",
            GRAD_FN: "# grad_fn\n",
            PLACE_ERRORS: "# place_errors\n",
            STREAM_ERRORS: "# stream_errors\n",
            STAND_IN: "# the stand-in\n",
        },
    )
    for number, (subject, edits, own) in enumerate(patches, 1):
        for path, old, new in edits:
            replace(source / path, old, new)
        diff = git(source, "diff -U1 --full-index")
        commit(source, subject)
        add_patch(root, f"{number:04}-p.patch", patch_text(subject, diff, own))
        write(root, dict.fromkeys(own, f"# ours, of {subject}\n"))
    return root


def snapshot(root: Path) -> dict[str, tuple]:
    """Return all files and folders below a folder, without .git."""
    return {
        path.relative_to(root).as_posix(): (
            stat.filemode(path.lstat().st_mode),
            path.read_bytes() if path.is_file() else None,
        )
        for path in root.rglob("*")
        if ".git" not in path.parts
    }


@pytest.fixture(scope="session")
def wheel_tree() -> Path:
    """The folder of an unpacked official wheel."""
    tree = os.environ.get("PADDLE_WHEEL_TREE")
    if not tree:
        pytest.skip("set PADDLE_WHEEL_TREE to the folder of an official wheel")
    return Path(tree)


@pytest.fixture(scope="session")
def paddle_python():
    """The Python with the custom wheel."""
    python = os.environ.get("PADDLE_PYTHON")
    if not python:
        pytest.skip("set PADDLE_PYTHON to a Python that has the custom wheel")
    return python


def environ_with(variables: dict[str, str | None]) -> dict[str, str]:
    environ = {**os.environ, **variables}
    return {name: v for name, v in environ.items() if v is not None}


@pytest.fixture(scope="session")
def start_paddle(paddle_python):
    """
    Runs the Python with the custom wheel, in this process's environment plus
    the given variables; a variable that is None is unset.
    """

    def run(*arguments, cwd=REPO, **variables):
        return subprocess.run(
            [paddle_python, *map(str, arguments)],
            cwd=cwd,
            env=environ_with(variables),
            capture_output=True,
            text=True,
            timeout=600,
        )

    return run


@pytest.fixture(scope="session")
def run_paddle(paddle_python):
    """Does what start_paddle does, for code or a script, in less time."""
    package = site_packages(Path(paddle_python)) / "paddle"
    with fork_server(paddle_python, PACKAGES, package) as server:

        def run(*arguments, cwd=REPO, **variables):
            words = [*map(str, arguments)]
            return server(words, cwd, environ_with(variables))

        yield run


@pytest.fixture
def git_home(tmp_path, monkeypatch):
    """A home folder with a git identity, and no other git configuration."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    home = tmp_path / "home"
    write(home, {".gitconfig": "[user]\nname = Ada\nemail = ada@example.com\n"})
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    return home


@pytest.fixture
def checkout(tmp_path, git_home):
    return new_checkout(tmp_path / "checkout")


@pytest.fixture
def wheel(tmp_path):
    root = tmp_path / "wheel"
    files = {p[len("python/") :]: t for p, t in PADDLE.items() if p != CORE}
    files[CORE_MODULE] = "try:\n    from . import libpaddle\n"
    write(root, {**files, "paddlepaddle-3.3.0.dist-info/RECORD": ""})
    return root


@pytest.fixture
def repo(tmp_path, git_home):
    return new_repo(tmp_path / "repo", new_checkout(tmp_path / "source"))
