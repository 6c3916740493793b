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
"""Measures the DataLoader with worker processes: ours, stock and torch.

    python -m tools.benchmark.data_loader [--visits N] [--report FILE.md]

Needs torch and matplotlib. Writes the report, and the plot next to it. The
three libraries take turns, one epoch per visit, so that a change of the
machine's speed affects all of them.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from tools.benchmark.data_loader_worker import BATCH_SIZE, SHAPES, WARM_UP
from tools.benchmark.plots import draw_batch_rates
from tools.benchmark.report import machine, write_report
from tools.command_line import reports_errors
from tools.environment import stock_and_ours
from tools.tree import SUPPORTED
from tools.wheel import REPO

WORKER = Path(__file__).with_name("data_loader_worker.py")
LIBRARIES = {"ours": "paddlepaddle", "stock": "paddlepaddle", "torch": "torch"}
WORKERS = (1, 2, 4)
# Timed batches per visit; they take tenths of a second, the slowest seconds.
BATCHES = dict(zip(SHAPES, (300, 100, 300)))
# The rate of ours relative to another library's.
GOALS = {"stock": 1.5, "torch": 1}

Rates = dict[tuple[str, int, str], list[float]]


class Loader:
    """A process that loads with the DataLoader of one library."""

    def __init__(
        self, python: Path, library: str, worker: Path = WORKER
    ) -> None:
        self._process = subprocess.Popen(
            [str(python), str(worker), library],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        self.version = json.loads(self._process.stdout.readline())

    def ask(self, *question: object) -> float:
        """Returns the worker's answer to a question."""
        print(json.dumps(question), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def rate(self, data: str, workers: int) -> float:
        """Returns the batches per second that the worker loaded."""
        batches = BATCHES[data]
        return batches / self.ask(data, workers, batches)

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(60)


def measure(
    pythons: dict[str, Path], visits: int
) -> tuple[Rates, dict[str, str]]:
    """Returns the rates of all visits, and the version of each library."""
    cases = list(itertools.product(SHAPES, WORKERS, LIBRARIES))
    rates: Rates = {case: [] for case in cases}
    with contextlib.ExitStack() as stack:
        loaders = {
            name: stack.enter_context(
                contextlib.closing(Loader(pythons[name], library))
            )
            for name, library in LIBRARIES.items()
        }
        for visit in range(visits):
            print(f"visit {visit + 1} of {visits}", flush=True)
            for case in cases:
                rates[case].append(loaders[case[2]].rate(*case[:2]))
        versions = {name: loader.version for name, loader in loaders.items()}
    return rates, versions


def table(rates: Rates) -> list[str]:
    """Returns a table of the rates, and of ours relative to the others."""
    ratios = [f"ours / {other} (goal {goal})" for other, goal in GOALS.items()]
    lines = [
        f"| batches/s | workers | {' | '.join([*LIBRARIES, *ratios])} |",
        f"|---|---:|{'---:|' * (len(LIBRARIES) + len(ratios))}",
    ]
    for data, workers in itertools.product(SHAPES, WORKERS):
        medians = {
            name: statistics.median(rates[data, workers, name])
            for name in LIBRARIES
        }
        cells = []
        for name, median in medians.items():
            low, _, high = statistics.quantiles(rates[data, workers, name])
            cells.append(f"{median:,.0f} ({low:,.0f} to {high:,.0f})")
        for other, goal in GOALS.items():
            ratio = medians["ours"] / medians[other]
            missed = "" if ratio >= goal else " missed"
            cells.append(f"{ratio:.2f}{missed}")
        lines.append(f"| {data} | {workers} | {' | '.join(cells)} |")
    return lines


def report(pythons: dict[str, Path], visits: int, file: Path) -> None:
    """Measures, prints the table, and writes the report and its plot.

    Args:
        pythons: the Python of each library.
        visits: the number of visits of each library, at least two.
        file: the Markdown file to write; the plot is written next to it.
    """
    rates, versions = measure(pythons, visits)
    lines = table(rates)
    print(*lines, sep="\n")
    plot = file.with_suffix(".svg")
    text = [
        "# DataLoader",
        "",
        "Written by `nox -s bench`. Batches per second of a loop over a",
        "DataLoader that reads one byte of each tensor. A batch has",
        f"{BATCH_SIZE} samples, collated by each library's default function,",
        "in order. Two batches per worker are prefetched; other options have",
        "each library's defaults. The samples are in memory, so only collating",
        "and transferring a batch are measured. Median of the rounds",
        "(quartiles); a round is an epoch, whose first "
        f"{WARM_UP} batches are not timed.",
        "",
        f"{machine()}; {visits} rounds.",
        "",
        *(f"- {name}: {version}" for name, version in versions.items()),
        "",
        f"![batches per second, by workers]({plot.name})",
        "",
        *lines,
    ]
    write_report(file, text)
    draw_batch_rates(file)
    print(f"\nThe report is {file}, the plot {plot}")


@reports_errors
def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.benchmark.data_loader"
    )
    parser.add_argument("--visits", type=int, default=15)
    parser.add_argument(
        "--report",
        type=Path,
        default=REPO / "docs" / "benchmark" / "data_loader.md",
    )
    args = parser.parse_args(argv)
    stock, ours = stock_and_ours(SUPPORTED[0])
    pythons = {"stock": stock, "ours": ours, "torch": Path(sys.executable)}
    report(pythons, args.visits, args.report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
