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
"""The project's commands: `nox -s SESSION`."""

from __future__ import annotations

import nox

nox.options.sessions = ["wheel"]
nox.options.reuse_venv = "yes"

TOOLS = (
    "cmake==3.31.6",
    "ninja==1.13.0",
    "packaging==25.0",
    "rich==14.2.0",
    "wheel==0.45.1",
)
PYTEST = "pytest==8.4.2"
# The version in .pre-commit-config.yaml.
RUFF = "ruff==0.9.2"


@nox.session
def wheel(session: nox.Session) -> None:
    """Build the custom wheel, and compare it with the official one.

    With arguments: only build, with the options of `python -m tools.wheel`.
    """
    session.install(*TOOLS)
    session.run("python", "-m", "tools.wheel", *session.posargs)
    if not session.posargs:
        session.run("python", "-m", "tools.demonstration")


def _run_tests(session: nox.Session) -> None:
    session.install(*TOOLS, PYTEST, RUFF)
    session.run("python", "-m", "tools.run_tests", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Run all tests; with arguments, run pytest with these arguments."""
    _run_tests(session)


@nox.session(
    name="tests-on",
    python=["3.9", "3.10", "3.11", "3.12", "3.13"],
    default=False,
)
def tests_on(session: nox.Session) -> None:
    """Run all tests on another Python, for example `nox -s tests-on-3.13`."""
    _run_tests(session)


@nox.session
def lint(session: nox.Session) -> None:
    """Run all checks of .pre-commit-config.yaml on all files."""
    session.install("pre-commit==4.3.0")
    session.run("pre-commit", "run", "--all-files", "--show-diff-on-failure")


@nox.session
def bench(session: nox.Session) -> None:
    """Measure ours, the official wheel and torch, interleaved."""
    session.install(*TOOLS, "matplotlib==3.10.9", "torch==2.13.0")
    session.run("python", "-m", "tools.benchmark", *session.posargs)


@nox.session
def export(session: nox.Session) -> None:
    """Turn the patches into commits on a checkout of Paddle, and back."""
    session.run("python", "-m", "tools.export", *session.posargs)


@nox.session
def prefixes(session: nox.Session) -> None:
    """Import the tree after each patch; --run: also run the patch's tests."""
    session.install(*TOOLS, PYTEST)
    session.run("python", "-m", "tools.prefixes", *session.posargs)


@nox.session
def upstream(session: nox.Session) -> None:
    """Run Paddle's own tests, in the given folder, on both wheels."""
    session.install(*TOOLS)
    session.run(
        "python",
        "-m",
        "tools.upstream",
        *session.posargs,
        # After Ctrl-C, it kills the running test and writes its report.
        interrupt_timeout=60,
    )
