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
"""Measures steps per second of data-parallel training: ours, stock and torch.

    python -m tools.benchmark.data_parallel [--visits N] [--backend BACKEND]
        [--report FILE.md]

Needs torch. Two ranks on one machine, one thread each, over gloo; ours over
BACKEND. The sides take turns, so that a change of the machine's speed affects
all of them.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from tools.benchmark.data_parallel_worker import MODELS, WARM_UP
from tools.benchmark.report import machine, processor, write_report
from tools.command_line import reports_errors
from tools.environment import stock_and_ours
from tools.tree import SUPPORTED
from tools.wheel import REPO

WORKER = Path(__file__).with_name("data_parallel_worker.py")
LIBRARIES = {"ours": "paddlepaddle", "stock": "paddlepaddle", "torch": "torch"}
RANKS = 2
STEPS = 8
# Library and variant, by side.
SIDES = {
    "ours": ("ours", "default"),
    "ours, views": ("ours", "views"),
    "stock": ("stock", "default"),
    "torch": ("torch", "default"),
    "torch, views": ("torch", "views"),
    "ours, no communication": ("ours", "alone"),
    "torch, no communication": ("torch", "alone"),
}

Rates = dict[tuple[str, str], list[float]]


class Ranks:
    """The processes that train together, one per command."""

    def __init__(self, commands: list[list[str]], **variables: str) -> None:
        self._processes = [
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
            )
            for command in commands
        ]
        self.version = self.answers()[0]

    def ask(self, *question: Any) -> list:
        """Returns the answer of each rank."""
        for process in self._processes:
            print(json.dumps(question), file=process.stdin, flush=True)
        return self.answers()

    def answers(self) -> list:
        """Returns the next JSON line of each rank."""
        answers = []
        for process in self._processes:
            # Paddle also writes its own messages to stdout.
            for line in process.stdout:
                with contextlib.suppress(ValueError):
                    answers.append(json.loads(line))
                    break
            else:
                raise RuntimeError("A rank exited before it answered.")
        return answers

    def close(self) -> None:
        for process in self._processes:
            process.stdin.close()
        for process in self._processes:
            process.wait(60)


def ranks_of(python: Path, library: str, backend: str) -> Ranks:
    """Starts the ranks of one library."""
    port = free_port()
    return Ranks(
        [
            [
                str(python),
                str(WORKER),
                *map(str, (library, rank, RANKS, port, backend)),
            ]
            for rank in range(RANKS)
        ],
        **fast_kernels(processor()),
    )


def fast_kernels(processor: str) -> dict[str, str]:
    """Returns the environment variables that select MKL's fastest code.

    The MKL of Paddle 3.3.0's wheel does not use AVX2 on AMD processors unless
    this variable is set. torch's MKL does not read it.
    """
    return {"MKL_DEBUG_CPU_TYPE": "5"} if "AMD" in processor else {}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def measure(
    pythons: dict[str, Path], visits: int, backend: str
) -> tuple[Rates, dict[str, str]]:
    """Returns the rates of all visits, and the version of each library."""
    rates: Rates = {case: [] for case in itertools.product(MODELS, SIDES)}
    with contextlib.ExitStack() as stack:
        ranks = {
            name: stack.enter_context(
                contextlib.closing(
                    ranks_of(
                        pythons[name],
                        library,
                        backend if name == "ours" else "gloo",
                    )
                )
            )
            for name, library in LIBRARIES.items()
        }
        for visit in range(visits):
            print(f"visit {visit + 1} of {visits}", flush=True)
            for model, side in rates:
                library, variant = SIDES[side]
                seconds = ranks[library].ask(model, variant, STEPS)
                rates[model, side].append(STEPS / max(seconds))
        versions = {name: each.version for name, each in ranks.items()}
    return rates, versions


def table(rates: Rates) -> list[str]:
    """Returns a table of the rates, and of ours relative to each side."""
    lines = ["| model | side | steps/s | ours / side |", "|---|---|---:|---:|"]
    for (model, side), found in rates.items():
        low, median, high = statistics.quantiles(found)
        # Within a visit, all sides had the same machine speed.
        ratio = statistics.median(
            ours / other for ours, other in zip(rates[model, "ours"], found)
        )
        lines.append(
            f"| {model} | {side} | {median:.1f} ({low:.1f} to {high:.1f}) |"
            f" {ratio:.2f} |"
        )
    return lines


def report(
    pythons: dict[str, Path], visits: int, backend: str, file: Path
) -> None:
    """Measures, prints the table, and writes the report."""
    rates, versions = measure(pythons, visits, backend)
    lines = table(rates)
    print(*lines, sep="\n")
    text = [
        "# DataParallel",
        "",
        "Written by `nox -s bench`. Steps per second of data-parallel",
        f"training: forward, backward, SGD; {RANKS} ranks with one thread",
        f"each, over gloo; the custom wheel over {backend}. 'views' means",
        "gradient_as_bucket_view=True. Median of the rounds (quartiles); a",
        f"round is {STEPS} timed steps after {WARM_UP} steps of warm-up. The",
        "ratios are medians of the rounds' ratios.",
        "",
        f"{machine()}; {visits} rounds.",
        *(
            f"{name}={value}, so that the MKL of Paddle's wheel uses AVX2."
            for name, value in fast_kernels(processor()).items()
        ),
        "",
        *(f"- {name}: {version}" for name, version in versions.items()),
        "",
        *lines,
    ]
    write_report(file, text)
    print(f"\nThe report is {file}")


@reports_errors
def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.benchmark.data_parallel"
    )
    parser.add_argument("--visits", type=int, default=15)
    parser.add_argument("--backend", default="shm", help="the backend of ours")
    parser.add_argument(
        "--report",
        type=Path,
        default=REPO / "docs" / "benchmark" / "data_parallel.md",
    )
    args = parser.parse_args(argv)
    stock, ours = stock_and_ours(SUPPORTED[0])
    pythons = {"stock": stock, "ours": ours, "torch": Path(sys.executable)}
    report(pythons, args.visits, args.backend, args.report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
