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
"""Runs the tests of the project: the tools', those in C++, Paddle's.

    python -m tools.run_tests [PYTEST_ARGUMENT ...]

Without arguments all tests run. With arguments pytest alone runs, with these
arguments: under our wheel, on the test device and on each GPU there is, or, for
files under tools/, in the environment of the tools.

Exit status: 0 when all that ran has passed, otherwise 1.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tools.command_line import reports_errors
from tools.environment import (
    host_device,
    shared_memory,
    site_packages,
    stand_in_gpu,
    stock_and_ours,
    thread_contexts,
)
from tools.tree import SUPPORTED
from tools.wheel import REPO, beside_python


def passes(title: str, *command: str | Path, **variables: str | Path) -> bool:
    """Runs a command under a headline and returns whether it succeeded."""
    print(f"\n===== {title}", flush=True)
    environ = {name: str(value) for name, value in variables.items()}
    return (
        subprocess.run(
            [str(word) for word in command],
            cwd=REPO,
            env={**os.environ, **environ},
        ).returncode
        == 0
    )


def tools_pass(stock: Path, ours: Path, arguments: list[str]) -> bool:
    """Runs tests of the tools and returns whether they have passed."""
    return passes(
        "tools",
        *(sys.executable, "-m", "pytest", "-q", *arguments),
        PADDLE_WHEEL_TREE=site_packages(stock),
        PADDLE_PYTHON=ours,
        CUSTOM_DEVICE_ROOT=host_device(stock),
    )


def paddle_passes(stock: Path, ours: Path, arguments: list[str]) -> bool:
    """Runs tests under our wheel and returns whether they have passed."""
    gpu = (stand_in_gpu(ours), shared_memory() / "stand_in")
    return passes(
        "Paddle",
        *(ours, "-m", "pytest", "-q", "-rs", *arguments),
        CUSTOM_DEVICE_ROOT=host_device(stock),
        PADDLE_STAND_IN_GPU=os.pathsep.join(map(str, gpu)),
    )


def core_passes(stock: Path) -> bool:
    """Runs the programs in C++ and returns whether they have passed."""
    ctest = (beside_python("ctest"), "--output-on-failure", "--test-dir")
    programs = [("shared memory", shared_memory())]
    for sanitizer in ("address", "thread"):
        under = f"under the {sanitizer} sanitizer"
        programs += [
            (f"test device {under}", host_device(stock, sanitizer)),
            (f"shared memory {under}", shared_memory(sanitizer)),
            (f"contexts of threads {under}", thread_contexts(stock, sanitizer)),
        ]
    results = [passes(title, *ctest, folder) for title, folder in programs]
    return all(results)


@reports_errors
def main(argv: list[str] | None = None) -> int:
    """Runs the command line; the module's text gives the exit status."""
    arguments = sys.argv[1:] if argv is None else argv
    # A shell has what it starts in the background ignore Ctrl-C, and processes
    # inherit that; the tests interrupt some.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    stock, ours = stock_and_ours(SUPPORTED[0])
    if arguments:
        of_tools = any(word.startswith("tools/") for word in arguments)
        run = tools_pass if of_tools else paddle_passes
        return 0 if run(stock, ours, arguments) else 1
    results = [
        tools_pass(stock, ours, ["tools/tests"]),
        core_passes(stock),
        passes("demonstration", *(sys.executable, "-m", "tools.demonstration")),
        paddle_passes(stock, ours, ["test"]),
    ]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
