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
"""Run Paddle's own unit tests under the stock wheel and under ours.

    python -m tools.upstream FOLDER [PATTERN ...] [--timeout SECONDS]
        [--report FILE.md] [--stock PYTHON] [--ours PYTHON]

FOLDER is the ``test`` folder of a Paddle checkout. Each matching file runs in
a process of its own, first with the stock interpreter and then with ours, and
the two results are compared. Files that ``tools/static_mode_white_list.py`` of
the checkout names run in static graph mode, as Paddle's own runner has it. The
interpreters are those of the project's environments, made if need be, unless
named. The table goes to standard output and to the report; what each run
printed is kept in ``FILE-logs`` next to ``FILE.md``, or in ``build/upstream``
when no report is asked for.

Exit status: 1 when a file or a single test fails, ends early or runs out of
time on ours and does not on stock; 2 for unusable arguments; otherwise 0.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tools.command_line import reports_errors
from tools.environment import stock_and_ours
from tools.tree import SUPPORTED

PASSED = "passed"
FAILED = "failed"
SKIPPED = "skipped"
TIMED_OUT = "timed out"
NO_TESTS = "no tests"

WORSE = "differs, worse"

# What unittest (from Python 3.12 on) and pytest exit with when no test ran.
_NO_TESTS_EXIT = 5

_MAIN_RUNNER = re.compile(r"^if\s+__name__\s*==\s*['\"]__main__['\"]", re.M)
_UNITTEST_END = re.compile(
    r"^Ran (?P<ran>\d+) tests? in .*\n(?:.*\n)*?"
    r"(?:OK|FAILED|NO TESTS RAN)(?: \((?P<counts>.*)\))?$",
    re.M,
)
_PYTEST_END = re.compile(
    r"^=*\s*(?P<counts>\d+ [a-z]+(?:, \d+ [a-z]+)*) in [\d.]+s\b", re.M
)
# Paddle's C++ side prints lines that begin with "ERROR: " too, hence the test
# and its class.
_UNITTEST_FAILURE = re.compile(
    r"^(?:FAIL|ERROR|UNEXPECTED SUCCESS): "
    r"(?P<test>\w+) \((?P<owner>[\w.<>]+)\)(?P<subtest>.*)$",
    re.M,
)
_PYTEST_FAILURE = re.compile(
    r"^(?:FAILED|ERROR) (?P<test>\S+\.py.*?)(?: - .*)?$", re.M
)


@dataclass(frozen=True)
class Result:
    """What one run of one test file came to.

    ``finished`` is False for a run that was killed at the time limit or that
    died before its closing line: which tests would have passed is unknown.
    """

    status: str
    counts: str
    failing: frozenset[str]
    finished: bool

    def __str__(self) -> str:
        return f"{self.status} ({self.counts})" if self.counts else self.status


def _failing_tests(output: str) -> frozenset[str]:
    failing = {match["test"] for match in _PYTEST_FAILURE.finditer(output)}
    for match in _UNITTEST_FAILURE.finditer(output):
        test, owner = match["test"], match["owner"]
        # From Python 3.11 on, unittest repeats the test's name after the
        # class; the two sides may run different versions.
        if not owner.endswith(f".{test}"):
            owner = f"{owner}.{test}"
        failing.add(owner + match["subtest"])
    return frozenset(failing)


def _closing_counts(output: str) -> Counter | None:
    """Return the counts of the last closing line, None where there is none."""
    ends = [*_UNITTEST_END.finditer(output), *_PYTEST_END.finditer(output)]
    if not ends:
        return None
    end = max(ends, key=lambda match: match.end())
    told = Counter()
    if end.re is _UNITTEST_END:
        for word, number in re.findall(
            r"(\w[\w ]*)=(\d+)", end["counts"] or ""
        ):
            told[word] = int(number)
        ran = int(end["ran"])
    else:
        for number, word in re.findall(r"(\d+) (\w+)", end["counts"]):
            told[word] = int(number)
        not_run = ("deselected", "warning", "warnings")
        ran = sum(n for word, n in told.items() if word not in not_run)
    failed = ("failures", "failed", "errors", "error", "unexpected successes")
    return Counter(
        run=ran,
        failed=sum(told[word] for word in failed),
        skipped=told["skipped"],
    )


def read_result(output: str, exit_code: int | None) -> Result:
    """Make a result of what a test file printed and how its process ended.

    Args:
        output: all of standard output and standard error.
        exit_code: as ``subprocess`` gives it; None for a run that was killed
            at the time limit.
    """
    closing = _closing_counts(output)
    counts = closing or Counter()
    finished = closing is not None or exit_code == 0
    notes = [f"{number} {word}" for word, number in counts.items() if number]
    if exit_code is None:
        status, finished = TIMED_OUT, False
    elif not notes and exit_code in (0, _NO_TESTS_EXIT):
        status, finished = NO_TESTS, True
    elif counts["failed"] or exit_code:
        status = FAILED
        if exit_code != 1 or not counts["failed"]:
            notes.append(f"exit status {exit_code}")
    else:
        everything = counts["skipped"] >= counts["run"]
        status = SKIPPED if everything else PASSED
    return Result(status, ", ".join(notes), _failing_tests(output), finished)


def compare(stock: Result, ours: Result) -> str:
    """Say how our result of a file stands to stock's.

    Returns:
        ``WORSE`` when something fails, ends early or hangs on ours that does
        not on stock; else "same", "same failures" or "differs".
    """
    lost = (
        not ours.finished
        or ours.failing - stock.failing
        or (stock.status == PASSED and ours.status == FAILED)
        or (stock.status in (PASSED, FAILED) and ours.status == NO_TESTS)
    )
    if stock.finished and lost:
        return WORSE
    if stock != ours:
        return "differs"
    return "same failures" if stock.status == FAILED else "same"


def static_mode_files(tests: Path) -> set[str]:
    """Return the names of the tests that Paddle runs in static graph mode."""
    names = tests.parent / "tools" / "static_mode_white_list.py"
    if not names.is_file():
        return set()
    return set(re.findall(r"['\"](test_\w+)['\"]", names.read_text()))


def _command(file: Path, static: set[str]) -> list[str]:
    if file.stem in static:
        run = f"unittest.main({file.stem!r}, argv=[{file.name!r}])"
        return [
            "-c",
            f"import paddle, unittest; paddle.enable_static(); {run}",
        ]
    source = file.read_text(encoding="utf-8", errors="replace")
    if _MAIN_RUNNER.search(source):
        return [file.name]
    return ["-m", "unittest", file.stem]


def run_file(
    python: str,
    file: Path,
    tests: Path,
    log: Path,
    timeout: float,
    static: set[str],
) -> Result:
    """Run one test file the way Paddle's harness does, in its own process.

    Nothing of the file's process group is left running.

    Args:
        python: the interpreter.
        file: the test file; its folder becomes the working directory.
        tests: the folder of all tests, importable from the file.
        log: file that takes what the run prints.
        timeout: seconds after which the process group is killed.
        static: names of the tests to run in static graph mode.
    """
    search_path = [str(file.parent), str(tests), str(tests / "legacy_test")]
    if os.environ.get("PYTHONPATH"):
        search_path.append(os.environ["PYTHONPATH"])
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as out:
        process = subprocess.Popen(
            [python, *_command(file, static)],
            cwd=file.parent,
            env={
                **os.environ,
                "PYTHONUNBUFFERED": "1",
                "PYTHONPATH": os.pathsep.join(search_path),
            },
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            exit_code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            exit_code = None
        finally:
            # Also after a normal end: a test may leave workers behind.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    output = log.read_text(encoding="utf-8", errors="replace")
    return read_result(output, exit_code)


def find_files(tests: Path, patterns: list[str]) -> list[Path]:
    """List the test files that match, each once, in order of their paths.

    Raises:
        ValueError: a pattern leads out of the folder or matches no file.
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


def find_paddle(python: str | Path, tests: Path) -> tuple[str, str]:
    """Return an interpreter's absolute path and which paddle it has.

    Args:
        python: a path, or a name to look up on PATH.
        tests: where to run it, so that no paddle in the current directory is
            taken for an installed one.

    Raises:
        ValueError: there is no such interpreter or it cannot import paddle.
    """
    found = shutil.which(python)
    if found is None:
        raise ValueError(f"{python!r} is not an interpreter that can be run")
    # Not resolved: the link in a virtual environment is what selects it.
    interpreter = os.path.abspath(found)
    probe = subprocess.run(
        [
            interpreter,
            "-c",
            "import paddle, platform; print('paddle', paddle.__version__,"
            " 'in', paddle.__file__, 'on Python', platform.python_version())",
        ],
        cwd=tests,
        capture_output=True,
        text=True,
    )
    if probe.returncode:
        reason = probe.stderr.strip() or f"exit status {probe.returncode}"
        raise ValueError(
            f"{python} cannot import paddle: {reason.splitlines()[-1]}"
        )
    return interpreter, probe.stdout.strip().splitlines()[-1]


@dataclass(frozen=True)
class Row:
    """One test file with its result on either side."""

    name: str
    stock: Result
    ours: Result

    @property
    def verdict(self) -> str:
        return compare(self.stock, self.ours)


def render(rows: list[Row], stock_paddle: str, our_paddle: str) -> str:
    """Return the report in Markdown, the files in the order given."""
    lines = [
        "# Paddle's own tests",
        "",
        f"- stock: {stock_paddle}",
        f"- ours: {our_paddle}",
        "",
        "| file | stock | ours | differs? |",
        "| --- | --- | --- | --- |",
    ]
    lines += [
        f"| {r.name} | {r.stock} | {r.ours} | {r.verdict} |" for r in rows
    ]
    for row in rows:
        only_ours = sorted(row.ours.failing - row.stock.failing)
        if only_ours:
            lines += ["", f"Failing on ours only, {row.name}:", ""]
            lines += [f"- `{test}`" for test in only_ours]
    verdicts = Counter(row.verdict for row in rows)
    told = [f"{n} {verdict}" for verdict, n in sorted(verdicts.items())]
    return "\n".join(
        [*lines, "", f"Files: {len(rows)}: {'; '.join(told)}.", ""]
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.upstream",
        description="Run Paddle's own unit tests under the stock wheel and"
        " under ours, and compare.",
    )
    add = parser.add_argument
    add("--stock", metavar="PYTHON", help="with the stock wheel")
    add("--ours", metavar="PYTHON", help="with our wheel")
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
        help="limit for one run of one file (default: %(default)s)",
    )
    add("--report", type=Path, metavar="FILE.md", help="keep the table here")
    add(
        "patterns",
        nargs="*",
        default=["**/test_*.py"],
        metavar="PATTERN",
        help="glob pattern relative to FOLDER (default: **/test_*.py)",
    )
    return parser


@reports_errors
def main(argv: list[str] | None = None) -> int:
    """Run the command line; the module's text gives the exit status."""
    parser = _parser()
    args = parser.parse_intermixed_args(argv)
    try:
        if not args.timeout > 0:
            raise ValueError(f"--timeout {args.timeout:g} is not above 0")
        if not args.tests.is_dir():
            raise ValueError(f"{args.tests} is not a folder")
        files = find_files(args.tests, args.patterns)
        if not (args.stock and args.ours):
            made = stock_and_ours(SUPPORTED[0])
        stock, stock_paddle = find_paddle(args.stock or made[0], args.tests)
        ours, our_paddle = find_paddle(args.ours or made[1], args.tests)
    except ValueError as error:
        parser.error(str(error))
    if args.report:
        logs = args.report.with_name(f"{args.report.stem}-logs")
    else:
        logs = Path("build", "upstream")
    static = static_mode_files(args.tests)
    rows = []
    for number, file in enumerate(files, 1):
        name = file.relative_to(args.tests)
        results = {
            side: run_file(
                python,
                file,
                args.tests,
                logs / name.with_suffix(f".{side}.log"),
                args.timeout,
                static,
            )
            for side, python in (("stock", stock), ("ours", ours))
        }
        row = Row(name.as_posix(), **results)
        rows.append(row)
        print(
            f"[{number}/{len(files)}] {row.name}: stock {row.stock},"
            f" ours {row.ours}: {row.verdict}",
            flush=True,
        )
    report = render(rows, stock_paddle, our_paddle)
    print(f"\n{report}\nWhat each run printed: {logs}")
    if args.report:
        args.report.write_text(report, encoding="utf-8")
    return int(any(row.verdict == WORSE for row in rows))


if __name__ == "__main__":
    sys.exit(main())
