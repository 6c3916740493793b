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
"""Tools that run without the packages that nox installs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("module", "session"),
    [
        ("upstream", "upstream"),
        ("wheel", "wheel"),
        ("demonstration", "wheel"),
        ("run_tests", "tests"),
        ("prefixes", "prefixes"),
        ("benchmark", "bench"),
    ],
)
def test_a_tool_without_its_packages_names_the_session(module, session):
    done = subprocess.run(
        [sys.executable, "-S", "-m", f"tools.{module}"],
        cwd=REPO,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert f"`nox -s {session}`" in done.stderr


def test_other_errors_of_a_tool_are_shown_unchanged():
    done = subprocess.run(
        [sys.executable, "-c", "import tools; import nowhere"],
        cwd=REPO,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "ModuleNotFoundError: No module named 'nowhere'" in done.stderr
    assert "nox" not in done.stderr
