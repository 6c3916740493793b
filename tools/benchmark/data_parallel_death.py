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
"""Measures how soon the other ranks detect a killed rank.

    python -m tools.benchmark.data_parallel_death [--visits N]
        [--report FILE.md]

One of three ranks over shm kills itself in the middle of backward; backward
then raises on the others. Each visit starts new processes.
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
    """Returns the result of one visit.

    That is the survivors' delays in ms, whether all their errors name the
    killed rank, and Paddle's version.
    """
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
    delays = [(raised - killed) * 1000 for raised, _ in survivors]
    return delays, is_named, ranks.version


def report(python: Path, visits: int, file: Path) -> None:
    """Measures, prints the result, and writes the report."""
    delays: list[float] = []
    named = 0
    for number in range(visits):
        print(f"visit {number + 1} of {visits}", flush=True)
        found, is_named, version = visit(python)
        delays += found
        named += is_named
    lines = [
        "| median, ms | longest, ms | rounds in which all name the rank |",
        "|---:|---:|---:|",
        f"| {statistics.median(delays):.1f} | {max(delays):.1f} | "
        f"{named} of {visits} |",
    ]
    print(*lines, sep="\n")
    text = [
        "# A killed rank",
        "",
        "Written by `nox -s bench`. One of three ranks over shm kills itself",
        "in the middle of backward. The times are from just before that until",
        "backward() raises on each of the other ranks.",
        "",
        f"{machine()}; {visits} rounds; {version}.",
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
