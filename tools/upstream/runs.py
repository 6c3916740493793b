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
"""The two sides, and running a test file on each."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tools.upstream.processes import StopRequest, run_bounded
from tools.upstream.report import Row
from tools.upstream.verdict import DIFFERS, WORSE, Run, compare, read_run

RUN_SIDE = Path(__file__).with_name("run_side.py")

# Prints which paddle an interpreter has, and a digest of its files: the files
# of a wheel under development change although its version does not.
_PROBE = """
import hashlib, os, paddle, platform, sys
digest = hashlib.sha256()
for folder, folders, names in os.walk(os.path.dirname(paddle.__file__)):
    folders.sort()
    for name in sorted(names):
        if not name.endswith(".pyc"):
            path = os.path.join(folder, name)
            stat = os.stat(path)
            digest.update(f"{path} {stat.st_size} {stat.st_mtime_ns}".encode())
print(digest.hexdigest())
print(sys.prefix)
print("paddle", paddle.__version__, "in", paddle.__file__, "on Python",
      platform.python_version())
"""


@dataclass(frozen=True)
class Side:
    """An interpreter, its environment's folder and its paddle."""

    name: str
    python: str
    prefix: str
    paddle: str
    digest: str


@dataclass(frozen=True)
class Settings:
    """How to run: the test folder, the time limit and so on."""

    tests: Path
    limit: float
    device: str
    logs: Path
    static: frozenset[str]


def find_side(name: str, python: str | Path, tests: Path) -> Side:
    """Return the side of an interpreter, with the Paddle that it has.

    Args:
        name: the name of the side.
        python: a path, or a name to look up on PATH.
        tests: working directory for the interpreter, so that it does not
            import a paddle folder of the current directory.

    Raises:
        ValueError: there is no such interpreter or it cannot import paddle.
    """
    found = shutil.which(python)
    if found is None:
        raise ValueError(f"{python!r} is not an executable interpreter")
    # Symbolic links stay: the link in a virtual environment selects it.
    interpreter = os.path.abspath(found)
    probe = subprocess.run(
        [interpreter, "-c", _PROBE], cwd=tests, capture_output=True, text=True
    )
    if probe.returncode:
        reason = probe.stderr.strip() or f"exit status {probe.returncode}"
        raise ValueError(
            f"{python} cannot import paddle: {reason.splitlines()[-1]}"
        )
    digest, prefix, paddle = probe.stdout.strip().splitlines()[-3:]
    return Side(name, interpreter, prefix, paddle, digest)


def copy_with_links_around(tests: Path, folder: Path, copy: Path) -> Path:
    """Copy a folder of tests, with links to the files and folders around it.

    A test may write to its own folder and read from the folders around it.

    Args:
        tests: the folder of all tests.
        folder: the folder to copy: `tests` or a folder below it.
        copy: where to create the copy of `tests`.

    Returns:
        The copy of the folder.
    """
    source = tests
    for part in folder.relative_to(tests).parts:
        copy.mkdir()
        for entry in source.iterdir():
            if entry.name != part:
                (copy / entry.name).symlink_to(entry)
        source, copy = source / part, copy / part
    shutil.copytree(
        source,
        copy,
        ignore=shutil.ignore_patterns("__pycache__"),
        ignore_dangling_symlinks=True,
    )
    return copy


def environ_of(
    side: Side, settings: Settings, scratch: Path, folder: Path
) -> dict[str, str]:
    """Return the environment for a run in a folder of scratch / "test"."""
    tests = scratch / "test"
    bin_folder = os.path.dirname(side.python)
    search_path = [str(folder), str(tests), str(tests / "legacy_test")]
    if os.environ.get("PYTHONPATH"):
        search_path.append(os.environ["PYTHONPATH"])
    environ = {
        **os.environ,
        # Tests start "python".
        "PATH": f"{bin_folder}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONPATH": os.pathsep.join(search_path),
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(scratch / "tmp"),
    }
    if settings.device:
        environ["CUSTOM_DEVICE_ROOT"] = settings.device
    return environ


def run_file(
    file: Path, side: Side, log: Path, settings: Settings, stop: StopRequest
) -> Run:
    """Run a test file on one side, in a fresh copy of its folder.

    Args:
        file: the test file.
        side: the side.
        log: file for the output of the run.
        settings: how to run it.
        stop: ends the run.

    Raises:
        Stopped: a signal arrived.
    """
    scratch = Path(tempfile.mkdtemp(prefix="upstream-"))
    try:
        (scratch / "tmp").mkdir()
        folder = copy_with_links_around(
            settings.tests, file.parent, scratch / "test"
        )
        results = scratch / "results"
        results.touch()
        command = [side.python, RUN_SIDE, results, folder / file.name]
        if file.stem in settings.static:
            command.append("--static")
        log.parent.mkdir(parents=True, exist_ok=True)
        exit_code = run_bounded(
            list(map(str, command)),
            folder,
            environ_of(side, settings, scratch, folder),
            log,
            settings.limit,
            stop,
        )
        return read_run(
            results.read_text(encoding="utf-8"),
            exit_code,
            log.read_text(encoding="utf-8", errors="replace"),
            {str(scratch): "TMP", side.prefix: "ENV"},
        )
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def run_and_compare(
    file: Path,
    made_of: str,
    sides: tuple[Side, Side],
    ours_first: bool,
    repeat: int,
    settings: Settings,
    stop: StopRequest,
) -> Row:
    """Run a test file on stock and ours, and rerun it if the two differ.

    Args:
        file: the test file.
        made_of: the digest for the row.
        sides: stock and ours.
        ours_first: whether ours runs first in the first pair of runs.
        repeat: how many times to rerun a file that differs.
        settings: how to run it.
        stop: ends the runs.

    Raises:
        Stopped: a signal arrived.
    """
    name = file.relative_to(settings.tests)
    verdicts, reasons = [], {}
    for turn in range(1 + repeat):
        runs = {}
        for side in sides[::-1] if (turn + ours_first) % 2 else sides:
            log = settings.logs / name.with_suffix(f".{side.name}.{turn}.log")
            runs[side.name] = run_file(file, side, log, settings, stop)
        verdict, why = compare(runs["stock"], runs["ours"])
        verdicts.append(verdict)
        reasons.update(dict.fromkeys(why))
        if turn == 0 and verdict not in (WORSE, DIFFERS):
            break
    outcomes = {side: str(run) for side, run in runs.items()}
    return Row(
        name.as_posix(),
        made_of,
        **outcomes,
        verdicts=verdicts,
        reasons=[*reasons],
    )
