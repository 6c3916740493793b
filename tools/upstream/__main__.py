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
"""Run Paddle's own unit tests on the stock wheel and on ours.

    python -m tools.upstream FOLDER [PATTERN ...] [--timeout SECONDS]
        [--repeat N] [--device FOLDER] [--report FILE.md] [--resume]
        [--stock PYTHON] [--ours PYTHON]

FOLDER is the ``test`` folder of a Paddle checkout. On each side, each matching
file runs in its own process and its own copy of its folder. As in Paddle's own
runner, unittest runs the test cases of the module, in static graph mode if the
checkout's ``tools/static_mode_white_list.py`` lists the file. The two sides
take turns in running first. No process of a run outlives the run. By default,
the interpreters are those of the project's environments, which are created if
necessary.

The verdict on a file compares its tests by name, outcome and closing error
line:

  worse            a test that passed on stock fails, is skipped or is missing
                   on ours, a test that ran on stock is skipped, a test that was
                   skipped on stock fails, or ours crashes, times out or cannot
                   be imported and stock does not
  differs          another difference, such as another error, or a test that
                   fails only on stock
  unstable         --repeat gave different verdicts
  partly compared  stock timed out or crashed; the finished tests are the same
  not compared     stock timed out or crashed before a test could be compared
  0 tests ran      on both sides: nothing could be imported or run, or all
                   tests were skipped
  same failures    the same tests fail, with the same errors
  same             the same tests pass

Each finished file adds a line to FILE.jsonl next to FILE.md; --resume reuses
its results for the same test file, wheels and options. FILE-logs has the output
of each run. Without --report, FILE is build/upstream/report.

Exit status: 1 if a file is worse, or was worse in one of its runs; 2 for
invalid arguments; 128 plus the signal number if stopped by a signal; otherwise
0. Status 0 means that no file was worse, not that everything was compared: see
the verdicts.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
from pathlib import Path

from tools.command_line import reports_errors
from tools.environment import UPSTREAM_TESTS, add_packages, stock_and_ours
from tools.tree import SUPPORTED
from tools.upstream.processes import (
    Stopped,
    StopRequest,
    adopt_orphans,
    stop_with_parent,
)
from tools.upstream.report import Row, append_row, read_rows, render
from tools.upstream.runs import Settings, Side, find_side, run_and_compare
from tools.wheel import BUILD


def static_mode_files(tests: Path) -> frozenset[str]:
    """Return the names of the tests that Paddle runs in static graph mode."""
    names = tests.parent / "tools" / "static_mode_white_list.py"
    if not names.is_file():
        return frozenset()
    return frozenset(re.findall(r"['\"](test_\w+)['\"]", names.read_text()))


def find_files(tests: Path, patterns: list[str]) -> list[Path]:
    """Return the matching test files, each once, sorted by path.

    Raises:
        ValueError: a pattern leaves the folder or matches no file.
    """
    found = set()
    for pattern in patterns:
        parts = Path(pattern).parts
        if not parts or Path(pattern).is_absolute() or ".." in parts:
            raise ValueError(
                f"pattern {pattern!r} has to be relative to {tests}"
            )
        matched = [f for f in tests.glob(pattern) if f.suffix == ".py"]
        if not matched:
            raise ValueError(
                f"pattern {pattern!r} matches no Python file in {tests}"
            )
        found.update(matched)
    return sorted(found)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.upstream",
        description="Run Paddle's own unit tests on the stock wheel and"
        " on ours, and compare the results.",
    )
    add = parser.add_argument
    add("--stock", metavar="PYTHON", help="Python with the stock wheel")
    add("--ours", metavar="PYTHON", help="Python with our wheel")
    add(
        "tests",
        type=lambda text: Path(text).resolve(),
        metavar="FOLDER",
        help="the test folder of a Paddle checkout",
    )
    add(
        "--timeout",
        type=float,
        default=300,
        metavar="SECONDS",
        help="time limit for one run of one file (default: %(default)s)",
    )
    add(
        "--repeat",
        type=int,
        default=0,
        metavar="N",
        help="rerun a file that differs N times (default: %(default)s)",
    )
    add(
        "--device",
        default=os.environ.get("CUSTOM_DEVICE_ROOT", ""),
        metavar="FOLDER",
        help="folder of a custom device plugin (default: $CUSTOM_DEVICE_ROOT)",
    )
    add(
        "--report",
        type=Path,
        default=BUILD / "upstream" / "report.md",
        metavar="FILE.md",
        help="write the table to this file (default: %(default)s)",
    )
    add(
        "--resume",
        action="store_true",
        help="run only files that are not in the report or have changed",
    )
    add(
        "patterns",
        nargs="*",
        default=["**/test_*.py"],
        metavar="PATTERN",
        help="glob pattern relative to FOLDER (default: **/test_*.py)",
    )
    return parser


def _check(args: argparse.Namespace) -> None:
    """Raise ValueError for invalid arguments."""
    if not args.timeout > 0:
        raise ValueError(f"--timeout {args.timeout:g} is not positive")
    if args.repeat < 0:
        raise ValueError(f"--repeat {args.repeat} is negative")
    if args.report.suffix != ".md":
        raise ValueError(f"--report {args.report} does not end in .md")
    if not args.tests.is_dir():
        raise ValueError(f"{args.tests} is not a folder")
    if args.device and not any(Path(args.device).glob("*.so")):
        raise ValueError(
            f"--device {args.device} has no plugin (a *.so file); pass the"
            " folder in which a plugin was built"
        )


def find_sides(
    stock: str | None, ours: str | None, tests: Path
) -> tuple[Side, Side]:
    """Return both sides; create the environments of sides not given."""
    if not (stock and ours):
        made = stock_and_ours(SUPPORTED[0])
        for python in made:
            add_packages(python, UPSTREAM_TESTS)
        stock, ours = stock or made[0], ours or made[1]
    return find_side("stock", stock, tests), find_side("ours", ours, tests)


def _made_of(file: Path, *others) -> str:
    inputs = json.dumps([file.read_text(errors="replace"), *others])
    return hashlib.sha256(inputs.encode()).hexdigest()


def run_all(
    files: list[Path],
    sides: tuple[Side, Side],
    repeat: int,
    settings: Settings,
    results: Path,
    done: dict[str, Row],
    stop: StopRequest,
) -> list[Row]:
    """Run the files that are not done, and record each result.

    Args:
        files: the test files.
        sides: stock and ours.
        repeat: how many times to rerun a file that differs.
        settings: how to run them.
        results: file that gets a line for each finished test file.
        done: rows of an earlier call, by file.
        stop: ends the call; finished files stay recorded.
    """
    rows = []
    digests = [side.digest for side in sides]
    for number, file in enumerate(files, 1):
        static = file.stem in settings.static
        options = [settings.limit, settings.device, repeat, static]
        made_of = _made_of(file, *digests, *options)
        row = done.get(file.relative_to(settings.tests).as_posix())
        earlier = row is not None and row.made_of == made_of
        if not earlier:
            try:
                row = run_and_compare(
                    *(file, made_of, sides, number % 2 == 0),
                    *(repeat, settings, stop),
                )
            except Stopped as stopped:
                print(stopped, file=sys.stderr)
                break
            append_row(results, row)
        rows.append(row)
        print(
            f"[{number}/{len(files)}] {row.file}: stock {row.stock}; ours"
            f" {row.ours}: {row.verdict}{' (earlier)' if earlier else ''}",
            flush=True,
        )
    return rows


@reports_errors
def main(argv: list[str] | None = None) -> int:
    """Run the command line; the module docstring gives the exit status."""
    parser = _parser()
    args = parser.parse_intermixed_args(argv)
    try:
        _check(args)
        files = find_files(args.tests, args.patterns)
        results = args.report.with_suffix(".jsonl")
        done = read_rows(results) if args.resume else {}
        sides = find_sides(args.stock, args.ours, args.tests)
    except ValueError as error:
        parser.error(str(error))
    settings = Settings(
        args.tests,
        args.timeout,
        args.device and os.path.abspath(args.device),
        args.report.with_name(f"{args.report.stem}-logs").absolute(),
        static_mode_files(args.tests),
    )
    results.parent.mkdir(parents=True, exist_ok=True)
    if not args.resume:
        results.unlink(missing_ok=True)
    adopt_orphans()
    with StopRequest() as stop:
        if "NOX_CURRENT_SESSION" in os.environ:
            # nox passes on Ctrl-C, but dies of SIGTERM without passing it on.
            stop_with_parent()
        rows = run_all(
            *(files, sides, args.repeat, settings),
            *(results, done, stop),
        )
        heading = [f"{side.name}: {side.paddle}" for side in sides]
        report = render(rows, heading, len(files))
        args.report.write_text(report, encoding="utf-8")
        print(f"\n{report}\nOutput of each run: {settings.logs}")
    if stop.number:
        return 128 + stop.number
    return 1 if any(row.ever_worse for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
