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
"""Verdicts of tools.upstream on made-up tests and two made-up paddles."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tools.upstream import __main__ as upstream, processes, verdict
from tools.upstream.verdict import Finished, Run

# Long enough for a small file to finish on a loaded machine.
LIMIT = "600"
SECONDS = 180

REPO = Path(upstream.__file__).parents[2]

HEADER = """\
import os
import subprocess
import sys
import time
import unittest

import paddle

OURS = paddle.SIDE == "ours"
STOCK = not OURS
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

# Starts a child that holds a file lock until it is killed, and waits until the
# child has the lock.
CHILD = """
holder = subprocess.Popen(
    [
        sys.executable,
        "-c",
        "import fcntl, time;"
        "lock = open({lock!r}, 'w'); fcntl.flock(lock, fcntl.LOCK_EX);"
        "print('held', flush=True); time.sleep(600)",
    ],
    stdout=subprocess.PIPE,
    start_new_session={session},
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
        """Create an interpreter whose paddle names its side."""
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

    def arguments(self, *more: str) -> list[str]:
        base = ["--stock", self.stock, "--ours", self.ours]
        base += [str(self.tests), "--timeout", LIMIT]
        return [*base, "--report", str(self.report), *more]

    def run(self, *more: str) -> int:
        """Run the command line; return its exit status."""
        return upstream.main(self.arguments(*more))

    def start(self, *more: str, by: tuple[str, ...] = ()) -> subprocess.Popen:
        """Start the command line, through the command `by` if given."""
        command = [sys.executable, "-m", "tools.upstream"]
        return subprocess.Popen(
            [*by, *command, *self.arguments(*more)],
            cwd=REPO,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )

    def verdict(self, body: str, *more: str) -> tuple[int, str]:
        """Return the exit status and the verdict for one file."""
        self.write(body)
        return self.run(*more), self.row()[2]

    def row(self, name: str = "test_it.py") -> list[str]:
        """Return the report's cells for a file: stock, ours, verdict."""
        for line in self.report.read_text().splitlines():
            cells = [cell.strip() for cell in line.split("|")[1:-1]]
            if cells and cells[0] == name:
                return cells[1:]
        raise AssertionError(f"no row for {name}")

    def reasons(self) -> list[str]:
        """Return the reasons below the report's table."""
        lines = self.report.read_text().splitlines()
        return [line[2:] for line in lines[4:] if line.startswith("- ")]

    def finished(self) -> list[str]:
        """Return the files in the lines of JSON."""
        lines = self.report.with_suffix(".jsonl").read_text().splitlines()
        return [json.loads(line)["file"] for line in lines]

    def log(self, side: str, name: str = "test_it", turn: int = 0) -> str:
        """Return the output of a run."""
        logs = self.report.with_name("report-logs")
        return (logs / f"{name}.{side}.{turn}.log").read_text()


@pytest.fixture
def suite(tmp_path):
    return Upstream(tmp_path)


@pytest.fixture
def lock(tmp_path):
    return tmp_path / "LOCK"


@pytest.fixture
def hang(suite, monkeypatch):
    """Return code that hangs, and that reaches the time limit immediately."""
    path = suite.root / "hangs"
    os.mkfifo(path)
    hangs = os.open(path, os.O_RDWR)

    def wait_until_it_hangs(ends, *others):
        ready, *_ = select.select([*ends, hangs], [], [], SECONDS)
        assert ready
        if hangs in ready:
            os.read(hangs, 1)

    waits = SimpleNamespace(select=wait_until_it_hangs)
    monkeypatch.setattr(processes, "select", waits)
    tell = f"os.write(os.open({str(path)!r}, os.O_WRONLY), b'h')"
    yield f"{tell}; time.sleep(600)"
    os.close(hangs)


def child(lock: Path, session: bool = False) -> str:
    return CHILD.format(lock=str(lock), session=session)


def is_free(lock: Path) -> bool:
    """Return whether the lock is free, because its holder was killed."""
    with lock.open("r+") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def indented(text: str) -> str:
    return text.replace("\n", "\n    ")


# Files that are the same on both sides.


def test_a_file_that_passes_on_both_sides_is_the_same(suite):
    assert suite.verdict(ONE_PASSES) == (0, "same")
    assert suite.row()[:2] == ["1 passed", "1 passed"]


def test_the_same_failures_on_both_sides_give_status_0(suite):
    body = ONE_FAILS_ON_OURS.replace("OURS", "True")
    assert suite.verdict(body) == (0, "same failures")


def test_addresses_pids_and_temporary_paths_are_no_difference(suite):
    body = """
class TestOne(unittest.TestCase):
    def test_one(self):
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            raise ValueError(f"{object()} of pid {os.getpid()} in {folder}")
"""
    assert suite.verdict(body) == (0, "same failures")


def test_the_c_stack_of_an_error_of_paddle_is_no_difference(suite):
    body = """
class TestOne(unittest.TestCase):
    def test_one(self):
        raise RuntimeError(
            f"\\n\\n----\\nC++ Traceback:\\n0 {paddle.SIDE}()\\n----\\n"
            "Error Message Summary:\\n----\\nNotFoundError: no kernel\\n"
        )
"""
    assert suite.verdict(body) == (0, "same failures")
    assert suite.row()[0] == "1 failed"


# Files that are worse on ours.


def test_a_test_that_fails_on_ours_only_is_worse(suite):
    assert suite.verdict(ONE_FAILS_ON_OURS) == (1, "worse")
    assert suite.reasons() == [
        "TestOne.test_one: stock passed, ours failed"
        " (AssertionError: True is not false)"
    ]


def test_a_test_that_raises_on_ours_only_is_worse(suite):
    body = """
class TestOne(unittest.TestCase):
    def test_one(self):
        if OURS:
            raise MemoryError
"""
    assert suite.verdict(body) == (1, "worse")


def test_a_test_that_is_skipped_on_ours_only_is_worse(suite):
    body = '\n@unittest.skipIf(OURS, "not here")' + ONE_PASSES
    assert suite.verdict(body) == (1, "worse")
    assert suite.reasons() == ["TestOne.test_one: stock passed, ours skipped"]


def test_a_part_of_a_test_that_is_skipped_on_ours_only_is_worse(suite):
    body = """
class TestOne(unittest.TestCase):
    def test_one(self):
        with self.subTest(i=1):
            if OURS:
                self.skipTest("not here")
"""
    assert suite.verdict(body) == (1, "worse")


def test_a_class_whose_set_up_skips_on_ours_only_is_worse(suite):
    body = (
        ONE_PASSES
        + """
    @classmethod
    def setUpClass(cls):
        if OURS:
            raise unittest.SkipTest("not here")
"""
    )
    assert suite.verdict(body) == (1, "worse")


def test_a_test_that_is_missing_on_ours_is_worse(suite):
    body = (
        ONE_PASSES
        + """
    if STOCK:
        def test_two(self):
            pass
"""
    )
    assert suite.verdict(body) == (1, "worse")
    assert suite.reasons() == [
        "TestOne.test_two: stock passed, missing on ours"
    ]


def test_a_test_that_fails_on_stock_and_is_skipped_on_ours_is_worse(suite):
    body = '\n@unittest.skipIf(OURS, "not here")' + ONE_PASSES.replace(
        "pass", "self.fail()"
    )
    assert suite.verdict(body) == (1, "worse")


def test_as_many_failures_in_other_tests_are_worse(suite):
    body = """
class TestOne(unittest.TestCase):
    def test_one(self):
        self.assertTrue(OURS)

    def test_two(self):
        self.assertFalse(OURS)
"""
    assert suite.verdict(body) == (1, "worse")


def test_a_failure_of_one_more_subtest_is_a_difference(suite):
    body = """
class TestOne(unittest.TestCase):
    def test_one(self):
        for bad in (True, OURS):
            with self.subTest(bad=bad):
                self.assertFalse(bad)
"""
    assert suite.verdict(body) == (0, "differs")


def test_a_file_that_ends_while_ours_imports_it_is_worse(suite):
    body = "\nif OURS:\n    os._exit(0)\n" + ONE_PASSES
    assert suite.verdict(body) == (1, "worse")
    assert suite.row()[1] == "no tests, exit status 0 before the end"


def test_a_file_that_only_ours_cannot_import_is_worse(suite):
    body = "\nif OURS:\n    import nowhere\n" + ONE_PASSES
    assert suite.verdict(body) == (1, "worse")
    assert "ModuleNotFoundError: No module named" in suite.row()[1]


def test_a_process_that_dies_on_ours_only_is_worse(suite):
    body = """
class TestOne(unittest.TestCase):
    def test_one(self):
        self.fail()

    def test_two(self):
        if OURS:
            os.abort()
        self.fail()
"""
    assert suite.verdict(body) == (1, "worse")
    expected = "1 failed, killed by signal 6: Aborted in TestOne.test_two"
    assert suite.row()[1] == expected


def test_a_bad_exit_of_ours_after_passed_tests_is_worse(suite):
    body = "\nif OURS:\n    import atexit\n    atexit.register(os._exit, 3)\n"
    assert suite.verdict(body + ONE_PASSES) == (1, "worse")
    assert suite.row()[1] == "1 passed, exit status 3"


def test_a_child_that_a_test_forks_adds_no_results(suite):
    body = """
class TestOne(unittest.TestCase):
    def test_one(self):
        pid = os.fork()
        if not pid:
            self.fail("in the child")
        os.waitpid(pid, 0)
"""
    assert suite.verdict(body) == (0, "same")
    assert suite.row()[0] == "1 passed"


# Files that differ.


def test_a_failure_on_stock_only_differs_and_gives_status_0(suite):
    body = ONE_FAILS_ON_OURS.replace("OURS", "STOCK")
    assert suite.verdict(body) == (0, "differs")


@pytest.mark.parametrize(
    ("stock", "ours"),
    [
        ("ImportError('x')", "MemoryError('x')"),
        ("ValueError('1')", "ValueError('2')"),
    ],
)
def test_a_failure_with_another_error_differs(suite, stock, ours):
    body = f"""
class TestOne(unittest.TestCase):
    def test_one(self):
        raise {ours} if OURS else {stock}
"""
    assert suite.verdict(body) == (0, "differs")


def test_a_file_that_cannot_be_imported_for_another_reason_differs(suite):
    body = "\nraise MemoryError if OURS else ImportError\n"
    assert suite.verdict(body) == (0, "differs")


# Files of which no test ran.


@pytest.mark.parametrize(
    "body",
    [
        "",
        "\nimport nowhere\n" + ONE_PASSES,
        '\n@unittest.skip("not here")' + ONE_PASSES,
        '\nraise unittest.SkipTest("not here")\n' + ONE_PASSES,
        "\nsys.exit(0)\n" + ONE_PASSES,
    ],
    ids=["empty", "no import", "skipped", "file skipped", "exits"],
)
def test_a_file_of_which_no_test_runs_on_either_side(suite, body):
    assert suite.verdict(body) == (0, "0 tests ran")


def test_a_file_that_dies_on_both_sides_at_once_is_not_compared(suite):
    assert suite.verdict("\nos.abort()\n") == (0, "not compared")


# Plain programs.


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("print('done')", (0, "same")),
        ("assert False, 'both'", (0, "same failures")),
        ("assert not OURS, 'ours'", (1, "worse")),
        ("sys.exit(3 if OURS else 0)", (1, "worse")),
        ("os.abort() if OURS else None", (1, "worse")),
        ("raise MemoryError if OURS else ImportError", (0, "differs")),
    ],
)
def test_a_file_without_test_cases_runs_as_a_program(suite, program, expected):
    suite.write("", runner=f"\nif __name__ == '__main__':\n    {program}\n")
    assert (suite.run(), suite.row()[2]) == expected


def test_a_program_of_a_file_with_test_cases_does_not_run(suite):
    runner = "\nif __name__ == '__main__':\n    print('a program')\n"
    suite.write(ONE_PASSES, runner=runner)
    suite.run()
    assert suite.row()[0] == "1 passed"
    assert "a program" not in suite.log("ours")


# Files that reach the time limit.


def test_a_file_that_hangs_comes_to_the_time_limit(suite):
    suite.write("\ntime.sleep(600)\n" + ONE_PASSES)
    assert suite.run("--timeout", "1") == 0
    assert suite.row()[2] == "not compared"


HANGS = """
class TestOne(unittest.TestCase):
    def test_a(self):
        pass

    def test_b(self):
        if {hangs}:
            {hang}

    def test_c(self):
        self.assertFalse(OURS)
"""


def test_a_time_out_of_ours_only_is_worse(suite, hang):
    assert suite.verdict(HANGS.format(hangs="OURS", hang=hang)) == (1, "worse")
    assert suite.row()[1] == "1 passed, timed out in TestOne.test_b"


def test_a_failure_of_ours_that_stock_did_not_reach_is_reported(suite, hang):
    assert suite.verdict(HANGS.format(hangs="STOCK", hang=hang)) == (
        0,
        "differs",
    )
    assert (
        "TestOne.test_c: not finished on stock, ours failed"
        " (AssertionError: True is not false)"
    ) in suite.reasons()


def test_a_failure_of_ours_is_worse_even_if_stock_times_out_later(suite, hang):
    body = HANGS.format(hangs="STOCK", hang=hang).replace(
        "pass", "self.assertFalse(OURS)"
    )
    assert suite.verdict(body) == (1, "worse")


def test_a_time_out_of_stock_leaves_the_file_partly_compared(suite, hang):
    body = HANGS.format(hangs="STOCK", hang=hang).replace(
        "assertFalse(OURS)", "id()"
    )
    assert suite.verdict(body) == (0, "partly compared")
    assert suite.reasons()[-1] == (
        "only finished tests were compared; stock: 1 passed, timed out in"
        " TestOne.test_b"
    )


def test_a_time_out_of_both_leaves_the_file_partly_compared(suite, hang):
    assert suite.verdict(HANGS.format(hangs=True, hang=hang)) == (
        0,
        "partly compared",
    )


def test_a_time_out_of_both_before_any_test_is_not_compared(suite, hang):
    body = f"\n{hang}\n{ONE_PASSES}"
    assert suite.verdict(body) == (0, "not compared")


# Processes that a test starts.


@pytest.mark.parametrize("session", [False, True])
def test_a_process_that_outlives_its_file_is_killed(suite, lock, session):
    suite.write(child(lock, session) + ONE_PASSES)
    suite.run()
    assert is_free(lock)


def test_a_daemon_is_killed(suite, lock):
    """Neither its parent nor its session is that of the test."""
    daemon = f"""
import fcntl, time
if os.fork():
    while not os.path.exists({str(lock)!r}):
        time.sleep(0.01)
else:
    os.setsid()
    if os.fork():
        os._exit(0)
    stream = open({str(lock)!r} + ".new", "w")
    fcntl.flock(stream, fcntl.LOCK_EX)
    os.rename(stream.name, {str(lock)!r})
    time.sleep(600)
"""
    suite.write(f"\nif OURS:\n    {indented(daemon)}\n" + ONE_PASSES)
    assert suite.run() == 0
    assert is_free(lock)


@pytest.mark.parametrize("session", [False, True])
def test_no_process_of_a_hanging_file_is_left(suite, lock, session, hang):
    body = indented(f"{child(lock, session)}{hang}\n")
    suite.write(f"\nif OURS:\n    {body}\n" + ONE_PASSES)
    suite.run()
    assert is_free(lock)


def test_children_of_the_caller_are_left_alone(suite):
    suite.write(ONE_PASSES)
    with subprocess.Popen(["sleep", "600"]) as other:
        suite.run()
        assert other.poll() is None
        other.kill()


# Calls that are stopped and resumed.


@contextlib.contextmanager
def stopped_in_second_file(suite, lock, number=signal.SIGTERM, by=()):
    """Start a call, and signal it while its second file runs."""
    go = suite.root / "go"
    os.mkfifo(go)
    suite.write(ONE_PASSES, "test_a.py")
    hang = f"{child(lock, True)}open({str(go)!r}, 'w').close()\ntime.sleep(600)"
    suite.write(f"{hang}\n{ONE_PASSES}", "test_b.py")
    reader = os.open(go, os.O_RDONLY | os.O_NONBLOCK)
    process = suite.start("--timeout", "600", by=by)
    try:
        poll = select.poll()
        poll.register(reader)
        assert poll.poll(SECONDS * 1000)
        process.send_signal(number)
        # Returns when all processes that have the pipe have exited.
        process.communicate(timeout=SECONDS)
        yield process
    finally:
        os.close(reader)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.communicate(timeout=SECONDS)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_leaves_no_process_and_reports_what_is_done(
    suite, lock, number
):
    with stopped_in_second_file(suite, lock, number) as process:
        assert is_free(lock)
        assert process.returncode == 128 + number
        assert suite.row("test_a.py")[2] == "same"
        assert suite.report.read_text().endswith("Files: 1 of 2: 1 same.\n")


def test_the_run_stops_when_nox_is_killed(suite, lock, monkeypatch):
    monkeypatch.setenv("NOX_CURRENT_SESSION", "upstream")
    nox = "import subprocess, sys; subprocess.call(sys.argv[1:])"
    by = (sys.executable, "-c", nox)
    with stopped_in_second_file(suite, lock, signal.SIGKILL, by):
        assert is_free(lock)
        assert suite.report.read_text().endswith("Files: 1 of 2: 1 same.\n")


def test_resume_runs_only_what_is_not_done(suite, lock, capsys):
    with stopped_in_second_file(suite, lock):
        pass
    suite.write(ONE_PASSES, "test_b.py")
    assert suite.run("--resume", "--timeout", "600") == 0
    assert suite.finished() == ["test_a.py", "test_b.py"]
    assert suite.report.read_text().endswith("Files: 2: 2 same.\n")
    assert "test_a.py: stock 1 passed; ours 1 passed: same (earlier)" in (
        capsys.readouterr().out
    )


def test_a_resumed_report_keeps_its_exit_status(suite):
    suite.write(ONE_FAILS_ON_OURS)
    assert suite.run() == 1
    assert suite.run("--resume") == 1


def test_without_resume_everything_runs_again(suite):
    suite.write(ONE_PASSES)
    suite.run()
    suite.write(ONE_PASSES, "test_b.py")
    suite.run("test_b.py")
    assert suite.finished() == ["test_b.py"]


def test_a_line_that_was_cut_short_runs_again(suite):
    suite.write(ONE_PASSES)
    suite.run()
    lines = suite.report.with_suffix(".jsonl")
    lines.write_text(lines.read_text()[:-9])
    assert suite.run("--resume") == 0
    assert suite.run("--resume") == 0


def changed_test(suite):
    suite.write(ONE_PASSES + "\n# changed\n")


def changed_wheel(suite):
    (suite.root / "ours" / "more.py").touch()


@pytest.mark.parametrize("change", [changed_test, changed_wheel])
def test_resume_runs_again_what_has_changed(suite, change):
    suite.write(ONE_PASSES)
    suite.run()
    change(suite)
    suite.run("--resume")
    assert suite.finished() == ["test_it.py"] * 2


def test_resume_runs_again_under_another_time_limit(suite):
    suite.write(ONE_PASSES)
    suite.run()
    suite.run("--resume", "--timeout", "60")
    assert suite.finished() == ["test_it.py"] * 2


# Files that are rerun.

# Fails on ours in every other run.
FLIPS = """
class TestOne(unittest.TestCase):
    def test_one(self):
        if OURS:
            with open({count!r}, "a+") as count:
                count.write("x")
                self.assertEqual(count.tell() % 2, 0)
"""


def test_a_verdict_that_flips_is_unstable_and_gives_status_1(suite, tmp_path):
    body = FLIPS.format(count=str(tmp_path / "count"))
    assert suite.verdict(body, "--repeat", "2") == (
        1,
        "unstable (worse, same, worse)",
    )
    assert suite.report.read_text().endswith("Files: 1: 1 unstable.\n")
    assert "FAIL" in suite.log("ours", turn=0)
    assert "FAIL" not in suite.log("ours", turn=1)


def test_an_unchanged_verdict_is_reported_once(suite):
    expected = (1, "worse")
    assert suite.verdict(ONE_FAILS_ON_OURS, "--repeat", "2") == expected


def test_a_file_that_is_the_same_does_not_run_again(suite):
    suite.verdict(ONE_PASSES, "--repeat", "2")
    logs = suite.report.with_name("report-logs")
    assert len(list(logs.iterdir())) == 2


# The environment in which a file runs.


def test_the_side_that_runs_first_alternates(suite, tmp_path):
    order = str(tmp_path / "order")
    tell = f"open({order!r}, 'a').write(paddle.SIDE + ' ')\n"
    suite.write(tell + ONE_FAILS_ON_OURS, "test_a.py")
    suite.write(tell + ONE_PASSES, "test_b.py")
    suite.run("--repeat", "1")
    expected = "stock ours ours stock ours stock"
    assert Path(order).read_text().split() == expected.split()


def test_a_file_runs_in_a_copy_of_its_folder(suite):
    file = suite.write(
        "import glob\n"
        "print('beside', sorted(glob.glob('*.*')))\n"
        "print('above', os.listdir('../data'))\n"
        "print(__file__ == os.path.abspath('test_it.py'))\n"
        "open('trace', 'x').close()\n" + ONE_PASSES,
        "sub/test_it.py",
    )
    (file.parent / "helper.txt").touch()
    (suite.tests / "data").mkdir()
    (suite.tests / "data" / "input").touch()
    assert suite.run() == 0
    assert not (file.parent / "trace").exists()
    for side in ("stock", "ours"):
        log = suite.log(side, "sub/test_it")
        assert "beside ['helper.txt', 'test_it.py']\n" in log
        assert "above ['input']\nTrue\n" in log


def test_nothing_is_left_of_the_copy(suite, monkeypatch, tmp_path):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    suite.write("\nimport tempfile\ntempfile.mkdtemp()\n" + ONE_PASSES)
    suite.run()
    assert suite.row()[2] == "same"
    assert not list((tmp_path / "tmp").iterdir())


def test_the_python_of_path_is_the_one_under_test(suite):
    suite.write("import shutil\nprint(shutil.which('python'))\n" + ONE_PASSES)
    suite.run()
    assert f"{suite.stock}\n" in suite.log("stock")
    assert f"{suite.ours}\n" in suite.log("ours")


def test_a_file_can_import_from_its_folder_the_top_and_legacy_test(suite):
    (suite.tests / "top.py").touch()
    (suite.tests / "legacy_test").mkdir()
    (suite.tests / "legacy_test" / "legacy.py").touch()
    suite.write("import top, legacy, beside\n" + ONE_PASSES, "sub/test_it.py")
    (suite.tests / "sub" / "beside.py").touch()
    suite.run()
    assert suite.row("sub/test_it.py")[0] == "1 passed"


def test_the_caller_s_environment_is_passed_on(suite, monkeypatch, tmp_path):
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "extra.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "more"))
    suite.write("import extra\n" + ONE_PASSES)
    suite.run()
    assert suite.row()[0] == "1 passed"


def test_the_folder_of_a_device_goes_to_both_sides(suite, tmp_path):
    (tmp_path / "plugin.so").touch()
    suite.write("print('at', os.environ['CUSTOM_DEVICE_ROOT'])\n" + ONE_PASSES)
    suite.run("--device", str(tmp_path))
    for side in ("stock", "ours"):
        assert f"at {tmp_path}\n" in suite.log(side)


def test_output_before_a_crash_is_kept(suite, monkeypatch):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    suite.write("print('so far')\nos.abort()\n")
    suite.run()
    assert "so far\n" in suite.log("ours")


def test_a_file_in_the_checkouts_list_runs_in_static_mode(suite):
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
    assert suite.row("test_listed.py")[0] == "1 passed"
    assert suite.row("test_other.py")[0] == "1 passed"


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
    assert last == "Files: 3: 2 same; 1 worse."


def test_each_file_gives_a_line_of_progress(suite, capsys):
    suite.write(ONE_PASSES, "test_a.py")
    suite.write(ONE_PASSES, "test_b.py")
    suite.run()
    printed = capsys.readouterr().out
    assert "[2/2] test_b.py: stock 1 passed; ours 1 passed: same\n" in printed


# The choice of the interpreters.


def test_created_environments_get_the_packages_of_paddles_tests(
    suite, monkeypatch
):
    made, added = (suite.stock, suite.ours), []
    monkeypatch.setattr(upstream, "stock_and_ours", lambda version: made)
    monkeypatch.setattr(
        upstream, "add_packages", lambda *arguments: added.append(arguments)
    )
    suite.write(ONE_PASSES)
    upstream.main([str(suite.tests), "--report", str(suite.report)])
    packages = upstream.UPSTREAM_TESTS
    assert added == [(python, packages) for python in made]
    assert suite.row()[2] == "same"


def test_given_interpreters_get_no_packages(suite, monkeypatch):
    monkeypatch.setattr(upstream, "add_packages", lambda *_: pytest.fail())
    suite.write(ONE_PASSES)
    assert suite.run() == 0


# The choice of the files.


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


def test_a_report_of_something_else_is_not_resumed(suite, capsys):
    suite.write(ONE_PASSES)
    suite.report.parent.mkdir()
    suite.report.with_suffix(".jsonl").write_text('{"other": 1}\n')
    with pytest.raises(SystemExit) as exit_:
        suite.run("--resume")
    assert exit_.value.code == 2
    assert "cannot be resumed" in capsys.readouterr().err


@pytest.mark.parametrize(
    "option",
    [
        ("--timeout", "0"),
        ("--repeat", "-1"),
        ("--report", "report.txt"),
        ("--device", "/nowhere"),
    ],
)
def test_an_invalid_option_gives_status_2(suite, option, capsys):
    suite.write(ONE_PASSES)
    with pytest.raises(SystemExit) as exit_:
        suite.run(*option)
    assert exit_.value.code == 2
    assert " ".join(option) in capsys.readouterr().err


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


# Reading closing lines and records.


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("KeyError: 'a'", "KeyError: 'a'"),
        ("AssertionError: ", "AssertionError"),
        ("AssertionError: \nNot equal\n 1.5\n", "AssertionError: Not equal"),
        ("OSError: <A at 0x7f12>", "OSError: <A at 0x*>"),
        ("OSError: process 17 (pid=18)", "OSError: process * (pid=*)"),
        ("OSError: '/tmp/u1/tmp/x_y' gone", "OSError: 'TMP' gone"),
        ("ValueError: 17 rows", "ValueError: 17 rows"),
    ],
)
def test_a_closing_line_has_no_variable_parts(error, expected):
    assert verdict.closing_line(error, {"/tmp/u1": "TMP"}) == expected


def test_a_record_that_was_cut_short_keeps_its_whole_lines():
    results = (
        '{"started": "T.a"}\n'
        '{"test": "T.a", "outcome": "passed", "errors": []}\n'
        '{"started": "T.b"}\n{"test": "T'
    )
    assert verdict.read_run(results, None, "", {}) == Run(
        {"T.a": Finished("passed")}, died="timed out", running="T.b"
    )
