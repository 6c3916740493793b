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
"""Measures per-thread devices: ours against stock, in one run.

    python -m tools.benchmark.devices [--rounds N] [--report FILE.md]

One process per wheel times the same calls on the same core. The processes take
turns, so that a change of the machine's speed affects both. A row has stock's
median time, and the median and quartiles of the rounds' ratios. It leaves out
the median time of ours: its ratio to stock's median would mix rounds of
different speed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

from tools.benchmark.report import machine, write_report
from tools.benchmark.worker import Worker
from tools.command_line import reports_errors
from tools.environment import host_device, stock_and_ours
from tools.series import PatchError
from tools.tree import SUPPORTED
from tools.wheel import REPO

WORKER = Path(__file__).with_name("devices_worker.py")

TABLE_HEAD = (
    "| thread | call | stock, ns | ours / stock |",
    "|---|---|---:|---:|",
)

# Calls per round: about 5 ms each.
NUMBERS = {
    "_current_expected_place_()": 100_000,
    "get_device()": 40_000,
    "set_device(...)": 4_000,
    "with device(...)": 2_000,
    "zeros([1])": 1_000,
    "Linear(8, 8) forward": 500,
    "matmul of [256, 256]": 15,
}
TASKS = ("zeros([1])", "Linear(8, 8) forward", "matmul of [256, 256]")

# Calls without the test device, on the CPU alone; below, calls with it. A child
# with a device changes the process permanently, so its cases come last.
ON_CPU = [
    *(("main", name) for name in NUMBERS),
    ("child", "_current_expected_place_()"),
    ("child", "zeros([1])"),
    *(("pool of 4", name) for name in TASKS),
    *(("child with a device", name) for name in NUMBERS),
    ("main while a child has a device", "_current_expected_place_()"),
    ("main while a child has a device", "zeros([1])"),
    *(("pool of 4 with a device", name) for name in TASKS),
]
ON_TWO_DEVICES = [
    ("main", "set_device(...)"),
    ("main", "with device(...)"),
    ("child with a device", "set_device(...)"),
    ("child with a device", "with device(...)"),
]


def measure(
    stock: Worker, ours: Worker, cases: list[tuple[str, str]], rounds: int
) -> list[str]:
    """Returns a row of the table for each case; needs at least two rounds."""
    lines = []
    for where, name in cases:
        pairs = [
            (stock.seconds(where, name), ours.seconds(where, name))
            for _ in range(rounds)
        ]
        before = statistics.median(seconds for seconds, _ in pairs) * 1e9
        low, ratio, high = statistics.quantiles(b / a for a, b in pairs)
        lines.append(
            f"| {where} | `{name}` | {before:,.0f} "
            f"| {ratio:.2f} ({low:.2f} to {high:.2f}) |"
        )
        print(lines[-1], flush=True)
    return lines


def import_milliseconds(python: Path) -> float:
    """Returns the CPU time of a process that imports Paddle."""
    process = subprocess.Popen(
        [str(python), "-c", "import paddle"], stderr=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise PatchError(f"{python} cannot import Paddle")
    return (used.ru_utime + used.ru_stime) * 1e3


def measure_import(stock: Path, ours: Path, rounds: int) -> str:
    """Returns a line about the cost of importing Paddle."""
    pairs = [
        (import_milliseconds(stock), import_milliseconds(ours))
        for _ in range(rounds)
    ]
    before, after = (statistics.median(side) for side in zip(*pairs))
    more = statistics.median(b - a for a, b in pairs)
    return (
        f"`import paddle`, CPU time in ms: {before:,.0f} on the official "
        f"wheel, {after:,.0f} on the custom wheel; the median difference is "
        f"{more:+.1f}."
    )


@reports_errors
def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.benchmark.devices")
    parser.add_argument("--rounds", type=int, default=61)
    parser.add_argument(
        "--report",
        type=Path,
        default=REPO / "docs" / "benchmark" / "devices.md",
    )
    args = parser.parse_args(argv)
    stock, ours = stock_and_ours(SUPPORTED[0])
    plugin = host_device(stock)
    lines = [
        "# One current device per thread",
        "",
        "Written by `nox -s bench`. In each round, the official wheel",
        '("stock") and the custom wheel ("ours") run one after the other, on',
        "the same core. A row has stock's median time, and the median and",
        "quartiles of the rounds' ratios.",
        "",
        f"{machine()}; {args.rounds} rounds.",
    ]
    for title, root, cases in (
        ("One device, the CPU", None, ON_CPU),
        ("Alternating between two devices", plugin, ON_TWO_DEVICES),
    ):
        # The cores of a shared machine change their speed independently.
        core = {max(os.sched_getaffinity(0))}
        workers = [
            Worker(python, WORKER, NUMBERS, root, core)
            for python in (stock, ours)
        ]
        lines += ["", f"## {title}", "", *TABLE_HEAD]
        print(*lines[-5:], sep="\n")
        lines += measure(*workers, cases, args.rounds)
        for worker in workers:
            worker.close()
    lines += ["", measure_import(stock, ours, args.rounds)]
    print(*lines[-2:], sep="\n")
    write_report(args.report, lines)
    print(f"\nThe table is in {args.report}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
