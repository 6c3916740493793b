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
"""The command that runs all tests."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tools import run_tests
from tools.run_tests import (
    Part,
    all_pass,
    can_have_own_shm,
    paddle_test_files,
    split,
)
from tools.series import PatchError
from tools.tree import git
from tools.wheel import REPO


def python(title: str, code: str, **variables: str | None) -> Part:
    return Part(title, (sys.executable, "-c", code), variables)


def test_all_parts_run_even_if_one_fails(capfd):
    parts = [python("one", "exit('no')"), python("two", "print('yes')")]
    assert not all_pass([parts], 1)
    output = capfd.readouterr().out
    assert "no\n===== one: FAILED" in output
    assert "yes\n===== two: passed" in output


def test_all_pass_is_true_if_each_part_passes(capfd):
    assert all_pass([[python("one", "")], [python("two", "")]], 2)


def test_a_part_runs_while_others_are_being_built(tmp_path):
    has_run = tmp_path / "has_run"

    def batches():
        yield [python("one", f"open({str(has_run)!r}, 'w')")]
        deadline = time.monotonic() + 60
        while not has_run.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield [python("two", "exit('no')")]

    assert not all_pass(batches(), 1)


def build_nothing(monkeypatch) -> None:
    for build in (
        *("cpp_tests", "host_device", "official_here", "our_python"),
        *("site_packages", "stand_in_driver", "stand_in_gpu", "stock_python"),
        "without_native_parts",
    ):
        monkeypatch.setattr(run_tests, build, lambda *args: Path("built"))


@pytest.fixture
def stopped(monkeypatch) -> threading.Event:
    """An event that is set once a thread pool is asked to shut down."""
    event = threading.Event()

    class Pool(ThreadPoolExecutor):
        def shutdown(self, wait=True, **options):
            super().shutdown(wait=False, **options)
            event.set()
            super().shutdown(wait)

    monkeypatch.setattr(run_tests, "ThreadPoolExecutor", Pool)
    return event


@pytest.mark.parametrize("error", [KeyboardInterrupt, PatchError])
def test_no_part_starts_after_an_error(monkeypatch, stopped, error):
    started = []

    def run(part, **how):
        started.append(part.title)
        assert stopped.wait(60)
        return subprocess.CompletedProcess((), 0, "")

    def batches():
        yield [python("one", ""), python("two", "")]
        raise error

    monkeypatch.setattr(Part, "run", run)
    with pytest.raises(error):
        all_pass(batches(), 1)
    assert "two" not in started


def test_a_build_that_fails_ends_the_run(monkeypatch, stopped):
    monkeypatch.setattr(run_tests, "can_have_own_shm", lambda: True)
    build_nothing(monkeypatch)
    built = []

    def cpp_tests(stock, sanitizer):
        built.append(sanitizer)
        if not sanitizer:
            raise PatchError("does not compile")
        assert stopped.wait(60)

    monkeypatch.setattr(run_tests, "cpp_tests", cpp_tests)
    monkeypatch.setattr(run_tests, "all_pass", lambda batches, _: [*batches])
    with pytest.raises(PatchError, match="does not compile"):
        run_tests.all_tests_pass("3.3.0")
    assert "thread" not in built


@pytest.mark.parametrize("own_shm", [True, False])
def test_all_parts_run(monkeypatch, own_shm):
    monkeypatch.setattr(run_tests, "can_have_own_shm", lambda: own_shm)
    build_nothing(monkeypatch)
    found = []

    def all_pass(batches, at_once):
        found.extend(part for batch in batches for part in batch)
        return True

    monkeypatch.setattr(run_tests, "all_pass", all_pass)
    assert run_tests.all_tests_pass("3.3.0")
    count = run_tests.PADDLE_PARTS if own_shm else 1
    expected = [
        "C++",
        "C++ under the address sanitizer",
        "C++ under the thread sanitizer",
        *(f"Paddle, {n} of {count}" for n in range(1, count + 1)),
        "Paddle, CPU only",
        "Paddle without native parts",
        "demonstration",
        "tools",
    ]
    assert sorted(part.title for part in found) == sorted(expected)
    assert {"unshare" in part.command for part in found} == {own_shm}


def test_a_variable_that_is_none_is_not_set(monkeypatch):
    monkeypatch.setenv("PART_KEEPS", "kept")
    monkeypatch.setenv("PART_LACKS", "lacked")
    part = python(
        "variables",
        "import os; print(*sorted(v for v in os.environ if 'PART_' in v))",
        PART_LACKS=None,
        PART_HAS="had",
    )
    assert part.run(capture_output=True).stdout == "PART_HAS PART_KEEPS\n"


def test_a_part_with_its_own_shm_sees_no_other_files(tmp_path):
    if not can_have_own_shm():
        pytest.skip("needs the right to mount a /dev/shm for one process")
    file = Path("/dev/shm", f"test_run_tests-{uuid.uuid4().hex}")
    file.touch()
    try:
        code = "import os; print(os.listdir('/dev/shm'))"
        part = python("look", code)
        assert file.name in part.run(capture_output=True).stdout
        assert part.with_own_shm().run(capture_output=True).stdout == "[]\n"
        assert file.name in os.listdir("/dev/shm")
    finally:
        file.unlink()


def test_a_part_is_split_by_files_and_each_is_in_one_of_the_parts():
    parts = split(Part("tests", ("pytest", "-q")), ["a", "b", "c", "d"], 3)
    assert [part.title for part in parts] == [
        "tests, 1 of 3",
        "tests, 2 of 3",
        "tests, 3 of 3",
    ]
    assert [part.command for part in parts] == [
        ("pytest", "-q", "a", "d"),
        ("pytest", "-q", "b"),
        ("pytest", "-q", "c"),
    ]


def test_all_test_files_run_with_our_wheel():
    listed = git(REPO, "ls-files --cached --others --exclude-standard test")
    files = [Path(name) for name in listed.splitlines()]
    tests = {str(file) for file in files if file.name.startswith("test_")}
    assert set(paddle_test_files()) == tests
