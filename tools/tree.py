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
"""The trees to which the series applies: unpacked wheels and git checkouts."""

from __future__ import annotations

import ast
import os
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tools.series import PatchError

if TYPE_CHECKING:
    from pathlib import Path

# The series is based on the first version and must also fit the others.
SUPPORTED = ("3.3.0", "3.3.1")

_REPOSITORY = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")


def run_git(
    folder: Path, command: str, *args: str, text: str = "", **environ: str
) -> subprocess.CompletedProcess:
    """Run git in a folder, in English and only on that folder's repository.

    Args:
        folder: the working directory.
        command: the words after ``git``.
        args: further arguments, which may contain spaces.
        text: standard input.
        environ: variables to set.

    Returns:
        The finished process; its output is UTF-8 text in which bytes that
        are not UTF-8 are kept as surrogates.

    Raises:
        PatchError: git is not installed.
    """
    inherited = {k: v for k, v in os.environ.items() if k not in _REPOSITORY}
    try:
        run = subprocess.run(
            ["git", *command.split(), *args],
            cwd=folder,
            env={**inherited, "LC_ALL": "C", **environ},
            input=text.encode("utf-8", "surrogateescape"),
            capture_output=True,
        )
    except FileNotFoundError:
        raise PatchError("git is not installed; install it") from None
    # Not text=True, which would turn \r\n into \n.
    run.stdout = run.stdout.decode("utf-8", "surrogateescape")
    run.stderr = run.stderr.decode("utf-8", "replace")
    return run


def git(folder: Path, command: str, *args: str, text: str = "") -> str:
    """Run git as run_git does and return its standard output.

    Raises:
        PatchError: git failed; the message has the command and its output.
    """
    run = run_git(folder, command, *args, text=text)
    if run.returncode:
        raise PatchError(f"git {command}: {run.stderr.strip()}")
    return run.stdout


@dataclass(frozen=True)
class Tree:
    """An unpacked wheel (kind "wheel") or a git checkout ("checkout")."""

    kind: str
    root: Path
    version: str

    @property
    def tag(self) -> str:
        """The tag of the version in Paddle's repository."""
        return f"v{self.version}"

    def locate(self, path: str) -> Path | None:
        """Return the place of a path of Paddle's repository in this tree.

        Returns:
            The absolute path, or None where a wheel has no place for it.
        """
        if self.kind == "checkout":
            return self.root / path
        if path.startswith("python/paddle/"):
            return self.root / path[len("python/") :]
        return None


def _wheel_version(path: Path) -> str:
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign):
            names = [getattr(target, "id", None) for target in node.targets]
            if names == ["full_version"]:
                return str(ast.literal_eval(node.value))
    raise PatchError(
        f"{path} does not set full_version; unpack the wheel again"
    )


def _checkout_version(root: Path, rev: str) -> str:
    found = run_git(root, "rev-parse --verify", f"{rev}^{{commit}}")
    if found.returncode:
        raise PatchError(f"{root} has no {rev}: {found.stderr.strip()}")
    run = run_git(root, "describe --tags --match=v[0-9]* --abbrev=0", rev)
    if run.returncode:
        raise PatchError(
            f"{root}: no version tag is reachable from {rev}"
            f" ({run.stderr.strip()}); fetch the tags with their history:"
            " git fetch --tags, in a shallow clone with --unshallow"
        )
    return run.stdout.strip()[1:]


def open_tree(root: Path, rev: str = "HEAD") -> Tree:
    """Return the tree at a folder, with its kind and version.

    Args:
        root: folder of an unpacked wheel, site-packages that hold one, or
            the root of a git checkout.
        rev: the commit of a checkout to use.

    Raises:
        PatchError: it is not a Paddle tree, or its version is unsupported.
    """
    root = root.resolve()
    version_file = root / "paddle" / "version" / "__init__.py"
    if (root / "python" / "paddle").is_dir() and (root / ".git").exists():
        tree = Tree("checkout", root, _checkout_version(root, rev))
    elif version_file.is_file() and any(root.glob("*.dist-info")):
        tree = Tree("wheel", root, _wheel_version(version_file))
    else:
        raise PatchError(
            f"{root} is not a Paddle tree: name the folder of an unpacked wheel"
            " (it has paddle/ and a *.dist-info folder) or the root of a git"
            " checkout of Paddle (it has python/paddle/ and .git)"
        )
    if tree.version not in SUPPORTED:
        raise PatchError(
            f"{root} is Paddle {tree.version}, but the patches are for"
            f" {' and '.join(SUPPORTED)}; check out the tag"
            f" v{SUPPORTED[0]}, or unpack a wheel of a supported version"
        )
    return tree
