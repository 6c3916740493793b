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
"""Builds the custom wheel from an official one.

    python -m tools.wheel [--base VERSION_OR_FILE] [--output FOLDER]
                          [--platform PLATFORM] [--python VERSION]

Our C++ is compiled as extension modules for the running Python. With
--platform it is left out: such a wheel without native parts can be built on any
machine, for any platform and Python that has an official wheel. The local
version of the wheel contains a digest of all sources, so that a wheel built
from the same sources is reused.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import mmap
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import textwrap
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.tags import sys_tags
from packaging.utils import (
    InvalidWheelFilename,
    canonicalize_name,
    parse_wheel_filename,
)
from packaging.version import Version
from rich.console import Console

from tools.apply import apply
from tools.command_line import reports_errors
from tools.series import PatchError
from tools.tree import SUPPORTED, open_tree, run_git

if TYPE_CHECKING:
    from collections.abc import Iterator

REPO = Path(__file__).resolve().parent.parent
BUILD = REPO / "build"
RUNNING_PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
LOCAL_LABEL = "threadsafe"
# Follows LOCAL_LABEL in the version of a wheel without native parts.
PYTHON_ONLY_LABEL = "python"
EXTENSION = Path("tools", "extension")
# Its Python files that change libpaddle, in the order of their imports.
LIBPADDLE_ADAPTERS = (
    "amp_setters",
    "bindings",
    "grad_fn",
    "place_errors",
    "stream_errors",
)
STAND_INS = Path("tools", "without_native_parts")
PUBLIC_HEADERS = Path("paddle", "phi", "api", "include")
TENSOR_STUB = Path("tensor", "tensor.pyi")
TENSOR_METHODS = Path("python", "paddle", "base", "tensor_sharing.py")
COMPILERS = ("c++", "g++", "clang++")

console = Console(highlight=False)


@contextmanager
def step(doing: str) -> Iterator[None]:
    """Shows that a long step is in progress, and then that it is done."""
    with console.status(doing):
        yield
    console.print(f"[green]done[/green]  {doing}")


def run(*command: str | Path) -> None:
    """Runs a command without showing its output.

    Raises:
        PatchError: it failed; the message has the end of its output.
    """
    done = subprocess.run(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        raise PatchError(
            f"{' '.join(map(str, command))} failed:\n{done.stdout[-2000:]}"
        )


def beside_python(name: str) -> Path:
    """Returns a program that a PyPI package installs next to Python.

    Raises:
        PatchError: the program is not installed.
    """
    program = Path(sys.executable).with_name(name)
    if not program.exists():
        raise PatchError(
            f"{program} does not exist; install it with"
            f" {sys.executable} -m pip install cmake ninja"
        )
    return program


def cmake_build(
    source: Path, folder: Path, target: str = "all", **variables: str | Path
) -> None:
    """Builds a CMake project.

    Args:
        source: the folder of its CMakeLists.txt.
        folder: where to build.
        target: the target to build.
        variables: CMake variables to set.

    Raises:
        PatchError: CMake or Ninja is missing, or the build failed.
    """
    cmake = beside_python("cmake")
    run(
        *(cmake, "-G", "Ninja", "-S", source, "-B", folder),
        f"-DCMAKE_MAKE_PROGRAM={beside_python('ninja')}",
        *(f"-D{name}={value}" for name, value in variables.items()),
    )
    run(cmake, "--build", folder, "--target", target)


def official_wheel(
    version: str,
    folder: Path,
    platform: str | None = None,
    python: str = RUNNING_PYTHON,
) -> Path:
    """Returns Paddle's official wheel, after downloading it if necessary.

    Args:
        version: the version of Paddle.
        folder: the folder of downloaded wheels.
        platform: the platform of the wheel, as pip names it; None for this
            machine's.
        python: the version of Python, such as 3.11.

    Raises:
        PatchError: there is no such wheel.
    """
    folder = folder / f"cp{python.replace('.', '')}" / (platform or "")
    pattern = f"paddlepaddle-{version}-*.whl"
    chosen = ("--platform", platform, "--python-version", python)
    if not any(folder.glob(pattern)):
        with step(f"downloading paddlepaddle {version}"):
            run(
                *(sys.executable, "-m", "pip", "download", "--no-deps"),
                *("--only-binary", ":all:", "--dest", folder),
                *(chosen if platform else ()),
                f"paddlepaddle=={version}",
            )
    return next(folder.glob(pattern))


def version_of(base: Path) -> Version:
    """Returns the version in a wheel's file name.

    Raises:
        PatchError: it is not a file, not a Paddle wheel, or not supported.
    """
    if not base.is_file():
        raise PatchError(
            f"the base {str(base)!r} is neither a supported version "
            f"({', '.join(SUPPORTED)}) nor a wheel file"
        )
    try:
        name, version, _, _ = parse_wheel_filename(base.name)
    except InvalidWheelFilename as error:
        raise PatchError(f"{base} is not a wheel: {error}") from None
    if not canonicalize_name(name).startswith("paddlepaddle"):
        raise PatchError(f"{base} is a wheel of {name}, not of paddlepaddle")
    if version.base_version not in SUPPORTED:
        raise PatchError(
            f"{base} has version {version}; supported versions are "
            f"{', '.join(SUPPORTED)}"
        )
    return version


def stand_ins(repo: Path) -> list[Path]:
    """Returns the modules that stand in for bindings that Paddle needs."""
    return sorted((repo / STAND_INS).glob("_*.py"))


def digest_of(base: Path, repo: Path, native: bool) -> str:
    """Returns a short digest of the base wheel and of our sources."""
    digest = hashlib.sha256()
    sources = [
        path
        for folder in ("patches", "python", "paddle", EXTENSION)
        for path in sorted((repo / folder).rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    ]
    if not native:
        sources += stand_ins(repo)
    for path in [base, Path(__file__), *sources]:
        digest.update(path.name.encode())
        with path.open("rb") as file:
            for block in iter(lambda: file.read(1 << 20), b""):
                digest.update(block)
    return digest.hexdigest()[:8]


def set_version(folder: Path, version: Version) -> None:
    """Sets the version of an unpacked wheel; packing updates its RECORD."""
    (info,) = folder.glob("*.dist-info")
    metadata = info / "METADATA"
    text, count = re.subn(
        r"^Version: .*$",
        f"Version: {version}",
        metadata.read_text(encoding="utf-8"),
        count=1,
        flags=re.MULTILINE,
    )
    if count != 1:
        raise PatchError(f"{metadata} has no Version field")
    metadata.write_text(text, encoding="utf-8")
    name = info.name.split("-", 1)[0]
    info.rename(info.with_name(f"{name}-{version}.dist-info"))


def commit_of(repo: Path) -> str | None:
    """
    Returns the checked-out commit, with "-dirty" if files differ from it, or
    None if the folder is not in a git repository.
    """
    described = run_git(
        repo, "describe --always --dirty --abbrev=40 --exclude=*"
    )
    return None if described.returncode else described.stdout.strip()


def write_version(package: Path, version: Version, commit: str | None) -> None:
    """Adds the version and commit of this wheel to `paddle.version`.

    `paddle.__version__` and other values that code compares stay as in the base
    wheel.

    Raises:
        PatchError: the file does not look like the one that Paddle generates.
    """
    path = package / "version" / "__init__.py"
    text = path.read_text(encoding="utf-8")
    for anchor, lines in (
        (
            r"^full_version\b.*\n",
            rf"\g<0>local_version    = {str(version)!r}\n"
            rf"patches_commit   = {commit!r}\n",
        ),
        (
            r"^    print\('cuda:', cuda_version\)\n",
            r"    print('local_version:', local_version)\n"
            r"    print('patches_commit:', patches_commit)\n"
            r"    print('base_commit:', commit)\n\g<0>",
        ),
    ):
        text, count = re.subn(anchor, lines, text, flags=re.MULTILINE)
        if count != 1:
            raise PatchError(
                f"{path} has {count} lines that match {anchor!r} instead of one"
            )
    path.write_text(text, encoding="utf-8")


def check_can_compile(base: Path) -> None:
    """Checks that an extension module for a wheel can be compiled here.

    Raises:
        PatchError: the wheel is for another Python or machine, or the headers
            or the compiler are missing.
    """
    tags = parse_wheel_filename(base.name)[3]
    if tags.isdisjoint(sys_tags()):
        raise PatchError(
            f"{base.name} is for {', '.join(sorted(map(str, tags)))}, but"
            f" {sys.executable} is {next(sys_tags())}: extension modules are"
            " compiled for the Python that runs this tool. Run the tool with"
            " the Python of the wheel, or leave the extension modules out with"
            " --platform"
        )
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.is_file():
        raise PatchError(
            f"{header} does not exist; install the headers of"
            f" {sys.executable}, on Debian the package"
            f" python{sys.version_info[0]}.{sys.version_info[1]}-dev"
        )
    if "CXX" not in os.environ and not any(map(shutil.which, COMPILERS)):
        raise PatchError(
            f"no C++ compiler was found ({', '.join(COMPILERS)}); install g++,"
            " or set the environment variable CXX to one"
        )


def pybind_abi(library: Path) -> str:
    """Returns the platform name in the key of a library's pybind11 internals.

    Raises:
        PatchError: the library has no such key.
    """
    with library.open("rb") as file:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            found = re.search(rb"__pybind11_internals_v\d+(\w+?)__\0", data)
            if found:
                return found[1].decode()
    raise PatchError(f"{library} has no key of pybind11's internals")


def adapt_libpaddle(repo: Path, package: Path) -> None:
    """
    Makes the official libpaddle behave like that of a source build: modules in
    paddle/base, the bindings, are its attributes, Tensor.grad_fn leaks no
    references, and errors of places, streams and events name the devices that
    exist.

    Args:
        repo: the repository with the sources.
        package: the folder paddle/ of an unpacked wheel.

    Raises:
        PatchError: Paddle does not import libpaddle as expected.
    """
    base = package / "base"
    for name in LIBPADDLE_ADAPTERS:
        shutil.copy(repo / EXTENSION / f"{name}.py", base / f"_{name}.py")
    core = base / "core.py"
    text = core.read_text(encoding="utf-8")
    line = "    from . import libpaddle\n"
    if text.count(line) != 1:
        raise PatchError(f"{core} does not have the line {line.strip()!r} once")
    # It may be a link to the official file.
    core.unlink()
    hook = line.replace(
        "libpaddle",
        ", ".join(f"_{name}" for name in LIBPADDLE_ADAPTERS) + "  # noqa: F401",
    )
    core.write_text(text.replace(line, line + hook), encoding="utf-8")


def add_extension(repo: Path, folder: Path, scratch: Path) -> None:
    """
    Compiles the extension modules for an unpacked wheel, and adds them and the
    headers of their functions to the wheel.

    Args:
        repo: the repository with the sources.
        folder: the unpacked wheel.
        scratch: where to build.

    Raises:
        PatchError: a module does not compile.
    """
    package = folder / "paddle"
    cmake_build(
        repo / EXTENSION,
        scratch,
        PADDLE_ROOT=package,
        PYBIND_ABI=pybind_abi(package / "base" / "libpaddle.so"),
        Python_EXECUTABLE=sys.executable,
    )
    for module in scratch.glob("*.so"):
        shutil.copy(module, package / "base")
    shutil.copytree(
        repo / PUBLIC_HEADERS,
        package / "include" / PUBLIC_HEADERS,
        dirs_exist_ok=True,
    )


def _stub(function: ast.FunctionDef) -> str:
    function.body = function.body[:1]  # the docstring
    function.args.args[0].annotation = None
    return textwrap.indent(ast.unparse(function), "    ")


def add_to_tensor_stub(repo: Path, package: Path) -> None:
    """Adds our methods of Tensor to the stub that type checkers read.

    Paddle's build generates the stub from the methods of Tensor; the official
    wheel's stub was generated without our methods.

    Raises:
        PatchError: the stub has no class for Tensor's methods.
    """
    source = (repo / TENSOR_METHODS).read_text(encoding="utf-8")
    methods = [
        _stub(node)
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef)
        and ast.unparse(node.args).startswith("self: Tensor")
    ]
    path = package / TENSOR_STUB
    text = path.read_text(encoding="utf-8")
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef) and node.name == "AbstractTensor":
            lines = text.split("\n")
            lines[node.end_lineno : node.end_lineno] = ["", *methods]
            path.write_text("\n".join(lines), encoding="utf-8")
            return
    raise PatchError(f"{path} has no class AbstractTensor")


def use_unix_line_ends(package: Path) -> None:
    """Converts Python files to Unix line ends, which the patches expect.

    Official wheels for Windows have Windows line ends.
    """
    for pattern in ("*.py", "*.pyi"):
        for path in package.rglob(pattern):
            data = path.read_bytes()
            if b"\r\n" in data:
                path.write_bytes(data.replace(b"\r\n", b"\n"))


def build(
    base: Path, output: Path, repo: Path = REPO, *, native: bool = True
) -> Path:
    """Returns the custom wheel, after building it from `base` if necessary.

    Args:
        base: an official wheel.
        output: the folder of the custom wheel.
        repo: the repository with the sources.
        native: whether the wheel gets the extension modules, which are compiled
            for the running Python.

    Raises:
        PatchError: the base is not supported, or is for another Python than
            the running one, or a step failed; `output` then has no new file.
    """
    official = version_of(base)
    labels = [LOCAL_LABEL] if native else [LOCAL_LABEL, PYTHON_ONLY_LABEL]
    local = ".".join(
        part
        for part in (official.local, *labels, digest_of(base, repo, native))
        if part
    )
    version = Version(f"{official.public}+{local}")
    name, _, tags = base.name.split("-", 2)
    wheel = output / f"{name}-{version}-{tags}"
    if wheel.exists():
        return wheel
    if native:
        check_can_compile(base)
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output) as scratch:
        with step(f"unpacking {base.name}"):
            run(sys.executable, "-m", "wheel", "unpack", "-d", scratch, base)
        (folder,) = Path(scratch).iterdir()
        use_unix_line_ends(folder / "paddle")
        apply(repo, open_tree(folder))
        add_to_tensor_stub(repo, folder / "paddle")
        write_version(folder / "paddle", version, commit_of(repo))
        adapt_libpaddle(repo, folder / "paddle")
        if not native:
            for module in stand_ins(repo):
                shutil.copy(module, folder / "paddle" / "base")
        else:
            with step("compiling the extension modules"):
                add_extension(repo, folder, Path(scratch) / "extension")
        set_version(folder, version)
        packed = Path(scratch) / "packed"
        packed.mkdir()
        with step(f"packing {wheel.name}"):
            run(sys.executable, "-m", "wheel", "pack", "-d", packed, folder)
        (made,) = packed.iterdir()
        shutil.move(str(made), wheel)
    return wheel


@reports_errors
def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.wheel")
    parser.add_argument(
        "--base",
        default=SUPPORTED[0],
        metavar="VERSION_OR_FILE",
        help="official version to start from, or the file of such a wheel",
    )
    parser.add_argument("--output", type=Path, default=BUILD / "wheels")
    parser.add_argument(
        "--platform",
        help="leave out compiled modules, and start from the official wheel "
        "for this platform, as pip names it, such as win_amd64, "
        "macosx_11_0_arm64 or manylinux1_x86_64",
    )
    parser.add_argument(
        "--python",
        default=RUNNING_PYTHON,
        metavar="VERSION",
        help="with --platform: the Python version of the wheel, such as 3.9",
    )
    args = parser.parse_args(argv)
    if args.platform is None and args.python != RUNNING_PYTHON:
        parser.error(
            f"--python {args.python} needs --platform: modules are compiled "
            f"for the Python that runs this tool, {RUNNING_PYTHON}. Run the "
            f"tool with Python {args.python}, or add --platform."
        )
    if args.base in SUPPORTED:
        folder = BUILD / "official"
        base = official_wheel(args.base, folder, args.platform, args.python)
    else:
        base = Path(args.base)
        version_of(base)  # Raises if it is not a Paddle wheel.
        tags = parse_wheel_filename(base.name)[3]
        platforms = {tag.platform for tag in tags}
        if args.platform and args.platform not in platforms:
            raise PatchError(
                f"{base.name} is not for {args.platform}; pass one of"
                f" {', '.join(sorted(platforms))}"
            )
    print(build(base, args.output, native=args.platform is None))
    return 0


if __name__ == "__main__":
    sys.exit(main())
