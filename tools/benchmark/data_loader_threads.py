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
"""Measures DataLoader worker threads against worker processes and torch.

    python -m tools.benchmark.data_loader_threads [--visits N]
                                                  [--report FILE.md]
                                                  [--torch PYTHON]

Needs torch. The sides take turns, one loop per visit, so that a change of the
machine's speed affects all of them.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import statistics
import sys
from pathlib import Path

from tools.benchmark.data_loader import Loader
from tools.benchmark.data_loader_threads_worker import BATCH_SIZE, DATA
from tools.benchmark.report import machine, write_report
from tools.command_line import reports_errors
from tools.environment import stock_and_ours
from tools.tree import SUPPORTED
from tools.wheel import REPO

WORKER = Path(__file__).with_name("data_loader_threads_worker.py")
# For each side: the environment, the library, and the kind of workers.
SIDES = {
    "threads": ("ours", "paddlepaddle", "thread"),
    "processes": ("ours", "paddlepaddle", "process"),
    "stock": ("stock", "paddlepaddle", "process"),
    "torch": ("torch", "torch", "process"),
}
# Eight only where there are as many cores.
WORKERS = [n for n in (2, 4, 8) if n <= max(4, len(os.sched_getaffinity(0)))]
BATCHES = 48
# Of the data set with annotations, whose memory matters: about 350 MB.
ANNOTATED_BATCHES = 20_000

# One value per visit, by question and side.
Values = dict[str, dict[str, list[float]]]


def questions() -> dict[str, tuple]:
    """Returns the questions by row title."""
    decoded, images, in_python, annotations = DATA
    rows = {
        f"time of a batch: {data}, {workers} workers": (
            "seconds",
            data,
            workers,
            BATCHES,
        )
        for data, workers in itertools.product(
            (decoded, images, in_python), WORKERS
        )
    }
    for method in ("fork", "spawn"):
        rows[f"time to the first batch, 2 workers, {method}"] = (
            "first_batch",
            decoded,
            2,
            method,
        )
    rows["memory (PSS), 4 workers"] = ("memory", decoded, 4, BATCHES)
    rows[f"memory (PSS): {annotations}, 4 workers"] = (
        "memory",
        annotations,
        4,
        ANNOTATED_BATCHES,
    )
    for data in (decoded, images):
        rows[f"memory that loading adds: {data}, 4 workers"] = (
            "added_memory",
            data,
            4,
            BATCHES,
        )
    return rows


def measure(sides: dict[str, Loader], visits: int) -> Values:
    values: Values = {row: {side: [] for side in SIDES} for row in questions()}
    for visit in range(visits):
        print(f"visit {visit + 1} of {visits}", flush=True)
        for row, (*what, last) in questions().items():
            for name, side in sides.items():
                worker_type = SIDES[name][2]
                values[row][name].append(side.ask(*what, worker_type, last))
    return values


def table(values: Values) -> list[str]:
    """Returns a table of the other sides relative to worker threads.

    A cell has the median and the quartiles of the visits' ratios.
    """
    others = [side for side in SIDES if side != "threads"]
    lines = [
        f"| relative to worker threads | {' | '.join(others)} |",
        f"|---|{'---:|' * len(others)}",
    ]
    for row, found in values.items():
        cells = []
        for other in others:
            ratios = [b / a for a, b in zip(found["threads"], found[other])]
            low, median, high = statistics.quantiles(ratios)
            cells.append(f"{median:.2f} ({low:.2f} to {high:.2f})")
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return lines


@reports_errors
def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.benchmark.data_loader_threads"
    )
    parser.add_argument("--visits", type=int, default=15)
    parser.add_argument(
        "--torch", type=Path, default=Path(sys.executable), help="its Python"
    )
    parser.add_argument(
        "--report",
        type=Path,
        default=REPO / "docs" / "benchmark" / "data_loader_threads.md",
    )
    args = parser.parse_args(argv)
    stock, ours = stock_and_ours(SUPPORTED[0])
    pythons = {"stock": stock, "ours": ours, "torch": args.torch}
    with contextlib.ExitStack() as stack:
        sides = {
            name: stack.enter_context(
                contextlib.closing(Loader(pythons[python], library, WORKER))
            )
            for name, (python, library, _) in SIDES.items()
        }
        load = os.getloadavg()[0]
        values = measure(sides, args.visits)
        versions = {name: side.version for name, side in sides.items()}
    lines = table(values)
    print(*lines, sep="\n")
    text = [
        "# DataLoader with worker threads",
        "",
        "Written by `nox -s bench`. Each value is that of a side divided by",
        "that of the custom wheel's worker threads in the same round: above 1,",
        "threads are faster or need less memory. `processes` are the custom",
        "wheel's. Median of the rounds (quartiles). A batch",
        f"has {BATCH_SIZE} samples. `zlib and NumPy` decompresses images of",
        "3 x 224 x 224 and converts them to float32; `Pillow and NumPy`",
        "decodes JPEG images of that size. Both release the GIL; `pure Python`",
        "holds it. Memory is the proportional set size (PSS) of the process",
        "and its workers, which are forked, in the middle of a loop. Most of",
        "it is the process itself with its library; the memory that loading",
        "adds is the difference from before the loop, with the dataset in",
        "memory. Worker threads use neither fork nor spawn.",
        "",
        f"{machine()}; {args.visits} rounds, load average at "
        f"the start {load:.0f}.",
        "",
        *(f"- {name}: {version}" for name, version in versions.items()),
        "",
        *lines,
    ]
    write_report(args.report, text)
    print(f"\nThe report is {args.report}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
