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
"""Measures after which time the other ranks hear of one that is killed.

    python -m tools.benchmark.data_parallel_death [--visits N]
        [--report FILE.md]

One of three ranks over shm kills itself in the middle of backward; the backward
of the others then raises. New processes for each visit.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
from pathlib import Path

from tools.benchmark.data_parallel import Ranks, free_port
from tools.benchmark.report import machine, write_report
from tools.command_line import reports_errors
from tools.environment import stock_and_ours
from tools.tree import SUPPORTED
from tools.wheel import REPO

WORKER = Path(__file__).with_name("data_parallel_death_worker.py")
RANKS = 3


def visit(python: Path) -> tuple[list[float], bool, str]:
    """Returns the ranks' delays in ms, whether all name the rank, and Paddle's
    version."""
    port = free_port()
    ranks = Ranks(
        [
            [
                str(python),
                str(WORKER),
                *map(str, (rank, RANKS, port, "shm")),
            ]
            for rank in range(RANKS)
        ]
    )
    *survivors, (killed, _) = ranks.answers()
    ranks.close()
    is_named = all(
        re.search(rf"[Rr]ank {RANKS - 1} .process \d+. has died", error)
        for _, error in survivors
    )
    delays = [(heard - killed) * 1000 for heard, _ in survivors]
    return delays, is_named, ranks.version


def report(python: Path, visits: int, file: Path) -> None:
    """Measures, prints the result, and writes it to a file of Markdown."""
    delays: list[float] = []
    named = 0
    for number in range(visits):
        print(f"visit {number + 1} of {visits}", flush=True)
        found, is_named, version = visit(python)
        delays += found
        named += is_named
    lines = [
        "| median, ms | longest, ms | visits in which all name the rank |",
        "|---:|---:|---:|",
        f"| {statistics.median(delays):.1f} | {max(delays):.1f} | "
        f"{named} of {visits} |",
    ]
    print(*lines, sep="\n")
    text = [
        "# A rank that is killed",
        "",
        "Written by `nox -s bench`. One of three ranks kills itself in the",
        "middle of backward. The times are from just before it does so until",
        "backward() of each of the others raises, over shm.",
        "",
        f"{machine()}; {visits} visits; {version}.",
        "",
        *lines,
    ]
    write_report(file, text)
    print(f"\nThe report is {file}")


@reports_errors
def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.benchmark.data_parallel_death"
    )
    parser.add_argument("--visits", type=int, default=10)
    parser.add_argument(
        "--report",
        type=Path,
        default=REPO / "docs" / "benchmark" / "data_parallel_death.md",
    )
    args = parser.parse_args(argv)
    _, ours = stock_and_ours(SUPPORTED[0])
    report(ours, args.visits, args.report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
