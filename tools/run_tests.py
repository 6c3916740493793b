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
"""Runs every test of the project: the tools', those in C++, Paddle's.

    python -m tools.run_tests [PYTEST_ARGUMENT ...]

Arguments go to pytest for the tests under test/, which run in the environment
with our wheel, on the test device and on each GPU there is.
"""

from __future__ import annotations

import os
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


@reports_errors
def main(argv: list[str] | None = None) -> int:
    arguments = (sys.argv[1:] if argv is None else argv) or ["test"]
    stock, ours = stock_and_ours(SUPPORTED[0])
    plugin = host_device(stock)
    ctest = (beside_python("ctest"), "--output-on-failure", "--test-dir")
    core = shared_memory()
    gpu = (stand_in_gpu(ours), core / "stand_in")
    programs = [("shared memory", core)]
    for sanitizer in ("address", "thread"):
        under = f"under the {sanitizer} sanitizer"
        programs += [
            (f"test device {under}", host_device(stock, sanitizer)),
            (f"shared memory {under}", shared_memory(sanitizer)),
            (f"contexts of threads {under}", thread_contexts(stock, sanitizer)),
        ]
    results = [
        passes(
            "tools",
            *(sys.executable, "-m", "pytest", "-q", "tools/tests"),
            PADDLE_WHEEL_TREE=site_packages(stock),
            PADDLE_PYTHON=ours,
            CUSTOM_DEVICE_ROOT=plugin,
        ),
        *(passes(title, *ctest, folder) for title, folder in programs),
        passes("demonstration", *(sys.executable, "-m", "tools.demonstration")),
        passes(
            "Paddle",
            *(ours, "-m", "pytest", "-q", "-rs", *arguments),
            CUSTOM_DEVICE_ROOT=plugin,
            PADDLE_STAND_IN_GPU=os.pathsep.join(map(str, gpu)),
        ),
    ]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
