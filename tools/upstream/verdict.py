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
"""Results of a test file on both sides, and their comparison."""

from __future__ import annotations

import json
import re
import signal
from collections import Counter
from dataclasses import dataclass, field

PASSED = "passed"
FAILED = "failed"
SKIPPED = "skipped"

TIMED_OUT = "timed out"

WORSE = "worse"
UNSTABLE = "unstable"
DIFFERS = "differs"
PARTLY = "partly compared"
NOT_COMPARED = "not compared"
NOTHING_RAN = "0 tests ran"
SAME_FAILURES = "same failures"
SAME = "same"

# Parts of an error message that differ from run to run.
_VARIABLE = (
    (re.compile(r"\b0x[0-9a-fA-F]+"), "0x*"),
    (re.compile(r"(?i)\b(pid|process)(\W{1,3})\d+"), r"\1\2*"),
)
_SUMMARY = "Error Message Summary:"
_UNITTEST_RAN_NOTHING = re.compile(r"^Ran 0 tests in ", re.MULTILINE)
_ERROR_LINE = re.compile(
    r"^[A-Za-z_][\w.]*(?:Error|Exception|Exit)\b.*", re.MULTILINE
)


@dataclass(frozen=True)
class Finished:
    """A finished test; `error` is the closing error line of a failure."""

    outcome: str
    error: str = ""

    def __str__(self) -> str:
        return f"{self.outcome} ({self.error})" if self.error else self.outcome


@dataclass(frozen=True)
class Run:
    """One run of one test file.

    Attributes:
        tests: the tests that finished, by name.
        unimportable: the error that prevented the import of the file.
        died: why the run ended early or abnormally: `TIMED_OUT`, a signal or
            an exit status.
        running: the test that was running at such an end.
    """

    tests: dict[str, Finished] = field(default_factory=dict)
    unimportable: str = ""
    died: str = ""
    running: str = ""

    def __str__(self) -> str:
        counts = Counter(test.outcome for test in self.tests.values())
        parts = [f"{n} {outcome}" for outcome, n in sorted(counts.items())]
        if not parts:
            parts = ["no tests"]
        if self.unimportable:
            parts.append(self.unimportable)
        if self.died:
            place = f" in {self.running}" if self.running else ""
            parts.append(self.died + place)
        return ", ".join(parts)

    @property
    def timed_out(self) -> bool:
        return self.died == TIMED_OUT

    @property
    def ended_early(self) -> bool:
        return bool(self.died or self.unimportable)

    @property
    def crashed(self) -> bool:
        return bool(self.died) and not self.timed_out


def closing_line(error: str, places: dict[str, str]) -> str:
    """Return type and first line of an error, without parts that vary by run.

    Args:
        error: the error's type, a colon and its message.
        places: folders of this run, each with its replacement.
    """
    kind, _, message = error.partition(":")
    if _SUMMARY in message:
        # Paddle's C++ errors begin with a stack trace, which may differ.
        message = message.rpartition(_SUMMARY)[2]
    lines = [line.strip() for line in message.splitlines() if line.strip(" -")]
    closing = f"{kind}: {lines[0]}" if lines else kind
    return _without_variable_parts(closing, places)


def _without_variable_parts(text: str, places: dict[str, str]) -> str:
    for folder, name in places.items():
        text = re.sub(re.escape(folder) + r"[^\s'\",:;)]*", name, text)
    for pattern, replacement in _VARIABLE:
        text = pattern.sub(replacement, text)
    return text


def _end_of(exit_code: int | None) -> str:
    if exit_code is None:
        return TIMED_OUT
    if exit_code < 0:
        return f"killed by signal {-exit_code}: {signal.strsignal(-exit_code)}"
    return f"exit status {exit_code}" if exit_code else ""


def _result_of_program(
    exit_code: int | None, output: str, places: dict[str, str]
) -> Run:
    """Return the run of a plain program: one test, unless unittest ran none."""
    if exit_code is None or exit_code < 0:
        return Run(died=_end_of(exit_code))
    if _UNITTEST_RAN_NOTHING.search(output):
        return Run()
    if exit_code == 0:
        return Run({"__main__": Finished(PASSED)})
    errors = _ERROR_LINE.findall(output)
    error = errors[-1] if errors else _end_of(exit_code)
    return Run({"__main__": Finished(FAILED, closing_line(error, places))})


def read_run(
    results: str, exit_code: int | None, output: str, places: dict[str, str]
) -> Run:
    """Return the run that `run_side.py` recorded, with its process's exit.

    Args:
        results: the lines of the record; the last may be incomplete.
        exit_code: as `subprocess` gives it; None at the time limit.
        output: everything that was printed.
        places: see `closing_line`.
    """
    entries = [json.loads(line) for line in results.split("\n")[:-1]]
    tests, unimportable, running, finished = {}, "", "", False
    for entry in entries:
        if "program" in entry:
            return _result_of_program(exit_code, output, places)
        if "started" in entry:
            running = _without_variable_parts(entry["started"], places)
        elif "test" in entry:
            running = ""
            name = _without_variable_parts(entry["test"], places)
            while name in tests:
                name += " again"
            errors = [closing_line(e, places) for e in entry["errors"]]
            tests[name] = Finished(entry["outcome"], "; ".join(errors))
        elif "unimportable" in entry:
            unimportable = closing_line(entry["unimportable"], places)
        finished = finished or "finished" in entry
    died = _end_of(exit_code)
    if not finished and not died:
        died = "exit status 0 before the end"
    return Run(tests, unimportable, died, running)


def _compare_ends(stock: Run, ours: Run) -> tuple[list[str], list[str]]:
    worse, differs = [], []
    if ours.timed_out and not stock.timed_out:
        worse.append(f"ours: {ours}; stock did not time out")
    elif ours.crashed and not stock.crashed:
        worse.append(f"ours: {ours}; stock did not end that way")
    elif ours.died and ours.died != stock.died:
        differs.append(f"stock {stock.died}, ours {ours.died}")
    if ours.unimportable and not stock.unimportable:
        worse.append(f"cannot be imported on ours: {ours.unimportable}")
    elif ours.unimportable != stock.unimportable:
        differs.append(
            f"import: stock {stock.unimportable}, ours"
            f" {ours.unimportable or 'succeeds'}"
        )
    return worse, differs


def _compare_finished(
    name: str, stock: Finished, ours: Finished
) -> tuple[list[str], list[str]]:
    """Compare a test that finished on both sides."""
    if stock == ours:
        return [], []
    reasons = [f"{name}: stock {stock}, ours {ours}"]
    lost = (
        stock.outcome == PASSED
        or ours.outcome == SKIPPED
        or (stock.outcome == SKIPPED and ours.outcome == FAILED)
    )
    return (reasons, []) if lost else ([], reasons)


def compare(stock: Run, ours: Run) -> tuple[str, list[str]]:
    """Return the verdict on our run of a file compared to stock's, and reasons.

    A test that finished on only one side counts against ours, unless the other
    side did not reach it because it timed out or, for stock, crashed.
    """
    worse, differs = _compare_ends(stock, ours)
    unknown = []
    for name, test in stock.tests.items():
        if name in ours.tests:
            more = _compare_finished(name, test, ours.tests[name])
            worse += more[0]
            differs += more[1]
        elif stock.timed_out and ours.timed_out:
            unknown.append(name)
        else:
            missing = f"{name}: stock {test}, missing on ours"
            (differs if test.outcome == SKIPPED else worse).append(missing)
    for name, test in ours.tests.items():
        if name not in stock.tests:
            missing = f"{name}: not finished on stock, ours {test}"
            if test.outcome == FAILED and not stock.ended_early:
                worse.append(missing)
            elif test.outcome == FAILED or not stock.ended_early:
                differs.append(missing)
            else:
                unknown.append(name)
    reasons = worse + differs
    if unknown:
        reasons.append(f"finished on one side only: {', '.join(unknown)}")
    if stock.died:
        reasons.append(f"only finished tests were compared; stock: {stock}")
    if worse:
        return WORSE, reasons
    if differs:
        return DIFFERS, reasons
    return _verdict_without_differences(stock, ours), reasons


def _verdict_without_differences(stock: Run, ours: Run) -> str:
    ran = [
        test
        for name, test in stock.tests.items()
        if name in ours.tests and test.outcome != SKIPPED
    ]
    if not ran:
        return NOT_COMPARED if stock.died else NOTHING_RAN
    if stock.died:
        return PARTLY
    failed = any(test.outcome == FAILED for test in ran)
    return SAME_FAILURES if failed else SAME
