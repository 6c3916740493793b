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
"""Paddle's own tests, run under two interpreters and compared."""

from __future__ import annotations

import fcntl
import sys
import time
from pathlib import Path

import pytest

from tools import upstream

# Long enough for a small file to end on a loaded machine.
LIMIT = "10"

HEADER = """\
import os
import subprocess
import sys
import time
import unittest

import paddle

OURS = paddle.SIDE == "ours"
"""

RUNNER = """
if __name__ == "__main__":
    unittest.main()
"""

ONE_PASSES = """
class TestOne(unittest.TestCase):
    def test_one(self):
        pass
"""

ONE_FAILS_ON_OURS = """
class TestOne(unittest.TestCase):
    def test_one(self):
        self.assertFalse(OURS)

    def test_two(self):
        pass
"""

# Holds LOCK until it is killed, and lets the test go on once it has it.
CHILD = """
holder = subprocess.Popen(
    [
        sys.executable,
        "-c",
        "import fcntl, time;"
        "lock = open('LOCK', 'w'); fcntl.flock(lock, fcntl.LOCK_EX);"
        "print('held', flush=True); time.sleep(120)",
    ],
    stdout=subprocess.PIPE,
)
holder.stdout.readline()
"""


class Upstream:
    """A folder of made-up tests with two interpreters to run them."""

    def __init__(self, root: Path):
        self.tests = root / "test"
        self.tests.mkdir()
        self.report = root / "out" / "report.md"
        self.root = root
        self.stock = self.interpreter("stock")
        self.ours = self.interpreter("ours")

    def interpreter(self, side: str) -> str:
        """Make an interpreter with a paddle that knows which side it is."""
        site = self.root / side
        site.mkdir()
        (site / "paddle.py").write_text(
            f"SIDE = {side!r}\n__version__ = '3.3.0+{side}'\nstatic = False\n"
            "def enable_static():\n    global static\n    static = True\n"
        )
        python = site / "python"
        python.write_text(
            "#!/bin/sh\n"
            f'export PYTHONPATH="{site}:$PYTHONPATH"\n'
            f'exec "{sys.executable}" "$@"\n'
        )
        python.chmod(0o755)
        return str(python)

    def write(self, body: str, name: str = "test_it.py", runner=RUNNER) -> Path:
        """Write a test file."""
        file = self.tests / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(HEADER + body + runner)
        return file

    def run(self, *arguments: str) -> int:
        """Run the command line to its exit status."""
        base = ["--stock", self.stock, "--ours", self.ours]
        base += [str(self.tests), "--timeout", LIMIT]
        base += ["--report", str(self.report)]
        return upstream.main([*base, *arguments])

    def row(self, name: str = "test_it.py") -> list[str]:
        """Return the report's cells for a file: stock, ours, verdict."""
        for line in self.report.read_text().splitlines():
            cells = [cell.strip() for cell in line.split("|")[1:-1]]
            if cells and cells[0] == name:
                return cells[1:]
        raise AssertionError(f"no row for {name}")

    def log(self, side: str, name: str = "test_it") -> str:
        """Return what a run printed."""
        logs = self.report.with_name("report-logs")
        return (logs / f"{name}.{side}.log").read_text()


@pytest.fixture
def suite(tmp_path):
    return Upstream(tmp_path)


def is_released(lock: Path) -> bool:
    """Say whether the lock's holder ends within ten seconds."""
    with lock.open("w") as stream:
        for _ in range(100):
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.1)
            else:
                return True
    return False


# What a run comes to.


def test_a_file_that_passes_on_both_sides_is_the_same(suite):
    suite.write(ONE_PASSES)
    assert suite.run() == 0
    assert suite.row() == ["passed (1 run)", "passed (1 run)", "same"]


def test_a_test_that_fails_on_ours_only_gives_status_1(suite):
    suite.write(ONE_FAILS_ON_OURS)
    assert suite.run() == 1
    assert suite.row() == [
        "passed (2 run)",
        "failed (2 run, 1 failed)",
        "differs, worse",
    ]


def test_the_report_names_the_tests_that_fail_on_ours_only(suite):
    suite.write(ONE_FAILS_ON_OURS)
    suite.run()
    assert "- `__main__.TestOne.test_one`\n" in suite.report.read_text()


def test_the_same_failures_on_both_sides_give_status_0(suite):
    suite.write(ONE_FAILS_ON_OURS.replace("OURS", "True"))
    assert suite.run() == 0
    assert suite.row()[2] == "same failures"


def test_a_failure_more_on_ours_than_on_stock_gives_status_1(suite):
    suite.write(
        """
class TestOne(unittest.TestCase):
    def test_one(self):
        self.fail()

    def test_two(self):
        self.assertFalse(OURS)
"""
    )
    assert suite.run() == 1


def test_as_many_failures_in_other_tests_give_status_1(suite):
    suite.write(
        """
class TestOne(unittest.TestCase):
    def test_one(self):
        self.assertTrue(OURS)

    def test_two(self):
        self.assertFalse(OURS)
"""
    )
    assert suite.run() == 1


def test_a_failure_on_stock_only_differs_and_gives_status_0(suite):
    suite.write(ONE_FAILS_ON_OURS.replace("OURS", "not OURS"))
    assert suite.run() == 0
    assert suite.row()[2] == "differs"


def test_a_file_whose_every_test_is_skipped_is_skipped(suite):
    suite.write('\n@unittest.skip("not here")' + ONE_PASSES)
    assert suite.run() == 0
    assert suite.row()[:2] == ["skipped (1 run, 1 skipped)"] * 2


def test_a_file_with_some_tests_skipped_is_passed(suite):
    suite.write(
        ONE_PASSES
        + """
    @unittest.skip("not here")
    def test_two(self):
        pass
"""
    )
    suite.run()
    assert suite.row()[0] == "passed (2 run, 1 skipped)"


def test_a_file_without_tests_has_no_tests(suite):
    suite.write("")
    assert suite.run() == 0
    assert suite.row() == ["no tests", "no tests", "same"]


def test_a_file_that_runs_no_test_on_ours_only_gives_status_1(suite):
    suite.write("\nif OURS:\n    os._exit(0)\n" + ONE_PASSES)
    assert suite.run() == 1
    assert suite.row()[1] == "no tests"


def test_a_process_that_dies_on_ours_only_gives_status_1(suite):
    suite.write(
        """
class TestOne(unittest.TestCase):
    def test_one(self):
        if OURS:
            os.abort()

    def test_two(self):
        self.fail()
"""
    )
    assert suite.run() == 1
    assert suite.row()[1] == "failed (exit status -6)"


def test_a_bad_exit_after_passed_tests_is_failed(suite):
    suite.write(
        ONE_PASSES
        + """
if OURS:
    import atexit
    atexit.register(os._exit, 3)
"""
    )
    assert suite.run() == 1
    assert suite.row()[1] == "failed (1 run, exit status 3)"


# Time limit and processes.


def test_a_hanging_file_is_timed_out_and_gives_status_1(suite):
    suite.write("\nif OURS:\n    time.sleep(120)\n" + ONE_PASSES)
    assert suite.run() == 1
    assert suite.row()[1] == "timed out"


def test_nothing_of_a_hanging_file_is_left_running(suite):
    suite.write(
        "\nif OURS:"
        + CHILD.replace("\n", "\n    ")
        + "time.sleep(120)\n"
        + ONE_PASSES
    )
    suite.run()
    assert is_released(suite.tests / "LOCK")


def test_a_process_that_outlives_its_file_is_killed(suite):
    suite.write(CHILD + ONE_PASSES)
    suite.run()
    assert is_released(suite.tests / "LOCK")


# How a file is run.


def test_stock_runs_before_ours_for_each_file(suite):
    for name in ("test_a.py", "test_b.py"):
        suite.write(
            f"open('order', 'a').write(paddle.SIDE + ' {name} ')\n"
            + ONE_PASSES,
            name,
        )
    suite.run()
    assert (suite.tests / "order").read_text().split() == [
        "stock",
        "test_a.py",
        "ours",
        "test_a.py",
        "stock",
        "test_b.py",
        "ours",
        "test_b.py",
    ]


def test_a_file_runs_in_its_own_folder(suite):
    file = suite.write("print('in', os.getcwd())\n", "sub/test_it.py")
    suite.run()
    assert f"in {file.parent}\n" in suite.log("ours", "sub/test_it")


def test_a_file_can_import_from_the_folder_of_tests_and_legacy_test(suite):
    (suite.tests / "top.py").touch()
    (suite.tests / "legacy_test").mkdir()
    (suite.tests / "legacy_test" / "legacy.py").touch()
    suite.write("import top, legacy\n" + ONE_PASSES, "sub/test_it.py")
    suite.run()
    assert suite.row("sub/test_it.py")[0] == "passed (1 run)"


def test_the_caller_s_environment_is_passed_on(suite, monkeypatch, tmp_path):
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "extra.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "more"))
    suite.write("import extra\n" + ONE_PASSES)
    suite.run()
    assert suite.row()[0] == "passed (1 run)"


def test_a_file_without_a_runner_of_its_own_is_run_by_unittest(suite):
    suite.write(ONE_FAILS_ON_OURS, runner="")
    assert suite.run() == 1
    assert suite.row()[0] == "passed (2 run)"


def test_what_a_run_printed_is_kept_for_each_side(suite):
    suite.write("print('side', paddle.SIDE)\n" + ONE_PASSES)
    suite.run()
    assert "side stock\n" in suite.log("stock")
    assert "side ours\n" in suite.log("ours")


def test_what_a_process_printed_before_it_died_is_kept(suite, monkeypatch):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    suite.write("print('so far')\nos.abort()\n")
    suite.run()
    assert "so far\n" in suite.log("ours")


def test_without_a_report_the_logs_go_to_build(suite, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    suite.write(ONE_PASSES)
    sides = ["--stock", suite.stock, "--ours", suite.ours]
    upstream.main([*sides, str(suite.tests)])
    assert (tmp_path / "build" / "upstream" / "test_it.ours.log").is_file()


def test_a_file_of_the_checkouts_list_runs_in_static_mode(suite):
    tools = suite.root / "tools"
    tools.mkdir()
    (tools / "static_mode_white_list.py").write_text(
        "STATIC_MODE_TESTING_LIST = [\n    'test_listed',\n]\n"
    )
    body = """
class TestOne(unittest.TestCase):
    def test_mode(self):
        self.assertEqual(paddle.static, STATIC)
"""
    for name, static in (("test_listed", True), ("test_other", False)):
        suite.write(f"STATIC = {static}\n{body}", f"{name}.py")
    assert suite.run() == 0
    assert suite.row("test_listed.py")[0].startswith("passed")
    assert suite.row("test_other.py")[0].startswith("passed")


def test_the_report_is_printed_too(suite, capsys):
    suite.write(ONE_PASSES)
    suite.run()
    assert suite.report.read_text() in capsys.readouterr().out


def test_the_report_says_which_paddle_each_side_has(suite):
    suite.write(ONE_PASSES)
    suite.run()
    assert "- ours: paddle 3.3.0+ours in " in suite.report.read_text()


def test_the_report_ends_with_the_number_of_each_verdict(suite):
    suite.write(ONE_PASSES, "test_a.py")
    suite.write(ONE_PASSES, "test_b.py")
    suite.write(ONE_FAILS_ON_OURS, "test_c.py")
    suite.run()
    last = suite.report.read_text().splitlines()[-1]
    assert last == "Files: 3: 1 differs, worse; 2 same."


def test_each_file_gives_a_line_of_progress(suite, capsys):
    suite.write(ONE_PASSES, "test_a.py")
    suite.write(ONE_PASSES, "test_b.py")
    suite.run()
    printed = capsys.readouterr().out
    assert "[2/2] test_b.py: stock passed (1 run), ours passed" in printed


# Which files run.


def test_only_files_that_match_a_pattern_run_and_each_once(suite):
    suite.write(ONE_PASSES, "sub/test_a.py")
    suite.write(ONE_PASSES, "sub/test_b.py")
    suite.run("sub/test_a*.py", "**/test_a.py")
    assert "Files: 1: 1 same.\n" in suite.report.read_text()


@pytest.mark.parametrize(
    "pattern", ["none_*.py", "../ours/*.py", "/test_*.py", ""]
)
def test_a_pattern_without_files_in_the_folder_gives_status_2(
    suite, pattern, capsys
):
    suite.write(ONE_PASSES)
    with pytest.raises(SystemExit) as exit_:
        suite.run("test_it.py", pattern)
    assert exit_.value.code == 2
    assert repr(pattern) in capsys.readouterr().err


def test_a_missing_folder_gives_status_2(suite):
    suite.tests = suite.root / "nowhere"
    with pytest.raises(SystemExit) as exit_:
        suite.run()
    assert exit_.value.code == 2


def test_a_time_limit_of_nothing_gives_status_2(suite):
    suite.write(ONE_PASSES)
    with pytest.raises(SystemExit) as exit_:
        suite.run("--timeout", "0")
    assert exit_.value.code == 2


def test_a_missing_interpreter_gives_status_2(suite):
    suite.write(ONE_PASSES)
    suite.ours = str(suite.root / "nowhere")
    with pytest.raises(SystemExit) as exit_:
        suite.run()
    assert exit_.value.code == 2


def test_an_interpreter_without_paddle_gives_status_2(suite, capsys):
    suite.write(ONE_PASSES)
    broken = suite.root / "ours" / "paddle.py"
    broken.write_text("raise ImportError('no paddle here')\n")
    with pytest.raises(SystemExit) as exit_:
        suite.run()
    assert exit_.value.code == 2
    assert "no paddle here" in capsys.readouterr().err


# What the output is read for.


@pytest.mark.parametrize(
    ("output", "exit_code", "expected"),
    [
        ("Ran 12 tests in 0.5s\n\nOK\n", 0, "passed (12 run)"),
        (
            "Ran 12 tests in 0.5s\n\nOK (skipped=3, expected failures=1)\n",
            0,
            "passed (12 run, 3 skipped)",
        ),
        (
            "Ran 12 tests in 0.5s\n\nFAILED (failures=1, errors=2)\n",
            1,
            "failed (12 run, 3 failed)",
        ),
        (
            "Ran 1 test in 0.5s\n\nFAILED (unexpected successes=1)\n",
            1,
            "failed (1 run, 1 failed)",
        ),
        ("Ran 0 tests in 0.5s\n\nOK (skipped=1)\n", 0, "skipped (1 skipped)"),
        ("Ran 0 tests in 0.5s\n\nNO TESTS RAN\n", 5, "no tests"),
        ("===== 2 passed, 1 warning in 0.12s =====\n", 0, "passed (2 run)"),
        ("2 passed, 3 deselected in 0.12s\n", 0, "passed (2 run)"),
        (
            "== 1 failed, 2 passed, 1 skipped, 1 error in 9.12s (0:01:02) ==\n",
            1,
            "failed (5 run, 2 failed, 1 skipped)",
        ),
        ("===== no tests ran in 0.01s =====\n", 5, "no tests"),
        (
            "Ran 1 test in 0.5s\n\nOK\nRan 2 tests in 0.5s\n\nOK\n",
            0,
            "passed (2 run)",
        ),
    ],
)
def test_counts_come_from_the_last_closing_line(output, exit_code, expected):
    assert str(upstream.read_result(output, exit_code)) == expected


@pytest.mark.parametrize(
    ("line", "test"),
    [
        ("FAIL: test_a (m.T.test_a)", "m.T.test_a"),
        ("ERROR: test_a (m.T)", "m.T.test_a"),
        ("ERROR: test_a (m.T.test_a) (i=1)", "m.T.test_a (i=1)"),
        ("UNEXPECTED SUCCESS: test_a (m.T.test_a)", "m.T.test_a"),
        ("FAILED m.py::T::test_a - assert 0", "m.py::T::test_a"),
        ("ERROR m.py::T::test_a[x y]", "m.py::T::test_a[x y]"),
    ],
)
def test_a_failing_test_is_known_by_its_line(line, test):
    assert upstream.read_result(f"{line}\n", 1).failing == {test}


@pytest.mark.parametrize(
    "line",
    ["FAILED (failures=1)", "ERROR: Unexpected BUS error in DataLoader (x)"],
)
def test_other_lines_name_no_failing_test(line):
    assert not upstream.read_result(f"{line}\n", 1).failing
