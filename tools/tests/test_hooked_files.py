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
"""Paddle's Python files, with hooks, against the checks of Paddle's own CI."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tools.series import load_series
from tools.wheel import REPO

# Paddle ignores these rules.
IGNORED = "E402,E501,E721,E722,E731,E741"
OPTIONS = (
    "--no-cache",
    f"--config={REPO / 'pyproject.toml'}",
    # Otherwise, the packages beside paddle would count as parts of it.
    "--config=src=[]",
)


def hooked_files() -> list[str]:
    series = load_series(REPO)
    own = {path for patch in series for path in patch.own_files}
    hooked = {part.path for patch in series for part in patch.files} - own
    return sorted(
        path[len("python/") :]
        for path in hooked
        if path.startswith("python/") and path.endswith(".py")
    )


def ruff(folder: Path, *arguments: str) -> list[str]:
    process = subprocess.run(
        ["ruff", *arguments, *OPTIONS, *hooked_files()],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert process.returncode in (0, 1), process.stderr
    return process.stdout.splitlines()


def errors(folder: Path) -> Counter[str]:
    """Returns the number of errors by file and rule."""
    lines = ruff(
        folder, "check", f"--ignore={IGNORED}", "--output-format=concise"
    )
    places = [line.split(" ")[:2] for line in lines if ".py:" in line]
    return Counter(f"{place.split(':')[0]} {rule}" for place, rule in places)


@pytest.fixture
def ours(run_paddle) -> Path:
    code = "import importlib.util as u; print(u.find_spec('paddle').origin)"
    return Path(run_paddle("-c", code).stdout.strip()).parents[1]


def test_hooks_add_no_error_of_the_linter(ours, wheel_tree):
    assert errors(ours) - errors(wheel_tree) == Counter()


def test_hooked_files_are_formatted(ours):
    check = ("format", "--check", '--config=format.quote-style="preserve"')
    lines = ruff(ours, *check)
    assert [line for line in lines if line.startswith("Would")] == []
