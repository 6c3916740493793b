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
"""Tests the tree after each patch, as if only the patches so far were merged.

    python -m tools.prefixes [--run | --run-all] [--cpp] [NUMBER ...]

For each patch NUMBER (default: all patches), builds a Paddle from the official
wheel, the patches up to that one, their own files as that patch leaves them,
and the final bindings. Then pytest imports this Paddle and all its tests. With
--run it also runs the tests that the patch itself adds or changes, and with
--run-all the tests of all patches up to it, which takes minutes for each patch.
With --cpp it also builds the C++ tests of the patches up to each patch that
adds or changes C++.

Exit status: 0 when all passed, otherwise 1.
"""

from __future__ import annotations

import argparse
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tools.apply import apply_patches, write_files
from tools.command_line import let_tests_interrupt_processes, reports_errors
from tools.environment import host_device, site_packages, stock_and_ours
from tools.fork_server import PACKAGES, fork_server
from tools.own_files import own_versions
from tools.series import PatchError, load_series
from tools.tree import SUPPORTED, open_tree
from tools.wheel import BUILD, REPO, adapt_libpaddle, cmake_build

if TYPE_CHECKING:
    from collections.abc import Callable

    from tools.fork_server import RunInFork
    from tools.series import Patch

# Imports the Paddle of a folder, and lets pytest import its tests.
#
# No garbage is collected during an import, and pytest's collections skip what
# was imported: otherwise this would take a third of the time. For the same
# reason, the process runs its exit functions, but does not destroy objects.
IMPORT = """
import atexit
import gc
import os
import sys

import pytest

gc.disable()
folder, *tests = sys.argv[1:]
sys.path.insert(0, folder)
import paddle

gc.freeze()
if not paddle.__file__.startswith(folder):
    sys.exit(f"{paddle.__file__} is not in {folder}")
status = 0
if tests:
    status = pytest.main(["-q", "--collect-only", "--assert=plain", *tests])
atexit._run_exitfuncs()
sys.stdout.flush()
sys.stderr.flush()
os._exit(status)
"""


# The series stays the same while the prefixes are made.
@functools.lru_cache(None)
def _series(
    repo: Path,
) -> tuple[list[Patch], list[dict[str, tuple[bytes, int]]]]:
    """Return the patches, and the own files as each patch leaves them."""
    series = load_series(repo)
    return series, own_versions(repo, series)


def _own_files(repo: Path, number: int) -> dict[str, tuple[bytes, int]]:
    """Return the own files of the first patches, as these leave them."""
    versions = _series(repo)[1][:number]
    return {path: file for part in versions for path, file in part.items()}


def _link(source: str | Path, target: str | Path) -> None:
    """Link instead of copying: patched files are replaced, not written to."""
    # A hard link would need the same file system.
    os.symlink(source, target)


def changes_python(patch: Patch) -> bool:
    """Return whether a patch changes a file that Python imports."""
    paths = [*(part.path for part in patch.files), *patch.own_files]
    # An own file in this folder is a binding module of libpaddle.
    bindings = "paddle/fluid/pybind/"
    return any(
        path.endswith(".py") or path.startswith(bindings) for path in paths
    )


def make_prefix(
    repo: Path,
    number: int,
    stock: Path,
    ours: Path,
    folder: Path,
    made: int = 0,
) -> None:
    """Create a Paddle with the first patches of the series, and their tests.

    Args:
        repo: the root of the repository that holds patches/.
        number: how many patches.
        stock: site-packages with the official Paddle.
        ours: site-packages with the custom Paddle, for its extension modules.
        folder: gets paddle/ and test/; empty, or with a shorter prefix.
        made: how many patches the prefix in the folder has.

    Raises:
        PatchError: the patches need a file that only a later patch adds.
    """
    patches = _series(repo)[0][made:number]
    if made == 0:
        shutil.copytree(
            stock / "paddle", folder / "paddle", copy_function=_link
        )
        (folder / "paddlepaddle.dist-info").mkdir()
        adapt_libpaddle(repo, folder / "paddle")
        # Libraries that extension modules load, whichever patch adds them.
        for library in (ours / "paddle" / "base").glob("libpaddle_*.so"):
            _link(library, folder / "paddle" / "base" / library.name)
    added = {path for patch in patches for path in patch.own_files}
    changed = {part.path for patch in patches for part in patch.files}
    own = {
        path: file
        for path, file in _own_files(repo, number).items()
        if path in added | changed
    }
    tree = open_tree(folder)
    for path in own.keys() - added:
        # As the shorter prefix has it.
        if tree.locate(path):
            tree.locate(path).unlink()
    apply_patches(patches, own, tree)
    write_files(
        {
            folder / path: file
            for path, file in own.items()
            if path.startswith("test/")
        }
    )
    for module in (ours / "paddle" / "base").glob("_*.so"):
        name = module.name.partition(".")[0].lstrip("_")
        binding = f"paddle/fluid/pybind/{name}.cc"
        in_wheel_alone = (
            not (repo / binding).exists()
            and (repo / "tools" / "extension" / f"{name}_module.cc").exists()
        )
        if binding in added or (in_wheel_alone and made == 0):
            _link(module, folder / "paddle" / "base" / module.name)
    include = Path("paddle", "include")
    write_files(
        {
            folder / include / path: file
            for path, file in own.items()
            if (ours / include / path).exists()
        }
    )


def make_cpp_prefix(repo: Path, number: int, source: Path) -> bool:
    """Create a tree with the C++ and the CMake files of the first patches.

    Files that are the same stay untouched, so that a build does not recompile
    what it has compiled for an earlier prefix.

    Args:
        repo: the root of the repository that holds patches/.
        number: how many patches.
        source: the tree; files of other patches are removed from it.

    Returns:
        Whether the last of the patches adds or changes any such file.
    """
    files = {
        source / path: file
        for path, file in _own_files(repo, number).items()
        if not path.endswith(".py")
    }
    for old in source.rglob("*"):
        if old.is_file() and old not in files:
            old.unlink()
    changed = {
        path: (data, mode)
        for path, (data, mode) in files.items()
        if not path.exists() or path.read_bytes() != data
    }
    write_files(changed)
    last = _series(repo)[0][number - 1]
    paths = [*last.own_files, *(part.path for part in last.files)]
    return any(source / path in files for path in paths)


def build_cpp(stock: Path) -> Callable[[int], str]:
    """Return a function that builds the C++ tests of a prefix.

    It takes the number of patches and returns the error, or "".

    Args:
        stock: site-packages with the official Paddle.
    """
    folder = BUILD / "prefixes"
    shutil.rmtree(folder, ignore_errors=True)

    def build(number: int) -> str:
        if not make_cpp_prefix(REPO, number, folder / "source"):
            return ""
        try:
            cmake_build(
                REPO / "tools" / "cpp_tests",
                folder / "build",
                PADDLE_SOURCE_DIR=folder / "source",
                PADDLE_ROOT=stock / "paddle",
            )
        except PatchError as error:
            return str(error)
        return ""

    return build


def import_prefix(server: RunInFork, folder: Path, tests: list[str]) -> str:
    """Import a prefix in a separate process.

    Args:
        server: runs the process.
        folder: the prefix.
        tests: test files or folders in it, which pytest imports.

    Returns:
        The output of Python or pytest if an import fails, or "".
    """
    environ = {
        **os.environ,
        # Longer prefixes reuse the bytecode.
        "PYTHONDONTWRITEBYTECODE": "",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    done = server(["-c", IMPORT, str(folder), *tests], folder, environ)
    # A process that a signal killed may have printed nothing.
    output = done.stdout + done.stderr or f"exit status {done.returncode}"
    return output if done.returncode else ""


def run_tests(python: Path, folder: Path, tests: list[str]) -> str:
    """Run tests of a prefix; return pytest's output if it fails, else ""."""
    done = subprocess.run(
        [str(python), "-m", "pytest", "-q", *tests],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(folder),
            # Longer prefixes reuse the bytecode.
            "PYTHONDONTWRITEBYTECODE": "",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.stdout if done.returncode else ""


def python_tests(patch: Patch) -> list[str]:
    """Return the Python test files that a patch adds or changes."""
    paths = [*patch.own_files, *(part.path for part in patch.files)]
    return [
        path
        for path in paths
        if path.endswith(".py") and Path(path).name.startswith("test_")
    ]


def all_tests(patches: list[Patch]) -> list[str]:
    """Return the folder of the Python tests of a prefix, if it has any.

    Given files instead, pytest would read their folder again for each.
    """
    return ["test"] if any(map(python_tests, patches)) else []


@reports_errors
def main(argv: list[str] | None = None) -> int:
    """Run the command line; the module docstring gives the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.prefixes",
        description="Test the tree after each patch.",
    )
    series = load_series(REPO)
    add = parser.add_argument
    add("numbers", type=int, nargs="*", metavar="NUMBER")
    run = parser.add_mutually_exclusive_group().add_argument
    run("--run", action="store_true", help="also run the tests of the patch")
    run("--run-all", action="store_true", help="also run all tests so far")
    add("--cpp", action="store_true", help="also build the C++ tests")
    args = parser.parse_args(argv)
    let_tests_interrupt_processes()
    for number in args.numbers:
        if not 0 < number <= len(series):
            raise PatchError(
                f"there is no patch {number}; the series has {len(series)}"
            )
    python, ours = stock_and_ours(SUPPORTED[0])
    stock = site_packages(python)
    os.environ["CUSTOM_DEVICE_ROOT"] = str(host_device(python))
    cpp = build_cpp(stock) if args.cpp else None
    failed = False
    with fork_server(python, PACKAGES, stock / "paddle") as server:
        for number in args.numbers or range(1, len(series) + 1):
            patches = series[:number]
            so_far = all_tests(patches)
            own_tests = python_tests(patches[-1]) if args.run else []
            tests = so_far if args.run_all else own_tests
            with tempfile.TemporaryDirectory(dir=BUILD) as name:
                folder = Path(name)
                make_prefix(REPO, number, stock, site_packages(ours), folder)
                error = import_prefix(server, folder, so_far)
                if tests and not error:
                    error = run_tests(python, folder, tests)
            if cpp and not error:
                error = cpp(number)
            result = "FAILED" if error else "passed"
            print(f"{result}  {patches[-1].name}", flush=True)
            if error:
                print(error)
                failed = True
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
