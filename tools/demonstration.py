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
"""Shows Paddle issue 77927 on the official wheel and its fix on ours.

    python -m tools.demonstration

Runs `overlapping_threads.py` in both environments, on a GPU if there is one,
otherwise on the test device. Exit status: 0 if ours is correct in every row,
otherwise 1.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tools.command_line import reports_errors
from tools.environment import host_device, stock_and_ours
from tools.tree import SUPPORTED

SCRIPT = Path(__file__).with_name("overlapping_threads.py")


def lines_of(python: Path, plugin: Path) -> list[list[str]]:
    """Returns the tab-separated lines that the script prints under a Python."""
    done = subprocess.run(
        [str(python), str(SCRIPT)],
        env={**os.environ, "CUSTOM_DEVICE_ROOT": str(plugin)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    if done.returncode:
        raise SystemExit(f"{SCRIPT.name} failed:\n{done.stderr[-4000:]}")
    return [line.split("\t") for line in done.stdout.splitlines()]


@reports_errors
def main(_: list[str] | None = None) -> int:
    stock, ours = stock_and_ours(SUPPORTED[0])
    plugin = host_device(stock)
    table = Table("thread", "asked for", "stock", "ours")
    all_right = True
    for before, after in zip(lines_of(stock, plugin), lines_of(ours, plugin)):
        thread, asked, got_before = before
        _, _, got = after
        all_right &= got == asked
        table.add_row(
            thread,
            asked,
            *(
                f"[green]{place}[/]"
                if place == asked
                else f"[bold red]{place} (wrong)[/]"
                for place in (got_before, got)
            ),
        )
    console = Console(width=100)
    console.print("Where the tensors of a thread land:")
    console.print(table)
    console.print(f"Try it yourself: {ours}")
    return 0 if all_right else 1


if __name__ == "__main__":
    sys.exit(main())
